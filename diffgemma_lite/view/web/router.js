// router.js: where the router sends the positions of one canvas, a layer at a time: experts down, positions across, the
// load of each expert, and how many different experts the first n positions touch, beside what equal chances would give.
// It shows what router_record.py counted and computes nothing of the model. State comes in the trait `data` (router.py).
// Hosted by host.py. Walked through in notebook 04.

import { unpack, fillRuns, visibleRuns, runsText, visibleLine, h, round, percent } from "./data.js";
import { choice, watchTheme, hosted } from "./controls.js";
import { slotOf, at, times, makeGrowth, makeExperts } from "./experts.js";

const LISTED = 16; // tokens of an expert that are named

async function openRecord(data) {
  const names = ["index", "weights", "probs", "load", "distinct"];
  const arrays = await Promise.all(names.map((name) => unpack(data[name])));
  const record = Object.fromEntries(names.map((name, i) => [name, arrays[i]]));
  const [, C, K] = data.index.s,
    [L, E] = data.load.s;
  return { ...data, ...record, probs: record.probs.map((p) => p / 1000), C, K, L, E, even: (C * K) / E };
}

// ---- every layer in numbers ------------------------------------------------------------------------------------------
function makeTable(r) {
  const rows = Array.from({ length: r.L }, (_, layer) => {
    const loads = Array.from(r.load.slice(layer * r.E, (layer + 1) * r.E)),
      most = Math.max(...loads);
    const touched = loads.filter((n) => n > 0).length;
    return [
      layer + 1,
      touched,
      round(r.uniform[r.C - 1], 1),
      `${loads.indexOf(most)}: ${most}`,
      times(most / r.even),
      r.E - touched,
    ];
  });
  const head = [
    "layer",
    `of ${r.E} experts touched`,
    "equal chances",
    "busiest expert: positions",
    "of the even share",
    "never used",
  ];
  return h(
    "details",
    { class: "numbers" },
    h("summary", {}, `All ${r.L} layers in numbers`),
    h(
      "div",
      { class: "scroll", tabindex: "0", role: "region", "aria-label": "All layers in numbers" },
      h(
        "table",
        {},
        h("tr", {}, ...head.map((words) => h("th", { scope: "col" }, words))),
        ...rows.map((row) => h("tr", {}, ...row.map((value) => h("td", {}, `${value}`)))),
      ),
    ),
  );
}

// ---- the view -----------------------------------------------------------------------------------------------------------
function makeRouter(root, r) {
  const view = { kept: 0, p: 0, e: r.index[0], byLoad: false };
  const runs = r.ids.map((local) => visibleRuns(r.texts[local]));
  const cells = runs.map((shown, p) => {
    const size = runsText(shown).length;
    const cell = h("span", { class: "cell", role: "option", tabindex: "-1", "data-p": p, "aria-selected": "false" });
    cell.classList.toggle("long", size > 6 && size <= 9);
    cell.classList.toggle("longest", size > 9);
    fillRuns(cell, shown);
    return cell;
  });
  const grid = h("div", { class: "grid", role: "listbox", "aria-label": "Positions of the canvas" }, ...cells);
  const growth = makeGrowth(r, (p) => focus({ p })),
    experts = makeExperts(r);
  const status = h("p", { class: "status" }),
    live = h("p", { class: "unseen", role: "status", "aria-live": "polite" }),
    detail = h("div", { class: "detail" }),
    legend = h("div", { class: "legend" });
  const layers = Object.fromEntries(r.kept.map((layer, i) => [i, `${layer + 1}`]));
  const pick = (value) => {
    view.kept = Number(value);
    view.e = r.index[at(r, view.kept, view.p, 0)];
    draw();
    live.textContent = status.textContent;
  };
  const select = h(
    "select",
    { "aria-label": "Layer", onchange: () => pick(select.value) },
    ...Object.entries(layers).map(([value, words]) => h("option", { value }, words)),
  );
  const layerChoice =
    r.kept.length > 8 ? h("label", { class: "caption" }, "Layer ", select) : choice("Layer", layers, "layer", "0", pick);
  const order = choice("Experts by", { number: "number", load: "load" }, "order", "number", (value) => {
    view.byLoad = value === "load";
    draw();
  });
  const el = h(
    "section",
    { class: "dg router", "aria-label": visibleLine(r.title) },
    h("header", {}, h("h3", {}, visibleLine(r.title)), status),
    h("div", { class: "options" }, layerChoice, order),
    h("div", { class: "halves" }, h("div", {}, grid, legend, detail), h("div", {}, experts.el, growth.el)),
    makeTable(r),
    r.note ? h("p", { class: "note" }, visibleLine(r.note)) : null,
    live,
  );
  root.replaceChildren(el);

  function draw() {
    const layer = r.kept[view.kept],
      touched = r.distinct[(layer + 1) * r.C - 1];
    const equal = `equal chances ${round(r.uniform[r.C - 1], 1)}`;
    status.textContent = `layer ${layer + 1} of ${r.L} · ${r.C} positions touch ${touched} of ${r.E} experts · ${equal}`;
    experts.drawLayer(view.kept, layer, view.byLoad);
    drawFocus();
  }
  function drawFocus() {
    const layer = r.kept[view.kept];
    experts.drawFocus(view.kept, view.p, view.e);
    growth.draw(layer, view.p);
    cells.forEach((cell, p) => {
      const k = slotOf(r, view.kept, p, view.e);
      cell.classList.toggle("top", k === 0);
      cell.classList.toggle("also", k > 0);
      cell.tabIndex = p === view.p ? 0 : -1;
      cell.setAttribute("aria-selected", `${p === view.p}`);
      const words = k < 0 ? "" : `, expert ${view.e} with weight ${round(r.weights[at(r, view.kept, p, k)], 2)}`;
      cell.setAttribute("aria-label", `${p}, ${runsText(runs[p])}${words}`);
    });
    const key = (mark, words) => h("li", {}, h("span", { class: `cell ${mark}`, "aria-hidden": "true" }, "ab"), words);
    const also = r.K > 1 ? [key("also", `one of its ${r.K}`)] : [];
    legend.replaceChildren(h("ul", { "aria-label": "Marks" }, key("top", `expert ${view.e} is the first choice`), ...also));
    drawDetail(layer);
  }
  function token(shown) {
    const code = h("code", {});
    fillRuns(code, shown);
    return code;
  }
  function drawDetail(layer) {
    const { p, e } = view,
      chosen = Array.from({ length: r.K }, (_, k) => at(r, view.kept, p, k));
    const list = chosen.map((i) =>
      h(
        "li",
        { "data-e": r.index[i], "data-weight": r.weights[i] },
        h("b", {}, `expert ${r.index[i]}`),
        ` probability ${percent(r.probs[i])}, weight ${round(r.weights[i], 2)}`,
      ),
    );
    const served = cells.map((_, q) => q).filter((q) => slotOf(r, view.kept, q, e) >= 0),
      named = served.slice(0, LISTED).flatMap((q) => [token(runs[q]), " "]);
    const load = r.load[layer * r.E + e],
      more = served.length > LISTED ? `and ${served.length - LISTED} more` : "";
    detail.replaceChildren(
      h("h4", {}, `Position ${p} `, token(runs[p])),
      h("ul", {}, ...list),
      h("h4", {}, `Expert ${e}`),
      h(
        "p",
        {},
        load
          ? `${load} of ${r.C} positions, ${times(load / r.even)} the even share of ${round(r.even, 1)}: `
          : "No position of this canvas.",
        ...named,
        more,
      ),
    );
  }

  // -- focus: one cell and one row are reachable by Tab; arrows move them
  function focus(next, into = null) {
    Object.assign(view, next);
    drawFocus();
    into?.focus({ preventScroll: false });
  }
  function moveCell(key) {
    const columns = getComputedStyle(grid).gridTemplateColumns.split(" ").length;
    const step = { ArrowLeft: -1, ArrowRight: 1, ArrowUp: -columns, ArrowDown: columns }[key];
    const p = key === "Home" ? 0 : key === "End" ? r.C - 1 : view.p + step;
    if (p >= 0 && p < r.C) focus({ p }, cells[p]);
  }
  function moveRow(key) {
    if (key === "ArrowLeft" || key === "ArrowRight") {
      const p = view.p + (key === "ArrowLeft" ? -1 : 1);
      if (p >= 0 && p < r.C) focus({ p });
      return;
    }
    const order = experts.order(),
      place = order.indexOf(view.e);
    const next = { ArrowUp: place - 1, ArrowDown: place + 1, Home: 0, End: r.E - 1 }[key];
    if (next >= 0 && next < r.E) focus({ e: order[next] }, experts.rows[order[next]].el);
  }
  el.addEventListener("keydown", (event) => {
    const target = event.composedPath()[0];
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    if (!["ArrowLeft", "ArrowRight", "ArrowUp", "ArrowDown", "Home", "End"].includes(event.key)) return;
    if (target.classList?.contains("cell")) moveCell(event.key);
    else if (target.classList?.contains("row")) moveRow(event.key);
    else return;
    event.preventDefault();
    event.stopPropagation();
  });
  el.addEventListener("pointerdown", (event) => {
    const node = event.composedPath().find((n) => n.dataset?.p !== undefined || n.classList?.contains("row"));
    if (!node || node.classList.contains("head")) return;
    event.preventDefault();
    if (node.dataset.p !== undefined) return focus({ p: Number(node.dataset.p) }, node);
    const row = experts.rows[Number(node.dataset.e)],
      p = experts.positionAt(row, event);
    focus({ e: row.e, ...(p === null ? {} : { p }) }, row.el);
  });
  el.addEventListener("focusin", (event) => {
    const node = event.composedPath()[0];
    if (node.dataset?.p !== undefined && Number(node.dataset.p) !== view.p) focus({ p: Number(node.dataset.p) });
    if (node.classList?.contains("row") && Number(node.dataset.e) !== view.e) focus({ e: Number(node.dataset.e) });
  });
  draw();
  return { destroy: watchTheme(el, () => {}) };
}

// ---- the module a host loads ---------------------------------------------------------------------------------------------
export default hosted("index", makeRouter, openRecord);
