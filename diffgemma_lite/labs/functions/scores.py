"""How good are the functions it writes? Run, compared, counted; the denoiser beside the same
weights left to right.

    python -m diffgemma_lite.labs evaluate functions-small --n 1000 --seed 0 --json

prints one JSON object. Both write every function in turn in one process, batch 1: the denoiser with
the checkpoint's sampler settings and the cdf draw, the other greedy with its cache. Text tokens are
those before the end token; the fill is not counted.
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from ...checks import check_integer
from ...generation import generate, generate_autoregressive
from ...model import DiffusionGemma
from ...sampler import SamplerConfig
from ...tokenizer import Tokenizer, encode_prompt
from ..scores import share
from .data import Function, functions
from .judge import Judge

BOTH = ("denoiser", "left_to_right")


@dataclass(frozen=True)
class Written:
    """One body that was written: its text, its tokens without the end, the passes and the seconds
    it took.
    """

    body: str
    tokens: int
    forwards: int
    seconds: float
    right: bool


def write_one(
    model: DiffusionGemma,
    tokenizer: Tokenizer,
    prompt: str,
    how: str,
    seed: int,
    sampler: SamplerConfig | None = None,
) -> tuple[str, int, int, float]:
    """(body, text tokens, passes of the model with the prompt's, seconds) for one prompt, by one of
    BOTH.
    """
    end, room = model.config.eos_token_id, model.config.canvas_length
    limit = model.config.max_position_embeddings - room
    ids = encode_prompt(tokenizer, "body", prompt, limit + 1)
    if len(ids) > limit:
        raise ValueError(f"prompt: has more than {limit} tokens, takes a shorter one")
    given = {"max_new_tokens": room, "eos_token_id": end}
    start = time.perf_counter()
    if how == "denoiser":
        sampler = sampler or SamplerConfig.from_defaults(model.generation_defaults, draw="cdf")
        generator = torch.Generator().manual_seed(seed)
        out = generate(model, torch.tensor([ids]), sampler, generator=generator, **given)
    else:
        out = generate_autoregressive(model, torch.tensor([ids]), **given)
    seconds = time.perf_counter() - start
    row = out.tokens[0].tolist()
    row = row[: row.index(end)] if end in row else row
    return tokenizer.decode(row), len(row), int(out.metrics["forwards"]), seconds


def write_all(
    model: DiffusionGemma, tokenizer: Tokenizer, asked: Sequence[Function], seed: int
) -> dict[str, list[Written]]:
    """Every function by both, in turn; which one goes first alternates. Judged after the clock has
    stopped.
    """
    found: dict[str, list[Written]] = {how: [] for how in BOTH}
    for how in BOTH:
        write_one(
            model, tokenizer, asked[0].prompt, how, seed
        )  # the first pass of a process is slower
    with Judge() as judge:
        for i, function in enumerate(asked):
            for how in BOTH if i % 2 else BOTH[::-1]:
                body, *rest = write_one(
                    model, tokenizer, function.prompt, how, seed * 1_000_003 + i
                )
                found[how].append(Written(body, *rest, judge.right(function, body)))
    return found


def quotient(above: Sequence[float], below: Sequence[float]) -> dict[str, float]:
    """{"n", "ratio", "half_width"}: sum over sum of paired numbers, with its 95% interval (delta
    method).
    """
    n, ratio = len(above), sum(above) / sum(below)
    rest = [a - ratio * b for a, b in zip(above, below, strict=True)]
    spread = math.sqrt(sum(r * r for r in rest) / max(1, n - 1))
    return {"n": n, "ratio": ratio, "half_width": 1.96 * spread / math.sqrt(n) / (sum(below) / n)}


def summary(found: dict[str, list[Written]]) -> dict:
    """The figures of the two lists, paired."""
    one, two = found["denoiser"], found["left_to_right"]
    n = len(one)
    rights = {how: share(sum(w.right for w in some), n) for how, some in found.items()}
    difference = [a.right - b.right for a, b in zip(one, two, strict=True)]
    speed = quotient([w.seconds for w in two], [w.seconds for w in one])
    tokens = quotient([w.tokens for w in one], [w.forwards for w in one])

    def mean(some: list[Written], name: str) -> float:
        return sum(getattr(w, name) for w in some) / n

    return {
        "right": rights["denoiser"]["share"],
        "right_interval": [rights["denoiser"]["low"], rights["denoiser"]["high"]],
        "right_left_to_right": rights["left_to_right"]["share"],
        "right_left_to_right_interval": [
            rights["left_to_right"]["low"],
            rights["left_to_right"]["high"],
        ],
        "right_difference": quotient(difference, [1] * n),
        "text_tokens_per_forward": tokens["ratio"],
        "text_tokens_per_forward_half_width": tokens["half_width"],
        "text_tokens": mean(one, "tokens"),
        "text_tokens_left_to_right": mean(two, "tokens"),
        "forwards": mean(one, "forwards"),
        "forwards_left_to_right": mean(two, "forwards"),
        "seconds": mean(one, "seconds"),
        "seconds_left_to_right": mean(two, "seconds"),
        "speed_up": speed["ratio"],
        "speed_up_half_width": speed["half_width"],
    }


@torch.no_grad()
def evaluate(
    model: DiffusionGemma,
    tokenizer: Tokenizer,
    *,
    n: int = 1000,
    seed: int = 0,
    split: str = "combinations",
) -> dict:
    """All of it on `n` functions of a split. `by_operations` says how the share right falls with
    their number.
    """
    check_integer("n", n, 1)
    asked = functions(split, n, seed=seed)
    found = write_all(model.eval(), tokenizer, asked, seed)
    parts = {}
    for depth in sorted({min(len(f.keys) - 1, 4) for f in asked}):
        at = [i for i, f in enumerate(asked) if min(len(f.keys) - 1, 4) == depth]
        parts[str(depth) if depth < 4 else "4 and more"] = {
            how: share(sum(found[how][i].right for i in at), len(at)) for how in BOTH
        }
    about = {"n": n, "seed": seed, "split": split, "threads": torch.get_num_threads()}
    return about | summary(found) | {"by_operations": parts}


def load(folder: str | Path) -> tuple[DiffusionGemma, Tokenizer]:
    """The shipped weights as float32, and their tokenizer."""
    return DiffusionGemma.from_pretrained(folder, dtype=torch.float32).eval(), Tokenizer.load(
        folder
    )
