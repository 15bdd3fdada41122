"""Pictures that come from a command.

Of a made-up trace, of the plotly figures of a notebook, and those kept in assets/.
"""

from __future__ import annotations

import base64
import copy
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import pytest
from harness import ROOT, browser_path, colours
from nbformat.v4 import new_output
from plotted import SVG, notebook_of, shown
from simulated import simulate

from diffgemma_lite.course.gate import PLOTLY, PNG
from diffgemma_lite.course.pictures import add_pictures
from diffgemma_lite.view import figures, picture
from diffgemma_lite.view.figures import NAMES


def test_the_command_draws_the_player_at_a_step(tmp_path):
    browser_path()  # without a browser this skips
    trace = simulate(24, 5).save(tmp_path / "trace.json")
    made = {}
    for name, more in (
        ("light", ["--step", "1"]),
        ("dark", ["--step", "1", "--dark"]),
        ("later", ["--step", "5"]),
    ):
        png = tmp_path / f"{name}.png"
        given = [str(trace), str(png), "--width", "600", *more]
        if name == "light":
            command = [sys.executable, "-m", "diffgemma_lite.view.picture", *given]
            subprocess.run(command, cwd=ROOT, check=True, timeout=300)
        # the same without the seconds that a new Python takes; playwright wants a thread without an
        # event loop
        else:
            with ThreadPoolExecutor(1) as thread:
                thread.submit(picture.main, given).result()
        data = made[name] = png.read_bytes()
        # one and a half times the width
        assert data[:8] == b"\x89PNG\r\n\x1a\n" and int.from_bytes(data[16:20]) == 900
        assert int.from_bytes(data[20:24]) > 600  # the whole page, not only what a window shows
    assert len(set(made.values())) == 3


def test_each_plotly_figure_of_a_notebook_gets_its_picture(chromium):
    notebook = notebook_of(
        shown(), shown(sliders=True, page=SVG), new_output("stream", text="words")
    )
    before = copy.deepcopy(notebook)
    assert add_pictures(notebook) == []
    plain, slid = (cell.outputs[0] for cell in notebook.cells[:2])
    for output in (plain, slid):
        width, height, counts = colours(chromium, base64.b64decode(output.data[PNG]))
        assert (width, height) == (400 * 1.5, 300 * 1.5)
        assert counts["0000ff"] > 0.2 * width * height and counts["ff0000"] > 1000
        assert output.metadata[PNG] == {"width": 400, "height": 300, "alt": "A red line"}
    assert slid.data["text/html"] == SVG.replace(
        "svg+xml;base64,PHN2Zy8+", f"png;base64,{slid.data[PNG]}"
    )
    for cell, earlier in zip(notebook.cells[:2], before.cells, strict=False):
        # the figure itself keeps its sliders
        assert cell.outputs[0].data[PLOTLY] == earlier.outputs[0].data[PLOTLY]
    assert notebook.cells[2] == before.cells[2]
    once = copy.deepcopy(notebook)
    assert add_pictures(notebook) == [] and notebook == once


@pytest.mark.parametrize("name", NAMES)
def test_each_view_has_a_picture_in_light_and_one_in_dark(chromium, name):
    for theme, paper in (("light", "ffffff"), ("dark", "0c0d10")):  # of the page around the view
        width, height, counts = colours(
            chromium, (ROOT / "assets" / "figures" / f"{name}_{theme}.png").read_bytes()
        )
        assert width >= 1000 and height >= 400
        assert counts[paper] > 0.03 * width * height
        assert max(counts.values()) < 0.97 * width * height and len(counts) > 100  # not blank


def test_the_command_draws_the_live_knobs_while_the_model_runs(tmp_path):
    browser_path()  # without a browser this skips
    assets = ROOT / "assets"
    given = [
        assets / "checkpoints" / "python-small",
        assets / "recordings" / "python-small.json",
        tmp_path / "none.json",
        tmp_path,
    ]
    with ThreadPoolExecutor(1) as thread:  # playwright wants one without an event loop
        thread.submit(figures.main, [*map(str, given), "--only", "live_knobs"]).result()
    made = sorted(tmp_path.iterdir())
    assert [path.name for path in made] == ["live_knobs_dark.png", "live_knobs_light.png"]
    assert all(path.stat().st_size > 20_000 for path in made)
