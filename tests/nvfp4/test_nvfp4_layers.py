"""Layers and models in NVFP4: they compute what the unpacked weights say, and the float model never
notices.
"""

from __future__ import annotations

import copy

import pytest
import torch
import torch.nn.functional as F
from tiny import generator, logits, random_ids, refused, tiny
from torch import nn

from diffgemma_lite import SamplerConfig, generate
from diffgemma_lite.cost import parameters
from diffgemma_lite.nvfp4 import (
    PARTS,
    NVFP4Linear,
    calibrate,
    quantize,
    quantize_model,
    round_model,
    stored_bytes,
)
from diffgemma_lite.nvfp4.layers import PACKED, NVFP4Experts, rounded_input
from diffgemma_lite.parts import matrices

PUBLIC = ("experts", "dense_mlp")


def linear(i: int = 40, o: int = 24, bias: bool = False) -> nn.Linear:
    made = nn.Linear(i, o, bias=bias)
    nn.init.normal_(made.weight, generator=generator())
    return made


def calibrated(model, parts):
    return calibrate(model, logits, parts)


# ---- one layer -----------------------------------------------------------------------------------


@pytest.mark.parametrize("bias", [False, True])
def test_a_linear_layer_multiplies_by_the_unpacked_weight_at_any_rank_and_stride(bias):
    layer = linear(bias=bias)
    packed = NVFP4Linear.from_linear(layer)
    weight = quantize(layer.weight.detach()).dequantize()
    x = torch.randn(3, 2, 5, 40, generator=generator())
    for rows in (x, x[0], x[0, 0], x[0, 0, 0], x.transpose(0, 2), x[:, :, ::2], x.new_empty(0, 40)):
        assert torch.equal(packed(rows), F.linear(rows, weight, layer.bias))
    assert not hasattr(packed, "weight")  # packed bytes cannot pass as weights


def test_rounded_inputs_take_the_calibrated_tensor_scale_and_their_own_block_scales():
    layer, x = linear(), torch.randn(2, 3, 40, generator=generator())
    scale = x.abs().max() / (6 * 448)
    packed = NVFP4Linear.from_linear(layer, scale)
    seen = quantize(x, tensor_scale=scale).dequantize()
    assert torch.equal(packed(x), F.linear(seen, quantize(layer.weight.detach()).dequantize()))
    assert torch.equal(rounded_input(x[1, 2], scale[None]), seen[1, 2])  # no row sees another
    assert torch.equal(rounded_input(x.transpose(0, 1), scale[None]), seen.transpose(0, 1))
    loud = rounded_input(10 * x, scale[None])
    # saturates, stays finite
    assert float(loud.abs().max()) == pytest.approx(float(x.abs().max()), rel=1e-5)


def test_gradients_reach_the_input():
    x = torch.randn(4, 40, generator=generator(), requires_grad=True)
    for scale in (None, x.detach().abs().max() / 2688):
        packed = NVFP4Linear.from_linear(linear(), scale)
        (gradient,) = torch.autograd.grad(packed(x).sum(), x)
        assert torch.allclose(gradient, packed.q.dequantize().sum(0).expand(4, -1))


def test_a_cast_or_a_move_never_changes_codes_or_scales():
    packed = NVFP4Linear.from_linear(linear(bias=True), torch.tensor(0.0123))
    before = {n: b.clone() for n, b in packed.named_buffers()}
    casts = [lambda m, d=d: m.to(d) for d in (torch.bfloat16, torch.float16, torch.float64, "cpu")]
    for change in (*casts[:3], copy.deepcopy, casts[3]):
        packed = change(packed)
        for name, b in packed.named_buffers():
            assert b.dtype == before[name].dtype and torch.equal(
                b.view(torch.uint8), before[name].view(torch.uint8)
            ), name
    assert packed.dtype == packed.bias.dtype == torch.float64
    again = NVFP4Linear.from_linear(linear(bias=True), torch.tensor(1.0))
    again.load_state_dict(packed.state_dict())
    assert torch.equal(
        again.q.dequantize(), packed.q.dequantize()
    ) and again.input_scale.item() == pytest.approx(0.0123)
    assert packed.to("meta").packed.is_meta


# ---- experts -------------------------------------------------------------------------------------


def test_experts_have_a_tensor_scale_for_each_matrix_and_their_two_paths_agree():
    experts = copy.deepcopy(tiny().layers[0].experts)
    with torch.no_grad():
        experts.gate_up_proj[:, :16] *= 30  # gate and up must not share a scale
    packed = NVFP4Experts.from_experts(experts)
    assert [w.tensor_scale.shape for w in (packed.gate, packed.up, packed.down)] == [(4,)] * 3
    assert float((packed.gate.tensor_scale / packed.up.tensor_scale).min()) > 5
    for e in range(4):
        own = torch.cat(
            [quantize(half).dequantize() for half in experts.gate_up_proj.detach()[e].chunk(2)]
        )
        assert torch.equal(packed.gate_up_proj[e], own)
    x, index = (
        torch.randn(6, 32, generator=generator()),
        torch.tensor([[0, 1], [2, 0], [1, 2], [0, 2], [2, 1], [1, 0]]),
    )
    weights = torch.rand(6, 2, generator=generator())
    assert torch.allclose(
        packed.loop(x, weights, index), packed.grouped(x, weights, index), atol=1e-5
    )
    with torch.no_grad():
        experts.gate_up_proj.copy_(packed.gate_up_proj)
        experts.down_proj.copy_(packed.down_proj)
    assert torch.equal(packed.loop(x, weights, index), experts.loop(x, weights, index))
    packed.path = "loop"
    assert torch.equal(packed(x, weights, index), packed.loop(x, weights, index))


# ---- whole models --------------------------------------------------------------------------------


@pytest.mark.parametrize("parts", [*PARTS, PUBLIC, "everything"])
def test_a_model_is_converted_by_parts_and_the_float_one_is_untouched(parts):
    model = tiny()
    before = {k: v.clone() for k, v in model.state_dict().items()}
    packed = quantize_model(model, parts)
    assert all(torch.equal(v, before[k]) for k, v in model.state_dict().items()) and list(
        before
    ) == list(model.state_dict())
    shared = {t.data_ptr() for t in model.state_dict().values()} & {
        t.data_ptr() for t in packed.state_dict().values()
    }
    assert not shared
    replaced = {n for n, m in packed.named_modules() if isinstance(m, PACKED)}
    assert replaced == set(matrices(model, parts))
    assert torch.equal(logits(packed), logits(round_model(model, parts)))
    assert not torch.equal(logits(packed), logits(model))


def test_the_parts_are_those_of_the_cost_model():
    model = tiny()
    counted = parameters(model.config)
    for part in PARTS:
        held = sum(
            p.numel() for m in matrices(model, part).values() for p in m.parameters(recurse=False)
        )
        # norms and scales are no matrices
        vectors = {"router": 4 * (32 + 4), "self_conditioning": 32}.get(part, 0)
        assert held == counted[part] - vectors, part


def test_a_packed_model_generates_and_is_smaller():
    model = tiny(hidden_size=64, moe_intermediate_size=64)
    packed = quantize_model(model, "everything")
    weights = sum(p.numel() for p in model.parameters())
    assert stored_bytes(model) > 4 * weights and stored_bytes(packed) < 0.72 * weights
    settings = SamplerConfig(max_denoising_steps=3)
    out = generate(packed, random_ids(1, 5), settings, max_new_tokens=8, generator=generator())
    same = generate(
        round_model(model, "everything"),
        random_ids(1, 5),
        settings,
        max_new_tokens=8,
        generator=generator(),
    )
    assert torch.equal(out.tokens, same.tokens)
    lighter = quantize_model(model.to(torch.bfloat16), "everything")
    assert lighter.dtype == torch.bfloat16 and logits(lighter).isfinite().all()
    assert torch.equal(
        logits(copy.deepcopy(packed).to(torch.bfloat16)), logits(packed.to(torch.bfloat16))
    )


def test_calibration_finds_the_largest_input_of_every_matrix():
    model = tiny()
    seen: dict[str, float] = {}
    hooks = [
        m.register_forward_pre_hook(
            lambda m, args, n=n: seen.update({n: max(seen.get(n, 0.0), float(args[0].abs().max()))})
        )
        for n, m in matrices(model, ("attention", "dense_mlp")).items()
    ]
    logits(model)
    for hook in hooks:
        hook.remove()
    scales = calibrated(model, ("attention", "dense_mlp"))
    assert {k: pytest.approx(v / 2688) for k, v in seen.items()} == {
        k: v.item() for k, v in scales.items()
    }
    of_experts = calibrated(model, "experts")
    assert set(of_experts) == {
        f"layers.{i}.experts.{w}" for i in range(4) for w in ("gate_up_proj", "down_proj")
    }
    assert all(v.shape == (4,) and bool((v > 0).all()) for v in of_experts.values())
    assert not any(m._forward_pre_hooks for m in model.modules())


def test_weights_and_inputs_rounded_differ_from_weights_alone_and_stay_close():
    model = tiny()
    alone, both = (
        quantize_model(model, PUBLIC, input_scales=s) for s in (None, calibrated(model, PUBLIC))
    )
    exact, near, far = logits(model), logits(alone), logits(both)
    assert not torch.equal(near, far) and bool(far.isfinite().all())
    assert float((far - exact).std()) < float(exact.std()) and float((near - exact).std()) < float(
        exact.std()
    )


def test_bad_requests_are_named():
    model = tiny()
    for parts in ("heads", (), ("experts", "norms")):
        with refused("parts", "experts"):
            quantize_model(model, parts)
    with refused("model", "already"):
        quantize_model(quantize_model(model, "experts"), "everything")
    with refused("input_scales", "layers.0.experts.gate_up_proj"):
        quantize_model(model, PUBLIC, input_scales=calibrated(model, "dense_mlp"))
    with refused("run", "nothing"):
        calibrate(model, lambda m: None)
    with refused("block", "12"):
        quantize_model(model, block=12)


@pytest.mark.usefixtures("unchecked")
def test_only_a_linear_layer_is_taken_for_one():
    with refused("linear", "Embedding"):
        NVFP4Linear.from_linear(nn.Embedding(3, 4))
