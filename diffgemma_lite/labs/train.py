"""Training what a recipe of texts describes, stage by stage, with the package's own loop; what
every lab's training shares.
"""

from __future__ import annotations

import json
import math
import time
from pathlib import Path

from ..checks import check_device
from ..model import DiffusionGemma
from ..train import STATE, train
from ..train_state import read_state
from .recipe import Recipe, load_weights


class Clock:
    """Minutes that a training may take; None: as many as it needs."""

    def __init__(self, minutes: float | None):
        if minutes is not None and not minutes > 0:
            raise ValueError(f"minutes: got {minutes!r}, takes a number above 0")
        self.end = math.inf if minutes is None else time.monotonic() + 60 * minutes

    def over(self) -> bool:
        return time.monotonic() >= self.end


def show(entry: dict) -> None:
    """An entry of the log, a line of JSON."""
    print(json.dumps({k: round(v, 5) for k, v in entry.items()}), flush=True)


def train_run(
    recipe: str | Path, out: str | Path, *, device: str = "cpu", minutes: float | None = None
) -> None:
    """Train to the end, or for some minutes; if `out` holds a checkpoint, from there. An earlier
    stage, if there is one, in `out`/first.
    """
    it, device, clock = Recipe(recipe), check_device("device", device), Clock(minutes)
    _train(it, it.new_model().to(device), Path(out), it.training.steps, clock)


def _reached(state: Path, step: int) -> bool:
    return state.exists() and int(read_state(state)[0]["step"]) >= step


def _train(it: Recipe, model: DiffusionGemma, out: Path, until: int, clock: Clock) -> None:
    """One stage up to step `until`, and before it, unless it has begun, what is missing of the
    stage it starts from.
    """
    first = it.first_stage()
    if first is not None and not (out / STATE).exists():
        needed, state = it.plan["first"]["until"], out / "first" / STATE
        if not _reached(state, needed):
            _train(first, first.new_model().to(model.device), out / "first", needed, clock)
            if not _reached(state, needed):  # the time is over
                return
        load_weights(model, out / "first")
    examples = it.examples("train")
    print(
        f"{sum(p.numel() for p in model.parameters()):,} parameters, {len(examples):,} examples",
        flush=True,
    )

    def report(entry: dict) -> bool:
        show(entry)
        return entry["step"] >= until or clock.over()

    train(model, examples, it.training, folder=out, progress=False, on_log=report)
