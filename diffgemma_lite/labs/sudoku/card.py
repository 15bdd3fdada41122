"""The card of a trained Sudoku model, from its recipe, its scores and the logs of its stages."""

from __future__ import annotations

import json
from pathlib import Path

import torch

from ...sampler import SamplerConfig
from ..scores import percent
from .batches import SudokuTraining
from .data import BANDS
from .task import Layout
from .train import stages_of


def stages_and_logs(recipe: dict) -> list[tuple[dict, str]]:
    """(the stage's recipe, the file that keeps its log) of each stage of training, the first one
    first.
    """
    names = ["log.jsonl", *(f"log-before-{n}.jsonl" for n in range(1, len(stages_of(recipe))))]
    return list(zip(stages_of(recipe), names, strict=True))[::-1]


def stage_line(stage: dict, log: Path) -> str:
    """What one stage did, for the card."""
    last = json.loads(log.read_text(encoding="utf-8").splitlines()[-1])
    plan, minutes = SudokuTraining(**stage["train"]), last["seconds"] / 60
    line = (
        f"{last['step']:,} steps of {plan.batch_size} rows with {stage['puzzles']:,} puzzles, "
        f"seed {plan.seed}; {minutes:.0f} minutes, {plan.precision}, "
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
        f"| {band}, {BANDS[band][0]} to {BANDS[band][1]} givens | {s['exact']['n']:,} "
        f"| {percent(s['exact'], 2)} | {percent(s['cells'], 2)} "
        f"| {s['violations']:.2f} | {s['steps']:.2f} |"
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
