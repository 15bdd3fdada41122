"""Does a model keep the promises of a record?

The same weights by diffusion and from left to right. Notebook 08.

A record of data/templates.py says early what only its later part makes true. Written from left to
right, the early part is fixed before the later one exists; a canvas settles as a whole. Three
questions, each with n, seeds and intervals:

    diffusion / greedy / drawn    how many records break no constraint, and which ones do the others
                                  break?
    ends                          the record's last tokens are given: a canvas pins them; from left
                                  to right nothing can be told, so the end is compared afterwards,
                                  or put in the place of what was written there

planted.py asks a fourth one. Steps are counted by wrapping `decode`; a forward of the
autoregressive mode writes a token.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ...checks import check_class, check_integer
from ...generation import generate, generate_autoregressive
from ...model import DiffusionGemma
from ...noise import uniform_tokens
from ...sampler import SamplerConfig
from ...tokenizer import Tokenizer, encode_prompt
from ...trace.observe import counting
from ..scores import share
from .checks import check
from .data import FAMILIES, Record, records

MAX_PROMPT = 32
END_TOKENS = 13  # how much of a record's end is given
TEMPERATURE = 0.8  # of the drawn autoregressive records
BATCH = 50


@dataclass(frozen=True)
class Written:
    """What was written for some records.

    Ids [C] of each, with its end token and fill, and the passes each one took.
    """

    rows: list[Tensor]
    passes: list[int]


def batches_of(tokenizer: Tokenizer, some: Sequence[Record]) -> Iterator[tuple[list[int], Tensor]]:
    """(numbers of some records, ids [B, S] of their requests), those of one length together.

    Nothing is padded.
    """
    rows = [encode_prompt(tokenizer, record.task, record.prompt, MAX_PROMPT) for record in some]
    for length in sorted(set(map(len, rows))):
        alike = [i for i, row in enumerate(rows) if len(row) == length]
        for at in range(0, len(alike), BATCH):
            numbers = alike[at : at + BATCH]
            yield numbers, torch.tensor([rows[i] for i in numbers])


def canvases_of(tokenizer: Tokenizer, some: Sequence[Record], length: int) -> tuple[Tensor, Tensor]:
    """(canvas [B, C], tokens [B]) of the records themselves, filled up with end tokens.

    Tokens counts no end token.
    """
    rows = tokenizer.encode_batch([record.target for record in some])
    sizes = torch.tensor([len(row) for row in rows])
    if int(sizes.max()) >= length:
        raise ValueError(
            f"records: one takes {int(sizes.max())} tokens, takes fewer than the canvas of {length}"
        )
    return torch.tensor([row + [tokenizer.eos_id] * (length - len(row)) for row in rows]), sizes


def text_of(tokenizer: Tokenizer, row: Tensor) -> str:
    """The text before the first end token. Markers stay visible, so that they break the form."""
    ids = row.tolist()
    ids = ids[: ids.index(tokenizer.eos_id)] if tokenizer.eos_id in ids else ids
    return tokenizer.backend.decode(ids, skip_special_tokens=False)


def denoise_records(
    model: DiffusionGemma,
    tokenizer: Tokenizer,
    some: Sequence[Record],
    sampler: SamplerConfig,
    *,
    seed: int = 0,
    canvas: Tensor | None = None,
    pinned: Tensor | None = None,
    **more,
) -> Written:
    """One canvas for each request; record number i draws from the seed `seed + i`, whatever the
    batch.

    canvas [R, C]: where to start instead of noise; pinned [R, C]: positions of it that must stay;
    more: for `generate`.
    """
    rows, passes, length = {}, {}, model.config.canvas_length
    for numbers, ids in batches_of(tokenizer, some):
        generators, given = [torch.Generator().manual_seed(seed + i) for i in numbers], {}
        if canvas is not None:
            start, here = canvas[numbers], None if pinned is None else pinned[numbers]
            # what is not given starts as noise: the record's own tokens must not leak in
            if here is not None:
                noise = [
                    uniform_tokens((1, length), model.config.vocab_size, g, ids.device)
                    for g in generators
                ]
                start = torch.where(here, start, torch.cat(noise))
            given = {"initial_canvas": start, "pinned": here}
        with counting(model) as calls:
            out = generate(
                model, ids, sampler, max_new_tokens=length, generator=generators, **given, **more
            )
        if max(out.steps[0]) != calls[0]:
            raise RuntimeError(
                f"steps: generate says {max(out.steps[0])}, decode was called {calls[0]} times"
            )
        rows |= dict(zip(numbers, out.tokens, strict=True))
        passes |= dict(zip(numbers, out.steps[0], strict=True))
    return Written([rows[i] for i in range(len(some))], [passes[i] for i in range(len(some))])


def write_forward(
    model: DiffusionGemma,
    tokenizer: Tokenizer,
    some: Sequence[Record],
    *,
    temperature: float = 0.0,
    seed: int = 0,
) -> Written:
    """The same weights, one token after another, to the end token or to a canvas' length.

    The first token is given, one and the same for all records of a family: a request has no mark of
    its end, and from left to right it might go on for ever. (A canvas begins where the request
    ends.)
    """
    rows, passes = {}, {}
    for numbers, ids in batches_of(tokenizer, some):
        first = torch.tensor([tokenizer.encode(some[i].target)[:1] for i in numbers])
        out = generate_autoregressive(
            model,
            torch.cat([ids, first], 1),
            max_new_tokens=model.config.canvas_length - 1,
            temperature=temperature,
            eos_token_id=tokenizer.eos_id,
            generator=[torch.Generator().manual_seed(seed + i) for i in numbers],
        )
        rows |= dict(zip(numbers, torch.cat([first, out.tokens], 1), strict=True))
        passes |= dict(zip(numbers, out.lengths.tolist(), strict=True))
    return Written([rows[i] for i in range(len(some))], [passes[i] for i in range(len(some))])


def broken_in(
    tokenizer: Tokenizer, some: Sequence[Record], rows: Sequence[Tensor]
) -> list[list[str]]:
    """For each record the broken constraints, in words."""
    return [
        check(record.family, record.prompt, text_of(tokenizer, row))
        for record, row in zip(some, rows, strict=True)
    ]


def score_records(tokenizer: Tokenizer, some: Sequence[Record], written: Written) -> dict:
    """{"valid": share with interval, "passes": mean, "broken": {constraint.

    How many records break it}}.
    """
    broken = broken_in(tokenizer, some, written.rows)
    names = Counter(name for words in broken for name in {word.split(":")[0] for word in words})
    return {
        "valid": share(sum(not words for words in broken), len(broken)),
        "passes": sum(written.passes) / len(written.passes),
        "broken": dict(names.most_common()),
    }


def score_ends(
    model: DiffusionGemma,
    tokenizer: Tokenizer,
    some: Sequence[Record],
    sampler: SamplerConfig,
    forward: Written,
    *,
    seed: int = 0,
) -> dict:
    """The end of each record is given.

    Its last END_TOKENS tokens. forward: greedy records to compare with.
    """
    length = model.config.canvas_length
    canvas, sizes = canvases_of(tokenizer, some, length)
    pinned = torch.arange(length) >= (sizes - END_TOKENS)[:, None]
    pinned_records = denoise_records(
        model, tokenizer, some, sampler, seed=seed, canvas=canvas, pinned=pinned
    )
    padded = [
        torch.cat([row, row.new_full((length - len(row),), tokenizer.eos_id)])
        for row in forward.rows
    ]
    # after an end token: pad
    padded = [torch.where(row == tokenizer.pad_id, tokenizer.eos_id, row) for row in padded]
    as_given = [
        bool((row[at] == want[at]).all())
        for row, want, at in zip(padded, canvas, pinned, strict=True)
    ]
    replaced = [
        torch.where(at, want, row) for row, want, at in zip(padded, canvas, pinned, strict=True)
    ]
    valid = sum(not words for words in broken_in(tokenizer, some, replaced))
    return {
        "diffusion_pinned": score_records(tokenizer, some, pinned_records),
        "greedy_ends_as_given": share(sum(as_given), len(some)),
        "greedy_end_replaced_valid": share(valid, len(some)),
    }


def score_family(
    model: DiffusionGemma,
    tokenizer: Tokenizer,
    family: str,
    sampler: SamplerConfig,
    *,
    count: int,
    seed: int = 0,
    split: str = "test",
    note: Callable[[str], None] = lambda _: None,
) -> dict:
    """All three questions for one family, on the same records."""
    check_class("model", model, DiffusionGemma)
    check_integer("count", count, 1)
    some, found = records(split, count, seed=seed, families=(family,)), {}
    forward = write_forward(model, tokenizer, some)
    drawn = write_forward(model, tokenizer, some, temperature=TEMPERATURE, seed=seed)
    canvases = denoise_records(model, tokenizer, some, sampler, seed=seed)
    for name, written in (("diffusion", canvases), ("greedy", forward), ("drawn", drawn)):
        found[name] = score_records(tokenizer, some, written)
        note(f"{family}, {name}: {found[name]}")
    found["ends"] = score_ends(model, tokenizer, some, sampler, forward, seed=seed)
    note(f"{family}, ends: {found['ends']}")
    return found


def score_all(model: DiffusionGemma, tokenizer: Tokenizer, sampler: SamplerConfig, **more) -> dict:
    """`score_family` of each family, and shares over all of them together."""
    families = {
        family: score_family(model, tokenizer, family, sampler, **more) for family in FAMILIES
    }

    def together(name: str) -> dict:
        parts = [families[family][name] for family in FAMILIES]
        n = sum(part["valid"]["n"] for part in parts)
        hits = sum(round(part["valid"]["share"] * part["valid"]["n"]) for part in parts)
        return {
            "valid": share(hits, n),
            "passes": sum(part["passes"] * part["valid"]["n"] for part in parts) / n,
        }

    return {
        "families": families,
        "all": {name: together(name) for name in ("diffusion", "greedy", "drawn")},
    }
