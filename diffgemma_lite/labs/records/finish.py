"""From a trained run on records to a shipped checkpoint: scores, weights, log and card.

Notebook 08.

    RECIPE=assets/checkpoints/templates-small/recipe.json
    python -m diffgemma_lite.labs.recipe train $RECIPE runs/templates      # resumes
    python -m diffgemma_lite.labs.records.finish $RECIPE runs/templates
    python -m diffgemma_lite.labs.records.finish $RECIPE                   # scores, card

The sampler's settings stand in the recipe; the scores are of the test split.
"""

from __future__ import annotations

import argparse
import functools
import json
import platform
from pathlib import Path

import torch

from ...model import DiffusionGemma
from ...sampler import SamplerConfig
from ..evaluate import evaluate
from ..recipe import Recipe, copy_logs, read_log, trained_model
from .card import card
from .data import FAMILIES
from .planted import score_repairs
from .scores import score_all


def finish(recipe: Path, out: Path | None, count: int, trials: int, seed: int = 0) -> dict:
    """Score and write everything beside the recipe.

    Without a run, score the weights that lie there.
    """
    it, folder = Recipe(recipe), recipe.parent
    sampler = SamplerConfig.from_defaults(it.plan["generation"], draw="cdf")
    if out is None:
        model = (
            DiffusionGemma.from_pretrained(folder, dtype=torch.float32)
            .set_kernels(**it.plan.get("kernels", {}))
            .eval()
        )
        run = json.loads((folder / "scores.json").read_text(encoding="utf-8"))["run"]
    else:
        model, meta = trained_model(it, out)
        run = {name: json.loads(meta[name]) for name in ("data", "starts")}
        copy_logs(it, out)
    say = functools.partial(print, flush=True)
    scores = {
        "python": platform.python_version(),
        "run": run,
        "seed": seed,
        "held_out": evaluate(model, it.examples("validation")),
        "structured": score_all(model, it.tokenizer, sampler, count=count, seed=seed, note=say),
        "planted": score_repairs(
            model, it.tokenizer, sampler, count=trials, seed=seed, families=tuple(FAMILIES)
        ),
    }
    (folder / "scores.json").write_text(json.dumps(scores, indent=1) + "\n", encoding="utf-8")
    (folder / "README.md").write_text(
        card(it, model, scores, read_log(folder / "log.jsonl")), encoding="utf-8"
    )
    if out is not None:
        model.to(torch.bfloat16).save_pretrained(folder)
    return scores


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description="Score a model of records; write everything beside the recipe."
    )
    parser.add_argument("recipe", type=Path)
    parser.add_argument(
        "out", type=Path, nargs="?", help="folder of the run; none: the weights beside the recipe"
    )
    parser.add_argument("--records", type=int, default=200, help="test records a family")
    parser.add_argument(
        "--trials", type=int, default=100, help="planted tokens of each kind in each family"
    )
    given = parser.parse_args(arguments)
    finish(given.recipe, given.out, given.records, given.trials)


if __name__ == "__main__":
    main()
