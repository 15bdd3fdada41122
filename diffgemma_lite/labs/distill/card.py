"""The words and the card of a distillation, made from its scores alone; and whether its weights are
worth keeping.
"""

from __future__ import annotations

import json
from pathlib import Path

from ...model import DiffusionGemma
from ..card import size_of, table, write_readme
from ..scores import percent
from .data import read_recipe
from .teacher import Distillation

STAGES = ("before", "after", "without the reward")


def as_shipped(scores: dict, few_steps: int | None) -> dict:
    """The row of the taught model at the limit it was taught for, if that was measured; else at the
    last limit.
    """
    curve = scores["after"]["curve"]
    return next((row for row in curve if row["limit"] == few_steps), curve[-1])


def worth_keeping(scores: dict, few_steps: int | None = None) -> bool:
    """Fewer steps, and an accuracy that does not lie clearly under the old one."""
    before, after = scores["before"]["curve"][-1], as_shipped(scores, few_steps)
    return after["steps"] < before["steps"] and after["right"]["high"] >= before["right"]["share"]


def _more(stage: dict, row: dict) -> str:
    varied = "" if stage["variety"] is None else f", variety {stage['variety']:.2f}"
    return varied + (f", {row['tokens']:.1f} tokens written" if "tokens" in row else "")


def words(scores: dict, few_steps: int | None = None) -> list[str]:
    """What was found, in sentences made from the numbers alone. few_steps: the limit it was taught
    for.
    """
    last = {stage: scores[stage]["curve"][-1] for stage in STAGES if stage in scores}
    said = [
        f"{stage.capitalize()}: {percent(row['right'])} right at {row['steps']:.2f} steps (limit {row['limit']})"
        f"{_more(scores[stage], row)}."
        for stage, row in last.items()
    ]
    if "after" in last:
        taught = as_shipped(scores, few_steps)
        ratio = last["before"]["steps"] / taught["steps"]
        change = taught["right"]["share"] - last["before"]["right"]["share"]
        goal = "reached" if ratio >= 2.5 and change >= 0 else "not reached"
        if taught is not last["after"]:
            said.append(
                f"Allowed the {few_steps} steps it was taught for: {percent(taught['right'])} right at {taught['steps']:.2f} steps."
            )
        said.append(
            f"Steps fall {ratio:.2f} times, accuracy changes by {change:+.1%}: the goal, 2.5 times at no loss, "
            f"is {goal}."
        )
        good = [
            row
            for row in scores["after"]["curve"]
            if row["right"]["share"] >= last["before"]["right"]["share"]
        ]
        said.append(
            f"What took {last['before']['steps']:.2f} steps before is reached or passed at a limit of "
            f"{good[0]['limit']} after it ({percent(good[0]['right'])}), "
            f"{last['before']['steps'] / good[0]['steps']:.2f} times fewer."
            if good
            else "The accuracy from before is reached at none of the limits."
        )
        first = {stage: scores[stage]["curve"][0] for stage in ("before", "after")}
        said.append(
            f"With a limit of {first['after']['limit']}: {percent(first['before']['right'])} right before, "
            f"{percent(first['after']['right'])} after."
        )
    if "without the reward" in last:
        change = last["without the reward"]["right"]["share"] - last["after"]["right"]["share"]
        said.append(
            f"The reward left out: accuracy differs by {change:+.1%} from the run with it, steps are "
            f"{last['without the reward']['steps']:.2f} instead of {last['after']['steps']:.2f}."
        )
    return said


def family_table(scores: dict) -> str:
    """Markdown, or nothing where families were not scored."""
    stages = scores.get("families", [])
    if not stages:
        return ""
    rows = []
    for name in stages[0]["found"]:
        found = (s["found"][name] for s in stages)
        rows.append([name, *(f"{percent(f['valid'])}, {f['passes']:.2f} steps" for f in found)])
    each = stages[0]["found"]["all"]["valid"]["n"] // (len(rows) - 1)
    head = ["family", *(f"{s['stage']}, limit {s['limit']}" for s in stages)]
    said = (
        f"Every family, {each} test records each, drawn with another seed "
        "(sql has few requests, and repeats them):"
    )
    return "\n".join(["", said, "", table(head, rows), ""])


def kind_of(recipe: dict) -> str:
    """Which of the task's questions, in words."""
    asked = ", ".join(
        ["", *([recipe["band"]] if "band" in recipe else []), *recipe.get("families", [])]
    )
    return asked + (
        f"; tests: {', '.join(recipe['test_families'])}" if "test_families" in recipe else ""
    )


def card(name: str, recipe: dict, scores: dict, model: DiffusionGemma) -> str:
    """The model card; every number in it comes from the run."""
    plan, limits = Distillation(**recipe["distil"]), recipe["limits"]
    curves = [scores[stage]["curve"] for stage in STAGES]
    rows = table(
        ["steps allowed", *STAGES],
        (
            [limit, *(f"{percent(c[i]['right'])}, {c[i]['steps']:.2f} steps" for c in curves)]
            for i, limit in enumerate(limits)
        ),
    )
    found = "\n".join(f"- {sentence}" for sentence in scores["words"])
    return f"""# {name}

`{recipe["base"]}`, taught by its own slow answers to need fewer denoising steps (`diffgemma_lite/labs/distill/`). The published
model's second stage is not public; this is another one, ours.

- **Size**: {size_of(model)}, bfloat16, as the base.
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

{rows}
{family_table(scores)}
## Limits

One seed. The encoder side was not trained as a language model in this stage. Variety is the share of different answers
among right ones to the same question: what it loses, the model no longer writes. Otherwise the limits of `{recipe["base"]}`.
"""


def write_card(recipe: str | Path) -> None:
    """README.md beside the recipe, from the scores and the weights that lie there."""
    folder, plan = Path(recipe).parent, read_recipe(recipe)
    scores = json.loads((folder / "scores.json").read_text(encoding="utf-8"))
    model = DiffusionGemma.from_pretrained(folder)
    write_readme(folder, card(folder.name, plan, scores, model))
