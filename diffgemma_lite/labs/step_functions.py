"""Other denoising steps with `denoise_step`'s signature, for `generate(..., step_function=...)`.

How they differ from the entropy bound, which draws, accepts what it is sure of and renoises the
rest:

    posterior_step   goes back the way the noise came: every position draws from the exact
                     posterior q(x_s | x_t, belief)
    jump_step        the same to first order: a position stays, or with probability dt/t jumps to
                     a draw from the belief
    masked_step      absorbing-state decoding: fills in the surest masked positions and never
                     touches them again

All of them walk the noise levels t = 1 - n/N -> s = 1 - (n+1)/N. Sources: DiffusionGemma Technical
Report, arXiv:2608.00146, the footnote on its step (jump), and arXiv:2505.24857 (which positions to
unmask). See notebook 07.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from ..noise import Generators, euler_step, posterior
from ..sampler import (
    SamplerConfig,
    Step,
    accept,
    draw_tokens,
    history,
    hold,
    put_pinned_back,
    rows_done,
    running,
    should_stop,
    temperature_at,
    token_entropy,
)

# (canvas, belief, t, s) -> distribution at level s [B, C, V]
Law = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]


def posterior_step(
    logits: Float[Tensor, "b c v"],
    canvas: Int[Tensor, "b c"],
    index: int,
    sampler: SamplerConfig,
    *,
    previous: Sequence[Step] = (),
    generator: Generators = None,
    pinned: Bool[Tensor, "b c"] | None = None,
    pinned_ids: Int[Tensor, "b c"] | None = None,
    ended: Bool[Tensor, "b"] | None = None,
) -> Step:
    """One step back along the exact reverse of uniform-state noise.

    Every draw is kept: `accepted` is True everywhere.

    The entropy bound is not used; temperature, stop rule, pinned and finished rows work as in
    `denoise_step`.
    """
    return _reverse(
        posterior, logits, canvas, index, sampler, previous, generator, pinned, pinned_ids, ended
    )


def jump_step(
    logits: Float[Tensor, "b c v"],
    canvas: Int[Tensor, "b c"],
    index: int,
    sampler: SamplerConfig,
    *,
    previous: Sequence[Step] = (),
    generator: Generators = None,
    pinned: Bool[Tensor, "b c"] | None = None,
    pinned_ids: Int[Tensor, "b c"] | None = None,
    ended: Bool[Tensor, "b"] | None = None,
) -> Step:
    """`posterior_step` to first order in dt = 1/N (the report's Euler step): stay, or jump to a
    draw from the belief.
    """

    def law(x_t, belief, t, s):
        return euler_step(x_t, belief, t, t - s)

    return _reverse(
        law, logits, canvas, index, sampler, previous, generator, pinned, pinned_ids, ended
    )


def masked_step(
    logits: Float[Tensor, "b c v"],
    canvas: Int[Tensor, "b c"],
    index: int,
    sampler: SamplerConfig,
    *,
    mask_id: int,
    previous: Sequence[Step] = (),
    generator: Generators = None,
    pinned: Bool[Tensor, "b c"] | None = None,
    pinned_ids: Int[Tensor, "b c"] | None = None,
    ended: Bool[Tensor, "b"] | None = None,
) -> Step:
    """Draw tokens for the surest masked positions (see `unmask`) and freeze them.

    Everything else stays a mask.

    Pass it as functools.partial(masked_step, mask_id=...), with initial_canvas=torch.full((B, C),
    mask_id): what is no mask counts as written. `argmax` is what would be committed now, `finished`
    means that no mask is left. The model must have learnt what a mask is. Errors: ValueError when
    the first canvas holds no mask or mask_id is no id.
    """
    if not 0 <= mask_id < logits.shape[-1]:
        raise ValueError(f"mask_id: got {mask_id}, takes an id from 0 to {logits.shape[-1] - 1}")
    masked = canvas == mask_id if pinned is None else (canvas == mask_id) & ~pinned
    if index == 0 and not bool(masked.any()):
        raise ValueError(
            f"canvas: holds no mask (id {mask_id}), "
            f"takes initial_canvas=torch.full((B, C), {mask_id})"
        )
    done = rows_done(canvas, previous, ended)
    tau = temperature_at(index, sampler)
    # never drawn
    scaled = (logits / tau).index_fill(
        -1, torch.tensor([mask_id], device=logits.device), -torch.inf
    )
    sampled = draw_tokens(scaled, running(generator, done), sampler.draw)
    entropy = token_entropy(scaled)
    accepted = unmask(entropy, masked, index, sampler)
    next_canvas = torch.where(accepted, sampled, canvas)
    guess = torch.where(masked & ~accepted, scaled.argmax(-1), next_canvas)
    no, fixed = torch.zeros_like(masked), torch.zeros_like(masked) if pinned is None else pinned
    next_canvas, guess = (put_pinned_back(ids, pinned, pinned_ids) for ids in (next_canvas, guess))
    step = Step(
        index, tau, canvas, scaled, sampled, guess, entropy, accepted, no, fixed, done, next_canvas
    )
    step = hold(step, previous, done)
    left = (step.next_canvas == mask_id) & ~step.pinned
    return replace(step, finished=done | ~left.any(-1))


def unmask(
    entropy: Float[Tensor, "b c"], masked: Bool[Tensor, "b c"], index: int, sampler: SamplerConfig
) -> Bool[Tensor, "b c"]:
    """Which masked positions to fill in.

    Those the entropy bound allows, and at least as many, surest first, as keep the schedule: after
    step n at most C (1 - (n+1)/N) masks are left, after the last none. Bool [B, C].
    """
    n, c = sampler.max_denoising_steps, masked.shape[-1]
    may_stay = c * (n - 1 - index) // n
    due = (masked.sum(-1, keepdim=True) - may_stay).clamp(min=0)
    rank = entropy.masked_fill(~masked, torch.inf).argsort(dim=-1, stable=True).argsort(dim=-1)
    return masked & ((rank < due) | accept(entropy, sampler.entropy_bound, pinned=~masked))


def _reverse(
    law: Law,
    logits: Tensor,
    canvas: Tensor,
    index: int,
    sampler: SamplerConfig,
    previous: Sequence[Step],
    generator: Generators,
    pinned: Tensor | None,
    pinned_ids: Tensor | None,
    ended: Tensor | None,
) -> Step:
    """Every position draws its next token from `law`."""
    n, done = sampler.max_denoising_steps, rows_done(canvas, previous, ended)
    tau = temperature_at(index, sampler)
    scaled = logits / tau
    t, s = (
        torch.full((len(canvas),), 1 - i / n, device=canvas.device, dtype=scaled.dtype)
        for i in (index, index + 1)
    )
    chances = law(canvas, scaled.softmax(-1), t, s)
    sampled = draw_tokens(chances.clamp(min=0).log(), running(generator, done), sampler.draw)
    no = torch.zeros_like(canvas, dtype=torch.bool)
    fixed, entropy, best = (
        no if pinned is None else pinned,
        token_entropy(scaled),
        scaled.argmax(-1),
    )
    best, sampled_canvas = (put_pinned_back(ids, pinned, pinned_ids) for ids in (best, sampled))
    stop = should_stop(best, history(previous, best), entropy, sampler, pinned)
    step = Step(
        index, tau, canvas, scaled, sampled, best, entropy, ~fixed, no, fixed, stop, sampled_canvas
    )
    return hold(step, previous, done)
