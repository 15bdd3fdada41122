"""The fused norm against the one written out, on the rows of one canvas.

python benchmarks/norm_fused.py [--rows 256] [--width 512]
"""

from __future__ import annotations

import torch
from compare import Ratio, in_turns, parsed, say

from diffgemma_lite.layers import RMSNorm


def main(arguments: list[str] | None = None) -> Ratio:
    given = parsed(__doc__, arguments, rows=256, width=512)
    g = torch.Generator(device=given.device).manual_seed(0)
    x = torch.randn(given.rows, given.width, device=given.device, generator=g)
    plain, fused = (
        RMSNorm(given.width, 1e-6, device=given.device).requires_grad_(False) for _ in range(2)
    )
    fused.fused = True
    assert torch.allclose(plain(x), fused(x), atol=1e-5), (
        "the two norms differ by more than rounding"
    )
    ratio = in_turns(lambda: plain(x), lambda: fused(x), given.device, seconds=given.seconds)
    return say(
        f"written out / fused, {given.rows} x {given.width}",
        "written out",
        "fused",
        ratio,
        given.device,
    )


if __name__ == "__main__":
    main()
