"""NVFP4 on a GPU that multiplies it.

The layout of the scales against torchao, the product against the simulation.
"""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from tiny import generator, refused
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode

from diffgemma_lite.nvfp4 import NVFP4Linear, NVFP4Tensor, quantize
from diffgemma_lite.nvfp4 import native as module
from diffgemma_lite.nvfp4.native import has_native_nvfp4, native_linear, scaled_product, tiled

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


@pytest.mark.parametrize("shape", [(128, 64), (256, 192), (1, 16), (130, 80), (48, 1024)])
def test_block_scales_lie_as_torchao_lays_them(shape):
    from torchao.prototype.mx_formats.utils import to_blocked

    scales = quantize(torch.randn(shape, generator=generator())).block_scale
    theirs = to_blocked(scales.view(torch.uint8)).flatten()
    assert (
        torch.equal(tiled(scales).view(torch.uint8), theirs)
        and tiled(scales).dtype == torch.float8_e4m3fn
    )


@pytest.mark.parametrize(("rows", "width", "out"), [(150, 256, 128), (1, 32, 16), (130, 96, 48)])
def test_torch_takes_these_tensors(rows, width, out, unchecked):
    """torch's own check of dtypes, shapes, strides and number of scales, run as on a GPU.

    It computes nothing.
    """
    x, w = (quantize(torch.randn(n, width, generator=generator())) for n in (rows, out))
    with FakeTensorMode(allow_non_fake_inputs=True) as mode:
        q, v = (on_fake_gpu(mode, t) for t in (x, w))
        product = scaled_product(q, v)
        assert (
            product.shape == (rows, out)
            and product.dtype == torch.bfloat16
            and product.device.type == "cuda"
        )
        with pytest.raises(RuntimeError, match="scale"):
            scaled_product(q, replace(v, block_scale=v.block_scale.repeat(9, 1)))


def on_fake_gpu(mode, t: NVFP4Tensor) -> NVFP4Tensor:
    named = ("packed", "block_scale", "tensor_scale")
    fakes = {name: mode.from_tensor(getattr(t, name).clone()) for name in named}
    return replace(
        t, **{name: torch.empty_like(fake, device="cuda") for name, fake in fakes.items()}
    )


def untiled(flat: torch.Tensor, rows: int, blocks: int) -> torch.Tensor:
    """What the hardware reads at (row, block), by the address in cuBLAS's documentation, one at a
    time.
    """
    across = -(-blocks // 4)
    found = torch.empty(rows, blocks)
    for r in range(rows):
        for b in range(blocks):
            tile = (r // 128) * across + b // 4
            found[r, b] = flat[tile * 512 + (r % 32) * 16 + (r % 128 // 32) * 4 + b % 4].float()
    return found


def emulated(a, b, scale_a, scale_b, *, out_dtype):
    """`torch._scaled_mm` in plain float64: unpack, scale each block by what stands at its address,
    sum.
    """

    def values(packed: torch.Tensor, flat: torch.Tensor) -> torch.Tensor:
        raw = packed.view(torch.uint8)
        codes = torch.stack([raw & 15, raw >> 4], -1).flatten(1).long()
        numbers = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6], dtype=torch.float64)
        plain = torch.cat([numbers, -numbers])[codes]
        scales = untiled(flat, len(raw), plain.shape[1] // 16).double()
        return plain * scales.repeat_interleave(16, 1)

    return (values(a, scale_a) @ values(b.t(), scale_b).t()).to(out_dtype)


def test_what_is_around_the_product_agrees_with_the_simulation(monkeypatch):
    """Tiles, tensor scales, shapes and dtype, with the product itself in plain float64."""
    monkeypatch.setattr(torch, "_scaled_mm", emulated)
    monkeypatch.setattr(module, "has_native_nvfp4", lambda device: True)
    layer, x = nn.Linear(96, 144, bias=False), torch.randn(3, 50, 96, generator=generator(1))
    scale = x.abs().max() / (6 * 448)
    simulated = NVFP4Linear.from_linear(layer, scale)(x)
    native = native_linear(x, quantize(layer.weight.detach()), scale)
    assert native.shape == simulated.shape and native.dtype == x.dtype
    worst = float((native - simulated).abs().max() / simulated.abs().max())
    print(
        f"emulated product against simulation: largest difference {worst:.1e} of the largest output"
    )
    assert worst < 2**-8  # the product is rounded to bfloat16


@pytest.mark.skipif(
    not has_native_nvfp4(DEVICE), reason="no GPU that multiplies NVFP4 (capability 10.0)"
)
def test_the_hardware_agrees_with_the_simulation():
    layer = nn.Linear(256, 128, bias=False, device=DEVICE)
    x = torch.randn(3, 50, 256, device=DEVICE, dtype=torch.bfloat16)
    scale = x.abs().max().float() / (6 * 448)
    simulated = NVFP4Linear.from_linear(layer, scale)(x.float())
    native = native_linear(x, quantize(layer.weight.detach()), scale).float()
    worst = float((native - simulated).abs().max() / simulated.abs().max())
    print(f"hardware against simulation: largest difference {worst:.1e} of the largest output")
    assert worst < 2**-7  # the result is bfloat16


def test_without_such_a_gpu_it_says_so():
    with refused("x", "cpu", "capability 10"):
        native_linear(torch.ones(2, 32), quantize(torch.ones(16, 32)), torch.tensor(1.0))
    assert not has_native_nvfp4("cpu")
