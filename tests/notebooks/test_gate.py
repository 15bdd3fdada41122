"""Every notebook of the course may be committed, and each rule of the gate refuses a made-up
notebook that breaks it.
"""

from __future__ import annotations

import copy

import nbformat
import pytest
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook, new_output

from diffgemma_lite.course.execute import NOTEBOOKS, WIDGET, tidy
from diffgemma_lite.course.gate import MAX_OUTPUT, PLOTLY, faults

COURSE = sorted(NOTEBOOKS.glob("*.ipynb"))
MACHINE = "path of the machine"
HOME = "/" + "root"  # in pieces: no file of this repository names a machine's folder


@pytest.mark.parametrize("path", COURSE, ids=lambda path: path.stem)
def test_a_notebook_of_the_course_may_be_committed(path):
    assert not faults(nbformat.read(str(path), as_version=4))


def page(markup: object, kind: str = "text/html"):
    return new_output("display_data", data={"text/plain": "<view>", kind: markup})


def printed(text: str):
    return new_output("stream", name="stdout", text=text)


def good():
    """A notebook as `run` leaves it, with every kind of output that is welcome."""
    table = "<table><tr><td>see https://example.org</td></tr></table>"
    data = "<script type='application/json'>[\"https://example.org\"]</script>"
    script = (
        "<script>// draws\nconst ns = 'http://www.w3.org/2000/svg'</script><a href='#top'>up</a>"
    )
    two = new_output("execute_result", {"text/plain": "2"}, execution_count=1)
    error = new_output("error", ename="E", evalue="e", traceback=["e"])
    cells = [
        new_markdown_cell("# A title\n\n[a link](https://example.org)"),
        new_code_cell("1 + 1", execution_count=1, outputs=[two]),
        new_code_cell(
            "show()", execution_count=2, outputs=[page(table + data + script), page("and/or")]
        ),
        new_code_cell("steps()", execution_count=3, outputs=[printed("100%|####| 3/3\n")]),
        new_code_cell(
            "raise", execution_count=4, metadata={"tags": ["raises-exception"]}, outputs=[error]
        ),
        new_code_cell(""),
        new_markdown_cell("the same"),
        new_markdown_cell("the same"),
    ]
    return tidy(new_notebook(cells=cells))


def test_the_good_notebook_passes():
    assert faults(good()) == []


def put(output, cell=1):
    """A change that gives a code cell this output too."""
    return lambda notebook: notebook.cells[cell].outputs.append(nbformat.from_dict(output))


def set_count(cell, count):
    return lambda notebook: notebook.cells[cell].update(execution_count=count)


def set_source(cell, source):
    """A change of a code cell's source, tidied: no other rule is broken."""
    return lambda notebook: (notebook.cells[cell].update(source=source), tidy(notebook))


BAD = {
    "widget state": (lambda n: n.metadata.update(widgets={"state": {}}), "metadata.widgets"),
    "another kernel": (lambda n: n.metadata.kernelspec.update(name="conda-env"),
                       "common kernelspec"),
    "version of Python": (lambda n: n.metadata.language_info.update(version="3.11.7"),
                          "common kernelspec"),
    "metadata of a tool": (lambda n: n.metadata.update(vscode={}), "common kernelspec"),
    "cell timing": (lambda n: n.cells[1].metadata.update(execution={}),
                    "metadata 'execution' was left by a tool"),
    "random id": (lambda n: n.cells[0].update(id="3f2a9c1e"),
                  "id '3f2a9c1e' does not follow from its source"),
    "source changed": (lambda n: n.cells[1].update(source="1 + 2"),
                       "does not follow from its source"),
    "not run": (set_count(2, None), "execution count is None, not 2"),
    "run twice": (set_count(3, 7), "execution count is 7, not 3"),
    "run out of order": (lambda n: (set_count(1, 2)(n), set_count(2, 1)(n)),
                         "execution count is 2, not 1"),
    "error": (put(new_output("error", ename="KeyError", evalue="x", traceback=[])),
              "output is an error: KeyError: x"),
    "widget view": (put(page("<b>b</b>") | {"data": {WIDGET: {"model_id": "0"}}}), "widget view"),
    "figure without a picture": (put(page({"data": [], "layout": {}}, PLOTLY)),
                                 "figure without a picture"),
    "too large": (put(page("x" * MAX_OUTPUT)), "bytes; 300,000 are allowed"),
    "script of a network": (put(page('<script src="https://cdn.example/x.js"></script>')),
                            "external address"),
    "script without a scheme": (put(page('<script src="//cdn.example/x.js"></script>')),
                                "external address"),
    "import in a script": (put(page("<script>import x from 'https://esm.example/x'</script>")),
                           "external address"),
    "picture in a style": (put(page("<style>p { background: url(//cdn.example/x.png) }</style>")),
                           "external address"),
    "javascript": (put(page("fetch('http://example.org')", "application/javascript")),
                   "javascript output names"),
    "picture in an svg": (put(page("<image href='https://example.org/x.png'/>", "image/svg+xml")),
                          "svg+xml output names"),
    "home in a print": (put(printed(f"read {HOME}/x/model\n")), MACHINE),
    "home alone in a print": (put(printed(f"cwd: {HOME}\n")), MACHINE),
    "folder in a table": (put(page("<td>" + "/" + "work/main</td>")), MACHINE),
    "temporary folder in data": (put(page({"at": "/" + "tmp/x"}, "application/json")), MACHINE),
    "folder of Windows": (put(printed("C:\\Users\\me\\x\n")), MACHINE),
    "wide line": (set_source(1, "x = 1\ny = " + "1 + " * 22 + "1"),
                  "line 2 is 93 columns wide; 88 are allowed"),
    "long cell": (set_source(1, "\n".join(["1 + 1"] * 16)), "16 lines; 15 are allowed"),
    "states of a progress bar": (put(printed("\r 0%\r50%\r100%\n")),
                                 "every state of a progress bar"),
}  # fmt: skip


@pytest.mark.parametrize("name", BAD)
def test_each_rule_refuses(name):
    change, message = BAD[name]
    notebook = copy.deepcopy(good())
    change(notebook)
    found = faults(notebook)
    assert any(message in fault for fault in found), found
    assert len(found) <= 2, found  # the rule and no other ("run out of order" is two cells)
