"""A denoising step that reads the cached prefix against one that encodes the prefix again.

python benchmarks/cached_decode.py [--prefix 512] [--canvas 64]
"""

from __future__ import annotations

import torch
from compare import Ratio, in_turns, parsed, say

from diffgemma_lite.measure.steps import LAPTOP, random_model


def main(arguments: list[str] | None = None) -> Ratio:
    given = parsed(__doc__, arguments, prefix=512, canvas=64)
    model = random_model(LAPTOP, given.device)
    g = torch.Generator(device=given.device).manual_seed(0)
    sizes = (given.prefix, given.canvas)
    prompt, canvas = (
        torch.randint(LAPTOP.vocab_size, (1, n), device=given.device, generator=g) for n in sizes
    )
    cache = model.encode(prompt)

    def again():
        return model.decode(canvas, model.encode(prompt))

    def cached():
        return model.decode(canvas, cache)

    assert torch.allclose(again(), cached(), atol=1e-4), "the cache changes the logits"
    ratio = in_turns(again, cached, given.device, seconds=given.seconds)
    claim = f"prefix encoded again / cached, prefix {given.prefix}, canvas {given.canvas}"
    return say(claim, "encoded again", "cached", ratio, given.device)


if __name__ == "__main__":
    main()
