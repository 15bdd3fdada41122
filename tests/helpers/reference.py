"""Tiny models of Transformers' DiffusionGemmaForBlockDiffusion, and ours read from the folders they
save.

The oracle of every test here. The models are small but not shy: their norms, scalars, router scales
and embeddings are far from the values a fresh model has, because a port that forgets one of those
passes on a fresh model. The cache is always the reference's dynamic one (its static one is wrong
past the window in transformers 5.24).
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from transformers import (
    DiffusionGemmaConfig,
    DiffusionGemmaForBlockDiffusion,
    DiffusionGemmaTextConfig,
    Gemma4VisionConfig,
)
from transformers.cache_utils import DynamicCache

from diffgemma_lite import DiffusionGemma

SLIDING, FULL = "sliding_attention", "full_attention"
SMALLEST_VISION = dict(
    hidden_size=32,
    intermediate_size=32,
    num_hidden_layers=1,
    num_attention_heads=1,
    num_key_value_heads=1,
    head_dim=32,
    position_embedding_size=16,
    patch_size=2,
    pooling_kernel_size=1,
)
BASE = dict(
    vocab_size=256,
    hidden_size=64,
    intermediate_size=96,
    num_hidden_layers=4,
    num_attention_heads=4,
    num_key_value_heads=2,
    head_dim=16,
    global_head_dim=32,
    num_global_key_value_heads=1,
    num_experts=8,
    top_k_experts=2,
    moe_intermediate_size=32,
    sliding_window=16,
    max_position_embeddings=2048,
    pad_token_id=0,
    eos_token_id=1,
    bos_token_id=2,
    layer_types=[SLIDING, FULL, SLIDING, FULL],
)


def rope(full_theta: float, sliding_theta: float, share: float) -> dict[str, Any]:
    """Rotary settings of both kinds of layer; `share` of the head width turns on full layers."""
    full = {"rope_type": "proportional", "partial_rotary_factor": share, "rope_theta": full_theta}
    return {
        "rope_parameters": {
            SLIDING: {"rope_type": "default", "rope_theta": sliding_theta},
            FULL: full,
        }
    }


# What each configuration is about; all else is BASE. "canvas_length" belongs to the outer config.
SHAPES: dict[str, dict[str, Any]] = {
    "grouped_queries": {},
    "multi_query": {"num_key_value_heads": 1, "num_global_key_value_heads": 1},
    "no_grouping": {"num_key_value_heads": 4, "num_global_key_value_heads": 4},
    "more_kv_heads_on_full_layers": {"num_key_value_heads": 1, "num_global_key_value_heads": 2,
                                     "global_head_dim": 8},
    "window_below_canvas": {"sliding_window": 4},
    "wide_window": {"sliding_window": 48},
    "half_rotary": rope(1_000_000.0, 10_000.0, 0.5),
    "whole_rotary_other_thetas": rope(5_000.0, 300.0, 1.0),
    "one_expert_chosen": {"top_k_experts": 1},
    "all_experts_chosen": {"num_experts": 4, "top_k_experts": 4},
    "one_layer": {"num_hidden_layers": 1, "layer_types": [FULL]},
    "default_layer_pattern": {"num_hidden_layers": 13, "layer_types": None},
    "odd_sizes": {"vocab_size": 97, "hidden_size": 36, "intermediate_size": 20,
                  "num_attention_heads": 6,
                  "num_key_value_heads": 3, "num_global_key_value_heads": 2, "head_dim": 10,
                  "global_head_dim": 14,
                  "num_experts": 5, "top_k_experts": 3, "moe_intermediate_size": 12,
                  "sliding_window": 7, "canvas_length": 5,
                  "rms_norm_eps": 1e-3, "final_logit_softcapping": 10.0},
}  # fmt: skip


def reference_config(**changes: Any) -> DiffusionGemmaConfig:
    """BASE with changes, as Transformers' config; attention is sdpa, experts the plain loop."""
    settings = BASE | changes
    canvas_length = settings.pop("canvas_length", 8)
    last = settings["vocab_size"] - 1
    config = DiffusionGemmaConfig(
        text_config=DiffusionGemmaTextConfig(**settings),
        vision_config=Gemma4VisionConfig(**SMALLEST_VISION),
        canvas_length=canvas_length,
        image_token_id=last,
        boi_token_id=last,
        eoi_token_id=last,
    )
    config._attn_implementation = "sdpa"
    config._experts_implementation = "eager"
    return config


def unique_tensors(model: nn.Module) -> dict[str, Tensor]:
    """Every parameter once, under its first name, and the two layer scalars of each layer (they are
    buffers).
    """
    scalars = {name: b for name, b in model.named_buffers() if name.endswith("layer_scalar")}
    return dict(model.named_parameters()) | scalars


@torch.no_grad()
def fill_realistic(model: nn.Module, seed: int = 0, calm: float = 1.0) -> None:
    """Random weights of the spread a trained model has.

    Nothing stays at the value it was born with.

    calm below 1 makes each branch a smaller part of the residual stream. Random layers at full
    strength are chaotic: they blow rounding up by a factor of two or three each, which forward
    passes can bear and gradients cannot.
    """
    g = torch.Generator().manual_seed(seed)

    def uniform(t: Tensor, low: float, high: float) -> None:
        t.copy_(low + (high - low) * torch.rand(t.shape, generator=g))

    for name, t in unique_tensors(model).items():
        if name.endswith("layer_scalar"):
            uniform(t, 0.4, 1.3)
        elif name.endswith(("router.scale", "per_expert_scale")):
            uniform(t, 0.4, 2.2)
        elif name.endswith("embed_tokens.weight"):
            t.copy_(0.4 * torch.randn(t.shape, generator=g))
        elif t.dim() == 1:  # norms
            share = (
                calm
                if name.endswith(
                    ("post_attention_layernorm.weight", "post_feedforward_layernorm.weight")
                )
                else 1.0
            )
            uniform(t, 0.3 * share, 1.7 * share)
        elif name.endswith("router.proj.weight"):
            t.copy_(0.8 * torch.randn(t.shape, generator=g))
        else:
            t.copy_(torch.randn(t.shape, generator=g) * 0.8 / math.sqrt(t.shape[-1]))


@torch.no_grad()
def fill_constants(model: nn.Module) -> None:
    """Each tensor its own constant plus a small ripple, so that a tensor that lands under another
    name is seen.

    Without the ripple all experts and all router scores would be equal and half of the errors
    invisible.
    """
    for i, (name, t) in enumerate(unique_tensors(model).items()):
        if name.endswith("layer_scalar"):
            t.fill_(0.5 + 0.01 * i / 2)
            continue
        ripple = (
            torch.cos(torch.arange(t.numel(), dtype=torch.float64) * (1.0 + 0.013 * i))
            .view(t.shape)
            .to(t.dtype)
        )
        if t.dim() == 1:
            t.copy_(0.6 + 0.004 * i + 0.2 * ripple)
        else:
            t.copy_(
                0.002 * (i + 1)
                + ripple * (0.6 if "embed_tokens" in name else 1.2 / math.sqrt(t.shape[-1]))
            )


def build(
    shape: str | dict[str, Any] = "grouped_queries",
    *,
    fill: str = "realistic",
    seed: int = 0,
    calm: float = 1.0,
):
    """A filled reference model in eval mode, from a name of SHAPES or from changes to BASE."""
    changes = SHAPES[shape] if isinstance(shape, str) else shape
    model = DiffusionGemmaForBlockDiffusion(reference_config(**changes)).eval()
    if fill == "realistic":
        fill_realistic(model, seed, calm)
    else:
        fill_constants(model)
    return model


def ours(reference: nn.Module, folder: Path, **kwargs: Any) -> DiffusionGemma:
    """Saved by the reference, read by us, with the kernels that add in the same order."""
    reference.save_pretrained(folder)
    return DiffusionGemma.from_pretrained(folder, **kwargs).set_kernels(
        experts="loop", fused_norm=False
    )


def read_by_transformers(folder: Path, **kwargs: Any) -> nn.Module:
    """Loaded by Transformers, with nothing missing, unexpected or mis-shaped.

    The plain loop over experts.

    The weights are copied out of the mapped file: there they stand at addresses that are no
    multiple of 64 bytes, for which the CPU's matrix product adds in another order.
    """
    model, info = DiffusionGemmaForBlockDiffusion.from_pretrained(
        folder, output_loading_info=True, **kwargs
    )
    assert not any(info.values()), info
    model.set_experts_implementation("eager")
    for parameter in model.parameters():
        parameter.data = parameter.data.clone()
    return model.eval()


# ---- inputs --------------------------------------------------------------------------------------


def tokens(shape: tuple[int, int], vocab_size: int, seed: int = 0) -> Tensor:
    return torch.randint(3, vocab_size, shape, generator=torch.Generator().manual_seed(seed))


def left_padding(length: int, pads: list[int]) -> Tensor:
    """Attention mask [B, length], row b with pads[b] padded positions at the left."""
    return torch.stack([(torch.arange(length) >= p).long() for p in pads])


def wide_logits(shape: tuple[int, ...], seed: int = 0) -> Tensor:
    """Self-conditioning logits of the width a decided model has."""
    return 6 * torch.randn(shape, generator=torch.Generator().manual_seed(seed))


# ---- the reference's two passes ------------------------------------------------------------------


def reference_encode(
    reference: nn.Module, ids: Tensor, mask: Tensor | None = None, cache: DynamicCache | None = None
):
    """(last hidden states, dynamic cache); `mask` covers the cache's tokens and the new ones."""
    cache = (
        DynamicCache(config=reference.config.get_text_config(decoder=True))
        if cache is None
        else cache
    )
    out = reference.model.encoder(input_ids=ids, attention_mask=mask, cache=cache)
    return out.last_hidden_state, out.cache


def reference_decode(
    reference: nn.Module,
    canvas: Tensor,
    cache: DynamicCache,
    mask: Tensor | None = None,
    logits: Tensor | None = None,
    logits_mask: Tensor | None = None,
):
    """(decoder hidden states, logits); `mask` is the encoder's, the canvas is added here."""
    mask = None if mask is None else nn.functional.pad(mask, (0, canvas.shape[1]), value=1)
    seen: list[Tensor] = []
    hook = reference.model.decoder.norm.register_forward_hook(
        lambda _module, _args, out: seen.append(out)
    )
    out = reference(
        decoder_input_ids=canvas,
        cache=cache,
        decoder_attention_mask=mask,
        self_conditioning_logits=logits,
        self_conditioning_mask=logits_mask,
    )
    hook.remove()
    return seen[0], out.logits


def relative(a: Tensor, b: Tensor) -> float:
    """Largest difference, against the largest number of b."""
    return float((a.float() - b.float()).abs().max() / b.float().abs().max())
