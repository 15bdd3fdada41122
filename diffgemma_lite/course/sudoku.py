"""A Sudoku board as a figure: clues, what was written, what is wrong; and recorded training in few
steps, by limit, stage and family. Used by notebook 09.
"""

from __future__ import annotations

import html
from collections.abc import Sequence

from ..labs.scores import percent
from ..labs.sudoku.data import BOXES, side_of
from .chart import chart
from .figures import Figure, table

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


def by_limit(scored: dict, stages: Sequence[str], title: str) -> Figure:
    """Right answers against the steps allowed, a line for each stage that was recorded."""
    lines = {
        stage: [
            tuple(row["right"][key] for key in ("share", "low", "high"))
            for row in scored[stage]["curve"]
        ]
        for stage in stages
        if stage in scored
    }
    allowed = [row["limit"] for row in scored["before"]["curve"]]
    names = {"x_name": "denoising steps allowed", "y_name": "right"}
    return chart(allowed, lines, digits=2, title=title, **names)


def by_stage(scored: dict, stages: Sequence[str]) -> Figure:
    """What each recorded stage reaches at the largest number of steps: right, steps, variety."""
    rows = []
    for stage in stages:
        if stage in scored:
            last, variety = scored[stage]["curve"][-1], scored[stage]["variety"]
            varied = "–" if variety is None else f"{variety:.2f}"
            rows.append((stage, percent(last["right"], 1), f"{last['steps']:.2f}", varied))
    note = (
        f"At most {scored['before']['curve'][-1]['limit']} steps, adaptive stop. Variety:"
        " different answers among the right ones to one question."
    )
    return table(["stage", "right", "steps", "variety"], rows, note=note)


def by_family(part: dict) -> Figure:
    """The families of records, each with what was valid and the steps it took."""
    rows = [(f, percent(x["valid"], 1), f"{x['passes']:.2f}") for f, x in part["found"].items()]
    title = f"Recorded: {part['stage']}, at most {part['limit']} steps"
    return table(["family", "valid", "steps"], rows, title=title)
