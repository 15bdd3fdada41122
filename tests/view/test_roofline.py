"""The roofline: its points are the cost model's, its sliders never undo each other, and it is
complete without script.
"""

from __future__ import annotations

import base64
import itertools
import json
import re
import subprocess
import sys
import xml.etree.ElementTree as ElementTree

import pytest
from tiny import refused

from diffgemma_lite import Config
from diffgemma_lite.cost import PRECISIONS, distinct_experts, floor, step_cost
from diffgemma_lite.cost.hardware import HARDWARE, Hardware, Sourced
from diffgemma_lite.view import roofline
from diffgemma_lite.view.roofline import si
from diffgemma_lite.view.roofline_payload import payload

SMALL = Config.preset("python_small")
CANVASES, BATCHES, NAMES = (8, 64), (1, 4, 16), ("BF16", "FP8")
CPU = Hardware("a <CPU>", Sourced(2e10, "measured here"), {"fp32": Sourced(1e11, "measured here")})


@pytest.fixture(scope="module")
def shown():
    return roofline(
        SMALL,
        hardware=("H100", "L4"),
        measured=(CPU,),
        prefix=300,
        canvases=CANVASES,
        batches=BATCHES,
        precisions=NAMES,
        canvas=64,
        batch=4,
        skew=0.8,
    )


def test_points_are_what_the_cost_model_says(shown):
    assert set(shown.points) == set(itertools.product(NAMES, (1, *CANVASES), BATCHES))
    for (name, queries, batch), p in shown.points.items():
        kind = PRECISIONS[name]
        ops = step_cost(
            SMALL,
            prefix=300,
            queries=queries,
            batch=batch,
            mode="autoregressive" if queries == 1 else "canvas",
            weight_bytes=kind.weight_bytes,
            experts=distinct_experts(SMALL, batch * queries, 0.8, texts=batch),
        )
        assert p.flops == pytest.approx(sum(op.flops for op in ops))
        assert p.bytes == pytest.approx(sum(op.bytes_weights + op.bytes_kv for op in ops))
        assert p.seconds == pytest.approx(floor(ops, HARDWARE["H100"], kind.dtype))
        assert sum(seconds for *_, seconds in p.parts) == pytest.approx(p.seconds)
        roof = min(HARDWARE["H100"].peak("fp8"), p.intensity * HARDWARE["H100"].bandwidth.value)
        assert p.rate <= roof * (1 + 1e-9)


def test_a_canvas_and_a_batch_move_a_step_to_the_right(shown):
    for name in NAMES:
        across = [shown.points[name, q, 1].intensity for q in (1, *CANVASES)]
        assert across == sorted(across)
    assert shown.points["FP8", 1, 1].intensity > shown.points["BF16", 1, 1].intensity


def state_after(figure, choices: dict[str, int]) -> list:
    """The traces after each slider was moved to a step, in the order given.

    What plotly's restyle does, in Python.
    """
    traces = [dict(t.to_plotly_json()) for t in figure.data]
    sliders = {s.currentvalue.prefix.removesuffix(": "): s for s in figure.layout.sliders}
    for name, step in choices.items():
        assert sliders[name].steps[step].method == "restyle"
        changes, which = sliders[name].steps[step].args
        for key, values in changes.items():
            assert len(values) == len(which)
            for trace, value in zip(which, values, strict=True):
                traces[trace][key] = value
    return traces


@pytest.mark.parametrize("order", list(itertools.permutations(["canvas", "batch", "precision"])))
def test_sliders_in_any_order_show_the_chosen_step(shown, order):
    figure = shown.figure()
    places = {"canvas": len(CANVASES), "batch": len(BATCHES), "precision": len(NAMES)}
    for steps in itertools.product(*(range(places[name]) for name in order)):
        choice = dict(zip(order, steps, strict=True))
        traces = [t for t in state_after(figure, choice) if "selectedpoints" in t and t["visible"]]
        queries = (1, CANVASES[choice["canvas"]])
        precision = NAMES[choice["precision"]]
        assert [t["name"] for t in traces] == ["one token", f"canvas of {queries[1]}"]
        for trace, q in zip(traces, queries, strict=True):
            (i,) = trace["selectedpoints"]
            p = shown.points[precision, q, BATCHES[choice["batch"]]]
            assert (trace["x"][i], trace["y"][i]) == (p.intensity, p.rate)
            for told in (si(p.bytes, "B"), si(p.flops, "FLOP"), f"batch {p.batch}", precision):
                assert told in trace["text"][i]


def test_the_sliders_start_where_the_figure_is(shown):
    figure = shown.figure()
    start = {s.currentvalue.prefix.removesuffix(": "): s.active for s in figure.layout.sliders}
    assert start == {"canvas": CANVASES.index(64), "batch": BATCHES.index(4), "precision": 0}
    before = [dict(t.to_plotly_json()) for t in figure.data]
    for a, b in zip(before, state_after(figure, start), strict=True):
        assert all(
            list(a[k]) == list(b[k]) if k in ("x", "y", "text", "selectedpoints") else a[k] == b[k]
            for k in b
        )


def test_roofs_measured_and_published(shown):
    roofs = {t.name: t for t in shown.figure().data if t.selectedpoints is None}
    assert set(roofs) == {"H100 bf16", "H100 fp8", "L4 bf16", "L4 fp8", "a <CPU> fp32 measured"}
    assert (
        roofs["a <CPU> fp32 measured"].line.dash == "dash"
        and roofs["H100 bf16"].line.dash == "solid"
    )
    line = roofs["H100 fp8"]
    assert line.y[-1] == HARDWARE["H100"].peak("fp8") and line.x[1] == HARDWARE["H100"].ridge("fp8")
    assert line.y[0] / line.x[0] == pytest.approx(HARDWARE["H100"].bandwidth.value)
    assert HARDWARE["H100"].bandwidth.source in line.text[0]
    only_slope = roofline(
        SMALL, hardware=["H100", "Apple M4 Pro"], canvases=(64,), batches=(1,), canvas=64
    ).figure()
    assert [len(t.x) for t in only_slope.data if t.name == "Apple M4 Pro bandwidth"] == [2]


def test_one_output_has_the_view_and_the_tables(shown):
    bundle = shown._repr_mimebundle_()
    assert set(bundle) == {"text/html", "text/plain"}
    assert len(json.dumps(bundle).encode()) < 100_000
    again = roofline(
        SMALL,
        hardware=("H100", "L4"),
        measured=(CPU,),
        prefix=300,
        canvases=CANVASES,
        batches=BATCHES,
        precisions=NAMES,
        canvas=64,
        batch=4,
        skew=0.8,
    )
    assert json.dumps(again._repr_mimebundle_()) == json.dumps(bundle)  # no random id
    assert shown.tables()._repr_html_() in bundle["text/html"]
    assert repr(shown) == bundle["text/plain"] and "H100" in repr(shown)


def test_the_module_gets_every_point_and_roof(shown):
    data = json.loads(json.dumps(payload(shown)))
    assert len(data["points"]) == len(shown.points)
    for (name, queries, batch), p in shown.points.items():
        told = data["points"][f"{name} {queries} {batch}"]
        assert (told["x"], told["y"]) == pytest.approx((p.intensity, p.rate), rel=1e-5)
        assert (told["bytes"], told["flops"], told["seconds"]) == (
            si(p.bytes, "B"),
            si(p.flops, "FLOP"),
            si(p.seconds, "s"),
        )
        assert [row[0] for row in told["parts"]] == [part for part, *_ in p.parts]
    low, high = data["heights"]
    for roof in data["roofs"]:
        for x, y in roof["corners"]:
            assert data["span"][0] <= x <= data["span"][1] and low <= y <= high
    assert [r["name"] for r in data["roofs"] if r["measured"]] == ["a <CPU> fp32 measured"]
    sourced = {line for r in data["roofs"] for line in r["says"]}
    assert any(HARDWARE["L4"].peaks["fp8"].source in line for line in sourced)
    for ticks in (data["across"], data["up"]):
        assert 3 <= len(ticks) <= 10 and len({label for _, label in ticks}) == len(ticks)


def test_without_script_every_step_and_source_is_in_the_tables(shown):
    markup = shown.tables()._repr_html_()
    tags = set(re.findall(r"<(\w+)", markup))
    # what a sanitizer keeps
    assert tags == {"div", "img", "p", "b", "table", "tr", "th", "td", "details", "summary"}
    assert "http" not in re.sub(r'src="data:[^"]*"', "", markup)
    for p in shown.points.values():
        assert (
            f"{si(p.bytes, 'B')}, {si(p.flops, 'FLOP')}, {p.intensity:.3g} FLOPs a byte, "
            f"{si(p.seconds, 's')}" in markup
        )
    for part, moved, flops, seconds in shown.points["BF16", 64, 4].parts:
        assert (
            f"<td>{si(moved, 'B')}</td><td>{si(flops, 'FLOP')}</td><td>{si(seconds, 's')}</td>"
            in markup
        ), part
    assert "a &lt;CPU&gt; (measured)" in markup and "<CPU>" not in markup
    assert HARDWARE["L4"].peaks["fp8"].source in markup


def test_the_picture_is_an_image_inside_its_frame(shown):
    markup = shown._repr_mimebundle_()["text/html"]
    svg = base64.b64decode(
        re.search(r'src="data:image/svg\+xml;base64,([^"]+)"', markup)[1]
    ).decode()
    root = ElementTree.fromstring(svg)
    name = "{http://www.w3.org/2000/svg}"
    _, _, wide, high = (float(v) for v in root.get("viewBox").split())
    circles = root.findall(f"{name}circle")
    assert (
        len(circles) == 2 * len(BATCHES)
        and len([c for c in circles if c.get("fill") != "none"]) == 2
    )
    lines = [
        pair.split(",")
        for line in root.findall(f"{name}polyline")
        for pair in line.get("points").split()
    ]
    for x, y in [(c.get("cx"), c.get("cy")) for c in circles] + lines:
        assert 0 <= float(x) <= wide and 0 <= float(y) <= high
    assert "a <CPU> fp32" in [t.text for t in root.findall(f"{name}text")]
    assert re.search(r'alt="Roofline on H100[^"]+"', markup)


def test_a_cpu_alone_shows_the_small_model_in_float32():
    view = roofline(SMALL, hardware=CPU, canvases=(64,), batches=(1,), canvas=64, prefix=100)
    assert view.precisions == ("FP32",)
    assert view.points["FP32", 1, 1].bytes > 3.9 * SMALL.vocab_size * SMALL.hidden_size


@pytest.mark.parametrize(
    ("value", "told"),
    [(0, "0 B"), (999, "999 B"), (1.5e9, "1.5 GB"), (2e-6, "2 µB"), (3e21, "3e+06 PB")],
)
def test_units(value, told):
    assert si(value, "B") == told


def test_wrong_arguments_are_named():
    few = dict(canvases=(64,), batches=(1,), canvas=64)
    with refused("canvas", "256", "64"):
        roofline(SMALL, **(few | {"canvas": 256}))
    with refused("batch", "2"):
        roofline(SMALL, **few, batch=2)
    with refused("hardware"):
        roofline(SMALL, hardware=(), **few)
    with refused("name", "TPU"):
        roofline(SMALL, hardware="TPU", **few)
    with refused("precisions", "INT3"):
        roofline(SMALL, precisions=("INT3",), **few)
    with refused("precisions", "M4 Pro"):
        roofline(SMALL, hardware="Apple M4 Pro", **few)
    with refused("dtype", "fp4"):
        roofline(SMALL, precisions=("NVFP4",), **few)


def test_plotly_is_imported_only_when_a_figure_is_asked_for():
    code = "import sys, diffgemma_lite.view, diffgemma_lite.cost; print('plotly' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert done.stdout.strip() == "False", done.stderr
