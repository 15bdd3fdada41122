"""The race in a real browser, from a file, with the network off.

What stands in the lanes at a time, and that time passes.
"""

from __future__ import annotations

import pytest
from played import CONTRAST, focused, live
from raced import raced
from simulated import HOSTILE

from diffgemma_lite.view import race_view
from diffgemma_lite.view.host import page as page_of
from diffgemma_lite.view.race import machine_words, size_words
from diffgemma_lite.view.text import visible


def written(folder, record, title="Race"):
    path = folder / "race.html"
    path.write_text(
        page_of(race_view(record, title=title, note="A note.").html, title), encoding="utf-8"
    )
    return path


@pytest.fixture(scope="module")
def record():
    return raced()


@pytest.fixture(scope="module")
def race_file(record, tmp_path_factory):
    return written(tmp_path_factory.mktemp("race"), record)


def seek(page, record, seconds: float) -> float:
    """Put the slider next to a time; returns the time the page is at."""
    longest = max(lane.seconds[-1] for lane in record.lanes)
    at = round(1000 * seconds / longest)
    page.locator("input[type=range]").evaluate(
        "(r, n) => { r.value = n; r.dispatchEvent(new Event('input')); }", at
    )
    return at / 1000 * longest


def numbers(page, lane: int) -> dict[str, str]:
    return dict(
        page.locator(".lane")
        .nth(lane)
        .locator("dl > div")
        .evaluate_all(
            "all => all.map((x) => [x.querySelector('dt').textContent, "
            "x.querySelector('dd').textContent])"
        )
    )


def check(page, record, seconds: float) -> None:
    for n, lane in enumerate(record.lanes):
        stood = [i for i, s in enumerate(lane.seconds) if s <= seconds]
        event, shown = stood[-1] if stood else -1, numbers(page, n)
        kept = lane.kept[event] if stood else 0
        moved = lane.bytes[event]["weights"] + lane.bytes[event]["cache"] if stood else 0.0
        now = min(seconds, lane.seconds[-1])
        assert shown["tokens kept"] == f"{kept} of 27"
        assert float(shown["time"].split()[0]) == pytest.approx(now, abs=0.0051)
        assert float(shown["tokens per second"]) == pytest.approx(
            kept / now if now else 0, rel=6e-3, abs=1e-9
        )
        assert shown["passes"] == str(lane.passes[event] if stood else 0)
        assert shown["weights and cache read"] == size_words(moved)
        assert shown["for each token kept"] == (size_words(moved / kept) if kept else "–")
        text = page.locator(".lane").nth(n).locator(".answer").text_content()
        assert text == "".join(record.texts[i] for i in lane.tokens[:kept])
        draft = page.locator(".lane").nth(n).locator(".draft > span")
        under_way = n == 1 and stood and kept == lane.canvas[event] * 16 and kept < 27
        assert draft.count() == (16 if under_way else 0)
        if under_way:
            assert draft.all_text_contents() == [record.texts[i] for i in lane.ids[event]]
            sure = draft.evaluate_all("all => all.map((x) => x.className === 'sure')")
            assert sure == lane.accepted[event]


def test_lanes_show_what_stood_at_every_time(open_page, race_file, record):
    page = live(open_page(race_file))
    assert not page.locator("img").first.is_visible()
    check(page, record, 0.0)
    for moment in (0.02, 0.1, 0.19, 0.25, 0.33, 0.41, 9.0):
        check(
            page,
            record,
            seek(page, record, min(moment, max(lane.seconds[-1] for lane in record.lanes))),
        )
    states = page.locator(".heading span").all_text_contents()
    assert states == ["done: length", "done: end token"]
    faster = max(record.lanes, key=lambda lane: lane.tokens_per_second)
    assert page.locator(".verdict").text_content().startswith(f"Faster here: {faster.name}")
    assert machine_words(record.meta) in page.locator(".dg").inner_text()


def test_the_verdict_goes_to_the_other_lane_where_the_numbers_do(open_page, tmp_path):
    fast = raced(slow=0.2)
    page = live(open_page(written(tmp_path, fast)))
    ratio = fast.canvas.tokens_per_second / fast.autoregressive.tokens_per_second
    words = page.locator(".verdict").text_content()
    assert words.startswith("Faster here: by canvas, ")
    assert float(words.split(", ")[1].split(" times")[0]) == pytest.approx(ratio, rel=6e-3)


def test_it_plays_in_the_recorded_time(open_page, race_file, record):
    """At 1/32 of the speed: the browser's clock against the time that is shown.

    Then pause, and from the end to the start.
    """
    page, longest = live(open_page(race_file)), max(lane.seconds[-1] for lane in record.lanes)
    page.get_by_label("Speed").select_option(label="1/32×")
    # each frame's own time and what the slider shows; the first is not before the replay
    watch = """async () => { const root =
      document.querySelector('[data-live]').lastElementChild.shadowRoot, seen = [];
      const range = root.querySelector('input[type=range]'),
        button = root.querySelector('.primary');
      const frame = () => new Promise((next) => requestAnimationFrame(next));
      button.click(); while (Number(range.value) < 100) await frame();
      while (Number(range.value) < 250) seen.push([await frame() / 1000,
        Number(range.value) / 1000]);
      button.click(); return seen; }"""
    seen = page.evaluate(watch)
    # shown in a frame: the time of this frame or of the one before. So the replay began between two
    # bounds in each of them, and if it keeps the recorded time there is a beginning that all of
    # them allow, however long this machine let it wait.
    slack = 0.001 * longest * 32 + 0.002  # the slider has a thousand places
    earliest = max(
        before - share * longest * 32
        for (before, _), (_, share) in zip(seen, seen[1:], strict=False)
    )
    latest = min(now - share * longest * 32 for now, share in seen[1:])
    assert earliest <= latest + slack, (earliest, latest)
    passed, advanced = seen[-1][0] - seen[0][0], (seen[-1][1] - seen[0][1]) * longest * 32
    assert passed > 0.5 * advanced > 0
    page.get_by_role("button", name="Play").wait_for()
    stopped = page.locator("input[type=range]").input_value()
    assert 250 <= int(stopped) < 1000
    page.wait_for_timeout(250)
    assert page.locator("input[type=range]").input_value() == stopped
    page.get_by_label("Speed").select_option(label="8×")
    page.get_by_role("button", name="Play").click()
    page.get_by_role("button", name="Play").wait_for()  # it ended by itself
    check(page, record, longest)
    page.get_by_label("Speed").select_option(label="1/32×")
    page.get_by_role("button", name="Play").click()
    # from the end it starts again
    assert int(page.locator("input[type=range]").input_value()) < 500


def test_reduced_motion_goes_in_ten_jumps(open_page, race_file):
    page = live(open_page(race_file, motion="reduce"))
    page.get_by_role("button", name="Play").click()
    seen = page.evaluate(
        """async () => { const root =
          document.querySelector('[data-live]').lastElementChild.shadowRoot, seen = new Set();
        const range = root.querySelector('input[type=range]'), start = performance.now();
        while (seen.size < 3 && performance.now() - start < 60000) {
          seen.add(range.value);
          await new Promise((next) => setTimeout(next, 20));
        }
        return [...seen].map(Number); }"""
    )
    assert len(seen) == 3 and all(value % 100 == 0 for value in seen)


def test_the_keyboard_alone_reaches_and_works_everything(open_page, race_file, record):
    page = live(open_page(race_file))
    reached = []
    for _ in range(12):
        page.keyboard.press("Tab")
        reached.append(focused(page))
        if reached[-1] == "SUMMARY":
            break
    assert reached == [
        "Start",
        "Event before",
        "Play",
        "Next event",
        "Finish",
        "Recorded time",
        "Speed",
        "Text, one token at a time",
        "Text, by canvas",
        "SUMMARY",
    ]
    page.keyboard.press("Enter")
    assert page.locator(".numbers tr").count() == 3 and page.locator(".numbers table").is_visible()
    page.locator("input[type=range]").focus()
    events = sorted({0.0, *(s for lane in record.lanes for s in lane.seconds)})
    places = {
        ".": 1,
        "ArrowRight": 2,
        "PageDown": 3,
        ",": 2,
        "ArrowLeft": 1,
        "PageUp": 0,
        "End": -1,
        "Home": 0,
    }
    for key, place in places.items():
        page.keyboard.press(key)
        check(page, record, events[place] + 1e-6 * (place > 0))
    page.keyboard.press(" ")
    page.get_by_role("button", name="Pause").wait_for()
    page.keyboard.press(" ")
    page.get_by_role("button", name="Play").wait_for()
    page.keyboard.press("Shift+Tab")
    page.keyboard.press("Tab")
    assert (
        page.locator("input[type=range]").evaluate("r => getComputedStyle(r).outlineStyle")
        != "none"
    )


def test_a_click_in_a_timeline_goes_there(open_page, race_file, record):
    page = live(open_page(race_file))
    box = page.locator(".timeline").nth(1).bounding_box()
    page.mouse.click(box["x"] + box["width"] / 2, box["y"] + 20)
    assert abs(int(page.locator("input[type=range]").input_value()) - 500) <= 5


def test_hostile_tokens_are_text_and_nothing_else(open_page, tmp_path):
    record = raced(len(HOSTILE), (4,), len(HOSTILE), V=len(HOSTILE), texts=lambda i: HOSTILE[i])
    record.canvas.ids[1][:] = range(len(HOSTILE))
    page = live(open_page(written(tmp_path, record, "<img src=x onerror=window.pwned=1>")))
    seek(page, record, record.canvas.seconds[1] + 0.001)
    drawn = page.locator(".draft > span").all_text_contents()
    for i, text in enumerate(drawn):
        bare = visible(HOSTILE[i]) or f"#{i}"
        # in running text these stay what they are
        if not set(HOSTILE[i]) & set(" \n\t\u0301\u0345"):
            assert text == bare
    seek(page, record, 99)
    assert page.evaluate("() => window.pwned") is None
    assert page.locator(".dg script, .dg img, .dg iframe, .decoded b").count() == 0


@pytest.mark.parametrize("width", [360, 700, 1000, 1600])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_it_fits_every_width_and_reads_in_both_themes(open_page, race_file, record, width, scheme):
    page = live(open_page(race_file, width=width, scheme=scheme))
    seek(page, record, 0.12)
    assert page.evaluate("() => document.documentElement.scrollWidth") <= width
    for part in (".controls", ".lane >> nth=0", ".lane >> nth=1", ".timeline >> nth=1", ".verdict"):
        box = page.locator(part).bounding_box()
        assert box["x"] >= 0 and box["x"] + box["width"] <= width, part
    clipped = page.locator(".lane dd").evaluate_all(
        "all => all.filter((d) => d.scrollWidth > d.clientWidth + 1).length"
    )
    assert clipped == 0
    if width >= 1000:
        tops = [page.locator(".lane").nth(i).bounding_box()["y"] for i in (0, 1)]
        assert tops[0] == tops[1]
    assert page.locator(".decoded").evaluate_all(CONTRAST) >= 4.5


def test_without_script_the_static_part_is_there(open_page, race_file):
    page = open_page(race_file, script=False)
    assert page.locator("img").is_visible() and page.locator("table").first.is_visible()
    assert "tokens per second" in page.locator("body").inner_text()
