"""Would the comparison see an error? Each mutation below is a mistake some port has made; each must move the logits.

The model is ours with equal weights; the mistake is patched in; the size printed is the largest difference of a logit from
the reference's. The floor is far below what was measured and far above the tolerance of the other tests.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from reference import left_padding, reference_decode, reference_encode, tokens, wide_logits
from torch import Tensor

from diffgemma_lite import DiffusionGemma, attention, layers, moe
from diffgemma_lite import model as model_module
from diffgemma_lite.model import SelfConditioning

Patch = pytest.MonkeyPatch
PADS = [0, 3, 20]
LENGTH = 37  # two windows of 16 and a bit


# ---- the inputs, and what the reference makes of them ------------------------------------------------------------------


def inputs(model: DiffusionGemma) -> dict[str, Tensor]:
    c, rows = model.config, len(PADS)
    return {
        "ids": tokens((rows, LENGTH), c.vocab_size), "mask": left_padding(LENGTH, PADS),
        "canvas": tokens((rows, c.canvas_length), c.vocab_size, 1),
        "belief": wide_logits((rows, c.canvas_length, c.vocab_size)), "some": torch.tensor([True, False, True]),
    }  # fmt: skip


@torch.no_grad()
def both_logits(reference, model: DiffusionGemma) -> tuple[Tensor, Callable[[], Tensor]]:
    """(the reference's logits, a function that computes ours), each with and without self-conditioning."""
    x = inputs(model)
    _, cache = reference_encode(reference, x["ids"], x["mask"])
    first = reference_decode(reference, x["canvas"], cache, x["mask"])[1]
    second = reference_decode(reference, x["canvas"], cache, x["mask"], x["belief"], x["some"])[1]

    @torch.no_grad()
    def run() -> Tensor:
        own = model.encode(x["ids"], x["mask"])
        return torch.stack([model.decode(x["canvas"], own), model.decode(x["canvas"], own, x["belief"], x["some"])])

    return torch.stack([first, second]), run


# ---- the mistakes: each patches one -----------------------------------------------------------------------------------


def config(**changes) -> Callable[[DiffusionGemma, Patch], None]:
    return lambda model, patch: patch.setattr(model, "config", replace(model.config, **changes))


def window(side: str, by: int) -> Callable[[DiffusionGemma, Patch], None]:
    """Off by one on one side only."""

    def mutate(_model: DiffusionGemma, patch: Patch) -> None:
        name, right = f"{side}_masks", getattr(attention, f"{side}_masks")
        patch.setattr(model_module, name, lambda c, *rest: right(replace(c, sliding_window=c.sliding_window + by), *rest))

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
            attention.SLIDING: replace(sliding, allowed=band if sliding.allowed is None else sliding.allowed & band)
        }

    patch.setattr(model_module, "decoder_masks", masks)


def causal_canvas(_model: DiffusionGemma, patch: Patch) -> None:
    right = attention.decoder_masks

    def masks(c, cache, canvas: int):
        out = right(c, cache, canvas)
        before = torch.ones(canvas, canvas, dtype=torch.bool).tril()
        return {
            kind: replace(m, allowed=m.allowed & F.pad(before, (m.allowed.shape[-1] - canvas, 0), value=True))
            for kind, m in out.items()
        }

    patch.setattr(model_module, "decoder_masks", masks)


def padding_ignored_by(side: str) -> Callable[[DiffusionGemma, Patch], None]:
    def mutate(_model: DiffusionGemma, patch: Patch) -> None:
        right = getattr(attention, f"{side}_masks")
        if side == "encoder":
            patch.setattr(
                model_module, "encoder_masks", lambda c, cache, new, mask, device: right(c, cache, new, None, device)
            )
        else:
            patch.setattr(
                model_module, "decoder_masks", lambda c, cache, canvas: right(c, replace(cache, mask=None), canvas)
            )

    return mutate


def scalars(source: str, target: str) -> Callable[[DiffusionGemma, Patch], None]:
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


def eps(value: float) -> Callable[[DiffusionGemma, Patch], None]:
    def mutate(model: DiffusionGemma, patch: Patch) -> None:
        for module in model.modules():
            if isinstance(module, layers.RMSNorm):
                patch.setattr(module, "eps", value)

    return mutate


def ones_in(leaf: str) -> Callable[[DiffusionGemma, Patch], None]:
    """A weight that is never read, as if it had its birth value."""

    def mutate(model: DiffusionGemma, patch: Patch) -> None:
        for module in model.modules():
            if leaf in module._parameters and leaf != "weight":
                patch.setitem(module._parameters, leaf, torch.nn.Parameter(torch.ones_like(module._parameters[leaf])))

    return mutate


def router_weights_not_renormalised(_model: DiffusionGemma, patch: Patch) -> None:
    right = moe.Router.forward

    def forward(self, x):
        _, index, probs = right(self, x)
        return probs.gather(-1, index) * self.per_expert_scale[index], index, probs

    patch.setattr(moe.Router, "forward", forward)


def swapped(*names: str) -> Callable[[DiffusionGemma, Patch], None]:
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
    """Partial rotary as in other models: the exponent's denominator is the rotated width, not the head width."""

    def frequencies(width: int, theta: float, fraction: float = 1.0, device=None) -> Tensor:
        turning = int(fraction * width // 2)
        turned = 1.0 / theta ** (torch.arange(turning).float() / max(turning, 1))
        return torch.cat([turned, torch.zeros(width // 2 - turning)])

    patch.setattr(model_module, "rotary_frequencies", frequencies)


def canvas_starts_one_late(_model: DiffusionGemma, patch: Patch) -> None:
    right = DiffusionGemma._rope
    patch.setattr(DiffusionGemma, "_rope", lambda self, p: right(self, p + (1 if p[0, 0] > 0 else 0)))


def zero_logits_instead_of_no_signal(model: DiffusionGemma, patch: Patch) -> None:
    right, c = DiffusionGemma.decode_hidden, model.config

    def decode_hidden(self, canvas, cache, belief=None, mask=None):
        return right(self, canvas, cache, torch.zeros(*canvas.shape, c.vocab_size) if belief is None else belief, mask)

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
    patch.setattr(SelfConditioning, "forward", lambda self, x, signal: right(self, x, signal) if bool(signal.any()) else x)


def final_norm_missing(model: DiffusionGemma, patch: Patch) -> None:
    patch.setitem(model._modules, "norm", torch.nn.Identity())


MUTATIONS: dict[str, tuple[Callable[[DiffusionGemma, Patch], None], float]] = {
    "window one short, both sides": (config(sliding_window=15), 1.0),
    "window one long, both sides": (config(sliding_window=17), 1.0),
    "window one long, encoder": (window("encoder", 1), 1.0),
    "window one short, encoder": (window("encoder", -1), 1.0),
    "window one long, decoder": (window("decoder", 1), 1.0),
    "window one short, decoder": (window("decoder", -1), 1.0),
    "window as a diagonal band over the canvas": (diagonal_band, 1.0),
    "canvas attends causally": (causal_canvas, 1.0),
    "padding ignored, encoder": (padding_ignored_by("encoder"), 1.0),
    "padding ignored, decoder": (padding_ignored_by("decoder"), 1.0),
    "encoder's scalar in the decoder": (scalars("encoder_layer_scalar", "layer_scalar"), 1.0),
    "decoder's scalar in the encoder": (scalars("layer_scalar", "encoder_layer_scalar"), 1.0),
    "embedding scale missing": (no_embedding_scale, 1.0),
    "embedding scale missing on soft embeddings": (no_scale_on_soft_embeddings, 1e-4),  # and here
    "theta of full layers": (config(full_rope_theta=10_000.0), 1.0),
    "theta of sliding layers": (config(sliding_rope_theta=1_000_000.0), 1.0),
    "partial rotary factor": (config(partial_rotary_factor=0.5), 1.0),
    "rotary exponent counts the turning lanes only": (exponent_counts_turning_lanes, 1.0),
    "canvas one position late": (canvas_starts_one_late, 1.0),
    "soft-cap": (config(final_logit_softcapping=50.0), 0.1),
    "exact instead of tanh GELU": (exact_gelu, 1e-3),
    "norm epsilon 1e-5": (eps(1e-5), 1e-4),
    "per-expert scale ignored": (ones_in("per_expert_scale"), 1.0),
    "router scale ignored": (ones_in("scale"), 1.0),
    "router weights not renormalised": (router_weights_not_renormalised, 1e-4),  # a norm follows: only its epsilon sees this
    "experts and dense MLP swap their norms": (swapped("pre_feedforward_layernorm", "pre_feedforward_layernorm_2"), 1.0),
    "and the norms after them": (swapped("post_feedforward_layernorm_1", "post_feedforward_layernorm_2"), 1.0),
    "scores divided by sqrt(Hd)": (scores_divided, 1.0),
    "value norm missing": (value_norm_missing, 1.0),
    "full layers' values from normed, rotated keys": (full_values_from_normed_keys, 1.0),
    "zero logits instead of no signal": (zero_logits_instead_of_no_signal, 1e-2),
    "self-conditioning mask ignored": (self_conditioning_mask_ignored, 1.0),
    "no post-norm at the first step": (no_post_norm_without_signal, 1.0),
    "last norm missing": (final_norm_missing, 1.0),
}  # fmt: skip


@pytest.mark.parametrize("name", MUTATIONS)
def test_a_mistake_moves_the_logits(pair, monkeypatch: Patch, name: str) -> None:
    mutate, floor = MUTATIONS[name]
    theirs, run = both_logits(*pair("grouped_queries"))
    assert torch.equal(run(), theirs), "unmutated, ours must be the reference"
    mutate(pair("grouped_queries")[1], monkeypatch)
    size = (run() - theirs).abs().max().item()
    print(f"{name}: {size:.3g} of logits up to {theirs.abs().max():.3g}")
    assert size > floor
