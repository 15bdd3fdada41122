"""The views of NVFP4 blocks in a real browser, from a file, with the network off."""

from __future__ import annotations

import pytest
import torch
from played import live

from diffgemma_lite.view.host import page as page_of
from diffgemma_lite.view.nvfp4_record import block_map, outlier_frames
from diffgemma_lite.view.nvfp4_view import block_view, first_shown

W = 0.05 * torch.randn(12, 64, generator=torch.Generator().manual_seed(0))


def opened(open_page, folder, record):
    path = folder / "nvfp4.html"
    path.write_text(page_of(block_view(record, note="A note.").html, "NVFP4"), encoding="utf-8")
    return live(open_page(path))


def column(page, n: int) -> list[str]:
    """One column of the table, minus signs as Python writes them."""
    return [
        text.replace("−", "-")
        for text in page.locator(f".nvfp4 td:nth-child({n})").all_text_contents()
    ]


def assert_shows(page, frame) -> None:
    assert page.locator(".status").first.text_content().startswith(frame.label)
    assert column(page, 4) == [f"{code:04b}" for code in frame.codes]
    shown = [float(v) for v in column(page, 5)]
    assert shown == pytest.approx(frame.values, rel=1e-4, abs=2e-5)
    styles = page.locator(".weights span").evaluate_all(
        "all => all.map((el) => el.getAttribute('style'))"
    )
    places = [float(style.split("left:")[1].split("%")[0]) for style in styles]
    scale = frame.block_scale * frame.tensor_scale
    assert places == pytest.approx([50 * (w / scale + 7) / 7 for w in frame.weights], abs=0.1)


def test_a_block_is_chosen_by_mouse_and_by_keyboard(open_page, tmp_path):
    record = block_map(W, "some weight")
    page = opened(open_page, tmp_path, record)
    assert page.locator(".spot").count() == 48 and not page.locator("img").first.is_visible()
    assert_shows(page, record.frames[first_shown(record)])
    page.locator(".spot[data-i='21']").click()
    assert_shows(page, record.frames[21])
    page.keyboard.press("ArrowRight")  # the same block of the next row
    assert_shows(page, record.frames[25])
    page.keyboard.press("ArrowUp")
    assert_shows(page, record.frames[24])
    page.keyboard.press("ArrowUp")  # the first block of a row has none above
    assert_shows(page, record.frames[24])
    assert page.locator(".spot[aria-selected='true']").get_attribute("data-i") == "24"


def test_the_outlier_grows_with_the_slider(open_page, tmp_path):
    record = outlier_frames(W, "some weight", row=3, block=1)
    page = opened(open_page, tmp_path, record)
    for n in (0, 5, len(record.frames) - 1):
        page.locator("input[type=range]").fill(str(n))
        assert_shows(page, record.frames[n])
        zeros = sum(
            code % 8 == 0 for i, code in enumerate(record.frames[n].codes) if i != record.outlier
        )
        assert f"{zeros} of them zero" in page.locator(".status").first.text_content()
    assert page.locator("tr.loud td").first.text_content() == f"{record.outlier} (outlier)"
    page.get_by_role("button", name="Smaller").click()
    assert_shows(page, record.frames[-2])
