"""A chart says the same as picture and as table, and its picture is where its numbers are."""

from __future__ import annotations

import base64
import re
import xml.etree.ElementTree as xml

import pytest
from tiny import refused

from diffgemma_lite.course.chart import BELOW, HIGH, LEFT, RIGHT, TOP, WIDE, chart

SVG = "{http://www.w3.org/2000/svg}"


def picture(figure) -> xml.Element:
    return xml.fromstring(
        base64.b64decode(re.search(r'src="data:image/svg\+xml;base64,([^"]+)"', figure.html)[1])
    )


def draw(series=None, x=(1, 2, 4), **changes):
    series = series or {"up": [0.0, 0.5, (1.0, 0.8, 1.2)], "down & out": [1.0, None, 0.25]}
    return chart(x, series, **(dict(x_name="steps", y_name="distance", title="T <1>") | changes))


def test_every_number_is_in_the_table_and_in_the_text():
    figure = draw()
    assert [line.split() for line in figure.text.splitlines()[3:]] == [
        ["1", "0.000", "1.000"],
        ["2", "0.500", "–"],
        ["4", "1.000", "[0.800,", "1.200]", "0.250"],
        ["In", "brackets:", "95%", "interval."],
    ]
    cells = re.findall(r"<td[^>]*>([^<]*)</td>", figure.html)
    assert cells == ["0.000", "1.000", "0.500", "–", "1.000 [0.800, 1.200]", "0.250"]
    assert (
        "T &lt;1&gt;" in figure.html and "down &amp; out" in figure.html and "T <1>" in repr(figure)
    )
    assert not re.search(r"<(script|style|iframe)|https?:", figure.html)


def test_a_point_stands_where_its_number_is():
    root = picture(draw())
    circles = [(float(c.get("cx")), float(c.get("cy"))) for c in root.iter(f"{SVG}circle")][:3]
    ticks = [
        (float(t.text), float(t.get("y")) - 4)
        for t in root.iter(f"{SVG}text")
        if t.get("text-anchor") == "end"
    ]
    (low, at_low), (high, at_high) = ticks[0], ticks[-1]
    assert low == 0 and high >= 1.2 and at_low == HIGH - BELOW and at_high == pytest.approx(TOP)
    for value, (_, y) in zip((0.0, 0.5, 1.0), circles, strict=True):
        assert y == pytest.approx(at_low + (at_high - at_low) * value / high, abs=0.1)
    across = [x for x, _ in circles]
    assert (
        LEFT < across[0]
        and across[-1] < WIDE - RIGHT
        and across[1] * 2 == pytest.approx(across[0] + across[2], abs=0.2)
    )
    whisker = next(p.get("d") for p in root.iter(f"{SVG}path") if "V" in p.get("d"))
    top, bottom = (float(v) for v in re.search(r"M\S+ (\S+)V([\d.]+)", whisker).groups())
    assert bottom < circles[2][1] < top


def test_lines_are_told_apart_without_colour():
    root = picture(draw({name: [i, i + 1, i] for i, name in enumerate("abcd")}))
    dashes = [line.get("stroke-dasharray") for line in root.iter(f"{SVG}polyline")]
    assert len(set(dashes)) == 4
    names = [t for t in root.iter(f"{SVG}text") if t.text in "abcd"]
    heights = sorted(float(t.get("y")) for t in names)
    assert len(names) == 4 and all(
        b - a >= 15.9 for a, b in zip(heights, heights[1:], strict=False)
    )


def test_a_missing_point_is_left_out_of_the_line():
    root = picture(draw())
    assert [len(line.get("points").split()) for line in root.iter(f"{SVG}polyline")] == [3, 2]


@pytest.mark.parametrize(
    ("low", "high"), [(0.0, 0.001), (3.0, 3.0), (-2.5, 7.0), (100.0, 1200.0), (0.0, 0.0)]
)
def test_ticks_are_round_few_and_around_the_range(low, high):
    root = picture(draw({"a": [low, high, high]}, from_zero=False))
    ticks = [float(t.text) for t in root.iter(f"{SVG}text") if t.get("text-anchor") == "end"]
    assert (
        2 <= len(ticks) <= 9
        and ticks[0] <= low + 1e-9
        and ticks[-1] >= high - 1e-9
        and ticks == sorted(set(ticks))
    )


@pytest.mark.parametrize(
    ("series", "parts"),
    [
        ({}, ["got 0", "1 to 4"]),
        ({str(i): [1, 2, 3] for i in range(5)}, ["got 5"]),
        ({"a": [1, 2]}, ["'a' has 2 points", "takes 3"]),
        ({"a": [None, None, None]}, ["at least one point"]),
        ({"a": [1.0, float("nan"), 2.0]}, ["finite"]),
    ],
)
def test_series_that_make_no_chart_are_refused(series, parts):
    with refused("series", *parts):
        chart((1, 2, 4), series, x_name="x", y_name="y")
