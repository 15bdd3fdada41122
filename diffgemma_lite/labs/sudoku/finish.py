"""From a trained Sudoku run to a shipped checkpoint.

Test scores, the curve over steps, weights, log and card. Notebook 09.

    python -m diffgemma_lite.labs.sudoku.finish \\
        assets/checkpoints/sudoku-small/recipe.json runs/sudoku --puzzles 2000

The sampler's settings stand in the recipe and were chosen on validation puzzles; the test puzzles
come from the seed.
"""

from __future__ import annotations

import argparse
import json
import shutil
from pathlib import Path

import torch
from safetensors import safe_open

from ...sampler import SamplerConfig
from .batches import SudokuTraining
from .card import card, stages_and_logs
from .data import BANDS
from .evaluate import band_scores, step_curve
from .splits import puzzles
from .state import STATE
from .task import Layout
from .train import new_model, read_recipe, stages_of


def trained_model(recipe: dict, layout: Layout, plan: SudokuTraining, out: Path):
    """The model of a finished run, its weights rounded to bfloat16 as they will be stored, in
    float32.
    """
    model = new_model(layout, recipe["model"], plan.seed, recipe["look"])
    with safe_open(out / STATE, framework="pt") as file:
        names = [name for name in file.keys() if name.startswith("model.")]
        model.load_state_dict(
            {name.removeprefix("model."): file.get_tensor(name) for name in names}
        )
    model.generation_defaults = recipe["generation"]
    return model.to(torch.bfloat16).to(torch.float32).eval().set_kernels(fused_norm=True)


def finish(recipe_path: Path, out: Path, count: int, curve_count: int) -> None:
    """Score the trained weights on `count` test puzzles a band and write everything beside the
    recipe.
    """
    recipe, layout, plan = read_recipe(recipe_path)
    lacking = [name for name in ("generation", "chosen") if name not in recipe]
    if lacking or not (out / STATE).exists():
        what = (
            f"recipe: lacks {', '.join(lacking)}"
            if lacking
            else f"out: {out} holds no run ({STATE})"
        )
        raise ValueError(
            f"{what}, takes a recipe with generation and chosen, and the folder of its finished run"
        )
    model, folder = trained_model(recipe, layout, plan, out), recipe_path.parent
    tests = {band: puzzles("test", band, count) for band in BANDS}
    sampler = SamplerConfig.from_defaults(recipe["generation"], draw="cdf")
    scores = {"seed": 0, "bands": band_scores(model, layout, tests, sampler=sampler)}
    for band, found in scores["bands"].items():
        print(band, json.dumps(found), flush=True)
    if curve_count:
        fewer = {band: some[:curve_count] for band, some in tests.items()}
        scores["curve"] = step_curve(model, layout, fewer, sampler=sampler)
        scores["stages"] = [  # the same puzzles after each stage of training
            {"steps": steps, "bands": band_scores(earlier, layout, fewer, sampler=sampler)}
            for steps, earlier in models_of_stages(recipe, layout, plan, out)
        ]
    copy_logs(recipe, out, folder)
    (folder / "scores.json").write_text(json.dumps(scores, indent=1) + "\n", encoding="utf-8")
    size = sum(p.numel() for p in model.parameters())
    model.to(torch.bfloat16).save_pretrained(folder)
    (folder / "README.md").write_text(card(folder, recipe, layout, scores, size), encoding="utf-8")


def models_of_stages(recipe: dict, layout: Layout, plan: SudokuTraining, out: Path):
    """(steps so far, the model) after each stage, the first one first."""
    steps = 0
    for depth in reversed(range(len(stages_of(recipe)))):
        folder = out.joinpath(*["first"] * depth)
        steps += json.loads((folder / "log.jsonl").read_text(encoding="utf-8").splitlines()[-1])[
            "step"
        ]
        yield steps, trained_model(recipe, layout, plan, folder)


def copy_logs(recipe: dict, out: Path, folder: Path) -> None:
    """The log of each stage, from the run's folder to the checkpoint's."""
    for depth, (_, name) in enumerate(reversed(stages_and_logs(recipe))):
        shutil.copy(out.joinpath(*["first"] * depth, "log.jsonl"), folder / name)


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description="Score a trained Sudoku run and write its checkpoint beside the recipe."
    )
    parser.add_argument("recipe", type=Path)
    parser.add_argument("out", type=Path, help="folder of the run")
    parser.add_argument("--puzzles", type=int, default=2000, help="test puzzles a band")
    parser.add_argument(
        "--curve",
        type=int,
        default=200,
        help="test puzzles a band for the curve over steps; 0: none",
    )
    given = parser.parse_args(arguments)
    finish(given.recipe, given.out, given.puzzles, given.curve)


if __name__ == "__main__":
    main()
