"""Gradients of the whole loss against Transformers' autograd, for every parameter, to 1e-4 of its
largest entry.

The reference's loss is put together here from its own two passes: the encoder over the whole row
for next-token cross-entropy, the encoder over the prefix and the decoder behind it for denoising
cross-entropy, self-conditioned by a first pass that leaves no graph.
"""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import dataclass, replace

import pytest
import torch
import torch.nn.functional as F
from reference import reference_decode, reference_encode, tokens
from torch import Tensor, nn

from diffgemma_lite import DiffusionGemma
from diffgemma_lite.attention import KVCache
from diffgemma_lite.layers import ScaledEmbedding
from diffgemma_lite.loss import Batch, collate, losses

TOLERANCE = 1e-4
CALM = 0.2  # see reference.fill_realistic
SHAPES = [
    "grouped_queries",
    "multi_query",
    "window_below_canvas",
    "default_layer_pattern",
    "odd_sizes",
]


def reference_losses(reference: nn.Module, batch: Batch) -> tuple[Tensor, Tensor]:
    """(denoising, encoder) loss averaged over the rows.

    Each row alone, cut to its real length, its prefix encoded anew.
    """
    denoising, encoder = [], []
    for b in range(len(batch.ids)):
        ids, row = batch.ids[b : b + 1, : int(batch.real[b].sum())], slice(b, b + 1)
        states, _ = reference_encode(reference, ids)
        cap = reference.final_logit_softcapping
        next_logits = torch.tanh(reference.lm_head(states[:, :-1]) / cap) * cap
        encoder.append(F.cross_entropy(next_logits[0], ids[0, 1:]))
        _, cache = reference_encode(reference, ids[:, : int(batch.start[b])])
        with torch.no_grad():
            belief = reference_decode(reference, batch.noisy[row], cache)[1]
        logits = reference_decode(
            reference, batch.noisy[row], cache, None, belief, batch.self_conditioned[row]
        )[1]
        counted = batch.labelled[b]
        denoising.append(F.cross_entropy(logits[0][counted], batch.clean[b][counted]))
    return torch.stack(denoising).mean(), torch.stack(encoder).mean()


def gradients(model: nn.Module, loss: Tensor) -> dict[str, Tensor]:
    """By our names; the tied weights of the reference collect both sides under the decoder's."""
    source = getattr(model, "model", None)
    model.zero_grad(set_to_none=True)
    loss.backward()
    found = {
        name: p.grad for name, p in (model if source is None else source.decoder).named_parameters()
    }
    assert all(g is not None and bool(g.any()) for g in found.values()), [
        n for n, g in found.items() if g is None or not g.any()
    ]
    return found


def assert_same_gradients(mine: dict[str, Tensor], theirs: dict[str, Tensor]) -> None:
    assert mine.keys() == theirs.keys()
    sizes = {
        name: float((g - theirs[name]).abs().max() / theirs[name].abs().max())
        for name, g in mine.items()
    }
    worst = max(sizes, key=sizes.get)
    print(f"{len(sizes)} parameters, worst {worst}: {sizes[worst]:.2g}")
    assert sizes[worst] < TOLERANCE, {n: s for n, s in sizes.items() if s >= TOLERANCE}


def compare(reference: nn.Module, model: nn.Module, batch: Batch, part: str = "total") -> None:
    pick = {"denoising": lambda d, e: d, "encoder": lambda d, e: e, "total": lambda d, e: d + e}[
        part
    ]
    expected = pick(*reference_losses(reference, batch))
    denoising, encoder = losses(model, batch)
    loss = pick(denoising.mean(), encoder.mean())
    assert abs(loss.item() - expected.item()) < 1e-5 * abs(expected.item())
    if part == "total":
        assert_same_gradients(gradients(model, loss), gradients(reference, expected))
        return
    for root, value in ((model, loss), (reference, expected)):
        root.zero_grad(set_to_none=True)
        value.backward()
    theirs = dict(reference.model.decoder.named_parameters())
    used = {n: p.grad for n, p in model.named_parameters() if p.grad is not None}
    assert used.keys() == {n for n, p in theirs.items() if p.grad is not None}
    assert_same_gradients(used, {n: theirs[n].grad for n in used})


@dataclass
class Example:
    prompt: list[int]
    response: list[int]
    complete: bool = True


def mixed_batch(model) -> Batch:
    """Rows of other lengths, other starts, noise levels, unlabelled tails.

    Some told what the first pass believed.
    """
    c = model.config
    sizes = [
        (5, 3 * c.canvas_length, True),
        (c.sliding_window + 4, 11, True),
        (2, 7, False),
        (9, 2 * c.canvas_length + 3, False),
    ]
    examples = [
        Example(
            tokens((1, p), c.vocab_size, i)[0].tolist(),
            tokens((1, r), c.vocab_size, 10 + i)[0].tolist(),
            complete,
        )
        for i, (p, r, complete) in enumerate(sizes)
    ]
    batch = collate(
        examples,
        range(len(examples)),
        canvas_length=c.canvas_length,
        vocab_size=c.vocab_size,
        eos=c.eos_token_id,
        pad=c.pad_token_id,
        seed=3,
        epoch=0,
    )
    assert batch.start.unique().numel() > 2 and batch.self_conditioned.unique().numel() == 2
    assert not bool(batch.labelled.all()) and not bool(batch.real.all())
    return batch


def batch_at_the_end(model, rows: int = 3) -> Batch:
    """Every canvas right after the row, so that `upto` shows the whole cache."""
    c, length = model.config, model.config.sliding_window + 6
    canvas = (rows, c.canvas_length)
    return Batch(
        ids=tokens((rows, length), c.vocab_size),
        real=torch.ones(rows, length, dtype=torch.bool),
        start=torch.full((rows,), length),
        clean=tokens(canvas, c.vocab_size, 1),
        noisy=tokens(canvas, c.vocab_size, 2),
        labelled=torch.ones(canvas, dtype=torch.bool),
        t=torch.full((rows,), 0.5),
        self_conditioned=torch.tensor([True, False, True]),
    )


@pytest.mark.parametrize("shape", SHAPES)
def test_canvases_at_the_end_of_the_row(pair, shape: str) -> None:
    reference, model = pair(shape, calm=CALM)
    compare(reference, model, batch_at_the_end(model))


@pytest.mark.parametrize("shape", SHAPES)
def test_canvases_anywhere_in_rows_of_other_lengths(pair, shape: str) -> None:
    """Our one pass with a mask per row against the reference row by row on cut prefixes."""
    reference, model = pair(shape, calm=CALM)
    compare(reference, model, mixed_batch(model))


@pytest.mark.parametrize("part", ["denoising", "encoder"])
def test_each_loss_alone(pair, part: str) -> None:
    """The denoising loss reaches what only the encoder computes, through the cache.

    The encoder's leaves the rest alone.
    """
    reference, model = pair("grouped_queries", calm=CALM)
    compare(reference, model, mixed_batch(model), part)


@pytest.mark.parametrize("experts", ["loop", "grouped"])
@pytest.mark.parametrize("fused_norm", [False, True])
@pytest.mark.parametrize("checkpointing", [False, True])
def test_other_kernels_and_gradient_checkpointing(
    pair, experts: str, fused_norm: bool, checkpointing: bool
) -> None:
    reference, model = pair("grouped_queries", calm=CALM)
    model.set_kernels(experts=experts, fused_norm=fused_norm)
    model.gradient_checkpointing = checkpointing
    try:
        compare(reference, model, mixed_batch(model))
    finally:
        model.gradient_checkpointing = False


def detached_cache(patch: pytest.MonkeyPatch) -> None:
    right = DiffusionGemma.encode_hidden

    def encode_hidden(self, *args):
        states, cache = right(self, *args)
        return states, replace(
            cache,
            keys=tuple(k.detach() for k in cache.keys),
            values=tuple(v.detach() for v in cache.values),
        )

    patch.setattr(DiffusionGemma, "encode_hidden", encode_hidden)


def first_pass_keeps_its_graph(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(torch, "no_grad", nullcontext)


def prefix_one_too_long(patch: pytest.MonkeyPatch) -> None:
    right = KVCache.upto
    patch.setattr(KVCache, "upto", lambda self, lengths: right(self, lengths + 1))


def padding_learns_from_its_lookup(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(
        ScaledEmbedding, "forward", lambda self, ids: F.embedding(ids, self.weight) * self.scale()
    )


MISTAKES = [
    detached_cache,
    first_pass_keeps_its_graph,
    prefix_one_too_long,
    padding_learns_from_its_lookup,
]


@pytest.mark.parametrize("mistake", MISTAKES, ids=lambda f: f.__name__)
def test_a_mistake_moves_the_gradients(pair, monkeypatch, mistake) -> None:
    reference, model = pair("grouped_queries", calm=CALM)
    batch = mixed_batch(model)
    batch = replace(
        batch,
        noisy=batch.noisy.masked_fill(
            torch.arange(batch.noisy.shape[1]) == 2, model.config.pad_token_id
        ),
    )
    theirs = gradients(reference, sum(reference_losses(reference, batch)))
    mistake(monkeypatch)
    mine = gradients(model, sum(loss.mean() for loss in losses(model, batch)))
    size = max(float((g - theirs[n]).abs().max() / theirs[n].abs().max()) for n, g in mine.items())
    print(f"{mistake.__name__}: {size:.2g}")
    assert size > 100 * TOLERANCE
