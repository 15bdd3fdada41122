"""NVFP4 on a GPU that multiplies it: the layout of the scales against torchao, the product against the simulation."""

from __future__ import annotations

import pytest
import torch
from tiny import generator, refused
from torch import nn

from diffgemma_lite.nvfp4 import NVFP4Linear, quantize
from diffgemma_lite.nvfp4_native import has_native_nvfp4, native_linear, tiled

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


@pytest.mark.parametrize("shape", [(128, 64), (256, 192), (1, 16), (130, 80), (48, 1024)])
def test_block_scales_lie_as_torchao_lays_them(shape):
    from torchao.prototype.mx_formats.utils import to_blocked

    scales = quantize(torch.randn(shape, generator=generator())).block_scale
    theirs = to_blocked(scales.view(torch.uint8)).flatten()
    assert torch.equal(tiled(scales).view(torch.uint8), theirs) and tiled(scales).dtype == torch.float8_e4m3fn


@pytest.mark.skipif(not has_native_nvfp4(DEVICE), reason="no GPU that multiplies NVFP4 (capability 10.0)")
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
