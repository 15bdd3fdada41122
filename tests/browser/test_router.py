"""The router view in a real browser, from a file, with the network off."""

from __future__ import annotations

import re

import numpy as np
import pytest
import torch
from played import CONTRAST, focused, live, settled
from routed import routed
from simulated import HOSTILE
from tiny import C as CANVAS
from tiny import random_ids, tiny

from diffgemma_lite.trace.router import routing_record
from diffgemma_lite.view import router_view
from diffgemma_lite.view.host import page as page_of
from diffgemma_lite.view.text import visible


def written(folder, record, title="Router"):
    path = folder / "router.html"
    path.write_text(
        page_of(router_view(record, title=title, note="A note.").html, title), encoding="utf-8"
    )
    return path


@pytest.fixture(scope="module")
def record():
    return routed(4, 40, 8, 2)


@pytest.fixture(scope="module")
def router_file(record, tmp_path_factory):
    return written(tmp_path_factory.mktemp("router"), record)


def rows(page) -> list[dict]:
    """Every expert as the page shows it, in the order on the page."""
    return page.locator(".rows .row").evaluate_all(
        """all => all.map((x) => ({ e: Number(x.dataset.e),
          load: Number(x.querySelector('output').textContent),
        marks: (x.querySelector('.hits').getAttribute('d').match(/M[\\d.]+ 10v-[\\d.]+/g)
          ?? []).map((m) => [
          Math.floor(Number(m.slice(1).split(' ')[0])), Number(m.split('v-')[1])]),
        weight: x.querySelector('.weight').textContent, label: x.getAttribute('aria-label') }))"""
    )


def choose(page, layer: int) -> None:
    page.locator("input[name=layer]").nth(layer).check(force=True)


def check_layer(page, record, layer: int, p: int) -> None:
    shown, even = rows(page), record.even_share
    assert [row["e"] for row in shown] == list(range(record.num_experts))
    for row in shown:
        positions = [q for q in range(len(record.ids)) if row["e"] in record.index[layer, q]]
        assert row["load"] == len(positions) and [q for q, _ in row["marks"]] == positions
        weights = [
            float(record.weights[layer, q][record.index[layer, q] == row["e"]][0])
            for q in positions
        ]
        for (_, tall), weight in zip(row["marks"], weights, strict=True):
            assert tall == pytest.approx(
                max(1.6, 9.4 * weight / record.weights[layer].max()), rel=2e-3
            )
        own = f"{dict(zip(positions, weights, strict=True))[p]:.2f}" if p in positions else ""
        assert abs(float(row["weight"] or 0) - float(own or 0)) <= 0.0101 and bool(
            row["weight"]
        ) == bool(own)
        many = f"{len(positions)} position{'' if len(positions) == 1 else 's'}, "
        assert many in row["label"]
        assert float(row["label"].split(many)[1].split(" times")[0]) == pytest.approx(
            len(positions) / even, abs=0.051
        )


def test_rows_marks_and_loads_are_the_records(open_page, router_file, record):
    page = live(open_page(router_file))
    assert not page.locator("img").first.is_visible()  # the static part has made room
    for layer, p in ((0, 0), (2, 17), (3, 39)):
        choose(page, layer)
        page.locator(f".cell[data-p='{p}']").click()
        check_layer(page, record, layer, p)
        touched = len(set(record.index[layer].ravel()))
        assert f"touch {touched} of 8 experts" in page.locator(".status").first.text_content()
        first = len(set(record.index[layer, : p + 1].ravel()))
        number = page.locator(".growth output").text_content()
        assert (
            number
            == f"first {p + 1}: {first} of 8 · equal chances {8 * (1 - (1 - 2 / 8) ** (p + 1)):.1f}"
        )
        chosen = page.locator(".detail li").evaluate_all(
            "all => all.map((x) => [Number(x.dataset.e), Number(x.dataset.weight)])"
        )
        assert [e for e, _ in chosen] == record.index[layer, p].tolist()
        assert np.allclose([w for _, w in chosen], record.weights[layer, p], rtol=1e-3)
        texts = page.locator(".detail li").all_text_contents()
        assert all(
            f"{100 * q:.1f} %" in words
            for q, words in zip(np.rint(record.probs[layer, p] * 1000) / 1000, texts, strict=True)
        )


def test_a_real_record_of_the_model(open_page, tmp_path):
    model = tiny()
    with torch.no_grad():
        record = routing_record(
            model,
            random_ids(1, CANVAS, seed=2),
            model.encode(random_ids(1, 9)),
            texts=lambda i: f" w{i}",
        )
    page = live(open_page(written(tmp_path, record)))
    page.locator(".cell[data-p='5']").click()
    check_layer(page, record, 0, 5)


def test_the_growth_curve_is_the_count(open_page, router_file, record):
    page = live(open_page(router_file))
    choose(page, 1)
    points = page.locator(".growth polyline.first").get_attribute("points").split(" ")
    heights = [float(point.split(",")[1]) for point in points]
    zero, full = heights[0], float(page.locator(".growth .base").nth(2).get_attribute("y1"))
    counts = [round((zero - y) / (zero - full) * 8) for y in heights[1:]]
    assert counts == [len(set(record.index[1, : n + 1].ravel())) for n in range(40)]
    page.locator(".growth svg").click(position={"x": 2, "y": 20})
    assert page.locator(".cell[aria-selected='true']").get_attribute("data-p") in ("0", "1")


def test_an_expert_marks_its_positions_and_a_click_in_its_row_takes_both(
    open_page, router_file, record
):
    page = live(open_page(router_file))
    for e in (3, 6):
        box = page.locator(f".row[data-e='{e}'] .strip").bounding_box()
        page.mouse.click(box["x"] + box["width"] * (21 + 0.5) / 40, box["y"] + 5)
        assert page.locator(".cell[aria-selected='true']").get_attribute("data-p") == "21"
        assert page.locator(".rows .row[aria-selected='true']").get_attribute("data-e") == str(e)
        states = page.locator(".grid .cell").evaluate_all(
            "all => all.map((x) => [x.classList.contains('top'), x.classList.contains('also')])"
        )
        assert states == [
            [record.index[0, p, 0] == e, record.index[0, p, 1] == e] for p in range(40)
        ]
        words = page.locator(".detail p").text_content()
        load = int((record.index[0] == e).sum())
        assert (
            words.startswith(f"{load} of 40 positions")
            if load
            else words == "No position of this canvas."
        )


def test_busiest_first(open_page, router_file, record):
    page = live(open_page(router_file))
    page.locator("input[value=load]").check(force=True)
    loads = [row["load"] for row in rows(page)]
    assert loads == sorted(loads, reverse=True) and sorted(row["e"] for row in rows(page)) == list(
        range(8)
    )


def test_the_keyboard_alone_reaches_and_works_everything(open_page, router_file, record):
    page = live(open_page(router_file))
    first = int(record.index[0, 0, 0])
    reached = []
    for _ in range(8):
        page.keyboard.press("Tab")
        reached.append(focused(page))
        if reached[-1] == "SUMMARY":
            break
    row_label = page.locator(f".row[data-e='{first}']").get_attribute("aria-label")
    assert [reached[0], reached[1], reached[2], reached[-1]] == ["0", "number", "0", "SUMMARY"]
    assert row_label in reached
    page.keyboard.press("Enter")
    assert page.locator(".numbers tr").count() == 5 and page.locator(".numbers table").is_visible()
    page.locator(".cell[tabindex='0']").focus()
    columns = page.locator(".grid").evaluate(
        "g => getComputedStyle(g).gridTemplateColumns.split(' ').length"
    )
    places = {
        "ArrowRight": 1,
        "ArrowDown": 1 + columns,
        "ArrowLeft": columns,
        "ArrowUp": 0,
        "End": 39,
        "Home": 0,
    }
    for key, p in places.items():
        page.keyboard.press(key)
        assert focused(page) == str(p), key
        assert page.locator(".detail h4").first.text_content().startswith(f"Position {p} ")
    page.locator(".row[tabindex='0']").focus()
    for key, e in (("End", 7), ("ArrowUp", 6), ("Home", 0), ("ArrowDown", 1)):
        page.keyboard.press(key)
        assert focused(page).startswith(f"expert {e},"), key
        assert page.locator(".detail h4").nth(1).text_content() == f"Expert {e}"
    page.keyboard.press("ArrowRight")  # in a row, left and right go through the positions
    assert page.locator(".cell[aria-selected='true']").get_attribute("data-p") == "1"
    assert (
        page.locator(".row[data-e='1']").evaluate("r => getComputedStyle(r).outlineStyle") != "none"
    )
    page.locator("input[name=layer]").first.focus()
    page.keyboard.press("ArrowRight")
    assert "layer 2 of 4" in page.locator(".status").first.text_content()


def test_hostile_tokens_are_text_and_nothing_else(open_page, tmp_path):
    record = routed(2, len(HOSTILE), 4, 2, texts=lambda i: HOSTILE[i])
    page = live(open_page(written(tmp_path, record, "<img src=x onerror=window.pwned=1>")))
    expected = [visible(HOSTILE[i]) or f"#{i}" for i in record.ids]
    assert page.locator(".grid .cell").all_text_contents() == expected
    for p in range(0, len(HOSTILE), 7):
        page.locator(f".cell[data-p='{p}']").click()
        assert page.locator(".detail h4 code").text_content() == expected[p]
    assert page.evaluate("() => window.pwned") is None
    assert page.locator(".dg script, .dg img, .dg iframe, code b").count() == 0


def test_the_published_size_opens_and_changes_its_layer_in_time(open_page, tmp_path):
    page = open_page(written(tmp_path, routed(30, 256, 128, 8)))
    session = page.context.new_cdp_session(page)
    session.send("Performance.enable", {"timeDomain": "threadTicks"})

    def used() -> float:
        return next(
            m["value"]
            for m in session.send("Performance.getMetrics")["metrics"]
            if m["name"] == "TaskDuration"
        )

    opened = []
    for _ in range(3):
        page.reload()
        live(page)
        opened.append(used())
    assert 0.01 < min(opened) < 2
    assert (
        page.locator(".rows .row").count() == 128
        and "positions are kept for layers" in page.locator(".note").text_content()
    )
    changed = []
    for layer in (2, 0, 1):
        start = used()
        choose(page, layer)
        page.evaluate(
            "() => new Promise((drawn) => requestAnimationFrame(() => setTimeout(drawn)))"
        )
        changed.append(used() - start)
    assert 0.0005 < min(changed) < 0.5
    kept = [int(n) for n in re.findall(r"\d+", page.locator(".note").text_content())]
    assert kept[0] == 1 and kept[-1] == 30
    assert f"layer {kept[1]} of 30" in page.locator(".status").first.text_content()


def test_many_layers_are_a_list(open_page, tmp_path):
    record = routed(10, 24, 8, 2)
    page = live(open_page(written(tmp_path, record)))
    page.get_by_label("Layer", exact=True).select_option(index=7)
    check_layer(page, record, 7, 0)
    assert "layer 8 of 10" in page.locator(".status").first.text_content()


@pytest.mark.parametrize("width", [360, 700, 1000, 1600])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_it_fits_every_width_and_reads_in_both_themes(open_page, router_file, width, scheme):
    page = live(open_page(router_file, width=width, scheme=scheme))
    assert page.evaluate("() => document.documentElement.scrollWidth") <= width
    for part in (".options", ".grid", ".experts", ".growth", ".detail"):
        box = page.locator(part).first.bounding_box()
        assert box["x"] >= 0 and box["x"] + box["width"] <= width, part
    overlap = page.locator(".growth p").first.evaluate("p => p.scrollWidth > p.clientWidth")
    assert not overlap
    page.locator(".cell[data-p='3']").click()
    settled(page)
    assert (
        page.locator(".grid .cell, .rows .row[aria-selected='true']").evaluate_all(CONTRAST) >= 4.5
    )


def test_without_script_the_static_part_is_there(open_page, router_file):
    page = open_page(router_file, script=False)
    assert page.locator("img").is_visible() and page.locator("table").first.is_visible()
    assert "busiest expert" in page.locator("body").inner_text()
