"""What a sampler writes in a toy world.

Exactly, by carrying the probability of every canvas from step to step; and by running the package's
real step functions many times. The tests hold one against the other. Walked through in notebook 07.

Three processes: "entropy_bound" (the published sampler), "posterior" (the exact way back along the
noise) and "masked" (absorbing-state decoding under the same bound). Letters as in toy/world.py, N
denoising steps.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Generator, Tensor

from ...noise import posterior
from ...sampler import SamplerConfig, accept, denoise_step, temperature_at, token_entropy
from ..step_functions import masked_step, posterior_step, unmask
from .world import World, entropy, independent

PROCESSES = ("entropy_bound", "posterior", "masked")


@dataclass(frozen=True)
class Outcome:
    """What a sampler writes in the end, and how many steps it takes on average."""

    texts: Float[Tensor, "s"]  # [S]
    steps: float


def exact(
    world: World,
    sampler: SamplerConfig,
    process: str = "entropy_bound",
    *,
    told: bool | None = None,
    commit: str | None = None,
) -> Outcome:
    """The sampler's exact distribution over texts, stop rule included.

    told: whether the denoiser knows t = 1 - n/N; None: for "posterior" only. commit: "argmax" (the
    published rule), or "canvas", what a further step would have read; None: "canvas" for "masked",
    else "argmax". "masked" takes the last word as its mask. Errors: ValueError names the wrong
    argument.
    """
    told, commit, mask_id = _checked(world, sampler, process, told, commit)
    n_steps, threshold = sampler.max_denoising_steps, sampler.confidence_threshold
    here = _start(world, mask_id)  # [S] where the runs are that have not stopped
    written, steps, before, moved = torch.zeros_like(here), 0.0, None, None
    unwritten = (
        torch.ones_like(here) if mask_id is None else (world.canvases == mask_id).any(-1).double()
    )
    for n in range(n_steps):
        scaled = world.belief(1 - n / n_steps if told else None, mask_id).log() / temperature_at(
            n, sampler
        )
        best = world.number(scaled.argmax(-1))  # [S] the argmax canvas of every canvas
        if moved is not None:
            arriving = here[:, None] * moved  # [S, S] from canvas, to canvas
            here = arriving.sum(0)
        steps += float(here @ unwritten)
        if moved is not None and threshold is not None and mask_id is None:
            sure = entropy(scaled.softmax(-1)).mean(-1) < threshold
            stopping = (arriving * ((before[:, None] == best) & sure)).sum(0)
            written.index_add_(0, best, stopping)
            here = here - stopping
        moved, before = (
            independent(world, _kernel(world, scaled, n, sampler, process, mask_id)),
            best,
        )
    return Outcome(
        written.index_add(0, before, here) if commit == "argmax" else written + here @ moved, steps
    )


def sample(
    world: World,
    sampler: SamplerConfig,
    n: int,
    process: str = "entropy_bound",
    *,
    told: bool | None = None,
    generator: Generator | None = None,
) -> Int[Tensor, "n c"]:
    """n texts written by the package's own step functions, with the exact denoiser for a model.

    Monte Carlo for `exact`.
    """
    told, _, mask_id = _checked(world, sampler, process, told, None)
    if mask_id is None:
        step_function = {"entropy_bound": denoise_step, "posterior": posterior_step}[process]
        canvas = torch.randint(0, len(world.words), (n, world.length), generator=generator)
    else:
        step_function, canvas = (
            partial(masked_step, mask_id=mask_id),
            torch.full((n, world.length), mask_id),
        )
    previous = []
    for i in range(sampler.max_denoising_steps):
        belief = world.belief(1 - i / sampler.max_denoising_steps if told else None, mask_id)
        logits = belief.log().float()[world.number(canvas)]
        step = step_function(logits, canvas, i, sampler, previous=previous, generator=generator)
        canvas, previous = step.next_canvas, [step]
        if bool(step.finished.all()):
            break
    return step.argmax


def measured_distance(
    world: World, samples: Int[Tensor, "n c"], *, resamples: int = 1000, seed: int = 0
) -> dict[str, float]:
    """{"n", "distance", "low", "high"}: distance of samples to the joint, and its 95% bootstrap
    interval.

    The noise of counting makes a distance look larger; the interval is reflected about the estimate
    (the "basic" bootstrap), which takes that out to first order.
    """
    n, joint = len(samples), world.joint.numpy()
    share = torch.bincount(world.number(samples), minlength=len(joint)).numpy() / n
    again = np.random.default_rng(seed).multinomial(n, share, size=resamples) / n
    found = np.abs(share - joint).sum() / 2
    low, high = 2 * found - np.quantile(np.abs(again - joint).sum(1) / 2, [0.975, 0.025])
    return {
        "n": n,
        "distance": float(found),
        "low": max(0.0, float(low)),
        "high": min(1.0, float(high)),
    }


def _start(world: World, mask_id: int | None) -> Float[Tensor, "s"]:
    s = len(world.joint)
    if mask_id is None:
        return torch.full((s,), 1 / s, dtype=torch.float64)
    masks = torch.full((1, world.length), mask_id)
    return torch.zeros(s, dtype=torch.float64).index_fill(0, world.number(masks), 1.0)


def _kernel(
    world: World, scaled: Tensor, n: int, sampler: SamplerConfig, process: str, mask_id: int | None
) -> Tensor:
    """[S, C, V]: from every canvas, each position's distribution in the next one."""
    belief, canvas, v = scaled.softmax(-1), world.canvases, len(world.words)
    if process == "posterior":
        t, s = (
            torch.full((len(canvas),), 1 - i / sampler.max_denoising_steps, dtype=torch.float64)
            for i in (n, n + 1)
        )
        return posterior(canvas, belief, t, s)
    unsure = token_entropy(scaled.float())  # decisions in float32, as in `sample`
    if process == "entropy_bound":
        return torch.where(
            accept(unsure, sampler.entropy_bound)[..., None], belief, torch.full_like(belief, 1 / v)
        )
    accepted = unmask(unsure, canvas == mask_id, n, sampler)
    return torch.where(
        accepted[..., None], belief, torch.nn.functional.one_hot(canvas, v).to(belief.dtype)
    )


def _checked(
    world: World, sampler: SamplerConfig, process: str, told: bool | None, commit: str | None
) -> tuple[bool, str, int | None]:
    """What None stands for, and the mask id where there is one."""
    if process not in PROCESSES:
        raise ValueError(f"process: got {process!r}, takes one of {', '.join(PROCESSES)}")
    if process == "masked" and float(world.marginals()[:, -1].sum()) > 0:
        raise ValueError(
            f"world: its last word {world.words[-1]!r} occurs in texts, "
            "takes a noise word (the mask)"
        )
    if commit not in (None, "argmax", "canvas"):
        raise ValueError(f"commit: got {commit!r}, takes 'argmax' or 'canvas'")
    if sampler.confidence_threshold is not None and sampler.stability_threshold != 1:
        raise ValueError(
            f"stability_threshold: got {sampler.stability_threshold}, "
            "takes 1, or confidence_threshold=None"
        )
    mask_id = len(world.words) - 1 if process == "masked" else None
    return (
        process == "posterior" if told is None else told,
        commit or ("argmax" if mask_id is None else "canvas"),
        mask_id,
    )
