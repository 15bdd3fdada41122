// player.js: the canvas player. One cell a token, one frame a denoising step, marks by shape and not by colour alone.
// It replays what a Trace recorded and computes nothing of the model. State comes in the traits `data` (payload.py) and,
// in a live widget, those of knobs.js. Hosted by host.py (recorded) and live.py (anywidget). Walked through in notebook 07.

import { openTrace, visibleLine, h, round, nats } from "./data.js";
import { shades } from "./colour.js";
import { icon, iconButton, choice, watchTheme, hosted } from "./controls.js";
import { makePanel, drawBlock, drawText } from "./panel.js";
import { makeInspector } from "./inspector.js";
import { makeAttention, openAttention } from "./attention.js";
import { makeCurves } from "./curves.js";
import { makeKnobs } from "./knobs.js";

const SHOWN = { sampled: "sampled", argmax: "best guess", canvas: "canvas in" };
const COLOURS = { entropy: "entropy", probability: "top probability" };

// ---- the player -----------------------------------------------------------------------------------------------------
export function makePlayer(root, traces, data, start = 0) {
  const most = Math.max(
    1e-6,
    ...traces.flatMap((t) => t.canvases.flatMap((c) => c.entropy.reduce((a, b) => Math.max(a, b), 0))),
  );
  const view = {
    frame: 0,
    shown: "sampled",
    colour: "entropy",
    most,
    playing: false,
    speed: 1,
    focus: { panel: 0, c: 0, p: 0 },
    dark: false,
  };
  const frames = Math.max(...traces.map((t) => t.frames.length));
  const panels = traces.map(makePanel);
  let timer = null;

  const playButton = iconButton("play", "Play", () => (view.playing ? pause() : play()));
  playButton.classList.add("primary");
  const range = h("input", {
    type: "range",
    min: "0",
    max: `${frames - 1}`,
    step: "1",
    value: "0",
    "aria-label": "Denoising step",
    oninput: () => {
      pause();
      seek(Number(range.value));
    },
  });
  const speed = h(
    "select",
    {
      "aria-label": "Speed",
      onchange: () => {
        view.speed = Number(speed.value);
        if (view.playing) play();
      },
    },
    ...[0.5, 1, 2, 4].map((x) => h("option", { value: x, selected: x === 1 }, `${x}×`)),
  );
  const status = h("p", { class: "status" }),
    live = h("p", { class: "unseen", role: "status", "aria-live": "polite" });
  const controls = h(
    "div",
    { class: "controls", role: "group", "aria-label": "Player" },
    iconButton("first", "First step", () => jump(0)),
    iconButton("back", "Step back", () => jump(view.frame - 1)),
    playButton,
    iconButton("forward", "Step forward", () => jump(view.frame + 1)),
    iconButton("last", "Commit", () => jump(frames - 1)),
    range,
    speed,
  );
  const options = h(
    "div",
    { class: "options" },
    choice("Show", SHOWN, "shown", view.shown, (value) => {
      view.shown = value;
      draw();
    }),
    choice("Colour", COLOURS, "colour", view.colour, (value) => {
      view.colour = value;
      draw();
    }),
  );
  const legend = h("div", { class: "legend" });
  const curves = makeCurves(traces, (f) => jump(f));
  const inspector = makeInspector((f) => jump(f));
  const attention = makeAttention(markAttended);
  let marked = [];
  const el = h(
    "section",
    { class: "dg", "aria-label": visibleLine(data.title) },
    h("header", {}, h("h3", {}, visibleLine(data.title)), status),
    controls,
    options,
    h(
      "div",
      { class: "body" },
      h(
        "div",
        { class: "main" },
        h("div", { class: "panels" }, ...panels.map((p) => p.el)),
        legend,
        attention.el,
        curves.el,
      ),
      h("aside", {}, inspector.el),
    ),
    live,
  );
  root.replaceChildren(el);

  function seek(frame) {
    view.frame = Math.min(frames - 1, Math.max(0, frame));
    draw();
  }
  function jump(frame) {
    pause();
    seek(frame);
    live.textContent = status.textContent;
  }
  function play() {
    clearInterval(timer);
    if (view.frame >= frames - 1) seek(0);
    view.playing = true;
    timer = setInterval(
      () => (view.frame >= frames - 1 || !el.isConnected ? pause() : seek(view.frame + 1)),
      320 / view.speed,
    );
    showPlaying();
  }
  function pause() {
    clearInterval(timer);
    if (view.playing) live.textContent = status.textContent;
    view.playing = false;
    showPlaying();
  }
  function showPlaying() {
    el.classList.toggle("playing", view.playing); // cells fade while it plays; a scrub shows at once
    playButton.replaceChildren(icon(view.playing ? "pause" : "play"));
    for (const name of ["aria-label", "title"]) playButton.setAttribute(name, view.playing ? "Pause" : "Play");
  }

  function draw() {
    for (const panel of panels) {
      const frame = panel.frameOf(view.frame);
      for (const block of panel.blocks)
        drawBlock(panel, block, block.c < frame.c ? block.canvas.N : block.c > frame.c ? -1 : frame.n, view);
      drawText(panel, frame, view.shown);
    }
    range.value = view.frame;
    panels.forEach((panel) => (panel.state.textContent = describe(panel)));
    status.textContent = panels.length > 1 ? `frame ${view.frame + 1} of ${frames}` : describe(panels[0]);
    range.setAttribute("aria-valuetext", status.textContent);
    curves.draw(view.frame);
    drawInspector();
  }
  function describe(panel) {
    const { c, n } = panel.frameOf(view.frame),
      canvas = panel.trace.canvases[c];
    const many = panel.trace.canvases.length > 1 ? `canvas ${c + 1} of ${panel.trace.canvases.length}, ` : "";
    if (n >= canvas.N) return `${many}committed after ${canvas.N} steps (${canvas.stop})`;
    const parts = [
      `${many}step ${n + 1} of ${canvas.N}`,
      `temperature ${round(canvas.temperature[n], 3)}`,
      `mean entropy ${nats(canvas.meanEntropy[n])} nats`,
      `${canvas.counts.accepted[n]} accepted`,
      `${canvas.counts.revised[n]} revised`,
    ];
    return parts.join(" · ");
  }
  function drawLegend() {
    const key = (state, words) => h("li", {}, h("span", { class: `cell ${state}`, "aria-hidden": "true" }, "ab"), words);
    const scale = h("span", { class: "scale", "aria-hidden": "true" });
    scale.style.background = `linear-gradient(90deg, ${view.shades.map((s) => s.back).join(",")})`;
    const ends = view.colour === "entropy" ? ["0", `${round(view.most, 1)} nats`] : ["100 %", "0 %"];
    legend.replaceChildren(
      h(
        "ul",
        { "aria-label": "Marks" },
        key("accepted", "accepted"),
        key("renoised", "renoised"),
        key("accepted revised", "revised: its best guess changed"),
        key("pinned", "pinned"),
        key("final", "final"),
        key("cut", "after the end token"),
      ),
      h("p", { class: "ramp" }, `${COLOURS[view.colour]} `, ends[0], scale, ends[1]),
    );
  }

  // -- focus: one cell of the whole player is reachable by Tab, the arrows move it, the inspector follows it
  function cellAt({ panel, c, p }) {
    return panels[panel].blocks[c].cells[p];
  }
  function focusCell(next, move = true) {
    const old = cellAt(view.focus),
      cell = cellAt(next);
    old.tabIndex = -1;
    old.setAttribute("aria-selected", "false");
    cell.tabIndex = 0;
    cell.setAttribute("aria-selected", "true");
    view.focus = next;
    if (move) cell.focus({ preventScroll: false });
    drawInspector();
  }
  function drawInspector() {
    const { panel, c, p } = view.focus,
      frame = panels[panel].frameOf(view.frame);
    const n = c < frame.c ? Infinity : c > frame.c ? -1 : frame.n;
    inspector.draw(panels[panel].trace, c, n, p, view);
    attention.draw(panels[panel].trace, c, n, p);
  }
  // The cells that the chosen layer of the focused position attends to, each with its rank.
  function markAttended(targets) {
    for (const cell of marked) delete cell.dataset.attended;
    marked = targets.map(({ c, p, rank }) => {
      const cell = cellAt({ panel: view.focus.panel, c, p });
      cell.dataset.attended = rank;
      return cell;
    });
  }
  function moveInCells(key, target) {
    const { panel, c, p } = view.focus,
      blocks = panels[panel].blocks,
      { C } = blocks[c].canvas;
    const columns = getComputedStyle(blocks[c].grid).gridTemplateColumns.split(" ").length;
    const step = { ArrowLeft: -1, ArrowRight: 1, ArrowUp: -columns, ArrowDown: columns }[key];
    const next = key === "Home" ? 0 : key === "End" ? C - 1 : p + step;
    if (next >= 0 && next < C) focusCell({ panel, c, p: next });
    else if (next < 0 && c > 0) focusCell({ panel, c: c - 1, p: blocks[c - 1].canvas.C - 1 });
    else if (next >= C && c < blocks.length - 1) focusCell({ panel, c: c + 1, p: 0 });
  }
  el.addEventListener("keydown", (event) => {
    const target = event.composedPath()[0],
      cell = target.closest?.(".grid .cell");
    if (event.ctrlKey || event.metaKey || event.altKey || target.closest?.("select, input:not([type=range]), textarea"))
      return;
    const arrows = ["ArrowLeft", "ArrowRight", "ArrowUp", "ArrowDown", "Home", "End"].includes(event.key);
    if (event.key === " " && !target.closest?.("button, summary")) view.playing ? pause() : play();
    else if (event.key === "," || event.key === "PageUp") jump(view.frame - 1);
    else if (event.key === "." || event.key === "PageDown") jump(view.frame + 1);
    else if (cell && arrows) moveInCells(event.key, cell);
    else if (event.key === "ArrowLeft" || event.key === "ArrowRight")
      jump(view.frame + (event.key === "ArrowRight" ? 1 : -1));
    else if (event.key === "Home" || event.key === "End") jump(event.key === "Home" ? 0 : frames - 1);
    else return;
    event.preventDefault();
    event.stopPropagation();
  });
  panels.forEach((panel, index) =>
    panel.el.addEventListener("pointerdown", (event) => {
      const cell = event.composedPath().find((x) => x.dataset?.p !== undefined);
      if (cell) {
        event.preventDefault();
        focusCell({ panel: index, c: Number(cell.dataset.c), p: Number(cell.dataset.p) });
      }
    }),
  );
  panels.forEach((panel, index) =>
    panel.el.addEventListener("focusin", (event) => {
      const cell = event.composedPath()[0];
      if (cell.dataset?.p === undefined || cellAt(view.focus) === cell) return;
      focusCell({ panel: index, c: Number(cell.dataset.c), p: Number(cell.dataset.p) }, false);
    }),
  );

  options.addEventListener("change", drawLegend);
  focusCell(view.focus, false);
  const unwatch = watchTheme(el, (dark) => {
    view.dark = dark;
    view.shades = shades(data.ramp[dark ? "dark" : "light"]);
    draw();
    drawLegend();
  });
  seek(start);
  return {
    destroy: () => {
      clearInterval(timer);
      unwatch();
    },
  };
}

// ---- the module both hosts load -------------------------------------------------------------------------------------
const openTraces = (data) =>
  Promise.all(data.traces.map(async (packed) => openAttention(await openTrace(packed))));
export default hosted(
  "traces",
  (stage, traces, data, again) => makePlayer(stage, traces, data, again ? Infinity : 0), // a run that just ended shows its end
  openTraces,
  (model) => (model.get("knobs") ? makeKnobs(model) : null),
);
