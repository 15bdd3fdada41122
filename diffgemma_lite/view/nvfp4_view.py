"""Blocks of sixteen weights on the number line of their codes.

Chosen from a heat map of errors, or under a growing outlier.

It shows what a BlockRecord says and computes nothing. Like the player it is a progressive output:
the static part below is complete by itself, then nvfp4.js takes its place. Walked through in
notebook 10.
"""

from __future__ import annotations

import base64
import html

import numpy as np

from ..nvfp4.codes import E2M1
from .host import OutputView, progressive_html
from .nvfp4_record import BlockFrame, BlockRecord
from .static import RAMP, SHADES, palette, png, visible_title


def block_view(record: BlockRecord, *, title: str | None = None, note: str = "") -> OutputView:
    """A record as a notebook output: heat map or slider, number line, table of the sixteen.

    Tables where scripts are off.
    """
    if not isinstance(record, BlockRecord):
        raise ValueError(
            f"record: got {type(record).__name__}, "
            "takes a BlockRecord (block_map or outlier_frames make one)"
        )
    title = title or record.name
    html_text = progressive_html(
        static_part(record, title, note), payload(record, title, note), "nvfp4"
    )
    words = (
        f"<{title}: {len(record.frames)} {'blocks' if record.shape else 'sizes of an outlier'} of "
        f"{record.name}>"
    )
    return OutputView(html_text, words)


def payload(record: BlockRecord, title: str, note: str = "") -> dict:
    """What the module gets as `data`."""
    frames = [
        {
            "label": f.label,
            "weights": _short(f.weights),
            "codes": f.codes,
            "values": _short(f.values),
            "error": f.error,
            "scales": [f.block_scale, f.tensor_scale],
            "neighbours": f.neighbours,
        }
        for f in record.frames
    ]
    return {
        "title": title,
        "note": note,
        "name": record.name,
        "frames": frames,
        "shape": record.shape,
        "numbers": E2M1,
        "outlier": record.outlier,
        "ramp": RAMP,
        "first": first_shown(record),
    }


def first_shown(record: BlockRecord) -> int:
    """The block in the middle of the errors; the outlier as it was."""
    if record.shape is None:
        return 0
    return sorted(range(len(record.frames)), key=lambda i: record.frames[i].error)[
        len(record.frames) // 2
    ]


def _short(values) -> list[float]:
    return [float(f"{v:.5g}") for v in values]


def picture(record: BlockRecord) -> bytes:
    """The heat map: rows of the weight across, blocks of a row down.

    Light is a small error, dark the largest.
    """
    rows, blocks = record.shape
    errors = np.array([f.error for f in record.frames]).reshape(rows, blocks).T
    shade = np.rint(errors / max(errors.max(), 1e-12) * (SHADES - 1)).astype(np.uint8)
    return png(shade.repeat(12, 0).repeat(max(2, 640 // rows), 1), palette())


def static_part(record: BlockRecord, title: str, note: str) -> str:
    """The complete view without a script."""
    first = first_shown(record)
    parts = [f"<p><b>{html.escape(visible_title(title))}</b></p>"]
    if record.shape:
        rows, blocks = record.shape
        worst = max(f.error for f in record.frames)
        words = (
            f"Error of each block: {rows} rows across, {blocks} blocks of a row down; "
            f"darkest {worst:.1%} of its size."
        )
        image = base64.b64encode(picture(record)).decode("ascii")
        parts.append(
            f'<p>{words}</p><p><img alt="{words}" src="data:image/png;base64,{image}"></p>'
            f"{_extremes(record)}"
        )
    else:
        parts.append(_growing(record))
    for i in [first] if record.shape else [0, len(record.frames) - 1]:
        parts.append(
            f"<p>{html.escape(_sentence(record.frames[i]))}</p>{_sixteen(record, record.frames[i])}"
        )
    return "".join(parts) + (f"<p>{html.escape(visible_title(note))}</p>" if note else "")


def _sentence(f: BlockFrame) -> str:
    scale = f.block_scale * f.tensor_scale
    return (
        f"{f.label}: a code is worth {scale:.5g} = {f.block_scale:g} x {f.tensor_scale:.5g}; "
        f"error {f.error:.1%}"
    )


def _row(cells, tag: str = "td") -> str:
    return f"<tr>{''.join(f'<{tag}>{html.escape(str(c))}</{tag}>' for c in cells)}</tr>"


def _sixteen(record: BlockRecord, f: BlockFrame) -> str:
    """One line a weight: number, in units of the scale, code in bits, what it stands for, what was
    lost.
    """
    scale, lines = f.block_scale * f.tensor_scale, []
    for i, (w, code, value) in enumerate(zip(f.weights, f.codes, f.values, strict=True)):
        mark = " (outlier)" if i == record.outlier else ""
        numbers = [
            f"{w:.5f}",
            f"{w / scale:.2f}",
            f"{code:04b}",
            f"{value:.5f}",
            f"{value - w:+.5f}",
        ]
        lines.append(_row([f"{i}{mark}", *numbers]))
    head = _row(["", "weight", "over the scale", "code", "stands for", "error"], "th")
    return f"<table>{head}{''.join(lines)}</table>"


def _extremes(record: BlockRecord) -> str:
    order = sorted(record.frames, key=lambda f: f.error)
    named = [("least", order[0]), ("middle", order[len(order) // 2]), ("most", order[-1])]
    lines = [_row([name, f.label, f"{f.error:.1%}", f"{f.block_scale:g}"]) for name, f in named]
    head = _row(["error", "block", "share of its size", "block scale"], "th")
    return f"<table>{head}{''.join(lines)}</table>"


def _growing(record: BlockRecord) -> str:
    lines = []
    for f in record.frames:
        zeros = sum(code % 8 == 0 for i, code in enumerate(f.codes) if i != record.outlier)
        lines.append(
            _row(
                [
                    f.label,
                    f"{f.weights[record.outlier]:.4f}",
                    f"{f.block_scale:g}",
                    f"{f.neighbours:.1%}",
                    zeros,
                ]
            )
        )
    head = ["outlier", "its weight", "block scale", "error of the fifteen others", "of them zero"]
    return f"<table>{_row(head, 'th')}{''.join(lines)}</table>"
