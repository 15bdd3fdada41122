// race.js: two lanes that write the answer to one prompt with the same weights, a token at a time and by canvas, replayed
// in the time that was recorded: play, speed, scrub; counters of tokens kept, tokens per second, passes and bytes.
// It shows what race.py wrote down and measures nothing. State comes in the trait `data`. Walked through in notebook 08.

import { unpack, fillRuns, visibleRuns, visibleLine, h, round } from "./data.js";
import { icon, iconButton, watchTheme, hosted } from "./controls.js";

const WIDTH = 600,
  HEIGHT = 58,
  SPEEDS = [1 / 32, 1 / 16, 1 / 8, 1 / 4, 1 / 2, 1, 2, 4, 8],
  PLEASANT = 8, // seconds that a replay should take at most, and half of it at least
  STILL_MS = 700; // between the jumps of a replay where motion is reduced

const speedWords = (x) => (x < 1 ? `1/${1 / x}×` : `${x}×`);
const seconds = (t) => `${t < 1 ? round(t, 3) : t < 100 ? round(t, 2) : round(t, 0)} s`;
const brief = (x) => (x >= 1000 ? round(x, 0) : `${Number(x.toPrecision(3))}`);
function bytes(count) {
  const units = ["B", "kB", "MB", "GB", "TB"];
  let i = 0;
  for (; count >= 1000 && i < units.length - 1; i++) count /= 1000;
  return `${Number(count.toPrecision(3))} ${units[i]}`;
}

async function openLane(packed, index) {
  const ids = await unpack(packed.ids),
    [F, C] = packed.ids.s;
  for (let i = 0; i < ids.length; i++) ids[i] = ids[i] === 0 ? ids[i - C] : ids[i] - 1; // 0: as one event ago
  const accepted = packed.accepted ? await unpack(packed.accepted) : null;
  return { ...packed, index, ids, accepted, F, C, total: packed.seconds[F - 1], all: packed.tokens.length };
}

// The last event that stood at time t, -1 before the first.
function eventAt(lane, t) {
  let low = 0,
    high = lane.F;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (lane.seconds[middle] <= t) low = middle + 1;
    else high = middle;
  }
  return low - 1;
}

// Tokens kept over time as steps, a tick for each event; both lanes have the same scales.
function makeTimeline(lane, longest, most, seek) {
  const x = (t) => 2 + ((WIDTH - 4) * t) / longest,
    y = (kept) => HEIGHT - 12 - ((HEIGHT - 16) * kept) / most;
  let path = `M${x(0)} ${y(0)}`,
    ticks = "";
  lane.seconds.forEach((t, f) => {
    path += `H${x(t).toFixed(2)}V${y(lane.kept[f]).toFixed(2)}`;
    ticks += `M${x(t).toFixed(2)} ${HEIGHT - 8}v6`;
  });
  const cursor = h("line", { class: "cursor", y1: 0, y2: HEIGHT }),
    dot = h("circle", { class: "dot", r: 3.6 });
  const svg = h(
    "svg",
    { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, "aria-hidden": "true", class: "timeline" },
    h("line", { class: "base", x1: 2, x2: WIDTH - 2, y1: y(0), y2: y(0) }),
    h("path", { class: "ticks", d: ticks }),
    h("path", { class: "kept", d: path }),
    cursor,
    dot,
  );
  svg.addEventListener("pointerdown", (event) => {
    const box = svg.getBoundingClientRect();
    seek(((event.clientX - box.left) / box.width) * longest);
  });
  function draw(t, kept) {
    for (const name of ["x1", "x2"]) cursor.setAttribute(name, x(t));
    dot.setAttribute("cx", x(Math.min(t, lane.total)));
    dot.setAttribute("cy", y(kept));
  }
  return { svg, draw };
}

function makeLane(data, lane, longest, most, seek) {
  const runs = data.texts.map((text) => visibleRuns(text, true));
  const what = lane.accepted ? "denoising steps" : "tokens";
  const how = lane.accepted
    ? "Under way: the most likely tokens; dotted ones were not accepted in this step. Kept with the canvas's last step."
    : "Every token is kept as it is written, and none is revised.";
  const names = ["tokens kept", "time", "tokens per second", "passes", "weights and cache read", "for each token kept"];
  const values = names.map(() => h("dd", {}));
  const dl = h("dl", {}, ...names.map((name, i) => h("div", {}, h("dt", {}, name), values[i])));
  const state = h("span", {}),
    bar = h("progress", { max: lane.all, value: 0, "aria-label": `Tokens kept, ${lane.name}` });
  const prompt = h("span", { class: "prompt" }),
    answer = h("span", { class: "answer" }),
    draft = h("span", { class: "draft" });
  const text = h(
    "div",
    { class: "decoded", tabindex: "0", role: "region", "aria-label": `Text, ${lane.name}` },
    prompt,
    answer,
    draft,
  );
  const timeline = makeTimeline(lane, longest, most, seek);
  const el = h(
    "section",
    { class: "lane", "aria-label": visibleLine(lane.name) },
    h("p", { class: "caption heading" }, h("b", {}, visibleLine(lane.name)), state),
    bar,
    dl,
    text,
    h("p", { class: "caption" }, how),
    timeline.svg,
    h(
      "p",
      { class: "axis", "aria-hidden": "true" },
      h("small", {}, `tokens kept over time, a tick for each of ${lane.F} ${what}`),
      h("small", {}, seconds(longest)),
    ),
  );
  let shown = null;
  fillRuns(prompt, visibleRuns(data.prompt.map((i) => data.texts[i]).join(""), true));

  function words(ids) {
    const span = h("span", {});
    fillRuns(span, visibleRuns(ids.map((i) => data.texts[i]).join(""), true));
    return span;
  }
  // A canvas under way: its most likely tokens, those that were not accepted marked; empty once it is kept.
  function draftOf(f) {
    if (f < 0 || !lane.accepted || lane.kept[f] > lane.canvas[f] * lane.C || lane.kept[f] === lane.all) return [];
    return Array.from({ length: lane.C }, (_, p) => {
      const i = f * lane.C + p,
        token = h("span", { class: lane.accepted[i] ? "sure" : "unsure" });
      fillRuns(token, runs[lane.ids[i]]);
      return token;
    });
  }
  function draw(t) {
    const f = eventAt(lane, t),
      kept = f < 0 ? 0 : lane.kept[f],
      now = Math.min(t, lane.total),
      done = f === lane.F - 1;
    timeline.draw(t, kept);
    values[1].textContent = seconds(now);
    values[2].textContent = now > 0 ? brief(kept / now) : "0";
    el.classList.toggle("done", done);
    if (shown === f) return;
    shown = f;
    const moved = f < 0 ? 0 : lane.moved[f][0] + lane.moved[f][1];
    bar.value = kept;
    values[0].textContent = `${kept} of ${lane.all}`;
    values[3].textContent = f < 0 ? "0" : `${lane.passes[f]}`;
    values[4].textContent = bytes(moved);
    values[5].textContent = kept ? bytes(moved / kept) : "–";
    const under = draftOf(f),
      sure = under.filter((token) => token.className === "sure").length;
    const step = under.length ? `canvas ${lane.canvas[f] + 1}, ${sure} of ${lane.C} accepted` : "";
    state.textContent = done ? `done: ${lane.stop.replace("_", " ")}` : f < 0 ? "reading the prompt" : step;
    answer.replaceChildren(words(lane.tokens.slice(0, kept)));
    draft.replaceChildren(...under);
    const end = under.length ? draft.getBoundingClientRect().top - text.getBoundingClientRect().top - 64 : text.scrollHeight;
    text.scrollTop += end; // a canvas under way is shown from its start, kept text to its end
  }
  return { el, draw };
}

// ---- totals and words ----------------------------------------------------------------------------------------------------
function makeTotals(lanes) {
  const head = [
    "",
    "tokens kept",
    "seconds",
    "tokens per second",
    "passes",
    "tokens per pass",
    "weights read per token",
    "cache",
    "activations",
    "all runs, seconds",
  ];
  const rows = lanes.map((l) => [
    visibleLine(l.name),
    l.all,
    brief(l.total),
    brief(l.all / l.total),
    l.passes[l.F - 1],
    brief(l.all / l.passes[l.F - 1]),
    ...l.moved[l.F - 1].map((n) => bytes(n / l.all)),
    [...l.runs]
      .sort((a, b) => a - b)
      .map(brief)
      .join(", "),
  ]);
  return h(
    "details",
    { class: "numbers" },
    h("summary", {}, "Both lanes in numbers"),
    h(
      "div",
      { class: "scroll", tabindex: "0", role: "region", "aria-label": "Both lanes in numbers" },
      h(
        "table",
        {},
        h("tr", {}, ...head.map((words) => h("th", { scope: "col" }, words))),
        ...rows.map((row) => h("tr", {}, ...row.map((value) => h("td", {}, `${value}`)))),
      ),
      h(
        "p",
        { class: "caption" },
        "A pass runs the model once; the prompt's and those that commit a canvas count. Seconds are wall time, the run in ",
        "the middle of those timed. Bytes are computed for every pass, not measured.",
      ),
    ),
  );
}

function verdict(lanes) {
  const [one, two] = lanes,
    [fast, slow] = one.all / one.total > two.all / two.total ? [one, two] : [two, one];
  const rate = (l) => `${brief(l.all / l.total)} tokens a second (${l.all} in ${seconds(l.total)})`;
  const times = fast.all / fast.total / (slow.all / slow.total);
  const how = `${visibleLine(fast.name)}, ${brief(times)} times the tokens kept a second`;
  return `Faster here: ${how}: ${rate(fast)} against ${rate(slow)}.`;
}

// ---- the view ------------------------------------------------------------------------------------------------------------
function makeRace(root, data, lanes) {
  const longest = Math.max(...lanes.map((l) => l.total)),
    most = Math.max(...lanes.map((l) => l.all));
  const events = [...new Set([0, ...lanes.flatMap((l) => l.seconds), longest])].sort((a, b) => a - b);
  const still = matchMedia("(prefers-reduced-motion: reduce)");
  const first = SPEEDS.findLast((x) => longest / x >= PLEASANT / 2) ?? SPEEDS[0];
  const view = { t: 0, playing: false, speed: Math.min(longest > PLEASANT ? 8 : 1, first) };
  let frame = null,
    timer = null;

  const playButton = iconButton("play", "Play", () => (view.playing ? pause() : play()));
  playButton.classList.add("primary");
  const range = h("input", {
    type: "range",
    min: "0",
    max: "1000",
    step: "1",
    value: "0",
    "aria-label": "Recorded time",
    oninput: () => {
      pause();
      seek((Number(range.value) / 1000) * longest);
    },
  });
  const speed = h(
    "select",
    {
      "aria-label": "Speed",
      onchange: () => {
        view.speed = Number(speed.value);
        if (view.playing) play();
        draw();
      },
    },
    ...SPEEDS.map((x) => h("option", { value: x, selected: x === view.speed }, speedWords(x))),
  );
  const controls = h(
    "div",
    { class: "controls", role: "group", "aria-label": "Race" },
    iconButton("first", "Start", () => jump(0)),
    iconButton("back", "Event before", () => jumpEvent(-1)),
    playButton,
    iconButton("forward", "Next event", () => jumpEvent(1)),
    iconButton("last", "Finish", () => jump(longest)),
    range,
    speed,
  );
  const status = h("p", { class: "status" }),
    live = h("p", { class: "unseen", role: "status", "aria-live": "polite" });
  const drawn = lanes.map((lane) => makeLane(data, lane, longest, most, jump));
  const el = h(
    "section",
    { class: "dg race", "aria-label": visibleLine(data.title) },
    h("header", {}, h("h3", {}, visibleLine(data.title)), status),
    controls,
    h("div", { class: "panels" }, ...drawn.map((d) => d.el)),
    h("p", { class: "verdict" }, verdict(lanes)),
    h("p", { class: "caption" }, visibleLine(data.machine)),
    makeTotals(lanes),
    data.note ? h("p", { class: "note" }, visibleLine(data.note)) : null,
    live,
  );
  root.replaceChildren(el);

  function draw() {
    drawn.forEach((lane) => lane.draw(view.t));
    range.value = (1000 * view.t) / longest;
    status.textContent = `${seconds(view.t)} of ${seconds(longest)}, recorded · replay at ${speedWords(view.speed)}`;
    const kept = lanes.map((lane) => {
      const f = eventAt(lane, view.t);
      return `${visibleLine(lane.name)} ${f < 0 ? 0 : lane.kept[f]}`;
    });
    range.setAttribute("aria-valuetext", `${seconds(view.t)}, tokens kept: ${kept.join(", ")}`);
  }
  function seek(t) {
    view.t = Math.min(longest, Math.max(0, t));
    draw();
  }
  function jump(t) {
    pause();
    seek(t);
    live.textContent = range.getAttribute("aria-valuetext");
  }
  function jumpEvent(step) {
    jump((step > 0 ? events.find((t) => t > view.t + 1e-9) : events.findLast((t) => t < view.t - 1e-9)) ?? view.t);
  }
  function stop() {
    cancelAnimationFrame(frame);
    clearInterval(timer);
  }
  function advance(t) {
    seek(t);
    if (view.t >= longest || !el.isConnected) pause();
  }
  function play() {
    stop();
    if (view.t >= longest) seek(0);
    view.playing = true;
    showPlaying();
    if (still.matches) {
      timer = setInterval(() => advance(view.t + longest / 10), STILL_MS);
      return;
    }
    let last = performance.now();
    const tick = (now) => {
      const passed = Math.max(0, now - last);
      last = now;
      advance(view.t + (passed / 1000) * view.speed);
      if (view.playing) frame = requestAnimationFrame(tick);
    };
    frame = requestAnimationFrame(tick);
  }
  function pause() {
    stop();
    if (view.playing) live.textContent = range.getAttribute("aria-valuetext");
    view.playing = false;
    showPlaying();
  }
  function showPlaying() {
    playButton.replaceChildren(icon(view.playing ? "pause" : "play"));
    for (const name of ["aria-label", "title"]) playButton.setAttribute(name, view.playing ? "Pause" : "Play");
  }
  el.addEventListener("keydown", (event) => {
    const target = event.composedPath()[0],
      sideways = event.key === "ArrowLeft" || event.key === "ArrowRight";
    if (event.ctrlKey || event.metaKey || event.altKey || target.closest?.("select")) return;
    if (target.closest?.(".decoded, .scroll") && event.key !== " ") return; // they scroll there
    if (event.key === " " && !target.closest?.("button, summary")) view.playing ? pause() : play();
    else if (event.key === "," || event.key === "PageUp") jumpEvent(-1);
    else if (event.key === "." || event.key === "PageDown") jumpEvent(1);
    else if (sideways) jumpEvent(event.key === "ArrowLeft" ? -1 : 1);
    else if (event.key === "Home" || event.key === "End") jump(event.key === "Home" ? 0 : longest);
    else return;
    event.preventDefault();
    event.stopPropagation();
  });
  const unwatch = watchTheme(el, () => {});
  seek(0);
  return {
    destroy: () => {
      stop();
      unwatch();
    },
  };
}

// ---- the module a host loads ---------------------------------------------------------------------------------------------
export default hosted("lanes", (stage, lanes, data) => makeRace(stage, data, lanes), (data) => Promise.all(data.lanes.map(openLane)));
