"""Sudokus solved by a rounded model.

Paired with the float one, and the float one's score is that of the evaluation.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tiny import refused

from diffgemma_lite import DiffusionGemma, SamplerConfig
from diffgemma_lite.labs.four_bits.quality import Case
from diffgemma_lite.labs.four_bits.sudoku import WEIGHTS_ONLY, solving
from diffgemma_lite.labs.sudoku.evaluate import attempt, score
from diffgemma_lite.labs.sudoku.splits import puzzles
from diffgemma_lite.labs.sudoku.train import read_recipe

ASSETS = Path(__file__).parents[2] / "assets"
FOLDER = ASSETS / "checkpoints" / "sudoku-small"


@pytest.fixture(scope="module")
def shipped():
    recipe, layout, _ = read_recipe(FOLDER / "recipe.json")
    sampler = SamplerConfig.from_defaults(recipe["generation"], draw="cdf", max_denoising_steps=6)
    return DiffusionGemma.from_pretrained(FOLDER), layout, sampler


def test_rows_are_paired_with_the_float_model(shipped):
    model, layout, sampler = shipped
    some = puzzles("test", "easy", 6)
    rows = solving(model, layout, some, sampler, cases=(Case("everything"),))
    float_row, rounded = rows
    expected = score(attempt(model, layout, some, sampler=sampler), some)
    assert (
        float_row["exact"]["mean"] == expected["exact"]["share"]
        and float_row["steps"]["mean"] == expected["steps"]
    )
    assert float_row["agreement"]["mean"] == 1 and float_row["exact_change"]["mean"] == 0
    for name in ("exact", "steps"):
        assert rounded[name]["mean"] - float_row[name]["mean"] == pytest.approx(
            rounded[f"{name}_change"]["mean"]
        )
    assert rounded["exact"]["n"] == 6


def test_bad_input_is_named(shipped, unchecked):
    model, layout, sampler = shipped
    with refused("some"):
        solving(model, layout, [], sampler)
    with refused("cases"):
        solving(
            model,
            layout,
            puzzles("test", "easy", 1),
            sampler,
            cases=(Case("experts", inputs=True),),
        )


def test_the_recorded_table_is_whole():
    record = json.loads(
        (ASSETS / "recordings" / "nvfp4-sudoku-small.json").read_text(encoding="utf-8")
    )
    assert [(r["parts"], r["format"]) for r in record["rows"]] == [
        ("nothing", "float32"),
        *((case.name, case.format) for case in WEIGHTS_ONLY),
    ]
    assert all(r["exact"]["n"] == record["puzzles"] >= 200 for r in record["rows"])
    assert record["provenance"]["revision"] and record["provenance"]["date"]
