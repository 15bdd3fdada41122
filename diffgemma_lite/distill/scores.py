"""What distillation gained and what it cost: accuracy at a limit on the steps, and variety. Notebook 09."""

from __future__ import annotations

from dataclasses import replace

import torch

from ..model import DiffusionGemma
from ..sampler import SamplerConfig
from ..sudoku.evaluate import share
from .questions import Questions
from .teacher import answers


def step_curve(
    model: DiffusionGemma, q: Questions, sampler: SamplerConfig, limits: tuple[int, ...], seed: int = 0
) -> list[dict]:
    """Accuracy with its interval, and mean steps (and tokens written, of a text), for each limit on the steps."""
    rows = []
    for limit in limits:
        a = answers(model, q, replace(sampler, max_denoising_steps=limit), seed=seed)
        right = int(a.right.sum())
        rows.append({"limit": limit, "right": share(right, len(q)), "steps": float(a.steps.float().mean())})
        if q.end is not None:
            rows[-1]["tokens"] = float((a.canvas != q.end).sum(1).float().mean())
    return rows


def variety(model: DiffusionGemma, q: Questions, sampler: SamplerConfig, draws: int = 4, count: int = 32) -> float | None:
    """Different right answers to one question, as a share of its right answers.

    The mean over the questions that have two or more right answers, None if there is none.
    """
    rows = torch.arange(min(count, len(q)))
    mask = None if q.mask is None else q.mask[rows]
    some = replace(q, ids=q.ids[rows], mask=mask, known=q.known[rows], pinned=q.pinned[rows])
    tried = [answers(model, some, sampler, seed=100 + d) for d in range(draws)]
    found = [[tuple(a.canvas[n].tolist()) for a in tried if bool(a.right[n])] for n in range(len(some))]
    shares = [len(set(each)) / len(each) for each in found if len(each) > 1]
    return sum(shares) / len(shares) if shares else None
