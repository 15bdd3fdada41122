"""The router view outside a browser.

Under its size, equal for equal records, complete without script.
"""

import json
import re
import zlib

import numpy as np
import pytest
from markup import Reader, tables
from routed import routed
from simulated import HOSTILE

from diffgemma_lite.view import router_view
from diffgemma_lite.view.router import payload, picture, static_part
from diffgemma_lite.view.text import visible


def test_the_static_part_has_the_load_and_the_counts_of_every_layer():
    record = routed(5, 24, 8, 2)
    markup = static_part(record, "A title", "A note.")
    layers, growth, loads, positions = tables(markup)
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
    }
    for layer in range(5):
        load = [int((record.index[layer] == e).sum()) for e in range(8)]
        assert loads[layer + 1] == [f"{layer + 1}", *map(str, load)]
        row = layers[layer + 1]
        assert row[1] == str(sum(n > 0 for n in load)) and row[3:5] == [
            str(load.index(max(load))),
            str(max(load)),
        ]
        assert row[5] == f"{max(load) / 6:.1f} times" and int(row[7]) == load.count(0)
    assert [row[0] for row in growth[1:]] == ["1", "2", "4", "8", "16", "24"]
    for n, uniform, *counts in growth[1:]:
        assert float(uniform) == pytest.approx(8 * (1 - (1 - 2 / 8) ** int(n)), abs=0.05)
        assert counts == [
            str(len(set(record.index[layer, : int(n)].ravel()))) for layer in range(5)
        ]
    shown = [int(words.split()[-1]) - 1 for words in positions[0][2:]]
    assert shown[0] == 0 and shown[-1] == 4 and len(shown) == 4
    for p in range(24):
        assert positions[p + 1][1] == visible(record.texts[int(record.ids[p])])
        for layer, cell in zip(shown, positions[p + 1][2:], strict=True):
            pairs = zip(record.index[layer, p], record.weights[layer, p], strict=True)
            assert cell == ", ".join(f"{e} ({w:.2f})" for e, w in pairs)
    assert "A title" in markup and "A note." in markup


def test_the_picture_is_dark_where_a_position_goes():
    record = routed(3, 16, 8, 2)
    data = picture(record, [0, 2])
    body = data[data.index(b"IDAT") + 4 :]
    width, height = (int.from_bytes(data[16 + i : 20 + i]) for i in (0, 4))
    pixels = np.frombuffer(zlib.decompress(body), np.uint8).reshape(height, width + 1)[:, 1:]
    cell = width // 16
    for band, layer in ((pixels[: 8 * 8], 0), (pixels[8 * 8 + 8 :], 2)):
        shade = band[::8, ::cell]
        expected = np.zeros((8, 16), bool)
        for p in range(16):
            expected[record.index[layer, p], p] = True
        assert ((shade > 0) == expected).all() and shade.shape == (8, 16)
        order = np.argsort(record.weights[layer].ravel())
        shades = np.array(
            [[shade[e, p] for e in record.index[layer, p]] for p in range(16)]
        ).ravel()
        assert (np.diff(shades[order].astype(int)) >= 0).all()


def test_the_published_size_fits_and_says_which_layers_are_kept():
    record = routed(30, 256, 128, 8)
    output = router_view(record)
    assert (
        len(json.dumps({"data": output._repr_mimebundle_()}, ensure_ascii=False).encode()) < 300_000
    )
    small = router_view(routed())
    kept = payload(record, "t", "", [0, 29])
    assert (
        "layers 1, 30" in kept["note"]
        and kept["index"]["s"] == [2, 256, 8]
        and kept["load"]["s"] == [30, 128]
    )
    assert payload(routed(), "t", "", [0, 1, 2, 3])["note"] == "" and len(small.html) < 60_000


def test_equal_records_give_equal_bytes_and_the_output_passes_the_gate():
    from nbformat import NotebookNode

    from diffgemma_lite.course.gate import output_faults

    first, again, other = (router_view(routed(seed=s)).html for s in (0, 0, 1))
    name = re.compile(r'data-dg="(\w+)"')
    assert first == again and name.search(first).group(1) != name.search(other).group(1)
    hostile = router_view(routed(C=len(HOSTILE), texts=lambda i: HOSTILE[i]))
    bundle = NotebookNode(output_type="display_data", data=hostile._repr_mimebundle_(), metadata={})
    assert output_faults(bundle) == [] and "0x" not in repr(hostile)


def test_hostile_text_stays_text():
    title = "</title><script>window.pwned=1</script>"
    hostile = Reader(
        router_view(
            routed(C=len(HOSTILE), texts=lambda i: HOSTILE[i]), title=title, note=title
        ).html
    )
    calm = Reader(
        router_view(routed(C=len(HOSTILE), texts=lambda i: f"w{i}"), title="calm", note="calm").html
    )
    assert hostile.tags == calm.tags and not [
        a for a in hostile.attributes if a[1].startswith("on")
    ]


@pytest.mark.parametrize(("change", "named"), [({"record": 3}, "record"), ({"title": 3}, "title")])
def test_bad_input_is_named(unchecked, change, named):
    arguments = {"record": routed()} | change
    with pytest.raises(ValueError, match=f"^{named}: got int"):
        router_view(arguments.pop("record"), **arguments)
