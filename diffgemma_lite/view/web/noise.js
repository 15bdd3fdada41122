// noise.js: one text at noise level t, a process in each panel; slider, play, marks by shape, curves of the changed share.
// It shows what noise_record.py wrote down and computes nothing: neither the noise nor the expected share.
// State comes in the trait `data` (noise_view.py). Hosted by host.py. Walked through in notebook 02.

import { fillRuns, visibleRuns, runsText, visibleLine, h, round } from "./data.js";
import { icon, iconButton, choice, watchTheme, hosted } from "./controls.js";

const MARKS = ["unchanged", "changed", "masked", "itself"];
const WORDS = { unchanged: "unchanged", changed: "changed", masked: "masked", itself: "noised to itself" };
const SHOWN = { marked: "the marks", plain: "what the model sees" };
const WIDTH = 300,
  HEIGHT = 72,
  LEVEL_MS = 280;

const level = (t) => `t = ${round(t, 2)}`;

// ---- the changed share over t: expected line with its band, observed dots, one marker ----------------------------------
function makeShare(data, path, seek) {
  const { levels } = data;
  const x = (t) => 4 + (WIDTH - 8) * t,
    y = (share) => HEIGHT - 4 - (HEIGHT - 8) * share;
  const point = (i, share) => `${x(levels[i]).toFixed(1)},${y(Math.min(1, Math.max(0, share))).toFixed(1)}`;
  const all = levels.map((_, i) => i);
  const band = [
    ...all.map((i) => point(i, path.expected[i] + path.half[i])),
    ...all.reverse().map((i) => point(i, path.expected[i] - path.half[i])),
  ];
  const cursor = h("line", { class: "cursor", y1: 0, y2: HEIGHT }),
    dot = h("circle", { r: 4, class: "dot" });
  const svg = h(
    "svg",
    { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, "aria-hidden": "true" },
    h("path", { class: "band", d: `M${band.join("L")}Z` }),
    ...[0, 0.5, 1].map((s) => h("line", { class: "base", x1: 4, x2: WIDTH - 4, y1: y(s), y2: y(s) })),
    h("polyline", { class: "limit", points: levels.map((_, i) => point(i, path.expected[i])).join(" ") }),
    ...levels.map((t, i) => h("circle", { class: "seen", r: 1.8, cx: x(t), cy: y(path.observed[i]) })),
    cursor,
    dot,
  );
  svg.addEventListener("pointerdown", (event) => {
    const box = svg.getBoundingClientRect(),
      t = ((event.clientX - box.left) / box.width) * (WIDTH / (WIDTH - 8)) - 4 / (WIDTH - 8);
    seek(levels.reduce((best, v, i) => (Math.abs(v - t) < Math.abs(levels[best] - t) ? i : best), 0));
  });
  const numbers = h("output", {});
  const key = `dots: changed share, line: expected ${path.law}, band: 95% of texts this long`;
  const el = h(
    "div",
    { class: "curve" },
    h("p", {}, h("span", {}, "changed share"), numbers),
    svg,
    h("p", { class: "axis", "aria-hidden": "true" }, h("small", {}, "t = 0"), h("small", {}, "t = 1")),
    h("p", { class: "key" }, h("small", {}, key)),
  );
  function draw(f) {
    cursor.setAttribute("x1", x(levels[f]));
    cursor.setAttribute("x2", x(levels[f]));
    dot.setAttribute("cx", x(levels[f]));
    dot.setAttribute("cy", y(path.observed[f]));
    numbers.textContent = `observed ${round(path.observed[f], 3)} · expected ${round(path.expected[f], 3)}`;
  }
  return { el, draw };
}

// ---- one process: its name, the text as cells, the same text to read, its curve ----------------------------------------
function makePath(data, path, index, seek) {
  const runs = data.texts.map((text) => visibleRuns(text));
  const cells = data.clean.map((_, p) =>
    h("span", {
      class: "cell",
      role: "option",
      tabindex: "-1",
      "data-p": p,
      "data-panel": index,
      "aria-selected": "false",
    }),
  );
  const name = visibleLine(path.name);
  const grid = h("div", { class: "grid", role: "listbox", "aria-label": `Text under ${name}` }, ...cells);
  const text = h("div", { class: "decoded", tabindex: "0", role: "region", "aria-label": `Text to read, ${name}` });
  const count = h("span", {}),
    share = makeShare(data, path, seek),
    keys = new Array(cells.length).fill(""),
    held = new Array(cells.length).fill(-1);
  const el = h(
    "div",
    { class: "panel" },
    h("p", { class: "caption heading" }, h("b", {}, name), count),
    grid,
    text,
    share.el,
  );

  // room for the most lines of any level of any path, so that nothing jumps while it plays
  const rows = data.paths.flatMap((each) => each.ids);
  const lines = rows.map((row) => row.reduce((n, token) => n + data.texts[token].split("\n").length - 1, 1));
  text.style.setProperty("--lines", Math.min(9, Math.max(2, ...lines)));

  const masks = path.marks.some((row) => row.includes(2));
  const changed = (f) => path.marks[f].filter((m) => m === 1 || m === 2).length;
  // the mark that is shown: without marks only a mask gives itself away
  const markAt = (f, p, plain) => (plain && path.marks[f][p] !== 2 ? "unchanged" : MARKS[path.marks[f][p]]);

  function draw(f, plain) {
    cells.forEach((cell, p) => {
      const token = path.ids[f][p],
        mark = markAt(f, p, plain),
        key = `${token} ${mark} ${plain}`;
      if (keys[p] === key) return;
      keys[p] = key;
      const shown = runsText(runs[token]),
        size = shown.length;
      cell.className = `cell ${mark}${size > 9 ? " longest" : size > 6 ? " long" : ""}`;
      if (held[p] !== token) fillRuns(cell, runs[token]);
      held[p] = token;
      const words = mark === "masked" ? ["masked"] : [shown, plain ? "" : WORDS[mark]];
      cell.setAttribute("aria-label", [`${p}`, ...words].filter(Boolean).join(", "));
    });
    text.replaceChildren(...readable(f));
    share.draw(f);
    const verb = masks ? "masked" : "changed";
    count.textContent = plain ? `${cells.length} positions` : `${changed(f)} of ${cells.length} ${verb}`;
  }
  // running text; a mask is a box, everything else is what its token says
  function readable(f) {
    const parts = [];
    let string = "";
    const flush = () => {
      if (!string) return;
      const span = h("span", {});
      fillRuns(span, visibleRuns(string, true));
      parts.push(span);
      string = "";
    };
    path.ids[f].forEach((token, p) => {
      if (path.marks[f][p] !== 2) return void (string += data.texts[token]);
      flush();
      parts.push(h("i", { class: "box" }, "▒"));
    });
    flush();
    return parts;
  }
  const label = (f, p) => ({ mark: MARKS[path.marks[f][p]], runs: runs[path.ids[f][p]] });
  const first = (p) => path.marks.findIndex((row) => row[p] !== 0);
  return { el, grid, cells, draw, changed, label, first, name, masks };
}

// ---- every level in numbers, for who cannot or does not want to scrub -------------------------------------------------
function makeTable(data) {
  const head = data.paths.flatMap((p) => [`${visibleLine(p.name)}: changed share`, `expected ${p.law}`]);
  const rows = data.levels.map((t, i) => [
    round(t, 2),
    ...data.paths.flatMap((p) => [round(p.observed[i], 3), `${round(p.expected[i], 3)} ± ${round(p.half[i], 3)}`]),
  ]);
  return h(
    "details",
    { class: "numbers" },
    h("summary", {}, `All ${data.levels.length} levels in numbers`),
    h(
      "div",
      { class: "scroll", tabindex: "0", role: "region", "aria-label": "All levels in numbers" },
      h(
        "table",
        {},
        h("tr", {}, ...["t", ...head].map((words) => h("th", { scope: "col" }, words))),
        ...rows.map((row) => h("tr", {}, ...row.map((value) => h("td", {}, value)))),
      ),
    ),
  );
}

// ---- the view -----------------------------------------------------------------------------------------------------
function makeNoise(root, data) {
  const view = { f: 0, plain: false, playing: false, focus: { panel: 0, p: 0 } };
  const last = data.levels.length - 1;
  let timer = null;

  const playButton = iconButton("play", "Play", () => (view.playing ? pause() : play()));
  playButton.classList.add("primary");
  const range = h("input", {
    type: "range",
    min: "0",
    max: `${last}`,
    step: "1",
    value: "0",
    "aria-label": "Noise level t",
    oninput: () => {
      pause();
      seek(Number(range.value));
    },
  });
  const now = h("output", { class: "now" });
  const controls = h(
    "div",
    { class: "controls", role: "group", "aria-label": "Noise level" },
    iconButton("first", `First level, ${level(data.levels[0])}`, () => jump(0)),
    iconButton("back", "One level back", () => jump(view.f - 1)),
    playButton,
    iconButton("forward", "One level on", () => jump(view.f + 1)),
    iconButton("last", `Last level, ${level(data.levels[last])}`, () => jump(last)),
    range,
    now,
  );
  const options = h(
    "div",
    { class: "options" },
    choice("Show", SHOWN, "shown", "marked", (value) => {
      view.plain = value === "plain";
      draw();
    }),
  );
  const panels = data.paths.map((path, i) => makePath(data, path, i, (f) => jump(f)));
  const detail = h("div", { class: "detail" }),
    legend = h("ul", { "aria-label": "Marks" }),
    status = h("p", { class: "status" }),
    live = h("p", { class: "unseen", role: "status", "aria-live": "polite" });
  const el = h(
    "section",
    { class: "dg noise", "aria-label": visibleLine(data.title) },
    h("header", {}, h("h3", {}, visibleLine(data.title)), status),
    controls,
    options,
    h("div", { class: "panels" }, ...panels.map((p) => p.el)),
    detail,
    h("div", { class: "legend" }, legend),
    makeTable(data),
    data.note ? h("p", { class: "note" }, visibleLine(data.note)) : null,
    live,
  );
  root.replaceChildren(el);

  function seek(f) {
    view.f = Math.min(last, Math.max(0, f));
    draw();
  }
  function jump(f) {
    pause();
    seek(f);
    live.textContent = status.textContent;
  }
  function play() {
    clearInterval(timer);
    if (view.f >= last) seek(0);
    view.playing = true;
    timer = setInterval(() => (view.f >= last || !el.isConnected ? pause() : seek(view.f + 1)), LEVEL_MS);
    showPlaying();
  }
  function pause() {
    clearInterval(timer);
    if (view.playing) live.textContent = status.textContent;
    view.playing = false;
    showPlaying();
  }
  function showPlaying() {
    el.classList.toggle("playing", view.playing);
    playButton.replaceChildren(icon(view.playing ? "pause" : "play"));
    for (const name of ["aria-label", "title"]) playButton.setAttribute(name, view.playing ? "Pause" : "Play");
  }

  function draw() {
    el.classList.toggle("plain", view.plain);
    panels.forEach((panel) => panel.draw(view.f, view.plain));
    now.textContent = level(data.levels[view.f]);
    const counts = panels.map((panel) => `${panel.name} ${panel.changed(view.f)}`);
    status.textContent = view.plain
      ? level(data.levels[view.f])
      : `${level(data.levels[view.f])} · changed of ${data.clean.length}: ${counts.join(", ")}`;
    range.value = view.f;
    range.setAttribute("aria-valuetext", status.textContent);
    drawDetail();
    drawLegend();
  }
  function drawLegend() {
    const used = MARKS.filter((mark, m) => data.paths.some((path) => path.marks.some((row) => row.includes(m))));
    const shown = view.plain ? used.filter((mark) => mark === "masked") : used;
    const text = { masked: "mask" };
    legend.replaceChildren(
      ...shown.map((mark) =>
        h("li", {}, h("span", { class: `cell ${mark}`, "aria-hidden": "true" }, text[mark] ?? "ab"), WORDS[mark]),
      ),
    );
    legend.hidden = !shown.length;
  }
  // What stands at the focused position, in words; without marks only what the model could know.
  function drawDetail() {
    const { p } = view.focus;
    const token = (runs) => {
      const code = h("code", {});
      fillRuns(code, runs);
      return code;
    };
    const lines = panels.map((panel) => {
      const { mark, runs } = panel.label(view.f, p),
        f = panel.first(p);
      const when = f < 0 ? "never noised" : `first noise at ${level(data.levels[f])}`;
      const unmarked = panel.masks ? "not a mask, so it is unchanged" : "changed or not? Nothing says so";
      const known = mark === "masked" ? "masked, and it shows" : view.plain ? unmarked : WORDS[mark];
      const history = view.plain || data.levels[0] > data.levels[last] ? "" : ` (${when})`;
      return h("p", {}, `${panel.name}: `, token(runs), ` ${known}${history}`);
    });
    const clean = view.plain ? null : h("p", {}, "in the text: ", token(visibleRuns(data.texts[data.clean[p]])));
    detail.replaceChildren(h("h4", {}, `Position ${p}`), ...(clean ? [clean] : []), ...lines);
  }

  // -- focus: one cell is reachable by Tab, the arrows move it; the same position is outlined in every panel
  const cellAt = ({ panel, p }) => panels[panel].cells[p];
  function focusCell(next, move = true) {
    cellAt(view.focus).tabIndex = -1;
    for (const panel of panels) panel.cells[view.focus.p].setAttribute("aria-selected", "false");
    view.focus = next;
    cellAt(next).tabIndex = 0;
    for (const panel of panels) panel.cells[next.p].setAttribute("aria-selected", "true");
    if (move) cellAt(next).focus({ preventScroll: false });
    drawDetail();
  }
  function moveInCells(key) {
    const { panel, p } = view.focus,
      count = data.clean.length;
    const columns = getComputedStyle(panels[panel].grid).gridTemplateColumns.split(" ").length;
    const step = { ArrowLeft: -1, ArrowRight: 1, ArrowUp: -columns, ArrowDown: columns }[key];
    const next = key === "Home" ? 0 : key === "End" ? count - 1 : p + step;
    if (next >= 0 && next < count) focusCell({ panel, p: next });
  }
  el.addEventListener("keydown", (event) => {
    const target = event.composedPath()[0],
      cell = target.closest?.(".grid .cell");
    if (event.ctrlKey || event.metaKey || event.altKey || target.closest?.("input:not([type=range])")) return;
    if (target.closest?.(".decoded, .scroll") && event.key.startsWith("Arrow")) return; // they scroll there
    const arrows = ["ArrowLeft", "ArrowRight", "ArrowUp", "ArrowDown", "Home", "End"].includes(event.key);
    if (event.key === " " && !target.closest?.("button, summary")) view.playing ? pause() : play();
    else if (event.key === "," || event.key === "PageUp") jump(view.f - 1);
    else if (event.key === "." || event.key === "PageDown") jump(view.f + 1);
    else if (cell && arrows) moveInCells(event.key);
    else if (event.key === "ArrowLeft" || event.key === "ArrowRight") jump(view.f + (event.key === "ArrowRight" ? 1 : -1));
    else if (event.key === "Home" || event.key === "End") jump(event.key === "Home" ? 0 : last);
    else return;
    event.preventDefault();
    event.stopPropagation();
  });
  const placeOf = (node) => ({ panel: Number(node.dataset.panel), p: Number(node.dataset.p) });
  for (const panel of panels) {
    panel.el.addEventListener("pointerdown", (event) => {
      const cell = event.composedPath().find((node) => node.dataset?.p !== undefined);
      if (!cell) return;
      event.preventDefault();
      focusCell(placeOf(cell));
    });
    panel.el.addEventListener("focusin", (event) => {
      const cell = event.composedPath()[0];
      if (cell.dataset?.p !== undefined && cellAt(view.focus) !== cell) focusCell(placeOf(cell), false);
    });
  }
  draw();
  focusCell(view.focus, false);
  const unwatch = watchTheme(el, () => {});
  return {
    destroy: () => {
      clearInterval(timer);
      unwatch();
    },
  };
}

// ---- the module a host loads -----------------------------------------------------------------------------------------
export default hosted("paths", makeNoise);
