"""The documented path of a shipped model, on a tiny one.

Train, finish (evaluate, save, card), reload, generate.
"""

import json
import os
import re
import shutil
from pathlib import Path

import pytest
import torch

from diffgemma_lite import DiffusionGemma, SamplerConfig, generate
from diffgemma_lite.labs import __main__ as command
from diffgemma_lite.labs import recipe as recipes
from diffgemma_lite.labs import train as training
from diffgemma_lite.labs.card import where_trained
from diffgemma_lite.labs.evaluate import evaluate, mean_and_interval
from diffgemma_lite.labs.python_text import data as python_corpus
from diffgemma_lite.labs.python_text import evaluate as scoring
from diffgemma_lite.labs.python_text.card import write_card
from diffgemma_lite.labs.python_text.data import Example
from diffgemma_lite.labs.python_text.evaluate import TextPlan
from diffgemma_lite.labs.records.data import FAMILIES
from diffgemma_lite.labs.table import LABS, kind_of, module
from diffgemma_lite.labs.train import train_run
from diffgemma_lite.train import STATE, train
from diffgemma_lite.train_state import read_state

SHIPPED = Path(__file__).parents[2] / "assets" / "checkpoints" / "python-small"


@pytest.fixture
def tiny_recipe(tmp_path, monkeypatch):
    """The shipped tokenizer in a folder of its own, a tiny model, sixteen examples."""
    folder, words = tmp_path / "tiny-python", tmp_path / "words"
    folder.mkdir()
    words.mkdir()
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(SHIPPED / name, words / name)
    plan = json.loads((SHIPPED / "recipe.json").read_text(encoding="utf-8"))
    plan |= {"preset": "tiny", "tokenizer": "../words"}
    plan |= {
        "train": {
            "steps": 4,
            "batch_size": 4,
            "log_every": 2,
            "checkpoint_every": 2,
            "warmup_steps": 1,
        }
    }
    plan["generation"]["max_denoising_steps"] = 3
    (folder / "recipe.json").write_text(json.dumps(plan), encoding="utf-8")
    corpus = [
        Example("made_up", "body", f'def add_{n}(a):\n    """Add."""', f"\n    return a + {n}")
        for n in range(16)
    ]
    monkeypatch.setattr(python_corpus, "load_corpus", lambda split, tasks: corpus)
    monkeypatch.setattr(scoring, "SAMPLED_PROMPTS", 3)
    monkeypatch.setattr(
        scoring,
        "TEXT_PLAN",
        TextPlan(hole_sizes=(1,), holes=4, texts=3, likelihoods=3, steps=4, draws=1),
    )
    return folder / "recipe.json"


def test_train_finish_reload_generate(tiny_recipe, tmp_path, capsys):
    command.main(["train", str(tiny_recipe.parent), "--out", str(tmp_path / "run")])
    command.main(["evaluate", str(tiny_recipe.parent), "--out", str(tmp_path / "run")])
    folder = tiny_recipe.parent
    scores = json.loads((folder / "scores.json").read_text(encoding="utf-8"))
    assert scores["held_out"]["denoising"]["n"] == 16 and scores["sampling"]["n"] == 3
    assert sum(b["n"] for b in scores["held_out"]["by_noise_level"]) == 16
    log = [
        json.loads(line) for line in (folder / "log.jsonl").read_text(encoding="utf-8").splitlines()
    ]
    assert [entry["step"] for entry in log] == [2, 4]
    card = (folder / "README.md").read_text(encoding="utf-8")
    assert scores["text"]["infill"][0]["diffusion"]["n"] == 4 and "**Bits per token** of 3" in card
    assert (
        f"{scores['held_out']['encoder']['mean']:.3f}" in card
        and "Python Software Foundation" in card
    )
    assert (
        f"{os.cpu_count()} cores" in card
        and f"torch {torch.__version__.split('+')[0]}" in card
        and "16 training" in card
    )
    model = DiffusionGemma.from_pretrained(folder)
    assert model.dtype == torch.bfloat16
    for name in ("tokenizer.json", "tokenizer_config.json"):
        assert (folder / name).read_bytes() == (SHIPPED / name).read_bytes()
    out = generate(
        model,
        torch.tensor([[2, 3, 40]]),
        SamplerConfig.from_defaults(model.generation_defaults),
        max_new_tokens=8,
    )
    assert out.tokens.shape == (1, 8) and out.steps == [[3]]


def test_the_card_tells_the_machines_that_trained_not_the_one_that_finishes(
    tiny_recipe, tmp_path, monkeypatch
):
    """Half of the run on one machine, half on another, the card on a third."""
    for cores, steps in ((7, 2), (9, 4)):
        monkeypatch.setattr(os, "cpu_count", lambda cores=cores: cores)
        monkeypatch.setattr(
            training,
            "train",
            lambda *a, on_log, steps=steps, **more: train(
                *a, on_log=lambda entry: on_log(entry) or entry["step"] == steps, **more
            ),
        )
        command.main(["train", str(tiny_recipe.parent), "--out", str(tmp_path / "run")])
    monkeypatch.setattr(os, "cpu_count", lambda: 100)
    command.main(["evaluate", str(tiny_recipe.parent), "--out", str(tmp_path / "run")])
    card = (tiny_recipe.parent / "README.md").read_text(encoding="utf-8")
    told = card.split("**Trained on**: ")[1].split("\n")[0]
    assert (
        told.startswith("from step 0 on 7 cores")
        and "then from step 2 on 9 cores" in told
        and "100 cores" not in card
    )


def test_the_card_tells_of_every_stage(tiny_recipe, tmp_path):
    plan = json.loads(tiny_recipe.read_text(encoding="utf-8"))
    plan["train"] |= {"holes": 0.5, "seed": 7}
    plan["first"] = {"until": 2, "train": {"holes": 0.0, "seed": 5}}
    tiny_recipe.write_text(json.dumps(plan), encoding="utf-8")
    for what in ("train", "evaluate"):
        command.main([what, str(tiny_recipe.parent), "--out", str(tmp_path / "run")])
    card, last = (
        (tiny_recipe.parent / "README.md").read_text(encoding="utf-8"),
        plan["train"]["steps"],
    )
    assert (
        f"{last} steps of {plan['train']['batch_size']} canvases, "
        "50% of them right but for one hole of up to 8 tokens" in card
    )
    assert (
        f"Before that 2 steps (of {last} planned) of {plan['train']['batch_size']} canvases; "
        in card
        and "seed 5 (`log-before-1" in card
    )
    scores = json.loads((tiny_recipe.parent / "scores.json").read_text(encoding="utf-8"))
    before, now = scores["holes_before"], scores["text"]["infill"]
    assert [stage["steps"] for stage in before] == [
        2
    ] and "after the 2 steps of an earlier stage, by diffusion: 1: " in card
    assert [hole["size"] for hole in before[0]["infill"]] == [hole["size"] for hole in now]
    assert [hole["diffusion"]["n"] for hole in before[0]["infill"]] == [
        hole["diffusion"]["n"] for hole in now
    ]
    for name, folder in (("log.jsonl", "run"), ("log-before-1.jsonl", "run/first")):
        assert (tiny_recipe.parent / name).read_bytes() == (
            tmp_path / folder / "log.jsonl"
        ).read_bytes()


def test_machines_are_told_once_and_in_order():
    here = {
        "step": 0,
        "python": "3.11.7",
        "torch": "2.15.0+cpu",
        "cores": 2,
        "threads": 2,
        "device": "cpu",
        "machine": "x86_64",
    }
    words = "2 cores (x86_64), 2 threads, cpu; Python 3.11.7, torch 2.15.0"
    assert where_trained([here, here | {"step": 500}]) == words
    there = here | {"step": 1500, "python": "3.13.1"}
    assert where_trained([here, here | {"step": 500}, there, here | {"step": 2000}]) == (
        f"from step 0 on {words}; then from step 1,500 on {words.replace('3.11.7', '3.13.1')}; "
        f"then from step 2,000 on {words}"
    )


def test_a_recipe_may_start_with_flat_attention(tiny_recipe):
    plan = json.loads(tiny_recipe.read_text(encoding="utf-8"))
    ones = {n: p for n, p in recipes.Recipe(tiny_recipe).new_model().named_parameters()}
    tiny_recipe.write_text(json.dumps(plan | {"flat_attention": True}), encoding="utf-8")
    flat = {n: p for n, p in recipes.Recipe(tiny_recipe).new_model().named_parameters()}
    for name, weight in flat.items():  # the norms of queries and keys change, nothing else
        changed = name.endswith(("q_norm.weight", "k_norm.weight"))
        assert torch.equal(weight, ones[name] * len(weight) ** -0.25 if changed else ones[name]), (
            name
        )
    tiny_recipe.write_text(json.dumps(plan | {"flat_attention": "yes"}), encoding="utf-8")
    with pytest.raises(ValueError, match="flat_attention: got 'yes', takes true or false"):
        recipes.Recipe(tiny_recipe)


def test_a_recipe_says_how_much_of_each_family_of_records(tmp_path):
    folder = SHIPPED.parent / "templates-small"
    plan = json.loads((folder / "recipe.json").read_text(encoding="utf-8"))
    plan |= {"tokenizer": os.path.relpath(folder, tmp_path), "data": plan["data"] | {"records": 60}}

    def counts() -> list[int]:
        (tmp_path / "recipe.json").write_text(json.dumps(plan), encoding="utf-8")
        it = recipes.Recipe(tmp_path / "recipe.json")
        assert (
            len(it.examples("train")) == 60
            and len(it.examples("validation")) == recipes.HELD_OUT_EXAMPLES
        )
        drawn = [record.family for record in it._pairs("train", it.plan["data"])]
        return [drawn.count(family) for family in FAMILIES]

    plan["data"]["shares"] = {"json": 3, "class": 2, "sql": 0.5, "sum": 0.5}
    assert counts() == [30, 20, 5, 5]
    del plan["data"]["shares"]
    assert counts() == [15] * 4
    plan["data"]["shares"] = {"json": 1, "xml": 1}
    with pytest.raises(
        ValueError,
        match="data.shares: got {'json': 1, 'xml': 1}, takes numbers above 0 for some of json",
    ):
        counts()


def test_a_first_stage_ends_where_it_is_told_and_hands_its_weights_on(tmp_path):
    folder, run = SHIPPED.parent / "templates-small", tmp_path / "run"
    plan = json.loads((folder / "recipe.json").read_text(encoding="utf-8"))
    stage = {"steps": 4, "batch_size": 4, "log_every": 1, "checkpoint_every": 1, "warmup_steps": 0}
    plan |= {
        "preset": "tiny",
        "config": {"canvas_length": 64},
        "tokenizer": os.path.relpath(folder, tmp_path),
        "train": stage,
    }
    plan["data"] |= {"records": 40, "seed": 1}
    plan["first"] = {"until": 2, "data": {"seed": 0}, "train": {"steps": 9, "learning_rate": 0.01}}
    (tmp_path / "recipe.json").write_text(json.dumps(plan), encoding="utf-8")
    it = recipes.Recipe(tmp_path / "recipe.json")
    assert (
        it.first_stage().training.steps == 9
        and it.training.steps == 4
        and it.first_stage().first_stage() is None
    )
    assert it.first_stage().examples("train") != it.examples("train")
    train_run(tmp_path / "recipe.json", run)
    first, last = (
        json.loads(read_state(path / "train_state.safetensors")[0]["step"])
        for path in (run / "first", run)
    )
    assert (first, last) == (2, 4)
    # the second stage alone, from the first one's weights, gives the same bits
    again = tmp_path / "again"
    model = it.new_model()
    recipes.load_weights(model, run / "first")
    train(model, it.examples("train"), it.training, folder=again, progress=False)
    ends = [read_state(path / "train_state.safetensors")[1] for path in (run, again)]
    assert all(torch.equal(value, ends[1][name]) for name, value in ends[0].items())
    before = (run / "first" / "log.jsonl").read_bytes()
    train_run(tmp_path / "recipe.json", run)  # nothing left to do
    assert (run / "first" / "log.jsonl").read_bytes() == before


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"flat_atention": True}, "has flat_atention, takes an object with preset"),
        ({"first": {"data": {}}}, "first: got data, takes until"),
        (
            {"first": {"until": 3}},
            "first.until: got 3, takes a multiple of log_every = 2 from 2 to steps = 4",
        ),
        ({"first": {"until": 6}}, "first.until: got 6"),
        ({"first": {"until": 2, "trian": {}}}, "first: got until, trian, takes"),
        (
            {
                "data": {
                    "kind": "templates",
                    "records": 4,
                    "shares": {"sum": 0},
                    "max_prompt": 9,
                    "max_canvases": 1,
                }
            },
            "data.shares: got {'sum': 0}",
        ),
    ],
)
def test_a_recipe_that_cannot_be_meant_is_refused(tiny_recipe, change, said):
    plan = json.loads(tiny_recipe.read_text(encoding="utf-8"))
    tiny_recipe.write_text(json.dumps(plan | change), encoding="utf-8")
    with pytest.raises(ValueError, match=re.escape(said)):
        it = recipes.Recipe(tiny_recipe)
        it.first_stage()
        it.examples("train")


def test_the_python_card_is_not_written_for_records(tmp_path):
    other = SHIPPED.parent / "templates-small" / "recipe.json"
    for work in (lambda: scoring.evaluate_run(other, tmp_path), lambda: write_card(other)):
        with pytest.raises(ValueError, match="kind 'templates', takes 'python'"):
            work()


def test_the_larger_recipe_is_one_that_can_be_trained():
    it = recipes.Recipe(SHIPPED.parent / "python-base" / "recipe.json")
    size = sum(p.numel() for p in DiffusionGemma(it.config, device="meta").parameters())
    assert size <= 15_000_000 and it.config.num_experts >= 16 and it.config.canvas_length == 128
    assert set(it.plan["data"]["tasks"]) == {*python_corpus.TASKS, *python_corpus.MORE_TASKS}
    assert (
        it.plan["data"]["max_prompt"] + it.plan["data"]["max_canvases"] * 128
        <= it.config.max_position_embeddings
    )
    SamplerConfig.from_defaults(it.plan["generation"])


def test_a_device_that_is_not_here_and_what_a_lab_does_not_take_are_named(tmp_path, capsys):
    with pytest.raises(ValueError, match="^device: got 'nowhere'"):
        command.main(["train", "python-small", "--out", str(tmp_path), "--device", "nowhere"])
    for given, said in (
        (["train", "sudoku-siblings", "--minutes", "3"], "--minutes: train of kind 'siblings'"),
        (["train", "python-small", "--minutes", "0"], "--minutes: invalid float above 0"),
        (["evaluate", "python-small", "--n", "0"], "--n: invalid int above 0"),
    ):
        with pytest.raises(SystemExit):
            command.main(given)
        assert said in capsys.readouterr().err
    with pytest.raises(ValueError, match="^NAME: got 'python', takes .* python-small, sudoku"):
        command.main(["card", "python"])
    with pytest.raises(ValueError, match="^evaluate: a recipe of kind 'siblings' has none"):
        command.main(["evaluate", "sudoku-siblings"])


@pytest.mark.parametrize(
    "name", sorted(p.parent.name for p in SHIPPED.parent.glob("*/recipe.json"))
)
def test_every_recipe_has_a_line_of_the_table(name):
    """Its modules are there, with the function of each command."""
    lab = LABS[kind_of(command.read_plan(command.recipe_of(name)))]
    for part, work in (
        ("train", "train_run"),
        ("evaluate", "evaluate_run"),
        ("card", "write_card"),
    ):
        if getattr(lab, part):
            kind = next(kind for kind, other in LABS.items() if other is lab)
            assert callable(getattr(module(kind, part), work))


def test_minutes_stop_a_training_that_goes_on_later(tiny_recipe, tmp_path, monkeypatch):
    run = tmp_path / "run"
    train_run(tiny_recipe, run, minutes=1e-9)
    assert int(read_state(run / STATE)[0]["step"]) == 2
    train_run(tiny_recipe, run)
    assert int(read_state(run / STATE)[0]["step"]) == 4


def test_interval_is_the_textbook_one():
    got = mean_and_interval(torch.tensor([1.0, 2.0, 3.0, 4.0]))
    assert got["n"] == 4 and got["mean"] == 2.5
    assert got["half_width"] == pytest.approx(1.96 * (5 / 3) ** 0.5 / 2)


def test_no_examples_and_no_recipe_are_named(tmp_path):
    from diffgemma_lite import Config

    with pytest.raises(ValueError, match="examples: is empty"):
        evaluate(DiffusionGemma(Config.preset("tiny")), [])
    with pytest.raises(ValueError, match="recipe: .* cannot be read"):
        recipes.Recipe(tmp_path / "recipe.json")
