"""The comparison of the three siblings, the card of a finished run, and the board."""

from __future__ import annotations

import json

import pytest
import torch
from tiny import refused

from diffgemma_lite import DiffusionGemma, SamplerConfig
from diffgemma_lite.course.sudoku import board
from diffgemma_lite.labs.sudoku import evaluate
from diffgemma_lite.labs.sudoku.batches import SIBLINGS, SudokuTraining, stack_puzzles
from diffgemma_lite.labs.sudoku.data import BANDS, solve
from diffgemma_lite.labs.sudoku.runs import trained_model
from diffgemma_lite.labs.sudoku.siblings import compare, compare_layouts, small_tests
from diffgemma_lite.labs.sudoku.splits import minimal_puzzles, split_of
from diffgemma_lite.labs.sudoku.task import Layout
from diffgemma_lite.labs.sudoku.train import new_model, read_recipe, train_recipe, train_sudoku

PLAN = dict(
    steps=2,
    decay_steps=1,
    batch_size=4,
    fewest=6,
    middle=8,
    most=12,
    checkpoint_every=1,
    log_every=1,
)
FEW = SamplerConfig(max_denoising_steps=2, draw="cdf")


def test_compare_trains_all_three_alike():
    seen = []
    tests = small_tests(4, 3, 6, 9, seed=1)
    found = compare(
        Layout("named", 4),
        dict(width=32, layers=2),
        SudokuTraining(**PLAN),
        5,
        tests,
        FEW,
        1,
        show=lambda name, point: seen.append((name, point["step"])),
    )
    assert seen == [(name, step) for name in SIBLINGS for step in (1, 2)]
    assert len({s["parameters"] for s in found.values()}) == 1 and {
        s["steps_trained"] for s in found.values()
    } == {2}
    assert found["autoregressive"]["steps"] == 16 and found["uniform"]["steps"] <= 2
    assert all(s["exact"]["n"] == 3 and len(s["curve"]) == 2 for s in found.values())


def test_siblings_by_bands(monkeypatch):
    monkeypatch.setattr(evaluate, "CURVE", (1, 2))
    tests = small_tests(4, 3, 6, 9, seed=1)
    found = compare(
        Layout("named", 4),
        dict(width=32, layers=2),
        SudokuTraining(**PLAN),
        5,
        tests,
        FEW,
        2,
        bands={"easy": tests[:2], "hard": tests[2:]},
    )
    for name, s in found.items():
        assert s["bands"]["easy"]["exact"]["n"] == 2 and s["bands"]["hard"]["exact"]["n"] == 1
        assert ("steps_curve" in s) == (name != "autoregressive")
    whole = {
        name: [row for row in found[name]["steps_curve"] if not row["adaptive"]]
        for name in ("uniform", "masked")
    }
    assert [row["bands"]["hard"]["steps"] for row in whole["uniform"]] == [1, 2]
    assert whole["masked"] == [] and len(found["masked"]["steps_curve"]) == 2, (
        "it stops where no mask is left, always"
    )
    assert found["autoregressive"]["bands"]["hard"]["steps"] == 16


def test_layouts_are_compared_alike():
    layouts = {"plain": (Layout("plain", 4), 0.0), "legend": (Layout("legend", 4), 3.0)}
    found = compare_layouts(
        layouts,
        dict(width=32, layers=2),
        SudokuTraining(**PLAN),
        5,
        small_tests(4, 3, 6, 9, seed=1),
        FEW,
        1,
    )
    assert list(found) == ["plain", "legend"] and all(
        s["exact"]["n"] == 3 and len(s["curve"]) == 2 for s in found.values()
    )


def test_small_tests_are_held_out_where_that_is_possible():
    six = small_tests(6, 4, 12, 18, seed=1)
    assert all(split_of(p.solution) == "test" and solve(p.clues) == [p.solution] for p in six)
    with refused("fewest, most", "9, 3", "<="):
        small_tests(4, 1, 9, 3, seed=0)


def test_finish_writes_a_folder_that_loads(tmp_path, monkeypatch, capsys):
    """The whole command on side 4, with its puzzles standing in for the bands of side 9."""
    recipe = {
        "layout": {"name": "legend", "n": 4, "spare": 8},
        "model": {"width": 32, "layers": 2},
        "look": 3.0,
        "puzzles": 5,
        "train": PLAN,
        "run": "alone",
        "chosen": "by nobody",
        "generation": {"max_denoising_steps": 3, "entropy_bound": 0.1, "t_min": 0.4, "t_max": 0.8},
    }
    folder, out = tmp_path / "small", tmp_path / "run"
    folder.mkdir()
    (folder / "recipe.json").write_text(json.dumps(recipe), encoding="utf-8")
    _, layout, plan = read_recipe(folder / "recipe.json")
    model = new_model(layout, recipe["model"], plan.seed, recipe["look"])
    train_sudoku(model, layout, stack_puzzles(minimal_puzzles(5, n=4)), plan, folder=out)
    monkeypatch.setattr(
        evaluate,
        "puzzles",
        lambda split, band, count, seed: small_tests(4, count, 6, 9, seed=len(band) + seed),
    )
    monkeypatch.setattr(evaluate, "CURVE", (1, 3))
    evaluate.evaluate_run(folder / "recipe.json", out, n=3, curve=2)
    scores = json.loads((folder / "scores.json").read_text(encoding="utf-8"))
    assert set(scores["bands"]) == set(BANDS) and all(
        s["exact"]["n"] == 3 for s in scores["bands"].values()
    )
    whole = [row for row in scores["curve"] if not row["adaptive"]]
    assert [row["max_steps"] for row in whole] == list(evaluate.CURVE)
    assert all(
        b["steps"] == row["max_steps"] and b["exact"]["n"] == 2
        for row in whole
        for b in row["bands"].values()
    )
    text = (folder / "README.md").read_text(encoding="utf-8")
    assert (
        all(band in text for band in BANDS)
        and f"{sum(p.numel() for p in model.parameters()):,} parameters" in text
    )
    assert DiffusionGemma.from_pretrained(folder).config == model.config
    assert (folder / "log.jsonl").read_text(encoding="utf-8") == (out / "log.jsonl").read_text(
        encoding="utf-8"
    )
    assert "easy" in capsys.readouterr().out


def test_finish_tells_of_every_stage(tmp_path, monkeypatch):
    """Three stages: whose weights, whose log, in which order."""
    few = {"max_denoising_steps": 3, "entropy_bound": 0.1, "t_min": 0.4, "t_max": 0.8}
    recipe = {
        "layout": {"name": "legend", "n": 4},
        "model": {"width": 32, "layers": 2},
        "look": 3.0,
        "generation": few,
        "chosen": "by nobody",
    }
    own = dict(own_rows=4, own_runs=8, own_sampler={"max_denoising_steps": 2})
    recipe |= {
        "puzzles": 7,
        "train": PLAN | own | dict(steps=3, seed=2),
        "run": "last",
        "first": {
            "puzzles": 6,
            "train": PLAN | own | dict(steps=2, seed=1),
            "run": "middle",
            "first": {"puzzles": 5, "train": PLAN | dict(steps=1), "run": "begin"},
        },
    }
    folder, out = tmp_path / "staged", tmp_path / "run"
    folder.mkdir()
    (folder / "recipe.json").write_text(json.dumps(recipe), encoding="utf-8")
    train_recipe(recipe, out)
    monkeypatch.setattr(
        evaluate,
        "puzzles",
        lambda split, band, count, seed: small_tests(4, count, 6, 9, seed=len(band) + seed),
    )
    monkeypatch.setattr(evaluate, "CURVE", (1,))
    evaluate.evaluate_run(folder / "recipe.json", out, n=2, curve=1)
    scores = json.loads((folder / "scores.json").read_text(encoding="utf-8"))
    assert [s["steps"] for s in scores["stages"]] == [1, 3, 6]
    for name, run in (
        ("log.jsonl", out),
        ("log-before-1.jsonl", out / "first"),
        ("log-before-2.jsonl", out / "first" / "first"),
    ):
        assert (folder / name).read_bytes() == (run / "log.jsonl").read_bytes()
    text = (folder / "README.md").read_text(encoding="utf-8")
    at = [
        text.index(part)
        for part in (
            "1 steps of 4 rows with 5 puzzles",
            "2 steps of 4 rows with 6",
            "3 steps of 4 rows with 7",
        )
    ]
    assert at == sorted(at) and text.index("begin.") < text.index("middle.") < text.index("last.")
    assert text.count("runs of the sampler under way, out of 8") == 2
    last = trained_model(recipe, Layout("legend", 4), SudokuTraining(**recipe["train"]), out)
    shipped = DiffusionGemma.from_pretrained(folder, dtype=torch.float32)
    assert all(
        torch.equal(a, b)
        for a, b in zip(last.state_dict().values(), shipped.state_dict().values(), strict=True)
    )


@pytest.mark.parametrize("n", [4, 6, 9])
def test_board_marks_clues_and_mistakes(n):
    puzzle = minimal_puzzles(1, n=n)[0]
    wrong = list(puzzle.solution)
    empty = [i for i, d in enumerate(puzzle.clues) if not d]
    wrong[empty[0]] = wrong[empty[0]] % n + 1
    figure = board(puzzle.clues, wrong, puzzle.solution, title="<b>")
    assert (
        figure.html.count("✗") == 1 and figure.text.count("x") == 1 and "&lt;b&gt;" in figure.html
    )
    assert figure.html.count("<u>") == puzzle.givens and figure.html.count("<tr>") == n
    assert board(puzzle.clues).html.count("·") == len(empty)


def test_board_refuses_another_size():
    with refused("written", "3 cells", "16"):
        board((0,) * 16, (1, 2, 3))
