"""Mistakes that ports have made, each a function that patches one into our model. test_mutations.py
makes them all.

A mistake is called with our model and pytest's monkeypatch, which takes it back.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from diffgemma_lite import DiffusionGemma, attention, layers, moe
from diffgemma_lite import model as model_module
from diffgemma_lite.model import SelfConditioning

Patch = pytest.MonkeyPatch
Mistake = Callable[[DiffusionGemma, Patch], None]


def config(**changes) -> Mistake:
    return lambda model, patch: patch.setattr(model, "config", replace(model.config, **changes))


def window(side: str, by: int) -> Mistake:
    """Off by one on one side only."""

    def mutate(_model: DiffusionGemma, patch: Patch) -> None:
        name, right = f"{side}_masks", getattr(attention, f"{side}_masks")
        patch.setattr(
            model_module,
            name,
            lambda c, *rest: right(replace(c, sliding_window=c.sliding_window + by), *rest),
        )

    return mutate


def diagonal_band(_model: DiffusionGemma, patch: Patch) -> None:
    """The window as a band over the canvas: row q loses q more of the prefix."""
    right = attention.decoder_masks

    def masks(c, cache, canvas: int):
        out = right(c, cache, canvas)
        sliding = out[attention.SLIDING]
        read = cache.length - sliding.first
        band = torch.arange(read)[None, :] >= torch.arange(canvas)[:, None]
        band = F.pad(band, (0, canvas), value=True)
        return out | {
            attention.SLIDING: replace(
                sliding, allowed=band if sliding.allowed is None else sliding.allowed & band
            )
        }

    patch.setattr(model_module, "decoder_masks", masks)


def causal_canvas(_model: DiffusionGemma, patch: Patch) -> None:
    right = attention.decoder_masks

    def masks(c, cache, canvas: int):
        out = right(c, cache, canvas)
        before = torch.ones(canvas, canvas, dtype=torch.bool).tril()
        return {
            kind: replace(
                m, allowed=m.allowed & F.pad(before, (m.allowed.shape[-1] - canvas, 0), value=True)
            )
            for kind, m in out.items()
        }

    patch.setattr(model_module, "decoder_masks", masks)


def padding_ignored_by(side: str) -> Mistake:
    def mutate(_model: DiffusionGemma, patch: Patch) -> None:
        right = getattr(attention, f"{side}_masks")
        if side == "encoder":
            patch.setattr(
                model_module,
                "encoder_masks",
                lambda c, cache, new, mask, device: right(c, cache, new, None, device),
            )
        else:
            patch.setattr(
                model_module,
                "decoder_masks",
                lambda c, cache, canvas: right(c, replace(cache, mask=None), canvas),
            )

    return mutate


def scalars(source: str, target: str) -> Mistake:
    def mutate(model: DiffusionGemma, patch: Patch) -> None:
        for block in model.layers:
            patch.setitem(block._buffers, target, block._buffers[source])

    return mutate


def no_embedding_scale(_model: DiffusionGemma, patch: Patch) -> None:
    patch.setattr(layers.ScaledEmbedding, "scale", lambda self: torch.tensor(1.0))


def no_scale_on_soft_embeddings(_model: DiffusionGemma, patch: Patch) -> None:
    patch.setattr(layers.ScaledEmbedding, "soft", lambda self, probs: probs @ self.weight)


def exact_gelu(_model: DiffusionGemma, patch: Patch) -> None:
    right = F.gelu
    patch.setattr(F, "gelu", lambda x, approximate="none": right(x))


def eps(value: float) -> Mistake:
    def mutate(model: DiffusionGemma, patch: Patch) -> None:
        for module in model.modules():
            if isinstance(module, layers.RMSNorm):
                patch.setattr(module, "eps", value)

    return mutate


def ones_in(leaf: str) -> Mistake:
    """A weight that is never read, as if it had its birth value."""

    def mutate(model: DiffusionGemma, patch: Patch) -> None:
        for module in model.modules():
            if leaf in module._parameters and leaf != "weight":
                patch.setitem(
                    module._parameters,
                    leaf,
                    torch.nn.Parameter(torch.ones_like(module._parameters[leaf])),
                )

    return mutate


def router_weights_not_renormalised(_model: DiffusionGemma, patch: Patch) -> None:
    right = moe.Router.forward

    def forward(self, x):
        _, index, probs = right(self, x)
        return probs.gather(-1, index) * self.per_expert_scale[index], index, probs

    patch.setattr(moe.Router, "forward", forward)


def swapped(*names: str) -> Mistake:
    """Two parts of every block exchanged."""

    def mutate(model: DiffusionGemma, patch: Patch) -> None:
        for block in model.layers:
            first, second = (getattr(block, n) for n in names)
            patch.setitem(block._modules, names[0], second)
            patch.setitem(block._modules, names[1], first)

    return mutate


def scores_divided(_model: DiffusionGemma, patch: Patch) -> None:
    right = F.scaled_dot_product_attention

    def wrong(q: Tensor, *args, scale: float, **kwargs) -> Tensor:
        return right(q, *args, scale=q.shape[-1] ** -0.5, **kwargs)

    patch.setattr(F, "scaled_dot_product_attention", wrong)


def value_norm_missing(model: DiffusionGemma, patch: Patch) -> None:
    for block in model.layers:
        patch.setitem(block.self_attn._modules, "v_norm", torch.nn.Identity())


def full_values_from_normed_keys(_model: DiffusionGemma, patch: Patch) -> None:
    right = attention.Attention.project

    def project(self, x, rope):
        q, k, v = right(self, x, rope)
        return q, k, (k if self.v_proj is None else v)

    patch.setattr(attention.Attention, "project", project)


def exponent_counts_turning_lanes(_model: DiffusionGemma, patch: Patch) -> None:
    """Partial rotary as in other models.

    The exponent's denominator is the rotated width, not the head width.
    """

    def frequencies(width: int, theta: float, fraction: float = 1.0, device=None) -> Tensor:
        turning = int(fraction * width // 2)
        turned = 1.0 / theta ** (torch.arange(turning).float() / max(turning, 1))
        return torch.cat([turned, torch.zeros(width // 2 - turning)])

    patch.setattr(model_module, "rotary_frequencies", frequencies)


def canvas_starts_one_late(_model: DiffusionGemma, patch: Patch) -> None:
    right = DiffusionGemma._rope
    patch.setattr(
        DiffusionGemma, "_rope", lambda self, p: right(self, p + (1 if p[0, 0] > 0 else 0))
    )


def zero_logits_instead_of_no_signal(model: DiffusionGemma, patch: Patch) -> None:
    right, c = DiffusionGemma.decode_hidden, model.config

    def decode_hidden(self, canvas, cache, belief=None, mask=None):
        return right(
            self,
            canvas,
            cache,
            torch.zeros(*canvas.shape, c.vocab_size) if belief is None else belief,
            mask,
        )

    patch.setattr(DiffusionGemma, "decode_hidden", decode_hidden)


def self_conditioning_mask_ignored(_model: DiffusionGemma, patch: Patch) -> None:
    right = DiffusionGemma.decode_hidden
    patch.setattr(
        DiffusionGemma,
        "decode_hidden",
        lambda self, canvas, cache, belief=None, mask=None: right(self, canvas, cache, belief),
    )


def no_post_norm_without_signal(_model: DiffusionGemma, patch: Patch) -> None:
    right = SelfConditioning.forward
    patch.setattr(
        SelfConditioning,
        "forward",
        lambda self, x, signal: right(self, x, signal) if bool(signal.any()) else x,
    )


def final_norm_missing(model: DiffusionGemma, patch: Patch) -> None:
    patch.setitem(model._modules, "norm", torch.nn.Identity())
