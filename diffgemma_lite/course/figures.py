"""Figures made of tables, and the palette of the course. Used by every notebook, walked by none.

A figure here is an HTML table whose symbols carry every fact and whose colours only repeat them.
Such a table survives where scripts, styles and svg do not: in an untrusted notebook, on a
code-hosting page, in print. Nothing in this file computes a quantity of the model; `source` shows
the package's code as it runs, so that no notebook holds a copy of it.
"""

from __future__ import annotations

import html
import inspect
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

import torch
from jaxtyping import Bool
from torch import Tensor

from ..attention import Mask

# One colour per axis, in every notebook; they stay apart when a kind of cone is missing (tested),
# and no fact hangs on them.
PALETTE = {
    "prefix": "#0072b2",
    "window": "#56b4e9",
    "canvas": "#e69f00",
    "encoder": "#009e73",
    "decoder": "#882255",
}
SEEN, UNSEEN = "■", "·"
_CELL = (
    "width:17px;min-width:17px;height:17px;padding:0;text-align:center;line-height:17px;"
    "font-size:11px"
)


@dataclass(frozen=True)
class Figure:
    """A table to look at (html), and the same as plain text where no HTML is shown."""

    html: str
    text: str

    def _repr_html_(self) -> str:
        return self.html

    def __repr__(self) -> str:
        return self.text


def ink(background: str) -> str:
    """Black or white, whichever has more contrast on a colour like "#0072b2" (WCAG luminance)."""
    channels = [int(background[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [v / 12.92 if v <= 0.04045 else ((v + 0.055) / 1.055) ** 2.4 for v in channels]
    luminance = sum(share * v for share, v in zip((0.2126, 0.7152, 0.0722), linear, strict=True))
    return "#000" if (luminance + 0.05) ** 2 > 1.05 * 0.05 else "#fff"


def _paint(role: str | None) -> str:
    if role is None:
        return "background-color:transparent"
    if role not in PALETTE:
        raise ValueError(f"role: got {role!r}, takes one of {', '.join(PALETTE)}")
    return f"background-color:{PALETTE[role]};color:{ink(PALETTE[role])}"


def _td(
    text: object, role: str | None = None, style: str = "", tag: str = "td", span: int = 1
) -> str:
    wide = f' colspan="{span}"' if span > 1 else ""
    return f'<{tag}{wide} style="{style};{_paint(role)}">{html.escape(str(text))}</{tag}>'


def _framed(title: str, body: str, note: str) -> str:
    parts = [f"<b>{html.escape(title)}</b>" if title else "", body, html.escape(note)]
    return "".join(f'<div style="margin:0 0 4px 0">{part}</div>' for part in parts if part)


def grid(
    marks: Bool[Tensor, "rows columns"] | Sequence[Sequence[str]],
    *,
    rows: Sequence[str],
    columns: Sequence[str],
    title: str = "",
    note: str = "",
    names: Sequence[object] | None = None,
    cells: str | None = None,
) -> Figure:
    """A matrix of marks, one small cell each: True is ■, False is ·, a string is itself.

    rows, columns: the role (a name of PALETTE) of each row and column; a run of columns with one
    role is headed by its name. Marked cells take their column's colour, or that of the role
    `cells`. names: row labels, else their numbers.
    """
    marks = [
        [SEEN if m is True else UNSEEN if m is False else m for m in row] for row in _lists(marks)
    ]
    if len(marks) != len(rows) or any(len(row) != len(columns) for row in marks):
        raise ValueError(
            f"marks: got {len(marks)} x {len(marks[0])}, "
            f"takes {len(rows)} rows x {len(columns)} columns"
        )
    names = list(range(len(rows))) if names is None else list(names)
    groups = [(role, len(list(run))) for role, run in groupby(columns)]
    head = "".join(
        _td(role, role, "text-align:center;padding:1px 3px;font-size:11px", "th", n)
        for role, n in groups
    )
    numbers = "".join(_td(i, None, _CELL, "th") for i in range(len(columns)))
    label = "text-align:right;padding:0 5px;font-size:11px;line-height:17px;white-space:nowrap"
    lines = [
        f"<tr>{_td('', None, label, 'th')}{head}</tr><tr>{_td('', None, label, 'th')}{numbers}</tr>"
    ]
    for name, role, row in zip(names, rows, marks, strict=True):
        painted = [
            _td(m, None if m == UNSEEN else cells or column, _CELL)
            for m, column in zip(row, columns, strict=True)
        ]
        lines.append(f"<tr>{_td(name, role, label, 'th')}{''.join(painted)}</tr>")
    body = (
        '<table style="border-collapse:separate;border-spacing:1px;margin:2px 0">'
        f"{''.join(lines)}</table>"
    )
    width = max(len(str(name)) for name in names)
    over = " ".join(f"{role[: 2 * n - 1]:<{2 * n - 1}}" for role, n in groups)
    text = [
        title,
        f"{'':{width}} {over}",
        *(f"{name!s:>{width}} {' '.join(row)}" for name, row in zip(names, marks, strict=True)),
    ]
    return Figure(
        _framed(title, body, note), "\n".join(line.rstrip() for line in [*text, note] if line)
    )


def _lists(marks) -> list[list]:
    return marks.tolist() if isinstance(marks, Tensor) else [list(row) for row in marks]


def table(
    header: Sequence[str],
    rows: Sequence[Sequence[object]],
    *,
    title: str = "",
    note: str = "",
    roles: Mapping[str, str] | None = None,
) -> Figure:
    """Facts in rows.

    `roles` maps a header or a value of the first column to the role whose colour it wears.
    """
    roles = roles or {}
    cell = "text-align:left;padding:3px 10px;vertical-align:top"
    lines = [f"<tr>{''.join(_td(h, roles.get(h), cell, 'th') for h in header)}</tr>"]
    for first, *others in rows:
        name = _td(first, roles.get(str(first)), cell, "th")
        lines.append(f"<tr>{name}{''.join(_td(o, None, cell) for o in others)}</tr>")
    body = f'<table style="margin:2px 0">{"".join(lines)}</table>'
    everything = [[str(value) for value in row] for row in [header, *rows]]
    widths = [max(len(row[i]) for row in everything) for i in range(len(header))]
    text = [
        "  ".join(f"{value:<{w}}" for value, w in zip(row, widths, strict=True)).rstrip()
        for row in everything
    ]
    return Figure(
        _framed(title, body, note), "\n".join(line for line in [title, *text, note] if line)
    )


def beside(*figures: Figure) -> Figure:
    """Figures in one output, side by side where the page is wide enough."""
    style = "display:inline-block;vertical-align:top;margin:0 28px 8px 0"
    return Figure(
        "".join(f'<div style="{style}">{f.html}</div>' for f in figures),
        "\n\n".join(f.text for f in figures),
    )


def seen(mask: Mask, queries: int, keys: int) -> Bool[Tensor, "queries keys"]:
    """What a `Mask` lets each query look at, over all keys.

    The prefix from position 0 on, then the pass's own tokens.
    """
    full = torch.zeros(queries, keys, dtype=torch.bool)
    if mask.allowed is not None:
        full[:, mask.first :] = mask.allowed[0, 0].cpu()
    else:
        full[:, mask.first :] = True
        if mask.causal:
            full = full.tril(keys - queries)
    return full


@dataclass(frozen=True)
class Source:
    """A piece of the package's own code, coloured like the reader's editor where a theme offers its
    colours.
    """

    where: str
    code: str

    def _repr_html_(self) -> str:
        from pygments import lex
        from pygments.lexers import PythonLexer

        pieces = []
        for kind, text in lex(self.code, PythonLexer()):
            name = next(
                (name for token, name in _EDITOR.items() if str(kind).startswith(token)), None
            )
            style = f' style="color:var(--jp-mirror-editor-{name}-color)"' if name else ""
            pieces.append(f"<span{style}>{html.escape(text)}</span>" if name else html.escape(text))
        code = f'<pre style="{_PRE}">{"".join(pieces).rstrip()}</pre>'
        return _framed("", f"<i>{html.escape(self.where)}</i>", "") + code

    def __repr__(self) -> str:
        return f"# {self.where}\n{self.code}"


_PRE = (
    "margin:2px 0 8px 0;font-family:monospace;font-size:12px;line-height:1.4;overflow-x:auto;"
    "white-space:pre"
)
_EDITOR = {
    "Token.Keyword": "keyword",
    "Token.Operator.Word": "keyword",
    "Token.Literal.String": "string",
    "Token.Literal.Number": "number",
    "Token.Comment": "comment",
}


def source(thing: Any, first: str = "", last: str = "") -> Source:
    """The code of a function or class as it runs.

    From the line that holds `first` to the next that holds `last`.

    Errors: ValueError when the code has no such line, so that a notebook cannot show what is no
    longer there.
    """
    lines = inspect.getsource(thing).splitlines()
    start = _line(lines, first, 0, "first") if first else 0
    stop = _line(lines, last, start, "last") + 1 if last else len(lines)
    piece = textwrap.dedent("\n".join(lines[start:stop])).rstrip()
    file = thing.__module__.removeprefix("diffgemma_lite.").replace(".", "/") + ".py"
    return Source(f"{file}: {thing.__qualname__}", piece)


def _line(lines: list[str], text: str, start: int, name: str) -> int:
    found = [i for i in range(start, len(lines)) if text in lines[i]]
    if not found:
        raise ValueError(f"{name}: no line of {lines[0].strip()!r} holds {text!r}")
    return found[0]
