"""The splits of every lab's data, by one set of names. How a lab decides which of them an example
belongs to stands in its data.
"""

from __future__ import annotations

SPLITS = ("train", "validation", "test")


def check_split(split: str) -> str:
    """The split. Errors: ValueError for another name."""
    if split not in SPLITS:
        raise ValueError(f"split: got {split!r}, takes one of {', '.join(SPLITS)}")
    return split
