"""A trace of a step that does not follow the entropy bound.

The inspector says so instead of inventing a reason.
"""

from __future__ import annotations

import numpy as np
import pytest
from simulated import simulate

from diffgemma_lite.view import player_html

N, C = 6, 24


@pytest.fixture
def inspector(open_page, tmp_path):
    """inspector(trace, position, step) -> the reason in words."""

    def reason(trace, position, step):
        page = open_page(player_html(trace, tmp_path / "page.html"))
        page.wait_for_selector("[data-live=yes], .grid .cell")
        page.locator("input[type=range]").fill(str(step))
        page.locator(".grid .cell").nth(position).click()
        return page.locator(".reason").text_content()

    return reason


def order(trace, step):
    return np.argsort(trace.canvases[0].entropy[step, 0], kind="stable")


def test_accepted_against_the_bound(inspector):
    trace, step = simulate(C, N), 1
    trace.canvases[0].accepted[:] = True
    words = inspector(trace, int(order(trace, step)[-1]), step)
    assert words.startswith("Accepted, although the 23 surer positions use") and words.endswith(
        "follows another rule."
    )


def test_not_accepted_although_the_bound_allows_it(inspector):
    trace, step = simulate(C, N), 1
    trace.canvases[0].accepted[:] = False
    words = inspector(trace, int(order(trace, step)[0]), step)
    assert (
        words == "Not accepted, although nothing is used before it "
        "(the bound is 0.100 nats): this step follows another rule."
    )


def test_a_token_that_is_not_replaced_is_not_called_random(inspector):
    trace, step = simulate(C, N), 1
    canvas = trace.canvases[0]
    least = int(order(trace, step)[-1])
    assert not canvas.accepted[step, 0, least]
    assert inspector(trace, least, step).endswith("A random token takes its place.")
    canvas.canvas[step + 1, 0, least] = canvas.canvas[step, 0, least]
    assert inspector(trace, least, step).endswith("The token stays as it was.")
