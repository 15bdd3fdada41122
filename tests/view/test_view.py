"""The views without a browser: text made visible, outputs equal byte for byte, under their size,
complete without script.
"""

from __future__ import annotations

import asyncio
import base64
import json
import re
import subprocess
import sys
import time
import unicodedata
import zlib

import numpy as np
import pytest
from markup import Reader
from simulated import HOSTILE, simulate, worst_case

from diffgemma_lite.view import live_player, payload_of, player, player_html
from diffgemma_lite.view.host import BUNDLES, HERE, module_text
from diffgemma_lite.view.payload import PROBABILITY_STEPS, code, pack_planes, reductions, row_arrays
from diffgemma_lite.view.static import RAMP, SHADES, picture, static_part
from diffgemma_lite.view.text import readable, visible


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        (" a", "·a"),
        ("\n", "⏎"),
        ("\t", "⇥"),
        ("\u202eabc", "\\u202eabc"),
        ("\u200b", "\\u200b"),
        ("\x00", "\\u0000"),
        ("\u0301", "◌\u0301"),
        ("e\u0301", "e\u0301"),
        ("\U000e0041", "\\u{e0041}"),
        ("\u3164", "\\u3164"),
        ("\ufe0f", "\\ufe0f"),
        ("\ud800", "\\ud800"),
        ("<b>", "<b>"),
        ("", ""),
        ("\u00a0", "\\u00a0"),
        ("漢", "漢"),
    ],
)
def test_hidden_characters_are_written_out(text, shown):
    assert visible(text) == shown


@pytest.mark.parametrize("text", HOSTILE)
def test_nothing_invisible_is_left(text):
    bad = {"Cc", "Cf", "Cs", "Co", "Zl", "Zp", "Zs"}
    assert not [c for c in visible(text) if unicodedata.category(c) in bad]
    assert not [c for c in readable(text) if unicodedata.category(c) in bad and c not in " \n\t"]


def test_python_and_the_browser_write_the_same_characters():
    """The same function stands in text.py and data.js.

    Every character of the basic plane, and the hostile strings.
    """
    if not _node():
        pytest.skip("node is missing; the browser test compares the hostile strings")
    strings = [chr(c) for c in range(0x10000) if unicodedata.category(chr(c)) != "Cn"] + HOSTILE
    script = (
        f"const m = await import({json.dumps((HERE / 'data.js').as_uri())});"
        "let s = ''; for await (const x of process.stdin) s += x;"
        "console.log(JSON.stringify(JSON.parse(s).map((t) => m.runsText(m.visibleRuns(t)))));"
    )
    given = json.dumps(strings, ensure_ascii=True)
    done = subprocess.run(
        ["node", "--input-type=module", "-e", script],
        input=given,
        capture_output=True,
        text=True,
        check=True,
    )
    # a character that only one of the two Unicode versions knows may be a letter to one and a mark
    # to the other
    differ = [
        (s, visible(s), got)
        for s, got in zip(strings, json.loads(done.stdout), strict=True)
        if visible(s) != got
    ]
    assert len(differ) < 40 and not [d for d in differ if d[0] in HOSTILE], differ[:5]


def _node() -> bool:
    import shutil

    return shutil.which("node") is not None


def test_equal_traces_give_equal_bytes_and_different_ones_different_ids():
    first, again, other = (player(simulate(24, 5, seed=s)).html for s in (0, 0, 1))
    name = re.compile(r'data-dg="(\w+)"')
    assert first == again
    assert name.search(first).group(1) != name.search(other).group(1)


@pytest.mark.parametrize("vocabulary", [2048, 262144])
def test_the_worst_case_fits(tmp_path, vocabulary):
    """256 tokens, 48 steps, 5 candidates, nothing compressible.

    An output under 300 kB, a page under 400 kB.
    """
    trace = worst_case(vocabulary)
    output = player(trace)
    as_committed = json.dumps({"data": output._repr_mimebundle_()}, ensure_ascii=False).encode()
    assert len(as_committed) < 300_000
    assert player_html(trace, tmp_path / "worst.html").stat().st_size < 400_000


def test_outputs_pass_the_gate_of_the_notebooks():
    from nbformat import NotebookNode

    from diffgemma_lite.course.gate import output_faults

    def output(bundle):
        return NotebookNode(output_type="display_data", data=bundle, metadata={})

    assert (
        output_faults(
            output(
                player(
                    simulate(48, 4, V=len(HOSTILE), texts=lambda i: HOSTILE[i])
                )._repr_mimebundle_()
            )
        )
        == []
    )
    bundle, _ = live_player(lambda s, f: None, trace=simulate(8, 3))._repr_mimebundle_()
    bundle.pop("application/vnd.jupyter.widget-view+json")  # what tidy takes away
    assert output_faults(output(bundle)) == []


def test_a_smaller_form_says_what_is_missing_and_a_full_one_does_not():
    trace = simulate(16, 4)
    notes = [
        payload_of([trace], 0, "t", level)["traces"][0]["note"]
        for level in range(len(reductions(5)))
    ]
    assert notes[0] == ""
    assert all(notes[1:]) and len(set(notes)) == len(notes)


def test_the_page_names_no_address(tmp_path):
    text = player_html(
        simulate(24, 5, texts=lambda i: HOSTILE[i % len(HOSTILE)]), tmp_path / "p.html"
    ).read_text()
    reader = Reader(text)
    assert not [
        a for a in reader.attributes if a[1] in ("src", "href") and not a[2].startswith("data:")
    ]
    code = module_text().replace("http://www.w3.org/2000/svg", "")
    assert not re.search(r"https?:|//[a-z]+\.|import\s*\(|fetch\(|@import|url\(", code)


def test_hostile_text_stays_text(tmp_path):
    """Static part: the tags are ours, whatever the tokens are.

    The script cannot be ended by them.
    """
    trace = simulate(48, 4, V=len(HOSTILE), texts=lambda i: HOSTILE[i])
    calm = simulate(48, 4, V=len(HOSTILE), texts=lambda i: f"w{i}")
    title = "</title><script>window.pwned=1</script>"
    hostile, plain = (
        Reader(player(trace, title=title).html),
        Reader(player(calm, title="calm").html),
    )
    assert hostile.tags == plain.tags
    assert not [a for a in hostile.attributes if a[1].startswith("on")]
    assert "<script>window.pwned=1</script>" in "".join(hostile.text)
    page = Reader(player_html(trace, tmp_path / "p.html", title=title).read_text())
    assert page.tags.count("script") == 1


def test_the_static_part_is_complete_and_uses_only_what_the_sanitizer_keeps():
    trace = simulate(24, 9, pinned=(2, 5))
    trace.tokens[0] = trace.tokens[0][:20]
    reader, canvas = Reader(static_part(trace, 0, "A title")), trace.canvases[0]
    text = "".join(reader.text)
    assert set(reader.tags) <= {
        "p",
        "b",
        "img",
        "table",
        "tr",
        "th",
        "td",
        "code",
        "details",
        "summary",
        "pre",
    }
    assert all(mark in text for mark in "✓×Δ■=–") and "A title" in text
    for n in range(9):
        assert f"{n + 1}{canvas.temperature[n]:.3f}{canvas.mean_entropy[n, 0]:.4f}" in text
    kept = readable("".join(trace.texts[i] for i in trace.tokens[0]))
    assert kept in text
    films = [t for t in reader.text if t.count("■") == 2]
    assert len(films) == 6  # first, three between, last, committed
    first = films[0].split(" ")
    assert [t[0] == "✓" for t in first] == canvas.accepted[0, 0].tolist()
    assert films[-1].count("–") >= 4


def test_the_picture_is_a_png_of_the_entropies():
    rows = [row_arrays(simulate(16, 6).canvases[0], 0)]
    data = picture(rows)
    assert data[:8] == b"\x89PNG\r\n\x1a\n"
    chunks, at = {}, 8
    while at < len(data):
        size = int.from_bytes(data[at : at + 4])
        kind, body = data[at + 4 : at + 8], data[at + 8 : at + 8 + size]
        assert int.from_bytes(data[at + 8 + size : at + 12 + size]) == zlib.crc32(kind + body)
        chunks[kind], at = body, at + 12 + size
    width, height = int.from_bytes(chunks[b"IHDR"][:4]), int.from_bytes(chunks[b"IHDR"][4:8])
    pixels = np.frombuffer(zlib.decompress(chunks[b"IDAT"]), np.uint8).reshape(height, width + 1)[
        :, 1:
    ]
    shades = pixels[::8, ::4]
    expected = np.rint(np.sqrt(rows[0]["entropy"] / rows[0]["entropy"].max()) * (SHADES - 1))
    assert (shades == expected).all()
    assert ((pixels[7::8, ::4] == SHADES + 1) == rows[0]["accepted"]).all()


@pytest.mark.parametrize("theme", RAMP)
def test_lightness_goes_one_way_so_hue_is_not_needed(theme):
    def luminance(colour):
        parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
        parts = [v / 12.92 if v <= 0.04045 else ((v + 0.055) / 1.055) ** 2.4 for v in parts]
        return 0.2126 * parts[0] + 0.7152 * parts[1] + 0.0722 * parts[2]

    steps = np.diff([luminance(c) for c in RAMP[theme]])
    assert (steps < 0).all() if theme == "light" else (steps > 0).all()


def test_codes_and_planes_come_back():
    values = np.array([5, 7, 7, 300_000])
    coded = code(values, [np.array([5, 0, 0, 0]), np.array([0, 7, 0, 0])])
    assert coded.tolist() == [0, 1, 9, 300_002] and coded.dtype == np.uint32
    packed = pack_planes(coded)
    raw = zlib.decompress(base64.b64decode(packed["d"]))
    assert (np.frombuffer(raw, np.uint8).reshape(4, -1).T.copy().view("<u4")[:, 0] == coded).all()
    assert packed["t"] == "u32" and packed["s"] == [4]
    assert pack_planes(np.array([True, False, True]))["t"] == "b1"


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"row": 1}, "row"),
        ({"row": -1}, "row"),
        ({"trace": None}, "trace"),
        ({"compare": 3}, "compare"),
        ({"title": 3}, "title"),
    ],
)
def test_bad_input_is_named(change, named):
    arguments = {"trace": simulate(8, 3)} | change
    with pytest.raises(Exception, match=named):
        player(arguments.pop("trace"), **arguments)


def test_a_row_that_took_no_step_has_nothing_to_play():
    trace = simulate(8, 3, B=2)
    trace.canvases[0].steps[1] = 0
    player(trace, row=0)
    with pytest.raises(ValueError, match="row 1 has no denoising step"):
        player(trace, row=1)


@pytest.mark.parametrize("labels", [("as published", "broken"), (None, None)])
def test_two_traces_are_told_apart_without_script(labels):
    first, second = (simulate(8, 3, seed=i, label=label) for i, label in enumerate(labels))
    text = "".join(Reader(player(first, compare=second, title="Two runs").html).text)
    for name, label in zip("AB", labels, strict=True):
        assert f"Two runs ({label or name})" in text


def test_rows_and_comparisons_are_told_apart():
    trace = simulate(8, 3, B=2)
    assert player(trace, row=0).html != player(trace, row=1).html
    both = payload_of([simulate(8, 3), simulate(8, 4)], 0, "t")
    assert [t["name"] for t in both["traces"]] == ["A", "B"]


def test_probabilities_and_entropies_keep_their_precision():
    """0.05 % of a probability; half a thousandth, relatively, of an entropy, so that a budget of
    tiny ones adds up.
    """
    entropy = np.exp(np.random.default_rng(0).uniform(-12, 2, (4, 256)))
    # the smallest are subnormal
    assert np.abs(entropy.astype(np.float16) / entropy - 1).max() < 6e-3
    assert (
        np.abs(
            np.sort(entropy.astype(np.float16).astype(float)).cumsum(-1)
            / np.sort(entropy).cumsum(-1)
            - 1
        )[:, 20:].max()
        < 1e-3
    )
    assert PROBABILITY_STEPS >= 1000


def test_every_module_is_in_the_bundle_and_short_enough_to_read():
    assert set().union(*BUNDLES.values()) == {p.name for p in HERE.glob("*.js")}
    assert [p.name for p in HERE.glob("*.js") if len(p.read_text().splitlines()) >= 400] == []
    for view in BUNDLES:
        assert not re.search(r"^(import|export (?!default))", module_text(view), flags=re.MULTILINE)


def test_importing_the_views_imports_no_widget_library():
    code_text = (
        "import sys, diffgemma_lite.view;"
        "print([m for m in ('anywidget', 'ipywidgets', 'plotly', 'matplotlib', "
        "'IPython') if m in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code_text], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "[]"


# -- the live host, without a browser


def finished(widget) -> dict:
    widget.join(120)
    return widget.progress


def test_run_shows_the_trace_and_counts_the_steps():
    asked = []

    def run(settings, on_step):
        asked.append(dict(settings))
        for _ in range(5):
            assert not on_step()
        return simulate(8, 5, seed=settings["seed"])

    widget = live_player(run, knobs={"prompt": "x", "seed": 1, "steps": 5, "stop": True})
    assert widget.data == {}
    widget.settings = widget.settings | {"seed": 7}
    widget.run_count = 1
    assert finished(widget)["state"] == "done"
    assert asked == [{"prompt": "x", "seed": 7, "steps": 5, "stop": True}]
    assert widget.data["traces"][0]["canvases"][0]["stop"] == "steps"
    assert (widget.trace.canvases[0].canvas == simulate(8, 5, seed=7).canvases[0].canvas).all()
    widget.raise_error()


def test_the_same_run_again_is_shown_again():
    widget, shown = (
        live_player(
            lambda settings, on_step: simulate(8, 3), knobs={"seed": 0}, trace=simulate(8, 3)
        ),
        [],
    )
    widget.observe(lambda change: shown.append(change.new), "data")
    for n in (1, 2):
        widget.run_count = n
        assert finished(widget)["state"] == "done"
    assert len(shown) == 2 and shown[0]["traces"] == shown[1]["traces"]


def test_what_the_page_is_shown_is_every_trait_it_shares():
    from diffgemma_lite.view.live import LivePlayer

    widget = live_player(
        lambda settings, on_step: simulate(8, 3), knobs={"seed": 0}, trace=simulate(8, 3)
    )
    own = set(LivePlayer.class_traits(sync=True)) - set(
        LivePlayer.__mro__[1].class_traits(sync=True)
    )
    assert set(widget.still()) == own - {"_esm", "_css", "_anywidget_id"}


def test_cancel_reaches_a_run_that_is_under_way():
    def run(settings, on_step):
        for n in range(2000):
            time.sleep(0.005)
            if on_step():
                return simulate(8, n + 1)
        raise AssertionError("never cancelled")

    widget = live_player(run, knobs={"steps": 100})
    widget.run_count = 1
    deadline = time.monotonic() + 120
    while widget.progress["step"] == 0 and time.monotonic() < deadline:
        time.sleep(0.01)
    assert widget.progress["step"] > 0, widget.error
    widget.cancel_count = 1
    assert finished(widget)["state"] == "cancelled"
    assert widget.error == "" and widget.trace is not None


def test_what_run_raises_is_shown_and_kept():
    def run(settings, on_step):
        raise RuntimeError("the model is out")

    widget = live_player(run, knobs={"seed": 0})
    widget.run_count = 1
    assert finished(widget)["state"] == "failed"
    assert "the model is out" in widget.error
    with pytest.raises(RuntimeError, match="the model is out"):
        widget.raise_error()


def test_a_run_that_returns_no_trace_says_so():
    widget = live_player(lambda settings, on_step: 3, knobs={"seed": 0})
    widget.run_count = 1
    finished(widget)
    with pytest.raises(ValueError, match="run: returned int"):
        widget.raise_error()


@pytest.mark.parametrize(
    ("name", "value"),
    [("seed", -1), ("bound", "x"), ("steps", 0), ("steps", 2.5), ("stop", 1), ("seed", True)],
)
def test_a_setting_out_of_its_knob_is_named_and_nothing_runs(name, value):
    ran = []
    widget = live_player(lambda settings, on_step: ran.append(1))
    widget.settings = widget.settings | {name: value}
    widget.run_count = 1
    assert not ran and widget.progress["state"] == "failed"
    with pytest.raises(ValueError, match=name):
        widget.raise_error()


def test_traits_change_on_the_event_loop_when_there_is_one():
    import threading

    where = []

    def run(settings, on_step):
        on_step()
        return simulate(8, 3)

    async def main():
        widget = live_player(run, knobs={"steps": 3})
        widget.observe(lambda change: where.append(threading.current_thread()), "progress")
        widget.run_count = 1
        deadline = time.monotonic() + 120
        while widget.progress["state"] not in ("done", "failed") and time.monotonic() < deadline:
            await asyncio.sleep(0.01)
        assert widget.progress["state"] == "done", widget.error

    asyncio.run(main())
    assert len(where) >= 2 and set(where) == {threading.main_thread()}


def test_the_live_output_stands_without_a_kernel():
    bundle, _ = live_player(lambda s, f: None, trace=simulate(8, 3))._repr_mimebundle_()
    assert "<table>" in bundle["text/html"] and "data-dg" in bundle["text/html"]
    assert "0x" not in bundle["text/plain"]
    assert "application/vnd.jupyter.widget-view+json" in bundle
