"""What is a text model worth? Losses, canvases, holes filled, bodies that parse, stutter and bits
per token on held-out modules.

    python -m diffgemma_lite.labs evaluate python-small            # the weights that lie there
    python -m diffgemma_lite.labs evaluate python-small --write    # into its scores.json and card

Each number stands beside the same weights written from left to right. That mode is the encoder side
of this very model, trained jointly with the denoising; it is no separate language model of the same
size. Walked through in notebook 06.
"""

from __future__ import annotations

import ast
import json
import platform
import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import torch

from ...generation import generate, generate_autoregressive
from ...loss import example_generator
from ...model import DiffusionGemma
from ...sampler import SamplerConfig
from ..evaluate import evaluate, evenly, left_padded, mean_and_interval, sample_report
from ..likelihood import DRAWS, STEPS, ratio, text_likelihood
from ..recipe import HELD_OUT_EXAMPLES, Recipe, copy_logs, trained_model
from ..scores import share, write_scores
from . import data as corpus
from .card import write_card

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


TEXT_PLAN, SAMPLED_PROMPTS = TextPlan(), 32


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


def text_scores(it: Recipe, model: DiffusionGemma, **changes) -> dict:
    """What `evaluate_text` finds on the test split, its metrics being the last that are looked at.
    changes: of the recipe's TextPlan.
    """
    some, plan = _test_texts(it)
    found = evaluate_text(
        model, some, it.examples("test"), it.tokenizer.decode, replace(plan, **changes)
    )
    return {"split": "test", "python": platform.python_version()} | found


def holes_of_stages(it: Recipe, out: Path) -> list[dict]:
    """{"steps", "infill"} of each stage before the last one, the first one first: the same holes as
    in the text scores.
    """
    some, plan = _test_texts(it)
    pairs, found = list(zip(some, it.examples("test"), strict=True)), []
    for depth, (stage, _) in enumerate(it.earlier_stages(), 1):
        model, meta = trained_model(stage, out.joinpath(*["first"] * depth))
        found.append({"steps": int(meta["step"]), "infill": infill_sizes(model, pairs, plan)})
    return found[::-1]


def _test_texts(it: Recipe) -> tuple[list, TextPlan]:
    some = corpus.load_corpus("test", tasks=it.plan["data"]["tasks"])
    return some, replace(TEXT_PLAN, **it.plan.get("text", {}))


def loss_scores(it: Recipe, model: DiffusionGemma, n: int | None, seed: int) -> dict:
    """Losses and canvases on the validation split."""
    held_out, sampled = it.examples("validation"), min(n or SAMPLED_PROMPTS, SAMPLED_PROMPTS)
    every = max(1, len(held_out) // (n or HELD_OUT_EXAMPLES))
    some = held_out[:: max(1, len(held_out) // sampled)][:sampled]
    sampler = SamplerConfig.from_defaults(it.plan["generation"])
    return {
        "held_out": evaluate(model, held_out[::every], seed=seed),
        "sampling": sample_report(model, [e.prompt for e in some], sampler, seed=seed),
    }


def evaluate_run(
    recipe: str | Path,
    out: str | Path | None = None,
    *,
    n: int | None = None,
    seed: int = 0,
    write: bool = False,
) -> dict:
    """The scores of the weights beside the recipe; `write`: text metrics into scores.json, and the
    card. With a run in `out`: of its weights, and model, log, scores and card go beside the recipe.

    n: how many held-out examples, holes, bodies and likelihoods (None: as recorded).
    """
    it = Recipe(recipe)
    if it.kind != "python":
        raise ValueError(f"recipe: {it.path} has kind {it.kind!r}, takes 'python'")
    folder, path = it.path.parent, it.path.with_name("scores.json")
    fewer = {} if n is None else {"holes": n, "texts": n, "likelihoods": n}
    fewer |= {"seed": seed} if seed else {}
    if out is None:
        model = DiffusionGemma.from_pretrained(folder, dtype=torch.float32)
        scores = json.loads(path.read_text(encoding="utf-8")) if write else {}
        if not write:
            scores |= loss_scores(it, model, n, seed)
        scores["text"] = text_scores(it, model, **fewer)
        if write:
            write_scores(path, scores, indent=2)
            write_card(it.path)
        return scores
    model, meta = trained_model(it, Path(out))
    scores = loss_scores(it, model, n, seed) | {"text": text_scores(it, model, **fewer)}
    if it.earlier_stages():
        scores["holes_before"] = holes_of_stages(it, Path(out))
    run = {name: json.loads(meta[name]) for name in ("data", "starts")}
    scores |= {"python": platform.python_version(), "run": run}
    model.to(torch.bfloat16).save_pretrained(folder)
    copy_logs(it, Path(out))
    if "tokenizer" in it.plan:
        it.tokenizer.save(folder)
    write_scores(path, scores, indent=2)
    write_card(it.path)
    return scores
