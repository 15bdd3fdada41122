"""The sixteen codes of a 4-bit float (E2M1).

The numbers they stand for, rounding to them, two of them in a byte.

Against integers: the steps between neighbours grow with the number (0.5 up to 2, then 1, then 2),
so small weights are kept finer than large ones. Bit 3 of a code is the sign. Walked through in
notebook 10.
"""

from __future__ import annotations

import torch
from jaxtyping import Float, UInt8
from torch import Tensor

# what codes 0 to 7 stand for; 8 to 15 are the same with a minus
E2M1 = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
MIDPOINTS = tuple((low + high) / 2 for low, high in zip(E2M1, E2M1[1:], strict=False))
ROUNDINGS = ("nearest", "stochastic")


def round_to_codes(
    scaled: Float[Tensor, "..."],
    rounding: str = "nearest",
    generator: torch.Generator | None = None,
) -> UInt8[Tensor, "..."]:
    """Numbers already divided by their scale -> codes 0 to 15, same shape.

    "nearest": a tie goes to the even code, beyond 6 is 6. "stochastic": to one of the two
    neighbours, at random, so that the mean is the number itself (beyond 6 is still 6). -0.0 becomes
    code 0, a negative number that rounds to zero code 8.
    """
    if rounding not in ROUNDINGS:
        raise ValueError(f"rounding: got {rounding!r}, takes one of {', '.join(ROUNDINGS)}")
    size = scaled.abs()
    code = nearest(size) if rounding == "nearest" else stochastic(size, generator)
    return code | ((scaled < 0).to(torch.uint8) << 3)


def nearest(size: Float[Tensor, "..."]) -> UInt8[Tensor, "..."]:
    """How many midpoints lie below.

    A tie counts where that makes the code even (above every second midpoint).
    """
    code = torch.zeros(size.shape, dtype=torch.uint8, device=size.device)
    for below, midpoint in enumerate(MIDPOINTS):
        code += size >= midpoint if below % 2 else size > midpoint
    return code


def stochastic(
    size: Float[Tensor, "..."], generator: torch.Generator | None
) -> UInt8[Tensor, "..."]:
    """The neighbour above with the probability by which the number is nearer to it."""
    low = torch.zeros(size.shape, dtype=torch.uint8, device=size.device)
    for value in E2M1[1:]:
        low += size >= value
    high = (low + 1).clamp(max=7)
    below, above = decode(low), decode(high)
    draw = torch.rand(size.shape, generator=generator, device=size.device)
    return low + (draw * (above - below) < size - below).to(torch.uint8) * (high - low)


def decode(codes: UInt8[Tensor, "..."]) -> Float[Tensor, "..."]:
    """Codes 0 to 15 -> float32. Code 8 is 0.0 without its minus, as in the reference."""
    values = torch.tensor([*E2M1, 0.0, *(-v for v in E2M1[1:])], device=codes.device)
    return values[codes.int()]


def decode_packed(packed: UInt8[Tensor, "*rows half"]) -> Float[Tensor, "*rows width"]:
    """`decode(unpack(packed))` by one look-up a byte: the 256 pairs are decoded once."""
    pairs = decode(unpack(torch.arange(256, dtype=torch.uint8, device=packed.device)[:, None]))
    return pairs[packed.int()].flatten(-2)


def pack(codes: UInt8[Tensor, "*rows width"]) -> UInt8[Tensor, "*rows half"]:
    """Two codes a byte: the even column in the low four bits, the odd one in the high four.

    The width must be even.
    """
    if codes.shape[-1] % 2:
        raise ValueError(f"codes: got a width of {codes.shape[-1]}, takes an even one")
    return codes[..., 0::2] | (codes[..., 1::2] << 4)


def unpack(packed: UInt8[Tensor, "*rows half"]) -> UInt8[Tensor, "*rows width"]:
    """The inverse of `pack`."""
    return torch.stack([packed & 15, packed >> 4], dim=-1).flatten(-2)
