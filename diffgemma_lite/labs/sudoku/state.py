"""The checkpoint of a Sudoku training.

Weights, moments, step, log and, where there are any, the runs under way.
"""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

from safetensors import safe_open
from safetensors.torch import save_file

from .batches import SudokuTraining
from .own_states import OwnStates

STATE, _MOMENTS = "sudoku_state.safetensors", ("step", "exp_avg", "exp_avg_sq")
_FREE = {"compile": None, "experts": None}  # how it is computed may change between two starts


def save_run(
    folder: Path,
    model,
    optimizer,
    step: int,
    log: list[dict],
    plan: SudokuTraining,
    own: OwnStates | None = None,
) -> None:
    """Weights, moments, step and log in one file that appears whole or not at all.

    The log also as JSON lines.
    """
    tensors = {
        f"model.{name}": value.detach().contiguous() for name, value in model.state_dict().items()
    }
    for name, p in model.named_parameters():
        tensors |= {
            f"adam.{kind}.{name}": value for kind, value in optimizer.state.get(p, {}).items()
        }
    if own is not None:
        tensors |= {f"own.{name}": value for name, value in own.state().items()}
    folder.mkdir(parents=True, exist_ok=True)
    partial = folder / (STATE + ".partial")
    run = {"step": step, "log": log, "plan": asdict(plan), "model": asdict(model.config)}
    save_file(tensors, partial, metadata={key: json.dumps(value) for key, value in run.items()})
    partial.replace(folder / STATE)
    (folder / "log.jsonl").write_text(
        "".join(json.dumps(entry) + "\n" for entry in log), encoding="utf-8"
    )


def load_run(
    folder: Path, model, optimizer, plan: SudokuTraining, own: OwnStates | None = None
) -> tuple[int, list[dict]]:
    """Fill model and optimizer from the folder's state, if it has one.

    Returns the step and the log.

    Errors: ValueError for the state of another model or another plan.
    """
    if not (folder / STATE).exists():
        return 0, []
    with safe_open(folder / STATE, framework="pt", device=str(model.device)) as file:
        run = {key: json.loads(value) for key, value in file.metadata().items()}
        stored = {name: file.get_tensor(name).clone() for name in file.keys()}
    # a state older than a setting has that setting's default
    run["plan"] = asdict(SudokuTraining(**run["plan"]))
    for key, wanted in (("plan", plan), ("model", model.config)):
        if json.loads(json.dumps(run[key] | _FREE)) != json.loads(
            json.dumps(asdict(wanted) | _FREE)
        ):
            raise ValueError(
                f"folder: {folder} holds a run with another {key}, "
                "takes the same, or another folder"
            )
    model.load_state_dict(
        {name.removeprefix("model."): v for name, v in stored.items() if name.startswith("model.")}
    )
    for name, p in model.named_parameters():
        if f"adam.step.{name}" in stored:
            optimizer.state[p] = {kind: stored[f"adam.{kind}.{name}"] for kind in _MOMENTS}
    if own is not None:
        own.load(
            {
                name.removeprefix("own."): value
                for name, value in stored.items()
                if name.startswith("own.")
            }
        )
    return run["step"], run["log"]
