"""Published figures of DiffusionGemma as data, each row with its source.

Nothing here was measured by this project.

published_throughput.csv: tokens per second by hardware, precision, engine, mode and number of
users. report_single_user.csv: one step on an H100, part by part (arXiv:2608.00146, section 6).
"""

from __future__ import annotations

import csv
from importlib.resources import files


def rows(name: str) -> list[dict[str, str]]:
    """The rows of a csv file of this folder, values as text; an empty value was not published."""
    with (files(__name__) / name).open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def published_throughput() -> list[dict[str, str]]:
    """Tokens per second as published. tokens_per_forward is empty where the source does not state
    it.
    """
    return rows("published_throughput.csv")


def single_user(quantity: str) -> float:
    """One figure of report_single_user.csv, by name, in its unit."""
    found = {row["quantity"]: float(row["value"]) for row in rows("report_single_user.csv")}
    if quantity not in found:
        raise ValueError(f"quantity: got {quantity!r}, takes one of {', '.join(found)}")
    return found[quantity]
