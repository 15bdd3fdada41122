"""From a trained run on records to a shipped checkpoint: scores, weights, log and card. Notebook
08.

    python -m diffgemma_lite.labs train    templates-small --out runs/templates    # resumes
    python -m diffgemma_lite.labs evaluate templates-small --out runs/templates
    python -m diffgemma_lite.labs evaluate templates-small    # the weights that lie there

The sampler's settings stand in the recipe; the scores are of the test split.
"""

from __future__ import annotations

import functools
import json
import platform
from pathlib import Path

import torch

from ...model import DiffusionGemma
from ...sampler import SamplerConfig
from ..evaluate import evaluate
from ..recipe import Recipe, copy_logs, trained_model
from ..scores import write_scores
from .card import write_card
from .data import FAMILIES
from .planted import score_repairs
from .scores import score_all

COUNT = 200  # test records a family, and half as many planted tokens of each kind


def evaluate_run(
    recipe: str | Path,
    out: str | Path | None = None,
    *,
    n: int | None = None,
    seed: int = 0,
    write: bool = False,
) -> dict:
    """The scores of the weights beside the recipe; `write`: into scores.json, and the card. With a
    run in `out`: of its weights, and model, log, scores and card go beside the recipe.

    n: test records a family, and half as many planted tokens of each kind (None: 200).
    """
    it, count = Recipe(recipe), n or COUNT
    folder, path = it.path.parent, it.path.with_name("scores.json")
    sampler = SamplerConfig.from_defaults(it.plan["generation"], draw="cdf")
    if out is None:
        model = DiffusionGemma.from_pretrained(folder, dtype=torch.float32)
        model = model.set_kernels(**it.plan.get("kernels", {})).eval()
        run = json.loads(path.read_text(encoding="utf-8"))["run"]
    else:
        model, meta = trained_model(it, Path(out))
        run = {name: json.loads(meta[name]) for name in ("data", "starts")}
    say, trials = functools.partial(print, flush=True), max(1, count // 2)
    how = {"count": trials, "seed": seed, "families": tuple(FAMILIES)}
    scores = {
        "python": platform.python_version(),
        "run": run,
        "seed": seed,
        "held_out": evaluate(model, it.examples("validation")),
        "structured": score_all(model, it.tokenizer, sampler, count=count, seed=seed, note=say),
        "planted": score_repairs(model, it.tokenizer, sampler, **how),
    }
    if out is not None:
        copy_logs(it, Path(out))
        model.to(torch.bfloat16).save_pretrained(folder)
    if write or out is not None:
        write_scores(path, scores)
        write_card(it.path)
    return scores
