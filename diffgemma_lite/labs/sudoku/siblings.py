"""Three siblings compared: one backbone, one data stream, one number of steps.

    python -m diffgemma_lite.labs train sudoku-siblings      # minutes; writes scores.json
    python -m diffgemma_lite.labs train sudoku-siblings-9    # side 9, by bands: half an hour
    python -m diffgemma_lite.labs train sudoku-layouts       # the same for layouts

Only what is spoilt and who predicts differs (see sudoku/train.py). The layout has the puzzle as its
prompt, because the autoregressive sibling must have read all clues before it writes the first
digit.
"""

from __future__ import annotations

import json
import os
import random
from collections.abc import Callable
from dataclasses import replace
from itertools import islice
from pathlib import Path

import torch

from ...checks import check_keys, from_object, read_object
from ...sampler import SamplerConfig
from ..scores import write_scores
from .batches import SIBLINGS, SudokuTraining, stack_puzzles
from .data import BANDS, Puzzle, dig
from .evaluate import attempt, band_scores, score, step_curve
from .splits import grids, minimal_puzzles, puzzles
from .task import Layout
from .train import new_model, train_sudoku

CURVE_PUZZLES = 40  # a band, for the curve over steps


def small_tests(n: int, count: int, fewest: int, most: int, seed: int) -> list[Puzzle]:
    """Puzzles of side n with `fewest` to `most` givens.

    Side 6 takes test grids; side 4 has so few that any grid will do.
    """
    if not 1 <= fewest <= most:
        raise ValueError(f"fewest, most: got {fewest}, {most}, takes 1 <= fewest <= most")
    rng, split = random.Random(seed), "train" if n == 4 else "test"
    drawn = islice(grids(split, n, seed), count)
    return [Puzzle(dig(grid, own, rng.randint(fewest, most)), grid) for grid, own in drawn]


def watch(
    model,
    layout: Layout,
    sibling: str,
    tests: list[Puzzle],
    sampler: SamplerConfig,
    each: int,
    show: Callable[[dict], None] | None = None,
) -> tuple[list[dict], Callable[[dict], None]]:
    """(points, on_log): every `each` steps the tests are solved, a point {"step", "exact", "loss"}
    is kept and shown.
    """
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


def compare(
    layout: Layout,
    sizes: dict,
    plan: SudokuTraining,
    puzzles: int,
    tests: list[Puzzle],
    sampler: SamplerConfig,
    each: int,
    look: float = 3.0,
    show: Callable[[str, dict], None] | None = None,
    bands: dict[str, list[Puzzle]] | None = None,
) -> dict[str, dict]:
    """Train all three and score them. sibling -> score, the curve while it learnt, parameters,
    seconds of training.

    With `bands`, also the score of each ("bands"), and of those that denoise the curve over steps
    ("steps_curve").
    """
    cases = {sibling: (layout, sibling, look) for sibling in SIBLINGS}
    return _compare(cases, sizes, plan, puzzles, tests, sampler, each, show, bands)


def compare_layouts(
    layouts: dict[str, tuple[Layout, float]],
    sizes: dict,
    plan: SudokuTraining,
    puzzles: int,
    tests: list[Puzzle],
    sampler: SamplerConfig,
    each: int,
    show: Callable[[str, dict], None] | None = None,
) -> dict[str, dict]:
    """The uniform sibling in each layout (with its `look`, see start_geometry).

    How fast is the grid's geometry learnt?
    """
    cases = {name: (layout, "uniform", look) for name, (layout, look) in layouts.items()}
    return _compare(cases, sizes, plan, puzzles, tests, sampler, each, show)


def _compare(
    cases: dict[str, tuple[Layout, str, float]],
    sizes,
    plan,
    puzzles,
    tests,
    sampler,
    each,
    show,
    bands=None,
) -> dict[str, dict]:
    side = next(layout.n for layout, _, _ in cases.values())
    stacked, found = stack_puzzles(minimal_puzzles(puzzles, n=side)), {}
    for name, (layout, sibling, look) in cases.items():
        model = new_model(layout, sizes, plan.seed, look)
        told = None if show is None else lambda point, name=name: show(name, point)
        points, on_log = watch(model, layout, sibling, tests[:100], sampler, each, told)
        log = train_sudoku(model, layout, stacked, replace(plan, sibling=sibling), on_log=on_log)
        found[name] = score(attempt(model, layout, tests, sibling=sibling, sampler=sampler), tests)
        size = sum(p.numel() for p in model.parameters())
        found[name] |= {
            "curve": points,
            "parameters": size,
            "steps_trained": plan.steps,
            "seconds": log[-1]["seconds"],
        }
        if bands is not None:
            found[name]["bands"] = band_scores(
                model, layout, bands, sibling=sibling, sampler=sampler
            )
            few = {band: some[:CURVE_PUZZLES] for band, some in bands.items()}
            if sibling != "autoregressive":
                found[name]["steps_curve"] = step_curve(
                    model, layout, few, sibling=sibling, sampler=sampler
                )
    return found


def read_comparison(path: Path) -> dict:
    """recipe.json of siblings (one layout) or of layouts (several)."""
    common = ("model", "puzzles", "each", "train", "tests", "sampler")
    recipe = read_object(
        "recipe", path, common, ("about", "layout", "look", "layouts", "n", "spare")
    )
    needed = ("layouts", "n", "spare") if "layouts" in recipe else ("layout", "look")
    check_keys(f"recipe: {path}", recipe, (*common, *needed), ("about",))
    check_keys("tests", recipe["tests"], ("count", "fewest", "most", "seed"))
    return recipe


def train_run(recipe: str | Path) -> dict:
    """Train and compare what a recipe of siblings or of layouts names; scores.json is written
    beside it.
    """
    path = Path(recipe)
    recipe = read_comparison(path)
    plan, asked = from_object("train", SudokuTraining, recipe["train"]), recipe["tests"]
    side = recipe["n"] if "layouts" in recipe else recipe["layout"]["n"]
    bands = (
        {band: puzzles("test", band, asked["count"], seed=asked["seed"]) for band in BANDS}
        if side == 9
        else None
    )
    tests = small_tests(side, asked["count"], asked["fewest"], asked["most"], asked["seed"])
    sampler = from_object("sampler", SamplerConfig, {"draw": "cdf"} | recipe["sampler"])
    common = (recipe["model"], plan, recipe["puzzles"], tests, sampler, recipe["each"])

    def show(name: str, point: dict) -> None:
        print(name, json.dumps(point), flush=True)

    if "layouts" in recipe:
        layouts = {
            name: (Layout(case["layout"], side, recipe["spare"]), case["look"])
            for name, case in recipe["layouts"].items()
        }
        what, found = "layouts", compare_layouts(layouts, *common, show=show)
    else:
        what, found = (
            "siblings",
            compare(Layout(**recipe["layout"]), *common, recipe["look"], show, bands),
        )
    machine = {
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "torch": torch.__version__.split("+")[0],
    }
    scores = {"tests": asked, "machine": machine, what: found}
    write_scores(path.with_name("scores.json"), scores)
    return scores
