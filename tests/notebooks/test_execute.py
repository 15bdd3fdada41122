"""A notebook run by the tool: what stays, what goes, and that a second run changes nothing."""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path

import nbformat
import pytest
from nbclient.exceptions import CellExecutionError
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook

from diffgemma_lite.course.__main__ import main
from diffgemma_lite.course.execute import WIDGET, find, hide_paths, last_lines, tidy
from diffgemma_lite.course.gate import faults
from diffgemma_lite.course.pages import export

CELLS = [
    "import os, sys, tempfile, warnings\nimport anywidget, ipywidgets, traitlets\n"
    "from IPython.display import HTML, display",
    "places = sys.executable, os.getcwd(), tempfile.gettempdir()\n"
    "print(*places, os.path.expanduser('~/x'), sep='\\n')",
    "class Counter(anywidget.AnyWidget):\n    _esm = 'export default {}'\n"
    "    n = traitlets.Int().tag(sync=True)\nCounter()",
    "from tqdm.auto import tqdm as in_a_widget\nfrom tqdm import tqdm as on_a_line\n"
    "for i in in_a_widget(range(3)): pass\nfor i in on_a_line(range(3), desc='three'): pass",
    "print('a'); print('b', file=sys.stderr); print('c'); warnings.warn('careful')",
    "display(HTML('<table><tr><td>kept</td></tr></table>'))\nipywidgets.IntSlider()",
]


def write(path, *sources):
    opening = new_markdown_cell("# Title & more\n\n[on](01_next.ipynb#x)")
    nbformat.write(new_notebook(cells=[opening, *map(new_code_cell, sources)]), str(path))
    return path


@pytest.fixture(scope="module")
def ran(tmp_path_factory):
    path = write(tmp_path_factory.mktemp("course") / "00_probe.ipynb", *CELLS)
    assert main(["run", str(path)]) == 0
    return path


def test_a_run_leaves_what_may_be_committed(ran):
    notebook = nbformat.read(str(ran), as_version=4)
    assert faults(notebook) == []
    _, first, paths, widget, bars, streams, table = notebook.cells
    assert first.outputs == widget.outputs == []
    shown = paths.outputs[0].text.splitlines()
    assert len(shown) == 4 and all(line.startswith("~") for line in shown), shown
    assert shown[-1] == "~/x"
    # the bar in a widget has no static twin
    assert [output.name for output in bars.outputs] == ["stderr"]
    assert re.fullmatch(r"three: 100%\S* *\|.*\| 3/3 .*\n", bars.outputs[0].text)
    assert {output.name: output.text.splitlines()[0] for output in streams.outputs} == {
        "stdout": "a",
        "stderr": "b",
    }
    assert "cell.py" in streams.outputs[1].text or "cell.py" in streams.outputs[0].text
    assert "kept" in table.outputs[0].data["text/html"] and len(table.outputs) == 1


def test_tidying_twice_is_tidying_once(ran):
    text = ran.read_text()
    assert main(["tidy", str(ran)]) == 0
    assert ran.read_text() == text


def test_a_failing_cell_stops_the_run_and_nothing_is_written(tmp_path):
    path = write(tmp_path / "bad.ipynb", "x = 1", "x = y")
    before = path.read_bytes()
    with pytest.raises(CellExecutionError, match="name 'y' is not defined"):
        main(["run", str(path)])
    assert path.read_bytes() == before


def test_an_exception_in_a_callback_is_a_fault(tmp_path, capsys):
    press = "import ipywidgets\nb = ipywidgets.Button()\nb.on_click(lambda _: 1 / 0)\nb.click()"
    assert main(["run", str(write(tmp_path / "bad.ipynb", press))]) == 1
    assert "ZeroDivisionError" in capsys.readouterr().out


def test_check_says_what_is_wrong_and_changes_nothing(tmp_path, capsys):
    path = write(tmp_path / "raw.ipynb", "x = 1")
    before = path.read_bytes()
    assert main(["check", str(path)]) == 1
    assert "not run from top to bottom" in capsys.readouterr().out
    assert path.read_bytes() == before


def test_a_widget_with_a_static_twin_keeps_the_twin():
    output = nbformat.v4.new_output(
        "display_data", {WIDGET: {"model_id": "0"}, "text/html": "<b>b</b>", "text/plain": "B"}
    )
    notebook = tidy(new_notebook(cells=[new_code_cell("b", outputs=[output])]))
    assert notebook.cells[0].outputs[0].data == {"text/html": "<b>b</b>", "text/plain": "B"}


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plain\ntwo\n", "plain\ntwo\n"),
        ("\r 0%\r 50%\r100%\n", "100%\n"),
        ("\r 0%\r100%\r", "100%"),
        ("a: 1\r\nb\n", "a: 1\nb\n"),
        ("\r 1\n\x1b[A\r 2\n", " 1\n 2\n"),
        ("\x1b[31mred\x1b[0m", "\x1b[31mred\x1b[0m"),
    ],
)
def test_last_lines(text, shown):
    assert last_lines(text) == shown


def test_hide_paths_needs_a_whole_name(monkeypatch):
    for variable in ("HOME", "USERPROFILE"):
        monkeypatch.setenv(variable, os.path.join(os.sep, "somewhere", "me"))
    home = str(Path.home())
    assert (
        hide_paths(f"{home}; {home}-other; {os.path.join(home, 'x')}; {home}.")
        == f"~; {home}-other; ~{os.sep}x; ~."
    )
    assert sys.prefix not in hide_paths(f"at {sys.prefix}/lib, {sys.prefix}")


def test_find(tmp_path):
    for name in ("00_a", "01_b", "02_c"):
        write(tmp_path / f"{name}.ipynb")
    assert [path.stem for path in find([], tmp_path)] == ["00_a", "01_b", "02_c"]
    assert [path.stem for path in find(["02", "00_a"], tmp_path)] == ["02_c", "00_a"]
    assert find([str(tmp_path / "01_b.ipynb")], tmp_path / "elsewhere") == [tmp_path / "01_b.ipynb"]
    with pytest.raises(
        ValueError, match="'07' is no notebook; take a path or one of 00_a, 01_b, 02_c"
    ):
        find(["07"], tmp_path)


def test_pages_load_nothing_from_a_network(ran, tmp_path):
    page, index = export([ran], tmp_path / "site")
    text = page.read_text(encoding="utf-8")
    assert not re.findall(
        r"""<(?:script|link|img|iframe)[^>]*(?:src|href)=["']?(?:https?:)?//""", text
    )
    assert not re.findall(r"""import\s[^;]*["']https?://""", text)
    assert 'href="01_next.html#x"' in text and "<td>kept</td>" in text
    assert '<a href="00_probe.html">Title &amp; more</a>' in index.read_text(encoding="utf-8")


def test_pages_with_formulas_name_their_script(ran, tmp_path):
    assert "mathjax" in export([ran], tmp_path / "site", formulas=True)[0].read_text(
        encoding="utf-8"
    )
