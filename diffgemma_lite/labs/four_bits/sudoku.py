"""What four bits cost where right and wrong are known: Sudokus solved by a model with parts of it
rounded, against float.

Beside quality.py, which has no answer to check against: here a canvas is right or it is not. Paired
as there: every model gets the same puzzles, the same noise and the same seeds. Walked through in
notebook 10. A table for the shipped model:

    python -m diffgemma_lite.labs.four_bits.sudoku \\
        assets/checkpoints/sudoku-small assets/recordings/nvfp4-sudoku-small.json
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from ...model import DiffusionGemma
from ...sampler import SamplerConfig
from ..evaluate import mean_and_interval
from ..sudoku.data import Puzzle
from ..sudoku.evaluate import Attempt, attempt
from ..sudoku.splits import puzzles
from ..sudoku.task import Layout
from ..sudoku.train import read_recipe
from .quality import CASES, Case

# with rounded inputs, whole canvases take too long
WEIGHTS_ONLY = tuple(case for case in CASES if not case.inputs)


@torch.no_grad()
def solving(
    model: DiffusionGemma,
    layout: Layout,
    some: Sequence[Puzzle],
    sampler: SamplerConfig,
    *,
    cases: Sequence[Case] = WEIGHTS_ONLY,
) -> list[dict[str, Any]]:
    """One row for the float model and one a case.

    Means with 95% intervals over the puzzles, and paired changes.

    exact: all cells right; steps: denoising steps of a puzzle; agreement: share of a puzzle's empty
    cells where the answer is the float model's, right or wrong. Errors: ValueError for no puzzles,
    or for a case that rounds inputs.
    """
    if not some:
        raise ValueError("some: is empty, takes at least one puzzle")
    if any(case.inputs for case in cases):
        raise ValueError(
            "cases: one rounds inputs too, "
            "takes cases with inputs=False (whole canvases would take too long)"
        )
    solution, empty = np.array([p.solution for p in some]), np.array([p.clues for p in some]) == 0
    base = attempt(model.eval(), layout, some, sampler=sampler)

    def row(said: dict[str, Any], found: Attempt) -> dict[str, Any]:
        exact, before = ((tried.grids == solution).all(1) for tried in (found, base))
        same = ((found.grids == base.grids) & empty).sum(1) / np.maximum(1, empty.sum(1))
        columns = {
            "exact": exact,
            "exact_change": exact.astype(float) - before,
            "steps": found.steps,
            "steps_change": found.steps - base.steps,
            "agreement": same,
        }
        return said | {
            name: mean_and_interval(torch.as_tensor(x, dtype=torch.float64))
            for name, x in columns.items()
        }

    rows = [row({"parts": "nothing", "format": "float32"}, base)]
    for case in cases:
        rounded = attempt(case.apply(model, None), layout, some, sampler=sampler)
        rows.append(row({"parts": case.name, "format": case.format}, rounded))
        print(json.dumps(rows[-1]), flush=True)
    return rows


def measure_folder(folder: str | Path, out: str | Path, *, band: str, count: int) -> dict[str, Any]:
    """The table of a shipped Sudoku model on `count` test puzzles of a band, with where it comes
    from.
    """
    from ...measure.provenance import describe, run_provenance

    recipe, layout, _ = read_recipe(Path(folder) / "recipe.json")
    model, device = DiffusionGemma.from_pretrained(folder, dtype=torch.float32), torch.device("cpu")
    sampler = SamplerConfig.from_defaults(recipe["generation"], draw="cdf")
    command = (
        f"python -m diffgemma_lite.labs.four_bits.sudoku assets/checkpoints/{Path(folder).name} "
        f"--band {band} --puzzles {count}"
    )
    record = {
        "model": Path(folder).name,
        "band": band,
        "puzzles": count,
        "device": describe(device),
    }
    record["provenance"] = run_provenance(device, command)
    record["rows"] = solving(model, layout, puzzles("test", band, count), sampler)
    Path(out).write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    return record


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description="Sudokus solved by a model with parts of it in four bits."
    )
    parser.add_argument("folder", help="a Sudoku checkpoint with its recipe.json")
    parser.add_argument("out", help="the JSON file to write")
    parser.add_argument("--band", default="medium", choices=("easy", "medium", "hard"))
    parser.add_argument("--puzzles", type=int, default=300)
    given = parser.parse_args(arguments)
    measure_folder(given.folder, given.out, band=given.band, count=given.puzzles)


if __name__ == "__main__":
    main()
