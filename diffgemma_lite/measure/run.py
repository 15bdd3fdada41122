"""Measures the points that a recording does not hold yet, and saves after each.

Walked through in notebooks 01 and 11.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import torch

from .provenance import default_device, describe, load_now, run_provenance
from .recording import Recording
from .sections import SECTIONS, Points


def record(
    out: str | Path | None = None,
    *,
    sections: Iterable[str] | None = None,
    device: torch.device | str | None = None,
    seconds: float = 0.5,
    limit: float = 480,
    retry: bool = False,
    command: str = "measure.record(...)",
    say: Callable[[str], Any] = print,
    points: dict[str, Points] | None = None,
) -> Recording:
    """Measure what is not yet in `out` (None: in memory only) and return the recording.

    sections: names of SECTIONS, None for all. seconds: about how long a point is repeated. limit:
    seconds a section may take in this run; what is left over is done by the next. retry: also the
    points that failed before. points: other points for some sections (a shorter list, say). Errors:
    ValueError for an unknown section, or when `out` holds another device; a point that fails is
    recorded as failed.
    """
    chosen, target = (
        list(SECTIONS) if sections is None else list(sections),
        torch.device(device or default_device()),
    )
    unknown = set(chosen) - set(SECTIONS)
    if unknown:
        raise ValueError(
            f"sections: got {', '.join(sorted(unknown))}, takes some of {', '.join(SECTIONS)}"
        )
    recording = _opened(out, describe(target))
    recording.runs.append(run_provenance(target, command))
    before = len(recording.runs[-1]["load"])
    for name in chosen:
        about, make = SECTIONS[name]
        start = time.perf_counter()
        for key, measure in (points or {}).get(name) or make(target, seconds):
            if recording.has(name, key, failed=not retry):
                continue
            if time.perf_counter() - start > limit:
                say(f"{name}: {limit:.0f} s are over; run the same command again to go on")
                break
            result = _tried(measure)
            recording.add(name, about, key, result)
            recording.runs[-1]["load"] = recording.runs[-1]["load"][:before] + load_now()
            failure = f": failed, {result['failed']}" if "failed" in result else ""
            say(f"{name}: {' '.join(f'{k} {v}' for k, v in key.items())}{failure}")
            if out is not None:
                recording.save(out)
    return recording


def _opened(out: str | Path | None, device: dict[str, Any]) -> Recording:
    if out is None or not Path(out).exists():
        return Recording(device)
    recording = Recording.load(out)
    for name in ("name", "kind", "cores"):
        if recording.device[name] != device[name]:
            was = recording.device[name]
            raise ValueError(
                f"out: {out} was measured on {was}, this is {device[name]}; takes another file"
            )
    return recording


def _tried(measure: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """The result, or why there is none: no memory, no compiler, a kernel that the device lacks."""
    try:
        return measure()
    except Exception as error:
        if torch.cuda.is_available():
            torch.cuda.empty_cache()
        return {
            "failed": f"{type(error).__name__}: "
            f"{str(error).splitlines()[0][:200] if str(error) else ''}"
        }
