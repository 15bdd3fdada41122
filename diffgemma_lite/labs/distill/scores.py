"""What distillation gained and what it cost: accuracy at a limit on the steps, and variety.

Notebook 09.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import torch

from ...model import DiffusionGemma
from ...sampler import SamplerConfig
from ..scores import share
from .questions import Questions
from .teacher import answers


def step_curve(
    model: DiffusionGemma,
    q: Questions,
    sampler: SamplerConfig,
    limits: tuple[int, ...],
    seed: int = 0,
) -> list[dict]:
    """Accuracy with its interval, and mean steps (and tokens written, of a text), for each limit on
    the steps.
    """
    rows = []
    for limit in limits:
        a = answers(model, q, replace(sampler, max_denoising_steps=limit), seed=seed)
        right = int(a.right.sum())
        rows.append(
            {"limit": limit, "right": share(right, len(q)), "steps": float(a.steps.float().mean())}
        )
        if q.end is not None:
            rows[-1]["tokens"] = float((a.canvas != q.end).sum(1).float().mean())
    return rows


def variety(
    model: DiffusionGemma, q: Questions, sampler: SamplerConfig, draws: int = 4, count: int = 32
) -> float | None:
    """Different right answers to one question, as a share of its right answers.

    The mean over the questions that have two or more right answers, None if there is none.
    """
    rows = torch.arange(min(count, len(q)))
    mask = None if q.mask is None else q.mask[rows]
    some = replace(q, ids=q.ids[rows], mask=mask, known=q.known[rows], pinned=q.pinned[rows])
    tried = [answers(model, some, sampler, seed=100 + d) for d in range(draws)]
    found = [
        [tuple(a.canvas[n].tolist()) for a in tried if bool(a.right[n])] for n in range(len(some))
    ]
    shares = [len(set(each)) / len(each) for each in found if len(each) > 1]
    return sum(shares) / len(shares) if shares else None


def by_family(
    base: Path, taught: Path, sampler: SamplerConfig, few_steps: int, count: int
) -> list[dict]:
    """Valid records and steps of every family, also those that were not asked about.

    The base, the taught model with the limit it was taught for, and the taught model with the
    base's limit. Each {"stage", "limit", "found": {family: {"valid", "passes"}}}.
    """
    from ...tokenizer import Tokenizer
    from ..records.data import FAMILIES, records
    from ..records.scores import denoise_records, score_records

    tokenizer, rows, most = Tokenizer.load(base), [], sampler.max_denoising_steps
    for stage, folder, limit in (
        ("before", base, most),
        ("after", taught, few_steps),
        ("after", taught, most),
    ):
        model, found = DiffusionGemma.from_pretrained(folder, dtype=torch.float32), {}
        model.to(torch.bfloat16).to(torch.float32)  # as it is stored
        for family in FAMILIES:
            asked = records("test", count, seed=2, families=(family,))
            written = denoise_records(
                model, tokenizer, asked, replace(sampler, max_denoising_steps=limit)
            )
            scored = score_records(tokenizer, asked, written)
            found[family] = {part: scored[part] for part in ("valid", "passes")}
        right = sum(round(x["valid"]["share"] * count) for x in found.values())
        steps = sum(x["passes"] for x in found.values()) / len(found)
        found["all"] = {"valid": share(right, len(FAMILIES) * count), "passes": steps}
        rows.append({"stage": stage, "limit": limit, "found": found})
    return rows
