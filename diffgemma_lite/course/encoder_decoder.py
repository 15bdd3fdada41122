"""The exercise of notebook 05: which tokens the canvas sees on a sliding layer.

Its truth is the model's own mask.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from ..attention import KVCache, decoder_masks
from ..config import SLIDING, Config
from .figures import SEEN, UNSEEN, Figure, grid, seen
from .tasks import Exercise, Mistake


def _rectangle(prefix: int, canvas: int, window: int) -> Tensor:
    """What the decoder's canvas sees on a sliding layer, from the model's own masks."""
    keys = (torch.zeros(1, 1, prefix, 2),)
    mask = decoder_masks(Config.preset("tiny", sliding_window=window), KVCache(keys, keys), canvas)[
        SLIDING
    ]
    return seen(mask, canvas, prefix + canvas)


def _differs(*sizes: int) -> Callable[[Callable], bool]:
    return lambda answer: not torch.equal(answer(*sizes), _rectangle(*sizes))


def _draw_rectangle(answer: Callable) -> Figure | None:
    mine, truth = answer(12, 8, 8), _rectangle(12, 8, 8)
    if torch.equal(mine, truth):  # wrong for another size only
        return None
    pairs = zip(mine.flatten().tolist(), truth.flatten().tolist(), strict=True)
    marks = [(SEEN if t else UNSEEN) if m == t else "+" if m else "-" for m, t in pairs]
    marks = [marks[i : i + 20] for i in range(0, len(marks), 20)]
    roles = ["prefix"] * 5 + ["window"] * 7 + ["canvas"] * 8
    note = "+ your function lets the canvas see it and the model does not; - the other way round"
    return grid(
        marks,
        rows=["canvas"] * 8,
        columns=roles,
        title="Your answer for prefix 12, canvas 8, window 8",
        note=note,
    )


CANVAS_WINDOW = Exercise(
    trial=lambda answer: answer(12, 8, 8),
    mistakes=(
        Mistake(
            lambda f: not isinstance(f(12, 8, 8), Tensor) or f(12, 8, 8).dtype != torch.bool,
            "It does not return a bool tensor. Start from torch.ones(..., dtype=torch.bool).",
        ),
        Mistake(
            lambda f: f(12, 8, 8).shape != (8, 20),
            "The shape is not [canvas, prefix + canvas]: "
            "a row for each canvas position that looks, a column for each token it "
            "may look at, the prefix first.",
        ),
        Mistake(
            lambda f: not f(12, 8, 8)[:, 12:].all(),
            "Some canvas position does not see another one. "
            "The decoder is bidirectional: the last columns are all True.",
        ),
        Mistake(
            lambda f: bool((f(12, 8, 8)[:, :12] != f(12, 8, 8)[:1, :12]).any()),
            "The rows differ. A band that slides with the row is the encoder's; "
            "the canvas shares one view of the prefix, a "
            "rectangle.",
        ),
        Mistake(
            lambda f: bool(f(12, 8, 8)[:, :12].all()),
            "The canvas sees the whole prefix. That is a full layer; "
            "a sliding layer shows the end of the prefix only.",
        ),
        Mistake(
            lambda f: bool(f(12, 8, 8)[:, 4:12].all()) and not f(12, 8, 8)[:, :4].any(),
            "One token too many: W of the prefix. "
            "A window of W counts the token that looks, so W - 1 before it are left.",
        ),
        Mistake(
            lambda f: bool(f(12, 8, 8)[:, :7].all()) and not f(12, 8, 8)[:, 7:12].any(),
            "The right number of tokens at the wrong end: "
            "the window holds the prefix tokens nearest to the canvas.",
        ),
        Mistake(
            _differs(12, 8, 8),
            "It is not the model's mask. Compare it with the picture, column by column.",
        ),
        Mistake(
            _differs(3, 8, 8),
            "Right for a prefix of 12, wrong for one of 3, which is shorter than the window: "
            "look for a slice whose start "
            "becomes negative.",
        ),
        Mistake(
            lambda f: any(
                _differs(*sizes)(f) for sizes in ((7, 4, 8), (8, 4, 8), (20, 2, 5), (1, 1, 2))
            ),
            "Right for one window, wrong for another size. "
            "Use the arguments and no number of your own.",
        ),
    ),
    praise="Equal to decoder_masks for prefixes shorter than, "
    "as long as and longer than the window.",
    picture=_draw_rectangle,
)
