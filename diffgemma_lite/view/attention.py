"""What a page holds of a trace's attention.

Which positions each one attends to most, for as many steps as there is room.

The page gets whole steps, evenly spaced from the first to the last, and says which; where not even
one step fits it keeps fewer positions of each. Read back by attention.js. Used by notebook 07.
"""

from __future__ import annotations

import html
from collections.abc import Iterator

import numpy as np

from ..trace import CanvasTrace, Trace
from .payload import PROBABILITY_STEPS, code, pack_planes, shifted
from .text import token_text

NAMED_PROMPT = 512  # tokens; of a longer prompt only those that are attended to are named
STATIC_LAYERS = 4  # of a deeper model the table shows the first, the last and two between


def has_attention(trace: Trace, row: int) -> bool:
    return any(c.steps[row] > 0 and c.attended is not None for c in trace.canvases)


def kept_steps(n: int, count: int) -> list[int]:
    """`count` of the steps 0 .. n - 1, evenly spaced.

    The last one always, and the first if there are two.
    """
    return sorted({round(i) for i in np.linspace(0, n - 1, count)}) if count > 1 else [n - 1]


def _forms(
    canvases: list[CanvasTrace], row: int, room: float
) -> Iterator[tuple[list[list[int]], int]]:
    """(steps of each canvas, positions kept) from everything to the least.

    Without what is hopeless by the last steps.
    """
    lengths = [int(c.steps[row]) for c in canvases]
    most, longest = max(c.attended.shape[-1] for c in canvases), max(lengths)
    one = _size([_packed(c, row, [n - 1], most) for c, n in zip(canvases, lengths, strict=True)])
    for count in (longest, *(n for n in (24, 12, 8, 5, 3, 2, 1) if n < longest)):
        if count * one < 5 * room:  # a step that repeats the one before costs little
            yield [kept_steps(n, min(n, count)) for n in lengths], most
    for keep in range(most - 1, 0, -1):
        yield [kept_steps(n, 1) for n in lengths], keep


def _packed(c: CanvasTrace, row: int, steps: list[int], keep: int) -> dict:
    at = c.attended[steps, row, ..., :keep]
    weight = np.rint(c.attended_weight[steps, row, ..., :keep] * PROBABILITY_STEPS).astype(
        np.uint16
    )
    return {
        "steps": steps,
        "at": pack_planes(code(at, [shifted(np.full_like(at[0], -1), at)])),
        "weight": pack_planes(weight),
    }


def _size(packed: list[dict]) -> int:
    return sum(len(p["at"]["d"]) + len(p["weight"]["d"]) for p in packed)


def attention_payload(trace: Trace, row: int, room: float) -> dict | None:
    """The fullest form of a row's attention that takes at most `room` bytes; None where there is
    none, or no room.

    canvases: one entry for each the row took part in, None where that canvas has no attention;
    prompt: ids, -1 not named.
    """
    canvases = [c for c in trace.canvases if c.steps[row] > 0]
    having = [c for c in canvases if c.attended is not None]
    for steps, keep in _forms(having, row, room) if having else ():
        packed = [_packed(c, row, s, keep) for c, s in zip(having, steps, strict=True)]
        if _size(packed) <= room:
            parts = iter(packed)
            return {
                "canvases": [None if c.attended is None else next(parts) for c in canvases],
                "prompt": _prompt_ids(trace, row),
                "layers": list(trace.meta.get("layer_types", [])),
            }
    return None


def _prompt_ids(trace: Trace, row: int) -> np.ndarray:
    """The prompt's ids, -1 where a long prompt's token is not named."""
    ids = np.asarray(trace.prompt[row], dtype=np.int64)
    if len(ids) > NAMED_PROMPT:
        named = np.zeros(len(ids), bool)
        for c in trace.canvases:
            if c.attended is not None:
                at = np.unique(c.attended[: int(c.steps[row]), row])
                named[at[at < len(ids)]] = True
        ids = np.where(named, ids, -1)
    return ids


def attention_note(trace: Trace, row: int, kept: dict | None) -> str:
    """What a page leaves out, in words; empty if nothing is."""
    canvases = [c for c in trace.canvases if c.steps[row] > 0]
    if kept is None:
        return "the attention that was recorded is left out" if has_attention(trace, row) else ""
    pairs = [(k, c) for k, c in zip(kept["canvases"], canvases, strict=True) if k is not None]
    if any(k["at"]["s"][3] < c.attended.shape[-1] for k, c in pairs):
        return f"attention is kept for one step, {pairs[0][0]['at']['s'][3]} position(s) a layer"
    return (
        "attention is kept for some of the steps"
        if any(len(k["steps"]) < c.steps[row] for k, c in pairs)
        else ""
    )


def place(position: int, prompt: int, canvas: int) -> tuple[int, int]:
    """A row's position -> (-1, prompt position) or (canvas index, position in it)."""
    return (-1, position) if position < prompt else divmod(position - prompt, canvas)


def attention_table(trace: Trace, row: int) -> str:
    """Static part: at each canvas's last step, the one position that every position attends to
    most, in a few layers.
    """
    parts, many = [], sum(c.steps[row] > 0 for c in trace.canvases) > 1
    for index, c in enumerate(trace.canvases):
        if c.steps[row] == 0 or c.attended is None:
            continue
        last, size = int(c.steps[row]) - 1, c.canvas.shape[2]
        layers = kept_steps(c.attended.shape[3], min(STATIC_LAYERS, c.attended.shape[3]))
        head = "".join(f"<th>layer {n + 1}</th>" for n in layers)
        rows = ""
        for p in range(size):
            cells = "".join(
                f"<td>{_target(trace, row, index, last, p, layer)}</td>" for layer in layers
            )
            rows += (
                f"<tr><td>{p}</td><td><code>{_name(trace, int(c.canvas[last, row, p]))}</code></td>"
                f"{cells}</tr>"
            )
        which = f" of canvas {index + 1}" if many else ""
        parts.append(
            f"<details><summary>What each position{which} attends to most at step {last + 1}: "
            "prompt (p) or canvas (c), position, weight (mean over heads)</summary>"
            "<table><tr><th>position</th>"
            f"<th>canvas in</th>{head}</tr>"
            f"{rows}</table></details>"
        )
    return "".join(parts)


def _target(trace: Trace, row: int, index: int, step: int, p: int, layer: int) -> str:
    c = trace.canvases[index]
    which, position = place(
        int(c.attended[step, row, p, layer, 0]), len(trace.prompt[row]), c.canvas.shape[2]
    )
    where = "p" if which < 0 else "c" if which == index else f"c{which + 1}."
    return f"{where}{position} {100 * c.attended_weight[step, row, p, layer, 0]:.0f}%"


def _name(trace: Trace, token: int) -> str:
    return html.escape(token_text(trace.texts, token))
