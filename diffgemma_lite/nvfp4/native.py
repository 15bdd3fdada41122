"""The same packed tensors in the hands of a GPU that multiplies four bits by four bits (NVIDIA
Blackwell).

Against the simulation of layers.py: nothing is unpacked. The block scales are laid out in tiles of
128 rows by 4 blocks as the hardware reads them, `torch._scaled_mm` sums the products in float32,
and the two tensor scales multiply the result. Without such a GPU this says so and computes nothing.
Named in notebook 10.

Source of the tile layout: cuBLAS documentation, 1D block scaling factors layout.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from .tensor import BLOCK, NVFP4Tensor, quantize

ROWS, BLOCKS = 128, 4  # of one tile
CAPABILITY = (10, 0)  # Blackwell


def has_native_nvfp4(device: torch.device | str) -> bool:
    """Whether this device multiplies NVFP4 itself."""
    device = torch.device(device)
    return device.type == "cuda" and torch.cuda.get_device_capability(device) >= CAPABILITY


def tiled(block_scale: Tensor) -> Tensor:
    """Block scales [rows, blocks] -> the flat order of the hardware.

    Tiles of 128 x 4, in a tile row r at (r % 32, r // 32).

    Rows and blocks that fill up the last tiles are zero.
    """
    rows, blocks = block_scale.shape
    bytes_ = F.pad(block_scale.view(torch.uint8), (0, -blocks % BLOCKS, 0, -rows % ROWS))
    tiles = bytes_.unflatten(0, (-1, ROWS // 32, 32)).unflatten(-1, (-1, BLOCKS))
    # [row tile, r // 32, r % 32, block tile, 4] -> [row tile, block tile, r % 32, r // 32, 4]
    return tiles.permute(0, 3, 2, 1, 4).flatten().view(block_scale.dtype)


def native_linear(
    x: Float[Tensor, "*rows i"], w: NVFP4Tensor, input_scale: Tensor
) -> Float[Tensor, "*rows o"]:
    """What `NVFP4Linear` with an input_scale simulates, on hardware: [..., input] -> [..., output]
    in the dtype of x.

    Errors: ValueError for a device without NVFP4 products, and for widths and blocks its tiles do
    not take.
    """
    if not has_native_nvfp4(x.device):
        raise ValueError(
            f"x: is on {x.device}, takes a CUDA device of capability "
            f"{CAPABILITY[0]}.{CAPABILITY[1]} or more"
        )
    if w.block != BLOCK or w.shape[-1] % 32 or w.shape[0] % 16:
        raise ValueError(
            f"w: got shape {w.shape} in blocks of {w.block}, "
            f"takes multiples of 16 x 32 in blocks of {BLOCK}"
        )
    q = quantize(x.reshape(-1, x.shape[-1]), tensor_scale=input_scale)
    product = scaled_product(q, w)
    return (
        (product.float() * (q.tensor_scale * w.tensor_scale)).to(x.dtype).reshape(*x.shape[:-1], -1)
    )


def scaled_product(q: NVFP4Tensor, w: NVFP4Tensor) -> Float[Tensor, "rows o"]:
    """Codes times block scales of both, summed by the hardware: [rows, i] and [o, i] -> bfloat16,
    tensor scales left out.
    """
    four = torch.float4_e2m1fn_x2
    return torch._scaled_mm(
        q.packed.view(four),
        w.packed.view(four).t(),
        tiled(q.block_scale),
        tiled(w.block_scale),
        out_dtype=torch.bfloat16,
    )
