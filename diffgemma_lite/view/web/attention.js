// attention.js: which prompt and canvas positions one position attends to most, layer by layer, in words and numbers.
// The layer that is chosen marks its targets in the canvas and in the prompt, each with its rank. The weights are the
// trace's (mean over heads); what attention.py left out is said here. See notebook 07.

import { unpack, tokenRuns, fillRuns, h, percent } from "./data.js";

const KINDS = { sliding_attention: "sliding", full_attention: "full" };
const AROUND = 4; // prompt tokens shown on either side of one that is attended to

// Adds `attention` to the trace's canvases and the prompt's local numbers (-1: not named) to the trace.
export async function openAttention(trace) {
  const packed = trace.attention;
  if (!packed) return trace;
  trace.promptTokens = Array.from(await unpack(packed.prompt), (x) => x - 1);
  await Promise.all(
    packed.canvases.map(async (part, c) => {
      if (!part) return;
      const [S, C, L, A] = part.at.s,
        [at, weight] = await Promise.all([unpack(part.at), unpack(part.weight)]);
      for (let i = 0; i < at.length; i++) at[i] = at[i] === 0 ? at[i - C * L * A] : at[i] - 1; // 0: as one kept step ago
      trace.canvases[c].attention = { steps: part.steps, S, C, L, A, at, weight: weight.map((w) => w / 1000) };
    }),
  );
  return trace;
}

// The last kept step up to step n, or the first one: its place among the kept.
function keptBefore(attention, n) {
  const later = attention.steps.findIndex((s) => s > n);
  return later < 0 ? attention.steps.length - 1 : Math.max(0, later - 1);
}

// A row's position: in the prompt, in a canvas before this one (what it committed), or in this one (what this step read).
function targetAt(trace, c, n, position) {
  const S = trace.promptTokens.length;
  if (position < S) return { prompt: position, token: trace.promptTokens[position], words: `prompt ${position}` };
  const index = Math.floor((position - S) / trace.canvases[c].C),
    p = (position - S) % trace.canvases[c].C,
    canvas = trace.canvases[index],
    last = (canvas.N - 1) * canvas.C + p;
  const words = trace.canvases.length > 1 ? `canvas ${index + 1} at ${p}` : `canvas ${p}`;
  if (index === c) return { c, p, token: canvas.canvas[n * canvas.C + p], words };
  const token = canvas.pinned[p] ? canvas.canvas[last] : canvas.argmax[last];
  return { c: index, p, token, words };
}

function tokenName(trace, token) {
  const name = h("code", {});
  fillRuns(name, tokenRuns(trace, token));
  return name;
}

// The prompt around what is attended to; the rest is "…".
function promptContext(trace, targets) {
  const rank = new Map(targets.map((t, i) => [t.prompt, i + 1]).filter(([p]) => p !== undefined)),
    tokens = trace.promptTokens,
    near = tokens.map((token, p) => token >= 0 && [...rank.keys()].some((q) => Math.abs(p - q) <= AROUND));
  const el = h("p", { class: "context" }, h("span", { class: "caption" }, "in the prompt: "));
  if (!rank.size) {
    el.append("none of them");
    return el;
  }
  near.forEach((shown, p) => {
    if (!shown) {
      if (p === 0 || near[p - 1]) el.append("… ");
      return;
    }
    const name = tokenName(trace, tokens[p]);
    el.append(rank.has(p) ? h("mark", { "data-attended": rank.get(p) }, name) : name);
  });
  return el;
}

// mark(targets) is called with the canvas positions [{c, p, rank}] of the chosen layer.
export function makeAttention(mark) {
  const title = h("h4", {}),
    words = h("p", { class: "caption" }),
    layers = h("div", { class: "layers", role: "radiogroup", "aria-label": "Layer whose targets are marked in the canvas" }),
    context = h("div", {});
  const el = h("section", { class: "attention", "aria-label": "Attention" }, title, words, layers, context);
  let chosen = null,
    cards = [],
    lists = [];

  function choose(layer) {
    chosen = layer;
    cards.forEach((card, l) => card.el.classList.toggle("chosen", l === layer));
    const { trace, targets } = lists[layer];
    context.replaceChildren(promptContext(trace, targets));
    mark(targets.map((t, i) => ({ ...t, rank: i + 1 })).filter((t) => t.p !== undefined));
  }
  function build(count, kinds) {
    cards = Array.from({ length: count }, (_, l) => {
      const kind = KINDS[kinds[l]] ? `, ${KINDS[kinds[l]]}` : "",
        input = h("input", { type: "radio", name: "layer", value: l, onchange: () => choose(l) }),
        sum = h("p", { class: "caption" }),
        list = h("ol", {});
      const head = h("label", {}, input, ` layer ${l + 1}${kind}`);
      const card = h("div", { class: "layer" }, head, list, sum);
      card.addEventListener("click", (event) => event.composedPath()[0] !== input && input.click());
      return { el: card, input, sum, list };
    });
    layers.replaceChildren(...cards.map((card) => card.el));
    chosen = Math.min(chosen ?? count - 1, count - 1);
    cards[chosen].input.checked = true;
  }

  // Position p of canvas c at step n (n < 0: not started; n = N: what its last step saw).
  function draw(trace, c, n, p) {
    const canvas = trace.canvases[c],
      attention = canvas.attention;
    el.hidden = !attention || n < 0;
    if (el.hidden) {
      mark([]);
      return;
    }
    const { L, A, C, steps, at, weight } = attention,
      kinds = trace.attention.layers;
    if (cards.length !== L) build(L, kinds);
    const step = Math.min(n, canvas.N - 1),
      kept = keptBefore(attention, step),
      shown = steps[kept];
    title.textContent = `Position ${p} attends to`;
    const largest = A === 1 ? "The position with the largest weight" : `The ${A} positions with the largest weights`,
      list = steps.map((s) => s + 1).join(", "),
      only =
        steps.length === canvas.N ? "" : ` Kept on this page: the attention of step${steps.length > 1 ? "s" : ""} ${list}.`;
    words.textContent = `${largest} in each layer at step ${shown + 1}, mean over heads; tokens as that step read them.${only}`;
    lists = cards.map((card, l) => {
      const from = ((kept * C + p) * L + l) * A;
      const targets = Array.from({ length: A }, (_, a) => targetAt(trace, c, shown, at[from + a])),
        weights = targets.map((_, a) => weight[from + a]);
      card.sum.textContent = A > 1 ? `these ${A} carry ${percent(weights.reduce((a, b) => a + b, 0))}` : "";
      card.list.replaceChildren(
        ...targets.map((t, a) =>
          h(
            "li",
            { "data-at": at[from + a], "data-weight": weights[a] },
            h("b", {}, `${a + 1}`),
            h("span", {}, t.p === p && t.c === c ? `itself, ${p}` : t.words),
            t.token < 0 && t.prompt !== undefined ? h("code", {}, "…") : tokenName(trace, t.token),
            h("output", {}, percent(weights[a])),
          ),
        ),
      );
      return { trace, targets };
    });
    choose(chosen);
  }
  return { el, draw };
}
