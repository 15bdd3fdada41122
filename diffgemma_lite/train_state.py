"""The checkpoint of a training run: weights, moments, step and log in one safetensors file that appears whole or not at all.

What is not a number is never written, so the last good state survives a run that diverges, as it survives a kill.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

STATE = "train_state.safetensors"
_MOMENTS = ("step", "exp_avg", "exp_avg_sq")


class Diverged(ValueError):
    """A loss or the gradient is no longer a number, and so are the weights."""


def mean_losses(sums: Sequence[Tensor], step: int) -> list[float]:
    """Mean (denoising loss, encoder loss, gradient norm) of some steps. Errors: Diverged if one is not finite."""
    means = torch.stack(list(sums)).mean(0).tolist()
    if not all(math.isfinite(m) for m in means):
        shown = "denoising {}, encoder {}, gradient norm {}".format(*means)
        raise Diverged(f"loss: got {shown} at step {step}, takes finite ones: lower learning_rate (the last checkpoint is kept)")
    return means


def save_state(folder: Path, model, optimizer, step: int, log: list[dict], config, sums: Sequence[Tensor] = ()) -> None:
    """Write the state; the log also as JSON lines beside it. sums: the losses since the last log entry.

    Errors: Diverged if those are not finite, before anything is written.
    """
    tensors = {f"model.{k}": v.detach().contiguous() for k, v in model.state_dict().items()}
    if sums:
        mean_losses(sums, step)
        tensors["log.sums"] = torch.stack(list(sums))
    for name, p in model.named_parameters():
        tensors |= {f"adam.{k}.{name}": v for k, v in optimizer.state.get(p, {}).items()}
    folder.mkdir(parents=True, exist_ok=True)
    partial = folder / (STATE + ".partial")
    save_file(tensors, partial, metadata={"step": str(step), "log": json.dumps(log)} | _identity(model, config))
    partial.chmod(0o644)  # the library makes it readable by its owner only
    partial.replace(folder / STATE)
    lines = "".join(json.dumps(entry) + "\n" for entry in log)
    (folder / "log.jsonl").write_text(lines, encoding="utf-8")


def _identity(model, config) -> dict[str, str]:
    """What has to be the same for a run to go on: how it trains, and what."""
    return {"config": json.dumps(asdict(config), sort_keys=True), "model": json.dumps(asdict(model.config), sort_keys=True)}


def load_state(folder: Path, model, optimizer, config) -> tuple[int, list[dict], list[Tensor]]:
    """Fill model and optimizer from the state, if there is one. Returns its step, its log and the losses not yet in the log.

    Errors: ValueError for a file that is not whole, or of a run with another TrainConfig or Config.
    """
    path = folder / STATE
    if not path.exists():
        return 0, [], []
    try:
        with safe_open(path, framework="pt", device=str(model.device)) as file:
            meta = file.metadata() or {}
            stored = {k: file.get_tensor(k).clone() for k in file.keys()}  # noqa: SIM118 (not a dict)
    except (OSError, SafetensorError) as error:
        raise ValueError(f"folder: {path} is not a whole checkpoint ({error}); takes one, or another folder") from error
    for name, wanted in _identity(model, config).items():
        if "step" not in meta or meta.get(name, wanted) != wanted:
            kind = {"config": "TrainConfig", "model": "Config"}[name]
            raise ValueError(f"folder: {folder} holds a run with another {kind} ({meta.get(name)}); takes the same, or another folder")
    model.load_state_dict({k.removeprefix("model."): v for k, v in stored.items() if k.startswith("model.")})
    for name, p in model.named_parameters():
        if f"adam.step.{name}" in stored:
            optimizer.state[p] = {k: stored[f"adam.{k}.{name}"] for k in _MOMENTS}
    return int(meta["step"]), json.loads(meta["log"]), list(stored.get("log.sums", ()))
