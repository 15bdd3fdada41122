"""Runs a notebook in a fresh kernel and removes what a reader cannot use or what differs from run
to run.
"""

from __future__ import annotations

import hashlib
import os
import re
import sys
import tempfile
from collections.abc import Iterator
from itertools import takewhile
from pathlib import Path

import nbformat
from nbformat import NotebookNode

ROOT = Path(__file__).resolve().parents[2]
NOTEBOOKS = ROOT / "notebooks"
WIDGET = "application/vnd.jupyter.widget-view+json"
METADATA = {
    "kernelspec": {"display_name": "Python 3 (ipykernel)", "language": "python", "name": "python3"},
    "language_info": {
        "file_extension": ".py",
        "mimetype": "text/x-python",
        "name": "python",
        "pygments_lexer": "ipython3",
    },
}
# what an author writes; the rest is left behind by tools
CELL_METADATA = {"tags", "slideshow", "jupyter"}
TERMINAL = re.compile(r"\x1b\[[0-9;?]*[A-HJKSTfhl]")  # cursor movements; colours stay


def find(names: list[str], folder: Path = NOTEBOOKS) -> list[Path]:
    """The notebooks the names stand for, all of the folder's where there are none.

    ValueError names what matches nothing.
    """
    every = sorted(folder.glob("*.ipynb"))
    chosen: list[Path] = []
    for name in names:
        path = Path(name)
        matches = (
            [path]
            if path.suffix == ".ipynb" and path.is_file()
            else [p for p in every if p.name.startswith(name)]
        )
        if not matches:
            raise ValueError(
                f"names: {name!r} is no notebook; "
                f"take a path or one of {', '.join(p.stem for p in every)}"
            )
        chosen += matches
    return chosen if names else every


def code_cells(notebook: NotebookNode) -> Iterator[NotebookNode]:
    return (cell for cell in notebook.cells if cell.cell_type == "code")


def execute(path: Path, timeout: float = 600) -> NotebookNode:
    """The notebook with the outputs of a fresh kernel, run in its own folder; `timeout` is seconds
    per cell. Raises at the first cell that fails, and then nothing has been written."""
    from nbclient import NotebookClient

    notebook = nbformat.read(str(path), as_version=4)
    for cell in code_cells(notebook):
        cell.outputs, cell.execution_count = [], None
    NotebookClient(
        notebook,
        timeout=timeout,
        kernel_name="python3",
        store_widget_state=False,
        record_timing=False,
        resources={"metadata": {"path": str(path.parent)}},
    ).execute()
    return notebook


def cell_ids(notebook: NotebookNode) -> list[str]:
    """One id per cell from its source alone; a repeated source is numbered."""
    stems = [
        hashlib.sha256(f"{cell.cell_type}\n{cell.source}".encode()).hexdigest()[:8]
        for cell in notebook.cells
    ]
    copies = [stems[:place].count(stem) for place, stem in enumerate(stems)]
    return [f"{stem}-{copy}" if copy else stem for stem, copy in zip(stems, copies, strict=True)]


def tidy(notebook: NotebookNode) -> NotebookNode:
    """Changes the notebook in place.

    Common metadata, ids from the sources, no widget views, no paths of this machine.
    """
    kept = {key: notebook.metadata[key] for key in ("title",) if key in notebook.metadata}
    notebook.metadata = nbformat.from_dict(METADATA | kept)
    notebook.nbformat, notebook.nbformat_minor = 4, 5
    for cell, name in zip(notebook.cells, cell_ids(notebook), strict=True):
        cell.id = name
        cell.metadata = nbformat.from_dict(
            {k: v for k, v in cell.metadata.items() if k in CELL_METADATA}
        )
    for cell in code_cells(notebook):
        cell.outputs = [
            tidy_output(output) for output in merged(cell.outputs) if not only_widget(output)
        ]
    return notebook


def merged(outputs: list[NotebookNode]) -> list[NotebookNode]:
    """Of streams that follow each other, one per name.

    Where a kernel cuts and interleaves them is a matter of timing.
    """
    result: list[NotebookNode] = []
    for output in outputs:
        before = takewhile(lambda earlier: earlier.output_type == "stream", reversed(result))
        same = next((earlier for earlier in before if earlier.name == output.get("name")), None)
        if same is None or output.output_type != "stream":
            result.append(output)
        else:
            same.text += output.text
    return result


def only_widget(output: NotebookNode) -> bool:
    """A widget without a static twin.

    Reopened it would be an error message, or a progress bar at 0%.
    """
    data = output.get("data", {})
    return WIDGET in data and set(data) <= {WIDGET, "text/plain"}


def tidy_output(output: NotebookNode) -> NotebookNode:
    if output.output_type == "stream":
        output.text = hide_paths(last_lines(output.text))
    elif output.output_type == "error":
        output.evalue = hide_paths(output.evalue)
        output.traceback = [hide_paths(line) for line in output.traceback]
    else:
        output.data.pop(WIDGET, None)
        for kind, value in output.data.items():
            if isinstance(value, str) and is_text(kind):
                output.data[kind] = hide_paths(value)
    return output


def is_text(kind: str) -> bool:
    """Whether an output of this MIME type is read as characters rather than as base64."""
    return kind == "image/svg+xml" or not kind.startswith(("image/", "audio/", "video/"))


def last_lines(text: str) -> str:
    """What a terminal shows at the end.

    Of a line that was drawn over and over (a progress bar), the last drawing.
    """
    lines = TERMINAL.sub("", text).replace("\r\n", "\n").split("\n")
    return "\n".join(
        next((part for part in reversed(line.split("\r")) if part.strip()), "") for line in lines
    )


def hide_paths(text: str) -> str:
    """The folders of this machine by what they are.

    The repository, the environment, the temporary folder, the home.
    """
    text = re.sub(r"[^\s\"'<>]*ipykernel_\d+[\\/]+\d+\.py", "cell.py", text)
    places = {"~/diffgemma_lite": ROOT, "~/temporary": tempfile.gettempdir(), "~": Path.home()}
    # an environment; a Python of the system may be in a folder like /usr
    if sys.prefix != sys.base_prefix:
        places["~/python"] = sys.prefix
    names = {
        form(place): name for name, place in places.items() for form in (str, os.path.realpath)
    }
    for place in sorted(names, key=len, reverse=True):  # a folder before the one it lies in
        if len(place) > 1:
            text = re.sub(
                re.escape(place) + r"(?![\w-]|\.\w)", lambda _, name=names[place]: name, text
            )
    return text
