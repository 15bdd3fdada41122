"""What a scores.json holds: shares with their intervals, in numbers and in words, and which weights
they are about.
"""

from __future__ import annotations

import hashlib
import json
import math
from pathlib import Path
from typing import Any


def share(hits: int, n: int) -> dict[str, float]:
    """{"n", "share", "low", "high"}.

    A share with its 95% interval (Wilson's, which stays inside 0 to 1).
    """
    if not 0 <= hits <= n or n < 1:
        raise ValueError(f"hits, n: got {hits}, {n}, takes 0 <= hits <= n, n >= 1")
    z, p = 1.96, hits / n
    middle, scale = p + z * z / (2 * n), 1 + z * z / n
    half = z * math.sqrt(p * (1 - p) / n + z * z / (4 * n * n))
    return {
        "n": n,
        "share": p,
        "low": max(0.0, (middle - half) / scale),
        "high": min(1.0, (middle + half) / scale),
    }


def percent(x: dict, digits: int = 1) -> str:
    """A share with its interval, or a mean of shares with its own, in words."""
    if "share" in x:
        return f"{x['share']:.{digits}%} [{x['low']:.{digits}%}, {x['high']:.{digits}%}]"
    return f"{x['mean']:.{digits}%} ± {x['half_width']:.{digits}%}"


def shown(x: dict, digits: int = 3) -> str:
    """A mean with its interval and n, in words."""
    return f"{x['mean']:.{digits}f} ± {x['half_width']:.{digits}f} (n = {x['n']:,})"


def named_weights(folder: Path) -> dict[str, str]:
    """Which weights a record is about: {"name", "sha256"}."""
    return {
        "name": folder.name,
        "sha256": hashlib.sha256((folder / "model.safetensors").read_bytes()).hexdigest(),
    }


def begun_scores(path: Path, base: Path) -> dict[str, Any]:
    """What scores.json holds so far, or a new start.

    Errors: ValueError if it is about other weights.
    """
    weights = named_weights(base)
    scores = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    if scores.get("base", weights) != weights:
        raise ValueError(
            f"base: got other weights of {base.name} than {path} is about, takes the same; "
            "remove that file to start again"
        )
    return {"base": weights} | scores


def write_scores(path: Path, scores: dict, indent: int = 1) -> None:
    """scores.json, which the card is made from."""
    path.write_text(json.dumps(scores, indent=indent) + "\n", encoding="utf-8")


def in_words(scores, name: str = "") -> list[str]:
    """A line for each number in them, shares and means with their n and interval."""
    if not isinstance(scores, dict):
        many = isinstance(scores, list)
        parts = enumerate(scores) if many and any(isinstance(x, dict) for x in scores) else ()
        lines = [line for i, x in parts for line in in_words(x, f"{name}[{i}]")]
        return lines or [f"{name}: {scores}"]
    if "share" in scores:
        return [f"{name}: {percent(scores)} (n = {scores['n']:,})"]
    if "half_width" in scores:
        return [f"{name}: {shown(scores)}"]
    parts = ((f"{name}.{key}".lstrip("."), value) for key, value in scores.items())
    return [line for key, value in parts for line in in_words(value, key)]
