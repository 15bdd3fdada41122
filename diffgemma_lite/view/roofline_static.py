"""The roofline without script: a picture (svg in an img, so that a sanitizer keeps it) and what
every slider can show.
"""

from __future__ import annotations

import base64
import html
import math
from collections.abc import Callable, Iterator, Sequence

from ..cost.hardware import Hardware
from .roofline import COLOURS, SPAN, Point, Roofline, si, step_name

WIDE, HIGH, LEFT, BELOW = 640, 380, 60, 40


def static_html(r: Roofline) -> str:
    """Picture, the first step part by part, every step of the sliders, and the roofs with their
    sources.
    """
    encoded = base64.b64encode(_svg(r).encode()).decode()
    alt = html.escape(r.words.strip("<>"), quote=True)
    return (
        f'<div><img alt="{alt}" style="max-width:100%" src="data:image/svg+xml;base64,{encoded}">'
        + _parts(r)
        + "".join(
            f"<details><summary>All steps, {html.escape(p)}</summary>{_steps(r, p)}</details>"
            for p in r.precisions
        )
        + f"<details><summary>The roofs and their sources</summary>{_roofs(r)}</details></div>"
    )


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    def line(tag: str, row: Sequence[str]) -> str:
        return f"<tr>{''.join(f'<{tag}>{html.escape(cell)}</{tag}>' for cell in row)}</tr>"

    return f"<table>{line('th', head)}{''.join(line('td', row) for row in rows)}</table>"


def _parts(r: Roofline) -> str:
    """The two kinds of step the sliders start with, part by part."""
    precision, (canvas, batch) = r.precisions[0], r.first
    both = [r.points[precision, queries, batch] for queries in (1, canvas)]
    rows = []
    for part in [*(name for name, *_ in both[1].parts), "all"]:
        cells = [cell for p in both for cell in _cells(p, part)]
        rows.append([part, *cells])
    head = [
        "part",
        *(f"{step_name(p.queries)}: {what}" for p in both for what in ("bytes", "FLOPs", "floor")),
    ]
    title = f"One step on {r.devices[0].name}, {precision}, batch {batch}, prefix {r.prefix}"
    note = (
        "Bytes are weights and cache. "
        "The floor of a part is the sum over its ops of the longer of moving and computing."
    )
    return f"<p><b>{html.escape(title)}</b></p>{_table(head, rows)}<p>{note}</p>"


def _cells(p: Point, part: str) -> list[str]:
    found = {name: row for name, *row in p.parts} | {"all": [p.bytes, p.flops, p.seconds]}
    moved, flops, seconds = found.get(part, [0.0, 0.0, 0.0])
    return [si(moved, "B"), si(flops, "FLOP"), si(seconds, "s")]


def _steps(r: Roofline, precision: str) -> str:
    """Rows: what a step puts through the model; columns: batch."""
    rows = []
    for queries in (1, *r.canvases):
        points = [r.points[precision, queries, batch] for batch in r.batches]
        cells = (
            f"{si(p.bytes, 'B')}, {si(p.flops, 'FLOP')}, {p.intensity:.3g} FLOPs a byte, "
            f"{si(p.seconds, 's')}"
            for p in points
        )
        rows.append([step_name(queries), *cells])
    return _table(["step", *(f"batch {batch}" for batch in r.batches)], rows)


def _roofs(r: Roofline) -> str:
    head, *rows = sources(r)
    return _table(head, rows)


def sources(r: Roofline) -> list[list[str]]:
    """Every roof with what it is worth and who says so; the first row names the columns."""
    rows = [["device", "roof", "value", "memory-bound below (FLOPs per byte)", "source"]]
    for i, device in enumerate((*r.devices, *r.measured)):
        name = device.name + (" (measured)" if i >= len(r.devices) else "")
        rows.append(
            [name, "bandwidth", si(device.bandwidth.value, "B/s"), "", device.bandwidth.source]
        )
        for dtype, peak in device.peaks.items():
            rows.append(
                [name, dtype, si(peak.value, "FLOP/s"), f"{device.ridge(dtype):.4g}", peak.source]
            )
    return rows


# ---- the picture: what the sliders start with ----------------------------------------------------

Place = Callable[[float, float], tuple[float, float]]


def heights(r: Roofline) -> tuple[float, float]:
    """The lowest and the highest FLOP/s of the axis: room around every roof and every point."""
    all_heights = [
        peak for device in (*r.devices, *r.measured) for peak in r.roofs(device).values()
    ]
    all_heights += [p.rate for p in r.points.values()]
    return min(all_heights) / 3, max(all_heights) * 3


def corners(r: Roofline, device: Hardware) -> dict[str, list[tuple[float, float]]]:
    """dtype -> (FLOPs per byte, FLOP/s) of its roof's corners.

    A device whose peaks are not known has only the slope.
    """
    (bottom, top), slope = heights(r), device.bandwidth.value
    start = max(SPAN[0], bottom / slope)
    rest = {
        dtype: [(peak / slope, peak), (SPAN[1], peak)] for dtype, peak in r.roofs(device).items()
    }
    rest = rest or {"bandwidth": [(min(SPAN[1], top / slope), min(SPAN[1] * slope, top))]}
    return {dtype: [(start, start * slope), *places] for dtype, places in rest.items()}


def _svg(r: Roofline) -> str:
    bottom, top = heights(r)

    def at(x: float, y: float) -> tuple[float, float]:
        u = math.log(x / SPAN[0]) / math.log(SPAN[1] / SPAN[0])
        v = math.log(y / bottom) / math.log(top / bottom)
        return round(LEFT + u * (WIDE - LEFT - 10), 1), round(
            HIGH - BELOW - v * (HIGH - BELOW - 16), 1
        )

    parts = [f'<rect width="{WIDE}" height="{HIGH}" fill="#fff"/>', *_axes(at, bottom, top)]
    parts += [*_drawn_roofs(r, at), *_drawn_points(r, at)]
    frame = (
        f'xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDE} {HIGH}" font-family="sans-serif"'
    )
    return f"<svg {frame}>{''.join(parts)}</svg>"


def _text(
    x: float, y: float, words: str, *, anchor: str = "start", size: int = 10, colour: str = "#222"
) -> str:
    halo = 'stroke="#fff" stroke-width="3" paint-order="stroke"'
    return (
        f'<text x="{x}" y="{y}" text-anchor="{anchor}" font-size="{size}" fill="{colour}" {halo}>'
        f"{html.escape(words)}</text>"
    )


def _drawn_roofs(r: Roofline, at: Place) -> Iterator[str]:
    for i, device in enumerate((*r.devices, *r.measured)):
        colour, dash = (
            COLOURS["roofs"][i % 4],
            ' stroke-dasharray="6 4"' if i >= len(r.devices) else "",
        )
        for dtype, route in corners(r, device).items():
            places = [at(*corner) for corner in route]
            line = " ".join(f"{x},{y}" for x, y in places)
            yield (
                f'<polyline points="{line}" fill="none" stroke="{colour}" stroke-width="2"{dash}/>'
            )
            yield _text(
                places[-1][0],
                places[-1][1] - 4,
                f"{device.name} {dtype}",
                anchor="end",
                colour=colour,
            )


def _drawn_points(r: Roofline, at: Place) -> Iterator[str]:
    for queries in (1, r.first[0]):
        colour = COLOURS["one token" if queries == 1 else "canvas"]
        for batch in r.batches:
            p = r.points[r.precisions[0], queries, batch]
            (x, y), chosen = at(p.intensity, p.rate), batch == r.first[1]
            yield (
                f'<circle cx="{x}" cy="{y}" r="6" stroke="{colour}" '
                f'fill="{colour if chosen else "none"}"/>'
            )
            if chosen:
                yield _text(x + 9, y + 14, f"{step_name(queries)}, batch {batch}", size=12)


def _axes(at: Place, bottom: float, top: float) -> Iterator[str]:
    for power in range(math.ceil(math.log10(SPAN[0])), math.floor(math.log10(SPAN[1])) + 1):
        yield _text(at(10**power, bottom)[0], HIGH - BELOW + 16, f"{10**power:,}", anchor="middle")
    for power in range(math.ceil(math.log10(bottom)), math.floor(math.log10(top)) + 1):
        yield _text(LEFT - 6, at(1, 10**power)[1], si(10.0**power, "FLOP/s"), anchor="end", size=9)
    yield _text(WIDE / 2, HIGH - 6, "FLOPs per byte of weights and cache", anchor="middle", size=12)
