"""Records what this device does, and prints a recording of any device without it.

    python -m diffgemma_lite.measure record --out assets/recordings/my-laptop.json
    python -m diffgemma_lite.measure replay assets/recordings/my-laptop.json

Against a benchmark script: work is cut into small points that are saved one by one, so that a run
that ends early (time, interrupt, no memory) loses nothing; the same command goes on where it ended.
A section takes at most `--limit` seconds a run (8 minutes if not said). Walked through in notebooks
01 and 11.

sections    the list of what is measured, point by point
run         record: measures what a file does not hold yet
recording   the file itself: what it must say, how it is read and written
replay      a recording printed, without the device
provenance  which device, which code, how busy
device      bandwidth of memory and rate of products
steps       one step of a model, and where its time goes
answers     whole answers of the shipped model
large       the published 26B shape, on a GPU that holds it
"""

from __future__ import annotations

from .recording import Recording, recordings
from .replay import report
from .run import record
from .sections import (
    MODELS,
    SECTIONS,
    Points,
    answer_points,
    bandwidth_points,
    breakdown_points,
    peak_points,
    published_points,
    step_points,
)

__all__ = [
    "MODELS",
    "SECTIONS",
    "Points",
    "Recording",
    "answer_points",
    "bandwidth_points",
    "breakdown_points",
    "peak_points",
    "published_points",
    "record",
    "recordings",
    "report",
    "step_points",
]
