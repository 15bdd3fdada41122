"""What `observe` reports is what the pass did."""

import pytest
import torch

from diffgemma_lite import Config, DiffusionGemma
from diffgemma_lite.trace.observe import attention_weights, observe


@pytest.fixture(scope="module")
def model():
    torch.manual_seed(0)
    model = DiffusionGemma(Config.preset("tiny")).eval()
    for p in model.parameters():
        torch.nn.init.normal_(p, 1.0 if p.dim() == 1 else 0.0, 0.3)
    return model


def padded():
    ids, mask = torch.randint(3, 97, (2, 13)), torch.ones(2, 13, dtype=torch.long)
    mask[0, :4] = 0
    return ids, mask


@torch.no_grad()
def test_weights_times_values_are_the_layers_output(model):
    """The written-out weights give the fused kernel's result on every layer, causal and
    bidirectional, with padding.
    """
    ids, mask = padded()
    caught = []
    hooks = [
        b.self_attn.register_forward_hook(lambda m, i, o: caught.append((m, i, o)))
        for b in model.layers
    ]
    model.decode(torch.randint(0, 97, (2, 8)), model.encode(ids, mask))
    model.encode(ids)
    [h.remove() for h in hooks]
    assert len(caught) == 3 * len(model.layers)
    for layer, (x, rope, prefix, allowed), (out, _, v) in caught:
        weights = attention_weights(layer, x, rope, prefix, allowed)
        values = v if prefix is None else torch.cat([prefix[1], v], 2)
        mixed = weights @ values.repeat_interleave(layer.group, 1)
        expected = layer.o_proj(mixed.transpose(1, 2).flatten(2))
        visible = weights.sum(-1).sum(1) > 0  # padding queries see nothing
        torch.testing.assert_close(out[visible], expected[visible], rtol=1e-4, atol=1e-5)


@torch.no_grad()
def test_routing_is_the_routers_and_numbers_do_not_change(model):
    ids, mask = padded()
    cache, canvas = model.encode(ids, mask), torch.randint(0, 97, (2, 8))
    plain = model.decode(canvas, cache)
    with observe(model) as seen:
        model.encode(ids, mask)
        watched = model.decode(canvas, cache)
    assert torch.equal(plain, watched) and torch.equal(plain, model.decode(canvas, cache))
    layers, k = len(model.layers), model.config.top_k_experts
    assert len(seen.expert_index) == len(seen.attention) == len(seen.first_key) == layers
    for index, probs in zip(seen.expert_index, seen.expert_probs, strict=True):
        assert index.shape == (16, k) and torch.equal(index, probs.topk(k, -1).indices)
    w = model.config.sliding_window
    assert seen.first_key == [
        13 - (w - 1) if model.config.is_sliding(i) else 0 for i in range(layers)
    ]
    for weights, first in zip(seen.attention, seen.first_key, strict=True):
        assert weights.shape == (2, 4, 8, 13 + 8 - first)
        torch.testing.assert_close(weights.sum(-1), torch.ones(2, 4, 8))
        assert (weights[0, :, :, : max(0, 4 - first)] == 0).all()  # padding gets nothing
