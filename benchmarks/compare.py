"""Two ways of doing the same, timed in turns in one run, so that whatever else the machine does
hits both alike.

Every benchmark of this folder is one claim about speed and prints one ratio: `python
benchmarks/NAME.py`. What the two ways compute is compared before it is timed. Used by the other
files of this folder.
"""

from __future__ import annotations

import argparse
import os
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from diffgemma_lite.measure.device import synchronize
from diffgemma_lite.measure.provenance import default_device, describe

Work = Callable[[], Any]


@dataclass(frozen=True)
class Ratio:
    """Seconds of the plain way over seconds of the other, pair by pair.

    Median and quartiles, and both medians.
    """

    median: float
    low: float
    high: float
    pairs: int
    plain: float
    other: float


def in_turns(
    plain: Work, other: Work, device: torch.device, *, seconds: float = 3.0, least: int = 5
) -> Ratio:
    """Time both in turns for about `seconds` in all, at least `least` times each, after one of each
    that does not count.
    """
    times: list[tuple[float, float]] = []
    with torch.inference_mode():
        for work in (plain, other):
            work()
        stop = time.perf_counter() + seconds
        while len(times) < least or time.perf_counter() < stop:
            times.append((_once(plain, device), _once(other, device)))
    low, median, high = statistics.quantiles([a / b for a, b in times], n=4, method="inclusive")
    both = [statistics.median(column) for column in zip(*times, strict=True)]
    return Ratio(median, low, high, len(times), *both)


def _once(work: Work, device: torch.device) -> float:
    synchronize(device)
    start = time.perf_counter()
    work()
    synchronize(device)
    return time.perf_counter() - start


def parsed(
    description: str, arguments: Sequence[str] | None, **defaults: int
) -> argparse.Namespace:
    """Options every benchmark has (--seconds, --device), and sizes of its own as whole numbers."""
    parser = argparse.ArgumentParser(description=description.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=3.0, help="about how long to measure")
    parser.add_argument(
        "--device", help="cuda, mps or cpu; if not said, the first of them that is there"
    )
    for name, value in defaults.items():
        parser.add_argument(f"--{name}", type=int, default=value, help=f"default {value}")
    given = parser.parse_args(arguments)
    given.device = torch.device(given.device) if given.device else default_device()
    return given


def say(claim: str, plain: str, other: str, ratio: Ratio, device: torch.device) -> Ratio:
    """Print the ratio with its spread and where it was measured."""
    load = f", load {os.getloadavg()[0]:.1f}" if hasattr(os, "getloadavg") else ""
    print(
        f"{claim}: {ratio.median:.2f} "
        f"(half of {ratio.pairs} pairs: {ratio.low:.2f} to {ratio.high:.2f})\n"
        f"  {plain} {1e3 * ratio.plain:.3f} ms, {other} {1e3 * ratio.other:.3f} ms\n"
        f"  {describe(device)['name']}, {torch.get_num_threads()} threads, "
        f"torch {torch.__version__}{load}"
    )
    return ratio
