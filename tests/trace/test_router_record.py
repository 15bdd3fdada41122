"""A routing record is what the router did.

Recomputed from its weights, counted by loops, kept by a file.
"""

import json

import numpy as np
import pytest
import torch
from tiny import B, C, V, random_ids, refused, tiny

from diffgemma_lite.trace.router import RoutingRecord, routing_record


@pytest.fixture(scope="module")
def model():
    return tiny(num_experts=6, top_k_experts=2)


@pytest.fixture(scope="module")
def passes(model):
    """A cache, a canvas and the router's inputs of the decoder pass, per layer [B * C, D]."""
    with torch.no_grad():
        cache, canvas = model.encode(random_ids(B, 11)), random_ids(B, C, seed=5)
        belief, inputs = torch.randn(B, C, V, generator=torch.Generator().manual_seed(1)) * 4, []
        hooks = [
            b.router.register_forward_pre_hook(lambda _, given: inputs.append(given[0]))
            for b in model.layers
        ]
        model.decode(canvas, cache, belief)
        [h.remove() for h in hooks]
    return cache, canvas, belief, inputs


@pytest.mark.parametrize("row", [0, 1])
def test_experts_weights_and_probabilities_are_the_routers(model, passes, row):
    cache, canvas, belief, inputs = passes
    record = routing_record(model, canvas, cache, belief, row=row)
    assert np.array_equal(record.ids, canvas[row].numpy()) and record.num_experts == 6
    for layer, (block, x) in enumerate(zip(model.layers, inputs, strict=True)):
        for p in range(C):
            router, own = block.router, x.view(B, C, -1)[row, p]
            normed = own / (own.pow(2).mean() + model.config.rms_norm_eps).sqrt()
            probs = (
                (router.proj.weight @ (normed * router.scale) * len(own) ** -0.5)
                .softmax(-1)
                .detach()
            )
            best = sorted(range(6), key=lambda e: -float(probs[e]))[:2]
            assert record.index[layer, p].tolist() == best
            assert np.allclose(record.probs[layer, p], probs[best], atol=1e-5)
            expected = probs[best] / probs[best].sum() * router.per_expert_scale[best]
            assert np.allclose(record.weights[layer, p], expected.detach(), atol=1e-5)


def test_counts_are_those_of_a_loop(model, passes):
    cache, canvas, belief, _ = passes
    record = routing_record(model, canvas, cache, belief)
    for layer in range(4):
        seen: set[int] = set()
        for p in range(C):
            seen |= set(record.index[layer, p].tolist())
            assert record.distinct[layer, p] == len(seen)
            assert record.uniform[p] == pytest.approx(6 * (1 - (1 - 2 / 6) ** (p + 1)))
        assert record.expert_load[layer].tolist() == [
            int((record.index[layer] == e).sum()) for e in range(6)
        ]
    assert record.expert_load.shape == (4, 6) and (record.expert_load.sum(-1) == C * 2).all()
    assert record.even_share == pytest.approx(record.expert_load.mean())


def test_recording_is_pure(model, passes):
    cache, canvas, belief, _ = passes
    before = canvas.clone()
    first, again = (routing_record(model, canvas, cache, belief) for _ in range(2))
    assert all(
        np.array_equal(getattr(first, n), getattr(again, n)) for n in ("index", "weights", "probs")
    )
    assert torch.equal(canvas, before) and not model.layers[0]._forward_pre_hooks
    other = routing_record(model, canvas, cache)  # without self-conditioning it is another pass
    assert not np.array_equal(first.weights, other.weights)


def test_texts_may_be_a_function_or_a_mapping(model, passes):
    cache, canvas, _, _ = passes
    ids = sorted({int(i) for i in canvas[0]})
    assert routing_record(model, canvas, cache).texts == {}
    by_function = routing_record(model, canvas, cache, texts=lambda i: f"w{i}").texts
    assert (
        by_function == routing_record(model, canvas, cache, texts={i: f"w{i}" for i in ids}).texts
    )
    assert by_function == {i: f"w{i}" for i in ids}


def test_a_file_keeps_it(model, passes, tmp_path):
    cache, canvas, belief, _ = passes
    record = routing_record(model, canvas, cache, belief, texts=lambda i: f"w{i}", meta={"step": 3})
    back = RoutingRecord.load(record.save(tmp_path / "routing.json"))
    for name in ("ids", "index", "weights", "probs", "uniform", "distinct", "expert_load"):
        assert np.array_equal(getattr(back, name), getattr(record, name)), name
    assert back.texts == record.texts and back.meta == {"step": 3} and back.num_experts == 6
    data = json.loads((tmp_path / "routing.json").read_text())
    (tmp_path / "other.json").write_text(json.dumps(data | {"version": 99}))
    for name in ("other.json", "missing.json"):
        with refused("path", name):
            RoutingRecord.load(tmp_path / name)


@pytest.mark.parametrize("row", [-1, B, "0"])
def test_a_row_that_is_not_there_is_refused(model, passes, unchecked, row):
    cache, canvas, _, _ = passes
    with refused("row", f"{row!r}"):
        routing_record(model, canvas, cache, row=row)
