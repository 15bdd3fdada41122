"""The training loop: shuffle, noise, two passes, AdamW; a checkpoint is one safetensors file, and resuming from it is exact.

Nothing random lives in the loop: the order of an epoch depends on (seed, epoch), the noise of an example on (seed, epoch,
example). So the state is the weights, two moments per weight and the step number, and a run that was killed and resumed
gives the same bits as one that was not. Walked through in notebook 06.

Recipes of the shipped models are run by recipe.py.
"""

from __future__ import annotations

import contextlib
import json
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from safetensors import safe_open
from safetensors.torch import save_file

from .loss import Batch, collate, losses
from .model import DiffusionGemma

STATE = "train_state.safetensors"


@dataclass(frozen=True, kw_only=True)
class TrainConfig:
    """How to train. Nothing about the model or the data."""

    steps: int
    batch_size: int = 32
    learning_rate: float = 1e-3
    final_learning_rate: float = 1e-4
    warmup_steps: int = 100
    weight_decay: float = 0.01  # on matrices only
    betas: tuple[float, float] = (0.9, 0.99)
    clip_norm: float = 1.0
    self_conditioning: float = 0.5  # share of the examples
    seed: int = 0
    precision: str = "float32"  # or "bfloat16": autocast, the weights stay float32
    compile: bool = False  # needs a C++ compiler on a CPU
    checkpoint_every: int = 500
    log_every: int = 20

    def __post_init__(self):
        for name in ("steps", "batch_size", "checkpoint_every", "log_every"):
            if not isinstance(getattr(self, name), int) or getattr(self, name) < 1:
                raise ValueError(f"{name}: got {getattr(self, name)!r}, takes an integer above 0")
        if self.precision not in ("float32", "bfloat16"):
            raise ValueError(f"precision: got {self.precision!r}, takes 'float32' or 'bfloat16'")
        if not self.learning_rate > 0 or not 0 <= self.self_conditioning <= 1:
            raise ValueError(f"learning_rate, self_conditioning: got {self.learning_rate}, {self.self_conditioning}")
        object.__setattr__(self, "betas", tuple(self.betas))


def learning_rate_at(step: int, config: TrainConfig) -> float:
    """Linear warm-up, then a half cosine down to the final rate."""
    if step < config.warmup_steps:
        return config.learning_rate * (step + 1) / config.warmup_steps
    done = (step - config.warmup_steps) / max(1, config.steps - config.warmup_steps)
    drop = config.learning_rate - config.final_learning_rate
    return config.final_learning_rate + drop * 0.5 * (1 + math.cos(math.pi * min(1.0, done)))


def epoch_batches(lengths: Sequence[int], batch_size: int, seed: int, epoch: int) -> list[list[int]]:
    """The batches of an epoch as example numbers: shuffled, then rows of similar length put together to save padding."""
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
    groups = [{"params": matrices, "weight_decay": config.weight_decay}, {"params": vectors, "weight_decay": 0.0}]
    return torch.optim.AdamW([g for g in groups if g["params"]], lr=config.learning_rate, betas=config.betas)


class BatchStream:
    """Batches by step number: `stream(step)` is the same whatever came before."""

    def __init__(self, model: DiffusionGemma, examples: Sequence, config: TrainConfig):
        if not examples:
            raise ValueError("examples: is empty, takes at least one example")
        self.model, self.examples, self.config = model.config, examples, config
        self.lengths = [len(e.prompt) + len(e.response) for e in examples]
        self.per_epoch = len(epoch_batches(self.lengths, config.batch_size, config.seed, 0))
        self.epoch, self.batches = -1, []

    def __call__(self, step: int) -> Batch:
        epoch, i = divmod(step, self.per_epoch)
        if epoch != self.epoch:
            self.batches = epoch_batches(self.lengths, self.config.batch_size, self.config.seed, epoch)
            self.epoch = epoch
        numbers, m = self.batches[i], self.model
        return collate(
            [self.examples[n] for n in numbers], numbers, canvas_length=m.canvas_length, vocab_size=m.vocab_size,
            eos=m.eos_token_id, pad=m.pad_token_id, seed=self.config.seed, epoch=epoch,
            self_conditioning=self.config.self_conditioning, multiple=64 if self.config.compile else 1,
        )  # fmt: skip


def train(
    model: DiffusionGemma, examples: Sequence, config: TrainConfig, *, folder: str | Path | None = None,
    progress: bool = True, on_log: Callable[[dict], bool | None] | None = None,
) -> list[dict]:  # fmt: skip
    """Train in place and return the log (one dict every `log_every` steps, losses averaged over them).

    examples: a sequence whose items have prompt (ids), response (ids) and complete (bool). folder: where the checkpoint
    and log.jsonl go; if it holds a checkpoint of the same configuration, training goes on from there, exactly.
    on_log(entry) returning True stops early, after a checkpoint. Interrupting (Ctrl-C) checkpoints too.
    """
    folder = None if folder is None else Path(folder)
    optimizer, stream = make_optimizer(model, config), BatchStream(model, examples, config)
    start, log = (0, []) if folder is None else _resume(folder, model, optimizer, config)
    loss_of = torch.compile(losses, dynamic=False) if config.compile else losses
    device, t0, sums = model.device.type, time.perf_counter(), []
    spent = log[-1]["seconds"] if log else 0.0
    cast = torch.autocast(device, torch.bfloat16) if config.precision == "bfloat16" else contextlib.nullcontext()
    bar = _bar(config.steps, start) if progress else None
    model.train()
    step, stopped = start, False
    try:
        while step < config.steps and not stopped:
            batch = stream(step).to(model.device)
            for group in optimizer.param_groups:
                group["lr"] = learning_rate_at(step, config)
            with cast:
                denoising, encoder = loss_of(model, batch)
            optimizer.zero_grad(set_to_none=True)
            (denoising.mean() + encoder.mean()).backward()
            norm = torch.nn.utils.clip_grad_norm_(model.parameters(), config.clip_norm)
            optimizer.step()
            step += 1
            sums.append(torch.stack([denoising.mean().detach(), encoder.mean().detach(), norm]))
            if step % config.log_every == 0 or step == config.steps:
                entry = _entry(step, sums, optimizer, spent + time.perf_counter() - t0)
                log.append(entry)
                sums = []
                if bar is not None:
                    bar.set_postfix_str(f"denoising {entry['denoising']:.3f} encoder {entry['encoder']:.3f}", refresh=False)
                stopped = on_log is not None and bool(on_log(entry))
                if folder is not None and (step % config.checkpoint_every == 0 or stopped):
                    save_state(folder, model, optimizer, step, log, config)
            elif folder is not None and step % config.checkpoint_every == 0:
                save_state(folder, model, optimizer, step, log, config)
            if bar is not None:
                bar.update()
    finally:
        if bar is not None:
            bar.close()
        if folder is not None:
            save_state(folder, model, optimizer, step, log, config)
    model.eval()
    return log


def _entry(step: int, sums: list, optimizer, seconds: float) -> dict:
    denoising, encoder, norm = torch.stack(sums).mean(0).tolist()
    if not math.isfinite(denoising + encoder):
        raise ValueError(f"loss: is {denoising}, {encoder} at step {step}; lower the learning rate (the last checkpoint is kept)")
    lr = optimizer.param_groups[0]["lr"]
    return {"step": step, "denoising": denoising, "encoder": encoder, "grad_norm": norm, "lr": lr, "seconds": seconds}


def _bar(total: int, start: int):
    from tqdm.auto import tqdm  # only here: the core does not need it

    return tqdm(total=total, initial=start, unit="step", mininterval=1.0)


def save_state(folder: Path, model, optimizer, step: int, log: list[dict], config: TrainConfig) -> None:
    """Weights, moments and step in one file that appears whole or not at all; the log beside it as JSON lines."""
    folder.mkdir(parents=True, exist_ok=True)
    tensors = {f"model.{k}": v.detach().contiguous() for k, v in model.state_dict().items()}
    for name, p in model.named_parameters():
        tensors |= {f"adam.{k}.{name}": v for k, v in optimizer.state.get(p, {}).items()}
    meta = {"step": str(step), "config": json.dumps(asdict(config), sort_keys=True), "log": json.dumps(log)}
    partial = folder / (STATE + ".partial")
    save_file(tensors, partial, metadata=meta)
    partial.replace(folder / STATE)
    lines = "".join(json.dumps(entry) + "\n" for entry in log)
    (folder / "log.jsonl").write_text(lines, encoding="utf-8")


def _resume(folder: Path, model, optimizer, config: TrainConfig) -> tuple[int, list[dict]]:
    """Load the checkpoint if there is one. Returns the step to go on from and the log so far."""
    path = folder / STATE
    if not path.exists():
        return 0, []
    with safe_open(path, framework="pt", device=str(model.device)) as file:
        meta = file.metadata()
        if json.loads(meta["config"]) != json.loads(json.dumps(asdict(config))):
            raise ValueError(f"folder: {folder} holds a run with another TrainConfig ({meta['config']}); takes the same, or another folder")
        model.load_state_dict({k.removeprefix("model."): file.get_tensor(k) for k in file.keys() if k.startswith("model.")})
        for name, p in model.named_parameters():
            keys = ("step", "exp_avg", "exp_avg_sq")
            stored = {k: file.get_tensor(f"adam.{k}.{name}") for k in keys if f"adam.{k}.{name}" in set(file.keys())}
            if stored:
                optimizer.state[p] = {k: v.clone() for k, v in stored.items()}
        return int(meta["step"]), json.loads(meta["log"])
