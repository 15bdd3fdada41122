"""A denoising step with weights in NVFP4 against the same in float.

What unpacking them at every use costs on this device.

    python benchmarks/nvfp4.py [--prefix 64] [--canvas 64]
"""

from __future__ import annotations

import torch
from compare import Ratio, in_turns, parsed, say

from diffgemma_lite import Config
from diffgemma_lite.measure.steps import random_model
from diffgemma_lite.nvfp4 import calibrate, quantize_model, round_model, stored_bytes

LAPTOP = Config.preset("python_small")  # the shape of the shipped model


def main(arguments: list[str] | None = None) -> list[Ratio]:
    given = parsed(__doc__, arguments, prefix=64, canvas=64)
    model = random_model(LAPTOP, given.device)
    g = torch.Generator(device=given.device).manual_seed(0)
    sizes = (given.prefix, given.canvas)
    prompt, canvas = (
        torch.randint(LAPTOP.vocab_size, (1, n), device=given.device, generator=g) for n in sizes
    )

    def step(one):
        cache = one.encode(prompt)
        return lambda: one.decode(canvas, cache)

    ratios, plain = [], step(model)
    scales = calibrate(model, lambda one: step(one)())
    for name, parts, inputs in (
        ("experts", "experts", None),
        ("everything", "everything", None),
        ("experts, inputs too", "experts", scales),
    ):
        packed = quantize_model(model, parts, input_scales=inputs)
        work = step(packed)
        if inputs is None:
            assert torch.allclose(work(), step(round_model(model, parts))(), atol=1e-4), (
                "packed weights compute something else"
            )
        ratio = in_turns(work, plain, given.device, seconds=given.seconds)
        size = stored_bytes(packed) / stored_bytes(model)
        ratios.append(
            say(
                f"{name} in NVFP4 / float, {size:.2f} of the bytes",
                "NVFP4",
                "float",
                ratio,
                given.device,
            )
        )
    return ratios


if __name__ == "__main__":
    main()
