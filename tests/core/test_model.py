"""The model: what a block wires to what, one set of weights run two ways, self-conditioning, and
construction.
"""

import copy
import inspect

import pytest
import torch
from tiny import C, V, exact, random_ids, tiny

from diffgemma_lite import Config, DiffusionGemma, generate, generate_autoregressive, noise, sampler
from diffgemma_lite.attention import KVCache

IDS, CANVAS = random_ids(2, 12), random_ids(2, C, seed=1)


def run(model) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """(decoder logits, encoder logits, last keys): everything the two sides say."""
    with torch.no_grad():
        logits, cache = model.next_token_logits(IDS)
        return model.decode(CANVAS, cache), logits, cache.keys[-1]


@torch.no_grad()
def test_what_each_branch_of_a_block_reads():
    """Pitfall 5: router the raw residual after attention, dense MLP one norm of it, experts
    another; and the sum after.
    """
    model, seen = tiny(), {}
    block = model.layers[0]

    def keep(name):
        return lambda _, inputs, output: seen.__setitem__(name, (inputs, output))

    for name in ("self_attn", "mlp", "router", "experts"):
        getattr(block, name).register_forward_hook(keep(name))
    block.register_forward_hook(keep("block"))
    model.encode(IDS)
    x, out = seen["block"][0][0], seen["block"][1][0]
    attended = seen["self_attn"][1][0]
    assert torch.equal(seen["self_attn"][0][0], block.input_layernorm(x))
    h = x + block.post_attention_layernorm(attended)
    assert torch.equal(seen["router"][0][0], h.flatten(0, 1))
    assert torch.equal(seen["mlp"][0][0], block.pre_feedforward_layernorm(h))
    assert torch.equal(seen["experts"][0][0], block.pre_feedforward_layernorm_2(h.flatten(0, 1)))
    assert torch.equal(seen["experts"][0][1], seen["router"][1][0])
    assert torch.equal(seen["experts"][0][2], seen["router"][1][1])
    dense = block.post_feedforward_layernorm_1(seen["mlp"][1])
    routed = block.post_feedforward_layernorm_2(seen["experts"][1].view_as(h))
    torch.testing.assert_close(
        out,
        (h + block.post_feedforward_layernorm(dense + routed)) * block.encoder_layer_scalar,
        atol=1e-5,
        rtol=1e-5,
    )


@torch.no_grad()
def test_embedding_head_and_soft_cap_in_the_model():
    """Pitfall 12: the first block reads embedding * sqrt(D).

    The head is the embedding; logits stay inside the cap.
    """
    model, seen = tiny(), []
    model.layers[0].register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0]))
    hidden, cache = model.encode_hidden(IDS)
    torch.testing.assert_close(seen[0], model.embed_tokens.weight[IDS] * 32**0.5)
    raw = hidden @ model.embed_tokens.weight.T
    torch.testing.assert_close(
        model.logits(hidden), 30 * torch.tanh(raw / 30), atol=1e-4, rtol=1e-4
    )
    assert raw.abs().max() > 5  # so that the cap shows
    assert torch.equal(model.next_token_logits(IDS)[0], model.logits(hidden))
    assert torch.equal(
        model.logits(model.decode_hidden(CANVAS, cache)), model.decode(CANVAS, cache)
    )


@torch.no_grad()
def test_self_conditioning_zero_signal_and_zero_logits():
    """Pitfall 15: none is an exact zero signal, zero logits are the mean embedding.

    The post-norm runs in both cases.
    """
    model, seen = tiny(), []
    cache, sc = model.encode(IDS), model.self_conditioning
    sc.register_forward_hook(lambda _, inputs, output: seen.append((*inputs, output)))
    none = model.decode(CANVAS, cache)
    zero = model.decode(CANVAS, cache, torch.zeros(2, C, V))
    (x, signal, out), (_, mean, conditioned) = seen
    assert signal.abs().sum() == 0
    torch.testing.assert_close(x, model.embed_tokens(CANVAS))
    # the norm alone
    torch.testing.assert_close(out, x * (x.pow(2).mean(-1, keepdim=True) + 1e-6) ** -0.5)
    torch.testing.assert_close(
        mean[0, 0], model.embed_tokens.weight.mean(0) * 32**0.5, atol=1e-5, rtol=1e-4
    )
    torch.testing.assert_close(conditioned.pow(2).mean(-1), torch.ones(2, C), atol=1e-4, rtol=1e-4)
    assert (none - zero).abs().max() > 0.1


@torch.no_grad()
def test_self_conditioning_mask_is_a_zero_signal_row_by_row():
    model = exact()
    cache, belief = (
        model.encode(IDS),
        torch.randn(2, C, V, generator=torch.Generator().manual_seed(0)) * 5,
    )
    none, all_of_it = model.decode(CANVAS, cache), model.decode(CANVAS, cache, belief)
    mixed = model.decode(CANVAS, cache, belief, torch.tensor([True, False]))
    torch.testing.assert_close(mixed[0], all_of_it[0], atol=1e-3, rtol=0)
    torch.testing.assert_close(mixed[1], none[1], atol=1e-3, rtol=0)
    assert (all_of_it - none).abs().amax((1, 2)).min() > 0.1
    neither = model.decode(CANVAS, cache, belief, torch.tensor([False, False]))
    assert torch.equal(neither, none)


@torch.no_grad()
def test_self_conditioning_is_the_softmax_of_what_is_given():
    """Logits are a belief only through their softmax.

    A constant added to them changes nothing, their scale does.
    """
    model = exact()
    cache, belief = (
        model.encode(IDS),
        torch.randn(2, C, V, generator=torch.Generator().manual_seed(0)) * 5,
    )
    told = model.decode(CANVAS, cache, belief)
    torch.testing.assert_close(model.decode(CANVAS, cache, belief + 3.0), told, atol=1e-2, rtol=0)
    assert (model.decode(CANVAS, cache, belief / 2) - told).abs().max() > 0.1


@torch.no_grad()
def test_neither_encode_nor_decode_changes_a_cache():
    model = tiny()
    cache = model.encode(IDS, torch.tensor([[0] * 3 + [1] * 9, [1] * 12]))
    before = copy.deepcopy(cache)
    model.decode(CANVAS, cache, torch.zeros(2, C, V))
    model.encode(random_ids(2, 5, seed=2), cache=cache)
    model.next_token_logits(random_ids(2, 5, seed=2), cache=cache)
    cache.upto(torch.tensor([3, 4]))
    assert all(
        torch.equal(a, b)
        for a, b in zip((*cache.keys, *cache.values), (*before.keys, *before.values), strict=True)
    )
    assert torch.equal(cache.mask, before.mask) and cache.read_upto is None
    with pytest.raises(AttributeError):  # frozen
        cache.mask = None


@torch.no_grad()
def test_the_two_sides_differ_by_one_number_per_layer():
    """Pitfall 10: each side reads its own scalar and every other weight in common."""
    model = tiny()
    cache = model.encode(IDS)
    decoded, encoded = model.decode(CANVAS, cache), model.next_token_logits(IDS)[0]
    model.layers[2].encoder_layer_scalar.mul_(0.5)
    assert torch.equal(model.decode(CANVAS, cache), decoded)
    assert not torch.allclose(model.next_token_logits(IDS)[0], encoded, atol=1e-2)
    model.layers[2].encoder_layer_scalar.mul_(2.0)
    model.layers[2].layer_scalar.mul_(0.5)
    assert torch.equal(model.next_token_logits(IDS)[0], encoded)
    assert not torch.allclose(model.decode(CANVAS, cache), decoded, atol=1e-2)
    assert not model.layers[0].layer_scalar.requires_grad  # buffers, never trained


@torch.no_grad()
def test_every_weight_reaches_both_sides_but_for_self_conditioning():
    """Pitfall 10: changing any weight moves encoder and decoder.

    A copy that went its own way would show here.
    """
    model, belief = tiny(), torch.zeros(2, C, V)

    def both():
        logits, cache = model.next_token_logits(IDS)
        return logits, model.decode(CANVAS, cache, belief)

    encoded, decoded = both()
    for name, p in model.named_parameters():
        saved = p.data.clone()
        p.data.mul_(1.7).add_(0.05)
        moved = [
            (a - b).abs().max().item() > 1e-3
            for a, b in zip(both(), (encoded, decoded), strict=True)
        ]
        p.data.copy_(saved)
        assert moved == [not name.startswith("self_conditioning"), True], name


def saved_and_loaded(model, folder):
    model.save_pretrained(folder)
    return DiffusionGemma.from_pretrained(folder)


SURVIVES = {
    "deepcopy": lambda model, folder: copy.deepcopy(model),
    "to float64 and back": lambda model, folder: model.double().float(),
    "to the meta device and back": lambda model, folder: _reload(
        copy.deepcopy(model).to("meta").to_empty(device="cpu"), model
    ),
    "state_dict": lambda model, folder: _reload(DiffusionGemma(model.config), model),
    "save and load": saved_and_loaded,
}


def _reload(fresh, model):
    fresh.load_state_dict(model.state_dict())
    return fresh.eval()


@pytest.mark.parametrize("way", SURVIVES)
def test_sharing_survives(way, tmp_path):
    """Pitfall 10: after a move, copy, cast, save and load the numbers are the same and there is
    still one set of weights.
    """
    model = tiny()
    expected, names = run(model), sorted(model.state_dict())
    other = SURVIVES[way](model, tmp_path)
    assert all(torch.equal(a, b) for a, b in zip(run(other), expected, strict=True))
    assert sorted(other.state_dict()) == names
    assert sum(p.numel() for p in other.parameters()) == sum(p.numel() for p in model.parameters())
    before = run(other)
    for name in (
        "embed_tokens.weight",
        "layers.1.self_attn.k_proj.weight",
        "layers.2.experts.down_proj",
    ):
        with torch.no_grad():
            p = other.get_parameter(name)
            p.add_(0.3 * torch.randn(p.shape, generator=torch.Generator().manual_seed(0)))
        after = run(other)
        assert all((a - b).abs().max() > 1e-4 for a, b in zip(after, before, strict=True)), name
        before = after
    if other is not model:  # and none of it is shared with the model it came from
        assert all(torch.equal(a, b) for a, b in zip(run(model), expected, strict=True))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
@torch.no_grad()
def test_other_dtypes_run_and_speak_float32(dtype):
    model = tiny().to(dtype)
    decoded, encoded, keys = run(model)
    assert decoded.dtype == encoded.dtype == torch.float32 and keys.dtype == dtype
    agree = (decoded.argmax(-1) == run(tiny())[0].argmax(-1)).float().mean()
    assert agree > (0.99 if dtype == torch.float64 else 0.5)


def test_meta_device_construction():
    """Pitfall 12: the published size costs nothing to build, and nothing but weights and scalars is
    needed to run it.
    """
    model = DiffusionGemma(Config.preset("26b_a4b"), device="meta")
    assert {t.device.type for t in model.state_dict().values()} == {"meta"}
    assert sum(p.numel() for p in model.parameters()) == 25_250_986_752
    assert len(dict(model.named_buffers())) == 60  # two scalars a layer
    small = DiffusionGemma(Config.preset("tiny"), device="meta")
    loaded = _reload(small.to_empty(device="cpu"), tiny())
    assert all(torch.equal(a, b) for a, b in zip(run(loaded), run(tiny()), strict=True))


def test_init_weights_after_meta_construction_is_a_fresh_model():
    """Pitfall 12: to_empty leaves whatever was in memory, in norms and scalars too."""
    fresh = DiffusionGemma(Config.preset("tiny"))
    assert all((t == 1).all() for t in fresh.state_dict().values() if t.dim() == 1)
    fresh.init_weights(torch.Generator().manual_seed(3))
    other = DiffusionGemma(Config.preset("tiny"), device="meta").to_empty(device="cpu")
    for tensor in other.state_dict().values():
        tensor.fill_(7.0)
    other.init_weights(torch.Generator().manual_seed(3))
    assert all(
        torch.equal(a, b)
        for a, b in zip(other.state_dict().values(), fresh.state_dict().values(), strict=True)
    )
    assert fresh.embed_tokens.weight.std().item() == pytest.approx(0.02, rel=0.1)


def test_no_mask_argument_is_ignored():
    """Pitfall 2: every public function that takes a mask is in this list, with what the mask must
    change.
    """
    model, cache = tiny(), None
    mask, g = torch.tensor([[0] * 4 + [1] * 8, [1] * 12]), torch.Generator
    pinned = torch.zeros(2, C, dtype=torch.bool)
    pinned[:, :3] = True
    belief, entropy = (
        torch.randn(2, C, V, generator=g().manual_seed(0)) * 9,
        torch.linspace(0, 1, 2 * C).view(2, C),
    )
    steps = sampler.SamplerConfig(max_denoising_steps=2, entropy_bound=9.0)
    still = sampler.SamplerConfig(stability_threshold=0, confidence_threshold=0.3)
    hot = torch.where(pinned, 5.0, 0.1)

    def run_generate(**more):
        return generate(
            model,
            IDS,
            steps,
            max_new_tokens=C,
            initial_canvas=CANVAS,
            generator=g().manual_seed(0),
            **more,
        ).tokens

    def step(**more):
        return sampler.denoise_step(belief, CANVAS, 0, steps, generator=g().manual_seed(0), **more)

    with torch.no_grad():
        cache = model.encode(IDS)
        changed = {
            ("encode", "attention_mask"): lambda m: model.encode(IDS, m).keys[-1],
            ("next_token_logits", "attention_mask"): lambda m: model.next_token_logits(IDS, m)[0],
            ("encode_hidden", "attention_mask"): lambda m: model.encode_hidden(IDS, m)[0],
            ("decode", "self_conditioning_mask"): lambda m: model.decode(CANVAS, cache, belief, m),
            ("decode_hidden", "self_conditioning_mask"): lambda m: model.decode_hidden(
                CANVAS, cache, belief, m
            ),
            ("generate", "attention_mask"): lambda m: run_generate(attention_mask=m),
            ("generate", "pinned"): lambda m: run_generate(pinned=m),
            ("generate_autoregressive", "attention_mask"): lambda m: (
                generate_autoregressive(
                    model,
                    IDS,
                    attention_mask=m,
                    max_new_tokens=6,
                    temperature=1.0,
                    generator=g().manual_seed(0),
                ).tokens
            ),
            ("corrupt", "pinned"): lambda m: noise.corrupt(
                CANVAS, torch.ones(2), V, g().manual_seed(0), m
            )[0],
            ("put_pinned_back", "pinned"): lambda m: sampler.put_pinned_back(
                CANVAS, m, None if m is None else CANVAS + 1
            ),
            ("accept", "pinned"): lambda m: sampler.accept(entropy, 1.0, m),
            ("should_stop", "pinned"): lambda m: sampler.should_stop(
                CANVAS, CANVAS[None][:0], hot, still, m
            ),
            ("denoise_step", "pinned"): lambda m: (
                step(pinned=m, pinned_ids=None if m is None else CANVAS).next_canvas
            ),
        }
        for (function, argument), call in changed.items():
            given = {
                "attention_mask": mask,
                "self_conditioning_mask": torch.tensor([True, False]),
                "pinned": pinned,
            }[argument]
            assert not torch.equal(call(given), call(None)), f"{function} ignores {argument}"
    public = [
        *inspect.getmembers(DiffusionGemma, inspect.isfunction),
        ("generate", generate),
        ("generate_autoregressive", generate_autoregressive),
        *inspect.getmembers(noise, inspect.isfunction),
        *inspect.getmembers(sampler, inspect.isfunction),
    ]
    takes = {
        (name, parameter)
        for name, function in public
        for parameter in inspect.signature(function).parameters
        if not name.startswith("_")
        and parameter in ("attention_mask", "self_conditioning_mask", "pinned")
    }
    assert takes == set(changed)


def test_a_cache_holds_no_more_than_it_says():
    assert set(KVCache.__dataclass_fields__) == {"keys", "values", "mask", "read_upto"}
