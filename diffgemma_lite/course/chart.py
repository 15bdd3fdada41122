"""A chart: lines with their intervals as a picture, and the same numbers as a table below it.

Used by notebook 07.

The picture is an SVG inside an img, which needs no script and survives where markup is cleaned;
shapes and dashes tell the lines apart without colour. It brings its own light ground, because a
picture cannot know the theme of the page.
"""

from __future__ import annotations

import base64
import html
import math
from collections.abc import Mapping, Sequence

from .figures import Figure, table

WIDE, HIGH, LEFT, RIGHT, TOP, BELOW = 620, 260, 58, 130, 14, 44
# colour, dash, marker: not the course's axis colours, since a line here is a setting and no axis
STYLES = (
    ("#1b1b1f", "", "circle"),
    ("#d55e00", "7 3", "square"),
    ("#5b3a8c", "2 3", "up"),
    ("#5f6570", "9 3 2 3", "down"),
)
# a value, or (value, low, high), or nothing there
Point = float | int | tuple[float, float, float] | None


def chart(
    x: Sequence[object],
    series: Mapping[str, Sequence[Point]],
    *,
    x_name: str,
    y_name: str,
    title: str = "",
    note: str = "",
    digits: int = 3,
    from_zero: bool = True,
) -> Figure:
    """Lines over the values of x, which stand evenly spaced in the order given.

    At most four series of len(x) points.
    """
    if not 1 <= len(series) <= len(STYLES):
        raise ValueError(f"series: got {len(series)}, takes 1 to {len(STYLES)}")
    for name, points in series.items():
        if len(points) != len(x):
            raise ValueError(
                f"series: {name!r} has {len(points)} points, takes {len(x)}, one for each x"
            )
    lines = {name: [_triple(point) for point in points] for name, points in series.items()}
    found = [value for points in lines.values() for point in points if point for value in point]
    if not found or not all(map(math.isfinite, found)):
        raise ValueError("series: takes at least one point, and finite numbers")
    ticks = _ticks(min([0.0, *found]) if from_zero else min(found), max(found))
    picture = base64.b64encode(
        _svg([str(v) for v in x], lines, ticks, x_name, y_name).encode()
    ).decode()
    words = (
        f"Chart of {y_name} over {x_name}: {', '.join(lines)}. The table below holds its numbers."
    )
    image = (
        f'<img alt="{html.escape(words, quote=True)}" style="max-width:100%" '
        f'src="data:image/svg+xml;base64,{picture}">'
    )
    rows = [
        (str(v), *(_say(points[i], digits) for points in lines.values())) for i, v in enumerate(x)
    ]
    intervals = any(p and p[1] != p[2] for points in lines.values() for p in points)
    notes = " ".join(
        part for part in (note, "In brackets: 95% interval." if intervals else "") if part
    )
    facts = table([x_name, *lines], rows, note=notes)
    heading = f"<b>{html.escape(title)}</b>" if title else ""
    parts = "".join(
        f'<div style="margin:0 0 4px 0">{part}</div>' for part in (heading, image) if part
    )
    return Figure(
        parts + facts.html, "\n".join(part for part in (title, f"{y_name}:", facts.text) if part)
    )


def _triple(point: Point) -> tuple[float, float, float] | None:
    if point is None:
        return None
    return tuple(map(float, point)) if isinstance(point, tuple) else (float(point),) * 3


def _say(point: tuple[float, float, float] | None, digits: int) -> str:
    if point is None:
        return "–"
    value, low, high = (f"{v:.{digits}f}" for v in point)
    return value if low == high else f"{value} [{low}, {high}]"


def _ticks(low: float, high: float) -> list[float]:
    """Four to eight round numbers around the range."""
    span = (high - low) or abs(high) or 1.0
    unit = 10 ** math.floor(math.log10(span / 5))
    step = next(unit * m for m in (1, 2, 5, 10) if span / (unit * m) <= 6)
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    return [step * i for i in range(first, max(last, first + 1) + 1)]


def _svg(
    names: list[str], lines: dict[str, list], ticks: list[float], x_name: str, y_name: str
) -> str:
    right, bottom = WIDE - RIGHT, HIGH - BELOW

    def across(i: int) -> float:
        return LEFT + 16 + (right - LEFT - 32) * (i / max(1, len(names) - 1))

    def up(value: float) -> float:
        return bottom - (bottom - TOP) * (value - ticks[0]) / (ticks[-1] - ticks[0])

    decimals = max(0, -math.floor(math.log10(ticks[1] - ticks[0]) + 1e-9))
    parts = [f'<rect width="{WIDE}" height="{HIGH}" rx="4" fill="#fdfcf9"/>']
    for tick in ticks:
        parts.append(
            f'<line x1="{LEFT}" x2="{right}" y1="{up(tick):.1f}" y2="{up(tick):.1f}" '
            'stroke="#dedbd2"/>'
        )
        parts.append(_text(LEFT - 6, up(tick) + 4, f"{tick:.{decimals}f}", "end"))
    parts += [_text(across(i), bottom + 17, name, "middle") for i, name in enumerate(names)]
    parts.append(_text((LEFT + right) / 2, HIGH - 8, x_name, "middle"))
    middle = (TOP + bottom) / 2
    parts.append(
        f'<g transform="rotate(-90 14 {middle})">{_text(14, middle + 4, y_name, "middle")}</g>'
    )
    for (name, points), style in zip(lines.items(), STYLES, strict=False):
        parts += _line(name, [(across(i), *map(up, p)) for i, p in enumerate(points) if p], style)
    parts += _labels(
        [(name, up(next(p for p in reversed(points) if p)[0])) for name, points in lines.items()],
        right + 6,
    )
    size = f'viewBox="0 0 {WIDE} {HIGH}" width="{WIDE}" height="{HIGH}"'
    font = 'font-family="system-ui,sans-serif" font-size="12" fill="#26262b"'
    return f'<svg xmlns="http://www.w3.org/2000/svg" {size} {font}>{"".join(parts)}</svg>'


def _text(x: float, y: float, words: str, anchor: str, more: str = "") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}"{more}>{html.escape(words)}</text>'


def _line(
    name: str, points: list[tuple[float, float, float, float]], style: tuple[str, str, str]
) -> list[str]:
    """points: (x, y, y of the low end, y of the high end)."""
    colour, dash, marker = style
    path = " ".join(f"{x:.1f},{y:.1f}" for x, y, _, _ in points)
    dashes = f' stroke-dasharray="{dash}"' if dash else ""
    parts = [
        f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="1.8"{dashes}/>'
    ]
    for x, y, low, high in points:
        if low != high:
            ends = "".join(f"M{x - 4:.1f} {end:.1f}h8" for end in (low, high))
            parts.append(f'<path d="M{x:.1f} {low:.1f}V{high:.1f}{ends}" stroke="{colour}"/>')
        parts.append(_marker(x, y, colour, marker))
    return parts


def _marker(x: float, y: float, colour: str, marker: str) -> str:
    if marker == "circle":
        return f'<circle cx="{x:.1f}" cy="{y:.1f}" r="4" fill="{colour}"/>'
    shape = {
        "square": "m-3.6-3.6h7.2v7.2h-7.2z",
        "up": "m0-5 4.8 8.5h-9.6z",
        "down": "m0 5 4.8-8.5h-9.6z",
    }[marker]
    return f'<path d="M{x:.1f} {y:.1f}{shape}" fill="{colour}"/>'


def _labels(ends: list[tuple[str, float]], x: float) -> list[str]:
    """Names at the ends of the lines, moved apart where they would lie on each other."""
    styles, gap, parts = dict(zip([name for name, _ in ends], STYLES, strict=False)), 16.0, []
    placed: list[float] = []
    for name, y in sorted(ends, key=lambda end: end[1]):
        y = max([y, *(other + gap for other in placed)])
        placed.append(y)
        parts += [
            _marker(x + 6, y, styles[name][0], styles[name][2]),
            _text(x + 15, y + 4, name, "start"),
        ]
    return parts
