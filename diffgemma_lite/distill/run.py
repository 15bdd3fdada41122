"""A recipe for distillation: before, after, and after without the reward; scores, weights and a card. Notebook 09.

    python -m diffgemma_lite.distill.run assets/checkpoints/sudoku-few-steps/recipe.json runs/distill

scores.json beside the recipe is written after each stage, and a stage that stands there is not run again. Weights are
written only if they are worth keeping: fewer steps, and no clear loss of accuracy.
"""

from __future__ import annotations

import json
import os
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from ..data.sudoku_splits import puzzles
from ..model import DiffusionGemma
from ..sampler import SamplerConfig
from ..sudoku.finetune import begun_scores
from ..sudoku.train import read_recipe
from .questions import Questions, body_questions, record_questions, sudoku_questions
from .scores import step_curve, variety
from .teacher import Distillation, ask_teacher
from .train import distill

STAGES = ("before", "after", "without the reward")


def questions(recipe: dict, base: Path, model: DiffusionGemma) -> tuple[Questions, Questions]:
    """(what is learnt from, test questions)."""
    counts = (recipe["questions"], recipe["tests"])
    if recipe["task"] == "sudoku":
        layout = read_recipe(base / "recipe.json")[1]
        made = [puzzles(split, recipe["band"], n, seed=1) for split, n in zip(("train", "test"), counts, strict=True)]
        return sudoku_questions(layout, made[0]), sudoku_questions(layout, made[1])
    if recipe["task"] not in ("records", "bodies"):
        raise ValueError(f"task: got {recipe['task']!r}, takes 'sudoku', 'records' or 'bodies'")
    from ..data.python_corpus import load_corpus
    from ..data.templates import FAMILIES, records
    from ..data.tokenizer import Tokenizer

    tokenizer, size = Tokenizer.load(base), (model.config.canvas_length, recipe["max_prompt"])
    splits = list(zip(("train", "test"), counts, strict=True))
    if recipe["task"] == "records":
        families = {"train": recipe.get("families", FAMILIES)}
        families["test"] = recipe.get("test_families", families["train"])
        asked = [record_questions(tokenizer, records(split, n, seed=1, families=families[split]), *size) for split, n in splits]
    else:
        asked = [body_questions(tokenizer, load_corpus(split, "body"), *size, n) for split, n in splits]
    return asked[0], asked[1]


def run(recipe_path: Path, out: Path) -> dict[str, Any]:
    """All stages that scores.json does not hold yet."""
    recipe, folder = json.loads(recipe_path.read_text(encoding="utf-8")), recipe_path.parent
    base, path = folder.parent / recipe["base"], folder / "scores.json"
    model = DiffusionGemma.from_pretrained(base, dtype=torch.float32)
    sampler = SamplerConfig.from_defaults(model.generation_defaults, draw="cdf", **recipe.get("sampler", {}))
    asked, tests = questions(recipe, base, model)
    scores, tried = begun_scores(path, base), None
    for stage in STAGES:
        if stage in scores:
            continue
        model = DiffusionGemma.from_pretrained(base, dtype=torch.float32).set_kernels(fused_norm=True)
        start, log = time.perf_counter(), []
        if stage != "before":
            plan = replace(Distillation(**recipe["distil"]), rewarded=stage == "after")
            tried = tried or ask_teacher(model, asked, sampler, plan, 0)  # both stages begin with the base's answers
            log = distill(model, asked, sampler, plan,
                          lambda e, stage=stage: print(stage, json.dumps(e), flush=True), tried=tried)  # fmt: skip
            model = model.to(torch.bfloat16).to(torch.float32)  # scored as it is stored
        spent = time.perf_counter() - start
        if stage == "after":
            out.mkdir(parents=True, exist_ok=True)
            model.save_pretrained(out)
        curve = step_curve(model, tests, sampler, tuple(recipe["limits"]))
        varied = variety(model, tests, sampler, **recipe.get("variety", {}))
        scores[stage] = {"curve": curve, "variety": varied, "seconds": spent, "log": log}
        version = torch.__version__.split("+")[0]
        scores["machine"] = {"cores": os.cpu_count(), "threads": torch.get_num_threads(), "torch": version}
        scores["words"] = words(scores)
        path.write_text(json.dumps(scores, indent=1) + "\n", encoding="utf-8")
        print(stage, json.dumps(curve), flush=True)
    print("\n".join(scores["words"]))
    if worth_keeping(scores):
        ship(recipe, scores, out, folder)
    return scores


def worth_keeping(scores: dict) -> bool:
    """Fewer steps, and an accuracy that does not lie clearly under the old one."""
    before, after = (scores[stage]["curve"][-1] for stage in ("before", "after"))
    return after["steps"] < before["steps"] and after["right"]["high"] >= before["right"]["share"]


def _right(row: dict) -> str:
    return f"{row['right']['share']:.1%} [{row['right']['low']:.1%}, {row['right']['high']:.1%}]"


def _more(stage: dict, row: dict) -> str:
    varied = "" if stage["variety"] is None else f", variety {stage['variety']:.2f}"
    return varied + (f", {row['tokens']:.1f} tokens written" if "tokens" in row else "")


def words(scores: dict) -> list[str]:
    """What was found, in sentences made from the numbers alone."""
    last = {stage: scores[stage]["curve"][-1] for stage in STAGES if stage in scores}
    said = [f"{stage.capitalize()}: {_right(row)} right at {row['steps']:.2f} steps (limit {row['limit']})"
            f"{_more(scores[stage], row)}." for stage, row in last.items()]  # fmt: skip
    if "after" in last:
        ratio = last["before"]["steps"] / last["after"]["steps"]
        change = last["after"]["right"]["share"] - last["before"]["right"]["share"]
        goal = "reached" if ratio >= 2.5 and change >= 0 else "not reached"
        said.append(f"Steps fall {ratio:.2f} times, accuracy changes by {change:+.1%}: the goal, 2.5 times at no loss, "
                    f"is {goal}.")  # fmt: skip
        good = [row for row in scores["after"]["curve"] if row["right"]["share"] >= last["before"]["right"]["share"]]
        said.append(f"What took {last['before']['steps']:.2f} steps before is reached or passed at a limit of "
                    f"{good[0]['limit']} after it ({_right(good[0])}), "
                    f"{last['before']['steps'] / good[0]['steps']:.2f} times fewer." if good else
                    "The accuracy from before is reached at none of the limits.")  # fmt: skip
        first = {stage: scores[stage]["curve"][0] for stage in ("before", "after")}
        said.append(f"With a limit of {first['after']['limit']}: {_right(first['before'])} right before, "
                    f"{_right(first['after'])} after.")  # fmt: skip
    if "without the reward" in last:
        change = last["without the reward"]["right"]["share"] - last["after"]["right"]["share"]
        said.append(f"The reward left out: accuracy differs by {change:+.1%} from the run with it, steps are "
                    f"{last['without the reward']['steps']:.2f} instead of {last['after']['steps']:.2f}.")  # fmt: skip
    return said


def ship(recipe: dict, scores: dict, out: Path, folder: Path) -> None:
    """Weights in bfloat16, card, and the tokenizer of the base if it has one, beside the recipe."""
    model, base = DiffusionGemma.from_pretrained(out), folder.parent / recipe["base"]
    model.to(torch.bfloat16).save_pretrained(folder)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        if (base / name).exists():
            (folder / name).write_bytes((base / name).read_bytes())
    (folder / "README.md").write_text(card(folder.name, recipe, scores, model), encoding="utf-8")


def kind_of(recipe: dict) -> str:
    """Which of the task's questions, in words."""
    return ", ".join(["", *([recipe["band"]] if "band" in recipe else []), *recipe.get("test_families", recipe.get("families", []))])


def card(name: str, recipe: dict, scores: dict, model: DiffusionGemma) -> str:
    """The model card; every number in it comes from the run."""
    plan, limits = Distillation(**recipe["distil"]), recipe["limits"]
    rows = "\n".join(
        f"| {limit} | " + " | ".join(f"{_right(row)}, {row['steps']:.2f} steps" for row in
                                      (scores[stage]["curve"][i] for stage in STAGES)) + " |"
        for i, limit in enumerate(limits)
    )  # fmt: skip
    found = "\n".join(f"- {sentence}" for sentence in scores["words"])
    return f"""# {name}

`{recipe["base"]}`, taught by its own slow answers to need fewer denoising steps (`diffgemma_lite/distill/`). The published
model's second stage is not public; this is another one, ours.

- **Size**: {sum(p.numel() for p in model.parameters()):,} parameters, bfloat16, as the base.
- **Data**: answers of the model itself to {recipe["questions"]:,} training questions
  (task {recipe["task"]}{kind_of(recipe)}), made by this project's generators (Apache-2.0);
  {plan.candidates} answers to each, kept if right by a checker.
- **Recipe**: `recipe.json`: {plan.rounds} rounds of {plan.steps} steps of {plan.batch_size}, learning rate
  {plan.learning_rate}, states of runs of {plan.few_steps} steps, seed {plan.seed};
  {scores["after"]["seconds"] / 60:.0f} minutes on {scores["machine"]["threads"]} thread of a machine with
  {scores["machine"]["cores"]} cores that others used too; torch {scores["machine"]["torch"]}.
- **Base**: sha256 of its weights {scores["base"]["sha256"]}.

## What was found

{recipe["tests"]} test questions, seed 1, 95% intervals, adaptive stop.

{found}

| steps allowed | {" | ".join(STAGES)} |
|---|---|---|---|
{rows}

## Limits

One seed. The encoder side was not trained as a language model in this stage. Variety is the share of different answers
among right ones to the same question: what it loses, the model no longer writes. Otherwise the limits of `{recipe["base"]}`.
"""


def main(arguments: list[str]) -> None:
    recipe, out = map(Path, arguments)
    run(recipe, out)


if __name__ == "__main__":
    main(sys.argv[1:])
