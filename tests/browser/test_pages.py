"""An exported page in a browser: light or dark as the reader's system is, and its folds open."""

from __future__ import annotations

import nbformat
import pytest
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook, new_output
from plotted import notebook_of, shown
from simulated import simulate

from diffgemma_lite.course.gate import PLOTLY, PNG
from diffgemma_lite.course.pages import export
from diffgemma_lite.view import player

LIGHTNESS = """(el) => {
  const parts = (name) => getComputedStyle(el)[name].match(/[\\d.]+/g).slice(0, 3).map(Number);
  const mean = (name) => parts(name).reduce((a, b) => a + b) / 3 / 255;
  return [mean('backgroundColor'), mean('color')];
}"""


@pytest.fixture(scope="module")
def exported(tmp_path_factory):
    folder = tmp_path_factory.mktemp("page")
    words = new_output("stream", text="a line of words " * 20)
    view = new_output(
        "execute_result", player(simulate(12, 3))._repr_mimebundle_(), execution_count=1
    )
    prose = (
        "# Title\n\nSome `code`.\n\n<details><summary>Answer</summary>\n\n"
        "It is *folded*.\n</details>"
    )
    cells = [
        new_markdown_cell(prose),
        new_code_cell("show()", execution_count=1, outputs=[words, view]),
    ]
    nbformat.write(new_notebook(cells=cells), str(folder / "00_page.ipynb"))
    return export([folder / "00_page.ipynb"], folder)[0]


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_page_and_player_follow_the_system(open_page, exported, scheme):
    page = open_page(exported, scheme=scheme)
    page.wait_for_selector("[data-live=yes]")
    for part in ("body", ".dg"):
        ground, ink = page.locator(part).evaluate(LIGHTNESS)
        assert (
            (ground > 0.9 and ink < 0.3) if scheme == "light" else (ground < 0.2 and ink > 0.7)
        ), part
    _, ink = page.locator(".jp-RenderedText pre").evaluate(LIGHTNESS)
    assert ink < 0.3 if scheme == "light" else ink > 0.7
    assert page.locator(".dg").get_attribute("data-theme") == scheme


def test_a_fold_opens_and_words_are_not_cut(open_page, exported):
    page = open_page(exported, width=360)
    folded = page.locator("details em")
    assert not folded.is_visible()
    page.locator("summary").first.focus()
    page.keyboard.press("Enter")
    assert folded.is_visible()
    assert (
        page.locator(".jp-RenderedText pre").evaluate("p => getComputedStyle(p).wordBreak")
        == "normal"
    )
    assert page.evaluate("() => document.documentElement.scrollWidth") <= 360


@pytest.fixture(scope="module")
def plotted(tmp_path_factory):
    """A page with two plotly figures: one bare, one that brings tables of its own."""
    folder, figures = (
        tmp_path_factory.mktemp("plotted"),
        [shown(), shown(page="<img alt='x' src='data:,'><table><tr><td>7</td></tr></table>")],
    )
    for figure in figures:
        figure.data[PNG] = "AAAA"  # stands for the picture, whose place the figure takes
        del figure.data[PLOTLY]["layout"]["width"]
    nbformat.write(notebook_of(*figures), str(folder / "01_page.ipynb"))
    return export([folder / "01_page.ipynb"], folder)[0]


def test_a_plotly_figure_takes_the_place_of_its_picture(open_page, plotted):
    without = open_page(plotted, script=False)
    assert (
        without.locator("[data-plotly] img").count() == 2
        and without.locator("[data-plotly] table").is_visible()
    )
    assert without.locator(".js-plotly-plot").count() == 0
    for width in (360, 1600):
        page = open_page(plotted, width=width)
        page.wait_for_function("() => document.querySelectorAll('[data-plotly=live]').length === 2")
        assert (
            page.locator("[data-plotly] img").count() == 0
            and page.locator(".js-plotly-plot .main-svg").count() >= 2
        )
        assert page.locator("[data-plotly] table").is_visible()
        assert page.evaluate("() => document.documentElement.scrollWidth") <= width
