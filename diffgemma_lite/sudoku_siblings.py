"""Three siblings compared: one backbone, one data stream, one number of steps. Notebook 09 shows the recorded table.

    python -m diffgemma_lite.sudoku_siblings assets/checkpoints/sudoku-siblings/recipe.json      # minutes; writes scores.json

Only what is spoilt and who predicts differs (see sudoku_train.py). The layout has the puzzle as its prompt, because the
autoregressive sibling must have read all clues before it writes the first digit.
"""

from __future__ import annotations

import json
import os
import random
import sys
from collections.abc import Callable
from dataclasses import replace
from itertools import islice
from pathlib import Path

import torch

from .data.sudoku import Puzzle, dig
from .data.sudoku_splits import grids, minimal_puzzles
from .sampler import SamplerConfig
from .sudoku_eval import attempt, score
from .sudoku_task import Layout
from .sudoku_train import SIBLINGS, SudokuTraining, new_model, read_recipe, stack_puzzles, train_sudoku


def small_tests(n: int, count: int, fewest: int, most: int, seed: int) -> list[Puzzle]:
    """Puzzles of side n with `fewest` to `most` givens. Side 6 takes test grids; side 4 has so few that any grid will do."""
    if not 1 <= fewest <= most:
        raise ValueError(f"fewest, most: got {fewest}, {most}, takes 1 <= fewest <= most")
    rng, split = random.Random(seed), "train" if n == 4 else "test"
    drawn = islice(grids(split, n, seed), count)
    return [Puzzle(dig(grid, own, rng.randint(fewest, most)), grid) for grid, own in drawn]


def watch(
    model, layout: Layout, sibling: str, tests: list[Puzzle], sampler: SamplerConfig, each: int,
    show: Callable[[dict], None] | None = None,
) -> tuple[list[dict], Callable[[dict], None]]:  # fmt: skip
    """(points, on_log): every `each` steps the tests are solved, a point {"step", "exact", "loss"} is kept and shown."""
    points: list[dict] = []

    def on_log(entry: dict) -> None:
        if entry["step"] % each:
            return
        model.eval()
        found = score(attempt(model, layout, tests, sibling=sibling, sampler=sampler), tests)
        model.train()
        points.append({"step": entry["step"], "exact": found["exact"], "loss": entry["loss"]})
        if show is not None:
            show(points[-1])

    return points, on_log


def compare(layout: Layout, sizes: dict, plan: SudokuTraining, puzzles: int, tests: list[Puzzle], sampler: SamplerConfig,
            each: int, look: float = 3.0, show: Callable[[str, dict], None] | None = None) -> dict[str, dict]:  # fmt: skip
    """Train all three and score them. sibling -> its score, the curve while it learnt, its parameters, seconds of training."""
    stacked, found = stack_puzzles(minimal_puzzles(puzzles, n=layout.n)), {}
    for sibling in SIBLINGS:
        model = new_model(layout, sizes, plan.seed, look)
        told = None if show is None else lambda point, name=sibling: show(name, point)
        points, on_log = watch(model, layout, sibling, tests[:100], sampler, each, told)
        log = train_sudoku(model, layout, stacked, replace(plan, sibling=sibling), on_log=on_log)
        found[sibling] = score(attempt(model, layout, tests, sibling=sibling, sampler=sampler), tests)
        size = sum(p.numel() for p in model.parameters())
        found[sibling] |= {"curve": points, "parameters": size, "steps_trained": plan.steps, "seconds": log[-1]["seconds"]}
    return found


def main(arguments: list[str]) -> None:
    path = Path(arguments[0])
    recipe, layout, plan = read_recipe(path)
    asked = recipe["tests"]
    tests = small_tests(layout.n, asked["count"], asked["fewest"], asked["most"], asked["seed"])
    sampler = SamplerConfig(draw="cdf", **recipe["sampler"])
    found = compare(layout, recipe["model"], plan, recipe["puzzles"], tests, sampler, recipe["each"], recipe["look"],
                    lambda name, point: print(name, json.dumps(point), flush=True))  # fmt: skip
    machine = {"cores": os.cpu_count(), "threads": torch.get_num_threads(), "torch": torch.__version__.split("+")[0]}
    scores = {"tests": asked, "machine": machine, "siblings": found}
    path.with_name("scores.json").write_text(json.dumps(scores, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
