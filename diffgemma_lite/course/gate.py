"""What keeps a notebook from being committed: each rule is here once, and a test shows each one
refusing something.
"""

from __future__ import annotations

import json
import re
from html.parser import HTMLParser

from nbformat import NotebookNode

from .execute import CELL_METADATA, METADATA, WIDGET, cell_ids, is_text

MAX_OUTPUT = 300_000  # bytes of JSON one output may take
MAX_COLUMNS, MAX_LINES = 88, 15  # of a code cell: a laptop's width, and one idea
PLOTLY, PNG = "application/vnd.plotly.v1+json", "image/png"
MACHINE_PATH = re.compile(
    r"(?<![\w.~+/=-])/(?:home|root|Users|tmp|work|private|var/folders)(?:/|(?=['\"<\n]|$))|\b[A-Za-z]:\\+Users\\",
    re.MULTILINE,
)
ADDRESS = re.compile(
    r"(?:\b(?:https?|wss?|ftp):\\?/\\?/|^\s*//|url\(\s*['\"]?//)(?!www\.w3\.org/)", re.IGNORECASE
)


def faults(notebook: NotebookNode) -> list[str]:
    """Why the notebook may not be committed, one sentence per fault; empty when it may."""
    found = (
        ["metadata.widgets: the state of widgets is stored (run tidy)"]
        if "widgets" in notebook.metadata
        else []
    )
    others = set(notebook.metadata) - set(METADATA) - {"title", "widgets"}
    if others or any(notebook.metadata.get(key) != value for key, value in METADATA.items()):
        found.append("metadata: not the common kernelspec and language_info (run tidy)")
    number = 0
    for place, (cell, name) in enumerate(zip(notebook.cells, cell_ids(notebook), strict=True)):
        own = cell.get("id")
        problems = (
            [] if own == name else [f"its id {own!r} does not follow from its source (run tidy)"]
        )
        problems += [
            f"metadata {key!r} was left by a tool (run tidy)"
            for key in sorted(set(cell.metadata) - CELL_METADATA)
        ]
        if cell.cell_type == "code":
            number += bool(cell.source.strip())
            problems += code_faults(cell, number) + layout_faults(cell.source)
        first_line = (cell.source.strip().splitlines() or [""])[0][:40]
        found += [f"cell {place} ({first_line!r}): {problem}" for problem in problems]
    return found


def code_faults(cell: NotebookNode, number: int) -> list[str]:
    """The faults of a code cell that is the notebook's `number`-th with a source."""
    found = []
    if cell.source.strip() and cell.execution_count != number:
        found.append(
            f"execution count is {cell.execution_count}, not {number}: the notebook was not run from top to bottom"
        )
    for output in cell.outputs:
        if output.output_type == "error" and "raises-exception" not in cell.metadata.get(
            "tags", []
        ):
            found.append(f"output is an error: {output.ename}: {output.evalue}")
        found += output_faults(output)
    return found


def layout_faults(source: str) -> list[str]:
    """What does not fit the page of a reader: lines too wide, a cell too long."""
    lines = source.splitlines()
    found = [
        f"line {place} is {len(line)} columns wide; {MAX_COLUMNS} are allowed:"
        f" {line.strip()[:40]!r}"
        for place, line in enumerate(lines, 1)
        if len(line) > MAX_COLUMNS
    ]
    if len(lines) > MAX_LINES:
        found.append(
            f"{len(lines)} lines; {MAX_LINES} are allowed: cut it before line {MAX_LINES + 1},"
            " or move what only draws to diffgemma_lite.course"
        )
    return found


def output_faults(output: NotebookNode) -> list[str]:
    """What one output must not hold, wherever it stands."""
    data, found = output.get("data", {}), []
    if WIDGET in data:
        found.append("output holds a widget view, which a reader sees as an error (run tidy)")
    if PLOTLY in data and PNG not in data:
        found.append(
            "output holds a plotly figure without a picture, which no page or slide shows (run tidy)"
        )
    size = len(json.dumps(output, ensure_ascii=False).encode())
    if size > MAX_OUTPUT:
        found.append(f"output takes {size:,} bytes; {MAX_OUTPUT:,} are allowed")
    for kind in ("text/html", "image/svg+xml", "application/javascript"):
        for address in addresses(
            str(data.get(kind, "")), is_script=kind == "application/javascript"
        ):
            found.append(f"{kind} output names an external address: {address!r}")
    texts = [output.get("text", ""), output.get("evalue", ""), *output.get("traceback", [])]
    texts += [
        value if isinstance(value, str) else json.dumps(value)
        for kind, value in data.items()
        if is_text(kind)
    ]
    paths = sorted({match.group() for text in texts for match in MACHINE_PATH.finditer(text)})
    found += [f"output shows a path of the machine it was run on: {path}" for path in paths]
    if "\r" in output.get("text", "").replace("\r\n", ""):
        found.append("output holds every state of a progress bar (run tidy)")
    return found


class _Addresses(HTMLParser):
    """Collects what an attribute, a script or a style sheet points to. Text, and data that a script
    reads, may name anything: a model trained on prose writes addresses too."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []
        self.inside = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        for _, value in attrs:
            self.look(value or "")
        is_data = tag == "script" and "json" in (dict(attrs).get("type") or "")
        self.inside = tag if tag in ("script", "style") and not is_data else ""

    def handle_endtag(self, tag: str) -> None:
        self.inside = ""

    def handle_data(self, data: str) -> None:
        if self.inside:
            self.look(data, in_code=True)

    def look(self, text: str, in_code: bool = False) -> None:
        for match in ADDRESS.finditer(text):
            if not (in_code and match.group().strip() == "//"):  # a comment of JavaScript
                self.found.append(text[match.start() : match.start() + 60].strip())


def addresses(markup: str, is_script: bool = False) -> list[str]:
    """The addresses on another machine that an output would load or link to."""
    reader = _Addresses()
    if is_script:
        reader.look(markup, in_code=True)
    else:
        reader.feed(markup)
        reader.close()
    return reader.found
