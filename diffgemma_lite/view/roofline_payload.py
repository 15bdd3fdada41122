"""What roofline.js gets as `data`: places as numbers, everything that is read as words, so that the
module computes nothing.
"""

from __future__ import annotations

import math

from ..cost.hardware import Hardware
from .roofline import SPAN, Point, Roofline, si
from .roofline_static import corners, heights, sources

KEY = (
    "Squares: steps of the chosen canvas, circles: one-token steps; "
    "one mark a batch, the filled one is chosen. A mark's height is "
    "what its floor on the first device would reach. Lines: roofs, broken where they were measured."
)


def payload(r: Roofline) -> dict:
    bottom, top = heights(r)
    devices = (*r.devices, *r.measured)
    return {
        "title": f"Roofline: steps of the model under {', '.join(d.name for d in devices)}; "
        f"prefix {r.prefix:,}",
        "key": KEY,
        "span": SPAN,
        "heights": [bottom, top],
        "across": _ticks(*SPAN, ""),
        "up": _ticks(bottom, top, ""),
        "canvases": r.canvases,
        "batches": r.batches,
        "precisions": r.precisions,
        "sources": sources(r),
        "first": [r.canvases.index(r.first[0]), r.batches.index(r.first[1])],
        "roofs": [roof for i, device in enumerate(devices) for roof in _roofs(r, device, i)],
        "points": {
            f"{p} {queries} {batch}": _point(point)
            for (p, queries, batch), point in r.points.items()
        },
    }


def _ticks(low: float, high: float, unit: str) -> list[list]:
    """Powers of ten between the two, at most about nine of them, and how they are written."""
    first, last = math.ceil(math.log10(low)), math.floor(math.log10(high))
    every = 1 + (last - first) // 9
    return [
        [10.0**n, f"{10**n:,}" if 0 <= n < 6 else si(10.0**n, unit).strip()]
        for n in range(first, last + 1, every)
    ]


def _roofs(r: Roofline, device: Hardware, i: int) -> list[dict]:
    measured = i >= len(r.devices)
    slope = [f"{si(device.bandwidth.value, 'B/s')}: {device.bandwidth.source}"]
    found = []
    for dtype, places in corners(r, device).items():
        name = f"{device.name} {dtype}" + (" measured" if measured else "")
        says = [name, *slope]
        if dtype in device.peaks:
            peak = device.peaks[dtype]
            says += [
                f"{si(peak.value, 'FLOP/s', 4)}: {peak.source}",
                f"memory-bound left of {device.ridge(dtype):.3g} FLOPs a byte",
            ]
        found.append(
            {"device": i, "measured": measured, "name": name, "says": says, "corners": places}
        )
    return found


def _point(p: Point) -> dict:
    """x, y and words; `says` is what the mark says under the pointer, the longest parts last."""
    parts = [
        [part, si(moved, "B"), si(flops, "FLOP"), si(s, "s")] for part, moved, flops, s in p.parts
    ]
    longest = sorted(range(len(parts)), key=lambda n: -p.parts[n][3])[:5]
    moved, flops, seconds, intensity = (
        si(p.bytes, "B"),
        si(p.flops, "FLOP"),
        si(p.seconds, "s"),
        f"{p.intensity:.3g}",
    )
    says = [
        f"{moved}, {flops}, {intensity} FLOPs a byte",
        f"floor {seconds} (activations, not in it: {si(p.bytes_activations, 'B')})",
    ]
    says += [f"{name}: {', '.join(words)}" for name, *words in (parts[n] for n in longest)]
    return {
        "x": float(f"{p.intensity:.6g}"),
        "y": float(f"{p.rate:.6g}"),
        "bytes": moved,
        "flops": flops,
        "seconds": seconds,
        "intensity": intensity,
        "parts": parts,
        "says": says,
    }
