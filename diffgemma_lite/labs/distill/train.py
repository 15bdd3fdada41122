"""A recipe for distillation: before, after, and after without the reward; scores, weights and a
card. Notebook 09.

    python -m diffgemma_lite.labs train sudoku-few-steps --out runs/distill

scores.json beside the recipe is written after each stage, and a stage that stands there is not run
again. Weights are written only if they are worth keeping: fewer steps, and no clear loss of
accuracy.
"""

from __future__ import annotations

import json
import os
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from ...checks import from_object
from ...model import DiffusionGemma
from ...sampler import SamplerConfig
from ..scores import begun_scores, write_scores
from .card import STAGES, as_shipped, words, worth_keeping, write_card
from .data import questions, read_recipe
from .evaluate import by_family, step_curve, variety
from .student import distill
from .teacher import Distillation, ask_teacher


def train_run(recipe: str | Path, out: str | Path) -> dict[str, Any]:
    """All stages that scores.json does not hold yet."""
    out, folder, recipe = Path(out), Path(recipe).parent, read_recipe(recipe)
    distil = from_object("distil", Distillation, recipe["distil"])
    base, path = folder.parent / recipe["base"], folder / "scores.json"
    model = DiffusionGemma.from_pretrained(base, dtype=torch.float32)
    sampler = SamplerConfig.from_defaults(
        model.generation_defaults, draw="cdf", **recipe.get("sampler", {})
    )
    asked, tests = questions(recipe, base, model)
    scores, tried, few_steps = begun_scores(path, base), None, distil.few_steps
    for stage in STAGES:
        if stage in scores:
            continue
        model = DiffusionGemma.from_pretrained(base, dtype=torch.float32).set_kernels(
            fused_norm=True
        )
        start, log = time.perf_counter(), []
        if stage != "before":
            plan = replace(distil, rewarded=stage == "after")
            # both stages begin with the base's answers
            tried = tried or ask_teacher(model, asked, sampler, plan, 0)
            log = distill(
                model,
                asked,
                sampler,
                plan,
                lambda e, stage=stage: print(stage, json.dumps(e), flush=True),
                tried=tried,
            )
            model = model.to(torch.bfloat16).to(torch.float32)  # scored as it is stored
        spent = time.perf_counter() - start
        if stage == "after":
            out.mkdir(parents=True, exist_ok=True)
            model.save_pretrained(out)
        curve = step_curve(model, tests, sampler, tuple(recipe["limits"]))
        varied = variety(model, tests, sampler, **recipe.get("variety", {}))
        scores[stage] = {"curve": curve, "variety": varied, "seconds": spent, "log": log}
        version = torch.__version__.split("+")[0]
        scores["machine"] = {
            "cores": os.cpu_count(),
            "threads": torch.get_num_threads(),
            "torch": version,
        }
        scores["words"] = words(scores, few_steps)
        write_scores(path, scores)
        print(stage, json.dumps(curve), flush=True)
    if recipe["task"] == "records" and "families" not in scores:
        scores["families"] = by_family(
            base, out, sampler, few_steps, recipe.get("family_tests", 100)
        )
    scores["words"] = words(scores, few_steps)
    write_scores(path, scores)
    print("\n".join(scores["words"]))
    if worth_keeping(scores, few_steps):
        ship(recipe, scores, out, folder)
    return scores


def ship(recipe: dict, scores: dict, out: Path, folder: Path) -> None:
    """Weights in bfloat16, card, and the tokenizer of the base if it has one, beside the recipe."""
    model, base = DiffusionGemma.from_pretrained(out), folder.parent / recipe["base"]
    if (
        as_shipped(scores, few_steps := Distillation(**recipe["distil"]).few_steps)
        is not scores["after"]["curve"][-1]
    ):
        model.generation_defaults = model.generation_defaults | {"max_denoising_steps": few_steps}
    model.to(torch.bfloat16).save_pretrained(folder)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        if (base / name).exists():
            (folder / name).write_bytes((base / name).read_bytes())
    write_card(folder / "recipe.json")
