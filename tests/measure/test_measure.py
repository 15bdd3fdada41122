"""Measuring: what is timed is the step it says, what is recorded is never lost, and a recording is
shown without a model.

No test looks at how long anything took.
"""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
import torch
from tiny import B, C, generator, random_ids, refused, sampler, tiny

from diffgemma_lite import Config, DiffusionGemma, generate, generate_autoregressive
from diffgemma_lite.cost import active_parameters, by_part, parameters, step_cost
from diffgemma_lite.measure import MODELS, SECTIONS, __main__, record, sections
from diffgemma_lite.measure.__main__ import main
from diffgemma_lite.measure.answers import answer
from diffgemma_lite.measure.device import (
    beyond_cache,
    cache_bytes,
    high_water,
    matmul_peak,
    moving,
    timed,
)
from diffgemma_lite.measure.provenance import ROOT, describe, file_name, run_provenance
from diffgemma_lite.measure.recording import Recording
from diffgemma_lite.measure.replay import report, step_rows, table
from diffgemma_lite.measure.steps import (
    LAPTOP,
    breakdown,
    dense_twin,
    measure_step,
    random_model,
    step_work,
)

CPU = torch.device("cpu")
QUIET = dict(device="cpu", say=lambda _: None)


# ---- the device ----------------------------------------------------------------------------------


def test_work_is_warmed_up_and_repeated():
    calls = []
    timing = timed(lambda: calls.append(1), CPU, seconds=0.0, least=4, warm=3)
    assert len(calls) == 3 + 4 and timing.repeats == 4
    assert 0 <= timing.least <= timing.low <= timing.median <= timing.high
    assert timed(lambda: None, CPU, seconds=60.0, most=6).repeats == 6
    with refused("least", "1"):
        timed(lambda: None, CPU, least=1)


def test_bytes_moved_are_those_of_the_buffers():
    copy, moved = moving("copy", 2**16, CPU)
    assert moved == 2**16 and copy().unique().tolist() == [1.0]
    read, moved = moving("read", 2**16, CPU)
    assert moved == 2**16 and read().tolist() == [4096.0] * 4
    with refused("what", "write", "copy"):
        moving("write", 8, CPU)
    assert beyond_cache(CPU) >= max(2**28, 8 * cache_bytes(CPU))


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_the_rate_of_a_product_is_2_n_cubed_over_its_median(dtype):
    before = torch.get_float32_matmul_precision()
    found = matmul_peak(dtype, 32, CPU, seconds=0.0)
    assert found["rate"] * found["timing"]["median"] == pytest.approx(2 * 32**3)
    assert torch.get_float32_matmul_precision() == before


@pytest.mark.skipif(
    sys.platform != "linux", reason="the high-water mark can be reset on Linux only"
)
def test_the_high_water_mark_sees_what_was_freed_again():
    with high_water(CPU) as small:
        pass
    with high_water(CPU) as large:
        torch.ones(2**26).sum()
    assert large["bytes"] - small["bytes"] > 2**27


# ---- steps ---------------------------------------------------------------------------------------


@torch.inference_mode()
def test_what_is_timed_is_a_whole_step():
    model = tiny()
    step = step_work(model, "canvas", queries=5, batch=B, prefix=12)()
    again = step_work(model, "canvas", queries=5, batch=B, prefix=12)()
    assert step.sampled.shape == (B, 5) and torch.equal(step.scaled_logits, again.scaled_logits)
    token, cache = step_work(model, "autoregressive", queries=1, batch=B, prefix=12)()
    assert token.shape == (B,) and cache.length == 13
    assert step_work(model, "encode", queries=5, batch=B, prefix=12)().length == 17
    with refused("mode", "draft", "canvas"):
        step_work(model, "draft", queries=1, batch=1, prefix=3)


def test_self_conditioning_is_inside_the_timed_canvas_step():
    seen = []
    model = tiny().requires_grad_(False)
    model.self_conditioning.register_forward_hook(
        lambda _m, inputs, _out: seen.append(float(inputs[1].abs().sum()))
    )
    step_work(model, "canvas", queries=3, batch=1, prefix=4)()
    assert seen and seen[0] > 0


def test_a_measured_step_says_how_many_experts_it_touched():
    found = measure_step(
        tiny(), "autoregressive", queries=1, batch=1, prefix=4, seconds=0.0, least=2
    )
    assert found["distinct"] == Config.preset("tiny").top_k_experts
    assert found["timing"]["repeats"] == 2 and found.get("memory", 1) > 0


def test_the_breakdown_has_the_parts_of_the_cost_model_and_leaves_no_trace():
    model = tiny()
    names = set(by_part(step_cost(model.config, prefix=12, queries=C, batch=B)))
    work = step_work(model, "canvas", queries=C, batch=B, prefix=12)
    with torch.inference_mode():
        before = work().scaled_logits
    found = breakdown(model, work, repeats=2)
    assert names <= set(found["parts"]) <= names | {"rest", "interpreter"}
    assert all(found["parts"][name] > 0 for name in names)
    assert sum(found["parts"].values()) >= 0.99 * found["wall"]
    assert "logits" not in vars(model) and not model.layers[0].mlp._forward_hooks
    with torch.inference_mode():
        assert torch.equal(work().scaled_logits, before)


def test_rates_count_the_tokens_kept_after_the_end_token():
    model, ids, settings = tiny(), random_ids(B, 6), sampler()
    rows = [generator(i) for i in range(B)]
    written = generate(model, ids, settings, max_new_tokens=2 * C, generator=rows).tokens
    end = int(written[0, 3])
    rows, seen = [generator(i) for i in range(B)], []
    out = generate(
        model,
        ids,
        settings,
        max_new_tokens=2 * C,
        eos_token_id=end,
        generator=rows,
        on_step=seen.append,
    )
    passes = len(seen)
    found = answer(model, ids, "canvas", settings, tokens=2 * C, end=end)
    kept = int(out.lengths.sum())
    assert found["tokens_kept"] == kept < 2 * C * B
    assert found["total_rate"] * found["seconds"] == pytest.approx(kept)
    assert found["user_rate"] * B == pytest.approx(found["total_rate"])
    assert found["positions_rate"] * found["seconds"] == pytest.approx(B * C * passes)
    assert 0 < found["first_seconds"] <= found["seconds"]
    single = answer(model, ids, "autoregressive", settings, tokens=5, end=None)
    assert (
        single["tokens_kept"]
        == 5 * B
        == int(generate_autoregressive(model, ids, max_new_tokens=5).lengths.sum())
    )
    assert single["first_seconds"] < single["seconds"] and single["tokens_per_forward"] == 1
    with refused("mode", "draft"):
        answer(model, ids, "draft", settings, tokens=5, end=None)


def test_the_models_on_the_scales():
    """The dense twin does a token's work; the model with experts is beyond a laptop's cache."""
    twin, active = dense_twin(LAPTOP), sum(active_parameters(LAPTOP).values())
    assert sum(active_parameters(twin).values()) == pytest.approx(active, rel=0.01)
    assert 4 * sum(parameters(LAPTOP).values()) > 3e8
    state = torch.random.get_rng_state()
    a, b = random_model(Config.preset("tiny"), CPU), random_model(Config.preset("tiny"), CPU)
    assert torch.equal(a.embed_tokens.weight, b.embed_tokens.weight) and torch.equal(
        torch.random.get_rng_state(), state
    )


# ---- recording -----------------------------------------------------------------------------------


def points(calls, failing=()):
    def measured(n):
        calls.append(n)
        if n in failing:
            raise failing[n]
        return {"rate": float(n)}

    return [({"n": n}, lambda n=n: measured(n)) for n in (1, 2, 3)]


def test_a_recording_goes_on_where_it_ended(tmp_path):
    out, calls = tmp_path / "r.json", []
    with pytest.raises(KeyboardInterrupt):
        record(
            out,
            sections=["peak"],
            points={"peak": iter(points(calls, {2: KeyboardInterrupt()}))},
            **QUIET,
        )
    assert [key["n"] for key, _ in Recording.load(out).points("peak")] == [1]
    calls.clear()
    record(
        out,
        sections=["peak"],
        points={"peak": iter(points(calls, {3: RuntimeError("no memory\nat all")}))},
        **QUIET,
    )
    saved = Recording.load(out)
    assert calls == [2, 3] and [p["run"] for p in saved.sections["peak"]["points"]] == [0, 1, 1]
    assert saved.sections["peak"]["points"][2]["result"] == {"failed": "RuntimeError: no memory"}
    calls.clear()
    record(out, sections=["peak"], points={"peak": iter(points(calls))}, **QUIET)
    assert calls == []
    record(out, sections=["peak"], points={"peak": iter(points(calls))}, retry=True, **QUIET)
    assert calls == [3] and Recording.load(out).find("peak", n=3) == {"rate": 3.0}


def test_a_section_stops_at_its_limit_and_says_so(tmp_path):
    calls, said = [], []
    some = {"peak": iter(points(calls))}
    made = record(
        tmp_path / "r.json",
        sections=["peak"],
        limit=-1.0,
        device="cpu",
        say=said.append,
        points=some,
    )
    assert calls == [] and made.sections == {} and "again" in said[0]


def test_what_cannot_be_recorded_is_refused(tmp_path):
    with refused("sections", "warp", "bandwidth"):
        record(sections=["warp"], **QUIET)
    out = tmp_path / "r.json"
    record(out, sections=["peak"], points={"peak": iter(points([]))}, **QUIET)
    data = json.loads(out.read_text())
    out.write_text(json.dumps(data | {"device": data["device"] | {"name": "another"}}))
    with refused("out", "another"):
        record(out, sections=["peak"], **QUIET)


def test_every_section_is_tried_on_a_tiny_model(monkeypatch):
    monkeypatch.setattr(sections, "MODELS", {"tiny": Config.preset("tiny")})
    monkeypatch.setattr(sections, "beyond_cache", lambda _device: 2**20)
    some = {"steps": sections.step_points(CPU, 0.0, ("tiny",), (1, C), (1, 2), least=2)}
    some["peak"] = iter(
        [({"dtype": "float32", "n": 16}, lambda: matmul_peak("float32", 16, CPU, seconds=0.0))]
    )
    some["breakdown"] = iter(list(sections.breakdown_points(CPU, 0.0))[:2])
    some["answers"] = iter([])  # the shipped model's own test is above: this only names it
    made = record(seconds=0.0, points=some, **QUIET)
    assert not [p for s in made.sections.values() for p in s["points"] if "failed" in p["result"]]
    # and no 26B shape on a CPU
    assert {"bandwidth", "peak", "steps", "breakdown"} == set(made.sections)
    rows = step_rows(made, Config.preset("tiny"), "tiny", made.hardware(), mode="canvas", batch=1)
    assert [r["queries"] for r in rows] == [1, C]
    for r in rows:
        assert r["ratio"] == pytest.approx(r["timing"]["median"] / r["floor"])
        assert r["positions_rate"] * r["timing"]["median"] == pytest.approx(r["queries"])
    assert rows[0]["intensity"] < rows[1]["intensity"]
    assert {key["model"] for key, _ in SECTIONS["answers"][1](CPU, 0.0)} == {"python-small"}


def test_a_recording_is_shown_from_its_file_alone(tmp_path, capsys, monkeypatch):
    for module in (sections, __main__):
        monkeypatch.setattr(module, "MODELS", {"tiny": Config.preset("tiny")})
    peak = [({"dtype": "float32", "n": 16}, lambda: matmul_peak("float32", 16, CPU, seconds=0.0))]
    monkeypatch.setitem(
        SECTIONS,
        "steps",
        ("s", lambda d, s: sections.step_points(d, 0.0, ("tiny",), (C,), (1,), least=2)),
    )
    monkeypatch.setitem(SECTIONS, "peak", ("p", lambda d, s: iter(peak)))
    monkeypatch.setattr(sections, "beyond_cache", lambda _device: 2**20)
    out = tmp_path / "toy.json"
    names = ["bandwidth", "peak", "steps"]
    chosen = [word for name in names for word in ("--section", name)]
    assert main(["record", "--out", str(out), "--device", "cpu", "--seconds", "0", *chosen]) == 0
    command = Recording.load(out).runs[0]["command"]
    assert command == (
        "python -m diffgemma_lite.measure record --out assets/recordings/toy.json "
        "--device cpu --seconds 0.0 --section bandwidth --section peak --section steps"
    )
    capsys.readouterr()

    def no_model(*_args, **_kwargs):
        raise AssertionError("a replay builds no model")

    monkeypatch.setattr(DiffusionGemma, "__init__", no_model)
    assert main(["replay", str(out)]) == 0
    shown = capsys.readouterr().out
    for words in (
        "read from memory",
        "product of 16",
        "steps of the model 'tiny'",
        "median / floor",
        command,
        "load ",
    ):
        assert words in shown
    saved = Recording.load(out)
    # no section, no fault
    assert report(Recording(saved.device, saved.runs), MODELS).startswith(saved.device["name"])


def test_provenance_is_complete_and_names_no_folder():
    device, said = describe(CPU), run_provenance(CPU, "a command")
    assert device["cores"] >= 1 and said["threads"] == torch.get_num_threads()
    words = json.dumps([device, said])
    assert not [place for place in (str(ROOT), "/home", "/root") if place in words]
    assert file_name({"name": "AMD EPYC (x)", "cores": 2, "kind": "cpu"}) == "amd-epyc-x-2-cores"
    assert file_name({"name": "NVIDIA H200", "cores": 132, "kind": "cuda"}) == "nvidia-h200"


def test_the_command_explains_itself():
    command = [sys.executable, "-m", "diffgemma_lite.measure", "record", "--help"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0 and "--section" in done.stdout


def test_a_table_has_columns_of_equal_width():
    assert table(["a", "long"], [[10, "x"]]) == " a  long\n10     x"
