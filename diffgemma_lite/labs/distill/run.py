"""A recipe for distillation: before, after, and after without the reward.

Scores, weights and a card. Notebook 09.

    python -m diffgemma_lite.labs.distill.run \\
        assets/checkpoints/sudoku-few-steps/recipe.json runs/distill

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

from ...checks import from_object, read_object
from ...model import DiffusionGemma
from ...sampler import SamplerConfig
from ..scores import begun_scores
from ..sudoku.splits import puzzles
from ..sudoku.train import read_recipe, recipe_and_out
from .card import STAGES, as_shipped, card, words, worth_keeping
from .questions import Questions, body_questions, record_questions, sudoku_questions
from .scores import by_family, step_curve, variety
from .teacher import Distillation, ask_teacher
from .train import distill

NEEDED = ("task", "base", "questions", "tests", "limits", "distil")
OPTIONAL = (
    "about",
    "band",
    "families",
    "test_families",
    "family_tests",
    "max_prompt",
    "sampler",
    "variety",
)


def questions(recipe: dict, base: Path, model: DiffusionGemma) -> tuple[Questions, Questions]:
    """(what is learnt from, test questions)."""
    counts = (recipe["questions"], recipe["tests"])
    if recipe["task"] == "sudoku":
        layout = read_recipe(base / "recipe.json")[1]
        made = [
            puzzles(split, recipe["band"], n, seed=1)
            for split, n in zip(("train", "test"), counts, strict=True)
        ]
        return sudoku_questions(layout, made[0]), sudoku_questions(layout, made[1])
    if recipe["task"] not in ("records", "bodies"):
        raise ValueError(f"task: got {recipe['task']!r}, takes 'sudoku', 'records' or 'bodies'")
    from ...tokenizer import Tokenizer
    from ..python_text.data import load_corpus
    from ..records.data import FAMILIES, records

    tokenizer, size = Tokenizer.load(base), (model.config.canvas_length, recipe["max_prompt"])
    splits = list(zip(("train", "test"), counts, strict=True))
    if recipe["task"] == "records":
        families = {"train": recipe.get("families", FAMILIES)}
        families["test"] = recipe.get("test_families", families["train"])
        asked = [
            record_questions(tokenizer, records(split, n, seed=1, families=families[split]), *size)
            for split, n in splits
        ]
    else:
        asked = [
            body_questions(tokenizer, load_corpus(split, "body"), *size, n) for split, n in splits
        ]
    return asked[0], asked[1]


def run(recipe_path: Path, out: Path) -> dict[str, Any]:
    """All stages that scores.json does not hold yet."""
    recipe, folder = read_object("recipe", recipe_path, NEEDED, OPTIONAL), recipe_path.parent
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
        path.write_text(json.dumps(scores, indent=1) + "\n", encoding="utf-8")
        print(stage, json.dumps(curve), flush=True)
    if recipe["task"] == "records" and "families" not in scores:
        scores["families"] = by_family(
            base, out, sampler, few_steps, recipe.get("family_tests", 100)
        )
    scores["words"] = words(scores, few_steps)
    path.write_text(json.dumps(scores, indent=1) + "\n", encoding="utf-8")
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
    (folder / "README.md").write_text(card(folder.name, recipe, scores, model), encoding="utf-8")


def main(arguments: list[str] | None = None) -> None:
    run(
        *recipe_and_out(
            "Run the stages that the scores.json beside the recipe does not hold yet.", arguments
        )
    )


if __name__ == "__main__":
    main()
