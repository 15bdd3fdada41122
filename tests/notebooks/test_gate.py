"""Every notebook of the course may be committed, and each rule of the gate refuses a made-up notebook that breaks it."""

from __future__ import annotations

import copy

import nbformat
import pytest
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook, new_output

from diffgemma_lite.notebook_tools.execute import NOTEBOOKS, WIDGET, tidy
from diffgemma_lite.notebook_tools.gate import MAX_OUTPUT, faults

COURSE = sorted(NOTEBOOKS.glob("*.ipynb"))
HOME = "/" + "root"  # in pieces: no file of this repository names a machine's folder


@pytest.mark.parametrize("path", COURSE, ids=lambda path: path.stem)
def test_a_notebook_of_the_course_may_be_committed(path):
    assert not faults(nbformat.read(str(path), as_version=4))


def page(**data: str):
    return new_output("display_data", data={"text/plain": "<view>"} | {key.replace("_", "/", 1): value for key, value in data.items()})


def good():
    """A notebook as `run` leaves it, with every kind of output that is welcome."""
    table = "<table><tr><td>see https://example.org</td></tr></table><script type='application/json'>[\"https://example.org\"]</script>"
    script = "<script>// draws\nconst ns = 'http://www.w3.org/2000/svg'</script><a href='#top'>up</a>"
    cells = [
        new_markdown_cell("# A title\n\n[a link](https://example.org)"),
        new_code_cell("1 + 1", execution_count=1, outputs=[new_output("execute_result", {"text/plain": "2"}, execution_count=1)]),
        new_code_cell("show()", execution_count=2, outputs=[page(text_html=table + script), page(text_html="and/or")]),
        new_code_cell("steps()", execution_count=3, outputs=[new_output("stream", name="stderr", text="100%|####| 3/3\n")]),
        new_code_cell("raise", execution_count=4, metadata={"tags": ["raises-exception"]}, outputs=[new_output("error", ename="E", evalue="e", traceback=["e"])]),
        new_code_cell(""),
        new_markdown_cell("the same"),
        new_markdown_cell("the same"),
    ]  # fmt: skip
    return tidy(new_notebook(cells=cells))


def test_the_good_notebook_passes():
    assert faults(good()) == []


def put(output, cell=1):
    """A change that gives a code cell this output too."""
    return lambda notebook: notebook.cells[cell].outputs.append(nbformat.from_dict(output))


def set_count(cell, count):
    return lambda notebook: notebook.cells[cell].update(execution_count=count)


BAD = {
    "widget state": (lambda n: n.metadata.update(widgets={"state": {}}), "metadata.widgets"),
    "another kernel": (lambda n: n.metadata.kernelspec.update(name="conda-env"), "common kernelspec"),
    "version of Python": (lambda n: n.metadata.language_info.update(version="3.11.7"), "common kernelspec"),
    "metadata of a tool": (lambda n: n.metadata.update(vscode={}), "common kernelspec"),
    "cell timing": (lambda n: n.cells[1].metadata.update(execution={}), "metadata 'execution' was left by a tool"),
    "random id": (lambda n: n.cells[0].update(id="3f2a9c1e"), "id '3f2a9c1e' does not follow from its source"),
    "source changed": (lambda n: n.cells[1].update(source="1 + 2"), "does not follow from its source"),
    "not run": (set_count(2, None), "execution count is None, not 2"),
    "run twice": (set_count(3, 7), "execution count is 7, not 3"),
    "run out of order": (lambda n: (set_count(1, 2)(n), set_count(2, 1)(n)), "execution count is 2, not 1"),
    "error": (put(new_output("error", ename="KeyError", evalue="x", traceback=[])), "output is an error: KeyError: x"),
    "widget view": (put(new_output("display_data", {WIDGET: {"model_id": "0"}, "text/html": "<b>b</b>"})), "widget view"),
    "too large": (put(page(text_html="x" * MAX_OUTPUT)), "bytes; 300,000 are allowed"),
    "script from a network": (put(page(text_html='<script src="https://cdn.example/x.js"></script>')), "external address"),
    "script without a scheme": (put(page(text_html='<script src="//cdn.example/x.js"></script>')), "external address"),
    "import in a script": (put(page(text_html="<script type=module>import x from 'https://esm.example/x'</script>")), "external address"),
    "font in a style": (put(page(text_html="<style>p { background: url(//cdn.example/x.png) }</style>")), "external address"),
    "javascript output": (put(page(application_javascript="fetch('http://example.org')")), "application/javascript output names"),
    "picture in an svg": (put(new_output("display_data", {"image/svg+xml": "<image href='https://example.org/x.png'/>"})), "svg+xml output names"),
    "home in a print": (put(new_output("stream", name="stdout", text=f"read {HOME}/x/model\n")), "path of the machine"),
    "home alone in a print": (put(new_output("stream", name="stdout", text=f"cwd: {HOME}\n")), "path of the machine"),
    "folder in a table": (put(page(text_html="<td>" + "/" + "work/main</td>")), "path of the machine"),
    "temporary folder in data": (put(new_output("display_data", {"application/json": {"at": "/" + "tmp/x"}})), "path of the machine"),
    "folder of Windows": (put(new_output("stream", name="stdout", text="C:\\Users\\me\\x\n")), "path of the machine"),
    "states of a progress bar": (put(new_output("stream", name="stderr", text="\r 0%\r50%\r100%\n")), "every state of a progress bar"),
}  # fmt: skip


@pytest.mark.parametrize("name", BAD)
def test_each_rule_refuses(name):
    change, message = BAD[name]
    notebook = copy.deepcopy(good())
    change(notebook)
    found = faults(notebook)
    assert any(message in fault for fault in found), found
    assert len(found) <= 2, found  # the rule and no other ("run out of order" is two cells)
