"""Steps 3 and 4: the model is led to a state of a few-step run of its own, and learns the target
there. Notebook 09.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor

from ...attention import KVCache
from ...loss import mean_cross_entropy
from ...model import DiffusionGemma
from ...sampler import SamplerConfig, Step
from ...train import TrainConfig, make_optimizer
from .data import Questions
from .teacher import Answers, Distillation, ask, ask_teacher, targets


def state_of_few_steps(
    model: DiffusionGemma,
    q: Questions,
    rows: Tensor,
    sampler: SamplerConfig,
    k: int,
    g: torch.Generator,
) -> tuple[Tensor, Tensor | None]:
    """The canvas [B, C] that the model reads after k steps of a run, and the belief [B, C, V] it
    brings (None for k = 0).
    """
    if k == 0:
        noise = torch.randint(0, model.config.vocab_size, q.known[rows].shape, generator=g)
        return torch.where(q.pinned[rows], q.known[rows], noise), None
    met: list[Step] = []

    def stop(step: Step) -> bool:
        met[:] = [step]
        return step.index == k - 1

    ask(q, rows, model, sampler, g, stop)
    return met[0].next_canvas, met[0].scaled_logits


def distill(
    model: DiffusionGemma,
    q: Questions,
    teacher: SamplerConfig,
    plan: Distillation,
    on_log: Callable[[dict], None] | None = None,
    *,
    tried: list[Answers] | None = None,
) -> list[dict]:
    """Train in place; one log entry a round. Each round the model that has learnt so far is the
    teacher.

    tried: what `ask_teacher` returned for the first round, if that is known already.
    """
    log, few = [], replace(teacher, max_denoising_steps=plan.few_steps, confidence_threshold=None)
    optimizer = make_optimizer(
        model, TrainConfig(steps=plan.steps, learning_rate=plan.learning_rate, betas=(0.9, 0.98))
    )
    for round_ in range(plan.rounds):
        own = (
            tried
            if tried is not None and round_ == 0
            else ask_teacher(model, q, teacher, plan, round_)
        )
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
                group["lr"] = plan.learning_rate * min(
                    1.0, (step + 1) / 10 + round_, 2 * (1 - done)
                )
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            losses.append(loss.detach())
        log.append(
            {
                "round": round_,
                **seen,
                "loss": [float(torch.stack(part).mean()) for part in _parts(losses)],
            }
        )
        if on_log is not None:
            on_log(log[-1])
    model.eval()
    return log


def _parts(losses: list[Tensor], at_most: int = 5) -> list[list[Tensor]]:
    size = max(1, -(-len(losses) // at_most))
    return [losses[i : i + size] for i in range(0, len(losses), size)]
