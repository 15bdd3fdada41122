"""Other ways to spend four (or eight) bits, to compare NVFP4 with: MXFP4, INT4 in groups, FP8.

Against NVFP4: MXFP4 has the same codes, but a block of 32 and a scale that is a power of two, so
the largest weight of a block can be cut off (up to 8 becomes 6) or leave the top codes unused. INT4
has evenly spaced codes and a bfloat16 scale for 32 weights, 4.5 bits like NVFP4. FP8 keeps eight
bits a weight and one scale a row. Walked through in notebook 10.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from .codes import decode, round_to_codes
from .tensor import BLOCK, E4M3_MAX, check_weight, quantize


@dataclass(frozen=True, eq=False)
class Rounded:
    """A weight in another format: codes in the weight's shape, scales, and the numbers they stand
    for (float32).
    """

    codes: Tensor
    scale: Tensor  # one a block (or a row)
    values: Tensor
    bits: float  # bits a weight, scales included


def _blocks(w: Tensor, block: int) -> Float[Tensor, "..."]:
    """[..., blocks, block] float32, padded with zeros."""
    check_weight(w)
    return F.pad(w.float(), (0, -w.shape[-1] % block)).unflatten(-1, (-1, block))


def _bits(w: Tensor, codes: int, scale: Tensor, scale_bits: int, block: int) -> float:
    padded = w.numel() // w.shape[-1] * (w.shape[-1] + -w.shape[-1] % block)
    return (codes * padded + scale_bits * scale.numel()) / w.numel()


def mxfp4(
    w: Float[Tensor, "..."], *, block: int = 32, rounding: str = "nearest", generator=None
) -> Rounded:
    """E2M1 codes, one power of two (E8M0) for 32 weights.

    The largest power that is at most max |w|, over 4 (OCP MX 1.0).
    """
    blocks = _blocks(w, block)
    # frexp: max in [0.5, 1) * 2**exponent
    exponent = (torch.frexp(blocks.abs().amax(-1)).exponent - 3).clamp(-127, 127)
    exponent = torch.where(blocks.abs().amax(-1) == 0, 0, exponent)
    scale = torch.ldexp(torch.ones_like(exponent, dtype=torch.float32), exponent)
    codes = round_to_codes(blocks / scale[..., None], rounding, generator)
    values = decode(codes) * scale[..., None]
    stored = scale.to(torch.float8_e8m0fnu)
    cut = (codes.flatten(-2)[..., : w.shape[-1]], stored, values.flatten(-2)[..., : w.shape[-1]])
    return Rounded(*cut, _bits(w, 4, stored, 8, block))


def int4(w: Float[Tensor, "..."], *, block: int = 32) -> Rounded:
    """Whole numbers -7 to 7 and a bfloat16 scale for each group, max |w| / 7."""
    blocks = _blocks(w, block)
    stored = (blocks.abs().amax(-1) / 7).to(torch.bfloat16)
    scale = torch.where(stored == 0, 1.0, stored.float())
    codes = (blocks / scale[..., None]).round().clamp(-7, 7)
    values = codes * scale[..., None]
    return Rounded(
        codes.to(torch.int8).flatten(-2)[..., : w.shape[-1]],
        stored,
        values.flatten(-2)[..., : w.shape[-1]],
        _bits(w, 4, stored, 16, block),
    )


def fp8(w: Float[Tensor, "..."]) -> Rounded:
    """E4M3 numbers and one float32 scale a row, max |w| / 448."""
    check_weight(w)
    scale = w.float().abs().amax(-1, keepdim=True) / E4M3_MAX
    scale = torch.where(scale == 0, 1.0, scale)
    codes = (w.float() / scale).clamp(-E4M3_MAX, E4M3_MAX).to(torch.float8_e4m3fn)
    return Rounded(codes, scale, codes.float() * scale, _bits(w, 8, scale, 32, 1))


def nvfp4(
    w: Float[Tensor, "..."], *, block: int = BLOCK, stacked: bool = False, **knobs
) -> Rounded:
    """`quantize` in the form of the others; its knobs are those of `quantize`."""
    q = quantize(w, block=block, stacked=stacked, **knobs)
    return Rounded(q.codes, q.block_scale, q.dequantize(torch.float32), 8 * q.nbytes / w.numel())


FORMATS: dict[str, Callable[..., Rounded]] = {
    "nvfp4": nvfp4,
    "mxfp4": mxfp4,
    "int4": int4,
    "fp8": fp8,
}


def round_trip(w: Float[Tensor, "..."], format: str = "nvfp4", **knobs) -> Float[Tensor, "..."]:
    """The weight as it is after a round trip through a format of FORMATS: same shape, float32."""
    if format not in FORMATS:
        raise ValueError(f"format: got {format!r}, takes one of {', '.join(FORMATS)}")
    return FORMATS[format](w, **knobs).values


def snr_db(w: Float[Tensor, "..."], rounded: Float[Tensor, "..."]) -> float:
    """Signal-to-noise ratio in decibels: 10 log10 of the power of w over the power of what rounding
    changed.
    """
    signal, noise = (
        w.double().pow(2).sum().item(),
        (w.double() - rounded.double()).pow(2).sum().item(),
    )
    return math.inf if noise == 0 else 10 * math.log10(signal / noise) if signal > 0 else -math.inf
