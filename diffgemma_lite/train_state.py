"""The checkpoint of a training run.

Weights, moments, step and log in one safetensors file that appears whole or not at all.

What is not a number is never written, so the last good state survives a run that diverges, as it
survives a kill. A run goes on only with the model, the TrainConfig and the data it began with; the
machine may be another, and the state says which it was.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import platform
from array import array
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
    """Mean (denoising loss, encoder loss, gradient norm) of some steps.

    Errors: Diverged if one is not finite.
    """
    means = torch.stack(list(sums)).mean(0).tolist()
    if not all(math.isfinite(m) for m in means):
        shown = "denoising {}, encoder {}, gradient norm {}".format(*means)
        raise Diverged(
            f"loss: got {shown} at step {step}, "
            "takes finite ones: lower learning_rate (the last checkpoint is kept)"
        )
    return means


def data_identity(examples: Sequence) -> dict:
    """{"examples", "blake2b"}: their number, and a digest of every id, in order.

    Errors: ValueError for ids that are no integers.
    """
    digest = hashlib.blake2b(digest_size=16)
    if not hasattr(examples, "__len__") or not hasattr(examples, "__getitem__"):
        raise ValueError(f"examples: got {type(examples).__name__}, takes a sequence of examples")
    for n, e in enumerate(examples):
        try:
            prompt, response, complete = (
                array("q", e.prompt),
                array("q", e.response),
                bool(e.complete),
            )
        except AttributeError as error:
            what = (
                f"number {n} is a {type(e).__name__}, "
                "takes items with prompt, response and complete"
            )
            raise ValueError(f"examples: {what}") from error
        except (TypeError, OverflowError) as error:
            raise ValueError(
                f"examples: number {n} has ids that are no integers ({error}), "
                "takes lists of token ids"
            ) from error
        digest.update(
            array("q", (len(prompt), len(response), complete)).tobytes()
            + prompt.tobytes()
            + response.tobytes()
        )
    return {"examples": len(examples), "blake2b": digest.hexdigest()}


def start_of(step: int, model) -> dict:
    """Where training goes on from `step`: what a card has to say about the machine."""
    return {
        "step": step,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "device": model.device.type,
        "machine": platform.machine(),
    }


def save_state(
    folder: Path,
    model,
    optimizer,
    step: int,
    log: list[dict],
    config,
    sums: Sequence[Tensor] = (),
    *,
    data: dict | None = None,
    starts: Sequence[dict] = (),
) -> None:
    """Write the state; the log also as JSON lines beside it.

    sums: the losses since the last log entry; data: what `data_identity` says; starts: one
    `start_of` for each time the run was started. Errors: Diverged if the sums are not finite,
    before anything is written.
    """
    tensors = {f"model.{k}": v.detach().contiguous() for k, v in model.state_dict().items()}
    if sums:
        mean_losses(sums, step)
        tensors["log.sums"] = torch.stack(list(sums))
    for name, p in model.named_parameters():
        tensors |= {f"adam.{k}.{name}": v for k, v in optimizer.state.get(p, {}).items()}
    folder.mkdir(parents=True, exist_ok=True)
    partial = folder / (STATE + ".partial")
    about = {"step": str(step), "log": json.dumps(log), "starts": json.dumps(list(starts))}
    save_file(tensors, partial, metadata=about | _identity(model, config, data))
    partial.chmod(0o644)  # the library makes it readable by its owner only
    partial.replace(folder / STATE)
    lines = "".join(json.dumps(entry) + "\n" for entry in log)
    (folder / "log.jsonl").write_text(lines, encoding="utf-8")


def _identity(model, config, data: dict | None) -> dict[str, str]:
    """What has to be the same for a run to go on: how it trains, what, and on what."""
    parts = {"config": asdict(config), "model": asdict(model.config), "data": data}
    return {name: json.dumps(part, sort_keys=True) for name, part in parts.items()}


def read_state(path: Path, device: str = "cpu") -> tuple[dict[str, str], dict[str, Tensor]]:
    """(metadata, tensors) of a state. Errors: ValueError for a file that is not whole."""
    try:
        with safe_open(path, framework="pt", device=device) as file:
            meta, stored = (
                file.metadata() or {},
                {k: file.get_tensor(k).clone() for k in file.keys()},
            )
    except (OSError, SafetensorError) as error:
        raise ValueError(
            f"folder: {path} is not a whole checkpoint ({error}); takes one, or another folder"
        ) from error
    if not {"step", "log", "starts", "config", "model", "data"} <= meta.keys():
        raise ValueError(
            f"folder: {path} is not a checkpoint of a training run; takes one, or another folder"
        )
    return meta, stored


def load_state(
    folder: Path, model, optimizer, config, data: dict | None = None
) -> tuple[int, list[dict], list[Tensor], list[dict]]:
    """Fill model and optimizer from the state, if there is one.

    Returns its step, log, losses not yet in the log, and starts.

    Errors: ValueError for a file that is not whole, or of a run with another TrainConfig, Config or
    data.
    """
    path = folder / STATE
    if not path.exists():
        return 0, [], [], []
    meta, stored = read_state(path, str(model.device))
    for name, wanted in _identity(model, config, data).items():
        if meta[name] != wanted and name == "data":
            raise ValueError(
                f"examples: are {wanted}, but {folder} holds a run on {meta[name]}; "
                "takes the same data, or another folder"
            )
        if meta[name] != wanted:
            kind = {"config": "TrainConfig", "model": "Config"}[name]
            raise ValueError(
                f"folder: {folder} holds a run with another {kind} ({meta[name]}); "
                "takes the same, or another folder"
            )
    model.load_state_dict(
        {k.removeprefix("model."): v for k, v in stored.items() if k.startswith("model.")}
    )
    for name, p in model.named_parameters():
        if f"adam.step.{name}" in stored:
            optimizer.state[p] = {k: stored[f"adam.{k}.{name}"] for k in _MOMENTS}
    return (
        int(meta["step"]),
        json.loads(meta["log"]),
        list(stored.get("log.sums", ())),
        json.loads(meta["starts"]),
    )
