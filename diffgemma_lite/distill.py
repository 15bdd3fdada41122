"""Fewer steps: a model is taught by its own slow answers, those that a reward lets pass. Notebook 09.

    python -m diffgemma_lite.distill_run assets/checkpoints/sudoku-few-steps/recipe.json runs/distill      # goes on, stage by stage

DiffusionGemma owes its few steps to a second stage of training whose objective is not public (sampler distillation with
rewards, arXiv:2608.00146). This is not that objective. It is ours, kept small, one round after the other:

    1  the teacher, which is the model itself, answers questions with many steps and mild annealing
    2  a reward looks at each answer (are the rules kept? is the record valid?); the right ones become targets
    3  the model is led to a state of a *few-step* run of its own: k < few_steps steps of the sampler, from fresh noise
    4  there it learns the target: cross-entropy at all positions that are not pinned, through the belief it came with

Of several right answers to one question the one is taken that the model found likeliest at first sight, from pure noise:
where many answers are right, a model that keeps all of them open needs a step for each choice. What that costs is measured as
well: `variety`, the share of different answers among all right ones. What happens without step 2 is a run with `rewarded=False`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from .attention import KVCache
from .checks import check_integer
from .data.sudoku import Puzzle, violations
from .generation import generate
from .loss import mean_cross_entropy
from .model import DiffusionGemma
from .sampler import SamplerConfig, Step
from .sudoku_eval import counting, only_digits, share
from .sudoku_task import Layout
from .train import TrainConfig, make_optimizer


@dataclass(frozen=True)
class Questions:
    """What is asked, and what is right. P questions, prompts [P, S] padded on the left, canvases [P, C]."""

    ids: Tensor
    mask: Tensor | None  # bool [P, S], False for padding
    known: Tensor  # ids of the pinned positions; anything elsewhere
    pinned: Tensor  # bool [P, C]
    right: Callable[[int, Tensor], bool]  # (number of the question, canvas [C]) -> the reward
    barred: Callable[[Tensor, Tensor], Tensor] | None = None  # a logits_filter
    end: int | None = None  # the end token, which also fills what comes after it

    def __len__(self) -> int:
        return len(self.ids)


def sudoku_questions(layout: Layout, puzzles: list[Puzzle]) -> Questions:
    """Right is what keeps the rules and the clues: the reward never sees the solution."""
    clues = np.array([p.clues for p in puzzles])
    known, pinned = layout.canvas(clues, np.array([p.solution for p in puzzles]))

    def right(number: int, canvas: Tensor) -> bool:
        own = clues[number : number + 1]
        grid = layout.grid(canvas[None].cpu().numpy(), own)[0]
        return bool((grid > 0).all() and (grid == own[0])[own[0] > 0].all()) and not violations(grid.tolist())

    prompt = torch.from_numpy(layout.prompt(clues))
    return Questions(prompt, None, torch.from_numpy(known), torch.from_numpy(pinned), right, only_digits(layout))


def text_questions(tokenizer, examples: list, canvas_length: int, max_prompt: int, good: Callable[[object, str], bool]) -> Questions:
    """Prompts of data/tokenizer.py's kind. Right is a text that ends within the canvas and that good(example, text) accepts."""
    from .data.tokenizer import encode_prompt
    from .evaluate_text import left_padded

    if not examples:
        raise ValueError("examples: is empty, takes at least one")
    ids, mask = left_padded([encode_prompt(tokenizer, e.task, e.prompt, max_prompt) for e in examples], tokenizer.pad_id)
    nothing = torch.zeros(len(examples), canvas_length, dtype=torch.long)

    def right(number: int, canvas: Tensor) -> bool:
        written = canvas.tolist()
        if tokenizer.eos_id not in written:
            return False
        return good(examples[number], tokenizer.decode(written[: written.index(tokenizer.eos_id)]))

    return Questions(ids, mask.bool(), nothing, nothing.bool(), right, end=tokenizer.eos_id)


def record_questions(tokenizer, records: list, canvas_length: int, max_prompt: int) -> Questions:
    """Requests of data/templates.py; right is what template_checks.py finds no fault with."""
    from .data.template_checks import check

    return text_questions(tokenizer, records, canvas_length, max_prompt, lambda r, text: not check(r.family, r.prompt, text))


def body_questions(tokenizer, examples: list, canvas_length: int, max_prompt: int, count: int) -> Questions:
    """`count` signatures of data/python_corpus.py, evenly spaced; right is a body that is not empty and that Python can parse."""
    from .evaluate_text import evenly, parses

    some = evenly([e for e in examples if parses(e.prompt)], count)
    return text_questions(tokenizer, some, canvas_length, max_prompt, lambda e, text: bool(text.strip()) and parses(e.prompt + text))


@dataclass(frozen=True)
class Answers:
    """Canvases [P, C], with everything after an end token filled with it; steps and rewards [P]; likeliest at first sight [P]."""

    canvas: Tensor
    steps: Tensor
    right: Tensor
    at_sight: Tensor  # nats a position


def _ask(q: Questions, rows: Tensor, model: DiffusionGemma, sampler: SamplerConfig, g: torch.Generator, on_step=None):
    """`generate` on some questions, from fresh noise."""
    known, pinned = q.known[rows], q.pinned[rows]
    noise = torch.randint(0, model.config.vocab_size, known.shape, generator=g)
    start = torch.where(pinned, known, noise)
    mask = None if q.mask is None else q.mask[rows]
    given = dict(pinned=pinned, initial_canvas=start, logits_filter=q.barred, on_step=on_step, attention_mask=mask)
    return start, generate(model, q.ids[rows], sampler, max_new_tokens=known.shape[1], generator=g, **given)


@torch.no_grad()
def answers(model: DiffusionGemma, q: Questions, sampler: SamplerConfig, seed: int = 0, batch_size: int = 64) -> Answers:
    """All questions answered once. Steps are counted by wrapping `model.decode`."""
    parts, last, first = [], [], []

    def look(step: Step) -> None:
        last[:] = [step.argmax]
        if step.index == 0:
            first[:] = [step.scaled_logits.log_softmax(-1)]

    for at in range(0, len(q), batch_size):
        rows = torch.arange(at, min(at + batch_size, len(q)))
        with counting(model) as calls:
            _, out = _ask(q, rows, model, sampler, torch.Generator().manual_seed(seed * 1_000_003 + at), look)
        if max(out.steps[0]) != calls[0]:
            raise RuntimeError(f"steps: generate says {max(out.steps[0])}, decode was called {calls[0]} times")
        canvas = last[0]
        if q.end is not None:
            canvas = canvas.masked_fill((canvas == q.end).cumsum(1) > 0, q.end)
        free = ~q.pinned[rows]
        likely = first[0].gather(-1, canvas[..., None])[..., 0].clamp(min=-50.0)
        right = torch.tensor([q.right(int(n), c) for n, c in zip(rows, canvas, strict=True)])
        parts.append((canvas, torch.tensor(out.steps[0]), right, (likely * free).sum(1) / free.sum(1)))
    return Answers(*(torch.cat(p) for p in zip(*parts, strict=True)))


@dataclass(frozen=True, kw_only=True)
class Distillation:
    """How to distil."""

    rounds: int = 1
    candidates: int = 1  # answers drawn to each question
    few_steps: int = 3  # the run whose states are learnt at
    steps: int = 100  # gradient steps a round
    batch_size: int = 16
    learning_rate: float = 3e-4
    rewarded: bool = True  # False: all answers become targets, right or wrong
    seed: int = 0

    def __post_init__(self):
        for name, least in dict(rounds=1, candidates=1, few_steps=1, steps=1, batch_size=1, seed=0).items():
            check_integer(name, getattr(self, name), least)
        if not self.learning_rate > 0:
            raise ValueError(f"learning_rate: got {self.learning_rate!r}, takes a number above 0")


def ask_teacher(model: DiffusionGemma, q: Questions, teacher: SamplerConfig, plan: Distillation, round_: int) -> list[Answers]:
    """Step 1: `candidates` answers to each question."""
    seeds = [plan.seed + 7919 * (1 + round_ * plan.candidates + c) for c in range(plan.candidates)]
    return [answers(model.eval(), q, teacher, seed=s) for s in seeds]


def targets(tried: list[Answers], plan: Distillation) -> tuple[Tensor, Tensor, dict]:
    """Step 2: (numbers of the questions that have a target, their targets, what was seen).

    Errors: ValueError if no answer was right.
    """
    right, sight = torch.stack([a.right for a in tried]), torch.stack([a.at_sight for a in tried])
    passed = right if plan.rewarded else torch.ones_like(right)
    best = sight.masked_fill(~passed, -torch.inf).argmax(0)
    canvas = torch.stack([a.canvas for a in tried])[best, torch.arange(right.shape[1])]
    rows = torch.where(passed.any(0))[0]
    seen = {"answers": right.numel(), "right": float(right.float().mean()), "targets": len(rows),
            "steps": float(torch.stack([a.steps for a in tried]).float().mean())}  # fmt: skip
    if not len(rows):
        raise ValueError(f"model: none of its {right.numel()} answers was right, takes one that solves some with many steps")
    return rows, canvas[rows], seen


def state_of_few_steps(
    model: DiffusionGemma, q: Questions, rows: Tensor, sampler: SamplerConfig, k: int, g: torch.Generator
) -> tuple[Tensor, Tensor | None]:
    """The canvas [B, C] that the model reads after k steps of a run, and the belief [B, C, V] that it brings (None for k = 0)."""
    if k == 0:
        noise = torch.randint(0, model.config.vocab_size, q.known[rows].shape, generator=g)
        return torch.where(q.pinned[rows], q.known[rows], noise), None
    met: list[Step] = []

    def stop(step: Step) -> bool:
        met[:] = [step]
        return step.index == k - 1

    _ask(q, rows, model, sampler, g, stop)
    return met[0].next_canvas, met[0].scaled_logits


def distill(
    model: DiffusionGemma, q: Questions, teacher: SamplerConfig, plan: Distillation, on_log: Callable[[dict], None] | None = None,
    *, tried: list[Answers] | None = None,
) -> list[dict]:  # fmt: skip
    """Train in place; one log entry a round. Each round the model that has learnt so far is the teacher.

    tried: what `ask_teacher` returned for the first round, if that is known already.
    """
    log, few = [], replace(teacher, max_denoising_steps=plan.few_steps, confidence_threshold=None)
    optimizer = make_optimizer(model, TrainConfig(steps=plan.steps, learning_rate=plan.learning_rate, betas=(0.9, 0.98)))
    for round_ in range(plan.rounds):
        own = tried if tried is not None and round_ == 0 else ask_teacher(model, q, teacher, plan, round_)
        rows, wanted, seen = targets(own, plan)
        g, losses = torch.Generator().manual_seed(plan.seed + 104_729 * (round_ + 1)), []
        for step in range(plan.steps):
            pick = torch.randint(0, len(rows), (plan.batch_size,), generator=g)
            k = int(torch.randint(0, plan.few_steps, (), generator=g))
            canvas, belief = state_of_few_steps(model, q, rows[pick], few, k, g)
            mask = None if q.mask is None else q.mask[rows[pick]]
            cache: KVCache = model.encode(q.ids[rows[pick]], mask)
            logits = model.decode(canvas, cache, belief)
            loss = mean_cross_entropy(logits, wanted[pick], ~q.pinned[rows[pick]]).mean()
            done = (round_ * plan.steps + step) / (plan.rounds * plan.steps)
            for group in optimizer.param_groups:
                group["lr"] = plan.learning_rate * min(1.0, (step + 1) / 10 + round_, 2 * (1 - done))
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            losses.append(loss.detach())
        log.append({"round": round_, **seen, "loss": [float(torch.stack(part).mean()) for part in _parts(losses)]})
        if on_log is not None:
            on_log(log[-1])
    model.eval()
    return log


def _parts(losses: list[Tensor], at_most: int = 5) -> list[list[Tensor]]:
    size = max(1, -(-len(losses) // at_most))
    return [losses[i : i + size] for i in range(0, len(losses), size)]


def step_curve(model: DiffusionGemma, q: Questions, sampler: SamplerConfig, limits: tuple[int, ...], seed: int = 0) -> list[dict]:
    """Accuracy with its interval, and mean steps (and tokens written, of a text), for each limit on the steps."""
    rows = []
    for limit in limits:
        a = answers(model, q, replace(sampler, max_denoising_steps=limit), seed=seed)
        right = int(a.right.sum())
        rows.append({"limit": limit, "right": share(right, len(q)), "steps": float(a.steps.float().mean())})
        if q.end is not None:
            rows[-1]["tokens"] = float((a.canvas != q.end).sum(1).float().mean())
    return rows


def variety(model: DiffusionGemma, q: Questions, sampler: SamplerConfig, draws: int = 4, count: int = 32) -> float | None:
    """Different right answers to one question, as a share of its right answers, mean over the questions that have two or more
    (None if there is none)."""
    rows = torch.arange(min(count, len(q)))
    mask = None if q.mask is None else q.mask[rows]
    some = replace(q, ids=q.ids[rows], mask=mask, known=q.known[rows], pinned=q.pinned[rows])
    tried = [answers(model, some, sampler, seed=100 + d) for d in range(draws)]
    found = [[tuple(a.canvas[n].tolist()) for a in tried if bool(a.right[n])] for n in range(len(some))]
    shares = [len(set(each)) / len(each) for each in found if len(each) > 1]
    return sum(shares) / len(shares) if shares else None
