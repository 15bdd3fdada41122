"""The training loop: shuffle, noise, two passes, AdamW; a checkpoint is one safetensors file, and
resuming from it is exact.

Nothing random lives in the loop: the order of an epoch depends on (seed, epoch), the noise of an
example on (seed, epoch, example). So the state is the weights, two moments per weight and the step
number (train_state.py), and a run that was killed and resumed gives the same bits as one that was
not. Walked through in notebook 06.

Recipes of the shipped models are run by recipe.py.
"""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Annotated

import torch
from torch import Tensor

from .checks import (
    SMALLEST,
    SWITCH,
    Takes,
    check_class,
    check_fields,
    folder_to_write,
    integer,
    number,
    one_of,
)
from .config import Config
from .loss import Batch, collate, lay_out, losses
from .model import DiffusionGemma
from .train_state import (
    STATE,
    Diverged,
    data_identity,
    load_state,
    mean_losses,
    save_state,
    start_of,
)

__all__ = [
    "STATE",
    "BatchStream",
    "TrainConfig",
    "epoch_batches",
    "learning_rate_at",
    "make_optimizer",
    "save_state",
    "train",
]


From0 = Annotated[int, integer("an integer from 0 to 2**32 - 1", 0, 2**32 - 1)]
From1 = Annotated[int, integer("an integer from 1 to 2**32 - 1", 1, 2**32 - 1)]
Above0 = Annotated[float, number("a number above 0", least=SMALLEST, finite=True)]
AtLeast0 = Annotated[float, number("a number of at least 0", least=0, finite=True)]
SHARE = number("a share from 0 to 1", least=0, most=1)
Share = Annotated[float, SHARE]
BETAS = Takes(
    "two numbers of at least 0 and below 1",
    lambda pair: (
        isinstance(pair, (list, tuple))
        and len(pair) == 2
        and all(SHARE.fits(beta) and beta < 1 for beta in pair)
    ),
)


@dataclass(frozen=True, kw_only=True)
class TrainConfig:
    """How to train. Nothing about the model or the data."""

    steps: From1
    batch_size: From1 = 32
    learning_rate: Above0 = 1e-3
    final_learning_rate: AtLeast0 = 1e-4
    warmup_steps: From0 = 100
    weight_decay: AtLeast0 = 0.01  # on matrices only
    betas: Annotated[tuple[float, float], BETAS] = (0.9, 0.99)
    clip_norm: Above0 = 1.0
    self_conditioning: Share = 0.5  # share of the examples
    holes: Share = 0.0  # share of the examples that are noised in one hole only (loss.dig_hole)
    seed: From0 = 0
    # bfloat16: autocast, the weights stay float32
    precision: Annotated[str, one_of("float32", "bfloat16")] = "float32"
    compile: Annotated[bool, SWITCH] = False  # needs a C++ compiler on a CPU
    checkpoint_every: From1 = 500
    log_every: From1 = 20

    def __post_init__(self):
        check_fields(self)
        object.__setattr__(self, "betas", tuple(self.betas))


def learning_rate_at(step: int, config: TrainConfig) -> float:
    """Linear warm-up, then a half cosine down to the final rate."""
    if step < config.warmup_steps:
        return config.learning_rate * (step + 1) / config.warmup_steps
    done = (step - config.warmup_steps) / max(1, config.steps - config.warmup_steps)
    drop = config.learning_rate - config.final_learning_rate
    return config.final_learning_rate + drop * 0.5 * (1 + math.cos(math.pi * min(1.0, done)))


def epoch_batches(
    lengths: Sequence[int], batch_size: int, seed: int, epoch: int
) -> list[list[int]]:
    """The batches of an epoch as example numbers: shuffled, then rows of similar length put
    together to save padding.
    """
    g = torch.Generator().manual_seed(seed * 1_000_003 + epoch)
    order = torch.randperm(len(lengths), generator=g).tolist()
    pool = 32 * batch_size
    batches = []
    for i in range(0, len(order), pool):
        alike = sorted(order[i : i + pool], key=lambda e: lengths[e])
        batches += [alike[j : j + batch_size] for j in range(0, len(alike), batch_size)]
    batches = [b for b in batches if len(b) == batch_size] or batches
    return [batches[i] for i in torch.randperm(len(batches), generator=g).tolist()]


def make_optimizer(model: torch.nn.Module, config: TrainConfig) -> torch.optim.AdamW:
    """AdamW; weight decay on matrices, none on norms and scales."""
    matrices = [p for p in model.parameters() if p.requires_grad and p.dim() > 1]
    vectors = [p for p in model.parameters() if p.requires_grad and p.dim() <= 1]
    groups = [
        {"params": matrices, "weight_decay": config.weight_decay},
        {"params": vectors, "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(
        [g for g in groups if g["params"]], lr=config.learning_rate, betas=config.betas
    )


def _check_examples(examples: Sequence, config: Config) -> None:
    """All of them, before the first step: one bad example must not end a run in its middle."""
    if not len(examples):
        raise ValueError("examples: is empty, takes at least one example")
    for n, e in enumerate(examples):
        if not e.prompt:
            raise ValueError(f"examples: number {n} has an empty prompt, takes at least one token")
        ids, _, _ = lay_out(e, config.canvas_length, config.eos_token_id)
        if len(ids) > config.max_position_embeddings:
            limit = config.max_position_embeddings
            raise ValueError(
                f"examples: number {n} takes {len(ids)} positions, prompt and whole canvases, "
                f"takes at most {limit}"
            )
        if min(ids) < 0 or max(ids) >= config.vocab_size:
            raise ValueError(
                f"examples: number {n} has ids from {min(ids)} to {max(ids)}, "
                f"takes 0 to {config.vocab_size - 1}"
            )


class BatchStream:
    """Batches by step number: `stream(step)` is the same whatever came before."""

    def __init__(self, model: DiffusionGemma, examples: Sequence, config: TrainConfig):
        self.model, self.examples, self.config = model.config, examples, config
        self.identity = data_identity(examples)
        _check_examples(examples, model.config)
        self.lengths = [len(e.prompt) + len(e.response) for e in examples]
        self.per_epoch = len(epoch_batches(self.lengths, config.batch_size, config.seed, 0))
        self.epoch, self.batches = -1, []

    def __call__(self, step: int) -> Batch:
        epoch, i = divmod(step, self.per_epoch)
        if epoch != self.epoch:
            self.batches = epoch_batches(
                self.lengths, self.config.batch_size, self.config.seed, epoch
            )
            self.epoch = epoch
        numbers, m = self.batches[i], self.model
        return collate(
            [self.examples[n] for n in numbers],
            numbers,
            canvas_length=m.canvas_length,
            vocab_size=m.vocab_size,
            eos=m.eos_token_id,
            pad=m.pad_token_id,
            seed=self.config.seed,
            epoch=epoch,
            self_conditioning=self.config.self_conditioning,
            holes=self.config.holes,
            multiple=64 if self.config.compile else 1,
        )


def gradient(model: DiffusionGemma, batch: Batch, config: TrainConfig, loss_of=losses) -> Tensor:
    """Leave the clipped gradient of one batch in the model: the plain sum of the two losses.

    Returns [3], detached: denoising loss, encoder loss, norm before clipping.
    """
    device, mixed = model.device.type, config.precision == "bfloat16"
    with torch.autocast(device, torch.bfloat16) if mixed else contextlib.nullcontext():
        denoising, encoder = loss_of(model, batch)
    model.zero_grad(set_to_none=True)
    (denoising.mean() + encoder.mean()).backward()
    norm = torch.nn.utils.clip_grad_norm_(model.parameters(), config.clip_norm)
    return torch.stack([denoising.mean().detach(), encoder.mean().detach(), norm])


def train(
    model: DiffusionGemma,
    examples: Sequence,
    config: TrainConfig,
    *,
    folder: str | Path | None = None,
    progress: bool = True,
    on_log: Callable[[dict], bool | None] | None = None,
) -> list[dict]:
    """Train in place and return the log (one dict every `log_every` steps, losses averaged over
    them).

    examples: a sequence whose items have prompt (ids), response (ids) and complete (bool). folder:
    where the checkpoint and log.jsonl go; if it holds a checkpoint of the same configuration and
    data, training goes on from there, exactly. on_log(entry) returning True stops early, after a
    checkpoint. Interrupting (Ctrl-C) checkpoints too.
    """
    check_class("model", model, DiffusionGemma)
    check_class("config", config, TrainConfig)
    if on_log is not None and not callable(on_log):
        raise ValueError(f"on_log: got {type(on_log).__name__}, takes a function of one log entry")
    stream, optimizer = BatchStream(model, examples, config), make_optimizer(model, config)
    # not after hours, at the first checkpoint
    folder = None if folder is None else folder_to_write("folder", folder)
    step, log, sums, starts = (
        (0, [], [], [])
        if folder is None
        else load_state(folder, model, optimizer, config, stream.identity)
    )
    about = {"data": stream.identity, "starts": [*starts, start_of(step, model)]}
    loss_of = torch.compile(losses, dynamic=False) if config.compile else losses
    t0 = time.perf_counter() - (log[-1]["seconds"] if log else 0.0)
    bar = _bar(config.steps, step) if progress else NO_BAR
    model.train()
    # whole: weights, moments and step number belong together
    stopped, whole, saved = False, True, step
    try:
        while step < config.steps and not stopped:
            numbers = gradient(model, stream(step).to(model.device), config, loss_of)
            whole = False
            for group in optimizer.param_groups:
                group["lr"] = learning_rate_at(step, config)
            optimizer.step()
            step += 1
            sums.append(numbers)
            whole = True
            if step % config.log_every == 0 or step == config.steps:
                entry = _entry(step, sums, optimizer, time.perf_counter() - t0)
                log.append(entry)
                sums = []
                bar.set_postfix_str(
                    f"denoising {entry['denoising']:.3f} encoder {entry['encoder']:.3f}",
                    refresh=False,
                )
                stopped = on_log is not None and bool(on_log(entry))
            if folder is not None and (step % config.checkpoint_every == 0 or stopped):
                save_state(folder, model, optimizer, step, log, config, sums, **about)
                saved = step
            bar.update()
    except Diverged:
        whole = False
        raise
    finally:
        bar.close()
        if folder is not None and whole and step != saved:
            save_state(folder, model, optimizer, step, log, config, sums, **about)
    model.eval()
    return log


def _entry(step: int, sums: list[Tensor], optimizer, seconds: float) -> dict:
    denoising, encoder, norm = mean_losses(sums, step)
    lr = optimizer.param_groups[0]["lr"]
    return {
        "step": step,
        "denoising": denoising,
        "encoder": encoder,
        "grad_norm": norm,
        "lr": lr,
        "seconds": seconds,
    }


NO_BAR = SimpleNamespace(
    update=lambda: None, close=lambda: None, set_postfix_str=lambda words, refresh: None
)


def _bar(total: int, start: int):
    from tqdm.auto import tqdm  # only here: the core does not need it

    return tqdm(total=total, initial=start, unit="step", mininterval=1.0)
