"""The recorder of the 26B shape, run at a tiny size on the CPU.

The same lines that a GPU session runs.
"""

from __future__ import annotations

import pytest
import torch
from recorded import TIME, made

from diffgemma_lite import Config
from diffgemma_lite.cost import PRECISIONS, floor, parameters, step_cost
from diffgemma_lite.cost.hardware import Hardware, Sourced
from diffgemma_lite.measure import record
from diffgemma_lite.measure.large import (
    against_floor,
    derived_rates,
    enough_memory,
    points,
    reference_model,
    reference_work,
)
from diffgemma_lite.measure.replay import report

CPU, TINY = torch.device("cpu"), Config.preset("tiny")
GPU = Hardware("toy GPU", Sourced(1e9, "made up"), {"bf16": Sourced(1e12, "made up")})


@pytest.fixture(scope="module")
def recorded():
    """Compilation stands for itself here.

    What is compiled, and with which settings, is noted, and the plain pass runs.
    """
    asked = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            torch, "compile", lambda f, **settings: asked.append((f.__name__, settings)) or f
        )
        patch.setattr(torch.compiler, "cudagraph_mark_step_begin", lambda: asked.append("begins"))
        patch.setattr(torch.compiler, "reset", lambda: None)
        some = points(TINY, CPU, prefix=12, batches=(1, 2), seconds=0.0)
        yield (
            record(
                sections=["published_shape"],
                device="cpu",
                say=lambda _: None,
                points={"published_shape": some},
            ),
            asked,
        )


def test_every_implementation_mode_and_batch_is_measured(recorded):
    made_here, asked = recorded
    found = {
        (key["who"], key["how"], key["mode"], key["batch"])
        for key, _ in made_here.points("published_shape")
    }
    kinds = [("ours", "eager"), ("ours", "compiled"), ("transformers", "eager")]
    timed = {
        (*kind, mode, batch)
        for kind in kinds
        for mode in ("autoregressive", "canvas", "encode")
        for batch in (1, 2)
    }
    assert found == timed | {
        ("ours", "profiled", mode, b) for mode in ("autoregressive", "canvas") for b in (1, 2)
    }
    assert not [
        p for p in made_here.sections["published_shape"]["points"] if "failed" in p["result"]
    ]
    compiled = [entry for entry in asked if entry != "begins"]
    assert [name for name, _ in compiled] == ["next_token_logits", "decode", "encode"]
    # graphs on CUDA only
    assert all(settings == {"backend": "inductor", "dynamic": False} for _, settings in compiled)
    assert "begins" in asked


def test_transformers_model_has_the_same_sizes_and_its_cache_stands_still():
    reference = reference_model(TINY, CPU, torch.bfloat16)
    text = sum(p.numel() for name, p in reference.named_parameters() if "vision" not in name)
    assert text == sum(parameters(TINY).values())
    assert reference.dtype == torch.bfloat16
    with torch.inference_mode():
        again = reference_work(reference, "encode", queries=8, batch=2, prefix=12)
        assert torch.equal(again(), again())  # a cache that had grown would give other states
        assert reference_work(
            reference, "autoregressive", queries=1, batch=2, prefix=12
        )().shape == (2,)
        assert reference_work(
            reference, "canvas", queries=8, batch=2, prefix=12
        )().sampled.shape == (2, 8)


def test_steps_stand_beside_their_floor(recorded):
    made_here, _ = recorded
    rows = against_floor(made_here, TINY, GPU)
    assert len(rows) == 18
    for row in rows:
        key = row["key"]
        size = {name: key[name] for name in ("prefix", "queries", "batch", "mode")}
        ops = step_cost(TINY, **size, experts=row["distinct"])
        assert row["floor"] == pytest.approx(floor(ops, GPU, PRECISIONS["BF16"].dtype))
        assert row["ratio"] == pytest.approx(row["seconds"] / row["floor"])
    ours = {
        (r["key"]["mode"], r["key"]["batch"]): r["distinct"]
        for r in rows
        if r["key"]["who"] == "ours"
    }
    assert all(r["distinct"] == ours[r["key"]["mode"], r["key"]["batch"]] for r in rows)


def test_rates_are_what_the_steps_add_up_to():
    recording = made()
    for mode, seconds in (("canvas", 2.0), ("encode", 1.0), ("autoregressive", 0.5)):
        key = dict(who="ours", how="eager", mode=mode, queries=1, batch=3, prefix=9)
        recording.add(
            "published_shape",
            "made up",
            key,
            {"timing": TIME | {"median": seconds}, "distinct": 2.0},
        )
    (row,) = derived_rates(recording, canvas=100)
    assert row["canvas"] == {n: pytest.approx(3 * 100 / (n * 2.0 + 1.0)) for n in (12, 16, 48)}
    assert row["autoregressive"] == 6.0
    recording.add(
        "peak", "multiplying", {"dtype": "bfloat16", "n": 8}, {"rate": 500.0, "timing": TIME}
    )
    assert "tokens/s at 48 steps" in report(recording, {})


def test_only_a_large_gpu_is_asked(monkeypatch):
    assert not enough_memory(TINY, CPU)
    properties = type("P", (), {"total_memory": 141e9})
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _device: properties)
    assert enough_memory(Config.preset("26b_a4b"), torch.device("cuda"))
    properties.total_memory = 48e9
    assert not enough_memory(Config.preset("26b_a4b"), torch.device("cuda"))
