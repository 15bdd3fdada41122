"""What the NVFP4 views are given and what they show without a script.

The numbers of `quantize`, and nothing else.
"""

from __future__ import annotations

import json
import re

import pytest
import torch
from markup import Reader
from tiny import generator, refused

from diffgemma_lite.nvfp4 import quantize
from diffgemma_lite.view.host import HERE, module_text, page
from diffgemma_lite.view.nvfp4_record import FACTORS, block_map, outlier_frames
from diffgemma_lite.view.nvfp4_view import block_view, payload, picture

W = 0.05 * torch.randn(12, 64, generator=generator())


def test_a_map_holds_every_block_as_it_is_quantised():
    record = block_map(W, "some weight")
    assert record.shape == (12, 4) and len(record.frames) == 48
    q = quantize(W)
    for i, frame in enumerate(record.frames):
        row, at = i // 4, slice(16 * (i % 4), 16 * (i % 4) + 16)
        assert frame.codes == tuple(q.codes[row, at].tolist())
        assert frame.values == pytest.approx(q.dequantize()[row, at].tolist())
        lost = (W[row, at] - q.dequantize()[row, at]).norm() / W[row, at].norm()
        assert frame.error == pytest.approx(float(lost), rel=1e-5)
        assert frame.block_scale * frame.tensor_scale == pytest.approx(float(q.scales[row, i % 4]))


def test_a_larger_outlier_takes_the_codes_from_its_neighbours():
    record = outlier_frames(W, "some weight", row=3, block=1)
    assert record.outlier == int(W[3, 16:32].abs().argmax()) and len(record.frames) == len(FACTORS)
    assert record.frames[0].codes == block_map(W, "same").frames[13].codes
    zeros = [sum(code % 8 == 0 for code in f.codes) for f in record.frames]
    assert zeros[0] <= 4 and zeros[-1] == 15 and record.frames[-1].neighbours == 1.0
    assert record.frames[0].neighbours < 0.2
    for f, factor in zip(record.frames, FACTORS, strict=True):
        assert f.weights[record.outlier] == pytest.approx(
            factor * float(W[3, 16 + record.outlier]), rel=1e-6
        )
    assert outlier_frames(W, "x", place=5).outlier == 5


@pytest.mark.parametrize(
    "record", [block_map(W, "some weight"), outlier_frames(W, "some weight", row=2, block=3)]
)
def test_the_static_part_has_the_numbers_and_no_script_is_needed_for_them(record):
    view = block_view(record, title="A <b>title</b>", note="a note")
    reader = Reader(view.html)
    text = " ".join(reader.text)
    assert "A <b>title</b>" in text and "a note" in text and reader.tags.count("script") == 1
    assert not [t for t in reader.tags if t in ("style", "svg", "iframe", "link")]
    shown = record.frames[payload(record, "x")["first"]]
    for w, code, value in zip(shown.weights, shown.codes, shown.values, strict=True):
        assert f"{w:.5f}" in text and f"{code:04b}" in text and f"{value:.5f}" in text
    if record.shape:
        assert reader.tags.count("img") == 1 and picture(record).startswith(b"\x89PNG")
    else:
        assert all(f"{f.neighbours:.1%}" in text for f in record.frames)
    assert block_view(record).html == block_view(record).html and len(view.html.encode()) < 150_000
    json.dumps(payload(record, "x"))
    assert view.html in page(view.html, "x")


def test_the_module_is_short_and_fetches_nothing():
    source = (HERE / "nvfp4.js").read_text(encoding="utf-8")
    assert len(source.splitlines()) < 300
    assert not re.search(
        r"https?://|fetch\(|XMLHttpRequest|innerHTML|insertAdjacentHTML|document\.write", source
    )
    assert ".nvfp4 .map" in module_text("nvfp4")


def test_bad_requests_are_named():
    with refused("rows", "0 rows"):
        block_map(W, "x", rows=0)
    with refused("rows", "2048"):
        block_map(torch.ones(600, 64), "x", rows=600)
    with refused("block", "row 12"):
        outlier_frames(W, "x", row=12)
    with refused("place", "16"):
        outlier_frames(W, "x", place=16)
    with refused("factors"):
        outlier_frames(W, "x", factors=())


@pytest.mark.usefixtures("unchecked")
def test_only_a_record_is_shown():
    with refused("record", "list"):
        block_view([1, 2])
