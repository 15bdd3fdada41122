"""The documented path of a shipped model, on a tiny one: train, finish (evaluate, save, card), reload, generate."""

import json
import shutil
from pathlib import Path

import pytest
import torch

from diffgemma_lite import DiffusionGemma, SamplerConfig, generate
from diffgemma_lite import recipe as recipes
from diffgemma_lite.data import python_corpus
from diffgemma_lite.data.python_corpus import Example
from diffgemma_lite.evaluate import evaluate, mean_and_interval

SHIPPED = Path(__file__).parents[2] / "assets" / "checkpoints" / "python-small"


@pytest.fixture
def tiny_recipe(tmp_path, monkeypatch):
    """The shipped tokenizer, a tiny model, sixteen examples."""
    folder = tmp_path / "tiny-python"
    folder.mkdir()
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(SHIPPED / name, folder / name)
    plan = json.loads((SHIPPED / "recipe.json").read_text(encoding="utf-8"))
    plan |= {"preset": "tiny", "train": {"steps": 4, "batch_size": 4, "log_every": 2, "checkpoint_every": 2, "warmup_steps": 1}}
    plan["generation"]["max_denoising_steps"] = 3
    (folder / "recipe.json").write_text(json.dumps(plan), encoding="utf-8")
    corpus = [Example("made_up", "body", f"def add_{n}(a):", f"\n    return a + {n}") for n in range(16)]
    monkeypatch.setattr(python_corpus, "load_corpus", lambda split, tasks: corpus)
    monkeypatch.setattr(recipes, "SAMPLED_PROMPTS", 3)
    return folder / "recipe.json"


def test_train_finish_reload_generate(tiny_recipe, tmp_path, capsys):
    recipes.main(["train", str(tiny_recipe), str(tmp_path / "run")])
    recipes.main(["finish", str(tiny_recipe), str(tmp_path / "run")])
    folder = tiny_recipe.parent
    scores = json.loads((folder / "scores.json").read_text(encoding="utf-8"))
    assert scores["held_out"]["denoising"]["n"] == 16 and scores["sampling"]["n"] == 3
    assert sum(b["n"] for b in scores["held_out"]["by_noise_level"]) == 16
    log = [json.loads(line) for line in (folder / "log.jsonl").read_text(encoding="utf-8").splitlines()]
    assert [entry["step"] for entry in log] == [2, 4]
    card = (folder / "README.md").read_text(encoding="utf-8")
    assert f"{scores['held_out']['encoder']['mean']:.3f}" in card and "Python Software Foundation" in card
    model = DiffusionGemma.from_pretrained(folder)
    assert model.dtype == torch.bfloat16
    out = generate(model, torch.tensor([[2, 3, 40]]), SamplerConfig.from_defaults(model.generation_defaults), max_new_tokens=8)
    assert out.tokens.shape == (1, 8) and out.steps == [[3]]


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
