"""The roofline in a real browser, in an exported page with the network off: tables first, then a figure whose sliders answer."""

from __future__ import annotations

import nbformat
import pytest
from nbformat.v4 import new_code_cell, new_notebook, new_output
from plotted import shown

from diffgemma_lite import Config
from diffgemma_lite.notebook_tools.gate import PNG
from diffgemma_lite.notebook_tools.pages import export
from diffgemma_lite.view import roofline
from diffgemma_lite.view.roofline import si

CANVASES, BATCHES, NAMES = (8, 64), (1, 4, 64), ("BF16", "FP8")  # no marked point lies on another


@pytest.fixture(scope="module")
def shape():
    return roofline(Config.preset("python_small"), hardware="H100", prefix=300, canvases=CANVASES, batches=BATCHES,
                    precisions=NAMES, canvas=64, batch=4)  # fmt: skip


@pytest.fixture(scope="module")
def exported(shape, tmp_path_factory):
    folder = tmp_path_factory.mktemp("roofline")
    bare = shown()
    bare.data[PNG] = "AAAA"  # stands for the picture, whose place the figure takes
    outputs = [new_output("display_data", shape._repr_mimebundle_()), bare]
    cells = [new_code_cell(f"show({n})", execution_count=n + 1, outputs=[output]) for n, output in enumerate(outputs)]
    nbformat.write(new_notebook(cells=cells), str(folder / "01_page.ipynb"))
    return export([folder / "01_page.ipynb"], folder)[0]


@pytest.fixture
def page(open_page, exported):
    page = open_page(exported)
    page.wait_for_function("() => document.querySelectorAll('[data-plotly=live]').length === 2")
    return page


def hover_text(page, trace: int, point: int) -> str:
    """What the marker of a point says under the pointer."""
    x, y = page.locator(".js-plotly-plot").first.evaluate(
        """(plot, [trace, point]) => { const { x, y } = plot.data[trace], { xaxis, yaxis } = plot._fullLayout;
        plot.scrollIntoView();
        const box = plot.getBoundingClientRect();
        return [box.x + xaxis._offset + xaxis.d2p(x[point]), box.y + yaxis._offset + yaxis.d2p(y[point])]; }""",
        [trace, point],
    )
    page.mouse.move(0, 0)
    page.wait_for_function("() => !document.querySelector('.hoverlayer .hovertext')")
    page.mouse.move(x, y)
    words = page.locator(".hoverlayer .hovertext").first
    words.wait_for()
    return words.text_content()


def slide(page, row: int, value: int, of: int) -> None:
    """Press on a slider where its step stands; its label then names the step."""
    rail = page.locator(".js-plotly-plot").first.locator(".slider-group").nth(row).locator(".slider-rail-touch-rect")
    box = rail.bounding_box()
    inset = 8  # the grip stays inside the rail
    at = box["x"] + inset + (box["width"] - 2 * inset) * value / (of - 1)
    page.mouse.click(at, box["y"] + box["height"] / 2)


def marked(page) -> dict:
    """The figure's marked points: trace name -> (number of the trace, of the point)."""
    return page.locator(".js-plotly-plot").first.evaluate(
        """plot => Object.fromEntries(plot.data.flatMap((t, n) =>
        t.selectedpoints && t.visible !== false ? [[t.name, [n, t.selectedpoints[0]]]] : []))"""
    )


def test_the_tables_stand_first_and_without_script(open_page, exported, shape):
    page = open_page(exported, script=False)
    assert page.locator("[data-plotly] img").count() == 2 and page.locator("[data-plotly] img").first.is_visible()
    assert page.locator("[data-plotly] table").first.is_visible()
    first = shape.points["BF16", 64, 4]
    assert si(first.bytes, "B") in page.locator("[data-plotly] table").first.inner_text()
    assert page.locator(".js-plotly-plot").count() == 0


def test_the_figure_takes_the_picture_s_place_and_sliders_change_what_its_points_say(page, shape):
    assert page.locator("[data-plotly] img").count() == 0
    assert page.locator(".js-plotly-plot .main-svg").count() >= 2
    figure, table = (page.locator(part).first.bounding_box() for part in (".js-plotly-plot", "[data-plotly] table"))
    assert figure["width"] > 400 and figure["height"] > 400 and figure["y"] < table["y"]

    def check(canvas: int, batch: int, name: str) -> None:
        points = marked(page)
        assert set(points) == {"one token", f"canvas of {canvas}"}
        for kind, queries in (("one token", 1), (f"canvas of {canvas}", canvas)):
            point, said = shape.points[name, queries, batch], hover_text(page, *points[kind])
            for told in (f"{kind}, batch {batch}, {name}", si(point.bytes, "B"), si(point.flops, "FLOP"), si(point.seconds, "s")):
                assert told in said, said

    check(64, 4, "BF16")
    slide(page, 0, 0, len(CANVASES))
    page.wait_for_function("() => document.querySelector('.js-plotly-plot').layout.sliders[0].active === 0")
    check(8, 4, "BF16")
    slide(page, 1, 2, len(BATCHES))
    page.wait_for_function("() => document.querySelector('.js-plotly-plot').layout.sliders[1].active === 2")
    check(8, 64, "BF16")
    slide(page, 2, 1, len(NAMES))
    page.wait_for_function("() => document.querySelector('.js-plotly-plot').layout.sliders[2].active === 1")
    check(8, 64, "FP8")


@pytest.mark.parametrize("width", [360, 1600])
def test_it_fits_every_width(open_page, exported, width):
    page = open_page(exported, width=width)
    page.wait_for_function("() => document.querySelectorAll('[data-plotly=live]').length === 2")
    assert page.evaluate("() => document.documentElement.scrollWidth") <= width
    box = page.locator(".js-plotly-plot").first.bounding_box()
    assert box["x"] >= 0 and box["x"] + box["width"] <= width
