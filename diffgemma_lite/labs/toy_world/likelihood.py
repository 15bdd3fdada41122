"""The bound of labs/likelihood.py in a toy world, where it can be compared with the truth: the
exact belief as a denoiser, and the bound without any drawing. Notebook 06.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from ...checks import check_integer
from ..likelihood import Denoiser, step_cost
from .world import World


def world_denoiser(world: World, told: bool = True) -> Denoiser:
    """The exact belief of a toy world, told the noise level or not."""

    def believe(x_t: Tensor, t: Tensor) -> Tensor:
        rows = zip(t.tolist(), world.number(x_t).tolist(), strict=True)
        return torch.stack(
            [world.belief(level if told else None)[number] for level, number in rows]
        )

    return believe


def toy_bound(world: World, steps: int, beliefs: Callable[[float], Tensor] | None = None) -> float:
    """The bound in a toy world without any drawing, nats per text, averaged over its texts. None:
    the exact belief, told t.

    beliefs(t): what is believed in each of the S canvases, [S, C, V].
    """
    check_integer("steps", steps, 1)
    v, c, s = len(world.words), world.length, len(world.joint)
    # [S, S] positions in which they agree
    equal = (world.canvases[:, None] == world.canvases).sum(-1).double()
    total = 0.0
    for n in range(steps):
        t = (n + 1) / steps
        # [S] probability of each canvas
        reached = ((1 - t + t / v) ** equal * (t / v) ** (c - equal)) @ world.joint
        true, believed = world.belief(t), (beliefs or world.belief)(t)
        levels = (
            torch.full((s,), t, dtype=torch.float64),
            torch.full((s,), n / steps, dtype=torch.float64),
        )
        for word in range(v):  # the clean word at a position
            cost = step_cost(
                world.canvases, torch.full_like(world.canvases, word), believed, *levels
            )
            total += float(
                (
                    reached[:, None] * true[..., word] * torch.where(true[..., word] > 0, cost, 0.0)
                ).sum()
            )
    return total
