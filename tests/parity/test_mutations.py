"""Would the comparison see an error?

Each mutation below is a mistake some port has made; each must move the logits.

The model is ours with equal weights; the mistake is patched in; the size printed is the largest
difference of a logit from the reference's. The floor is far below what was measured and far above
the tolerance of the other tests.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from mistakes import (
    Mistake,
    canvas_starts_one_late,
    causal_canvas,
    config,
    diagonal_band,
    eps,
    exact_gelu,
    exponent_counts_turning_lanes,
    final_norm_missing,
    full_values_from_normed_keys,
    no_embedding_scale,
    no_post_norm_without_signal,
    no_scale_on_soft_embeddings,
    ones_in,
    padding_ignored_by,
    router_weights_not_renormalised,
    scalars,
    scores_divided,
    self_conditioning_mask_ignored,
    swapped,
    value_norm_missing,
    window,
    zero_logits_instead_of_no_signal,
)
from reference import left_padding, reference_decode, reference_encode, tokens, wide_logits
from torch import Tensor

from diffgemma_lite import DiffusionGemma

PADS = [0, 3, 20]
LENGTH = 37  # two windows of 16 and a bit


def inputs(model: DiffusionGemma) -> dict[str, Tensor]:
    c, rows = model.config, len(PADS)
    return {
        "ids": tokens((rows, LENGTH), c.vocab_size),
        "mask": left_padding(LENGTH, PADS),
        "canvas": tokens((rows, c.canvas_length), c.vocab_size, 1),
        "belief": wide_logits((rows, c.canvas_length, c.vocab_size)),
        "some": torch.tensor([True, False, True]),
    }


@torch.no_grad()
def both_logits(reference, model: DiffusionGemma) -> tuple[Tensor, Callable[[], Tensor]]:
    """(the reference's logits, a function that computes ours), each with and without
    self-conditioning.
    """
    x = inputs(model)
    _, cache = reference_encode(reference, x["ids"], x["mask"])
    first = reference_decode(reference, x["canvas"], cache, x["mask"])[1]
    second = reference_decode(reference, x["canvas"], cache, x["mask"], x["belief"], x["some"])[1]

    @torch.no_grad()
    def run() -> Tensor:
        own = model.encode(x["ids"], x["mask"])
        return torch.stack(
            [model.decode(x["canvas"], own), model.decode(x["canvas"], own, x["belief"], x["some"])]
        )

    return torch.stack([first, second]), run


MUTATIONS: dict[str, tuple[Mistake, float]] = {
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
    # a norm follows: only its epsilon sees this
    "router weights not renormalised": (router_weights_not_renormalised, 1e-4),
    "experts and dense MLP swap their norms": (swapped("pre_feedforward_layernorm",
                                                       "pre_feedforward_layernorm_2"), 1.0),
    "and the norms after them": (swapped("post_feedforward_layernorm_1",
                                         "post_feedforward_layernorm_2"), 1.0),
    "scores divided by sqrt(Hd)": (scores_divided, 1.0),
    "value norm missing": (value_norm_missing, 1.0),
    "full layers' values from normed, rotated keys": (full_values_from_normed_keys, 1.0),
    "zero logits instead of no signal": (zero_logits_instead_of_no_signal, 1e-2),
    "self-conditioning mask ignored": (self_conditioning_mask_ignored, 1.0),
    "no post-norm at the first step": (no_post_norm_without_signal, 1.0),
    "last norm missing": (final_norm_missing, 1.0),
}  # fmt: skip


@pytest.mark.parametrize("name", MUTATIONS)
def test_a_mistake_moves_the_logits(pair, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    mutate, floor = MUTATIONS[name]
    theirs, run = both_logits(*pair("grouped_queries"))
    assert torch.equal(run(), theirs), "unmutated, ours must be the reference"
    mutate(pair("grouped_queries")[1], monkeypatch)
    size = (run() - theirs).abs().max().item()
    print(f"{name}: {size:.3g} of logits up to {theirs.abs().max():.3g}")
    assert size > floor
