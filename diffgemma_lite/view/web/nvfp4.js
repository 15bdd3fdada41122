// nvfp4.js: sixteen weights on the number line of their codes. Blocks are chosen from a heat map of errors, or the slider
// makes one weight of one block larger. It shows what nvfp4_record.py wrote down and computes nothing.
// State comes in the trait `data` (nvfp4_view.py). Hosted by host.py. Walked through in notebook 10.

import { visibleLine, h, round } from "./data.js";
import { shades } from "./colour.js";
import { iconButton, watchTheme, hosted } from "./controls.js";

const END = 7, // the axis runs from -7 to 7 times the scale
  HEIGHT = 170,
  FLOOR = 150;
const across = (u) => (50 * (Math.max(-END, Math.min(END, u)) + END)) / END; // per cent
const share = (x) => `${round(100 * x, 1)} %`;
const signed = (x, digits) => `${x < 0 ? "−" : ""}${round(Math.abs(x), digits)}`;
const bits = (code) => code.toString(2).padStart(4, "0");

// ---- the number line: ticks where codes are, a numbered dot for each weight, a line to the code it goes to ---------------
function makeLine(data) {
  const ticks = [...data.numbers.slice(1).map((v) => -v).reverse(), ...data.numbers];
  const svg = h("svg", { viewBox: `0 0 100 ${HEIGHT}`, preserveAspectRatio: "none", "aria-hidden": "true" });
  const dots = h("div", { class: "weights", "aria-hidden": "true" });
  const label = (v) => signed(v, v % 1 ? 1 : 0);
  const labels = ticks.map((v) => h("span", { class: v % 1 ? "half" : null, style: `left:${across(v)}%` }, label(v)));
  const el = h("div", { class: "numberline" }, svg, dots, h("div", { class: "numbers", "aria-hidden": "true" }, ...labels));
  const fixed = [
    h("line", { class: "axisline", x1: 0, x2: 100, y1: FLOOR, y2: FLOOR }),
    ...ticks.map((v) => h("line", { class: "tick", x1: across(v), x2: across(v), y1: FLOOR - 6, y2: FLOOR + 8 })),
  ];
  function draw(frame) {
    const scale = frame.scales[0] * frame.scales[1];
    const places = frame.weights.map((w, i) => {
      const loud = i === data.outlier;
      return { i, loud, x: across(w / scale), y: loud ? 10 : 10 + (i % 8) * 14, to: across(frame.values[i] / scale) };
    });
    svg.replaceChildren(
      ...fixed,
      ...places.map((p) =>
        h("line", { class: p.loud ? "pull loud" : "pull", x1: p.x, y1: p.y, x2: p.to, y2: FLOOR - 6 }),
      ),
    );
    dots.replaceChildren(
      ...places.map((p) => h("span", { class: p.loud ? "loud" : null, style: `left:${p.x}%;top:${p.y}px` }, `${p.i}`)),
    );
  }
  return { el, draw };
}

// ---- the same sixteen in numbers ----------------------------------------------------------------------------------------
function makeTable(data) {
  const el = h("table", {});
  const head = ["", "weight", "over the scale", "code", "stands for", "error"];
  function draw(frame) {
    const scale = frame.scales[0] * frame.scales[1];
    el.replaceChildren(
      h("tr", {}, ...head.map((words) => h("th", { scope: "col" }, words))),
      ...frame.weights.map((w, i) => {
        const cells = [
          i === data.outlier ? `${i} (outlier)` : `${i}`,
          signed(w, 5),
          signed(w / scale, 2),
          bits(frame.codes[i]),
          signed(frame.values[i], 5),
          signed(frame.values[i] - w, 5),
        ];
        return h("tr", { class: i === data.outlier ? "loud" : null }, ...cells.map((words) => h("td", {}, words)));
      }),
    );
  }
  return { el, draw };
}

// ---- the heat map: rows of the weight across, the blocks of a row down -------------------------------------------------
function makeMap(data, choose) {
  const [rows, blocks] = data.shape,
    worst = Math.max(...data.frames.map((f) => f.error)) || 1;
  const order = Array.from({ length: rows * blocks }, (_, n) => (n % rows) * blocks + Math.floor(n / rows)); // as they lie
  const spots = order.map((i) =>
    h("div", {
      class: "spot",
      role: "option",
      tabindex: "-1",
      "data-i": i,
      "aria-selected": "false",
      "aria-label": `${data.frames[i].label}, error ${share(data.frames[i].error)}`,
      onclick: () => choose(i, true),
    }),
  );
  const spotOf = new Map(order.map((i, n) => [i, spots[n]]));
  const el = h(
    "div",
    { class: "map", role: "listbox", "aria-label": "Error of each block", style: `--rows:${rows}` },
    ...spots,
  );
  el.addEventListener("keydown", (event) => {
    const i = Number(event.composedPath()[0].dataset?.i);
    const move = { ArrowLeft: -blocks, ArrowRight: blocks, ArrowUp: -1, ArrowDown: 1 }[event.key];
    if (Number.isNaN(i) || !move || event.ctrlKey || event.metaKey || event.altKey) return;
    const inside = Math.abs(move) > 1 || Math.floor((i + move) / blocks) === Math.floor(i / blocks);
    if (inside && spotOf.has(i + move)) choose(i + move, true);
    event.preventDefault();
    event.stopPropagation();
  });
  function paint(dark) {
    const ramp = shades(data.ramp[dark ? "dark" : "light"]);
    spots.forEach((spot, n) => {
      const level = Math.round(((ramp.length - 1) * data.frames[order[n]].error) / worst);
      spot.style.backgroundColor = ramp[level].back;
    });
  }
  function select(i, before, focus) {
    spotOf.get(before)?.setAttribute("aria-selected", "false");
    spotOf.get(before)?.setAttribute("tabindex", "-1");
    spotOf.get(i).setAttribute("aria-selected", "true");
    spotOf.get(i).tabIndex = 0;
    if (focus) spotOf.get(i).focus({ preventScroll: true });
  }
  const key = `one cell a block: ${rows} rows across, ${blocks} blocks of a row down; darkest or brightest: ${share(worst)}`;
  return { el: h("div", {}, el, h("p", { class: "key" }, key)), paint, select };
}

function makeSlider(data, choose) {
  const last = data.frames.length - 1,
    now = h("output", { class: "now" });
  const range = h("input", {
    type: "range",
    min: "0",
    max: `${last}`,
    step: "1",
    "aria-label": "Size of the outlier",
    oninput: () => choose(Number(range.value)),
  });
  const step = (by) => choose(Math.max(0, Math.min(last, Number(range.value) + by)));
  const el = h(
    "div",
    { class: "controls", role: "group", "aria-label": "Size of the outlier" },
    iconButton("back", "Smaller", () => step(-1)),
    iconButton("forward", "Larger", () => step(1)),
    range,
    now,
  );
  function select(i) {
    range.value = i;
    range.setAttribute("aria-valuetext", data.frames[i].label);
    now.textContent = data.frames[i].label;
  }
  return { el, paint() {}, select };
}

// ---- the view --------------------------------------------------------------------------------------------------------
function makeView(root, data) {
  let shown = null;
  const line = makeLine(data),
    table = makeTable(data),
    status = h("p", { class: "status" }),
    scale = h("p", { class: "key" }),
    live = h("p", { class: "unseen", role: "status", "aria-live": "polite" });
  const picker = data.shape ? makeMap(data, show) : makeSlider(data, show);
  const el = h(
    "section",
    { class: "dg nvfp4", "aria-label": visibleLine(data.title) },
    h("header", {}, h("h3", {}, visibleLine(data.title)), status),
    picker.el,
    line.el,
    scale,
    table.el,
    data.note ? h("p", { class: "note" }, visibleLine(data.note)) : null,
    live,
  );
  root.replaceChildren(el);
  function show(i, focus = false) {
    const frame = data.frames[i],
      [block, tensor] = frame.scales;
    picker.select(i, shown, focus);
    line.draw(frame);
    table.draw(frame);
    const zeros = frame.codes.filter((code, n) => code % 8 === 0 && n !== data.outlier).length;
    const others = `the fifteen others: error ${share(frame.neighbours ?? 0)}, ${zeros} of them zero`;
    const alone = `error ${share(frame.error)}, ${zeros} zeros`;
    status.textContent = `${frame.label} · ${data.outlier === null ? alone : others}`;
    const product = `block scale ${block} × tensor scale ${tensor.toPrecision(4)}`;
    const key = "dots: the weights over that, lines: the code each one gets";
    scale.textContent = `a code is worth ${(block * tensor).toPrecision(4)} = ${product}; ${key}`;
    if (shown !== null) live.textContent = status.textContent;
    shown = i;
  }
  show(data.first);
  const unwatch = watchTheme(el, (dark) => picker.paint(dark));
  return { destroy: unwatch };
}

export default hosted("frames", makeView);
