"""A Sudoku board as a figure: clues, what was written, what is wrong. Used by notebook 09."""

from __future__ import annotations

import html
from collections.abc import Sequence

from ..labs.sudoku.data import BOXES, side_of
from .figures import Figure

_SIZE = "width:30px;height:26px;padding:0;text-align:center;font-size:15px"


def board(
    clues: Sequence[int],
    written: Sequence[int] | None = None,
    solution: Sequence[int] | None = None,
    *,
    title: str = "",
) -> Figure:
    """Clues are underlined; a written digit that differs from the solution has ✗ behind it.

    An empty cell is a dot.

    clues, written, solution: n * n digits, 0 for empty; `written` counts where there is no clue.
    """
    n = side_of(clues)
    for name, grid in (("written", written), ("solution", solution)):
        if grid is not None and len(grid) != len(clues):
            raise ValueError(f"{name}: got {len(grid)} cells, takes {len(clues)}, as many as clues")
    high, wide = BOXES[n]
    rows, lines = [], []
    for r in range(n):
        cells, words = [], []
        for c in range(n):
            i = r * n + c
            mark, said = _cell(
                clues[i], written[i] if written else 0, solution[i] if solution else None
            )
            below, beside = (
                2 if (k + 1) % size == 0 else 0.5 for k, size in ((r, high), (c, wide))
            )
            edges = f"border-right:{beside}px solid #777;border-bottom:{below}px solid #777"
            edges += (
                f";border-top:{2 if r == 0 else 0}px solid #777;"
                f"border-left:{2 if c == 0 else 0}px solid #777"
            )
            cells.append(f'<td style="{_SIZE};{edges}">{mark}</td>')
            words.append(said)
        rows.append(f"<tr>{''.join(cells)}</tr>")
        lines.append(" ".join(f"{word:<2}" for word in words).rstrip())
    heading = f'<div style="margin:0 0 4px 0"><b>{html.escape(title)}</b></div>' if title else ""
    table = f'<table style="border-collapse:collapse">{"".join(rows)}</table>'
    return Figure(heading + table, "\n".join([title, *lines] if title else lines))


def _cell(clue: int, written: int, right: int | None) -> tuple[str, str]:
    """The cell in HTML and in words."""
    if clue:
        return f"<u><b>{clue}</b></u>", f"{clue}_"
    if not written:
        return "·", "·"
    wrong = right is not None and written != right
    return f"{written}{'✗' if wrong else ''}", f"{written}{'x' if wrong else ''}"
