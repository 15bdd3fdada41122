"""The race view outside a browser.

Complete without script, equal for equal records, under its size.
"""

import html
import json
import re
import zlib

import numpy as np
import pytest
from markup import Reader, tables
from raced import raced
from simulated import HOSTILE

from diffgemma_lite.view import race_view
from diffgemma_lite.view.race import (
    MOMENTS,
    event_at,
    machine_words,
    picture,
    size_words,
    static_part,
)
from diffgemma_lite.view.text import readable, visible


def test_the_static_part_has_totals_moments_and_every_event():
    record = raced()
    markup = static_part(record, "A title", "A note.")
    totals, moments, *events = tables(markup)
    assert set(Reader(markup).tags) <= {
        "p",
        "b",
        "img",
        "table",
        "tr",
        "th",
        "td",
        "details",
        "summary",
        "pre",
        "code",
    }
    for lane, row, table in zip(record.lanes, totals[1:], events, strict=True):
        assert row[:2] == [lane.name, "27"] and float(row[2]) == pytest.approx(
            lane.seconds[-1], rel=1e-3
        )
        assert float(row[3]) == pytest.approx(27 / lane.seconds[-1], rel=1e-3)
        assert row[4] == str(lane.passes[-1]) and float(row[5]) == pytest.approx(
            27 / lane.passes[-1], rel=5e-3
        )
        assert row[6] == size_words((lane.bytes[-1]["weights"] + lane.bytes[-1]["cache"]) / 27)
        assert [float(s) for s in row[9].split(", ")] == pytest.approx(sorted(lane.runs), rel=1e-3)
        assert [(int(r[2]), int(r[3])) for r in table[1:]] == list(
            zip(lane.kept, lane.passes, strict=True)
        )
        assert [float(r[1]) for r in table[1:]] == pytest.approx(lane.seconds, abs=5e-5)
    longest = max(lane.seconds[-1] for lane in record.lanes)
    for share, row in zip(MOMENTS, moments[1:], strict=True):
        for lane, kept, text in zip(record.lanes, row[1::2], row[2::2], strict=True):
            stood = [n for n, s in enumerate(lane.seconds) if s <= share * longest]
            assert int(kept) == (lane.kept[stood[-1]] if stood else 0)
            ids = lane.tokens[: int(kept)]
            if "accepted]" in text:
                ids = ids + lane.ids[stood[-1]]
                assert f"[{sum(lane.accepted[stood[-1]])} of 16 accepted]" in text
            assert re.search("<code>(.*)</code>", text).group(1) == " ".join(
                visible(record.texts[i]) for i in ids
            )
    assert any("accepted]" in row[4] for row in moments[1:])
    for lane in record.lanes:
        assert f"<pre>{''.join(record.texts[i] for i in lane.tokens)}</pre>" in markup
    assert all(words in markup for words in ("A title", "A note.", machine_words(record.meta)))


def test_the_event_at_a_time():
    lane = raced().canvas
    assert event_at(lane, 0) == -1 and event_at(lane, lane.seconds[0]) == 0
    assert (
        event_at(lane, lane.seconds[3] - 1e-9) == 2 and event_at(lane, 1e9) == len(lane.seconds) - 1
    )


@pytest.mark.parametrize(
    ("count", "words"),
    [(0, "0 B"), (999, "999 B"), (4.46e6, "4.46 MB"), (1.5e9, "1.5 GB"), (3e13, "30 TB")],
)
def test_sizes_in_words(count, words):
    assert size_words(float(count)) == words


def test_the_picture_is_the_kept_tokens_over_time():
    record = raced(slow=0.5)
    data = picture(record)
    width, height = (int.from_bytes(data[16 + i : 20 + i]) for i in (0, 4))
    pixels = np.frombuffer(zlib.decompress(data[data.index(b"IDAT") + 4 :]), np.uint8).reshape(
        height, width + 1
    )[:, 1:]
    longest, band = max(lane.seconds[-1] for lane in record.lanes), 72
    for n, lane in enumerate(record.lanes):
        rows = pixels[n * (band + 10) : n * (band + 10) + band - 8]
        heights = (rows == 1).sum(0)
        for x in range(0, width, 37):
            stood = [
                k
                for s, k in zip(lane.seconds, lane.kept, strict=True)
                if s <= longest * (x + 1) / width
            ]
            assert heights[x] == round((band - 10) * (stood[-1] if stood else 0) / 27)


def test_a_long_race_fits_and_equal_ones_are_equal_bytes():
    first, again, other = (race_view(raced(seed=s)).html for s in (0, 0, 1))
    assert first == again and first != other
    large = race_view(raced(256, (48,), 256, V=3000))
    assert (
        len(json.dumps({"data": large._repr_mimebundle_()}, ensure_ascii=False).encode()) < 300_000
    )


def test_outputs_pass_the_gate_and_hostile_text_stays_text():
    from nbformat import NotebookNode

    from diffgemma_lite.course.gate import output_faults

    title = "</title><script>window.pwned=1</script>"
    hostile = race_view(raced(V=len(HOSTILE), texts=lambda i: HOSTILE[i]), title=title, note=title)
    bundle = NotebookNode(output_type="display_data", data=hostile._repr_mimebundle_(), metadata={})
    assert output_faults(bundle) == [] and "0x" not in repr(hostile)
    reader, calm = (
        Reader(hostile.html),
        Reader(race_view(raced(V=len(HOSTILE)), title="calm", note="calm").html),
    )
    assert reader.tags == calm.tags and not [a for a in reader.attributes if a[1].startswith("on")]
    record = raced(V=len(HOSTILE), texts=lambda i: HOSTILE[i])
    answer = readable("".join(HOSTILE[i] or f"#{i}" for i in record.canvas.tokens))
    assert html.escape(answer) in hostile.html


@pytest.mark.parametrize(("change", "named"), [({"record": 3}, "record"), ({"title": 3}, "title")])
def test_bad_input_is_named(unchecked, change, named):
    arguments = {"record": raced()} | change
    with pytest.raises(ValueError, match=f"^{named}: got int"):
        race_view(arguments.pop("record"), **arguments)
