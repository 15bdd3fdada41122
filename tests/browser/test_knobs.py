"""The knob panel in a real browser, without a kernel.

Every knob is there, what is turned is sent, what comes is shown.
"""

from __future__ import annotations

import pytest
from played import live
from simulated import HOSTILE, simulate

from diffgemma_lite.view import live_player
from diffgemma_lite.view.host import page as page_of
from diffgemma_lite.view.host import stage
from diffgemma_lite.view.live import DEFAULTS, KNOBS
from diffgemma_lite.view.text import visible

# as a reader finds them: the label, and the kind of control
LABELS = {
    "prompt": "Prompt", "seed": "Seed", "steps": "Denoising steps, at most",
    "bound": "Entropy bound", "t_max": "First temperature", "t_min": "Last temperature",
    "self_conditioning": "Self-conditioning", "stop": "Stop when stable",
}  # fmt: skip


@pytest.fixture(scope="module")
def knobs_file(tmp_path_factory):
    widget = live_player(lambda settings, on_step: simulate(12, 4), trace=simulate(12, 4, seed=1))
    path = tmp_path_factory.mktemp("knobs") / "knobs.html"
    path.write_text(page_of(stage(widget.still()), "Knobs"), encoding="utf-8")
    return path


def trait(page, name: str):
    return page.evaluate("name => window.model.get(name)", name)


def send(page, **traits) -> None:
    """What a kernel would send."""
    page.evaluate(
        "all => Object.entries(all).forEach(([name, value]) => window.model.set(name, value))",
        traits,
    )


def test_every_knob_has_a_labelled_control_with_its_first_value(open_page, knobs_file):
    page = live(open_page(knobs_file))
    assert set(LABELS) == set(DEFAULTS) == set(KNOBS)
    for name, label in LABELS.items():
        field, value = page.get_by_label(label), DEFAULTS[name]
        assert field.count() == 1 and field.get_attribute("data-knob") == name
        shown = field.is_checked() if isinstance(value, bool) else field.input_value()
        assert shown == (value if isinstance(value, (bool, str)) else f"{value:g}")
    assert (
        page.get_by_role("button", name="Run").is_enabled()
        and page.get_by_role("button", name="Cancel").is_disabled()
    )
    assert page.get_by_role("progressbar", name="Denoising steps done").is_visible()


def test_the_keyboard_alone_turns_the_knobs_and_runs(open_page, knobs_file):
    page = live(open_page(knobs_file))
    reached = []
    for _ in range(9):
        page.keyboard.press("Tab")
        reached.append(
            page.evaluate(
                "() => { let e = document.activeElement; "
                "while (e.shadowRoot?.activeElement) e = e.shadowRoot.activeElement; "
                "return e.dataset.knob ?? e.textContent; }"
            )
        )
    assert reached == [*DEFAULTS, "Run"]
    assert page.locator("button.run").evaluate("b => getComputedStyle(b).outlineStyle") != "none"
    page.keyboard.press("Enter")
    assert trait(page, "run_count") == 1
    wanted = {
        "prompt": "a = <b>",
        "seed": 7,
        "steps": 9,
        "bound": 1.5,
        "t_max": 1,
        "t_min": 0.2,
        "self_conditioning": False,
        "stop": False,
    }
    for name, value in wanted.items():
        field = page.locator(f"[data-knob={name}]")
        field.press(" ") if isinstance(value, bool) else field.fill(str(value))
    assert trait(page, "settings") == wanted
    # outside the knob's limits: it is marked and not sent
    page.locator("[data-knob=steps]").fill("0")
    page.locator("[data-knob=seed]").fill("")
    assert trait(page, "settings") == wanted
    assert page.locator("[data-knob=steps]").evaluate("f => f.matches(':invalid')")
    # it would run with other numbers than those shown
    assert page.locator("button.run").is_disabled()
    words = page.locator(".words").text_content()
    assert all(f"{LABELS[name]} takes a whole number" in words for name in ("steps", "seed"))
    for name in ("steps", "seed"):
        page.locator(f"[data-knob={name}]").fill("5")
    assert trait(page, "settings") == wanted | {"steps": 5, "seed": 5}
    assert (
        page.locator("button.run").is_enabled()
        and "takes" not in page.locator(".words").text_content()
    )


def test_progress_cancel_preview_and_error(open_page, knobs_file):
    page = live(open_page(knobs_file))
    run, cancel, bar = (page.locator(part) for part in ("button.run", "button.cancel", "progress"))
    partial = {
        "texts": HOSTILE,
        "entropy": [0.5] * len(HOSTILE),
        "accepted": [i % 2 == 0 for i in range(len(HOSTILE))],
        "vocab": 9,
    }
    send(
        page,
        progress={"state": "running", "step": 3, "total": 8, "words": "step 3 of at most 8, 0.1 s"},
        partial=partial,
    )
    assert run.is_disabled() and cancel.is_enabled()
    assert bar.evaluate("b => [b.value, b.max]") == [3, 8]
    assert page.locator(".words").text_content() == "step 3 of at most 8, 0.1 s"
    cells = page.locator(".knobs .grid .cell")
    assert cells.all_text_contents() == [visible(text) for text in HOSTILE]
    assert (
        cells.evaluate_all("all => all.map((c) => c.classList.contains('accepted'))")
        == partial["accepted"]
    )
    assert page.evaluate("() => window.pwned") is None
    cancel.press("Enter")
    assert trait(page, "cancel_count") == 1
    send(page, progress={"state": "cancelling", "step": 3, "total": 8, "words": "cancelling"})
    assert run.is_disabled() and cancel.is_disabled()
    send(
        page,
        progress={"state": "failed", "step": 3, "total": 8, "words": "failed"},
        partial={},
        error="ValueError: <b>no</b>",
    )
    assert (
        page.get_by_role("alert").text_content() == "ValueError: <b>no</b>"
        and page.get_by_role("alert").is_visible()
    )
    assert run.is_enabled() and not page.locator(".knobs .grid").is_visible()


def test_a_new_trace_is_shown_at_its_end_and_scrubbing_asks_the_kernel_nothing(
    open_page, knobs_file
):
    page = live(open_page(knobs_file))
    slider = page.locator("input[type=range]")
    assert slider.input_value() == "0"  # a recorded one begins at its start
    data = page.evaluate("() => ({ ...window.model.get('data'), run: 1 })")
    send(page, data=data)
    page.wait_for_function(  # another slider than before: the player is made anew
        "() => { const s = "
        "document.querySelector('[data-stage]').shadowRoot.querySelector('input[type=range]');"
        "return s.value === s.max; }"
    )
    page.evaluate(
        "() => { window.sent = 0; const { set, save_changes } = window.model;"
        "window.model.set = (...given) => { window.sent++; set(...given); }; "
        "window.model.save_changes = () => { window.sent++; }; }"
    )
    for n in range(50):
        slider.evaluate("(r, n) => { r.value = n; r.dispatchEvent(new Event('input')); }", n % 5)
    assert page.evaluate("() => window.sent") == 0
    page.locator("[data-knob=seed]").fill("3")
    assert page.evaluate("() => window.sent") == 2  # the counter counts: set and save_changes


@pytest.mark.parametrize("width", [360, 1600])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_it_fits_every_width_in_both_themes(open_page, knobs_file, width, scheme):
    page = live(open_page(knobs_file, width=width, scheme=scheme))
    assert page.evaluate("() => document.documentElement.scrollWidth") <= width
    for part in page.locator(".knobs input, .knobs textarea, .knobs button, .knobs progress").all():
        box = part.bounding_box()
        assert box["x"] >= 0 and box["x"] + box["width"] <= width
    assert page.locator(".knobs").evaluate("k => k.dataset.theme") == scheme
