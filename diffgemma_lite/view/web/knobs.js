// knobs.js: the knob panel of the live widget: settings, Run, a progress bar, a Cancel that works, the error if one came.
// Traits out: settings, run_count, cancel_count. Traits in: knobs, progress, error. See live.py and notebook 07.

import { h, fillRuns, visibleRuns } from "./data.js";
import { shades, levelOf, isDark } from "./colour.js";

const ok = (input) => input.value !== "" && input.checkValidity();

// What is wrong with the numbers as they stand, for one who is about to press Run; "" where nothing is.
function wrongNumbers(form, knobs) {
  const inputs = [...form.querySelectorAll("input[type=number]")].filter((input) => !ok(input));
  const wrong = knobs.filter((knob) => inputs.some((input) => input.dataset.knob === knob.name));
  const takes = ({ min, max, kind }) =>
    `${kind === "int" ? "a whole number" : "a number"}${min == null ? "" : ` from ${min}`}${max == null ? "" : ` up to ${max}`}`;
  return wrong.map((knob) => `${knob.label} takes ${takes(knob)}.`).join(" ");
}

function control(knob, settings, change) {
  const value = settings[knob.name] ?? knob.value,
    common = { name: knob.name, "data-knob": knob.name };
  if (knob.kind === "bool")
    return h(
      "label",
      { class: "knob check" },
      h("input", { ...common, type: "checkbox", checked: value, onchange: (e) => change(knob.name, e.target.checked) }),
      knob.label,
    );
  if (knob.kind === "text") {
    const area = h("textarea", { ...common, rows: 2, oninput: (e) => change(knob.name, e.target.value) });
    area.value = value;
    return h("label", { class: "knob wide" }, h("span", {}, knob.label), area);
  }
  const limits = { min: knob.min, max: knob.max, step: knob.step ?? (knob.kind === "int" ? 1 : "any") };
  const read = (e) => change(knob.name, ok(e.target) ? Number(e.target.value) : null);
  return h(
    "label",
    { class: "knob" },
    h("span", {}, knob.label),
    h("input", { ...common, type: "number", value, ...limits, oninput: read }),
  );
}

// The canvas while it converges: what the running step drew, by the marks and colours of the player.
function drawPreview(grid, partial, ramp) {
  grid.hidden = !partial.texts;
  if (!partial.texts) return;
  const scale = shades(ramp),
    most = Math.log(partial.vocab);
  while (grid.children.length < partial.texts.length) grid.append(h("span", { class: "cell" }));
  while (grid.children.length > partial.texts.length) grid.lastChild.remove();
  [...grid.children].forEach((cell, p) => {
    const shade = scale[levelOf(partial.entropy[p] / most)];
    cell.className = `cell ${partial.accepted[p] ? "accepted" : "renoised"}`;
    cell.style.backgroundColor = shade.back;
    cell.style.color = shade.ink;
    fillRuns(cell, visibleRuns(partial.texts[p]));
  });
}

export function makeKnobs(model) {
  const change = (name, value) => {
    show();
    if (value === null) return; // no number, or one out of range: Run is off until it is mended
    model.set("settings", { ...model.get("settings"), [name]: value });
    model.save_changes();
  };
  const press = (name) => {
    model.set(name, model.get(name) + 1);
    model.save_changes();
  };
  const form = h(
    "div",
    { class: "form" },
    ...model.get("knobs").map((knob) => control(knob, model.get("settings"), change)),
  );
  const run = h("button", { type: "button", class: "run primary", onclick: () => press("run_count") }, "Run");
  const cancel = h("button", { type: "button", class: "cancel", onclick: () => press("cancel_count") }, "Cancel");
  const bar = h("progress", { max: 1, value: 0, "aria-label": "Denoising steps done" }),
    words = h("span", { class: "words", role: "status" });
  const error = h("pre", { class: "error", role: "alert" });
  const grid = h("div", { class: "grid", role: "img", "aria-label": "The canvas of the running step", hidden: true });
  const el = h(
    "section",
    { class: "dg knobs", "aria-label": "Knobs" },
    form,
    h("div", { class: "controls" }, run, cancel, bar, words),
    error,
    grid,
  );

  function show() {
    const { state, step, total, words: text } = model.get("progress"),
      busy = state === "running" || state === "cancelling";
    const wrong = wrongNumbers(form, model.get("knobs"));
    run.disabled = busy || wrong !== "";
    cancel.disabled = state !== "running";
    bar.max = Math.max(1, total);
    bar.value = step;
    words.textContent = wrong || text;
    error.textContent = model.get("error");
    error.hidden = !model.get("error");
  }
  function preview() {
    const dark = isDark(el);
    el.dataset.theme = dark ? "dark" : "light";
    drawPreview(grid, model.get("partial"), model.get("ramp")[dark ? "dark" : "light"]);
  }
  const watched = { "change:progress": show, "change:error": show, "change:partial": preview };
  for (const [event, react] of Object.entries(watched)) model.on(event, react);
  show();
  requestAnimationFrame(preview);
  return { el, destroy: () => Object.entries(watched).forEach(([event, react]) => model.off(event, react)) };
}
