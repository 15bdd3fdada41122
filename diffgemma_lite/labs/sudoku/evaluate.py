"""How good is a Sudoku model?

Whole puzzles right, cells right, broken rules, steps. Walked through in notebook 09.

    python -m diffgemma_lite.labs evaluate sudoku-small --n 20    # the weights that lie there
    python -m diffgemma_lite.labs evaluate sudoku-small --out runs/sudoku    # of a run, and save

The sampler's settings stand in the recipe and were chosen on validation puzzles; the test puzzles
come from the seed. Steps are counted by wrapping `model.decode` (`counting`), not
taken from the sampler's own book-keeping; with several puzzles in a batch, a row's steps are those
until it stopped, and the wrapper checks the longest of them.
"""

from __future__ import annotations

import functools
import json
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch

from ...generation import generate, generate_autoregressive
from ...model import DiffusionGemma
from ...sampler import SamplerConfig
from ...trace.observe import counting
from ..scores import share, write_scores
from ..step_functions import masked_step
from .card import write_card
from .data import BANDS, Puzzle, violations
from .runs import copy_logs, models_of_stages, trained_model
from .splits import puzzles
from .state import STATE
from .task import MASK, Layout, only_digits
from .train import read_recipe

SAMPLER = SamplerConfig(max_denoising_steps=16, draw="cdf")
CURVE = (1, 2, 4, 8, 16, 32, 64)  # denoising steps


@dataclass(frozen=True)
class Attempt:
    """What a model wrote for P puzzles.

    Digits [P, cells], denoising steps or tokens of each [P], seconds in all.
    """

    grids: np.ndarray
    steps: np.ndarray
    seconds: float


def attempt(
    model,
    layout: Layout,
    puzzles: Sequence[Puzzle],
    *,
    sibling: str = "uniform",
    sampler: SamplerConfig = SAMPLER,
    batch_size: int = 100,
    seed: int = 0,
    digits_only: bool = True,
) -> Attempt:
    """Let the model solve puzzles; puzzle number i draws from the seed `seed + i`, whatever the
    batch.

    digits_only limits the decoder's logits; the autoregressive sibling writes from the whole
    vocabulary.
    """
    if not puzzles:
        raise ValueError("puzzles: is empty, takes at least one")
    grids, steps, start = [], [], time.perf_counter()
    for at in range(0, len(puzzles), batch_size):
        some = puzzles[at : at + batch_size]
        canvas, taken = _solve_batch(model, layout, some, sibling, sampler, seed + at, digits_only)
        grids.append(layout.grid(canvas.cpu().numpy(), np.array([p.clues for p in some])))
        steps.append(taken)
    return Attempt(np.concatenate(grids), np.concatenate(steps), time.perf_counter() - start)


def _solve_batch(
    model, layout, puzzles, sibling, sampler, seed, digits_only
) -> tuple[torch.Tensor, np.ndarray]:
    """Canvas [B, C] and steps [B] of one batch."""
    dev, rows = model.device, len(puzzles)
    clues, solution = (
        np.array([getattr(p, name) for p in puzzles]) for name in ("clues", "solution")
    )
    prompt = torch.from_numpy(layout.prompt(clues)).to(dev)
    generators = [torch.Generator(device=dev).manual_seed(seed + i) for i in range(rows)]
    length = layout.canvas_length
    if sibling == "autoregressive":
        tokens = generate_autoregressive(model, prompt, max_new_tokens=length).tokens
        return tokens, np.full(rows, length)
    known, pinned = (torch.from_numpy(x).to(dev) for x in layout.canvas(clues, solution))
    masked = sibling == "masked"
    free = [
        torch.randint(0, layout.vocab_size, (length,), generator=g, device=dev) for g in generators
    ]
    start = torch.full_like(known, MASK) if masked else torch.stack(free)
    step = {"step_function": functools.partial(masked_step, mask_id=MASK)} if masked else {}
    with counting(model) as calls:
        out = generate(
            model,
            prompt,
            sampler,
            max_new_tokens=length,
            generator=generators,
            pinned=pinned,
            # pinned ids are clues and cell names, never an answer
            initial_canvas=torch.where(pinned, known, start),
            logits_filter=only_digits(layout) if digits_only else None,
            **step,
        )
    if max(out.steps[0]) != calls[0]:
        raise RuntimeError(
            f"steps: generate says {max(out.steps[0])}, decode was called {calls[0]} times"
        )
    return out.tokens, np.array(out.steps[0])


def score(tried: Attempt, puzzles: Sequence[Puzzle]) -> dict:
    """Exact solve (all digits), cells (those that were empty), rule violations a puzzle, mean
    steps, seconds a puzzle.
    """
    solution, clues = np.array([p.solution for p in puzzles]), np.array([p.clues for p in puzzles])
    right, empty = tried.grids == solution, clues == 0
    return {
        "exact": share(int(right.all(1).sum()), len(puzzles)),
        "cells": share(int((right & empty).sum()), int(empty.sum())),
        "violations": float(np.mean([violations(g) for g in tried.grids.tolist()])),
        "steps": float(tried.steps.mean()),
        "seconds_per_puzzle": tried.seconds / len(puzzles),
    }


def band_scores(model, layout: Layout, tests: dict[str, list[Puzzle]], **how) -> dict[str, dict]:
    """`score` of each band; `how` goes to `attempt`."""
    return {band: score(attempt(model, layout, some, **how), some) for band, some in tests.items()}


def step_curve(
    model, layout: Layout, tests: dict[str, list[Puzzle]], *, sampler: SamplerConfig, **how
) -> list[dict]:
    """Exact solve and steps used for each number of denoising steps, with the adaptive stop and
    without.

    The masked sibling stops where no mask is left, and has one row for each.
    """
    rows = []
    for steps in CURVE:
        for adaptive in (True,) if how.get("sibling") == "masked" else (True, False):
            threshold = sampler.confidence_threshold if adaptive else None
            changed = replace(sampler, max_denoising_steps=steps, confidence_threshold=threshold)
            found = band_scores(model, layout, tests, sampler=changed, **how)
            short = {band: {"exact": s["exact"], "steps": s["steps"]} for band, s in found.items()}
            rows.append({"max_steps": steps, "adaptive": adaptive, "bands": short})
    return rows


COUNT, CURVE_COUNT = 2000, 200  # test puzzles a band: for the scores, for the curve over steps


def evaluate_run(
    recipe: str | Path,
    out: str | Path | None = None,
    *,
    n: int | None = None,
    seed: int = 0,
    curve: int | None = None,
) -> dict:
    """The scores of the weights beside the recipe. With a run in `out`: of its weights, with the
    curve over steps and the scores after each stage, and model, log, scores and card go beside the
    recipe.

    n: test puzzles a band (None: 2000). curve: those of the curve (None: 200; 0: no curve).
    """
    asked, layout, plan = read_recipe(recipe)
    folder, count = Path(recipe).parent, n or COUNT
    lacking = [name for name in ("generation", "chosen") if name not in asked]
    if lacking or (out is not None and not (Path(out) / STATE).exists()):
        what = (
            f"recipe: lacks {', '.join(lacking)}"
            if lacking
            else f"out: {out} holds no run ({STATE})"
        )
        raise ValueError(
            f"{what}, takes a recipe with generation and chosen, and the folder of its finished run"
        )
    if out is None:
        model = DiffusionGemma.from_pretrained(folder, dtype=torch.float32)
        model = model.eval().set_kernels(fused_norm=True)
    else:
        model = trained_model(asked, layout, plan, Path(out))
    tests = {band: puzzles("test", band, count, seed=seed) for band in BANDS}
    how = {"sampler": SamplerConfig.from_defaults(asked["generation"], draw="cdf"), "seed": seed}
    scores: dict = {"seed": seed, "bands": band_scores(model, layout, tests, **how)}
    for band, found in scores["bands"].items():
        print(band, json.dumps(found), flush=True)
    if out is None:
        return scores
    if few := min(CURVE_COUNT if curve is None else curve, count):
        fewer = {band: some[:few] for band, some in tests.items()}
        scores["curve"] = step_curve(model, layout, fewer, **how)
        scores["stages"] = [  # the same puzzles after each stage of training
            {"steps": steps, "bands": band_scores(earlier, layout, fewer, **how)}
            for steps, earlier in models_of_stages(asked, layout, plan, Path(out))
        ]
    copy_logs(asked, Path(out), folder)
    write_scores(folder / "scores.json", scores)
    model.to(torch.bfloat16).save_pretrained(folder)
    write_card(recipe)
    return scores
