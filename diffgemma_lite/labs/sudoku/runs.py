"""What a finished Sudoku run left: the model, and the log, of each stage of its training."""

from __future__ import annotations

import shutil
from pathlib import Path

import torch
from safetensors import safe_open

from ..recipe import read_log
from .batches import SudokuTraining
from .state import STATE
from .task import Layout
from .train import new_model, stages_of


def trained_model(recipe: dict, layout: Layout, plan: SudokuTraining, out: Path):
    """The model of a finished run, its weights rounded to bfloat16 as they will be stored, in
    float32.
    """
    model = new_model(layout, recipe["model"], plan.seed, recipe["look"])
    with safe_open(out / STATE, framework="pt") as file:
        names = [name for name in file.keys() if name.startswith("model.")]
        model.load_state_dict({x.removeprefix("model."): file.get_tensor(x) for x in names})
    model.generation_defaults = recipe["generation"]
    return model.to(torch.bfloat16).to(torch.float32).eval().set_kernels(fused_norm=True)


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
        steps += read_log(folder / "log.jsonl")[-1]["step"]
        yield steps, trained_model(recipe, layout, plan, folder)


def copy_logs(recipe: dict, out: Path, folder: Path) -> None:
    """The log of each stage, from the run's folder to the checkpoint's."""
    for depth, (_, name) in enumerate(reversed(stages_and_logs(recipe))):
        shutil.copy(out.joinpath(*["first"] * depth, "log.jsonl"), folder / name)
