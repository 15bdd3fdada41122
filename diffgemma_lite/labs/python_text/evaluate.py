"""What is a text model worth?

Holes filled, canvases that parse, stutter and bits per token on held-out modules.

    # "text" in its scores.json, and its card
    python -m diffgemma_lite.labs.python_text.evaluate assets/checkpoints/python-small

Each number stands beside the same weights written from left to right. That mode is the encoder side
of this very model, trained jointly with the denoising; it is no separate language model of the same
size. Walked through in notebook 06.
"""

from __future__ import annotations

import argparse
import ast
import json
import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from torch import Tensor

from ...generation import generate, generate_autoregressive
from ...loss import example_generator
from ...model import DiffusionGemma
from ...sampler import SamplerConfig
from ..evaluate import mean_and_interval
from ..likelihood import DRAWS, STEPS, ratio, text_likelihood
from ..scores import share

# of the drawn autoregressive texts: the middle of the published sampler's 0.4 to 0.8
TEMPERATURE = 0.6


@dataclass(frozen=True, kw_only=True)
class TextPlan:
    """How much to evaluate. The defaults take about ten minutes of one core for the small model."""

    hole_sizes: tuple[int, ...] = (1, 2, 4)
    holes: int = 320  # of each size, at most one in an example
    hole_steps: int = 16  # denoising steps allowed for a hole
    texts: int = 236  # signatures that get a body
    likelihoods: int = 400  # canvases
    steps: int = STEPS
    draws: int = DRAWS
    batch_size: int = 40
    seed: int = 0


def left_padded(rows: Sequence[Sequence[int]], pad: int, device=None) -> tuple[Tensor, Tensor]:
    """Rows of any length -> (ids, attention mask), [B, longest], padded on the left."""
    width = max(map(len, rows))
    ids = torch.tensor([[pad] * (width - len(row)) + list(row) for row in rows], device=device)
    mask = torch.tensor([[0] * (width - len(row)) + [1] * len(row) for row in rows], device=device)
    return ids, mask


def evenly(items: Sequence, n: int) -> list:
    """n of them, evenly spaced; all of them if there are fewer."""
    return [items[i * len(items) // n] for i in range(n)] if n < len(items) else list(items)


@torch.no_grad()
def infill(
    model: DiffusionGemma, examples: Sequence, size: int, sampler: SamplerConfig, plan: TextPlan
) -> dict:
    """Holes of `size` tokens: how often is every token of it the one that stood there?

    Paired, the same holes for both.

    diffusion: the first canvas is pinned but for the hole, which starts as noise: both sides are
    known. autoregressive: the same weights, greedy, which see what stands to the left. At least one
    token of the answer is left on either side.
    """
    c, pad, eos = model.config.canvas_length, model.config.pad_token_id, model.config.eos_token_id
    able = evenly(
        [(i, e) for i, e in enumerate(examples) if min(c, len(e.response)) >= size + 2], plan.holes
    )
    both, left, steps = [], [], []
    for at in range(0, len(able), plan.batch_size):
        some = able[at : at + plan.batch_size]
        generators = [example_generator(plan.seed, size, i) for i, _ in some]
        starts = [
            int(torch.randint(1, min(c, len(e.response)) - size, (), generator=g))
            for (_, e), g in zip(some, generators, strict=True)
        ]
        filled = [[*e.response[:c], *[eos] * (c - len(e.response))] for _, e in some]
        clean = torch.tensor(filled, device=model.device)
        place, start = (
            torch.arange(c, device=model.device),
            torch.tensor(starts, device=model.device)[:, None],
        )
        hole = (place >= start) & (place < start + size)
        drawn = [torch.randint(0, model.config.vocab_size, (c,), generator=g) for g in generators]
        noise = torch.stack(drawn).to(model.device)
        ids, mask = left_padded([e.prompt for _, e in some], pad, model.device)
        out = generate(
            model,
            ids,
            sampler,
            attention_mask=mask,
            max_new_tokens=c,
            generator=generators,
            initial_canvas=torch.where(hole, noise, clean),
            pinned=~hole,
        )
        both.append((out.tokens == clean).all(-1))
        steps += out.steps[0]
        before = [[*e.prompt, *e.response[:s]] for (_, e), s in zip(some, starts, strict=True)]
        ids, mask = left_padded(before, pad, model.device)
        greedy = generate_autoregressive(
            model, ids, attention_mask=mask, max_new_tokens=size
        ).tokens
        left.append((greedy == clean[hole].view(-1, size)).all(-1))
    if not able:
        raise ValueError(
            f"examples: none has an answer of {size + 2} tokens, which a hole of {size} needs"
        )
    two, one = torch.cat(both).cpu(), torch.cat(left).cpu()
    return {
        "size": size,
        "diffusion": share(int(two.sum()), len(two)),
        "autoregressive": share(int(one.sum()), len(one)),
        "difference": mean_and_interval(two.double() - one.double()),
        "steps": mean_and_interval(torch.tensor(steps)),
    }


def infill_sizes(
    model: DiffusionGemma, pairs: Sequence[tuple], plan: TextPlan = TextPlan()
) -> list[dict]:
    """`infill` for each size of the plan, in the code among the pairs (text, its ids)."""
    code = [ids for e, ids in pairs if e.task in ("body", "continue")]
    sampler = SamplerConfig.from_defaults(
        model.generation_defaults, draw="cdf", max_denoising_steps=plan.hole_steps
    )
    return [infill(model.eval(), code, size, sampler, plan) for size in plan.hole_sizes]


def write(
    model: DiffusionGemma, prompts: Sequence[list[int]], how: Callable, plan: TextPlan
) -> list[list[int]]:
    """One canvas of tokens after each prompt, up to the end token (left out). how: `generate` or
    its like.
    """
    c, eos, written = model.config.canvas_length, model.config.eos_token_id, []
    for at in range(0, len(prompts), plan.batch_size):
        some = prompts[at : at + plan.batch_size]
        ids, mask = left_padded(some, model.config.pad_token_id, model.device)
        generators = [
            torch.Generator(device=model.device).manual_seed(plan.seed + at + i)
            for i in range(len(some))
        ]
        out = how(
            model,
            ids,
            attention_mask=mask,
            max_new_tokens=c,
            eos_token_id=eos,
            generator=generators,
        )
        written += [row[: row.index(eos)] if eos in row else row for row in out.tokens.tolist()]
    return written


def parses(code: str) -> bool:
    """Is it Python?"""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # odd escapes in strings
            ast.parse(code)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return False
    return True


def stutter(texts: Sequence[Sequence[int]], gram: int = 4) -> dict[str, dict[str, float]]:
    """Share of tokens equal to the one before, and of runs of `gram` tokens that stood in the same
    text already.
    """
    twice = torch.tensor(
        [[sum(a == b for a, b in zip(x, x[1:], strict=False)), max(0, len(x) - 1)] for x in texts]
    ).double()
    runs = [[tuple(x[i : i + gram]) for i in range(len(x) - gram + 1)] for x in texts]
    again = torch.tensor([[len(r) - len(set(r)), len(r)] for r in runs]).double()
    found = {"same_token": twice, "repeated_run": again}
    return {name: ratio(*counts.T) for name, counts in found.items() if counts[:, 1].sum() > 0}


def canvases(
    model: DiffusionGemma,
    pairs: Sequence[tuple],
    decode: Callable,
    sampler: SamplerConfig,
    plan: TextPlan,
) -> dict:
    """Bodies for signatures: share that parse, and stutter.

    By diffusion, from left to right, and the true ones cut alike.

    pairs: (Example, its ids). A body that is empty parses, for its docstring stands; so both counts
    are given.
    """
    pairs = evenly([(e, ids) for e, ids in pairs if parses(e.prompt)], plan.texts)
    if not pairs:
        raise ValueError("pairs: has no body whose signature parses, takes at least one")
    prompts = [ids.prompt for _, ids in pairs]

    def drawn(*given, **more):
        return generate_autoregressive(*given, temperature=TEMPERATURE, **more)

    def denoised(model, ids, **more):
        return generate(model, ids, sampler, **more)

    found = {
        "true": [ids.response[: model.config.canvas_length] for _, ids in pairs],
        "diffusion": write(model, prompts, denoised, plan),
        "autoregressive, greedy": write(model, prompts, generate_autoregressive, plan),
        f"autoregressive, temperature {TEMPERATURE}": write(model, prompts, drawn, plan),
    }

    def told(texts: list[list[int]]) -> dict:
        bodies = [decode(ids) for ids in texts]
        good = [parses(e.prompt + body) for (e, _), body in zip(pairs, bodies, strict=True)]
        full = [ok for ok, body in zip(good, bodies, strict=True) if body.strip()]
        about = {"parse": share(sum(good), len(good)), "empty": len(good) - len(full)}
        about |= {"parse_not_empty": share(sum(full), len(full))} if full else {}
        return (
            about
            | {"tokens": mean_and_interval(torch.tensor(list(map(len, texts))))}
            | stutter(texts)
        )

    return {name: told(texts) for name, texts in found.items()}


def evaluate_text(
    model: DiffusionGemma,
    corpus: Sequence,
    encoded: Sequence,
    decode: Callable,
    plan: TextPlan = TextPlan(),
) -> dict:
    """Everything above, of text pairs (task, prompt, target) and their ids in the same order.
    decode(ids) -> text.
    """
    if len(corpus) != len(encoded) or not len(corpus):
        raise ValueError(
            f"encoded: got {len(encoded)} for {len(corpus)} texts, takes one for each, at least one"
        )
    start, pairs = time.process_time(), list(zip(corpus, encoded, strict=True))
    sampler, model = (
        SamplerConfig.from_defaults(model.generation_defaults, draw="cdf"),
        model.eval(),
    )
    whole = [
        ids for ids in encoded if ids.complete or len(ids.response) >= model.config.canvas_length
    ]
    likely = evenly(whole, plan.likelihoods)
    again = {"steps": plan.steps, "draws": plan.draws, "seed": plan.seed}
    scores = {
        "plan": asdict(plan),
        "infill": infill_sizes(model, pairs, plan),
        "canvases": canvases(
            model, [(e, ids) for e, ids in pairs if e.task == "body"], decode, sampler, plan
        ),
        "bits_per_token": text_likelihood(model, likely, batch_size=plan.batch_size, **again),
    }
    return scores | {"cpu_seconds": time.process_time() - start}


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description="Text metrics of a shipped model, into its scores.json and its card."
    )
    parser.add_argument("folder", help="holds recipe.json, model.safetensors and scores.json")
    folder = Path(parser.parse_args(arguments).folder)
    from ..recipe import Recipe, text_scores, write_card

    it, path = Recipe(folder / "recipe.json"), folder / "scores.json"
    scores = json.loads(path.read_text(encoding="utf-8"))
    scores["text"] = text_scores(it, DiffusionGemma.from_pretrained(folder, dtype=torch.float32))
    path.write_text(json.dumps(scores, indent=2) + "\n", encoding="utf-8")
    write_card(it)


if __name__ == "__main__":
    main()
