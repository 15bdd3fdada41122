"""What distillation gained and what it cost: accuracy at a limit on the steps, and variety. Notebook 09."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

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


def by_family(base: Path, taught: Path, sampler: SamplerConfig, few_steps: int | None, count: int) -> dict[str, dict]:
    """Valid records and steps of every family, also those that were not asked about: of the base with its own limit, and of the
    taught model with the limit it was taught for."""
    from ..data.templates import FAMILIES, records
    from ..data.tokenizer import Tokenizer
    from ..structured.scores import denoise_records, score_records

    tokenizer, found = Tokenizer.load(base), {}
    limits = {"before": sampler.max_denoising_steps, "after": few_steps or sampler.max_denoising_steps}
    for stage, folder in (("before", base), ("after", taught)):
        model, some = DiffusionGemma.from_pretrained(folder, dtype=torch.float32), {}
        model.to(torch.bfloat16).to(torch.float32)  # as it is stored
        for family in FAMILIES:
            asked = records("test", count, seed=2, families=(family,))
            written = denoise_records(model, tokenizer, asked, replace(sampler, max_denoising_steps=limits[stage]))
            some[family] = {part: value for part, value in score_records(tokenizer, asked, written).items() if part != "broken"}
        hits, steps = (sum(f(x) for x in some.values()) for f in (lambda x: x["valid"]["share"], lambda x: x["passes"]))
        some["all"] = {"valid": share(round(hits * count), len(FAMILIES) * count), "passes": steps / len(FAMILIES)}
        found[stage] = {"limit": limits[stage], "found": some}
    return found
