"""What the NVFP4 views show: blocks of a real weight with their codes and errors, and one block
with an outlier put into it.

Every number comes from `nvfp4.quantize` and `dequantize`; the views compute nothing. Walked through
in notebook 10.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from ..nvfp4 import NVFP4Tensor, dequantize, quantize

FACTORS = (1, 1.5, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64)
MOST = 2048  # blocks of one map


@dataclass(frozen=True)
class BlockFrame:
    """One block: its weights, their codes and what those stand for.

    Errors: root mean squares over that of the weights.
    """

    label: str
    weights: tuple[float, ...]
    codes: tuple[int, ...]
    values: tuple[float, ...]
    block_scale: float
    tensor_scale: float
    error: float  # of the whole block
    neighbours: float | None = None  # of the block without the outlier


@dataclass(frozen=True)
class BlockRecord:
    """Blocks to look at one by one.

    All of a matrix (`shape` says how they lie) or one block under a growing outlier.
    """

    name: str
    frames: tuple[BlockFrame, ...]
    shape: tuple[int, int] | None = None  # (rows, blocks a row)
    outlier: int | None = None  # its place in the block


def block_map(
    w: Float[Tensor, "rows width"], name: str, *, rows: int = 64, blocks: int | None = None
) -> BlockRecord:
    """Every block of the first `rows` rows of a weight, which is quantised whole.

    Errors: ValueError for too many blocks.
    """
    q, values = quantize(w), dequantize(quantize(w), torch.float32)
    kept, across = min(rows, w.shape[0]), w.shape[1] // q.block
    across = across if blocks is None else min(blocks, across)
    if kept < 1 or across < 1 or kept * across > MOST:
        raise ValueError(
            f"rows: got {rows} rows of {across} blocks of {q.block}, "
            f"takes 1 to {MOST} blocks in all"
        )
    frames = tuple(
        _frame(f"row {r}, block {b}", w, q, values, r, b)
        for r in range(kept)
        for b in range(across)
    )
    return BlockRecord(name, frames, shape=(kept, across))


def outlier_frames(
    w: Float[Tensor, "rows width"],
    name: str,
    *,
    row: int = 0,
    block: int = 0,
    place: int | None = None,
    factors: Sequence[float] = FACTORS,
) -> BlockRecord:
    """One block while one of its weights is multiplied by each factor and the whole weight
    quantised again.

    place: of the weight within the block; None takes the largest. Errors: ValueError for a block
    outside the weight.
    """
    if not (0 <= row < w.shape[0] and 0 <= block < w.shape[1] // 16):
        inside = f"{w.shape[0]} rows of {w.shape[1] // 16} blocks"
        raise ValueError(f"block: got row {row}, block {block}, takes one inside {inside}")
    if place is not None and not 0 <= place < 16:
        raise ValueError(f"place: got {place!r}, takes 0 to 15, or None for the largest weight")
    at = int(w[row, 16 * block : 16 * block + 16].abs().argmax()) if place is None else place
    frames = []
    for factor in factors:
        loud = w.float().clone()
        loud[row, 16 * block + at] *= factor
        q = quantize(loud)
        frames.append(
            _frame(
                "as it is" if factor == 1 else f"{factor:g} times",
                loud,
                q,
                dequantize(q),
                row,
                block,
                at,
            )
        )
    if not frames:
        raise ValueError("factors: is empty, takes at least one number")
    return BlockRecord(name, tuple(frames), outlier=at)


def _frame(
    label: str,
    w: Tensor,
    q: NVFP4Tensor,
    values: Tensor,
    row: int,
    block: int,
    outlier: int | None = None,
) -> BlockFrame:
    at = slice(q.block * block, q.block * (block + 1))
    weights, back = w[row, at].double(), values[row, at].double()
    others = torch.arange(q.block) != outlier
    return BlockFrame(
        label=label,
        weights=tuple(weights.tolist()),
        codes=tuple(q.codes[row, at].tolist()),
        values=tuple(back.tolist()),
        block_scale=float(q.block_scale[row, block].float()),
        tensor_scale=float(q.tensor_scale[0]),
        error=_relative(weights, back),
        neighbours=None if outlier is None else _relative(weights[others], back[others]),
    )


def _relative(weights: Tensor, back: Tensor) -> float:
    size = weights.pow(2).mean().sqrt().item()
    return (weights - back).pow(2).mean().sqrt().item() / size if size else 0.0
