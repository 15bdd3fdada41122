"""What the cards of all labs share: tables, how big, where and how it was trained, how to make it
again.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from ..loss import LONGEST_HOLE
from ..train import TrainConfig


def row(*cells: object) -> str:
    """One line of a Markdown table."""
    return f"| {' | '.join(map(str, cells))} |"


def table(head: Iterable[object], rows: Iterable[Iterable[object]]) -> str:
    """A Markdown table."""
    names = list(head)
    return "\n".join([row(*names), "|---" * len(names) + "|", *(row(*cells) for cells in rows)])


def size_of(model) -> str:
    """The number of parameters."""
    return f"{sum(p.numel() for p in model.parameters()):,} parameters"


def how_again(name: str) -> str:
    """The lines of the card that say how a checkpoint is made again."""
    command = "uv run python -m diffgemma_lite.labs"
    return (
        f"- **Make it again**: `{command} train {name} --out runs/again`, then\n"
        f"  `{command} evaluate {name} --out runs/again`"
    )


def write_readme(folder: Path, text: str) -> None:
    """The card, beside what it speaks of."""
    (folder / "README.md").write_text(text, encoding="utf-8")


def where_trained(starts: list[dict]) -> str:
    """One line for each machine and set of versions that the run was started on. What is not
    recorded is not said.
    """

    def named(start: dict) -> str:
        machine = f" ({start['machine']})" if "machine" in start else ""
        threads = f", {start['threads']} threads" if "threads" in start else ""
        versions = f"Python {start['python']}, torch {start['torch'].split('+')[0]}"
        return f"{start['cores']} cores{machine}{threads}, {start['device']}; {versions}"

    parts: list[tuple[int, str]] = []
    for start in starts:
        if not parts or parts[-1][1] != named(start):
            parts.append((start["step"], named(start)))
    if len(parts) == 1:
        return parts[0][1]
    return "; then ".join(f"from step {step:,} on {name}" for step, name in parts)


def start_of_training(flat_attention: bool) -> str:
    """Where the query and key norms started, in a sentence."""
    where = "Hd^-0.25 (`attention.flatten_scores`)" if flat_attention else "1"
    return f"Query and key norms started at {where}."


def stage_line(training: TrainConfig, log: list[dict]) -> str:
    """Steps, time and what is particular of one stage of training."""
    last = log[-1]
    compiled = ", compiled" if training.compile else ""
    planned = "" if last["step"] == training.steps else f" (of {training.steps:,} planned)"
    holes = (
        f", {training.holes:.0%} of them right but for one hole of up to {LONGEST_HOLE} tokens (`loss.dig_hole`)"
        if training.holes
        else ""
    )
    return (
        f"{last['step']:,} steps{planned} of {training.batch_size} canvases{holes}; {last['seconds'] / 60:.0f} minutes, "
        f"{training.precision}{compiled}; seed {training.seed}"
    )
