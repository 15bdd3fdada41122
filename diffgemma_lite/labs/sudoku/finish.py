"""From a trained Sudoku run to a shipped checkpoint: test scores, the curve over steps, weights,
log and card. Notebook 09.

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
from ..scores import percent
from .batches import SudokuTraining
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


def stages_and_logs(recipe: dict) -> list[tuple[dict, str]]:
    """(the stage's recipe, the file that keeps its log) of each stage of training, the first one
    first.
    """
    names = ["log.jsonl", *(f"log-before-{n}.jsonl" for n in range(1, len(stages_of(recipe))))]
    return list(zip(stages_of(recipe), names, strict=True))[::-1]


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


def stage_line(stage: dict, log: Path) -> str:
    """What one stage did, for the card."""
    last = json.loads(log.read_text(encoding="utf-8").splitlines()[-1])
    plan, minutes = SudokuTraining(**stage["train"]), last["seconds"] / 60
    line = (
        f"{last['step']:,} steps of {plan.batch_size} rows with {stage['puzzles']:,} puzzles, "
        f"seed {plan.seed}; "
        f"{minutes:.0f} minutes, {plan.precision}, "
        f"{stage.get('run', 'nothing said of the machine')}. Log: `{log.name}`.\n"
        f"     {plan.batch_size - plan.own_rows} rows are spoilt answers; "
        f"{plan.slips:.0%} of these have digits, written or given, "
        "as their noise instead of any token."
    )
    how = ", each in a new disguise before each step" if plan.own_disguised else ""
    own = (
        f"\n     {plan.own_rows} rows are runs of the sampler under way, "
        f"out of {plan.own_runs:,} taken in turn{how} "
        "(`diffgemma_lite/labs/sudoku/own_states.py`)."
    )
    return line + (own if plan.own_rows else "")


def card(folder: Path, recipe: dict, layout: Layout, scores: dict, size: int) -> str:
    """The model card; every number in it comes from the run."""
    name, sampler, published = (
        folder.name,
        SamplerConfig.from_defaults(recipe["generation"]),
        SamplerConfig(),
    )
    trained = "\n".join(
        f"  {n}. {stage_line(stage, folder / log)}"
        for n, (stage, log) in enumerate(stages_and_logs(recipe), 1)
    )
    mean_steps = sum(s["steps"] for s in scores["bands"].values()) / len(scores["bands"])
    rows = "\n".join(
        f"| {band}, {BANDS[band][0]} to {BANDS[band][1]} givens | {s['exact']['n']:,} | "
        f"{percent(s['exact'], 2)} "
        f"| {percent(s['cells'], 2)} | {s['violations']:.2f} | {s['steps']:.2f} |"
        for band, s in scores["bands"].items()
    )
    return f"""# {name}

A small DiffusionGemma that solves 9 x 9 Sudoku by denoising a canvas, trained from scratch with this project's own loop.

- **Size**: {size:,} parameters, bfloat16; {recipe["model"]["layers"]} layers, width {recipe["model"]["width"]}, 4 experts of
  which 2 work for each token, canvas {layout.canvas_length}, vocabulary {layout.vocab_size:,}, of which
  {layout.spare} tokens are never used: noise is drawn from the whole vocabulary, and so rarely looks like a clue.
- **Layout**: `{layout.name}` of `diffgemma_lite/labs/sudoku/task.py`. The prompt is always the same {layout.cells} tokens, which
  name the cells; clues are pinned in the canvas as tokens of their own. **Training did not start from nothing**: cell tokens
  start as a row, a column and a box vector, and two heads of the first layer start out looking {layout.cells} tokens
  back, at the own cell's name (`start_geometry`). What a rule is was not given.
- **Data**: puzzles made by this project's generator (its licence, Apache-2.0), shown in random disguises
  with random further clues; one solution each. No test grid is a training grid in disguise
  (`diffgemma_lite/labs/sudoku/splits.py`).
- **Recipe**: `recipe.json`, torch {torch.__version__.split("+")[0]}.
{trained}
- **Make it again**: `uv run python -m diffgemma_lite.labs.sudoku.train assets/checkpoints/{name}/recipe.json runs/again`

## Test puzzles, 95% intervals

Seed {scores["seed"]}; at most {sampler.max_denoising_steps} denoising steps, temperatures from {sampler.t_max} to
{sampler.t_min}, bound {sampler.entropy_bound}, adaptive stop below {sampler.confidence_threshold} nats, {recipe["chosen"]}
(published: {published.t_max} to {published.t_min}, {published.entropy_bound}, {published.confidence_threshold});
logits limited to digits. Exact: all 81 digits right. Cells: those that were empty. Violations: pairs of equal digits in a
unit, per puzzle. Steps: calls of `decode` until the canvas is stable and confident, mean; over the three bands {mean_steps:.2f}.

| band | puzzles | exact | cells | violations | steps |
|---|---|---|---|---|---|
{rows}

`scores.json` has the curve of accuracy over denoising steps, and the scores after each stage, if they were asked for.

## Limits

It knows this layout only, and puzzles with one solution. It guesses: nothing checks its answer, and a wrong one looks
like a right one.
"""


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
