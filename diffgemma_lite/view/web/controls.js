// controls.js: what every view is made of: icons, buttons, a row of choices, a watch on the theme, and the entry a host calls.
// Nothing here knows what is shown.

import { h } from "./data.js";
import { isDark } from "./colour.js";

const ICONS = {
  first: "M4 3v10M13 3 6 8l7 5z",
  back: "M11 3 4 8l7 5z",
  play: "M4 2.5v11L13 8z",
  pause: "M4 3h3v10H4zM9 3h3v10H9z",
  forward: "M5 3l7 5-7 5z",
  last: "M12 3v10M3 3l7 5-7 5z",
};

export function icon(name) {
  return h("svg", { viewBox: "0 0 16 16", "aria-hidden": "true" }, h("path", { d: ICONS[name] }));
}

export function iconButton(name, label, action) {
  return h("button", { type: "button", title: label, "aria-label": label, onclick: action }, icon(name));
}

// {value: words} as radio buttons; change(value) is called with what was taken
export function choice(label, options, name, current, change) {
  const items = Object.entries(options).map(([value, words]) =>
    h(
      "label",
      {},
      h("input", { type: "radio", name, value, checked: value === current, onchange: () => change(value) }),
      h("span", {}, words),
    ),
  );
  return h("fieldset", { class: "choice" }, h("legend", {}, label), ...items);
}

// Calls change(dark) now and whenever the page's theme turns, JupyterLab's or the system's; returns what ends the watch.
export function watchTheme(el, change) {
  let dark = null;
  const look = () => {
    if (isDark(el) === dark) return;
    dark = !dark;
    el.dataset.theme = dark ? "dark" : "light";
    change(dark);
  };
  dark = !isDark(el); // so that the first look calls
  look();
  const watch = new MutationObserver(look);
  watch.observe(document.body, {
    attributes: true,
    attributeFilter: ["class", "data-jp-theme-name", "data-jp-theme-light"],
  });
  const scheme = matchMedia("(prefers-color-scheme: dark)");
  scheme.addEventListener("change", look);
  requestAnimationFrame(look); // a host may hand over its styles a frame late
  return () => {
    watch.disconnect();
    scheme.removeEventListener("change", look);
  };
}

// The module a host loads: {render({model, el})}, which returns what ends the view. Trait `data` is shown once it has `field`:
// prepare(data) unpacks it, make(stage, prepared, data, again) draws it and returns {destroy}; again: not the first time.
// panel(model) may return {el, destroy} to stand above the stage. SHEET holds the view's styles (host.py).
export function hosted(field, make, prepare = (data) => data, panel = () => null) {
  async function render({ model, el }) {
    const shadow = el.shadowRoot ?? el.attachShadow({ mode: "open" });
    el.dataset.lmSuppressShortcuts = "true"; // JupyterLab looks at the shadow's host, not inside it
    const stage = h("div", { class: "stage" }),
      above = panel(model);
    shadow.replaceChildren(h("style", {}, SHEET), ...(above ? [above.el] : []), stage);
    let view = null;
    async function show(again) {
      const data = model.get("data");
      if (!data?.[field]) return;
      const prepared = await prepare(data);
      view?.destroy();
      view = make(stage, prepared, data, again);
    }
    const changed = () => show(true);
    model.on("change:data", changed);
    await show(false);
    return () => {
      view?.destroy();
      above?.destroy();
      model.off("change:data", changed);
    };
  }
  return { render };
}
