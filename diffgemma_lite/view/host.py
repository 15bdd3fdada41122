"""Hosts one ES module twice over.

In a page or notebook output by itself, and (live.py) in an anywidget.

The output is progressive: first the static part, complete by itself, then one script that unpacks
the module and the data (both deflated, in base64, so nothing in them can end the script), gives the
module a model with `get`, `set`, `on`, `off` and `save_changes`, and on success takes the static
part's place. No address is fetched. See notebooks 00 and 07.
"""

from __future__ import annotations

import functools
import hashlib
import html
import json
import re
from pathlib import Path

from .payload import pack_text
from .static import visible_title

HERE = Path(__file__).parent / "web"
# What each view is made of, in order of dependence; the last exports. All share player.css; a view
# may add its own sheet.
BUNDLES = {
    "race": ("data.js", "colour.js", "controls.js", "race.js"),
    "router": ("data.js", "colour.js", "controls.js", "experts.js", "router.js"),
    "noise": ("data.js", "colour.js", "controls.js", "noise.js"),
    "nvfp4": ("data.js", "colour.js", "controls.js", "nvfp4.js"),
    "roofline": ("data.js", "colour.js", "controls.js", "roofline.js"),
    "player": (
        "data.js",
        "colour.js",
        "controls.js",
        "inspector.js",
        "attention.js",
        "curves.js",
        "knobs.js",
        "panel.js",
        "player.js",
    ),
}


class OutputView:
    """A finished notebook output: HTML for a page, one line for a terminal."""

    def __init__(self, html: str, words: str):
        self.html, self.words = html, words

    def _repr_html_(self) -> str:
        return self.html

    def _repr_mimebundle_(self, include=None, exclude=None) -> dict:
        return {"text/html": self.html, "text/plain": self.words}

    def __repr__(self) -> str:
        return self.words


INFLATE = """
const inflate = async (text) => {
  const bytes = Uint8Array.from(atob(text), (c) => c.charCodeAt(0));
  const unpacked = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate"));
  return new Response(unpacked).text();
};"""
LOADER = (
    INFLATE
    + """
const hosts = () =>
  [...document.querySelectorAll('[data-dg="ID"]')].filter((el) => !el.dataset.live);
for (let i = 0; i < 100 && !hosts().length; i++) await new Promise((done) => setTimeout(done, 20));
for (const host of hosts()) {
  host.dataset.live = "starting";
  performance.mark("dg-start");
  const still = host.firstElementChild, stage = document.createElement("div");
  try {
    const [code, data] = await Promise.all([inflate(CODE), inflate(DATA)]);
    const url = URL.createObjectURL(new Blob([JSON.parse(code)], { type: "text/javascript" }));
    const view = (await import(url)).default;
    URL.revokeObjectURL(url);
    const state = { data: JSON.parse(data) };
    const model = { get: (k) => state[k], set: (k, v) => { state[k] = v; },
                    on() {}, off() {}, save_changes() {} };
    host.append(stage);
    await view.render({ model, el: stage });
    still.hidden = true;
    host.dataset.live = "yes";
    performance.measure("dg-open", "dg-start");
  } catch (error) {
    stage.remove();
    host.dataset.live = "failed";
    const words = document.createElement("p");
    words.setAttribute("role", "alert");
    words.textContent = `This view could not start (${error}); the tables below are complete.`;
    host.prepend(words);
    console.error(error);
  }
}
"""
)


@functools.cache
def module_text(view: str = "player") -> str:
    """A view's modules and its style sheets as one ES module.

    A page on disk cannot import a file beside it.

    Each module but the last becomes a function that returns what it exports, so private names
    cannot meet.
    """
    sheets = [
        HERE / name
        for name in dict.fromkeys(("player.css", f"{view}.css"))
        if (HERE / name).exists()
    ]
    parts = [
        "const SHEET = "
        f"{json.dumps(''.join(sheet.read_text(encoding='utf-8') for sheet in sheets))};"
    ]
    names = BUNDLES[view]
    for name in names:
        source = (HERE / name).read_text(encoding="utf-8")
        source = re.sub(r"^import [^;]*;\n", "", source, flags=re.MULTILINE)
        exports = ", ".join(
            re.findall(r"^export (?:async )?(?:function|const) (\w+)", source, flags=re.MULTILINE)
        )
        bare = re.sub(r"^export (?!default)", "", source, flags=re.MULTILINE)
        parts.append(
            bare
            if name == names[-1]
            else f"const {{ {exports} }} = (() => {{\n{bare}\nreturn {{ {exports} }};\n}})();"
        )
    return "\n".join(parts)


def progressive_html(static: str, payload: dict, view: str = "player") -> str:
    """Static part, then the script of the view.

    The id comes from the content, so equal outputs are equal bytes.
    """
    data, code = pack_text(payload), pack_text(module_text(view))
    name = hashlib.sha256(data.encode()).hexdigest()[:12]
    script = LOADER.replace("ID", name).replace("CODE", f'"{code}"').replace("DATA", f'"{data}"')
    return (
        f'<div data-dg="{name}" data-view="{view}"><div>{static}</div></div><script type="module">'
        f"{script}</script>"
    )


STAGE = (
    INFLATE
    + """
const [code, data] = await Promise.all([inflate(CODE), inflate(DATA)]);
const state = JSON.parse(data), listeners = [], host = document.querySelector("[data-stage]");
window.model = {
  get: (name) => state[name],
  set: (name, value) => {
    state[name] = value;
    listeners.forEach(([event, react]) => event === `change:${name}` && react());
  },
  on: (event, react) => listeners.push([event, react]),
  off() {},
  save_changes() {},
};
const url = URL.createObjectURL(new Blob([JSON.parse(code)], { type: "text/javascript" }));
await (await import(url)).default.render({ model: window.model, el: host });
host.dataset.live = "yes";
"""
)


def stage(state: dict) -> str:
    """A live widget without its kernel, for pictures and tests.

    The module with these traits, in the page's `window.model`.
    """
    script = STAGE.replace("CODE", f'"{pack_text(module_text())}"').replace(
        "DATA", f'"{pack_text(state)}"'
    )
    return f'<div data-stage="player"></div><script type="module">{script}</script>'


def page(body: str, title: str) -> str:
    """One self-contained file around a progressive output."""
    words = html.escape(visible_title(title))
    style = (
        "html{color-scheme:light dark}"
        "body{margin:0 auto;padding:16px;max-width:1600px;box-sizing:border-box;"
        "font:14px/1.5 system-ui,sans-serif}"
        "table{border-collapse:collapse}td,th{text-align:left;vertical-align:top;padding:2px 8px}"
        "code,pre{white-space:pre-wrap;overflow-wrap:anywhere}img{max-width:100%}"
        "@media(max-width:480px){body{padding:6px}}"
        "@media(prefers-color-scheme:dark){body{background:#0c0d10}}"
    )
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width,initial-scale=1">'
        f'<link rel="icon" href="data:,"><title>{words}</title><style>{style}</style></head><body>'
        f"{body}</body></html>\n"
    )
