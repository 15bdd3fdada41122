"""What the noise view shows: one text at several noise levels, under one or more processes, and
what the law expects.

`noise_record` blurs a text with `noise.corrupt`, the function that also makes the training data.
`path_record` takes texts that were made elsewhere, such as a chain that runs backwards. Both are
pure: equal arguments give equal records. Walked through in notebook 02.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Int
from torch import Tensor

from ..noise import corrupt

# what a position's mark says; "itself": noised to its own value
MARKS = ("unchanged", "changed", "masked", "itself")
UNCHANGED, CHANGED, MASKED, ITSELF = range(4)
LEVELS = tuple(i / 20 for i in range(21))
MOST = 1024  # positions of one view


@dataclass(frozen=True)
class NoisePath:
    """One process over n noise levels.

    Ids and marks (indices of MARKS) [n][C], changed share observed and expected [n].
    """

    name: str
    law: str
    ids: tuple[tuple[int, ...], ...]
    marks: tuple[tuple[int, ...], ...]
    observed: tuple[float, ...]
    expected: tuple[float, ...]
    # 95% of texts of this length lie inside expected +- this, one level taken for itself
    half_width: tuple[float, ...]


@dataclass(frozen=True)
class NoiseRecord:
    """The clean ids, the noise levels in the order in which they are shown, the paths, and the text
    of every id.
    """

    clean: tuple[int, ...]
    levels: tuple[float, ...]
    paths: tuple[NoisePath, ...]
    texts: Mapping[int, str]
    vocab_size: int


def noise_record(
    text_ids: Sequence[int],
    texts: Callable[[int], str] | Mapping[int, str],
    vocab_size: int,
    *,
    mask_id: int | None = None,
    levels: Sequence[float] = LEVELS,
    seed: int = 0,
) -> NoiseRecord:
    """The text at each noise level, uniform-state beside absorbing-state.

    Every level restarts the same generator, so a position is noised as soon as t passes its one
    random number, and to the same noise from then on: the blur grows and never jumps. Both
    processes draw that number first, so they hit the same positions. mask_id: the absorbing state;
    None takes one id more than the vocabulary has. texts: id -> text. Errors: ValueError for ids
    outside the vocabulary, a mask that is part of the text, levels outside [0, 1].
    """
    mask_id = vocab_size if mask_id is None else mask_id
    levels = _levels(levels)
    clean = _clean(text_ids, vocab_size, mask_id)

    def blurred(resting_state: int | None) -> Int[Tensor, "n c"]:
        rows = [
            corrupt(clean, torch.tensor([t]), vocab_size, _generator(seed), mask_id=resting_state)[
                0
            ]
            for t in levels
        ]
        return torch.cat(rows)

    uniform, absorbing = blurred(None), blurred(mask_id)
    # the mask is no part of the text, so this is exactly where noise was put
    hit = absorbing == mask_id
    paths = (
        _path("uniform-state", uniform, clean, levels, vocab_size, None, hit),
        _path("absorbing-state", absorbing, clean, levels, vocab_size, mask_id, hit),
    )
    return NoiseRecord(
        tuple(clean[0].tolist()), levels, paths, _text_of(paths, clean, texts, mask_id), vocab_size
    )


def path_record(
    text_ids: Sequence[int],
    paths: Mapping[str, Int[Tensor, "n c"]],
    levels: Sequence[float],
    texts: Callable[[int], str] | Mapping[int, str],
    vocab_size: int,
) -> NoiseRecord:
    """Texts made elsewhere, {name: ids [n, C]} at n noise levels in any order, measured against the
    uniform-state law.

    Errors: ValueError for a path of another shape or with ids outside the vocabulary.
    """
    levels, clean = _levels(levels), _clean(text_ids, vocab_size, None)
    for name, ids in paths.items():
        if tuple(ids.shape) != (len(levels), clean.shape[1]):
            raise ValueError(
                f"paths: {name!r} has shape {tuple(ids.shape)}, "
                f"takes {(len(levels), clean.shape[1])}"
            )
        low, high = int(ids.min()), int(ids.max())
        if low < 0 or high >= vocab_size:
            raise ValueError(
                f"paths: {name!r} has ids from {low} to {high}, takes 0 to {vocab_size - 1}"
            )
    made = tuple(
        _path(name, ids, clean, levels, vocab_size, None, None) for name, ids in paths.items()
    )
    if not made:
        raise ValueError("paths: is empty, takes at least one")
    return NoiseRecord(
        tuple(clean[0].tolist()), levels, made, _text_of(made, clean, texts, None), vocab_size
    )


def _path(
    name: str,
    ids: Tensor,
    clean: Tensor,
    levels: tuple[float, ...],
    vocab_size: int,
    mask_id: int | None,
    hit: Tensor | None,
) -> NoisePath:
    marks = torch.where(ids == clean, UNCHANGED, CHANGED if mask_id is None else MASKED)
    if hit is not None:
        marks = torch.where(hit & (ids == clean), ITSELF, marks)
    changed = (ids != clean).double().mean(-1).tolist()
    expected = [t * (1 - 1 / vocab_size) if mask_id is None else t for t in levels]
    return NoisePath(
        name=name,
        law="t (1 − 1/V)" if mask_id is None else "t",
        ids=_tuples(ids),
        marks=_tuples(marks),
        observed=tuple(changed),
        expected=tuple(expected),
        half_width=tuple(1.96 * math.sqrt(p * (1 - p) / clean.shape[1]) for p in expected),
    )


def _tuples(rows: Tensor) -> tuple[tuple[int, ...], ...]:
    return tuple(tuple(row) for row in rows.tolist())


def _generator(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def _levels(levels: Sequence[float]) -> tuple[float, ...]:
    levels = tuple(float(t) for t in levels)
    if not levels or not all(0 <= t <= 1 for t in levels):
        raise ValueError(
            f"levels: got {list(levels)}, takes at least one noise level, each from 0 to 1"
        )
    return levels


def _clean(text_ids: Sequence[int], vocab_size: int, mask_id: int | None) -> Int[Tensor, "1 c"]:
    ids = [int(i) for i in text_ids]
    if not 1 <= len(ids) <= MOST:
        raise ValueError(f"text_ids: got {len(ids)} ids, takes 1 to {MOST}")
    if min(ids) < 0 or max(ids) >= vocab_size:
        raise ValueError(
            f"text_ids: got ids from {min(ids)} to {max(ids)}, takes 0 to {vocab_size - 1}"
        )
    if mask_id in ids:
        raise ValueError(
            f"mask_id: got {mask_id}, which the text holds itself, takes an id that it does not"
        )
    return torch.tensor([ids])


def _text_of(
    paths: tuple[NoisePath, ...], clean: Tensor, texts, mask_id: int | None
) -> dict[int, str]:
    look = texts if callable(texts) else lambda i: texts.get(i, "")
    used = sorted(set(clean[0].tolist()).union(*(row for path in paths for row in path.ids)))
    return {i: "mask" if i == mask_id else str(look(i)) for i in used}
