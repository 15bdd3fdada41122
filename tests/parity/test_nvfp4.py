"""NVFP4 against two references, bit for bit.

The published ModelOpt arithmetic, written out here in numpy, and torchao.

Where the two differ from each other is measured here, place by place, and ours follows ModelOpt:
torchao multiplies by a reciprocal where ModelOpt divides, takes max / 6 before the tensor scale,
lets no block scale fall under 2**-6, gives a zero block that scale instead of 1, gives -0.0 code 8
and not 0, and reads code 8 as -0.0 where ModelOpt reads 0.0.
"""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor

from diffgemma_lite.nvfp4 import quantize
from diffgemma_lite.nvfp4.formats import mxfp4

ROWS, WIDTH, BLOCK = 4, 64, 16
SEEDS = range(32)  # of ten families in two dtypes; with the midpoints more than 1,000 tensors
DTYPES = (torch.float32, torch.bfloat16)
MIDPOINTS = (0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0)
E4M3 = np.array(
    [m * 2.0**-9 if e == 0 else (1 + m / 8) * 2.0 ** (e - 7) for e in range(16) for m in range(8)]
)
E4M3[127] = np.nan


# ---- ModelOpt's arithmetic, in numpy -------------------------------------------------------------


def to_e4m3(x: np.ndarray) -> np.ndarray:
    """float32 -> the byte of the nearest E4M3, ties to even; NaN and what is above 464 become byte
    127, which is NaN.
    """
    edges = np.append((E4M3[:-2] + E4M3[1:-1]) / 2, 464.0)
    byte = np.searchsorted(edges, x.astype(np.float64), side="left")
    return (byte + (np.isin(x, edges) & (byte % 2 == 1))).astype(np.uint8)


def modelopt(w: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Codes, bytes of the block scales, tensor scale, dequantised.

    Every step is float32, as in qtensor/nvfp4_tensor.py.
    """
    blocks = w.astype(np.float32).reshape(*w.shape[:-1], -1, BLOCK)
    with np.errstate(all="ignore"):  # a zero tensor divides by zero there
        second = np.abs(blocks).max() / np.float32(6.0 * 448.0)
        first = np.abs(blocks).max(-1) / (np.float32(6.0) * second)
        first[first == 0] = 1.0
        byte = to_e4m3(np.maximum(first, np.float32(2.0**-9)))
        scale = E4M3[byte].astype(np.float32) * second
        scaled = blocks / scale[..., None]
        size = np.abs(scaled)
        code = np.searchsorted(np.float32(MIDPOINTS), size, side="left") + np.isin(
            size, np.float32([0.75, 1.75, 3.5])
        )
        code = code + 8 * (scaled < 0)
        # code 8 has no minus
        values = np.float32([0, 0.5, 1, 1.5, 2, 3, 4, 6, 0, -0.5, -1, -1.5, -2, -3, -4, -6])[code]
        return code.reshape(w.shape), byte, second, (values * scale[..., None]).reshape(w.shape)


# ---- more than a thousand tensors ----------------------------------------------------------------


def families() -> dict[str, Tensor]:
    """{name: float32 tensor}, the same at every run."""
    made: dict[str, Tensor] = {}
    for seed in SEEDS:
        g = torch.Generator().manual_seed(seed)
        normal = torch.randn(ROWS, WIDTH, generator=g)
        flat = torch.rand(ROWS, WIDTH, generator=g)
        for std in (1.0, 0.02, 0.001):
            made[f"normal {std} {seed}"] = normal * std
        # a cut Cauchy distribution
        made[f"heavy tails {seed}"] = 0.02 * torch.tan((flat - 0.5) * 3.1)
        made[f"outlier channels {seed}"] = normal * torch.where(
            torch.rand(WIDTH, generator=g) < 0.06, 60.0, 1.0
        )
        made[f"constant {seed}"] = torch.full(
            (ROWS, WIDTH), float(flat[0, 0] * 10 ** (seed % 9 - 6))
        )
        made[f"denormal {seed}"] = normal * 1e-39
        made[f"zero blocks {seed}"] = normal * (
            torch.rand(ROWS, WIDTH // 16, generator=g) < 0.5
        ).repeat_interleave(16, 1)
        spread = 10.0 ** (-7 * torch.rand(ROWS, WIDTH // 16, generator=g))
        made[f"spread blocks {seed}"] = normal * spread.repeat_interleave(16, 1)
        made[f"negative zeros {seed}"] = torch.where(flat < 0.3, -0.0, normal)
    return made


def midpoints(dtype: torch.dtype) -> dict[str, Tensor]:
    """Every E4M3 scale from 2**-6 up, every midpoint with its two neighbours, both signs, under a
    tensor scale of 2**k.
    """
    made = {}
    ends = torch.tensor([-torch.inf, torch.inf], dtype=dtype)
    for byte in range(8, 127):
        exact = torch.tensor(MIDPOINTS, dtype=torch.float64) * E4M3[byte]
        near = exact.to(dtype)
        rows = torch.cat(
            [torch.nextafter(near, ends[:1]), near, torch.nextafter(near, ends[1:])]
        ).double()
        for power in (-20, -4):
            blocks = torch.cat([rows, -rows, rows.new_zeros(3)]).unflatten(0, (-1, 15))
            blocks = torch.cat([blocks, blocks.new_full((3, 1), 6 * E4M3[byte])], dim=1).flatten()
            top = torch.zeros(16, dtype=torch.float64)
            top[0] = 6 * 448.0
            made[f"midpoints {byte} {power}"] = (
                (torch.cat([blocks, top])[None] * 2.0**power).to(dtype).float()
            )
    return made


@pytest.fixture(scope="module")
def tensors() -> dict[str, Tensor]:
    """float32 and bfloat16 inputs; the name ends with the dtype."""
    both = [(f"{name} {dtype}", w.to(dtype)) for dtype in DTYPES for name, w in families().items()]
    both += [
        (f"{name} {dtype}", w.to(dtype)) for dtype in DTYPES for name, w in midpoints(dtype).items()
    ]
    return dict(both)


def arrays(w: Tensor) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Ours, in the form of `modelopt`."""
    q = quantize(w)
    values = q.dequantize(torch.float32)
    return (
        q.codes.numpy(),
        q.block_scale.view(torch.uint8).numpy(),
        q.tensor_scale.numpy()[0],
        values.numpy(),
    )


def same(a: np.ndarray, b: np.ndarray) -> bool:
    """The same bits: 0.0 is not -0.0."""
    a, b = np.asarray(a), np.asarray(b)
    return a.shape == b.shape and a.tobytes() == b.astype(a.dtype).tobytes()


def test_more_than_a_thousand_tensors_equal_modelopt_bit_for_bit(tensors):
    finite = 0
    for name, w in tensors.items():
        theirs = modelopt(w.float().numpy())
        codes, block_scale, tensor_scale, values = arrays(w)
        assert np.isfinite(values).all(), name
        if not np.isfinite(theirs[3]).all():
            assert "denormal" in name, f"{name}: ModelOpt's own result is not finite"
            continue
        finite += 1
        assert (codes == theirs[0]).all(), name
        assert same(block_scale, theirs[1]), name
        assert same(np.float32(tensor_scale), np.float32(theirs[2])), name
        assert same(values, theirs[3]), name
    print(
        f"{finite} of {len(tensors)} tensors: codes, "
        "block and tensor scales and values equal ModelOpt's to the last bit"
    )
    assert finite > 1000


def test_a_zero_tensor_and_one_too_small_to_scale_are_finite_where_modelopt_is_not():
    for w in (torch.zeros(2, 32), torch.full((2, 32), 2.0**-149)):
        assert not np.isfinite(modelopt(w.numpy())[3]).all()
        q = quantize(w)
        assert torch.equal(q.dequantize(), w) or float((q.dequantize() - w).abs().max()) < 2.0**-145
        assert bool(torch.isfinite(q.scales).all()) and bool((q.tensor_scale > 0).all())
    assert torch.equal(quantize(torch.zeros(2, 32)).dequantize(), torch.zeros(2, 32))


# ---- torchao -------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def torchao():
    """torchao's NVFP4, whose plain PyTorch path runs on the CPU."""
    from torchao.prototype.mx_formats import nvfp4_tensor

    return nvfp4_tensor


def by_torchao(torchao, w: Tensor) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Two-level scaling on: codes, bytes of the block scales, tensor scale, dequantised."""
    scale = torchao.per_tensor_amax_to_scale(w.abs().max())
    q = torchao.NVFP4Tensor.to_nvfp4(w, per_tensor_scale=scale)
    codes = torch.stack([q.qdata & 15, q.qdata >> 4], -1).flatten(-2)
    values = q.dequantize(torch.float32) + 0.0  # -0.0 becomes 0.0
    return codes.numpy(), q.scale.view(torch.uint8).numpy(), scale.numpy(), values.numpy()


def explained(w: Tensor, ours, theirs) -> dict[str, int]:
    """The places where torchao differs, each with its reason; -1 where there is none."""
    reasons = (
        "scale under 2**-6",
        "zero block",
        "scale at a tie",
        "negative zero",
        "code at a tie",
        "unexplained",
    )
    counts = dict.fromkeys(reasons, 0)
    blocks = w.float().numpy().reshape(*w.shape[:-1], -1, BLOCK)
    largest = np.abs(blocks).max(-1)
    for at in zip(*np.nonzero(ours[1] != theirs[1]), strict=True):
        pair = sorted((int(ours[1][at]), int(theirs[1][at])))
        edge = (E4M3[pair[0]] + E4M3[pair[1]]) / 2
        wanted = float(largest[at]) / 6 / float(ours[2])
        if largest[at] == 0:
            counts["zero block"] += 1
        elif theirs[1][at] == 8 and ours[1][at] < 8:  # byte 8 is 2**-6
            counts["scale under 2**-6"] += 1
        elif pair[1] - pair[0] == 1 and abs(wanted / edge - 1) < 3e-7:
            counts["scale at a tie"] += 1
        else:
            counts["unexplained"] += 1
    scaled = blocks / (E4M3[ours[1]] * float(ours[2]))[..., None]
    other = (ours[0] != theirs[0]).reshape(blocks.shape) & (ours[1] == theirs[1])[..., None]
    for at in zip(*np.nonzero(other), strict=True):
        tie = min(abs(abs(float(scaled[at])) / m - 1) for m in MIDPOINTS)
        if blocks[at] == 0 and np.signbit(blocks[at]):
            counts["negative zero"] += 1
        else:
            counts["code at a tie" if tie < 4e-7 else "unexplained"] += 1
    return counts


def test_torchao_gives_the_same_bits_but_for_the_differences_named_above(tensors, torchao):
    total, equal, compared, weights = {}, 0, 0, 0
    for name, w in tensors.items():
        theirs = by_torchao(torchao, w)
        if "denormal" in name:  # it divides by 1 / scale, which is infinite there
            continue
        ours = arrays(w)
        assert same(np.float32(ours[2]), theirs[2]), name
        compared, weights = compared + 1, weights + w.numel()
        if all(same(np.asarray(a), np.asarray(b)) for a, b in zip(ours, theirs, strict=True)):
            equal += 1
            continue
        here = explained(w, ours, theirs)
        assert here["unexplained"] == 0 and sum(here.values()) > 0, f"{name}: {here}"
        total = {reason: total.get(reason, 0) + n for reason, n in here.items()}
        alike = (ours[0] == theirs[0]) & (ours[1] == theirs[1]).repeat(BLOCK, -1)
        assert same(ours[3][alike], theirs[3][alike]), name
    print(
        f"torchao: {equal} of {compared} tensors equal to the last bit; "
        f"of {weights:,} weights differ: {total}"
    )
    assert compared > 1000 and equal > compared / 3


def test_mxfp4_equals_torchao_bit_for_bit(tensors, torchao):
    from torchao.prototype.mx_formats.kernels import unpack_uint4
    from torchao.prototype.mx_formats.mx_tensor import to_mx

    for name, w in tensors.items():
        if "denormal" in name or w.shape[-1] % 32:  # torchao's smallest scale is 2**-126
            continue
        scale, packed = to_mx(w.contiguous(), torch.float4_e2m1fn_x2, 32)
        q = mxfp4(w)
        zero = w.float().unflatten(-1, (-1, 32)).abs().amax(-1) == 0
        assert torch.equal(q.scale.view(torch.uint8)[~zero], scale.view(torch.uint8)[~zero]), name
        signed_zero = (w == 0) & torch.signbit(w)
        assert torch.equal(
            q.codes[~signed_zero], unpack_uint4(packed.view(torch.uint8))[~signed_zero]
        ), name
