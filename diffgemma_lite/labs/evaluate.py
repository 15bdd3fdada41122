"""How good is a text model?

Losses on held-out modules, by noise level, and what its canvases look like. With n and intervals.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from ..generation import generate
from ..loss import collate, losses
from ..model import DiffusionGemma
from ..sampler import SamplerConfig

LEVELS = (0.0, 0.25, 0.5, 0.75, 1.0)


def mean_and_interval(values: Tensor) -> dict[str, float]:
    """{"n", "mean", "half_width"}: a 95% interval of the mean, by the normal approximation."""
    n = values.numel()
    half = 1.96 * values.double().std().item() / math.sqrt(n) if n > 1 else float("nan")
    return {"n": n, "mean": values.double().mean().item(), "half_width": half}


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
def evaluate(
    model: DiffusionGemma, examples: Sequence, *, batch_size: int = 32, seed: int = 0
) -> dict:
    """Denoising and encoder loss in nats, with the noise that (seed, epoch 0, example) draws.

    Also by noise level t.

    The denoising loss is not a likelihood: it averages over corrupted and clean positions, without
    the weights a bound needs.
    """
    if not examples:
        raise ValueError("examples: is empty, takes at least one example")
    model.eval()
    c, rows, levels = model.config, [], []
    for i in range(0, len(examples), batch_size):
        numbers = list(range(i, min(i + batch_size, len(examples))))
        batch = collate(
            [examples[n] for n in numbers],
            numbers,
            canvas_length=c.canvas_length,
            vocab_size=c.vocab_size,
            eos=c.eos_token_id,
            pad=c.pad_token_id,
            seed=seed,
            epoch=0,
        )
        rows.append(torch.stack(losses(model, batch.to(model.device))).cpu())
        levels.append(batch.t)
    (denoising, encoder), t = torch.cat(rows, dim=1), torch.cat(levels)
    bins = [
        (low, high, (t >= low) & (t < high)) for low, high in zip(LEVELS, LEVELS[1:], strict=False)
    ]
    by_level = [
        {"t_from": low, "t_to": high} | mean_and_interval(denoising[at])
        for low, high, at in bins
        if at.any()
    ]
    return {
        "denoising": mean_and_interval(denoising),
        "encoder": mean_and_interval(encoder),
        "by_noise_level": by_level,
    }


def sample_report(
    model: DiffusionGemma, prompts: Sequence[list[int]], sampler: SamplerConfig, *, seed: int = 0
) -> dict:
    """One canvas after each prompt, each with its own seed.

    Steps taken, how it stopped, tokens kept, tokens per forward.
    """
    steps, kept, tpf, stable, ended = [], [], [], 0, 0
    for i, prompt in enumerate(prompts):
        out = generate(
            model,
            torch.tensor([prompt], device=model.device),
            sampler,
            max_new_tokens=model.config.canvas_length,
            eos_token_id=model.config.eos_token_id,
            generator=torch.Generator(device=model.device).manual_seed(seed + i),
        )
        steps.append(out.steps[0][0])
        kept.append(int(out.lengths[0]))
        tpf.append(out.metrics["tokens_per_forward"])
        stable += out.canvas_stop[0][0] == "stable"
        ended += out.stop_reason[0] == "end_token"
    return {
        "n": len(prompts),
        "seeds": [seed, seed + len(prompts) - 1],
        "stable": stable,
        "end_token": ended,
        "steps": mean_and_interval(torch.tensor(steps)),
        "tokens_kept": mean_and_interval(torch.tensor(kept)),
        "tokens_per_forward": mean_and_interval(torch.tensor(tpf)),
    }
