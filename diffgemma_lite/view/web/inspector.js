// inspector.js: everything a trace knows about one position: its candidates over the steps, its entropy, its rank in the
// entropy order, the running budget before it against the bound, and in words why it was accepted or renoised.
// Numbers come from the trace; the order and the running sum are those of entropyOrder in data.js. See notebook 07.

import { entropyOrder, tokenRuns, fillRuns, h, nats, percent } from "./data.js";

const WIDTH = 300,
  ROWS = 6;

// The rule: surest first, a position is accepted while the entropies before it sum to at most the bound. A trace made by
// another step function may not follow it, and then the words say so (half floats leave the sum an error of 1 in 1,000).
export function reasonOf(canvas, n, p, rank, before) {
  const bound = nats(canvas.bound),
    used = `${nats(before)} nats`,
    surer = rank - 1;
  const others = surer === 1 ? "the one surer position" : `the ${surer} surer positions`;
  if (n >= canvas.N)
    return "Committed: the best guess of the last step enters the cache. The numbers below are that step's.";
  if (canvas.pinned[p]) return "Pinned: given by the caller, put back after every step, outside the order and the budget.";
  const accepted = Boolean(canvas.accepted[n * canvas.C + p]),
    uses = surer === 0 ? "nothing is used before it" : `${others} ${surer === 1 ? "uses" : "use"} ${used}`;
  if (accepted !== before <= canvas.bound && Math.abs(before - canvas.bound) > canvas.bound / 1000)
    return accepted
      ? `Accepted, although ${uses}, more than the bound of ${bound}: this step follows another rule.`
      : `Not accepted, although ${uses} (the bound is ${bound} nats): this step follows another rule.`;
  if (accepted && surer === 0)
    return `Accepted: the surest position, so nothing is used before it (the bound is ${bound} nats).`;
  if (accepted) return `Accepted: ${uses}, at most the bound of ${bound}.`;
  const stays = n + 1 < canvas.N && canvas.canvas[(n + 1) * canvas.C + p] === canvas.canvas[n * canvas.C + p];
  const next = stays && canvas.canvas[n * canvas.C + p] >= 0 ? "The token stays as it was." : "A random token takes its place.";
  return `Renoised: ${uses} already, more than the bound of ${bound}. ${next}`;
}

// The candidates worth a row: those that were most probable at some step, by their largest probability.
function strongest(canvas, p) {
  const { N, C, K } = canvas,
    peak = new Map();
  for (let n = 0; n < N; n++)
    for (let k = 0; k < K; k++) {
      const i = (n * C + p) * K + k,
        id = canvas.top_ids[i];
      peak.set(id, Math.max(peak.get(id) ?? 0, canvas.top_probs[i]));
    }
  return [...peak]
    .sort((a, b) => b[1] - a[1] || a[0] - b[0])
    .slice(0, ROWS)
    .map(([id]) => id);
}

function probabilityOf(canvas, n, p, id) {
  for (let k = 0; k < canvas.K; k++)
    if (canvas.top_ids[(n * canvas.C + p) * canvas.K + k] === id) return canvas.top_probs[(n * canvas.C + p) * canvas.K + k];
  return 0;
}

// Candidates over the steps: one small bar chart a row, height = probability; below it, the step's fate as a mark.
function history(trace, canvas, p, seek) {
  const { N } = canvas,
    width = WIDTH / N,
    rows = strongest(canvas, p);
  const bars = rows.map((id) => {
    const svg = h("svg", { viewBox: `0 0 ${WIDTH} 18`, preserveAspectRatio: "none", "aria-hidden": "true" });
    for (let n = 0; n < N; n++) {
      const height = 17 * probabilityOf(canvas, n, p, id);
      if (height > 0)
        svg.append(
          h("rect", {
            x: n * width + 0.4,
            width: Math.max(0.6, width - 0.8),
            y: 18 - Math.max(0.7, height),
            height: Math.max(0.7, height),
            "data-n": n,
          }),
        );
    }
    const name = h("code", {});
    fillRuns(name, tokenRuns(trace, id));
    return h("li", {}, name, svg);
  });
  const fate = h("svg", { viewBox: `0 0 ${WIDTH} 8`, preserveAspectRatio: "none", "aria-hidden": "true", class: "fate" });
  for (let n = 0; n < N; n++)
    if (canvas.accepted[n * canvas.C + p])
      fate.append(h("rect", { x: n * width + 0.4, width: Math.max(0.6, width - 0.8), y: 2.5, height: 3, "data-n": n }));
  const el = h(
    "ul",
    { class: "history", "aria-label": `Candidates over ${N} steps` },
    ...bars,
    h("li", {}, h("span", {}, "accepted"), fate),
  );
  el.addEventListener("pointerdown", (event) => {
    const svg = event.composedPath().find((x) => x.tagName === "svg");
    if (!svg) return;
    const box = svg.getBoundingClientRect();
    seek(canvas.first + Math.min(N - 1, Math.floor(((event.clientX - box.left) / box.width) * N)));
  });
  return el;
}

// The running sum in the entropy order against the bound: accepted while the curve lies at or under the line.
function budgetPlot(canvas, order, before, rank) {
  const H = 58,
    over = before.findIndex((b) => b > canvas.bound),
    limit = over < 0 ? order.length : over;
  const shown = Math.min(order.length, Math.max(12, Math.ceil(limit * 1.35)));
  const x = (r) => 4 + ((WIDTH - 8) * (r - 1)) / Math.max(1, shown - 1),
    top = Math.max(canvas.bound * 1.8, 1e-9);
  const y = (b) => H - 4 - (H - 8) * Math.min(1, b / top);
  const points = before.slice(0, shown).map((b, i) => `${x(i + 1).toFixed(1)},${y(b).toFixed(1)}`);
  const svg = h(
    "svg",
    { viewBox: `0 0 ${WIDTH} ${H}`, "aria-hidden": "true", class: "budget" },
    h("line", { class: "base", x1: 0, x2: WIDTH, y1: H - 3, y2: H - 3 }),
    h("line", { class: "limit", x1: 0, x2: WIDTH, y1: y(canvas.bound), y2: y(canvas.bound) }),
    h("polyline", { class: "first", points: points.join(" ") }),
  );
  if (rank > 0) {
    const at = Math.min(rank, shown);
    svg.append(
      rank > shown
        ? h("path", { class: "dot", d: `M${WIDTH - 8} 4l6 4-6 4z` })
        : h("circle", { class: "dot", r: 4, cx: x(at), cy: y(before[at - 1]) }),
    );
  }
  return svg;
}

function candidates(trace, canvas, n, p) {
  const items = [];
  for (let k = 0; k < canvas.K; k++) {
    const i = (n * canvas.C + p) * canvas.K + k,
      probability = canvas.top_probs[i],
      name = h("code", {}),
      bar = h("span", { class: "bar", "aria-hidden": "true" });
    if (k > 0 && probability === 0) break;
    fillRuns(name, tokenRuns(trace, canvas.top_ids[i]));
    bar.style.setProperty("--p", probability);
    items.push(h("li", {}, name, bar, h("output", { "data-probability": probability }, percent(probability))));
  }
  return h(
    "ol",
    { class: "candidates", style: `--rows: ${canvas.K}`, "aria-label": "Most probable tokens at this step" },
    ...items,
  );
}

export function makeInspector(seek) {
  const el = h("section", { class: "inspector", "aria-label": "Inspector" });
  let key = "",
    past = null;

  function draw(trace, c, step, p) {
    const canvas = trace.canvases[c],
      n = Math.min(step, canvas.N),
      last = Math.min(n, canvas.N - 1),
      i = last * canvas.C + p;
    const title = h("h4", {}, `Position ${p}`, trace.canvases.length > 1 ? ` of canvas ${c + 1}` : "");
    if (n < 0) {
      el.replaceChildren(title, h("p", { class: "reason" }, "This canvas has not started."));
      return;
    }
    if (past === null || key !== `${trace.name} ${c} ${p}` || past.trace !== trace) {
      key = `${trace.name} ${c} ${p}`;
      past = { trace, el: history(trace, canvas, p, seek) };
    }
    for (const bar of past.el.querySelectorAll("rect")) bar.classList.toggle("now", Number(bar.dataset.n) === last);
    const { order, before } = entropyOrder(canvas, last),
      rank = order.indexOf(p) + 1,
      sum = before[rank - 1] ?? 0;
    const token = (label, local) => {
      const name = h("code", {});
      fillRuns(name, tokenRuns(trace, local));
      return h("div", {}, h("dt", {}, label), h("dd", {}, name));
    };
    const number = (label, text, name, value) =>
      h("div", {}, h("dt", {}, label), h("dd", { "data-name": name, "data-value": value }, text));
    const numbers = canvas.pinned[p]
      ? []
      : [
          number("entropy", `${nats(canvas.entropy[i])} nats`, "entropy", canvas.entropy[i]),
          number("rank in the entropy order", `${rank} of ${order.length}`, "rank", rank),
          number("used before it / bound", `${nats(sum)} / ${nats(canvas.bound)} nats`, "before", sum),
        ];
    const now = h(
      "div",
      {},
      title,
      h(
        "dl",
        { class: "tokens" },
        token("canvas in", canvas.canvas[i]),
        token("sampled", canvas.sampled[i]),
        token("best guess", canvas.argmax[i]),
      ),
      h("p", { class: "reason" }, reasonOf(canvas, n, p, rank, sum)),
      h("dl", { class: "numbers" }, ...numbers),
      h("p", { class: "caption" }, "Running budget, surest first, against the bound (dashed)"),
      budgetPlot(canvas, order, before, rank),
    );
    el.replaceChildren(
      now,
      h(
        "div",
        {},
        h("p", { class: "caption" }, "Candidates of this step"),
        candidates(trace, canvas, last, p),
        h("p", { class: "caption" }, "Candidates over the steps"),
        past.el,
      ),
    );
  }
  return { el, draw };
}
