"""The training layout and its two losses.

One row holds a prompt and the whole clean answer, cut into canvases that start right after the
prompt. The encoder reads all of it causally, once; one canvas, drawn at random, is noised and given
to the decoder, which may read the cache only up to where that canvas begins (`KVCache.upto`). So a
single pair of passes trains both sides of the shared weights: denoising cross-entropy over *every*
position of the canvas, corrupted or not and without a weight for the noise level, plus next-token
cross-entropy on the encoder side. Walked through in notebook 06.

Source: DiffusionGemma Technical Report, arXiv:2608.00146, sections 4 and 8.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Sequence
from dataclasses import dataclass, fields

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Generator, Tensor

from .checks import check_integer
from .noise import corrupt

T_EPSILON = 1e-4  # t is drawn from [T_EPSILON, 1 - T_EPSILON], as the public training code does
LONGEST_HOLE = 8  # tokens, of a row that is all right but for one hole (`dig_hole`)


@dataclass(frozen=True)
class Batch:
    """Everything random is already drawn.

    L tokens a row, prompt and answer, padded on the right.
    """

    ids: Int[Tensor, "b l"]  # clean
    real: Bool[Tensor, "b l"]  # not padding
    start: Int[Tensor, "b"]  # where the drawn canvas begins
    clean: Int[Tensor, "b c"]  # the canvas
    noisy: Int[Tensor, "b c"]
    labelled: Bool[Tensor, "b c"]  # positions that count in the denoising loss
    t: Float[Tensor, "b"]  # noise level
    self_conditioned: Bool[Tensor, "b"]

    def to(self, device) -> Batch:
        return Batch(**{f.name: getattr(self, f.name).to(device) for f in fields(self)})


def example_generator(seed: int, epoch: int, index: int) -> Generator:
    """All randomness of one example in one epoch.

    Independent of batch size, order, worker and restarts.
    """
    digest = hashlib.blake2b(struct.pack("<3q", seed, epoch, index), digest_size=8).digest()
    return torch.Generator().manual_seed(int.from_bytes(digest, "little") >> 1)


def lay_out(example, canvas_length: int, eos: int) -> tuple[list[int], int, int]:
    """Example -> (prompt + answer ids, canvases, labelled answer tokens).

    A complete answer is filled up with end tokens to whole canvases, and the fill is learnt. A cut
    one gets no end token: the tokens that would stand there are unknown, so the loss does not look
    at them.
    """
    response, labelled = list(example.response), len(example.response)
    if example.complete:
        canvases = labelled // canvas_length + 1
        response += [eos] * (canvases * canvas_length - labelled)
        labelled = len(response)
    else:
        canvases = max(1, -(-labelled // canvas_length))
    return [*example.prompt, *response], canvases, labelled


def dig_hole(
    clean: Int[Tensor, "c"], labelled: int, vocab_size: int, generator: Generator
) -> tuple[Int[Tensor, "c"], Bool[Tensor, "c"]]:
    """One hole of 1 to LONGEST_HOLE tokens, filled with noise, in a canvas that is right elsewhere
    -> (noisy, counted), [C].

    Rare when every token is noised by itself, and what infilling meets. Why a row of its own: at so
    little noise the model has every reason to trust each token, also the one in the hole. The loss
    counts the hole and as many tokens outside, so that of those it is asked about half are right.
    Ours, not the report's.
    """
    size = min(int(torch.randint(1, LONGEST_HOLE + 1, (), generator=generator)), labelled)
    first = int(torch.randint(0, labelled - size + 1, (), generator=generator))
    place, noise = (
        torch.arange(len(clean)),
        torch.randint(0, vocab_size, (len(clean),), generator=generator),
    )
    hole = (place >= first) & (place < first + size)
    others = torch.randperm(len(clean), generator=generator)
    others = others[(others < labelled) & ~hole[others]][:size]
    return torch.where(hole, noise, clean), hole | torch.isin(place, others)


def collate(
    examples: Sequence,
    indices: Sequence[int],
    *,
    canvas_length: int,
    vocab_size: int,
    eos: int,
    pad: int,
    seed: int,
    epoch: int,
    self_conditioning: float = 0.5,
    holes: float = 0.0,
    multiple: int = 1,
) -> Batch:
    """Examples (prompt, response, complete) -> Batch.

    `multiple` rounds the row length up, to keep the number of shapes small.

    indices: their numbers in the data set, which with seed and epoch fix every random draw. holes:
    share of the rows that are noised in one hole only (`dig_hole`). Errors: ValueError for no
    examples, one without a prompt (the decoder needs a prefix to read), and settings out of range.
    """
    if len(examples) != len(indices) or not len(examples):
        raise ValueError(
            f"indices: got {len(indices)} for {len(examples)} examples, "
            "takes one for each, at least one"
        )
    for name, value, least, most in (
        ("canvas_length", canvas_length, 1, 2**31),
        ("multiple", multiple, 1, 2**31),
        ("eos", eos, 0, vocab_size - 1),
        ("pad", pad, 0, vocab_size - 1),
    ):
        check_integer(name, value, least, most)
    for name, value in (("self_conditioning", self_conditioning), ("holes", holes)):
        if not 0 <= value <= 1:
            raise ValueError(f"{name}: got {value!r}, takes a share from 0 to 1")
    rows, c = [], canvas_length
    for example, index in zip(examples, indices, strict=True):
        if not example.prompt:
            raise ValueError(
                f"examples: number {index} has an empty prompt, takes at least one token"
            )
        ids, canvases, labelled = lay_out(example, c, eos)
        g = example_generator(seed, epoch, index)
        k = int(torch.randint(0, canvases, (), generator=g))
        t = T_EPSILON + (1 - 2 * T_EPSILON) * torch.rand(1, generator=g)
        coin = bool(torch.rand((), generator=g) < self_conditioning)
        start = len(example.prompt) + k * c
        clean = torch.tensor(ids[start : start + c] + [pad] * (c - len(ids[start : start + c])))[
            None
        ]
        noisy, _ = corrupt(clean, t, vocab_size, g)
        known = torch.arange(c) + k * c < labelled
        if holes and float(torch.rand((), generator=g)) < holes:
            noisy, known = dig_hole(clean[0], int(known.sum()), vocab_size, g)
            noisy = noisy[None]
        rows.append((ids, start, clean[0], noisy[0], known, t[0], coin))
    length = -(-max(len(r[0]) for r in rows) // multiple) * multiple
    return Batch(
        ids=torch.tensor([r[0] + [pad] * (length - len(r[0])) for r in rows]),
        real=torch.tensor([[True] * len(r[0]) + [False] * (length - len(r[0])) for r in rows]),
        start=torch.tensor([r[1] for r in rows]),
        clean=torch.stack([r[2] for r in rows]),
        noisy=torch.stack([r[3] for r in rows]),
        labelled=torch.stack([r[4] for r in rows]),
        t=torch.stack([r[5] for r in rows]),
        self_conditioned=torch.tensor([r[6] for r in rows]),
    )


def mean_cross_entropy(
    logits: Float[Tensor, "b s v"], labels: Int[Tensor, "b s"], counted: Bool[Tensor, "b s"]
) -> Float[Tensor, "b"]:
    """[B]: mean over the counted positions of each row, nats; 0 for a row that counts none."""
    each = F.cross_entropy(logits.flatten(0, 1), labels.flatten(), reduction="none").view_as(labels)
    return (each * counted).sum(-1) / counted.sum(-1).clamp(min=1)


def encoder_loss(model, hidden: Float[Tensor, "b l d"], batch: Batch) -> Float[Tensor, "b"]:
    """Next-token cross-entropy over prompt, answer and its end-token fill, [B]."""
    return mean_cross_entropy(model.logits(hidden[:, :-1]), batch.ids[:, 1:], batch.real[:, 1:])


def denoising_logits(model, cache, batch: Batch) -> Float[Tensor, "b c v"]:
    """The decoder on the noisy canvas, [B, C, V].

    Half of the rows are told what a first, detached pass believed.
    """
    cache = cache.upto(batch.start)
    with torch.no_grad():
        belief = model.decode(batch.noisy, cache)
    return model.decode(batch.noisy, cache, belief, batch.self_conditioned)


def losses(model, batch: Batch) -> tuple[Float[Tensor, "b"], Float[Tensor, "b"]]:
    """(denoising, encoder) loss of each row, [B] nats.

    Gradients flow from the decoder through the cache to the encoder.
    """
    hidden, cache = model.encode_hidden(batch.ids)
    logits = denoising_logits(model, cache, batch)
    return mean_cross_entropy(logits, batch.clean, batch.labelled), encoder_loss(
        model, hidden, batch
    )


def total_loss(model, batch: Batch) -> Float[Tensor, ""]:
    """Their plain sum, averaged over the rows: what training minimises."""
    denoising, encoder = losses(model, batch)
    return denoising.mean() + encoder.mean()
