"""Fine-tuning the Python model on Sudoku.

Another numbering is the same model, points resume, words come from numbers.
"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from tiny import refused

from diffgemma_lite import Config, DiffusionGemma, SamplerConfig
from diffgemma_lite.labs.scores import named_weights
from diffgemma_lite.labs.sudoku.evaluate import attempt, score
from diffgemma_lite.labs.sudoku.finetune import (
    point_name,
    renumbered,
    run_point,
    start_point,
    sudoku_base,
    token_order,
    wide_layout,
    words,
)
from diffgemma_lite.labs.sudoku.siblings import small_tests
from diffgemma_lite.labs.sudoku.splits import minimal_puzzles
from diffgemma_lite.labs.sudoku.task import FIRST
from diffgemma_lite.lora import load_lora, lora_parameters
from diffgemma_lite.tokenizer import Tokenizer

FOLDER = Path(__file__).parents[2] / "assets/checkpoints/python-small"
LAYOUT = wide_layout("legend", 4, 2048)
RECIPE = {
    "puzzles": 5,
    "each": 1,
    "watched": 2,
    "sampler": {"max_denoising_steps": 2},
    "train": {
        "steps": 2,
        "decay_steps": 1,
        "batch_size": 2,
        "fewest": 4,
        "middle": 8,
        "most": 10,
        "log_every": 1,
        "checkpoint_every": 1,
    },
}


@pytest.fixture(scope="module")
def tokenizer():
    return Tokenizer.load(FOLDER)


def little(canvas: int = 16) -> DiffusionGemma:
    torch.manual_seed(0)
    return DiffusionGemma(Config.preset("tiny", vocab_size=2048, canvas_length=canvas))


def test_the_order_is_one_to_one_and_digits_are_digits(tokenizer):
    order = token_order(LAYOUT, tokenizer)
    assert sorted(order) == list(range(2048))
    assert [tokenizer.token_text(order[FIRST + d - 1]) for d in range(1, 5)] == list("1234")
    assert [order[i] for i in range(3)] == [tokenizer.pad_id, tokenizer.eos_id, tokenizer.bos_id]
    assert tokenizer.token_text(order[3]) == "<puzzle>"
    names = order[LAYOUT.first : LAYOUT.names + LAYOUT.cells]
    assert len(set(names)) == 20 and all(len(tokenizer.token_text(i)) > 1 for i in names), (
        "cells are named by pieces it learnt"
    )
    assert token_order(wide_layout("legend", 9, 2048), tokenizer) != order


def test_another_numbering_is_the_same_model(tokenizer):
    base, order = little(canvas=8), torch.tensor(token_order(LAYOUT, tokenizer))
    model = renumbered(base, order.tolist(), 16)
    assert model.config == replace(base.config, canvas_length=16)
    own = torch.arange(10, 26)[None]
    with torch.no_grad():
        there = model.decode(own, model.encode(own[:, :5]))
        here = renumbered(base, list(range(2048)), 16)
        said = here.decode(order[own], here.encode(order[own[:, :5]]))
    torch.testing.assert_close(there, said[..., order], rtol=1e-4, atol=1e-5)


def test_points_begin_where_they_say():
    base = little()
    full, lora, fresh = (
        start_point(base, p, 0)
        for p in ({"kind": "full"}, {"kind": "lora", "rank": 2}, {"kind": "fresh"})
    )
    ids = torch.arange(4, 20)[None]
    with torch.no_grad():
        want, *found = (m.decode(ids, m.encode(ids)) for m in (base, full, lora, fresh))
    assert (
        torch.equal(found[0], want)
        and torch.equal(found[1], want)
        and not torch.equal(found[2], want)
    )
    assert (
        all(p.requires_grad for p in full.parameters())
        and not lora.embed_tokens.weight.requires_grad
    )
    assert {k: v.shape for k, v in fresh.state_dict().items()} == {
        k: v.shape for k, v in base.state_dict().items()
    }


@pytest.mark.parametrize("point", [{"kind": "full"}, {"kind": "lora", "rank": 2}])
def test_a_point_resumes_and_says_what_it_is(point, tmp_path):
    base, tests = little(), minimal_puzzles(3, n=4)
    whole = run_point(base, LAYOUT, RECIPE, point, tests, tmp_path / "whole")

    class Cut(Exception):
        pass

    def cut(found):
        if found["step"] == 2:
            raise Cut

    with pytest.raises(Cut):
        run_point(base, LAYOUT, RECIPE, point, tests, tmp_path / "cut", cut)
    again = run_point(base, LAYOUT, RECIPE, point, tests, tmp_path / "cut")
    for name in ("exact", "cells", "curve", "trained_parameters", "puzzles", "steps"):
        assert again[name] == whole[name], name
    assert [e["loss"] for e in again["log"]] == [e["loss"] for e in whole["log"]]
    assert (
        [p["puzzles"] for p in whole["curve"]] == [2, 4]
        and whole["puzzles"] == 4
        and whole["kind"] == point["kind"]
    )
    total = sum(p.numel() for p in base.parameters())
    if point["kind"] == "full":
        assert whole["trained_parameters"] == total
    else:
        own = lora_parameters(load_lora(little(), tmp_path / "whole" / "adapter.safetensors"))
        assert whole["trained_parameters"] == sum(p.numel() for p in own.values()) < total


def test_a_recipe_is_written_after_each_point_and_goes_on(tmp_path, monkeypatch):
    from diffgemma_lite.labs.sudoku import finetune as module

    (tmp_path / "base").symlink_to(FOLDER, target_is_directory=True)
    path = tmp_path / "story" / "recipe.json"
    path.parent.mkdir()
    points = [
        {"kind": "full"},
        {"kind": "lora", "rank": 1},
        {"kind": "fresh", "name": "from nothing"},
    ]
    recipe = RECIPE | {
        "base": "base",
        "layout": {"name": "legend", "n": 4},
        "points": points,
        "tests": {"count": 3, "fewest": 4, "most": 8, "seed": 9},
    }
    path.write_text(json.dumps(recipe))
    ran = []

    def fake(base, layout, recipe, point, tests, out, show):
        ran.append(out.name)
        if len(ran) == 2:
            raise KeyboardInterrupt
        return made_up(point["kind"], 0.5, 7.0, point.get("rank"))

    monkeypatch.setattr(module, "run_point", fake)
    with pytest.raises(KeyboardInterrupt):
        module.train_run(path, tmp_path / "out")
    assert list(json.loads((path.parent / "scores.json").read_text())["points"]) == ["full"]
    scores = module.train_run(path, tmp_path / "out")
    assert ran == ["full", "rank-1", "rank-1", "from-nothing"] and list(scores["points"]) == [
        "full",
        "rank 1",
        "from nothing",
    ]
    assert scores["before"]["exact"]["n"] == 3 and scores["words"] == words(scores)


def made_up(kind: str, right: float, steps: float, rank: int | None = None) -> dict:
    exact = {"n": 100, "share": right, "low": right - 0.05, "high": right + 0.05}
    own = {"rank": rank} if rank else {}
    return {
        "kind": kind,
        "exact": exact,
        "steps": steps,
        "trained_parameters": 1000,
        "puzzles": 640,
    } | own


def test_words():
    points = {
        "full": made_up("full", 0.85, 4.0),
        "rank 1": made_up("lora", 0.3, 9.0, 1),
        "rank 2": made_up("lora", 0.6, 8.0, 2),
        "rank 4": made_up("lora", 0.55, 8.0, 4),
        "fresh": made_up("fresh", 0.7, 5.0),
    }
    said = words({"before": made_up("full", 0.0, 16.0), "points": points})
    assert said[0].startswith("Before: 0.0%") and "16.0 steps" in said[0]
    assert "full: 85.0%" in said[1] and "reaches the 80%" in said[1] and "does not reach" in said[2]
    assert "rises or stays in 1 of 2 steps" in said[-2] and "helped: +15.0%" in said[-1]
    points["fresh"] = made_up("fresh", 0.84, 5.0)
    assert (
        "did not clearly help"
        in words({"before": made_up("full", 0.0, 16.0), "points": points})[-1]
    )


def test_the_shipped_adapter_teaches_the_python_model():
    story = FOLDER.parent / "sudoku-finetune"
    recipe, scores = (
        json.loads((story / name).read_text(encoding="utf-8"))
        for name in ("recipe.json", "scores.json")
    )
    if scores["base"] != named_weights(FOLDER):
        pytest.skip("python-small has other weights than the recorded base")
    model, layout = sudoku_base(FOLDER, **recipe["layout"])
    tests, sampler = (
        small_tests(4, 20, 4, 8, seed=11),
        SamplerConfig(draw="cdf", **recipe["sampler"]),
    )
    before = score(attempt(model, layout, tests, sampler=sampler), tests)
    load_lora(model, story / "adapter-rank-8.safetensors")
    after = score(attempt(model, layout, tests, sampler=sampler), tests)
    assert (
        before["exact"]["share"] == 0
        and after["exact"]["share"] >= 0.5
        and after["steps"] < before["steps"]
    )
    assert lora_parameters(model).keys() and scores["words"] == words(scores)
    assert (
        sum(p.numel() for p in lora_parameters(model).values())
        == scores["points"]["rank 8"]["trained_parameters"]
    )


@pytest.mark.usefixtures("unchecked")
def test_refused(tokenizer):
    with refused("vocab_size", "16", "legend"):
        wide_layout("legend", 4, 16)
    with refused("layout", "2048"):
        token_order(wide_layout("legend", 4, 1024), tokenizer)
    with refused("tokenizer", "dict"):
        token_order(LAYOUT, {})
    with refused("order", "takes each of 0 to 2047 once"):
        renumbered(little(), [0] * 2048, 16)
    for bad in ({"kind": "adapter"}, {"kind": "lora"}, {"kind": "full", "rank": 3}):
        with refused("point", "full, lora, fresh"):
            point_name(bad)
