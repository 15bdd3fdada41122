"""The roofline in a real browser, from a file with the network off.

Tables first, then a view that the keyboard works.
"""

from __future__ import annotations

import math
import re

import pytest
from played import live

from diffgemma_lite import Config
from diffgemma_lite.view import roofline
from diffgemma_lite.view.host import page as page_of
from diffgemma_lite.view.roofline import si

CANVASES, BATCHES, NAMES = (8, 64), (1, 4, 64), ("BF16", "FP8")  # no marked point lies on another


def contrast(first: str, second: str) -> float:
    """WCAG contrast of two "rgb(r, g, b)"."""

    def luminance(colour: str) -> float:
        values = [float(v) / 255 for v in re.findall(r"[\d.]+", colour)[:3]]
        linear = [v / 12.92 if v <= 0.04045 else ((v + 0.055) / 1.055) ** 2.4 for v in values]
        return sum(share * v for share, v in zip((0.2126, 0.7152, 0.0722), linear, strict=True))

    light, dark = sorted((luminance(first), luminance(second)), reverse=True)
    return (light + 0.05) / (dark + 0.05)


@pytest.fixture(scope="module")
def shape():
    return roofline(
        Config.preset("python_small"),
        hardware=("H100", "L4"),
        prefix=300,
        canvases=CANVASES,
        batches=BATCHES,
        precisions=NAMES,
        canvas=64,
        batch=4,
    )


@pytest.fixture(scope="module")
def file(shape, tmp_path_factory):
    path = tmp_path_factory.mktemp("roofline") / "roofline.html"
    path.write_text(page_of(shape._repr_mimebundle_()["text/html"], "Roofline"), encoding="utf-8")
    return path


@pytest.fixture
def page(open_page, file):
    return live(open_page(file))


def assert_chosen(page, shape, canvas: int, batch: int, name: str) -> None:
    """Status, filled marks, table of parts: all say the chosen two steps."""
    one, many = (shape.points[name, queries, batch] for queries in (1, canvas))
    status = page.locator(".status").first.text_content()
    assert status.startswith(f"{name}, batch {batch} ")
    for told in (
        f"{one.intensity:.3g} FLOPs a byte, floor {si(one.seconds, 's')}",
        f"canvas of {canvas}: {many.intensity:.3g} ",
    ):
        assert told in status, status
    filled = page.locator(".point.chosen").evaluate_all(
        "all => all.map((mark) => mark.dataset.point)"
    )
    assert filled == [f"1 {batch}", f"{canvas} {batch}"]
    last = page.locator(".roofline > .scroll tr").last.locator("td").all_text_contents()
    assert last == [
        words
        for p in (one, many)
        for words in (si(p.bytes, "B"), si(p.flops, "FLOP"), si(p.seconds, "s"))
    ]
    assert page.locator(".chart svg").get_attribute("aria-label").endswith(status)


def test_the_tables_stand_first_and_without_script(open_page, file, shape):
    page = open_page(file, script=False)
    assert page.locator("img").first.is_visible() and page.locator("table").first.is_visible()
    first = shape.points["BF16", 64, 4]
    assert si(first.bytes, "B") in page.locator("table").first.inner_text()
    assert page.locator(".roofline").count() == 0


def test_the_keyboard_alone_reaches_every_slider_and_value(page, shape):
    assert not page.locator("img").first.is_visible()  # the view took the picture's place
    assert_chosen(page, shape, 64, 4, "BF16")
    page.keyboard.press("Tab")
    assert (
        page.evaluate("() => document.activeElement.shadowRoot.activeElement.ariaLabel") == "canvas"
    )
    page.keyboard.press("ArrowLeft")
    assert_chosen(page, shape, 8, 4, "BF16")
    page.keyboard.press("Tab")
    page.keyboard.press("End")
    assert_chosen(page, shape, 8, 64, "BF16")
    page.keyboard.press("Tab")
    page.keyboard.press("ArrowRight")
    assert_chosen(page, shape, 8, 64, "FP8")
    for _ in range(2):  # the table of parts, then what is folded
        page.keyboard.press("Tab")
    page.keyboard.press("Enter")
    table = page.locator("details.numbers table").first
    assert table.is_visible() and si(shape.points["FP8", 8, 1].bytes, "B") in table.inner_text()
    assert (
        page.locator("[aria-live]").text_content() == page.locator(".status").first.text_content()
    )


def test_a_mark_and_a_roof_say_what_they_are_under_the_pointer(page, shape):
    page.locator("[data-point='64 1']").hover()
    point, said = shape.points["BF16", 64, 1], page.locator(".tip").text_content()
    for told in (
        "canvas of 64, batch 1, BF16",
        si(point.bytes, "B"),
        si(point.flops, "FLOP"),
        si(point.seconds, "s"),
    ):
        assert told in said, said
    page.locator("[data-point='64 1']").click()
    assert_chosen(page, shape, 64, 1, "BF16")
    page.locator("[data-roof='0']").dispatch_event("pointerenter", {"clientX": 300, "clientY": 300})
    device = shape.devices[0]
    assert device.bandwidth.source in page.locator(".tip").text_content()
    page.mouse.move(0, 0)
    page.locator("[data-roof='0']").dispatch_event("pointerleave")
    assert not page.locator(".tip").is_visible()


def test_marks_lie_where_the_payload_says(page, shape):
    """Equal factors are equal distances on both axes."""
    places = page.locator(".point.token").evaluate_all(
        "all => all.map((m) => [m.cx.baseVal.value, m.cy.baseVal.value])"
    )
    points = [shape.points["BF16", 1, batch] for batch in BATCHES]
    for axis, value in ((0, "intensity"), (1, "rate")):
        logs = [math.log(getattr(p, value)) for p in points]
        steps = [
            (b[axis] - a[axis]) / (y - x)
            for a, b, x, y in zip(places, places[1:], logs, logs[1:], strict=False)
        ]
        assert steps[0] == pytest.approx(steps[1], rel=1e-3) and (steps[0] > 0) == (axis == 0)


@pytest.mark.parametrize("dark", [False, True])
def test_words_have_contrast_in_both_themes(open_page, file, dark):
    page = live(open_page(file, scheme="dark" if dark else "light"))
    assert page.locator(".roofline").get_attribute("data-theme") == ("dark" if dark else "light")
    paper = page.locator(".roofline").evaluate("el => getComputedStyle(el).backgroundColor")
    for label in page.locator("svg text").all():
        assert contrast(label.evaluate("el => getComputedStyle(el).fill"), paper) >= 4.5, (
            label.text_content()
        )
    for mark in page.locator("svg .roof, svg .point").all():
        assert contrast(mark.evaluate("el => getComputedStyle(el).stroke"), paper) >= 3


@pytest.mark.parametrize("width", [360, 1600])
def test_it_fits_every_width(open_page, file, width):
    page = live(open_page(file, width=width))
    assert page.evaluate("() => document.documentElement.scrollWidth") <= width
    box = page.locator(".chart svg").bounding_box()
    assert box["x"] >= 0 and box["x"] + box["width"] <= width
    edges = page.locator(".chart svg text").evaluate_all(
        "all => all.map((t) => t.getBoundingClientRect()).map((b) => [b.left, b.right])"
    )
    assert min(left for left, _ in edges) >= 0 and max(right for _, right in edges) <= width
