"""A picture beside each plotly figure, for whoever reads a notebook where no script runs: GitHub, a
page, slides, print.

Made when a notebook is run or tidied, by kaleido, which draws the figure in a Chrome or Chromium of
this machine; a reader needs neither. What needs a hand to move it (sliders, buttons) is left out of
the picture.
"""

from __future__ import annotations

import asyncio
import base64
import copy
import json
import re
from concurrent.futures import ThreadPoolExecutor

from nbformat import NotebookNode

from ..view.picture import PATIENCE, find_browser
from .gate import MAX_OUTPUT, PLOTLY, PNG

# pixels of a figure that names none, and under a figure whose sliders are left out
WIDTH, HEIGHT, BELOW = 900, 450, 80
# pixels of the picture for one of the figure; the smaller where the larger would make the output
# too large
SCALES = (1.5, 1)
SVG_PICTURE = re.compile(r'(<img\b[^>]*\bsrc=")data:image/svg\+xml;base64,[^"]*(")')


def add_pictures(notebook: NotebookNode) -> list[str]:
    """Changes the notebook in place.

    Returns why figures stay without a picture: one sentence, or none where all have one.
    """
    outputs = [
        output
        for cell in notebook.cells
        for output in cell.get("outputs", [])
        if PLOTLY in output.get("data", {})
    ]
    outputs = [output for output in outputs if PNG not in output.data]
    if not outputs:
        return []
    try:
        from kaleido import Kaleido

        browser = find_browser()
    except ImportError:
        return ["no pictures of plotly figures: kaleido is not installed; it comes with: uv sync"]
    except ValueError as error:
        return [f"no pictures of plotly figures: {error}"]

    async def draw() -> None:
        # no script of another machine
        async with Kaleido(path=browser, mathjax=False, timeout=PATIENCE / 1000) as artist:
            for output in outputs:
                await _add(output, artist)

    with ThreadPoolExecutor(1) as thread:  # whoever calls may have an event loop of its own
        thread.submit(asyncio.run, draw()).result()
    return []


async def _add(output: NotebookNode, artist) -> None:
    """The largest picture that fits.

    Html, which a page prefers to a picture, shows it too where it has a place for one.
    """
    figure, size = still(output.data[PLOTLY])
    page = "".join(output.data.get("text/html", ""))
    for scale, in_page in [(scale, True) for scale in SCALES] + [(SCALES[-1], False)]:
        png = await artist.calc_fig(figure, opts={"format": "png", "scale": scale, **size})
        encoded = base64.b64encode(png).decode()
        output.data[PNG] = encoded
        output.metadata[PNG] = size | {"alt": title_of(figure)}
        if page:
            shown = SVG_PICTURE.sub(rf"\g<1>data:image/png;base64,{encoded}\g<2>", page, count=1)
            output.data["text/html"] = shown if in_page else page
        if len(json.dumps(output, ensure_ascii=False).encode()) <= MAX_OUTPUT:
            return


def still(figure: dict) -> tuple[dict, dict[str, int]]:
    """The figure without what only a pointer can use, and its width and height in pixels."""
    figure = copy.deepcopy({key: figure[key] for key in ("data", "layout")})
    layout = figure["layout"]
    height = layout.get("height", HEIGHT)
    if [layout.pop(name) for name in ("sliders", "updatemenus") if name in layout]:
        margin = layout.setdefault("margin", {})
        below = margin.get("b", BELOW)
        margin["b"] = min(below, BELOW)
        height -= below - margin["b"]
    size = {"width": int(layout.get("width", WIDTH)), "height": int(height)}
    layout |= size
    return figure, size


def title_of(figure: dict) -> str:
    title = figure["layout"].get("title", {})
    words = title if isinstance(title, str) else title.get("text", "")
    return " ".join(re.sub(r"<[^>]*>", " ", words or "").split()) or "A figure"
