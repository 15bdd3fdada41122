"""The draw by cumulative sum against the race of exponential clocks, for every position of a
canvas.

    python benchmarks/draw.py [--canvas 256] [--vocabulary 8192]
"""

from __future__ import annotations

import torch
from compare import Ratio, in_turns, parsed, say

from diffgemma_lite.sampler import draw_tokens


def main(arguments: list[str] | None = None) -> Ratio:
    given = parsed(__doc__, arguments, canvas=256, vocabulary=8192)
    g = torch.Generator(device=given.device).manual_seed(0)
    logits = 4 * torch.randn(1, given.canvas, given.vocabulary, device=given.device, generator=g)
    sure = torch.zeros_like(logits)
    sure[..., 3] = 80.0  # where there is no doubt, both must draw the same
    assert all(bool((draw_tokens(sure, g, draw) == 3).all()) for draw in ("race", "cdf"))
    race, cdf = (lambda draw=draw: draw_tokens(logits, g, draw) for draw in ("race", "cdf"))
    ratio = in_turns(race, cdf, given.device, seconds=given.seconds)
    return say(
        f"race / cdf, {given.canvas} positions, {given.vocabulary} words",
        "race",
        "cdf",
        ratio,
        given.device,
    )


if __name__ == "__main__":
    main()
