"""Dual mode: the encoder side run one token at a time equals Gemma4ForCausalLM with the same
weights.

Gemma 4's text model is DiffusionGemma's encoder with a head; its layer scalars are the encoder's.
"""

from __future__ import annotations

import pytest
import torch
from reference import left_padding, relative, tokens
from routing import forced_routing, recorded_routing
from torch import Tensor, nn
from transformers import Gemma4ForCausalLM, Gemma4TextConfig

from diffgemma_lite import generate_autoregressive
from diffgemma_lite.attention import KVCache

SHAPES = [
    "grouped_queries",
    "no_grouping",
    "window_below_canvas",
    "half_rotary",
    "one_layer",
    "odd_sizes",
]
LOGITS_TOLERANCE = 3e-5


def language_model(reference: nn.Module) -> Gemma4ForCausalLM:
    """Gemma 4 with the encoder's weights, every one of them and no others."""
    # left out where it is the default
    text = {"final_logit_softcapping": 30.0} | reference.config.text_config.to_dict()
    same = (
        "vocab_size",
        "hidden_size",
        "intermediate_size",
        "num_hidden_layers",
        "num_attention_heads",
        "num_key_value_heads",
        "head_dim",
        "sliding_window",
        "layer_types",
        "rope_parameters",
        "rms_norm_eps",
        "final_logit_softcapping",
        "num_experts",
        "top_k_experts",
        "moe_intermediate_size",
        "max_position_embeddings",
        "pad_token_id",
        "eos_token_id",
        "bos_token_id",
        "per_layer_config",
    )
    config = Gemma4TextConfig(
        **{name: text[name] for name in same},
        enable_moe_block=True,
        attention_k_eq_v=True,
        hidden_size_per_layer_input=0,
        num_kv_shared_layers=0,
    )
    config._attn_implementation, config._experts_implementation = "sdpa", "eager"
    model = Gemma4ForCausalLM(config).eval()
    weights = {
        f"model.{name}": t
        for name, t in reference.model.encoder.language_model.state_dict().items()
    }
    model.load_state_dict(
        weights | {"lm_head.weight": weights["model.embed_tokens.weight"]}, strict=True
    )
    return model


@pytest.fixture(params=SHAPES)
def trio(pair, request: pytest.FixtureRequest):
    reference, model = pair(request.param)
    return language_model(reference), model


@torch.no_grad()
def test_the_prompts_logits_are_equal_to_the_last_bit(trio) -> None:
    """Alone and left-padded, at the positions the encoder uses (counted over the padding)."""
    gemma, model = trio
    w = model.config.sliding_window
    for length in (3, w, 2 * w + 5):
        for pads in (None, [0, 1, length - 1]):
            ids = tokens((1 if pads is None else 3, length), model.config.vocab_size, length)
            mask = None if pads is None else left_padding(length, pads)
            theirs = gemma(ids, attention_mask=mask, position_ids=torch.arange(length)[None]).logits
            mine, _ = model.next_token_logits(ids, mask)
            assert torch.equal(mine, theirs), (
                f"prompt {length}, padding {pads}: {relative(mine, theirs)}"
            )


@torch.no_grad()
def test_token_after_token_with_the_cache(trio) -> None:
    """For a single query Transformers folds grouped heads into the query axis, so the last bits of
    the sums differ.
    """
    gemma, model = trio
    length = model.config.sliding_window + 3
    ids, mask = (
        tokens((3, length + 12), model.config.vocab_size),
        left_padding(length + 12, [0, 2, 4]),
    )
    their_cache, cache, done = None, None, 0
    for new in (length, *[1] * 8, 4):
        part, done = ids[:, done : done + new], done + new
        positions = torch.arange(done - new, done)[None]
        with recorded_routing(gemma) as calls:
            out = gemma(
                part,
                attention_mask=mask[:, :done],
                position_ids=positions,
                cache=their_cache,
                use_cache=True,
            )
        with forced_routing(calls):
            mine, cache = model.next_token_logits(part, mask[:, done - new : done], cache)
        their_cache = out.cache
        assert relative(mine, out.logits) < LOGITS_TOLERANCE, (
            f"{done} tokens: {relative(mine, out.logits)}"
        )
    assert isinstance(cache, KVCache) and cache.length == length + 12


def greedy(gemma: Gemma4ForCausalLM, ids: Tensor, mask: Tensor | None, **settings) -> Tensor:
    out = gemma.generate(
        ids,
        attention_mask=torch.ones_like(ids) if mask is None else mask,
        do_sample=False,
        **settings,
    )
    return out[:, ids.shape[1] :]


def test_greedy_tokens_are_the_same(trio) -> None:
    """Alone and in a left-padded batch, past the window.

    Then again with a token that was written as the end token.
    """
    gemma, model = trio
    gemma.generation_config.eos_token_id = None
    for pads in (None, [0, 4, 9]):
        ids = tokens((1 if pads is None else 3, 12), model.config.vocab_size, 7)
        mask = None if pads is None else left_padding(12, pads)
        free = generate_autoregressive(model, ids, attention_mask=mask, max_new_tokens=20)
        assert torch.equal(free.tokens, greedy(gemma, ids, mask, max_new_tokens=20, pad_token_id=0))
        ends = [int(free.tokens[0, 9]), model.config.vocab_size - 1]
        settings = {"max_new_tokens": 20, "eos_token_id": ends, "pad_token_id": 0}
        cut = generate_autoregressive(model, ids, attention_mask=mask, **settings)
        assert torch.equal(cut.tokens, greedy(gemma, ids, mask, **settings))
        assert (
            cut.stop_reason[0] == "end_token"
            and cut.lengths[0] <= 10
            and free.stop_reason == ["length"] * len(ids)
        )
        assert cut.metrics["forwards"] == cut.tokens.shape[1]


@torch.no_grad()
def test_the_decoders_scalars_would_be_another_model(pair) -> None:
    """The comparison sees which side's scalars are used."""
    reference, model = pair("grouped_queries")
    gemma, ids = language_model(reference), tokens((1, 20), 256)
    for theirs, block in zip(gemma.model.layers, model.layers, strict=True):
        theirs.layer_scalar.copy_(block.layer_scalar)
    assert (gemma(ids).logits - model.next_token_logits(ids)[0]).abs().max() > 1
