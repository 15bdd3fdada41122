// roofline.js: FLOPs per byte against FLOPs per second, log-log: roofs of devices, and where one-token and canvas steps sit.
// Sliders for canvas, batch and precision; a point or a roof under the pointer says what it is, and the chosen two stand part
// by part in a table. It shows what cost.py said in Python and computes nothing.
// State comes in the trait `data` (roofline.py). Hosted by host.py. Walked through in notebooks 01 and 11.

import { visibleLine, h } from "./data.js";
import { watchTheme, hosted } from "./controls.js";

const LEFT = 62,
  RIGHT = 14,
  TOP = 14,
  BELOW = 44;
const stepName = (queries) => (queries === 1 ? "one token" : `canvas of ${queries}`);
const figures = (point) => `${point.intensity} FLOPs a byte, floor ${point.seconds}`;
const table = (head, rows) =>
  h(
    "table",
    {},
    h("tr", {}, ...head.map((words) => h("th", { scope: "col" }, words))),
    ...rows.map((row) =>
      h("tr", {}, ...row.map((words, n) => (n ? h("td", {}, words) : h("th", { scope: "row" }, words)))),
    ),
  );

// ---- a slider over named values; arrows, Home and End are the browser's own ---------------------------------------------
function makeSlider(name, words, first, change) {
  const now = h("output", { class: "now" });
  const range = h("input", {
    type: "range",
    min: "0",
    max: `${words.length - 1}`,
    step: "1",
    value: `${first}`,
    "aria-label": name,
    disabled: words.length < 2,
    oninput: () => set(Number(range.value)),
  });
  function set(i, tell = true) {
    range.value = i;
    range.setAttribute("aria-valuetext", words[i]);
    now.textContent = words[i];
    if (tell) change(i);
  }
  set(first, false);
  return { el: h("label", {}, h("span", {}, name), range, now), set };
}

// ---- the chart -----------------------------------------------------------------------------------------------------------
function makeChart(data, choose, say) {
  const svg = h("svg", { role: "img" });
  const place = h("div", { class: "chart" }, svg);
  let wide = 640,
    high = 400;
  const [x0, x1] = data.span.map(Math.log),
    [y0, y1] = data.heights.map(Math.log);
  const at = (x, y) => [
    LEFT + ((Math.log(x) - x0) / (x1 - x0)) * (wide - LEFT - RIGHT),
    high - BELOW - ((Math.log(y) - y0) / (y1 - y0)) * (high - TOP - BELOW),
  ];
  const words = (text, x, y, name, anchor = "start") => h("text", { x, y, class: name, "text-anchor": anchor }, text);
  const hover = (el, text) => {
    el.addEventListener("pointerenter", (event) => say(text, event));
    el.addEventListener("pointerleave", () => say(null));
    return el;
  };

  function axes() {
    const [left, bottom] = at(data.span[0], data.heights[0]);
    return [
      ...data.across.flatMap(([value, label]) => {
        const [x] = at(value, 1);
        return [h("line", { class: "net", x1: x, x2: x, y1: TOP, y2: bottom }), words(label, x, bottom + 16, "tick", "middle")];
      }),
      ...data.up.flatMap(([value, label]) => {
        const [, y] = at(1, value);
        return [h("line", { class: "net", x1: left, x2: wide - RIGHT, y1: y, y2: y }), words(label, left - 6, y + 4, "tick", "end")];
      }),
      words("FLOPs per byte of weights and cache", (left + wide - RIGHT) / 2, high - 6, "axis", "middle"),
      words("FLOP/s", left - 6, TOP - 2, "axis", "end"),
    ];
  }
  function roofs() {
    const free = new Map(); // labels at the right end must not lie on each other
    return data.roofs.flatMap((roof, n) => {
      const corners = roof.corners.map(([x, y]) => at(x, y)),
        points = corners.map((c) => c.map((v) => v.toFixed(1)).join(",")).join(" ");
      const [endX, endY] = corners[corners.length - 1],
        row = Math.round(endY / 13);
      const taken = free.get(row) ?? 0;
      free.set(row, taken + 1);
      const name = `roof roof${roof.device % 4}${roof.measured ? " measured" : ""}`;
      return [
        h("polyline", { class: name, points }),
        hover(h("polyline", { class: "touch", points, "data-roof": n }), roof.says),
        words(roof.name, endX, endY - 5 - 12 * taken, `label roof${roof.device % 4}`, "end"),
      ];
    });
  }
  function series(queries, view) {
    const kind = queries === 1 ? "token" : "canvas",
      name = data.precisions[view.precision];
    const points = data.batches.map((batch) => data.points[`${name} ${queries} ${batch}`]);
    const places = points.map((p) => at(p.x, p.y));
    const line = h("polyline", { class: `path ${kind}`, points: places.map((c) => c.join(",")).join(" ") });
    const marks = points.map((p, i) => {
      const [x, y] = places[i],
        chosen = i === view.batch,
        size = chosen ? 7 : 4.5;
      const shape =
        queries === 1
          ? h("circle", { cx: x, cy: y, r: size })
          : h("rect", { x: x - size, y: y - size, width: 2 * size, height: 2 * size });
      shape.setAttribute("class", `point ${kind}${chosen ? " chosen" : ""}`);
      shape.dataset.point = `${queries} ${data.batches[i]}`;
      shape.addEventListener("click", () => choose(i));
      return hover(shape, [`${stepName(queries)}, batch ${data.batches[i]}, ${name}`, ...p.says]);
    });
    const [x, y] = places[view.batch],
      above = queries > 1 && x > LEFT + 110; // a canvas is named on the free side of the slope
    const label = words(stepName(queries), above ? x - 10 : x + 12, above ? y - 10 : y + 16, "name", above ? "end" : "start");
    return [line, ...marks, label];
  }
  function draw(view) {
    wide = Math.max(300, Math.min(900, place.clientWidth || 640));
    high = Math.round(Math.max(300, Math.min(440, wide * 0.6)));
    svg.setAttribute("viewBox", `0 0 ${wide} ${high}`);
    svg.setAttribute("width", wide);
    svg.setAttribute("height", high);
    const canvas = data.canvases[view.canvas];
    svg.replaceChildren(...axes(), ...roofs(), ...series(1, view), ...series(canvas, view));
  }
  return { el: place, svg, draw };
}

// ---- the chosen two steps part by part, and everything in numbers ------------------------------------------------------
function partsTable(one, many, queries) {
  const rows = many.parts.map(([part, ...cells]) => {
    const same = one.parts.find(([name]) => name === part) ?? [part, "0 B", "0 FLOP", "0 s"];
    return [part, ...same.slice(1), ...cells];
  });
  rows.push(["all", one.bytes, one.flops, one.seconds, many.bytes, many.flops, many.seconds]);
  const names = ["one token", stepName(queries)];
  return table(["part", ...names.flatMap((n) => ["bytes", "FLOPs", "floor"].map((what) => `${n}: ${what}`))], rows);
}

function stepsTable(data, name) {
  const rows = [1, ...data.canvases].map((queries) => [
    stepName(queries),
    ...data.batches.map((batch) => {
      const p = data.points[`${name} ${queries} ${batch}`];
      return `${p.bytes}, ${p.flops}, ${figures(p)}`;
    }),
  ]);
  return table(["step", ...data.batches.map((batch) => `batch ${batch}`)], rows);
}

function folded(summary, ...inside) {
  const scroll = h("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": summary }, ...inside);
  return { el: h("details", { class: "numbers" }, h("summary", {}, summary), scroll), scroll };
}

// ---- the view --------------------------------------------------------------------------------------------------------
function makeRoofline(root, data) {
  const view = { canvas: data.first[0], batch: data.first[1], precision: 0 };
  const tip = h("div", { class: "tip", hidden: true }),
    status = h("p", { class: "status" }),
    live = h("p", { class: "unseen", role: "status", "aria-live": "polite" });
  const parts = h("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": "The chosen steps, part by part" });
  const steps = folded("All steps in numbers"),
    sources = folded("The roofs and their sources", table(data.sources[0], data.sources.slice(1)));
  const chart = makeChart(data, (batch) => sliders.batch.set(batch), say);
  const turn = (name) => (i) => {
    view[name] = i;
    draw();
    live.textContent = status.textContent;
  };
  const sliders = {
    canvas: makeSlider("canvas", data.canvases.map(String), view.canvas, turn("canvas")),
    batch: makeSlider("batch", data.batches.map(String), view.batch, turn("batch")),
    precision: makeSlider("precision", data.precisions, 0, turn("precision")),
  };
  const el = h(
    "section",
    { class: "dg roofline", "aria-label": visibleLine(data.title) },
    h("header", {}, h("h3", {}, visibleLine(data.title)), status),
    h("div", { class: "sliders" }, ...Object.values(sliders).map((s) => s.el)),
    h("div", { class: "over" }, chart.el, tip),
    h("p", { class: "key" }, data.key),
    parts,
    steps.el,
    sources.el,
    live,
  );
  root.replaceChildren(el);

  function say(lines, event) {
    tip.hidden = !lines;
    if (!lines) return;
    tip.replaceChildren(...lines.map((line, n) => h(n ? "p" : "b", {}, visibleLine(line))));
    const box = tip.parentElement.getBoundingClientRect(),
      x = event.clientX - box.left,
      y = event.clientY - box.top;
    const left = Math.min(x + 14, box.width - tip.offsetWidth - 4);
    tip.style.left = `${Math.max(0, left)}px`;
    tip.style.top = `${y + 18}px`;
  }
  function draw() {
    say(null);
    const name = data.precisions[view.precision],
      batch = data.batches[view.batch],
      queries = data.canvases[view.canvas];
    const [one, many] = [1, queries].map((q) => data.points[`${name} ${q} ${batch}`]);
    chart.draw(view);
    status.textContent = `${name}, batch ${batch} · one token: ${figures(one)} · ${stepName(queries)}: ${figures(many)}`;
    chart.svg.setAttribute("aria-label", `${visibleLine(data.title)}. ${status.textContent}`);
    parts.replaceChildren(partsTable(one, many, queries));
    steps.scroll.replaceChildren(stepsTable(data, name));
  }
  draw();
  let width = chart.el.clientWidth;
  const resized = new ResizeObserver(() => {
    if (chart.el.clientWidth === width) return;
    width = chart.el.clientWidth;
    chart.draw(view);
  });
  resized.observe(chart.el);
  const unwatch = watchTheme(el, () => {});
  return {
    destroy: () => {
      resized.disconnect();
      unwatch();
    },
  };
}

export default hosted("roofs", makeRoofline);
