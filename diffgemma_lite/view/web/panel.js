// panel.js: one trace in the player: its canvases as cells in reading order, and the text they spell.
// Marks are shapes (player.css), colour is one scale (colour.js), text goes in as text nodes (data.js).

import { positionState, textOf, tokenRuns, runsText, fillRuns, visibleRuns, visibleLine, h } from "./data.js";
import { levelOf } from "./colour.js";

const STATE_WORDS = {
  accepted: "accepted",
  renoised: "renoised",
  pinned: "pinned",
  final: "final",
  cut: "after the end, not kept",
  waiting: "not started",
};

export function makePanel(trace) {
  const blocks = trace.canvases.map((canvas, c) => {
    const cells = Array.from({ length: canvas.C }, (_, p) =>
      h("span", {
        class: "cell waiting",
        role: "option",
        tabindex: "-1",
        "data-c": c,
        "data-p": p,
        "aria-selected": "false",
      }),
    );
    const many =
      trace.canvases.length > 1 ? `Canvas ${c + 1} of ${trace.canvases.length}` : `Canvas of ${canvas.C} positions`;
    const grid = h("div", { class: "grid", role: "listbox", "aria-label": visibleLine(`${trace.name} ${many}`) }, ...cells);
    const keys = new Array(canvas.C).fill(""),
      texts = new Array(canvas.C).fill(null);
    return { canvas, c, cells, grid, keys, texts, caption: h("p", { class: "caption" }, many) };
  });
  const state = h("span", {});
  const text = h("div", { class: "decoded", tabindex: "0", role: "region", "aria-label": "Decoded text" });
  const el = h(
    "div",
    { class: "panel" },
    h("p", { class: "caption heading", hidden: !trace.name }, h("b", {}, visibleLine(trace.name)), " ", state),
    ...blocks.flatMap((b) => (blocks.length > 1 ? [b.caption, b.grid] : [b.grid])),
    h("p", { class: "caption" }, "Text of this step"),
    text,
    trace.note ? h("p", { class: "note" }, `To keep the page small: ${trace.note}.`) : null,
  );
  return { trace, blocks, text, state, el, frameOf: (f) => trace.frames[Math.min(f, trace.frames.length - 1)] };
}

// The local number a cell shows: what was asked for, the best guess at the commit, the pinned token where one is pinned.
function shownToken(canvas, n, p, shown) {
  const i = Math.min(n, canvas.N - 1) * canvas.C + p;
  return canvas.pinned[p] ? canvas.canvas[i] : n >= canvas.N ? canvas.argmax[i] : canvas[shown][i];
}

// One canvas at step n: -1 before it starts, N once committed. A cell is touched only where something in it changed.
export function drawBlock(panel, block, n, view) {
  const { canvas, cells, keys, texts } = block,
    { trace } = panel,
    { C, K } = canvas;
  const last = Math.min(n, canvas.N - 1);
  for (let p = 0; p < C; p++) {
    const i = last * C + p,
      cell = cells[p];
    const state = n < 0 ? "waiting" : positionState(canvas, n, p);
    const local = n < 0 ? null : shownToken(canvas, n, p, view.shown);
    const value = view.colour === "entropy" ? canvas.entropy[i] / view.most : 1 - canvas.top_probs[i * K];
    const level = n < 0 || (n >= canvas.N && state !== "final") || state === "pinned" ? 0 : levelOf(value);
    const revised = n >= 0 && n < canvas.N && canvas.revised[i];
    const key = `${local} ${state} ${level} ${revised} ${view.dark}`;
    if (keys[p] === key) continue;
    keys[p] = key;
    const runs = n < 0 ? [] : tokenRuns(trace, local),
      size = runsText(runs).length;
    cell.className = `cell ${state}${revised ? " revised" : ""}${size > 9 ? " longest" : size > 6 ? " long" : ""}`;
    cell.style.backgroundColor = n < 0 ? "" : view.shades[level].back;
    cell.style.color = n < 0 ? "" : view.shades[level].ink;
    if (texts[p] !== local) fillRuns(cell, runs);
    texts[p] = local;
    const words = [`${p}`, runsText(runs), STATE_WORDS[state], revised ? "revised" : ""];
    cell.setAttribute("aria-label", words.filter(Boolean).join(", "));
  }
}

// The text of this frame: the canvases committed so far, and what the running one shows.
export function drawText(panel, frame, shown) {
  const { trace } = panel,
    prompt = h("span", { class: "prompt" });
  fillRuns(prompt, visibleRuns(trace.prompt.length > 600 ? `…${trace.prompt.slice(-600)}` : trace.prompt, true));
  let string = "";
  for (const { canvas, c } of panel.blocks) {
    if (c > frame.c) break;
    const n = c < frame.c ? canvas.N : frame.n;
    for (let p = 0; p < (n < canvas.N ? canvas.C : canvas.kept); p++)
      string += textOf(trace, shownToken(canvas, n, p, shown));
  }
  const answer = h("span", { class: "answer" });
  fillRuns(answer, visibleRuns(string, true));
  panel.text.replaceChildren(prompt, answer);
}
