"""Plotly figures get a picture when a notebook is tidied.

What is drawn, how large, and what is said where nothing can draw.

The drawing itself is in tests/browser/test_pictures.py.
"""

from __future__ import annotations

import asyncio
import base64
import sys

import nbformat
import pytest
from nbformat.v4 import new_output
from plotted import SVG, notebook_of, shown

from diffgemma_lite.course import pictures
from diffgemma_lite.course.__main__ import main
from diffgemma_lite.course.gate import MAX_OUTPUT, PLOTLY, PNG
from diffgemma_lite.course.pictures import SVG_PICTURE, add_pictures, still


class Artist:
    """Draws nothing; its pictures have the sizes it is told."""

    def __init__(self, *sizes):
        self.sizes, self.asked = list(sizes), []

    async def calc_fig(self, figure, opts):
        self.asked.append(opts["scale"])
        return b"x" * self.sizes.pop(0)


@pytest.mark.parametrize(
    ("sizes", "scales", "in_page"),
    [
        ([9], [1.5], True),
        ([MAX_OUTPUT // 2, 9], [1.5, 1], True),
        ([MAX_OUTPUT // 2, MAX_OUTPUT // 2, 9], [1.5, 1, 1], False),
    ],
)
def test_a_large_picture_is_made_smaller(sizes, scales, in_page):
    output, artist = shown(page=SVG), Artist(*sizes)
    asyncio.run(pictures._add(output, artist))
    assert artist.asked == scales
    assert base64.b64decode(output.data[PNG]) == b"x" * 9
    assert (SVG_PICTURE.search(output.data["text/html"]) is None) == in_page


def test_a_still_figure_keeps_what_needs_no_hand():
    figure = shown(sliders=True).data[PLOTLY]
    kept, size = still(figure)
    assert (
        kept["data"] == figure["data"]
        and "sliders" not in kept["layout"]
        and "sliders" in figure["layout"]
    )
    assert size == {"width": 400, "height": 300} and kept["layout"]["margin"]["b"] == 80
    assert still({"data": [], "layout": {}})[1] == {"width": 900, "height": 450}


def no_browser():
    raise ValueError("browser: none found; install Chromium")


def test_without_a_browser_or_kaleido_it_says_so_and_the_figure_stays(
    monkeypatch, tmp_path, capsys
):
    monkeypatch.setattr(pictures, "find_browser", no_browser)
    path = tmp_path / "figure.ipynb"
    notebook = notebook_of(shown())
    notebook.cells[0].execution_count = 1
    nbformat.write(notebook, str(path))
    assert main(["tidy", str(path)]) == 1
    said = capsys.readouterr().out
    assert "no pictures of plotly figures: browser: none found; install Chromium" in said
    assert "a plotly figure without a picture" in said
    assert (
        nbformat.read(str(path), 4).cells[0].outputs[0].data[PLOTLY]
        == notebook.cells[0].outputs[0].data[PLOTLY]
    )
    monkeypatch.setitem(sys.modules, "kaleido", None)
    assert "kaleido is not installed" in add_pictures(notebook)[0]
    # and no figure needs neither
    assert add_pictures(notebook_of(new_output("stream", text="words"))) == []
