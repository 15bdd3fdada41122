"""The player in a real browser, from a file, with the network off."""

from __future__ import annotations

import numpy as np
import pytest
from played import CONTRAST, ROOT, cells, focused, frame, live, pause_after, seek, settled
from simulated import HOSTILE, simulate

from diffgemma_lite.view import player_html
from diffgemma_lite.view.text import visible

SLIDER = f"{ROOT}.querySelector('input[type=range]')"


@pytest.fixture(scope="module")
def trace():
    trace = simulate(96, 14, pinned=(4, 5), label="one")
    trace.tokens[0] = trace.tokens[0][:80]
    return trace


@pytest.fixture(scope="module")
def page_file(trace, tmp_path_factory):
    return player_html(trace, tmp_path_factory.mktemp("pages") / "one.html", title="One canvas")


def shown(trace, ids) -> list[str]:
    return [visible(trace.texts[int(i)]) for i in ids]


def test_it_shows_the_tokens_and_marks_of_the_trace_at_every_step(open_page, page_file, trace):
    page, canvas = live(open_page(page_file)), trace.canvases[0]
    pinned = canvas.pinned[0]
    assert not page.locator("img").first.is_visible()  # the static part has made room
    for n in (0, 3, 9, 13):
        seek(page, n)
        for mode, array in (
            ("sampled", canvas.sampled),
            ("argmax", canvas.argmax),
            ("canvas", canvas.canvas),
        ):
            page.locator(f"input[value={mode}]").check(force=True)
            expected = np.where(pinned, canvas.canvas[n, 0], array[n, 0])
            assert cells(page) == shown(trace, expected), (n, mode)
        words, labels = cells(page, "class"), cells(page, "label")
        for p in range(96):
            state = (
                "pinned" if pinned[p] else "accepted" if canvas.accepted[n, 0, p] else "renoised"
            )
            assert state in words[p].split() and state in labels[p]
            assert ("revised" in words[p].split()) == bool(canvas.revised[n, 0, p])
    seek(page, 14)
    assert cells(page) == shown(trace, np.where(pinned, canvas.canvas[-1, 0], canvas.argmax[-1, 0]))
    states = [w.split()[1] for w in cells(page, "class")]
    assert (
        states[:4] == ["final"] * 4
        and states[4:6] == ["pinned"] * 2
        and states[80:] == ["cut"] * 16
    )
    answer = page.locator(".decoded .answer").text_content()
    assert answer == "".join(trace.texts[i] for i in trace.tokens[0])


def test_play_pause_step_scrub_and_speed(open_page, page_file):
    page = live(open_page(page_file))
    before = cells(page)
    page.locator("select").select_option("4")
    page.get_by_role("button", name="Play").click()
    page.get_by_role("button", name="Pause").wait_for()
    stopped = pause_after(page, 3)
    assert frame(page) == stopped and cells(page) != before
    page.wait_for_timeout(250)
    assert frame(page) == stopped
    page.get_by_role("button", name="Step forward").click()
    assert frame(page) == stopped + 1
    page.get_by_role("button", name="Step back").click()
    assert frame(page) == stopped
    page.get_by_role("button", name="First step").click()
    assert frame(page) == 0 and cells(page) == before
    page.get_by_role("button", name="Commit").click()
    assert "committed after 14 steps" in page.locator(".status").first.text_content()
    page.locator(".curve svg").first.click(position={"x": 5, "y": 10})
    assert frame(page) <= 1
    page.get_by_role("button", name="Commit").click()
    page.get_by_role("button", name="Play").click()  # from the end it starts again
    page.wait_for_function(f"() => {SLIDER}.value < 14")


def test_the_keyboard_alone_reaches_and_works_everything(open_page, page_file):
    page = live(open_page(page_file))
    reached = []
    for _ in range(12):
        page.keyboard.press("Tab")
        reached.append(focused(page))
        if reached[-1] == "Decoded text":
            break
    order = [
        "First step",
        "Step back",
        "Play",
        "Step forward",
        "Commit",
        "Denoising step",
        "Speed",
        "sampled",
        "entropy",
        "0",
        "Decoded text",
    ]
    assert reached == order
    page.keyboard.press("Shift+Tab")
    columns = page.locator(".grid").evaluate(
        "g => getComputedStyle(g).gridTemplateColumns.split(' ').length"
    )
    for key, place in (
        ("ArrowRight", 1),
        ("ArrowDown", 1 + columns),
        ("ArrowLeft", columns),
        ("ArrowUp", 0),
        ("End", 95),
        ("Home", 0),
    ):
        page.keyboard.press(key)
        assert focused(page) == str(place), key
        assert page.locator(".inspector h4").text_content() == f"Position {place}"
    page.keyboard.press(".")
    page.keyboard.press(".")
    page.keyboard.press(",")
    assert frame(page) == 1 and focused(page) == "0"
    page.keyboard.press(" ")
    stopped = pause_after(page, 2, " ")
    page.wait_for_timeout(400)
    assert frame(page) == stopped
    page.get_by_role("button", name="Step back").focus()
    for key, place in (
        ("ArrowRight", stopped + 1),
        ("ArrowLeft", stopped),
        ("End", 14),
        ("Home", 0),
    ):
        page.keyboard.press(key)
        assert frame(page) == place, key
    page.keyboard.press("Shift+Tab")
    page.keyboard.press("Tab")
    assert (
        page.get_by_role("button", name="Step back").evaluate(
            "b => getComputedStyle(b).outlineStyle"
        )
        != "none"
    )


def test_the_inspector_says_what_numpy_says(open_page, page_file, trace):
    """Rank, running sum and reason from the trace's own entropies, at accepted, renoised and pinned
    positions.
    """
    page, canvas = live(open_page(page_file)), trace.canvases[0]
    for n in (2, 7, 13):
        seek(page, n)
        entropy = canvas.entropy[n, 0].astype(np.float16).astype(float)  # as the page holds it
        free = np.flatnonzero(~canvas.pinned[0])
        order = free[np.argsort(entropy[free], kind="stable")]
        before = np.concatenate([[0], np.cumsum(entropy[order])[:-1]])
        for rank in (
            1,
            len(order) // 3,
            int(canvas.accepted[n, 0].sum()),
            int(canvas.accepted[n, 0].sum()) + 1,
            len(order),
        ):
            if rank > len(order):
                continue
            p = int(order[rank - 1])
            page.locator(f".cell[data-p='{p}']").click()
            got = {
                d: float(page.locator(f"[data-name={d}]").get_attribute("data-value"))
                for d in ("entropy", "rank", "before")
            }
            ties = np.flatnonzero(entropy[order] == entropy[p]) + 1
            assert got["entropy"] == entropy[p] and ties[0] <= got["rank"] <= ties[-1]
            assert np.isclose(got["before"], before[int(got["rank"]) - 1], rtol=1e-9)
            assert np.isclose(entropy[p], canvas.entropy[n, 0, p], rtol=1e-3, atol=1e-7)
            accepted = bool(canvas.accepted[n, 0, p])
            assert accepted == (got["before"] <= canvas.entropy_bound)
            reason = page.locator(".reason").text_content()
            assert reason.startswith("Accepted" if accepted else "Renoised")
            assert (
                got["rank"] == 1 or str(int(got["rank"]) - 1) in reason or "the one surer" in reason
            )
            listed = page.locator(".candidates output").evaluate_all(
                "all => all.map((o) => Number(o.dataset.probability))"
            )
            assert np.allclose(
                listed, np.rint(canvas.top_probs[n, 0, p, : len(listed)] * 1000) / 1000
            )
            names = page.locator(".candidates code").all_text_contents()
            assert names == shown(trace, canvas.top_ids[n, 0, p, : len(names)])
    page.locator(".cell[data-p='4']").click()
    assert page.locator(".reason").text_content().startswith("Pinned")
    assert page.locator(".inspector .numbers dd").count() == 0


def test_curves_show_the_numbers_of_the_step(open_page, page_file, trace):
    page, canvas = live(open_page(page_file)), trace.canvases[0]
    seek(page, 6)
    numbers = page.locator(".curve output").all_text_contents()
    assert float(numbers[0].split()[0]) == pytest.approx(canvas.mean_entropy[6, 0], rel=1e-2)
    assert (
        numbers[1] == f"{canvas.accepted[6, 0].sum()} positions" and canvas.accepted[6, 0].sum() > 1
    )
    assert numbers[2] == f"{canvas.revised[6, 0].sum()} positions"
    assert float(numbers[3]) == pytest.approx(canvas.temperature[6], abs=1e-3)


def test_hostile_tokens_are_text_and_nothing_else(open_page, tmp_path):
    trace = simulate(len(HOSTILE), 6, V=len(HOSTILE), texts=lambda i: HOSTILE[i], seed=2)
    trace.canvases[0].canvas[0, 0] = np.arange(len(HOSTILE))  # every one of them is in a cell
    path = player_html(trace, tmp_path / "hostile.html", title="<img src=x onerror=window.pwned=1>")
    page = live(open_page(path))
    page.locator("input[value=canvas]").check(force=True)
    assert cells(page) == [visible(t) or f"#{i}" for i, t in enumerate(HOSTILE)]
    for n in range(7):
        seek(page, n)
    for p in range(0, len(HOSTILE), 5):
        page.locator(f".cell[data-p='{p}']").click()
    assert page.evaluate("() => window.pwned") is None
    inside = page.evaluate(
        f"() => {ROOT}.querySelectorAll('script, img, iframe, .cell b, .decoded b, code b').length"
    )
    assert inside == 0
    assert page.locator("h3").text_content() == "<img src=x onerror=window.pwned=1>"


def test_several_canvases_are_one_line_of_time(open_page, tmp_path):
    trace = simulate(24, 5, canvases=3, seed=3)
    page = live(open_page(player_html(trace, tmp_path / "three.html")))
    assert page.locator(".grid").count() == 3
    seek(page, 6 + 2)  # third step of the second canvas; each canvas has five steps and a commit
    states = [w.split()[1] for w in cells(page, "class")]
    assert (
        states[:24] == ["final"] * 24
        and set(states[24:48]) <= {"accepted", "renoised"}
        and states[48:] == ["waiting"] * 24
    )
    assert cells(page)[24:48] == shown(trace, trace.canvases[1].sampled[2, 0])
    assert "canvas 2 of 3, step 3 of 5" in page.locator(".status").first.text_content()
    seek(page, 17)
    assert page.locator(".decoded .answer").text_content() == "".join(
        trace.texts[i] for i in trace.tokens[0]
    )


def test_two_traces_side_by_side(open_page, tmp_path):
    one, two = (
        simulate(24, 8, seed=1, label="bound 0.1"),
        simulate(24, 4, seed=1, bound=3.0, label="bound 3"),
    )
    page = live(open_page(player_html(one, tmp_path / "two.html", compare=two), width=1600))
    boxes = [page.locator(".panel").nth(i).bounding_box() for i in (0, 1)]
    assert boxes[0]["y"] == boxes[1]["y"] and boxes[1]["x"] > boxes[0]["x"] + 300
    seek(page, 6)
    assert cells(page)[:24] == shown(one, one.canvases[0].sampled[6, 0])
    assert cells(page)[24:] == shown(two, two.canvases[0].argmax[-1, 0])  # it has ended and waits
    heads = page.locator(".heading").all_text_contents()
    assert (
        heads[0].startswith("bound 0.1")
        and "step 7 of 8" in heads[0]
        and "committed after 4" in heads[1]
    )
    page.locator(".panel").nth(1).locator(".cell[data-p='7']").click()
    assert page.locator(".inspector h4").text_content() == "Position 7"


def test_a_full_canvas_opens_and_scrubs_in_time(open_page, page_file, tmp_path):
    """256 x 48: a page opens within a second.

    Each of 49 far jumps takes under 50 ms, style, layout and paint included.

    Counted in processor time of the page's main thread, the best of three and of four passes, so
    that whatever else this machine is doing counts little.
    """
    page = open_page(page_file)
    session = page.context.new_cdp_session(page)
    session.send("Performance.enable", {"timeDomain": "threadTicks"})

    def used() -> float:
        return next(
            m["value"]
            for m in session.send("Performance.getMetrics")["metrics"]
            if m["name"] == "TaskDuration"
        )

    address, opened = (
        player_html(simulate(256, 48, V=2048), tmp_path / "full.html").as_uri(),
        float("inf"),
    )
    for _ in range(3):
        page.goto(address)
        live(page)
        opened = min(opened, used())  # counted from the start of this document
    page.evaluate(
        f"""() => {{ const slider = {SLIDER}; window.go = (n) => {{
        slider.value = n; slider.dispatchEvent(new Event('input'));
        return new Promise((drawn) => requestAnimationFrame(() => setTimeout(drawn))); }}; }}"""
    )
    best = [float("inf")] * 49
    for n in range(4 * 49):
        start, frame_number = used(), n * 10 % 49  # far jumps: nearly every cell changes
        page.evaluate("n => window.go(n)", frame_number)
        best[frame_number] = min(best[frame_number], used() - start)
    assert 0.01 < opened < 1, opened
    assert 0.0005 < max(best) < 0.05, sorted(best)[-3:]


def test_without_script_the_static_part_is_there(open_page, page_file, trace):
    page = open_page(page_file, script=False)
    text = page.locator("body").inner_text()
    assert page.locator("img").is_visible() and page.locator("table").first.is_visible()
    assert all(mark in text for mark in "✓×Δ■=–")


def test_reduced_motion_and_both_themes(open_page, page_file):
    still = live(open_page(page_file, motion="reduce", scheme="dark"))
    before = frame(still)
    still.wait_for_timeout(500)
    assert frame(still) == before
    light = live(open_page(page_file))
    for page, fades in ((still, False), (light, True)):
        page.get_by_role("button", name="Play").click()
        assert (
            page.locator(".grid .cell").first.evaluate(
                "c => getComputedStyle(c).transitionDuration"
            )
            == "0.16s"
        ) == fades
        page.get_by_role("button", name="Pause").click()
    grounds = [
        p.locator(".dg").evaluate("d => getComputedStyle(d).backgroundColor")
        for p in (still, light)
    ]
    assert grounds[0] != grounds[1]
    for page in (still, light):  # ink on every cell at 4.5 to 1 or better
        seek(page, 5)
        settled(page)
        worst = page.locator(".grid .cell").evaluate_all(CONTRAST)
        assert worst >= 4.5, worst


@pytest.mark.parametrize("width", [360, 700, 1000, 1600])
def test_it_fits_every_width(open_page, page_file, width):
    page = live(open_page(page_file, width=width))
    assert page.evaluate("() => document.documentElement.scrollWidth") <= width
    for part in (".controls", ".grid", ".inspector", ".curves", ".legend"):
        box = page.locator(part).first.bounding_box()
        assert box["x"] >= 0 and box["x"] + box["width"] <= width, part


def test_a_broken_player_leaves_the_tables_and_says_so(open_page, page_file, tmp_path):
    text = page_file.read_text()
    start = text.index('inflate("', text.index("Promise.all")) + 9
    broken = tmp_path / "broken.html"
    broken.write_text(text[:start] + "AAAA" + text[start + 40 :])
    page = open_page(broken, ignore=("console:",))
    page.wait_for_selector("[data-live=failed]")
    assert page.locator("[role=alert]").is_visible() and page.locator("table").first.is_visible()
