"""Grouped experts against the plain loop over experts, on the tokens of one canvas.

python benchmarks/experts_grouped.py [--tokens 256]
"""

from __future__ import annotations

from dataclasses import replace

import torch
from compare import Ratio, in_turns, parsed, say

from diffgemma_lite.measure.steps import LAPTOP
from diffgemma_lite.moe import Experts, Router


def main(arguments: list[str] | None = None) -> Ratio:
    given = parsed(__doc__, arguments, tokens=256, experts=LAPTOP.num_experts)
    config = replace(
        LAPTOP, num_experts=given.experts, top_k_experts=min(given.experts, LAPTOP.top_k_experts)
    )
    torch.manual_seed(0)
    router, experts = Router(config, device=given.device), Experts(config, device=given.device)
    x = torch.randn(given.tokens, config.hidden_size, device=given.device)
    with torch.no_grad():
        for p in experts.parameters():
            p.normal_(0.0, 0.02)
        weights, index, _ = router(x)
        difference = (
            (experts.loop(x, weights, index) - experts.grouped(x, weights, index)).abs().max()
        )
        assert difference < 1e-4 * experts.loop(x, weights, index).abs().max(), (
            "the two paths differ by more than rounding"
        )
    loop, grouped = (
        lambda path=path: path(x, weights, index) for path in (experts.loop, experts.grouped)
    )
    ratio = in_turns(loop, grouped, given.device, seconds=given.seconds)
    claim = (
        f"loop / grouped, {given.tokens} tokens, {config.num_experts} experts, "
        f"{config.top_k_experts} a token"
    )
    return say(claim, "loop", "grouped", ratio, given.device)


if __name__ == "__main__":
    main()
