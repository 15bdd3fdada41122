"""Which lab a recipe.json belongs to, and where that lab keeps what it can do.

Each lab is a folder with modules of one shape, found here by their names, so that what the labs
share imports none of them:

    data      texts(split, plan, held_out)                  of TEXTS: what the recipe trains on
    train     train_run(recipe, out, device, minutes)       hours; goes on with a run it finds
    evaluate  evaluate_run(recipe, out, n, seed, write)     scores with n, seeds and intervals
    card      write_card(recipe)                            README.md from the files beside it

A function takes only those options that make sense for it. A new lab is a folder and a line here.
"""

from __future__ import annotations

import importlib
from types import ModuleType
from typing import NamedTuple


class Lab(NamedTuple):
    """Modules, named from this folder; "" where there is none."""

    data: str
    train: str
    evaluate: str
    card: str


LABS = {
    "python": Lab("python_text.data", "train", "python_text.evaluate", "python_text.card"),
    "templates": Lab("records.data", "train", "records.evaluate", "records.card"),
    "functions": Lab("functions.data", "functions.train", "functions.evaluate", "functions.card"),
    "sudoku": Lab("sudoku.data", "sudoku.train", "sudoku.evaluate", "sudoku.card"),
    "siblings": Lab("sudoku.data", "sudoku.siblings", "", ""),
    "finetune": Lab("sudoku.data", "sudoku.finetune", "sudoku.finetune", ""),
    "distill": Lab("distill.data", "distill.train", "distill.evaluate", "distill.card"),
}
TEXTS = ("python", "templates")  # kinds that labs/recipe.py reads


def kind_of(plan: dict) -> str:
    """Which line of the table a recipe's content belongs to."""
    if "data" in plan:
        return plan["data"].get("kind", "python")
    if "distil" in plan:
        return "distill"
    if "points" in plan:
        return "finetune"
    return "siblings" if "tests" in plan else "sudoku"


def module(kind: str, part: str) -> ModuleType:
    """A lab's module. Errors: ValueError for a kind that has no such one."""
    if kind not in LABS:
        raise ValueError(f"kind: got {kind!r}, takes one of {', '.join(LABS)}")
    name = getattr(LABS[kind], part)
    if not name:
        raise ValueError(
            f"{part}: a recipe of kind {kind!r} has none; its train writes all that was found into "
            "scores.json"
        )
    return importlib.import_module(f"{__package__}.{name}")
