"""Training on Sudoku: three siblings with one backbone, one data stream and one budget.

Walked through in notebook 09.

    uniform         each digit is replaced with probability t by any token of the vocabulary;
                    the decoder restores them
    masked          each digit is replaced with probability t by the mask; the decoder restores
                    the masked ones
    autoregressive  the encoder side predicts each digit from the puzzle and the digits before it

A batch is a function of (seed, step) (batches.py): nothing random lives in the loop, and resuming
is exact, as in the package's train.py, whose optimizer this file uses. Half of the rows are told
what a first pass believed (self-conditioning). In a later stage rows may be runs of the sampler
under way instead (own_states.py), which stand in the checkpoint.

    python -m diffgemma_lite.labs train sudoku-small --out runs/sudoku      # resumes
"""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from ...attention import KVCache
from ...checks import check_integer, from_object, read_object
from ...loss import mean_cross_entropy
from ...model import DiffusionGemma
from ...train import TrainConfig, make_optimizer
from ..card import size_of
from ..train import Clock
from .batches import SudokuBatch, SudokuTraining, draw_batch, training_puzzles
from .own_states import OwnBatch, OwnStates
from .state import STATE, load_run, save_run
from .task import Layout, start_geometry

NEEDED = ("layout", "model", "look", "puzzles", "train")
# of a recipe, for other commands too
OPTIONAL = ("about", "run", "first", "chosen", "generation", "tests", "sampler", "each")


def _same_prompt_cache(model: DiffusionGemma, prompt: Tensor, layout: Layout) -> KVCache:
    """The encoder's cache [B, ...].

    Where every puzzle has the same prompt (legend, pairs), it is read once for all rows.
    """
    if layout.name not in ("legend", "pairs"):
        return model.encode(prompt)
    one, rows = model.encode(prompt[:1]), len(prompt)
    return KVCache(
        *(tuple(x.expand(rows, -1, -1, -1) for x in side) for side in (one.keys, one.values))
    )


def sudoku_loss(model: DiffusionGemma, batch: SudokuBatch, layout: Layout, sibling: str) -> Tensor:
    """Mean cross-entropy in nats over the counted positions.

    Of the decoder, or (autoregressive) of the next token.
    """
    if sibling == "autoregressive":
        hidden, _ = model.encode_hidden(torch.cat([batch.prompt, batch.clean[:, :-1]], 1))
        written = hidden[:, batch.prompt.shape[1] - 1 :]
        return mean_cross_entropy(model.logits(written), batch.clean, batch.counted).mean()
    cache, half = _same_prompt_cache(model, batch.prompt, layout), len(batch.clean) // 2
    first = KVCache(
        *(tuple(x[:half].detach() for x in side) for side in (cache.keys, cache.values))
    )
    with torch.no_grad():
        belief = model.decode(batch.noisy[:half], first)
    belief = torch.cat([belief, torch.zeros_like(belief)])
    told = torch.arange(2 * half, device=belief.device) < half
    logits = model.decode(batch.noisy, cache, belief, told)
    return mean_cross_entropy(logits, batch.clean, batch.counted).mean()


def own_states_loss(
    model: DiffusionGemma, batch: OwnBatch, layout: Layout
) -> tuple[Tensor, Tensor]:
    """(mean cross-entropy in nats over the counted positions, logits [B, C, V]) of rows that bring
    a belief or none.
    """
    logits = model.decode(
        batch.canvas, _same_prompt_cache(model, batch.prompt, layout), batch.belief, batch.told
    )
    return mean_cross_entropy(logits, batch.clean, batch.counted).mean(), logits


def train_sudoku(
    model: DiffusionGemma,
    layout: Layout,
    stacked: tuple[np.ndarray, np.ndarray],
    plan: SudokuTraining,
    *,
    folder: str | Path | None = None,
    on_log: Callable[[dict], bool | None] | None = None,
) -> list[dict]:
    """Train in place and return the log.

    `folder`: checkpoint and log.jsonl; a run found there goes on, exactly.

    on_log(entry) returning True stops early, after a checkpoint.
    """
    if plan.sibling == "autoregressive" and layout.name in ("legend", "pairs"):
        raise ValueError(
            f"sibling: got autoregressive in layout {layout.name}, "
            "takes plain or named (the puzzle as prompt)"
        )
    folder = None if folder is None else Path(folder)
    adam = {
        name: getattr(plan, name) for name in ("steps", "learning_rate", "weight_decay", "betas")
    }
    optimizer = make_optimizer(model, TrainConfig(**adam))
    own = OwnStates(layout, stacked, plan) if plan.own_rows else None
    step, log = (0, []) if folder is None else load_run(folder, model, optimizer, plan, own)
    loss_of = sudoku_loss if own is None else own_states_loss
    loss_of = torch.compile(loss_of, dynamic=False) if plan.compile else loss_of
    cast = (
        torch.autocast(model.device.type, torch.bfloat16)
        if plan.precision == "bfloat16"
        else contextlib.nullcontext()
    )
    spent, start = log[-1]["seconds"] if log else 0.0, time.perf_counter()
    stopped, sums = False, []
    model.set_kernels(experts=plan.experts, fused_norm=True).train()
    while step < plan.steps and not stopped:
        for group in optimizer.param_groups:
            group["lr"] = plan.rate(step)
        with cast:
            if own is None:
                loss = loss_of(model, draw_batch(layout, stacked, plan, step), layout, plan.sibling)
            else:
                loss, logits = loss_of(model, own.batch(step), layout)
                own.advance(logits, step)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), plan.clip_norm)
        optimizer.step()
        step += 1
        sums.append(torch.stack([loss.detach(), norm]))
        if step % plan.log_every == 0 or step == plan.steps:
            mean = torch.stack(sums).mean(0).tolist()
            if not all(map(np.isfinite, mean)):
                raise ValueError(
                    f"loss: got {mean[0]} at step {step}, takes a finite one: lower learning_rate"
                )
            seconds, sums = spent + time.perf_counter() - start, []
            log.append(
                {
                    "step": step,
                    "loss": mean[0],
                    "grad_norm": mean[1],
                    "lr": plan.rate(step - 1),
                    "seconds": seconds,
                }
            )
            log[-1] |= {} if own is None else own.take_ended()
            looked = time.perf_counter()
            stopped = on_log is not None and bool(on_log(log[-1]))
            start += time.perf_counter() - looked  # what the caller does with it is not training
        if folder is not None and (
            step % plan.checkpoint_every == 0 or stopped or step == plan.steps
        ):
            save_run(folder, model, optimizer, step, log, plan, own)
    model.eval()
    return log


def new_model(layout: Layout, sizes: dict, seed: int, look: float = 3.0) -> DiffusionGemma:
    """A fresh model of these sizes (see Layout.config), with the geometry where training starts."""
    torch.manual_seed(seed)
    model = DiffusionGemma(layout.config(**sizes))
    start_geometry(model, layout, torch.Generator().manual_seed(seed), look=look)
    return model


def read_recipe(path: str | Path) -> tuple[dict, Layout, SudokuTraining]:
    """recipe.json -> (everything in it, layout, plan of the last stage).

    Errors: ValueError for a key it lacks or cannot have.
    """
    recipe = read_object("recipe", path, NEEDED, OPTIONAL)
    check_integer("puzzles", recipe["puzzles"], 1)
    layout, plan = (
        from_object("layout", Layout, recipe["layout"]),
        from_object("train", SudokuTraining, recipe["train"]),
    )
    try:
        layout.config(**recipe["model"])
    except TypeError as error:
        raise ValueError(
            f"model: got {recipe['model']!r}, takes sizes that Layout.config takes ({error})"
        ) from error
    return recipe, layout, plan


def stages_of(recipe: dict) -> list[dict]:
    """The recipe of each stage, the last one first.

    The same with what "first" changes (train, and puzzles, run, about).
    """
    found = [recipe]
    while "first" in recipe:
        first = recipe["first"]
        if (
            not isinstance(first, dict)
            or "train" not in first
            or set(first) - {"about", "puzzles", "train", "run", "first"}
        ):
            got = ", ".join(first) if isinstance(first, dict) else first
            raise ValueError(
                f"first: got {got}, takes train, and any of about, puzzles, run, first"
            )
        recipe = {
            name: value for name, value in recipe.items() if name not in ("first", "run", "about")
        } | first
        found.append(recipe)
    for stage in found:
        from_object("train", SudokuTraining, stage["train"])
    return found


def train_recipe(
    recipe: dict, out: Path, on_log: Callable[[dict], bool | None] | None = None
) -> DiffusionGemma | None:
    """Train what a recipe says in the folder `out`, or go on there; None if on_log stopped it. With
    "first" an earlier stage comes before it, in out/first, and the training starts from its
    weights.
    """
    ran, layout = stages_of(recipe), Layout(**recipe["layout"])
    plan = SudokuTraining(**recipe["train"])
    model = new_model(layout, recipe["model"], plan.seed, recipe["look"])
    if len(ran) > 1 and not (out / STATE).exists():
        before = train_recipe(ran[1], out / "first", on_log)
        if before is None:
            return None
        model.load_state_dict(before.state_dict())
    stacked = training_puzzles(recipe["puzzles"], layout.n, out / "puzzles.npz")
    print(f"{size_of(model)}, {len(stacked[0]):,} puzzles", flush=True)
    log = train_sudoku(model, layout, stacked, plan, folder=out, on_log=on_log)
    return model if log[-1]["step"] == plan.steps else None


def train_run(recipe: str | Path, out: str | Path, *, minutes: float | None = None) -> None:
    """Train to the end, or for some minutes; a run found in `out` goes on."""
    clock = Clock(minutes)

    def report(entry: dict) -> bool:
        print(json.dumps(entry), flush=True)
        return clock.over()

    train_recipe(read_recipe(recipe)[0], Path(out), report)
