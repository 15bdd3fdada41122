"""Train what the recipe describes. Killed and started again, it goes on, exactly.

python -m diffgemma_lite.labs train functions-small --out runs/functions
python -m diffgemma_lite.labs train functions-small --out runs/ten --minutes 10
"""

from __future__ import annotations

import json
from pathlib import Path

import torch

from ...attention import flatten_scores
from ...config import Config
from ...model import DiffusionGemma
from ...tokenizer import EncodedExample, Tokenizer, encode_examples
from ...train import STATE, TrainConfig, train
from ...train_state import read_state
from ..train import Clock, show
from .data import functions


def read_recipe(folder: str | Path) -> dict:
    """The parsed recipe.json of a folder."""
    return json.loads((Path(folder) / "recipe.json").read_text(encoding="utf-8"))


def new_model(plan: dict, vocab_size: int) -> DiffusionGemma:
    """The untrained model of a recipe, from its seed."""
    torch.manual_seed(plan["train"]["seed"])
    config = Config.preset(plan["preset"], vocab_size=vocab_size, **plan.get("config", {}))
    model = DiffusionGemma(config).set_kernels(**plan["kernels"])
    return flatten_scores(model) if plan["flat_attention"] else model


def training_examples(plan: dict, tokenizer: Tokenizer, canvas: int) -> list[EncodedExample]:
    """Ids of the training functions. One that does not fit whole is left out, never cut."""
    data = plan["data"]
    made = functions("train", data["functions"], seed=data["seed"])
    longest = data["max_prompt"]
    found = encode_examples(made, tokenizer, longest + 1, canvas, data["max_canvases"])
    return [e for e in found if e.complete and len(e.prompt) <= longest]


def stages(plan: dict) -> list[tuple[dict, int]]:
    """(recipe, the step until which it goes) of each stage, the first one first.

    "first" holds changes of data and train.
    """
    if "first" not in plan:
        return [(plan, plan["train"]["steps"])]
    first = plan["first"]
    rest = {name: value for name, value in plan.items() if name != "first"}
    return [
        (
            rest | {part: rest[part] | first.get(part, {}) for part in ("data", "train")},
            first["until"],
        ),
        (rest, rest["train"]["steps"]),
    ]


def load_weights(model: DiffusionGemma, run: str | Path) -> dict[str, str]:
    """Fill the model with the weights of a run's checkpoint. Returns the checkpoint's metadata."""
    meta, stored = read_state(Path(run) / STATE)
    model.load_state_dict(
        {k.removeprefix("model."): t for k, t in stored.items() if k.startswith("model.")}
    )
    return meta


def train_run(recipe: str | Path, out: str | Path, *, minutes: float | None = None) -> None:
    """Train to the recipe's last step, or for about `minutes`. State and log stand in `out`, those
    of an earlier stage in `out`/first.
    """
    folder, out, clock = Path(recipe).parent, Path(out), Clock(minutes)
    plan, tokenizer = read_recipe(folder), Tokenizer.load(folder)
    parts, before = stages(plan), None
    for (stage, until), where in zip(parts, [out / "first", out][-len(parts) :], strict=True):
        if not _train_stage(stage, tokenizer, where, until, before, clock):
            return
        before = where


def _train_stage(
    plan: dict, tokenizer: Tokenizer, run: Path, until: int, before: Path | None, clock: Clock
) -> bool:
    """One stage, from the weights of the one before. Was its last step reached?"""
    reached = int(read_state(run / STATE)[0]["step"]) if (run / STATE).exists() else 0
    if reached >= until:
        return True
    model = new_model(plan, tokenizer.vocab_size)
    if before is not None and not reached:
        load_weights(model, before)
    examples = training_examples(plan, tokenizer, model.config.canvas_length)
    print(
        f"{sum(p.numel() for p in model.parameters()):,} parameters, {len(examples):,} functions",
        flush=True,
    )

    def report(entry: dict) -> bool:
        show(entry)
        return entry["step"] >= until or clock.over()

    log = train(
        model, examples, TrainConfig(**plan["train"]), folder=run, progress=False, on_log=report
    )
    return bool(log) and log[-1]["step"] >= until
