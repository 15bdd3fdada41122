"""What distillation gained and what it cost: accuracy at a limit on the steps, and variety.

Notebook 09.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import torch

from ...model import DiffusionGemma
from ...sampler import SamplerConfig
from ...tokenizer import Tokenizer
from ..records.data import FAMILIES, records
from ..records.scores import denoise_records, score_records
from ..scores import share
from .data import Questions, questions, read_recipe
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


def evaluate_run(recipe: str | Path, *, n: int | None = None, seed: int = 0) -> dict:
    """The curve of the weights beside the recipe, beside that of the model they were taught from.

    n: test questions (None: as many as the recipe says). Errors: ValueError where no weights lie.
    """
    folder, plan = Path(recipe).parent, read_recipe(recipe)
    if not (folder / "model.safetensors").exists():
        raise ValueError(
            f"recipe: {folder} holds no weights, they were not worth keeping; "
            "its train writes what was found into scores.json"
        )
    base = folder.parent / plan["base"]
    models = {
        stage: DiffusionGemma.from_pretrained(at, dtype=torch.float32)
        for stage, at in (("before", base), ("after", folder))
    }
    changes = {"draw": "cdf"} | plan.get("sampler", {})
    sampler = SamplerConfig.from_defaults(models["before"].generation_defaults, **changes)
    asked = plan | ({} if n is None else {"questions": 1, "tests": n})
    tests = questions(asked, base, models["before"])[1]
    limits = tuple(plan["limits"])
    return {
        stage: {"seed": seed, "curve": step_curve(model, tests, sampler, limits, seed)}
        for stage, model in models.items()
    }
