// data.js: unpacks what payload.py packed and makes token text visible.
// Nothing here touches the page; player.js, inspector.js and knobs.js draw. Walked through in notebook 07.

const PROBABILITY_STEPS = 1000;

export async function inflate(base64) {
  const bytes = Uint8Array.from(atob(base64), (c) => c.charCodeAt(0));
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate"));
  return new Uint8Array(await new Response(stream).arrayBuffer());
}

function halfFloat(bits) {
  const sign = bits & 0x8000 ? -1 : 1,
    exponent = (bits >> 10) & 31,
    fraction = bits & 1023;
  if (exponent === 31) return fraction ? NaN : sign * Infinity;
  return sign * (exponent ? (1 + fraction / 1024) * 2 ** (exponent - 15) : fraction * 2 ** -24);
}

// {t, s, d} -> flat array; integers and half floats lie as byte planes (all low bytes, then the next), booleans as bits
export async function unpack({ t, s, d }) {
  const count = s.reduce((a, b) => a * b, 1),
    raw = await inflate(d);
  if (t === "b1") return Uint8Array.from({ length: count }, (_, i) => (raw[i >> 3] >> (i & 7)) & 1);
  const width = Number(t.slice(1)) / 8,
    values = new Float64Array(count);
  for (let plane = 0; plane < width; plane++)
    for (let i = 0; i < count; i++) values[i] += raw[plane * count + i] * 256 ** plane;
  return t[0] === "f" ? values.map(halfFloat) : values;
}

async function openCanvas(packed) {
  const names = ["top_ids", "top_probs", "argmax", "sampled", "canvas", "entropy", "accepted", "revised", "pinned"];
  const arrays = await Promise.all(names.map((name) => unpack(packed[name])));
  const c = Object.fromEntries(names.map((name, i) => [name, arrays[i]]));
  const [N, C, K] = packed.top_ids.s;
  for (let i = 0; i < c.top_ids.length; i++)
    // 0: as one step ago
    c.top_ids[i] = c.top_ids[i] === 0 ? c.top_ids[i - C * K] : c.top_ids[i] - 1;
  for (let i = 0; i < N * C; i++) {
    c.argmax[i] = c.argmax[i] === 0 ? c.top_ids[i * K] : c.argmax[i] - 1;
    c.sampled[i] = c.sampled[i] < K ? c.top_ids[i * K + c.sampled[i]] : c.sampled[i] - K - 1; // -1: left out
  }
  for (let i = 0; i < N * C; i++) {
    // 0: handed on by the step before; 1: noise whose id was left out
    if (c.canvas[i] === 0) c.canvas[i] = c.accepted[i - C] ? c.sampled[i - C] : c.canvas[i - C];
    else c.canvas[i] = c.canvas[i] === 1 ? -1 : c.canvas[i] - 2;
  }
  for (let i = 0; i < N * C; i++)
    // packed as the difference to what the best guesses say
    c.revised[i] ^= i >= C && c.argmax[i] !== c.argmax[i - C] ? 1 : 0;
  c.top_probs = c.top_probs.map((p) => p / PROBABILITY_STEPS);
  return {
    ...c,
    N,
    C,
    K,
    temperature: packed.temperature,
    meanEntropy: packed.mean_entropy,
    stop: packed.stop,
    bound: packed.bound,
  };
}

// One trace -> canvases and frames. A frame is one denoising step; after the last of a canvas comes its commit (n = N).
export async function openTrace(packed) {
  const canvases = await Promise.all(packed.canvases.map(openCanvas));
  const texts = JSON.parse(new TextDecoder().decode(await inflate(packed.texts)));
  const frames = [];
  let kept = packed.kept;
  canvases.forEach((c, index) => {
    c.kept = Math.max(0, Math.min(c.C, kept)); // positions from here on are cut at commit
    kept -= c.C;
    c.first = frames.length;
    for (let n = 0; n <= c.N; n++) frames.push({ c: index, n });
    c.counts = countSteps(c);
  });
  return { ...packed, canvases, texts, frames, runs: new Map() };
}

function countSteps(c) {
  const accepted = new Array(c.N).fill(0),
    revised = new Array(c.N).fill(0);
  for (let n = 0; n < c.N; n++)
    for (let p = 0; p < c.C; p++) {
      accepted[n] += c.accepted[n * c.C + p];
      revised[n] += c.revised[n * c.C + p];
    }
  return { accepted, revised };
}

// What happened to a position in step n (n = N: the commit): one word, plus whether its best guess changed.
export function positionState(c, n, p) {
  if (n >= c.N) return c.pinned[p] ? "pinned" : p < c.kept ? "final" : "cut";
  if (c.pinned[p]) return "pinned";
  return c.accepted[n * c.C + p] ? "accepted" : "renoised";
}

// The entropy order of step n, surest first, pinned positions aside, with the running sum before each position.
// Equal entropies (half floats) put the accepted first, so that the order can never contradict the sampler.
export function entropyOrder(c, n) {
  const at = (p) => c.entropy[n * c.C + p];
  const order = Array.from({ length: c.C }, (_, p) => p).filter((p) => !c.pinned[p]);
  order.sort((a, b) => at(a) - at(b) || c.accepted[n * c.C + b] - c.accepted[n * c.C + a] || a - b);
  let sum = 0;
  const before = order.map((p) => {
    const s = sum;
    sum += at(p);
    return s;
  });
  return { order, before };
}

const NAMED = { " ": "·", "\n": "⏎", "\t": "⇥" };
// letters, marks and symbols drawn as nothing
const BLANK = "\\u034f\\u115f\\u1160\\u17b4\\u17b5\\u2800\\u3164\\uffa0\\ufe00-\\ufe0f\\u{e0100}-\\u{e01ef}";
const HIDDEN = new RegExp(`[\\p{Cc}\\p{Cf}\\p{Cs}\\p{Co}\\p{Zl}\\p{Zp}\\p{Zs}${BLANK}]`, "u");

const escapeHidden = (character) => {
  const code = character.codePointAt(0);
  return code <= 0xffff ? `\\u${code.toString(16).padStart(4, "0")}` : `\\u{${code.toString(16)}}`;
};

// text -> [[string, written out?], ...]; the same characters as visible() in text.py
export function visibleRuns(text, running = false) {
  const runs = [];
  const add = (string, escaped) => {
    const last = runs[runs.length - 1];
    if (last && last[1] === escaped) last[0] += string;
    else runs.push([string, escaped]);
  };
  const first = text ? String.fromCodePoint(text.codePointAt(0)) : "";
  if (!running && /\p{M}/u.test(first) && !HIDDEN.test(first)) add("◌", true);
  for (const character of text) {
    if (character in NAMED) running ? add(character, false) : add(NAMED[character], true);
    else HIDDEN.test(character) ? add(escapeHidden(character), true) : add(character, false);
  }
  return runs;
}

// A local number's text; an id without one stands as #id, and one that was left out (-1) as ░.
export const textOf = (trace, local) =>
  local < 0 ? "░" : typeof trace.texts[local] === "number" ? `#${trace.texts[local]}` : trace.texts[local];

// The same as runs, for a cell.
export function tokenRuns(trace, local) {
  if (!trace.runs.has(local)) {
    trace.runs.set(local, local < 0 ? [["░", true]] : visibleRuns(textOf(trace, local)));
  }
  return trace.runs.get(local);
}
export const runsText = (runs) => runs.map((r) => r[0]).join("");
export const visibleLine = (text) => runsText(visibleRuns(text.trim(), true));
export const tokenLabel = (trace, local) => runsText(tokenRuns(trace, local));

// Fills an element with runs; text nodes only, whatever the text is.
export function fillRuns(el, runs) {
  el.replaceChildren(
    ...runs.map(([string, escaped]) =>
      escaped ? h("i", { class: /^·+$/.test(string) && "gap" }, string) : document.createTextNode(string),
    ),
  );
}

// h("div", {class: "x", onclick: f}, child, "text"): elements without markup strings.
export function h(tag, properties = {}, ...children) {
  const svg = ["svg", "path", "line", "rect", "polyline", "circle", "text"].includes(tag);
  const el = svg ? document.createElementNS("http://www.w3.org/2000/svg", tag) : document.createElement(tag);
  for (const [name, value] of Object.entries(properties)) {
    if (value === undefined || value === null || value === false) continue;
    if (name.startsWith("on")) el.addEventListener(name.slice(2), value);
    else el.setAttribute(name, value === true ? "" : value);
  }
  el.append(...children.filter((c) => c !== null && c !== undefined));
  return el;
}

export const round = (x, digits) => (x === undefined || Number.isNaN(x) ? "–" : x.toFixed(digits));
export const nats = (x) => (x > 0 && x < 0.00095 ? x.toPrecision(2) : x.toFixed(x < 0.1 ? 4 : x < 1 ? 3 : 2));
export const percent = (p) => (p < 0.001 ? "< 0.1 %" : `${(100 * p).toFixed(1)} %`);
