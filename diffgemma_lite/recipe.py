"""Recipes: a JSON file that says which model, which data and how to train, so that a shipped checkpoint can be made again."""

from __future__ import annotations

import json
from pathlib import Path

import torch

from .config import Config
from .model import DiffusionGemma
from .train import TrainConfig, evaluate, train


def python_examples(split: str, tokenizer, config: Config, data: dict):
    """Encoded examples of the standard-library corpus for one split."""
    from .data.python_corpus import load_corpus
    from .data.tokenizer import encode_examples

    corpus = load_corpus(split, tasks=data["tasks"])
    return encode_examples(corpus, tokenizer, data["max_prompt"], config.canvas_length, data["max_canvases"])


def run_recipe(recipe: str | Path, out: str | Path) -> None:
    """Train to the end (resuming if `out` holds a checkpoint), evaluate on the validation modules, save model and tokenizer."""
    from .data.tokenizer import Tokenizer

    recipe, out = Path(recipe), Path(out)
    plan = json.loads(recipe.read_text(encoding="utf-8"))
    tokenizer = Tokenizer.load(recipe.parent)
    config = Config.preset(plan["preset"], vocab_size=tokenizer.vocab_size, **plan.get("config", {}))
    torch.manual_seed(plan["train"].get("seed", 0))
    model = DiffusionGemma(config)
    examples = python_examples("train", tokenizer, config, plan["data"])
    held_out = python_examples("validation", tokenizer, config, plan["data"])
    print(f"{sum(p.numel() for p in model.parameters()):,} parameters, {len(examples):,} examples", flush=True)

    def report(entry: dict) -> None:
        print(json.dumps({k: round(v, 5) for k, v in entry.items()}), flush=True)

    train(model, examples, TrainConfig(**plan["train"]), folder=out, progress=False, on_log=report)
    scores = evaluate(model, held_out[:: max(1, len(held_out) // 1000)])
    print("validation", json.dumps(scores), flush=True)
    (out / "scores.json").write_text(json.dumps(scores, indent=2) + "\n", encoding="utf-8")
    model.generation_defaults = plan["generation"]
    model.to(torch.bfloat16).save_pretrained(out / "model")
    tokenizer.save(out / "model")
