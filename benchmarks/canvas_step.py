"""A step for a canvas against a step for one token, sampling included.

How many tokens' time a canvas takes.

    python benchmarks/canvas_step.py [--canvas 256] [--batch 1]
"""

from __future__ import annotations

from compare import Ratio, in_turns, parsed, say

from diffgemma_lite.measure import MODELS
from diffgemma_lite.measure.steps import random_model, step_work


def main(arguments: list[str] | None = None) -> list[Ratio]:
    given = parsed(__doc__, arguments, canvas=256, batch=1, prefix=128)
    ratios = []
    for name, config in MODELS.items():
        model, size = (
            random_model(config, given.device),
            dict(batch=given.batch, prefix=given.prefix),
        )
        canvas = step_work(model, "canvas", queries=given.canvas, **size)
        token = step_work(model, "autoregressive", queries=1, **size)
        assert canvas().sampled.shape == (given.batch, given.canvas) and token()[0].shape == (
            given.batch,
        )
        ratio = in_turns(canvas, token, given.device, seconds=given.seconds)
        claim = f"canvas of {given.canvas} / one token, model {name!r}, batch {given.batch}"
        ratios.append(say(claim, "canvas", "one token", ratio, given.device))
    return ratios


if __name__ == "__main__":
    main()
