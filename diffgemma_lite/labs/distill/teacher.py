"""Steps 1 and 2: the model answers with many steps, and right answers become targets.

Notebook 09.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from ...checks import check_integer
from ...generation import generate
from ...model import DiffusionGemma
from ...sampler import SamplerConfig, Step
from ...trace.observe import counting
from .data import Questions


@dataclass(frozen=True)
class Answers:
    """Canvases [P, C], everything after an end token filled with it.

    Steps, rewards, and how likely at first sight [P].
    """

    canvas: Tensor
    steps: Tensor
    right: Tensor
    at_sight: Tensor  # nats a position


def ask(
    q: Questions,
    rows: Tensor,
    model: DiffusionGemma,
    sampler: SamplerConfig,
    g: torch.Generator,
    on_step=None,
):
    """`generate` on some questions, from fresh noise."""
    known, pinned = q.known[rows], q.pinned[rows]
    noise = torch.randint(0, model.config.vocab_size, known.shape, generator=g)
    start = torch.where(pinned, known, noise)
    mask = None if q.mask is None else q.mask[rows]
    given = dict(
        pinned=pinned,
        initial_canvas=start,
        logits_filter=q.barred,
        on_step=on_step,
        attention_mask=mask,
    )
    return start, generate(
        model, q.ids[rows], sampler, max_new_tokens=known.shape[1], generator=g, **given
    )


@torch.no_grad()
def answers(
    model: DiffusionGemma, q: Questions, sampler: SamplerConfig, seed: int = 0, batch_size: int = 64
) -> Answers:
    """All questions answered once. Steps are counted by wrapping `model.decode`."""
    parts, last, first = [], [], []

    def look(step: Step) -> None:
        last[:] = [step.argmax]
        if step.index == 0:
            first[:] = [step.scaled_logits.log_softmax(-1)]

    for at in range(0, len(q), batch_size):
        rows = torch.arange(at, min(at + batch_size, len(q)))
        with counting(model) as calls:
            _, out = ask(
                q, rows, model, sampler, torch.Generator().manual_seed(seed * 1_000_003 + at), look
            )
        if max(out.steps[0]) != calls[0]:
            raise RuntimeError(
                f"steps: generate says {max(out.steps[0])}, decode was called {calls[0]} times"
            )
        canvas = last[0]
        if q.end is not None:
            canvas = canvas.masked_fill((canvas == q.end).cumsum(1) > 0, q.end)
        free = ~q.pinned[rows]
        likely = first[0].gather(-1, canvas[..., None])[..., 0].clamp(min=-50.0)
        right = torch.tensor([q.right(int(n), c) for n, c in zip(rows, canvas, strict=True)])
        parts.append(
            (canvas, torch.tensor(out.steps[0]), right, (likely * free).sum(1) / free.sum(1))
        )
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
        for name, least in dict(
            rounds=1, candidates=1, few_steps=1, steps=1, batch_size=1, seed=0
        ).items():
            check_integer(name, getattr(self, name), least)
        if not self.learning_rate > 0:
            raise ValueError(f"learning_rate: got {self.learning_rate!r}, takes a number above 0")


def ask_teacher(
    model: DiffusionGemma, q: Questions, teacher: SamplerConfig, plan: Distillation, round_: int
) -> list[Answers]:
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
    seen = {
        "answers": right.numel(),
        "right": float(right.float().mean()),
        "targets": len(rows),
        "steps": float(torch.stack([a.steps for a in tried]).float().mean()),
    }
    if not len(rows):
        raise ValueError(
            f"model: none of its {right.numel()} answers was right, "
            "takes one that solves some with many steps"
        )
    return rows, canvas[rows], seen
