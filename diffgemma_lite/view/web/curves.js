// curves.js: four small curves over the steps, with a cursor tied to the player; a click goes to that step.
// Mean entropy is drawn on a logarithmic axis, since the stop threshold is a thousand times below its first values.
// A second trace is dashed. Numbers of the current step stand beside each title. Walked through in notebook 07.

import { h, round, nats } from "./data.js";

const WIDTH = 300,
  HEIGHT = 46;

const CURVES = [
  {
    title: "mean entropy (log scale)",
    unit: "nats",
    of: (c, n) => c.meanEntropy[n],
    show: nats,
    log: true,
    threshold: (t) => t.threshold,
  },
  {
    title: "accepted",
    unit: "positions",
    of: (c, n) => c.counts.accepted[n],
    show: (x) => `${x}`,
    least: 0,
    most: (c) => c.C,
  },
  { title: "revised", unit: "positions", of: (c, n) => c.counts.revised[n], show: (x) => `${x}`, least: 0 },
  { title: "temperature", unit: "", of: (c, n) => c.temperature[n], show: (x) => round(x, 3) },
];

function values(trace, curve) {
  return trace.frames.map(({ c, n }) => (n < trace.canvases[c].N ? curve.of(trace.canvases[c], n) : null));
}

function scaleOf(curve, traces) {
  const all = traces.flatMap((t) => values(t, curve)).filter((x) => x !== null);
  const limits = curve.threshold ? traces.map(curve.threshold).filter((x) => x > 0) : [];
  let least = Math.min(...all, ...limits),
    most = Math.max(...all, ...limits);
  if (curve.log) {
    least = Math.max(1e-6, Math.min(...all.filter((x) => x > 0), ...limits) / 1.5);
    const low = Math.log(least),
      high = Math.log(Math.max(most, least * 2) * 1.15);
    return (x) => HEIGHT - 2 - (HEIGHT - 4) * ((Math.log(Math.max(x, least)) - low) / (high - low));
  }
  least = curve.least ?? least - 0.08 * (most - least);
  most = curve.most ? Math.max(...traces.flatMap((t) => t.canvases.map(curve.most))) : most;
  return (x) => HEIGHT - 2 - (HEIGHT - 4) * ((x - least) / (most - least || 1));
}

// One polyline a canvas, broken at the commits between them.
function lines(trace, curve, y, x, dashed) {
  const parts = [[]];
  values(trace, curve).forEach((value, f) =>
    value === null ? parts.push([]) : parts[parts.length - 1].push(`${x(f).toFixed(1)},${y(value).toFixed(1)}`),
  );
  return parts
    .filter((p) => p.length)
    .map((p) =>
      h("polyline", { points: p.length > 1 ? p.join(" ") : `${p[0]} ${p[0]}`, class: dashed ? "second" : "first" }),
    );
}

export function makeCurves(traces, seek) {
  const frames = Math.max(...traces.map((t) => t.frames.length));
  const x = (f) => (frames > 1 ? 3 + (WIDTH - 6) * (f / (frames - 1)) : WIDTH / 2);
  const drawn = CURVES.map((curve) => {
    const y = scaleOf(curve, traces),
      cursor = h("line", { class: "cursor", y1: 0, y2: HEIGHT });
    const dots = traces.map((_, i) => h("circle", { r: 3.2, class: i ? "dot second" : "dot" }));
    const limits = curve.threshold ? [...new Set(traces.map(curve.threshold))].filter((t) => t > 0) : [];
    const svg = h(
      "svg",
      { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, "aria-hidden": "true" },
      h("line", { class: "base", x1: 0, x2: WIDTH, y1: HEIGHT - 1, y2: HEIGHT - 1 }),
      ...limits.map((t) => h("line", { class: "limit", x1: 0, x2: WIDTH, y1: y(t), y2: y(t) })),
      ...traces.flatMap((t, i) => lines(t, curve, y, x, i > 0)),
      cursor,
      ...dots,
    );
    svg.addEventListener("pointerdown", (event) => {
      const box = svg.getBoundingClientRect();
      seek(Math.round(((event.clientX - box.left) / box.width) * (frames - 1)));
    });
    const number = h("output", {});
    const limit = limits.length ? h("small", {}, ` stop < ${limits.join(", ")}`) : null;
    const el = h("div", { class: "curve" }, h("p", {}, h("span", {}, curve.title, limit), number), svg);
    return { curve, y, cursor, dots, number, el };
  });

  function draw(frame) {
    for (const { curve, y, cursor, dots, number } of drawn) {
      cursor.setAttribute("x1", x(frame));
      cursor.setAttribute("x2", x(frame));
      const now = traces.map((trace) => {
        const { c, n } = trace.frames[Math.min(frame, trace.frames.length - 1)],
          canvas = trace.canvases[c];
        return curve.of(canvas, Math.min(n, canvas.N - 1));
      });
      now.forEach((value, i) => {
        const { n, c } = traces[i].frames[Math.min(frame, traces[i].frames.length - 1)];
        const f = Math.min(frame, traces[i].frames.length - 1) - (n >= traces[i].canvases[c].N ? 1 : 0);
        dots[i].setAttribute("cx", x(f));
        dots[i].setAttribute("cy", y(value));
      });
      const unit = curve.unit === "positions" && now.every((x) => x === 1) ? "position" : curve.unit;
      number.textContent = `${now.map(curve.show).join(" | ")} ${unit}`.trim();
    }
  }
  return {
    el: h("div", { class: "curves", role: "group", "aria-label": "Curves over the steps" }, ...drawn.map((d) => d.el)),
    draw,
  };
}
