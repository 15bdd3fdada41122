"""The reference's choice of experts.

Recorded, and forced on ours where sums are taken in another order.

Two experts that score the same to five digits are chosen between by rounding, and the other choice
looks like a large bug.
"""

from __future__ import annotations

from contextlib import contextmanager
from unittest import mock

import torch
from torch import Tensor, nn

from diffgemma_lite.moe import Router

NEAR_TIE = 1e-4  # a router gap below this is a tie that rounding may decide


@contextmanager
def recorded_routing(reference: nn.Module):
    """Yields a list that fills with (experts [T, k], gap [T]) of every router call of the
    reference, in order.

    The gap is how far the last chosen expert's probability stands above the first unchosen one's:
    where it is tiny, another order of summation may choose another expert.
    """
    calls: list[tuple[Tensor, Tensor]] = []

    def note(_module: nn.Module, _args, out) -> None:
        probs, _weights, index = (t.detach() for t in out)
        top, k = probs.sort(dim=-1, descending=True).values, index.shape[-1]
        gap = (
            top[:, k - 1] - top[:, k]
            if k < top.shape[-1]
            else torch.full_like(top[:, 0], torch.inf)
        )
        calls.append((index, gap))

    hooks = [
        m.register_forward_hook(note) for n, m in reference.named_modules() if n.endswith("router")
    ]
    try:
        yield calls
    finally:
        for hook in hooks:
            hook.remove()


@contextmanager
def forced_routing(calls: list[tuple[Tensor, Tensor]]):
    """Our routers choose the experts of `calls`, one entry a call, so that a near-tie does not
    become a difference.

    Where the gap was above NEAR_TIE they must have chosen the same experts anyway: that is
    asserted, so nothing hides here.
    """
    left, original = list(calls), Router.forward

    def forward(self: Router, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        _, own, probs = original(self, x)
        index, gap = left.pop(0)
        clear = gap > NEAR_TIE
        assert torch.equal(own.sort(-1).values[clear], index.sort(-1).values[clear]), (
            "the router chose other experts"
        )
        weights = probs.gather(-1, index)
        return weights / weights.sum(-1, keepdim=True) * self.per_expert_scale[index], index, probs

    with mock.patch.object(Router, "forward", forward):
        yield
    assert not left, f"{len(left)} router calls of the reference had no counterpart"
