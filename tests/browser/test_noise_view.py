"""The noise view in a real browser, from a file, with the network off."""

from __future__ import annotations

import pytest
import torch
from played import CONTRAST, ROOT, cells, focused, frame, live, pause_after, seek, settled
from simulated import HOSTILE

from diffgemma_lite.view import noise_view
from diffgemma_lite.view.host import page as page_of
from diffgemma_lite.view.noise_record import (
    CHANGED,
    ITSELF,
    LEVELS,
    MARKS,
    MASKED,
    noise_record,
    path_record,
)
from diffgemma_lite.view.text import visible

WORDS = dict(enumerate([" the", "sentence", "\n    ", "on", " a", "page", "."]))
V = len(WORDS)
TEXT = torch.randint(0, V, (48,), generator=torch.Generator().manual_seed(1)).tolist()


@pytest.fixture(scope="module")
def record():
    return noise_record(TEXT, WORDS, V, seed=4)


def written(folder, record, title="Noise"):
    path = folder / "noise.html"
    path.write_text(
        page_of(noise_view(record, title=title, note="A note.").html, title), encoding="utf-8"
    )
    return path


@pytest.fixture(scope="module")
def noise_file(record, tmp_path_factory):
    return written(tmp_path_factory.mktemp("noise"), record)


def shown(record, path, level) -> list[str]:
    return ["mask" if i == V else visible(WORDS[i]) for i in path.ids[level]]


def test_every_level_shows_the_record(open_page, noise_file, record):
    page = live(open_page(noise_file))
    assert not page.locator("img").first.is_visible()  # the static part has made room
    for level in (0, 3, 10, 20):
        seek(page, level)
        texts, classes, labels = cells(page), cells(page, "class"), cells(page, "label")
        for n, path in enumerate(record.paths):
            at = slice(n * len(TEXT), (n + 1) * len(TEXT))
            assert texts[at] == shown(record, path, level)
            assert [c.split()[1] for c in classes[at]] == [MARKS[m] for m in path.marks[level]]
            spoken = ["noised to itself" if m == ITSELF else MARKS[m] for m in path.marks[level]]
            assert all(words in label for words, label in zip(spoken, labels[at], strict=True))
            changed = sum(m in (CHANGED, MASKED) for m in path.marks[level])
            assert (
                page.locator(".heading span")
                .nth(n)
                .text_content()
                .startswith(f"{changed} of {len(TEXT)}")
            )
            numbers = page.locator(".curve output").nth(n).text_content()
            assert (
                numbers
                == f"observed {path.observed[level]:.3f} · expected {path.expected[level]:.3f}"
            )
        reading = page.locator(".decoded").all_text_contents()
        assert reading[0] == "".join(WORDS[i] for i in record.paths[0].ids[level])
        assert reading[1].count("▒") == sum(i == V for i in record.paths[1].ids[level])
        assert f"t = {LEVELS[level]:.2f}" in page.locator(".status").first.text_content()


def test_what_the_model_sees_gives_only_the_masks_away(open_page, noise_file, record):
    page = live(open_page(noise_file))
    seek(page, 12)
    marked = cells(page)
    page.locator("input[value=plain]").check(force=True)
    assert cells(page) == marked
    states = [c.split()[1] for c in cells(page, "class")]
    assert states[: len(TEXT)] == ["unchanged"] * len(TEXT)
    assert [s == "masked" for s in states[len(TEXT) :]] == [
        m == MASKED for m in record.paths[1].marks[12]
    ]
    everything = " ".join(
        [*cells(page, "label"), *page.locator(".detail, .status").all_inner_texts()]
    )
    assert not [
        words
        for words in ("in the text", "noised to itself", ", unchanged", ", changed")
        if words in everything
    ]
    hit = record.paths[0].marks[12].index(CHANGED)
    page.locator(f".cell[data-panel='0'][data-p='{hit}']").click()
    assert "Nothing says so" in page.locator(".detail").inner_text()
    assert "in the text" not in page.locator(".detail").inner_text()
    clean = record.paths[1].marks[12].index(0)
    page.locator(f".cell[data-panel='1'][data-p='{clean}']").click()
    assert "absorbing-state: " in (words := page.locator(".detail").inner_text())
    assert words.split("absorbing-state: ")[1].endswith("not a mask, so it is unchanged")
    assert words.split("absorbing-state: ")[0].strip().endswith("Nothing says so")
    page.locator(f".cell[data-panel='0'][data-p='{hit}']").click()
    page.locator("input[value=marked]").check(force=True)
    assert f"in the text: {visible(WORDS[TEXT[hit]])}" in page.locator(".detail").inner_text()


def test_the_keyboard_alone_reaches_and_works_everything(open_page, noise_file):
    page = live(open_page(noise_file))
    reached = []
    for _ in range(14):
        page.keyboard.press("Tab")
        reached.append(focused(page))
        if reached[-1] == "SUMMARY":
            break
    assert reached == [
        "First level, t = 0.00",
        "One level back",
        "Play",
        "One level on",
        "Last level, t = 1.00",
        "Noise level t",
        "marked",
        "0",
        "Text to read, uniform-state",
        "Text to read, absorbing-state",
        "SUMMARY",
    ]
    page.keyboard.press("Enter")
    assert (
        page.locator("details table tr").count() == len(LEVELS) + 1
        and page.locator("details table").is_visible()
    )
    for key, place in (
        ("End", 20),
        ("ArrowLeft", 19),
        ("Home", 0),
        ("ArrowRight", 1),
        (".", 2),
        (",", 1),
        ("PageDown", 2),
    ):
        page.locator("input[type=range]").focus()
        page.keyboard.press(key)
        assert frame(page) == place, key
    page.locator(".cell[tabindex='0']").focus()
    columns = page.locator(".grid").first.evaluate(
        "g => getComputedStyle(g).gridTemplateColumns.split(' ').length"
    )
    moves = {
        "ArrowRight": 1,
        "ArrowDown": 1 + columns,
        "ArrowLeft": columns,
        "ArrowUp": 0,
        "End": 47,
        "Home": 0,
    }
    for key, place in moves.items():
        page.keyboard.press(key)
        assert focused(page) == str(place), key
        assert page.locator(".detail h4").text_content() == f"Position {place}"
        # the same position in both panels
        assert page.locator(".cell[aria-selected='true']").count() == 2
    page.keyboard.press(" ")
    stopped = pause_after(page, 4, " ")
    page.wait_for_timeout(700)
    assert frame(page) == stopped and page.get_by_role("button", name="Play").count() == 1
    page.keyboard.press("Shift+Tab")
    page.keyboard.press("Shift+Tab")
    assert (
        page.locator("input[type=range]").evaluate("r => getComputedStyle(r).outlineStyle")
        != "none"
    )


def test_play_stops_at_the_end_and_a_click_on_the_curve_seeks(open_page, noise_file):
    page = live(open_page(noise_file))
    seek(page, 18)
    page.get_by_role("button", name="Play").click()
    page.wait_for_function(
        "r => r.value === '20'", arg=page.locator("input[type=range]").element_handle()
    )
    page.get_by_role("button", name="Play").wait_for()  # it has paused by itself
    box = page.locator(".curve svg").first.bounding_box()
    page.mouse.click(box["x"] + box["width"] * (4 + 292 * 0.25) / 300, box["y"] + 20)
    assert frame(page) == 5
    assert "t = 0.25" in page.locator("[role=status]").text_content()


def test_a_backward_path_starts_at_its_first_level(open_page, tmp_path, record):
    backwards = {"back": torch.tensor(record.paths[0].ids).flip(0)}
    page = live(open_page(written(tmp_path, path_record(TEXT, backwards, LEVELS[::-1], WORDS, V))))
    assert page.locator(".now").text_content() == "t = 1.00" and page.locator(".panel").count() == 1
    page.get_by_role("button", name="Last level").click()
    assert cells(page) == [visible(WORDS[i]) for i in TEXT]
    assert "first noise" not in page.locator(".detail").inner_text()


def test_hostile_text_is_text_and_nothing_else(open_page, tmp_path):
    record = noise_record(list(range(len(HOSTILE))), dict(enumerate(HOSTILE)), len(HOSTILE), seed=2)
    page = live(open_page(written(tmp_path, record, title="<img src=x onerror=window.pwned=1>")))
    assert cells(page)[: len(HOSTILE)] == [visible(t) or f"#{i}" for i, t in enumerate(HOSTILE)]
    for level in range(0, 21, 4):
        seek(page, level)
    for p in range(0, len(HOSTILE), 6):
        page.locator(f".cell[data-panel='0'][data-p='{p}']").click()
    assert page.evaluate("() => window.pwned") is None
    assert (
        page.evaluate(f"() => {ROOT}.querySelectorAll('script, img, iframe, .cell b').length") == 0
    )
    assert page.locator("h3").text_content() == "<img src=x onerror=window.pwned=1>"


def test_without_script_the_static_part_is_there(open_page, noise_file):
    page = open_page(noise_file, script=False)
    text = page.locator("body").inner_text()
    assert page.locator("img").is_visible() and page.locator("table").count() == 2
    assert all(mark in text for mark in "≠▒≈") and "expected t (1 − 1/V)" in text


def test_reduced_motion_and_both_themes(open_page, noise_file):
    still = live(open_page(noise_file, motion="reduce", scheme="dark"))
    light = live(open_page(noise_file))
    still.wait_for_timeout(500)
    assert frame(still) == 0  # nothing plays by itself
    for page, fades in ((still, False), (light, True)):
        page.get_by_role("button", name="Play").click()
        duration = page.locator(".grid .cell").first.evaluate(
            "c => getComputedStyle(c).transitionDuration"
        )
        assert (duration == "0.16s") == fades
        page.get_by_role("button", name="Pause").click()
    grounds = [
        p.locator(".dg").evaluate("d => getComputedStyle(d).backgroundColor")
        for p in (still, light)
    ]
    assert grounds[0] != grounds[1]
    for page in (still, light):
        seek(page, 12)
        settled(page)
        assert page.locator(".grid .cell:not(.masked)").evaluate_all(PAINTED) >= 4.5


# the contrast of ink and ground where the ground is a mixed colour: drawn on a canvas, which knows
# every notation
PAINTED = """cells => {
  const pixel = document.createElement('canvas').getContext('2d');
  const rgb = (css) => {
    pixel.fillStyle = css;
    pixel.fillRect(0, 0, 1, 1);
    return `rgb(${[...pixel.getImageData(0, 0, 1, 1).data].slice(0, 3).join(',')})`;
  };
  const plain = cells.map((cell) => {
    const { color, backgroundColor } = getComputedStyle(cell), copy = document.createElement('i');
    Object.assign(copy.style, { color: rgb(color), backgroundColor: rgb(backgroundColor) });
    document.body.append(copy);
    return copy;
  });
  return (CONTRAST)(plain);
}""".replace("CONTRAST", CONTRAST)


@pytest.mark.parametrize("width", [360, 700, 1000, 1600])
def test_it_fits_every_width(open_page, noise_file, width):
    page = live(open_page(noise_file, width=width))
    page.locator("summary").click()
    assert page.evaluate("() => document.documentElement.scrollWidth") <= width
    for part in (".controls", ".grid", ".curve", ".detail", ".legend", "details"):
        for i in range(page.locator(part).count()):
            box = page.locator(part).nth(i).bounding_box()
            assert box["x"] >= 0 and box["x"] + box["width"] <= width, part
