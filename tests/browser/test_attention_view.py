"""The inspector's attention: the page says what `observe` sees, marks it in the canvas, and says
what it left out.
"""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
from simulated import HOSTILE, add_attention, simulate, worst_case
from tiny import C, generator, random_ids, sampler, tiny

from diffgemma_lite import generate
from diffgemma_lite.trace.observe import most_attended, observe
from diffgemma_lite.view import payload_of, player, player_html
from diffgemma_lite.view.attention import attention_payload, kept_steps
from diffgemma_lite.view.text import visible

PROMPT = 11


@pytest.fixture(scope="module")
def run():
    """A real run of the small model.

    Its trace, and for each canvas and step what `observe` saw in a second pass.
    """
    model, settings, steps = tiny(), sampler(), []
    ids = random_ids(1, PROMPT, seed=4)
    out = generate(
        model,
        ids,
        settings,
        max_new_tokens=2 * C,
        generator=generator(3),
        trace="attention",
        on_step=lambda step: steps.append(step),
    )
    trace, seen_at, cache, fresh = out.trace.with_texts(lambda i: f" w{i}"), {}, None, ids
    for k, canvas in enumerate(trace.canvases):
        with torch.no_grad():
            cache = model.encode(fresh, None, cache)
            for n in range(settings.max_denoising_steps):
                before = (
                    steps[k * settings.max_denoising_steps + n - 1].scaled_logits if n else None
                )
                with observe(model) as seen:
                    model.decode(torch.from_numpy(canvas.canvas[n]), cache, before)
                seen_at[k, n] = most_attended(seen, 4)
        fresh = torch.from_numpy(canvas.committed)
    return trace, seen_at


def live(page):
    page.wait_for_selector("[data-live=yes]")
    return page


def seek(page, n: int) -> None:
    page.locator("input[type=range]").evaluate(
        "(r, n) => { r.value = n; r.dispatchEvent(new Event('input')); }", n
    )


def listed(page, layer: int) -> list[tuple[int, float, str]]:
    """Of one layer: position, weight and the token's text, as the page has them."""
    what = "[Number(x.dataset.at), Number(x.dataset.weight), x.querySelector('code').textContent]"
    return (
        page.locator(".layer")
        .nth(layer)
        .locator("li")
        .evaluate_all(f"all => all.map((x) => {what})")
    )


def marked(page) -> dict[str, tuple[int, int]]:
    """Rank -> (canvas, position) of the cells that carry a mark."""
    return dict(
        page.locator(".cell[data-attended]").evaluate_all(
            "all => all.map((x) => [x.dataset.attended, [Number(x.dataset.c), "
            "Number(x.dataset.p)]])"
        )
    )


def test_positions_weights_and_tokens_are_those_that_observe_sees(open_page, run, tmp_path):
    trace, seen_at = run
    page = live(open_page(player_html(trace, tmp_path / "real.html")))
    n_steps, layers = 6, trace.canvases[0].attended.shape[3]
    for c, n, p in ((0, 0, 0), (0, 4, 5), (1, 2, 7), (1, 5, 1)):
        seek(page, c * (n_steps + 1) + n)
        page.locator(f".cell[data-c='{c}'][data-p='{p}']").click()
        positions, weights = (t[0, p].numpy() for t in seen_at[c, n])
        assert page.locator(".layer").count() == layers
        for layer in range(layers):
            got = listed(page, layer)
            assert [at for at, _, _ in got] == positions[layer].tolist()
            assert np.allclose([w for _, w, _ in got], weights[layer], atol=0.00051)
            for at, _, text in got:
                row = np.concatenate(
                    [
                        trace.prompt[0],
                        *(x.committed[0] for x in trace.canvases[:c]),
                        trace.canvases[c].canvas[n, 0],
                    ]
                )
                assert text == visible(trace.texts[int(row[at])])
        expected = {
            str(rank + 1): list(divmod(int(at) - PROMPT, C))
            for rank, at in enumerate(positions[-1])
            if at >= PROMPT
        }
        assert marked(page) == expected  # the last layer is chosen at first
        context = page.locator(".context mark").evaluate_all(
            "all => all.map((x) => [x.dataset.attended, x.textContent])"
        )
        assert sorted(context) == [
            [str(r + 1), visible(trace.texts[trace.prompt[0][at]])]
            for r, at in enumerate(positions[-1])
            if at < PROMPT
        ]
    seek(page, 2 * n_steps + 1)  # the commit shows its last step
    assert "at step 6," in page.locator(".attention .caption").first.text_content()


def test_the_keyboard_goes_through_the_layers_and_the_marks_follow(open_page, run, tmp_path):
    trace, seen_at = run
    page = live(open_page(player_html(trace, tmp_path / "keys.html")))
    seek(page, 3)
    page.locator(".decoded").focus()
    page.keyboard.press("Tab")
    layers = trace.canvases[0].attended.shape[3]
    for layer in (layers - 1, 0, 1, 2):  # Down from the last goes round to the first
        positions = seen_at[0, 3][0][0, 0, layer].tolist()
        assert page.locator(".layer input").nth(layer).is_checked()
        assert sorted(marked(page).values()) == sorted(
            [0, at - PROMPT] for at in positions if at >= PROMPT
        )
        page.keyboard.press("ArrowDown")
    assert page.locator("input[type=range]").input_value() == "3"  # the player did not move
    page.locator(".layer").nth(1).locator("ol").click()
    assert page.locator(".layer input").nth(1).is_checked()


def test_a_trace_without_attention_has_no_such_part(open_page, tmp_path):
    page = live(open_page(player_html(simulate(16, 4), tmp_path / "plain.html")))
    assert page.locator(".attention").count() == 1 and not page.locator(".attention").is_visible()
    assert not marked(page)


def test_a_large_page_keeps_some_steps_and_says_which(open_page, tmp_path):
    trace = simulate(256, 48, V=2048, layers=8, seed=1)
    html = player(trace).html
    assert len(json.dumps(html, ensure_ascii=False).encode()) < 300_000
    path = player_html(trace, tmp_path / "large.html")
    page = live(open_page(path))
    note = page.locator(".note").text_content()
    assert "attention is kept for some of the steps" in note
    canvas = trace.canvases[0]
    words = page.locator(".attention .caption").first.text_content()
    kept = [int(x) - 1 for x in words.split("steps ")[-1].rstrip(".").split(",")]
    assert kept[0] == 0 and kept[-1] == 47 and kept == kept_steps(48, len(kept)) and len(kept) < 48
    for n in (0, 20, 47):
        seek(page, n)
        page.locator(".cell[data-p='9']").click()
        shown = max(k for k in kept if k <= n)
        assert f"at step {shown + 1}," in page.locator(".attention .caption").first.text_content()
        assert [at for at, _, _ in listed(page, 2)] == canvas.attended[shown, 0, 9, 2].tolist()


@pytest.mark.parametrize(("vocabulary", "layers"), [(2048, 4), (262144, 30)])
def test_the_worst_case_with_attention_fits(tmp_path, vocabulary, layers):
    trace = worst_case(vocabulary)
    add_attention(trace.canvases[0], 2, layers)
    assert (
        len(json.dumps({"data": player(trace)._repr_mimebundle_()}, ensure_ascii=False).encode())
        < 300_000
    )
    if vocabulary == 2048:  # the larger one takes as many tries again
        assert player_html(trace, tmp_path / "worst.html").stat().st_size < 400_000


def test_room_decides_what_is_kept_and_the_page_says_so():
    trace = simulate(32, 9, layers=6)
    full = attention_payload(trace, 0, float("inf"))
    size = sum(len(full["canvases"][0][name]["d"]) for name in ("at", "weight"))
    assert (
        full["canvases"][0]["steps"] == list(range(9))
        and attention_payload(trace, 0, size - 1) != full
    )
    steps = [
        len(attention_payload(trace, 0, size * share)["canvases"][0]["steps"])
        for share in (1, 0.7, 0.3, 0.12)
    ]
    assert steps == sorted(steps, reverse=True) and steps[-1] == 1
    assert attention_payload(trace, 0, size * 0.08)["canvases"][0]["at"]["s"][3] < 4
    assert attention_payload(trace, 0, 10) is None
    parts = [attention_payload(trace, 0, room) for room in (size, size / 2, size * 0.08, 10)]
    notes = [payload_of([trace], 0, "t", 0, [part])["traces"][0]["note"] for part in parts]
    assert notes[0] == "" and len(set(notes)) == 4 and "left out" in notes[3]


def test_hostile_text_in_the_prompt_and_the_lists(open_page, tmp_path):
    trace = simulate(len(HOSTILE), 4, V=len(HOSTILE), texts=lambda i: HOSTILE[i], layers=2, seed=2)
    trace.prompt[0] = list(range(len(HOSTILE)))
    canvas = trace.canvases[0]
    canvas.canvas[0, 0] = np.arange(len(HOSTILE))
    canvas.attended[0, ..., 1:] = len(HOSTILE) + np.arange(3)
    for p in range(len(HOSTILE)):  # layer 1: a prompt token, layer 2: the same one in the canvas
        canvas.attended[0, 0, p, 0, 0], canvas.attended[0, 0, p, 1, 0] = p, len(HOSTILE) + p
    page = live(open_page(player_html(trace, tmp_path / "hostile.html")))
    page.locator(".layer input").first.check()
    for p, text in enumerate(HOSTILE):
        page.locator(f".cell[data-p='{p}']").evaluate("x => x.focus()")
        expected = visible(text) or f"#{p}"
        assert listed(page, 0)[0][2] == listed(page, 1)[0][2] == expected
        assert page.locator(".context mark[data-attended='1']").text_content() == expected
    assert page.evaluate("() => window.pwned") is None
    assert page.locator(".attention script, .attention img, .attention b b").count() == 0


def test_the_table_without_script_has_the_largest_weight_of_each_position(run):
    trace, _ = run
    text = player(trace).html
    canvas = trace.canvases[1]
    for p in range(C):
        at, weight = int(canvas.attended[5, 0, p, 0, 0]), canvas.attended_weight[5, 0, p, 0, 0]
        which, position = (-1, at) if at < PROMPT else divmod(at - PROMPT, C)
        where = {-1: "p", 0: "c1.", 1: "c"}[which]
        assert f"<td>{where}{position} {100 * weight:.0f}%</td>" in text


@pytest.mark.parametrize("width", [360, 1600])
def test_it_fits_every_width(open_page, run, tmp_path, width):
    page = live(open_page(player_html(run[0], tmp_path / "wide.html"), width=width, scheme="dark"))
    assert page.evaluate("() => document.documentElement.scrollWidth") <= width
    box = page.locator(".layers").bounding_box()
    assert box["x"] >= 0 and box["x"] + box["width"] <= width
