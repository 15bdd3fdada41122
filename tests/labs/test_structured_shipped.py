"""The shipped models of records.

One copy in bfloat16, records that keep their promises in few steps, a card made of the scores.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from diffgemma_lite import DiffusionGemma, SamplerConfig
from diffgemma_lite.labs.distill.card import card as distillation_card
from diffgemma_lite.labs.recipe import Recipe, read_log
from diffgemma_lite.labs.records.card import card
from diffgemma_lite.labs.records.data import FAMILIES, records
from diffgemma_lite.labs.records.planted import go_on, plant, score_planted
from diffgemma_lite.labs.records.scores import denoise_records, score_records
from diffgemma_lite.tokenizer import Tokenizer

ASSETS = Path(__file__).parents[2] / "assets" / "checkpoints"
FOLDER = ASSETS / "templates-small"


def load(name: str) -> tuple[DiffusionGemma, Tokenizer, SamplerConfig]:
    model = DiffusionGemma.from_pretrained(ASSETS / name, dtype=torch.float32).eval()
    return (
        model,
        Tokenizer.load(ASSETS / name),
        SamplerConfig.from_defaults(model.generation_defaults, draw="cdf"),
    )


@pytest.fixture(scope="module")
def ours():
    return load("templates-small")


@pytest.fixture(scope="module")
def scores() -> dict:
    return json.loads((FOLDER / "scores.json").read_text(encoding="utf-8"))


def test_size_is_one_copy_in_bfloat16(ours):
    size = (FOLDER / "model.safetensors").stat().st_size
    assert 2 * sum(t.numel() for t in ours[0].state_dict().values()) < size < 32e6


@pytest.mark.parametrize("family", FAMILIES)
def test_a_few_records_agree_with_the_recorded_scores(family, ours, scores):
    model, tokenizer, sampler = ours
    some = records("test", 12, seed=77, families=(family,))
    found, recorded = (
        score_records(tokenizer, some, denoise_records(model, tokenizer, some, sampler)),
        scores["structured"],
    )
    wanted = recorded["families"][family]["diffusion"]
    # twelve tell little, but a broken model writes none
    assert found["valid"]["share"] >= wanted["valid"]["low"] - 0.3
    assert found["passes"] < wanted["passes"] + 6
    assert (
        wanted["valid"]["n"] >= 100
        and recorded["all"]["diffusion"]["valid"]["n"] == 4 * wanted["valid"]["n"]
    )


def test_a_planted_token_is_repaired_by_one_way_only(ours):
    model, tokenizer, sampler = ours
    trials = plant(model, tokenizer, 12, families=("sum",))
    ways = {
        way: score_planted(tokenizer, trials, go_on(model, tokenizer, trials, sampler, way=way))
        for way in ("uniform", "masked")
    }
    assert (
        ways["uniform"]["repaired"]["share"] >= 0.5
        and ways["masked"]["repaired"]["share"] == ways["masked"]["replaced"]["share"] == 0
    )


def test_the_card_is_made_of_the_recorded_scores(ours, scores):
    it = Recipe(FOLDER / "recipe.json")
    log = [
        json.loads(line) for line in (FOLDER / "log.jsonl").read_text(encoding="utf-8").splitlines()
    ]
    assert (FOLDER / "README.md").read_text(encoding="utf-8") == card(it, ours[0], scores, log)
    assert log[-1]["step"] == it.training.steps
    ends = [read_log(FOLDER / name)[-1]["step"] for _, name in it.earlier_stages()]
    assert ends == [it.plan["first"]["until"], it.plan["first"]["first"]["until"]]


def test_the_model_of_few_steps_takes_few_and_its_card_is_made_of_its_scores():
    folder, (model, tokenizer, sampler) = (
        ASSETS / "templates-few-steps",
        load("templates-few-steps"),
    )
    recipe, scores = (
        json.loads((folder / name).read_text(encoding="utf-8"))
        for name in ("recipe.json", "scores.json")
    )
    assert (folder / "README.md").read_text(encoding="utf-8") == distillation_card(
        folder.name, recipe, scores, model
    )
    assert sampler.max_denoising_steps == recipe["distil"]["few_steps"]
    some = records("test", 12, seed=77, families=("sql",))
    found = score_records(tokenizer, some, denoise_records(model, tokenizer, some, sampler))
    assert found["passes"] <= sampler.max_denoising_steps and found["valid"]["share"] >= 0.5
    assert [row["found"]["all"]["valid"]["n"] for row in scores["families"]] == [
        recipe["family_tests"] * len(FAMILIES)
    ] * 3
