"""From a run to a shipped checkpoint: its weights into the folder, scores.json, README.md.

python -m diffgemma_lite.labs evaluate functions-small --n 1000 --seed 0 --json
python -m diffgemma_lite.labs evaluate functions-small --out runs/functions
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import torch

from ...tokenizer import Tokenizer
from ...train import STATE
from ..scores import named_weights
from .card import write_card
from .data import functions
from .judge import Judge
from .scores import evaluate, load, write_one
from .splits import disjoint
from .train import load_weights, new_model, read_recipe, stages

COUNT = 1000  # held-out combinations that are asked, and a fifth of that of each other split
SAMPLE = 2000  # functions of each side of the proof that no syntax tree is in both
SHOWN = 3  # functions in the card, the first of the first seed


def save_weights(folder: Path, run: Path) -> None:
    """The newest weights of a run as bfloat16, with logs; scores.json says how far it has come."""
    plan, tokenizer = read_recipe(folder), Tokenizer.load(folder)
    model, parts = new_model(plan, tokenizer.vocab_size), stages(plan)
    runs = [run / "first", run][-len(parts) :]
    reached = [where for where in runs if (where / STATE).exists()]
    meta = load_weights(model, reached[-1])
    model.generation_defaults = plan["generation"]
    model.to(torch.bfloat16).save_pretrained(folder)
    for name, where in zip(
        ("log-before-1.jsonl", "log.jsonl")[-len(reached) :], reached, strict=True
    ):
        shutil.copy(where / "log.jsonl", folder / name)
    stage = len(reached)
    about = {
        "stage": stage,
        "of_stages": len(parts),
        "step": int(meta["step"]),
        "until": parts[stage - 1][1],
    }
    about |= {"data": json.loads(meta["data"]), "starts": json.loads(meta["starts"])}
    write_json(folder / "scores.json", {"weights": named_weights(folder), "run": about})


def write_json(path: Path, what: dict) -> None:
    path.write_text(json.dumps(what, indent=2) + "\n", encoding="utf-8")


def measure(folder: Path, n: int, seed: int, others: int) -> None:
    """Evaluate the folder's weights into its scores.json.

    n: held-out combinations; others: functions of each other split.
    """
    model, tokenizer = load(folder)
    path = folder / "scores.json"
    scores = json.loads(path.read_text(encoding="utf-8"))
    if scores["weights"] != named_weights(folder):
        raise ValueError(
            f"folder: {path} is about other weights than those beside it, takes the same"
        )
    held = functions("combinations", SAMPLE)
    scores["disjoint"] = disjoint(functions("train", SAMPLE), held)
    with Judge() as judge:
        scores["shown"] = [
            shown(model, tokenizer, judge, held[i], seed * 1_000_003 + i) for i in range(SHOWN)
        ]
    for split, count in (("combinations", n), ("wordings", others), ("names", others)):
        scores[split] = evaluate(model, tokenizer, n=count, seed=seed, split=split)
        write_json(path, scores)  # what is measured is kept


def shown(model, tokenizer: Tokenizer, judge: Judge, function, seed: int) -> dict:
    """A function with what the denoiser wrote."""
    body, tokens, forwards, _ = write_one(model, tokenizer, function.prompt, "denoiser", seed)
    return {
        "prompt": function.prompt,
        "body": body,
        "tokens": tokens,
        "forwards": forwards,
        "right": judge.right(function, body),
    }


def evaluate_run(
    recipe: str | Path,
    out: str | Path | None = None,
    *,
    n: int | None = None,
    seed: int = 0,
    write: bool = False,
) -> dict:
    """Scores of the weights beside the recipe, on n held-out combinations (None: 1,000).

    With a run in `out`: of its newest weights, which with log, scores and card go beside the
    recipe, `write` or not.
    """
    folder, count = Path(recipe).parent, n or COUNT
    if out is None and not write:
        return evaluate(*load(folder), n=count, seed=seed)
    if out is not None:
        save_weights(folder, Path(out))
    measure(folder, count, seed, max(1, count // 5))
    write_card(recipe)
    return json.loads((folder / "scores.json").read_text(encoding="utf-8"))["combinations"]
