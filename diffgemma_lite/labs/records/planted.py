"""A wrong token is planted in a nearly finished canvas.

Which way of decoding finds and repairs it? Notebook 08.

A trial: a right record of the test split, a late state of it (a few positions are still noise, or
still masked), and one wrong token among those that stand. Both samplers go on from there with the
same weights:

    uniform   the entropy-bound sampler, which decides anew in each step what it accepts
    masked    step_functions.masked_step, which fills in what is masked and touches nothing that is
              written

Only tokens that break a constraint are planted, so that "repaired" can be asked of the record: does
it break none at the end? The model was trained with uniform noise; the mask is a marker that no
record holds: training met it only as noise, and as noise it is read.
"""

from __future__ import annotations

import functools
import random
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ...checks import check_integer
from ...model import DiffusionGemma
from ...noise import uniform_tokens
from ...sampler import SamplerConfig
from ...tokenizer import Tokenizer
from ..scores import share
from ..step_functions import masked_step
from .checks import check
from .data import FAMILIES, Record, records
from .scores import Written, broken_in, canvases_of, denoise_records, text_of

LATE = 0.1  # share of a record's tokens that are not settled yet
MASK = "gap"  # the marker that serves as the mask
KINDS = ("any", "digit")  # any token of the vocabulary, or a digit in the place of a digit


@dataclass(frozen=True)
class Trials:
    """T records, their canvases [T, C], what is unsettled [T, C], where the wrong token stands [T]
    and which it is [T].
    """

    records: list[Record]
    canvas: Tensor  # right but for the planted token
    unsettled: Tensor  # bool
    position: Tensor
    wrong: Tensor

    def start(self, fill: Tensor | int) -> Tensor:
        """The late canvas, the unsettled positions filled with these ids."""
        return torch.where(self.unsettled, torch.as_tensor(fill), self.canvas)


def plant(
    model: DiffusionGemma,
    tokenizer: Tokenizer,
    count: int,
    *,
    families: Sequence[str] = tuple(FAMILIES),
    kind: str = "any",
    seed: int = 0,
    split: str = "test",
) -> Trials:
    """`count` trials, the families in turn.

    Trial i depends on (seed, split, families, kind, i) alone.
    """
    if kind not in KINDS:
        raise ValueError(f"kind: got {kind!r}, takes one of {', '.join(KINDS)}")
    check_integer("count", count, 1)
    some = records(split, count, seed=seed, families=families)
    canvas, sizes = canvases_of(tokenizer, some, model.config.canvas_length)
    unsettled, position, wrong = torch.zeros_like(canvas, dtype=torch.bool), [], []
    digits, mask = [tokenizer.encode(str(n))[0] for n in range(10)], tokenizer.marker_id(MASK)
    for i, record in enumerate(some):
        rng, size = random.Random(f"{seed} {split} {kind} planted {i}"), int(sizes[i])
        choices = [t for t in range(tokenizer.vocab_size) if t != mask] if kind == "any" else digits
        places = (
            range(size)
            if kind == "any"
            else [p for p in range(size) if int(canvas[i, p]) in digits]
        )
        place, token = _one_that_breaks(tokenizer, record, canvas[i], places, choices, rng)
        late = rng.sample([p for p in range(size) if p != place], max(1, round(LATE * size)))
        unsettled[i, late] = True
        canvas[i, place] = token
        position.append(place)
        wrong.append(token)
    return Trials(some, canvas, unsettled, torch.tensor(position), torch.tensor(wrong))


def _one_that_breaks(
    tokenizer: Tokenizer,
    record: Record,
    canvas: Tensor,
    places: Sequence[int],
    choices: Sequence[int],
    rng: random.Random,
) -> tuple[int, int]:
    """A random place and a random token that breaks a constraint there.

    A digit may also make another right record.
    """
    while True:
        place, token = rng.choice(places), rng.choice(choices)
        changed = canvas.clone()
        changed[place] = token
        if token != int(canvas[place]) and check(
            record.family, record.prompt, text_of(tokenizer, changed)
        ):
            return place, token


def go_on(
    model: DiffusionGemma,
    tokenizer: Tokenizer,
    trials: Trials,
    sampler: SamplerConfig,
    *,
    way: str,
    seed: int = 0,
    **more,
) -> Written:
    """Decode on from the late canvases, by the "uniform" or the "masked" sampler."""
    if way not in ("uniform", "masked"):
        raise ValueError(f"way: got {way!r}, takes 'uniform' or 'masked'")
    if way == "masked":
        mask = tokenizer.marker_id(MASK)
        more["step_function"] = functools.partial(masked_step, mask_id=mask)
        return denoise_records(
            model, tokenizer, trials.records, sampler, seed=seed, canvas=trials.start(mask), **more
        )
    g = torch.Generator().manual_seed(seed)
    noise = uniform_tokens(
        tuple(trials.canvas.shape), model.config.vocab_size, g, trials.canvas.device
    )
    return denoise_records(
        model, tokenizer, trials.records, sampler, seed=seed, canvas=trials.start(noise), **more
    )


def score_planted(tokenizer: Tokenizer, trials: Trials, written: Written) -> dict:
    """Shares of the trials: the record breaks no constraint at the end.

    The planted token stands no more. Mean steps.
    """
    broken = broken_in(tokenizer, trials.records, written.rows)
    gone = sum(
        int(row[p]) != int(w)
        for row, p, w in zip(written.rows, trials.position, trials.wrong, strict=True)
    )
    return {
        "repaired": share(sum(not words for words in broken), len(broken)),
        "replaced": share(gone, len(broken)),
        "steps": sum(written.passes) / len(written.passes),
    }


def score_repairs(
    model: DiffusionGemma,
    tokenizer: Tokenizer,
    sampler: SamplerConfig,
    *,
    count: int,
    seed: int = 0,
    split: str = "test",
    families: Sequence[str] = tuple(FAMILIES),
) -> dict:
    """{family: {kind: {"uniform": ..., "masked": ...}}}, `count` trials of each kind, both ways
    from the same ones.
    """
    found = {}
    for family in families:
        found[family] = {}
        for kind in KINDS:
            trials = plant(
                model, tokenizer, count, families=(family,), kind=kind, seed=seed, split=split
            )
            ways = {
                way: go_on(model, tokenizer, trials, sampler, way=way, seed=seed)
                for way in ("uniform", "masked")
            }
            found[family][kind] = {
                way: score_planted(tokenizer, trials, written) for way, written in ways.items()
            }
    return found
