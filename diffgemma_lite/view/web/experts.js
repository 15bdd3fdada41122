// experts.js: two parts of the router view: one row an expert with its positions and its load, and the curve of how many
// different experts the first n positions touch. `r` is the opened record of router.js. Walked through in notebook 04.

import { h, round } from "./data.js";

const WIDTH = 300,
  HEIGHT = 96;

// The slot of expert e among the k of position p (-1: it goes elsewhere); `layer` is the place among the kept layers.
export function slotOf(r, layer, p, e) {
  for (let k = 0; k < r.K; k++) if (r.index[(layer * r.C + p) * r.K + k] === e) return k;
  return -1;
}
export const at = (r, layer, p, k) => (layer * r.C + p) * r.K + k;
export const times = (x) => `${round(x, x < 10 ? 1 : 0)} times`;

// ---- how many different experts, as the canvas grows -----------------------------------------------------------------
export function makeGrowth(r, seek) {
  const x = (n) => 3 + ((WIDTH - 6) * n) / r.C,
    y = (count) => HEIGHT - 3 - ((HEIGHT - 8) * count) / r.E;
  const line = (values, name) =>
    h("polyline", {
      class: name,
      points: [[0, 0], ...values.map((v, i) => [i + 1, v])]
        .map(([n, v]) => `${x(n).toFixed(1)},${y(v).toFixed(1)}`)
        .join(" "),
    });
  const layerLine = (layer, name) => line(Array.from(r.distinct.slice(layer * r.C, (layer + 1) * r.C)), name);
  const cursor = h("line", { class: "cursor", y1: 0, y2: HEIGHT }),
    dot = h("circle", { class: "dot", r: 4 }),
    own = h("polyline", { class: "first" });
  const svg = h(
    "svg",
    { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, "aria-hidden": "true" },
    ...[0, 0.5, 1].map((s) => h("line", { class: "base", x1: 3, x2: WIDTH - 3, y1: y(s * r.E), y2: y(s * r.E) })),
    ...Array.from({ length: r.L }, (_, layer) => layerLine(layer, "other")),
    line(r.uniform, "limit"),
    own,
    cursor,
    dot,
  );
  svg.addEventListener("pointerdown", (event) => {
    const box = svg.getBoundingClientRect();
    seek(Math.min(r.C - 1, Math.max(0, Math.round(((event.clientX - box.left) / box.width) * r.C) - 1)));
  });
  const numbers = h("output", {});
  const key = "line: this layer, thin: the other layers, dashed: all experts equally likely, E × (1 − (1 − k/E)ⁿ)";
  const el = h(
    "div",
    { class: "curve growth" },
    h("p", {}, h("span", {}, "different experts touched"), numbers),
    svg,
    h("p", { class: "axis", "aria-hidden": "true" }, h("small", {}, "0 positions"), h("small", {}, `${r.C} positions`)),
    h("p", { class: "key" }, h("small", {}, key)),
  );
  function draw(layer, p) {
    const count = r.distinct[layer * r.C + p];
    own.setAttribute("points", layerLine(layer, "").getAttribute("points"));
    for (const name of ["x1", "x2"]) cursor.setAttribute(name, x(p + 1));
    dot.setAttribute("cx", x(p + 1));
    dot.setAttribute("cy", y(count));
    numbers.textContent = `first ${p + 1}: ${count} of ${r.E} · equal chances ${round(r.uniform[p], 1)}`;
  }
  return { el, draw };
}

// ---- one row an expert: its positions, its load ------------------------------------------------------------------------
export function makeExperts(r) {
  const rows = Array.from({ length: r.E }, (_, e) => {
    const column = h("rect", { class: "column", y: 0, width: 1, height: 10 }),
      hits = h("path", { class: "hits" }),
      hit = h("path", { class: "hit" });
    const strip = h(
      "svg",
      { class: "strip", viewBox: `0 0 ${r.C} 10`, preserveAspectRatio: "none", "aria-hidden": "true" },
      column,
      hits,
      hit,
    );
    const bar = h("span", { class: "bar", "aria-hidden": "true" }),
      count = h("output", {}),
      weight = h("output", { class: "weight" });
    const el = h(
      "div",
      { class: "row", role: "option", tabindex: "-1", "data-e": e, "aria-selected": "false" },
      h("span", {}, `${e}`),
      strip,
      bar,
      count,
      weight,
    );
    return { e, el, strip, column, hits, hit, bar, count, weight };
  });
  const list = h("div", { class: "rows", role: "listbox", "aria-label": "Experts" }, ...rows.map((row) => row.el));
  const caption = h("p", { class: "caption" }),
    head = h(
      "div",
      { class: "row head", "aria-hidden": "true" },
      ...["no.", `positions 0 to ${r.C - 1}`, "load", "", "weight"].map((words) => h("span", {}, words)),
    );
  const el = h("div", { class: "experts" }, caption, head, list);
  let order = rows.map((row) => row.e),
    tallest = 1;

  const mark = (p, weight) => {
    const tall = Math.max(1.6, (9.4 * weight) / tallest);
    return `M${p + 0.06} 10v${-tall}h0.88v${tall}z`;
  };
  // The rows of a layer, by number or busiest first.
  function drawLayer(kept, layer, byLoad) {
    const loads = Array.from(r.load.slice(layer * r.E, (layer + 1) * r.E)),
      most = Math.max(...loads, r.even),
      paths = rows.map(() => "");
    tallest = 1e-9;
    for (let i = at(r, kept, 0, 0); i < at(r, kept, r.C, 0); i++) tallest = Math.max(tallest, r.weights[i]);
    for (let p = 0; p < r.C; p++)
      for (let k = 0; k < r.K; k++) paths[r.index[at(r, kept, p, k)]] += mark(p, r.weights[at(r, kept, p, k)]);
    order = rows.map((row) => row.e);
    if (byLoad) order.sort((a, b) => loads[b] - loads[a] || a - b);
    rows.forEach((row) => {
      row.hits.setAttribute("d", paths[row.e] || "M0 0");
      row.bar.style.setProperty("--p", loads[row.e] / most);
      row.bar.style.setProperty("--even", r.even / most);
      row.count.textContent = `${loads[row.e]}`;
      row.load = loads[row.e];
    });
    list.replaceChildren(...order.map((e) => rows[e].el));
    list.setAttribute("aria-label", `Experts of layer ${layer + 1}`);
  }
  // What position p and expert e have to do with each row.
  function drawFocus(kept, p, e) {
    const load = `its load, in positions, against the even share of ${round(r.even, 1)} (dashed)`;
    caption.textContent = `One row an expert: a mark for each of its positions, as high as the weight; ${load}; its weight for position ${p}.`;
    rows.forEach((row) => {
      const k = slotOf(r, kept, p, row.e),
        weight = k < 0 ? null : r.weights[at(r, kept, p, k)];
      row.column.setAttribute("x", p);
      row.hit.setAttribute("d", k < 0 ? "M0 0" : mark(p, weight));
      row.weight.textContent = k < 0 ? "" : round(weight, 2);
      row.el.classList.toggle("used", k >= 0);
      row.el.tabIndex = row.e === e ? 0 : -1;
      row.el.setAttribute("aria-selected", `${row.e === e}`);
      const used = k < 0 ? "" : `, weight ${round(weight, 2)} for position ${p}`;
      const many = `${row.load} ${row.load === 1 ? "position" : "positions"}`;
      row.el.setAttribute("aria-label", `expert ${row.e}, ${many}, ${times(row.load / r.even)} the even share${used}`);
    });
  }
  const positionAt = (row, event) => {
    const box = row.strip.getBoundingClientRect(),
      share = (event.clientX - box.left) / box.width;
    return share >= 0 && share < 1 ? Math.floor(share * r.C) : null;
  };
  return { el, rows, drawLayer, drawFocus, positionAt, order: () => order };
}
