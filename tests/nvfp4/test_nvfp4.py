"""The sixteen codes, blocks and scales: every rule by hand.

Equality with other implementations is in tests/parity.
"""

from __future__ import annotations

import math

import pytest
import torch
from tiny import generator, refused

from diffgemma_lite.nvfp4 import FORMATS, dequantize, quantize, round_trip, snr_db
from diffgemma_lite.nvfp4.codes import (
    E2M1,
    MIDPOINTS,
    decode,
    decode_packed,
    pack,
    round_to_codes,
    unpack,
)
from diffgemma_lite.nvfp4.formats import mxfp4

EVERY_CODE = torch.arange(16, dtype=torch.uint8)


def normal(*shape: int, std: float = 1.0, seed: int = 0) -> torch.Tensor:
    return std * torch.randn(*shape, generator=generator(seed))


# ---- codes ---------------------------------------------------------------------------------------


def test_the_codes_stand_for_the_published_numbers():
    assert decode(EVERY_CODE).tolist() == [
        0,
        0.5,
        1,
        1.5,
        2,
        3,
        4,
        6,
        0,
        -0.5,
        -1,
        -1.5,
        -2,
        -3,
        -4,
        -6,
    ]
    assert MIDPOINTS == (0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0)


def test_a_tie_goes_to_the_even_code_and_its_neighbours_to_the_nearer_one():
    ties = torch.tensor(MIDPOINTS)
    assert decode(round_to_codes(ties)).tolist() == [0, 1, 1, 2, 2, 4, 4]
    assert round_to_codes(ties).tolist() == [0, 2, 2, 4, 4, 6, 6]
    assert round_to_codes(torch.nextafter(ties, torch.tensor(0.0))).tolist() == list(range(7))
    assert round_to_codes(torch.nextafter(ties, torch.tensor(9.0))).tolist() == list(range(1, 8))
    assert round_to_codes(-ties).tolist() == [8, 10, 10, 12, 12, 14, 14]


def test_beyond_six_is_six_and_a_negative_zero_is_code_zero():
    assert round_to_codes(torch.tensor([6.0, 7.0, 1e30, math.inf, -6.5, -math.inf])).tolist() == [
        7,
        7,
        7,
        7,
        15,
        15,
    ]
    assert round_to_codes(torch.tensor([0.0, -0.0, 1e-30, -1e-30])).tolist() == [0, 0, 0, 8]


def test_every_number_of_the_format_comes_back():
    numbers = decode(EVERY_CODE)
    for rounding in ("nearest", "stochastic"):
        assert torch.equal(decode(round_to_codes(numbers, rounding, generator())), numbers)


def test_two_codes_share_a_byte_the_even_column_in_the_low_half():
    assert pack(torch.tensor([[1, 2, 15, 0]], dtype=torch.uint8)).tolist() == [[0x21, 0x0F]]
    codes = torch.randint(0, 16, (3, 2, 8), generator=generator(), dtype=torch.uint8)
    assert torch.equal(unpack(pack(codes)), codes) and torch.equal(
        decode_packed(pack(codes)), decode(codes)
    )
    with refused("codes", "3"):
        pack(torch.zeros(2, 3, dtype=torch.uint8))


def test_stochastic_rounding_takes_the_two_neighbours_and_is_right_on_average():
    for value in (0.1, 0.6, 2.75, 4.5, -1.1, -5.9, 8.0):
        drawn = decode(round_to_codes(torch.full((20_000,), value), "stochastic", generator()))
        kept = max(-6.0, min(6.0, value))
        low = max(v for v in E2M1 if v <= abs(kept))
        high = min(v for v in E2M1 if v >= abs(kept))
        assert set(drawn.abs().tolist()) <= {low, high}
        assert abs(float(drawn.mean()) - kept) <= 4 * (high - low) / math.sqrt(20_000)
    again = [round_to_codes(normal(64), "stochastic", generator(3)) for _ in range(2)]
    assert torch.equal(*again)


# ---- blocks and scales ---------------------------------------------------------------------------


def test_a_block_worked_out_by_hand():
    w = torch.zeros(1, 32)
    # tensor scale 1; block scales 448 and 1
    w[0, 0], w[0, 1], w[0, 16], w[0, 17] = 2688.0, 1000.0, 6.0, -1.3
    q = quantize(w)
    assert q.tensor_scale.tolist() == [1.0] and q.block_scale.float().tolist() == [[448.0, 1.0]]
    assert q.codes[0, [0, 1, 2, 16, 17]].tolist() == [7, 4, 0, 7, 11]
    assert q.dequantize()[0, [0, 1, 16, 17]].tolist() == [2688.0, 896.0, 6.0, -1.5]
    assert q.packed.shape == (1, 16) and q.nbytes == 16 + 2 + 4


@pytest.mark.parametrize("shape", [(5,), (1,), (3, 17), (2, 3, 33), (2, 2, 2, 40)])
@pytest.mark.parametrize("block", [8, 16, 32, 64])
def test_odd_widths_are_padded_and_remembered(shape, block):
    w = normal(*shape)
    q = quantize(w, block=block)
    assert q.packed.shape[-1] * 2 % block == 0 and q.codes.shape == q.dequantize().shape == w.shape
    wide = torch.zeros(*shape[:-1], q.packed.shape[-1] * 2)
    wide[..., : shape[-1]] = w
    assert torch.equal(quantize(wide, block=block).dequantize()[..., : shape[-1]], q.dequantize())


def test_any_stride_and_dtype_gives_the_same_codes():
    w = normal(32, 48).to(torch.bfloat16)
    straight = quantize(w)
    for view in (w.T.contiguous().T, w.repeat(1, 2)[:, :48], w.float(), w.double()):
        assert torch.equal(quantize(view).packed, straight.packed)
    assert (
        straight.dequantize().dtype == torch.bfloat16
        and dequantize(straight, torch.float32).dtype == torch.float32
    )


def test_zero_blocks_and_zero_tensors_are_exact():
    w = normal(4, 64)
    w[1, 16:32] = 0
    q = quantize(w)
    assert float(q.block_scale[1, 1].float()) == 1.0 and bool((q.dequantize()[1, 16:32] == 0).all())
    zero = quantize(torch.zeros(4, 20))
    assert torch.equal(zero.dequantize(), torch.zeros(4, 20)) and zero.tensor_scale.tolist() == [
        1.0
    ]


def test_a_smaller_tensor_scale_saturates_and_never_becomes_nan():
    w = normal(8, 64)
    q = quantize(w, tensor_scale=float(w.abs().max()) / (6 * 448) / 10)
    values = q.dequantize()
    assert bool(torch.isfinite(values).all()) and float(q.block_scale.float().max()) == 448.0
    assert float(values.abs().max()) == pytest.approx(float(w.abs().max()) / 10)


def test_each_tensor_of_a_stack_has_a_scale_of_its_own():
    w = normal(3, 8, 32) * torch.tensor([1.0, 0.01, 100.0])[:, None, None]
    q = quantize(w, stacked=True)
    for i in range(3):
        alone = quantize(w[i])
        assert torch.equal(alone.packed, q[i].packed) and torch.equal(
            alone.tensor_scale, q[i].tensor_scale
        )
        assert torch.equal(alone.dequantize(), q.dequantize()[i]) and torch.equal(
            q[i].dequantize(), alone.dequantize()
        )
    assert quantize(w).tensor_scale.shape == (1,)


def test_the_noise_of_gaussian_weights_and_what_the_tensor_scale_is_for():
    for std in (1.0, 0.02, 0.001):
        w = normal(256, 512, std=std)
        assert snr_db(w, quantize(w).dequantize()) == pytest.approx(20.4, abs=0.15)
    one_level = dict(tensor_scale=1.0)
    # every block scale rounds to zero
    assert snr_db(w, quantize(w, **one_level, min_scale=0.0).dequantize()) == 0.0
    # or sits on 2**-9
    assert snr_db(w, quantize(w, **one_level).dequantize()) == pytest.approx(11, abs=1)
    assert snr_db(
        normal(256, 512), quantize(normal(256, 512), **one_level).dequantize()
    ) == pytest.approx(20.4, abs=0.3)


# ---- the other formats ---------------------------------------------------------------------------


def test_mxfp4_scales_are_powers_of_two_and_cut_off_what_is_above_six():
    w = torch.zeros(1, 32)
    w[0, :4] = torch.tensor([7.9, 1.0, -3.5, 0.2])
    q = mxfp4(w)
    assert q.scale.float().tolist() == [[1.0]] and q.values[0, :4].tolist() == [6.0, 1.0, -4.0, 0.0]
    assert mxfp4(torch.zeros(2, 40)).values.tolist() == torch.zeros(2, 40).tolist()
    assert mxfp4(torch.full((1, 32), 2.0**-149)).values.isfinite().all()


def test_bits_a_weight_count_the_scales():
    w = normal(64, 128)
    assert {name: FORMATS[name](w).bits for name in ("mxfp4", "int4", "fp8")} == {
        "mxfp4": 4.25,
        "int4": 4.5,
        "fp8": 8.25,
    }
    assert FORMATS["nvfp4"](w).bits == pytest.approx(4.5, abs=0.01)


def test_formats_in_the_order_of_their_noise():
    w = normal(256, 512, std=0.02)
    noise = {name: snr_db(w, round_trip(w, name)) for name in FORMATS}
    assert noise["mxfp4"] < noise["int4"] < noise["nvfp4"] + 1 and noise["fp8"] > noise["nvfp4"] + 8
    for name in FORMATS:
        assert torch.equal(round_trip(torch.zeros(3, 10), name), torch.zeros(3, 10))
        assert round_trip(w[:, :77], name).shape == (256, 77)
    assert snr_db(w, w) == math.inf


def test_smaller_blocks_are_finer():
    w = normal(256, 512)
    noise = [snr_db(w, quantize(w, block=block).dequantize()) for block in (8, 16, 32, 64)]
    assert noise == sorted(noise, reverse=True)


# ---- bad input -----------------------------------------------------------------------------------


@pytest.mark.usefixtures("unchecked")
def test_bad_input_is_named():
    w = normal(4, 32)
    for bad in (
        torch.zeros(2, 16, dtype=torch.uint8),
        quantize(w).packed,
        quantize(w),
        w.to(torch.float8_e4m3fn),
        None,
    ):
        with refused("w"):
            quantize(bad)
        with refused("w"):
            round_trip(bad, "int4")
    for bad in (
        torch.tensor(1.0),
        torch.zeros(0, 16),
        torch.tensor([[math.nan, 1.0]]),
        torch.tensor([-math.inf]),
    ):
        with refused("w"):
            quantize(bad)
    for argument, value in (
        ("block", 12),
        ("rounding", "up"),
        ("tensor_scale", 0.0),
        ("tensor_scale", math.nan),
        ("tensor_scale", torch.ones(4)),
        ("min_scale", -1.0),
    ):
        with refused(argument):
            quantize(w, **{argument: value})
    with refused("format", "nf4"):
        round_trip(w, "nf4")
    with refused("q", "Tensor"):
        dequantize(w)
