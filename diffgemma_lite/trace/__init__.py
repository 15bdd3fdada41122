"""What happened, as data: a run kept as a Trace, and what was seen inside it.

Nothing here computes; nothing here draws.

trace     Trace: the canvases of one `generate` call as compact JSON
recorder  collects the Steps of a run into a Trace
observe   which experts and which positions a pass looked at
router    the routing of a whole answer
"""

from .trace import (
    FORMAT,
    PROBABILITY_UNIT,
    VERSION,
    CanvasTrace,
    Trace,
    pack,
    read_json,
    unpack,
    write_json,
)

__all__ = [
    "FORMAT",
    "PROBABILITY_UNIT",
    "VERSION",
    "CanvasTrace",
    "Trace",
    "pack",
    "read_json",
    "unpack",
    "write_json",
]
