"""NVFP4: blocks of 16 four-bit codes along the input axis, an E4M3 scale for each block, one
float32 scale for the tensor.

Against one scale for all: an outlier costs its own fifteen neighbours precision and nobody else's.
Against one level of scales: E4M3 holds nothing below 2**-9, so the block scales of small weights
would vanish; the tensor scale lifts the largest of them to 448, the top of E4M3. The arithmetic is
ModelOpt's (facts: nvfp4_tensor.py of NVIDIA/Model-Optimizer), step for step in float32, because a
division in another order gives other codes near a tie. Walked through in notebook 10.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from jaxtyping import Float, UInt8
from torch import Tensor

from .codes import ROUNDINGS, decode_packed, pack, round_to_codes, unpack

BLOCK, BLOCKS = 16, (8, 16, 32, 64)
E2M1_MAX, E4M3_MAX, E4M3_MIN = 6.0, 448.0, 2.0**-9  # 2**-9 is the smallest E4M3 above zero
FLOAT32_MIN = 2.0**-149
FLOATS = (torch.float32, torch.bfloat16, torch.float16, torch.float64)


@dataclass(frozen=True, eq=False)
class NVFP4Tensor:
    """What a weight becomes.

    Packed bytes are no numbers: `dequantize()` is the only way back to them.

    A width that is no multiple of the block is padded with zeros; `shape` remembers what was there.
    """

    packed: Tensor  # uint8 [..., padded / 2], two codes a byte
    block_scale: Tensor  # float8_e4m3fn [..., padded / block]
    tensor_scale: Tensor  # float32 [1], or [E] for a stack of E tensors
    shape: tuple[int, ...]
    dtype: torch.dtype  # of the weight it was made from
    block: int = BLOCK

    @property
    def codes(self) -> UInt8[Tensor, "..."]:
        """One code a weight, 0 to 15, in the weight's own shape."""
        return unpack(self.packed)[..., : self.shape[-1]]

    @property
    def scales(self) -> Float[Tensor, "..."]:
        """What a code is multiplied by, float32, one a block: block scale times tensor scale."""
        return self.block_scale.float() * beside(self.tensor_scale, self.block_scale)

    @property
    def nbytes(self) -> int:
        return sum(
            t.numel() * t.element_size() for t in (self.packed, self.block_scale, self.tensor_scale)
        )

    def dequantize(self, dtype: torch.dtype | None = None) -> Float[Tensor, "..."]:
        """The numbers the codes stand for, in `dtype` (None: that of the weight)."""
        values = decode_packed(self.packed).unflatten(-1, (-1, self.block)) * self.scales[..., None]
        return values.flatten(-2)[..., : self.shape[-1]].to(dtype or self.dtype)

    def __getitem__(self, index: int) -> NVFP4Tensor:
        """One tensor of a stack."""
        one = (
            self.tensor_scale[index : index + 1]
            if len(self.tensor_scale) > 1
            else self.tensor_scale
        )
        own = dict(packed=self.packed[index], block_scale=self.block_scale[index], tensor_scale=one)
        return replace(self, **own, shape=self.shape[1:])


def quantize(
    w: Float[Tensor, "..."],
    *,
    block: int = BLOCK,
    tensor_scale: float | Tensor | None = None,
    stacked: bool = False,
    rounding: str = "nearest",
    generator: torch.Generator | None = None,
    min_scale: float = E4M3_MIN,
) -> NVFP4Tensor:
    """Float tensor [..., input] -> NVFP4Tensor.

    Any rank and stride, any floating dtype; the arithmetic is float32.

    tensor_scale: None takes max |w| / (6 * 448); a number takes it as given (1.0: no second level).
    stacked: the first axis counts separate tensors, each with a tensor scale of its own. rounding,
    generator: see `round_to_codes`. min_scale: no block scale is smaller; 0 shows what happens
    without that. Zero blocks get block scale 1, zero tensors tensor scale 1. Errors: ValueError for
    NaN or infinity, an empty tensor, a block size that is not 8, 16, 32 or 64, a scale not above 0.
    """
    _check(w, block, rounding, min_scale)
    scale = tensor_scales(w, stacked) if tensor_scale is None else _given(tensor_scale, w, stacked)
    width = w.shape[-1]
    # [..., blocks, block]
    blocks = F.pad(w.float(), (0, -width % block)).unflatten(-1, (-1, block))
    wanted = blocks.abs().amax(-1)
    many = beside(scale, wanted)
    wanted = wanted / (E2M1_MAX * many)
    wanted = torch.where(wanted == 0, 1.0, wanted)
    # above 464 the cast would make it NaN
    block_scale = wanted.clamp(min_scale, E4M3_MAX).to(torch.float8_e4m3fn)
    codes = round_to_codes(blocks / (block_scale.float() * many)[..., None], rounding, generator)
    return NVFP4Tensor(pack(codes.flatten(-2)), block_scale, scale, tuple(w.shape), w.dtype, block)


def dequantize(q: NVFP4Tensor, dtype: torch.dtype | None = None) -> Float[Tensor, "..."]:
    """The inverse of `quantize`, up to rounding: code * (block scale * tensor scale)."""
    if not isinstance(q, NVFP4Tensor):
        raise ValueError(
            f"q: got {type(q).__name__}, takes an NVFP4Tensor (quantize(...) makes one)"
        )
    return q.dequantize(dtype)


def tensor_scales(w: Float[Tensor, "..."], stacked: bool = False) -> Float[Tensor, "n"]:
    """max |w| / (6 * 448), [1] or one for each of a stack [E].

    What puts the largest block scale at 448.
    """
    largest = w.detach().abs().flatten(1 if stacked else 0).amax(-1).float().reshape(-1)
    scale = largest / (E2M1_MAX * E4M3_MAX)
    # where this rounds to zero the reference divides by it; a zero tensor takes 1, a merely tiny
    # one the smallest float
    return torch.where(largest == 0, 1.0, scale.clamp(min=FLOAT32_MIN))


def beside(scale: Float[Tensor, "n"], blocks: Tensor) -> Tensor:
    """A tensor scale, or one for each of a stack, shaped to multiply block scales [E, ...]."""
    return scale if len(scale) == 1 else scale.view(-1, *[1] * (blocks.dim() - 1))


def check_weight(w: Tensor) -> None:
    """ValueError for what is no weight: another dtype, no number in it, NaN or infinity."""
    if not isinstance(w, Tensor) or w.dtype not in FLOATS:
        got = w.dtype if isinstance(w, Tensor) else type(w).__name__
        raise ValueError(
            f"w: got {got}, takes a float tensor (float8 and packed bytes are no weights)"
        )
    if w.dim() == 0 or w.numel() == 0:
        raise ValueError(f"w: got shape {tuple(w.shape)}, takes at least one axis and one number")
    if not bool(torch.isfinite(torch.stack(torch.aminmax(w.detach()))).all()):
        raise ValueError("w: holds NaN or infinity, which no code stands for")


def _check(w: Tensor, block: int, rounding: str, min_scale: float) -> None:
    check_weight(w)
    if block not in BLOCKS:
        raise ValueError(f"block: got {block!r}, takes one of {', '.join(map(str, BLOCKS))}")
    if rounding not in ROUNDINGS:
        raise ValueError(f"rounding: got {rounding!r}, takes one of {', '.join(ROUNDINGS)}")
    if not 0 <= min_scale <= E4M3_MAX:
        raise ValueError(f"min_scale: got {min_scale!r}, takes 0 to {E4M3_MAX:.0f}")


def _given(tensor_scale: float | Tensor, w: Tensor, stacked: bool) -> Float[Tensor, "n"]:
    scale = torch.as_tensor(tensor_scale, dtype=torch.float32, device=w.device).reshape(-1)
    if len(scale) not in ({1, w.shape[0]} if stacked else {1}) or not bool(
        (torch.isfinite(scale) & (scale > 0)).all()
    ):
        takes = f"finite numbers above 0, one{f' or {w.shape[0]}' if stacked else ''}"
        raise ValueError(f"tensor_scale: got {scale.tolist()[:4]} ({len(scale)}), takes {takes}")
    return scale
