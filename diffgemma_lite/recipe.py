"""Recipes: a JSON file that says which model, which data and how to train, so that a shipped checkpoint can be made again.

    python -m diffgemma_lite.recipe train  assets/checkpoints/python-small/recipe.json runs/python-small   # hours; resumes
    python -m diffgemma_lite.recipe finish assets/checkpoints/python-small/recipe.json runs/python-small   # evaluate, save
"""

from __future__ import annotations

import argparse
import json
import platform
import shutil
from pathlib import Path

import torch

from .config import Config
from .evaluate import evaluate, sample_report
from .model import DiffusionGemma
from .sampler import SamplerConfig
from .train import STATE, TrainConfig, train
from .train_state import read_state

HELD_OUT_EXAMPLES, SAMPLED_PROMPTS = 1000, 32


class Recipe:
    """A parsed recipe.json, its tokenizer (in the same folder) and its data."""

    def __init__(self, path: str | Path):
        from .data.tokenizer import Tokenizer

        self.path = Path(path)
        try:
            self.plan = json.loads(self.path.read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise ValueError(f"recipe: {path} cannot be read as JSON ({error})") from error
        self.tokenizer = Tokenizer.load(self.path.parent)
        self.config = Config.preset(self.plan["preset"], vocab_size=self.tokenizer.vocab_size, **self.plan.get("config", {}))
        self.training = TrainConfig(**self.plan["train"])

    def new_model(self) -> DiffusionGemma:
        torch.manual_seed(self.training.seed)
        return DiffusionGemma(self.config).set_kernels(**self.plan.get("kernels", {}))

    @property
    def kind(self) -> str:
        """Which data: "python", the standard library's source, or "templates", generated records."""
        return self.plan["data"].get("kind", "python")

    def examples(self, split: str):
        """Encoded examples of one split of the recipe's data."""
        from .data.tokenizer import encode_examples

        data = self.plan["data"]
        pairs = self._pairs(split, data)
        return encode_examples(pairs, self.tokenizer, data["max_prompt"], self.config.canvas_length, data["max_canvases"])

    def _pairs(self, split: str, data: dict) -> list:
        """Texts of one split, as encode_examples takes them."""
        if self.kind == "python":
            from .data import python_corpus

            return python_corpus.load_corpus(split, tasks=data["tasks"])
        if self.kind == "templates":
            from .data import templates

            return templates.records(split, data["records"] if split == "train" else HELD_OUT_EXAMPLES)
        raise ValueError(f"data: {self.path} names kind {self.kind!r}, takes 'python' or 'templates'")


def train_recipe(recipe: str | Path, out: str | Path) -> None:
    """Train to the end; if `out` holds a checkpoint, from there."""
    it = Recipe(recipe)
    model, examples = it.new_model(), it.examples("train")
    print(f"{sum(p.numel() for p in model.parameters()):,} parameters, {len(examples):,} examples", flush=True)

    def report(entry: dict) -> None:
        print(json.dumps({k: round(v, 5) for k, v in entry.items()}), flush=True)

    train(model, examples, it.training, folder=out, progress=False, on_log=report)


def finish_recipe(recipe: str | Path, out: str | Path) -> None:
    """Evaluate the trained weights on held-out modules and write model, log, scores and card beside the recipe."""
    it, out = Recipe(recipe), Path(out)
    model, (meta, stored) = it.new_model(), read_state(out / STATE)
    model.load_state_dict({k.removeprefix("model."): t for k, t in stored.items() if k.startswith("model.")})
    model.generation_defaults = it.plan["generation"]
    model.to(torch.bfloat16).to(torch.float32)  # the scores are those of the weights as they are stored
    folder, held_out = it.path.parent, it.examples("validation")
    every = max(1, len(held_out) // HELD_OUT_EXAMPLES)
    prompts = [e.prompt for e in held_out[:: max(1, len(held_out) // SAMPLED_PROMPTS)]][:SAMPLED_PROMPTS]
    scores = {"held_out": evaluate(model, held_out[::every])}
    scores["sampling"] = sample_report(model, prompts, SamplerConfig.from_defaults(it.plan["generation"]))
    model.to(torch.bfloat16).save_pretrained(folder)
    shutil.copy(out / "log.jsonl", folder / "log.jsonl")
    (folder / "scores.json").write_text(json.dumps(scores, indent=2) + "\n", encoding="utf-8")
    log = [json.loads(line) for line in (folder / "log.jsonl").read_text(encoding="utf-8").splitlines()]
    run = {name: json.loads(meta[name]) for name in ("data", "starts")}
    (folder / "README.md").write_text(model_card(it, model, scores, log, **run), encoding="utf-8")


def where_trained(starts: list[dict]) -> str:
    """One line for each machine and set of versions that the run was started on, in order."""

    def named(start: dict) -> str:
        versions = f"Python {start['python']}, torch {start['torch'].split('+')[0]}"
        return f"{start['cores']} cores ({start['machine']}), {start['threads']} threads, {start['device']}; {versions}"

    parts: list[tuple[int, str]] = []
    for start in starts:
        if not parts or parts[-1][1] != named(start):
            parts.append((start["step"], named(start)))
    if len(parts) == 1:
        return parts[0][1]
    return "; then ".join(f"from step {step:,} on {name}" for step, name in parts)


def model_card(it: Recipe, model: DiffusionGemma, scores: dict, log: list[dict], data: dict, starts: list[dict]) -> str:
    """The card as text; every number in it comes from the run. data and starts: as the training state holds them."""

    def shown(x: dict) -> str:
        return f"{x['mean']:.3f} ± {x['half_width']:.3f} (n = {x['n']:,})"

    held, sampling, last = scores["held_out"], scores["sampling"], log[-1]
    levels = "\n".join(f"| {b['t_from']} to {b['t_to']} | {shown(b)} |" for b in held["by_noise_level"])
    return f"""# {it.path.parent.name}

A small DiffusionGemma trained from scratch with this project's own loop. It shows how the architecture writes; it is not a
useful programmer.

- **Size**: {sum(p.numel() for p in model.parameters()):,} parameters, bfloat16; {it.config.num_hidden_layers} layers, width
  {it.config.hidden_size}, {it.config.num_experts} experts of which {it.config.top_k_experts} work for each token, canvas
  {it.config.canvas_length}, vocabulary {it.config.vocab_size:,}.
- **Data**: the source and docstrings of Python's own standard library, as installed with Python {starts[0]['python']}
  (Python Software Foundation License); {data['examples']:,} training examples (BLAKE2b of their ids {data['blake2b']}). Held-out
  modules, not held-out lines: see `diffgemma_lite/data/python_corpus.py`. The example counts differ with the Python version.
- **Recipe**: `recipe.json`, {last['step']:,} steps of {it.training.batch_size} canvases; {last['seconds'] / 60:.0f} minutes,
  {it.training.precision}. Log: `log.jsonl`. Seed {it.training.seed}.
- **Trained on**: {where_trained(starts)}
- **Make it again**: `uv run python -m diffgemma_lite.recipe train assets/checkpoints/{it.path.parent.name}/recipe.json runs/again`

## Held-out modules (validation split, Python {platform.python_version()}), 95% intervals

Last training losses (nats, mean of {it.training.log_every} steps): denoising {last['denoising']:.3f}, encoder {last['encoder']:.3f}.

| | nats per token |
|---|---|
| denoising loss, t uniform | {shown(held['denoising'])} |
| encoder next-token loss | {shown(held['encoder'])} |

| noise level t | denoising loss |
|---|---|
{levels}

The denoising loss is not a likelihood: it averages over corrupted and clean positions alike, without the weights a bound needs.

## Canvases

{sampling['n']} held-out prompts, seeds {sampling['seeds'][0]} to {sampling['seeds'][1]}, the generation settings of
`generation_config.json`: {shown(sampling['steps'])} steps; {sampling['stable']} stopped because stable and confident,
{sampling['n'] - sampling['stable']} ran out of steps; {sampling['end_token']} wrote an end token; tokens kept
{shown(sampling['tokens_kept'])}; tokens per forward {shown(sampling['tokens_per_forward'])}.

## Limits

Trained for minutes, not days: it repeats itself, mixes names, and often leaves brackets open. It saw only Python's standard
library. Do not use what it writes.
"""


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description="Train what a recipe.json describes, or finish a trained one.")
    parser.add_argument("what", choices=("train", "finish"))
    parser.add_argument("recipe")
    parser.add_argument("out", help="folder of the checkpoint and the log")
    given = parser.parse_args(arguments)
    (train_recipe if given.what == "train" else finish_recipe)(given.recipe, given.out)


if __name__ == "__main__":
    main()
