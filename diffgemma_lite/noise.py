"""Noise: how a clean canvas is blurred, and what undoing a little of it means.

Text cannot be blurred by adding a number. Uniform-state diffusion replaces each token, with
probability t, by one drawn uniformly from the whole vocabulary, so that nothing in the input says
which tokens are wrong. Absorbing-state (masked) diffusion replaces it by one special id instead,
which says so. Both are the same process with another resting state, and here they are one function.
Walked through in notebook 02.

Keep probability kappa_t = 1 - t: t = 0 is clean, t = 1 is pure noise. Source: DiffusionGemma
Technical Report, arXiv:2608.00146, section 4 (forward process) and the footnote on its sampling
step (Euler step).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import torch
from jaxtyping import Bool, Float, Int, Real
from torch import Generator, Tensor

from .checks import PER_ROW, check_generators, check_integer, door, integer

# one for all rows, a list with one per row, or torch's global one
Generators = Annotated[Generator | Sequence[Generator] | None, PER_ROW]


def rand_rows(draw, shape: tuple[int, ...], generator: Generators) -> Tensor:
    """`draw(shape, generator)` once for all rows, or row by row when there is one generator per
    row.
    """
    check_generators(generator, shape[0])
    if generator is None or isinstance(generator, Generator):
        return draw(shape, generator)
    return torch.cat([draw((1, *shape[1:]), g) for g in generator])


def uniform_tokens(
    shape: tuple[int, ...], vocab_size: int, generator: Generators, device
) -> Int[Tensor, "b c"]:
    """Ids drawn uniformly from the whole vocabulary: a canvas of pure noise."""
    check_integer("vocab_size", vocab_size, 1)
    return rand_rows(
        lambda s, g: torch.randint(0, vocab_size, s, generator=g, device=device), shape, generator
    )


def _check_ids(name: str, ids: Tensor, vocab_size: int) -> None:
    if int(ids.min()) < 0 or int(ids.max()) >= vocab_size:
        raise ValueError(
            f"{name}: got ids from {int(ids.min())} to {int(ids.max())}, "
            f"takes 0 to {vocab_size - 1}"
        )


def _check_belief(x_t: Tensor, p_x0: Tensor) -> None:
    """A canvas and what is believed about it. NaN is let through: it is seen where it arose."""
    _check_ids("x_t", x_t, p_x0.shape[-1])
    if bool((p_x0 < 0).any()) or bool(((p_x0.sum(-1) - 1).abs() > 0.02).any()):
        raise ValueError(
            "p_x0: got negative numbers or sums that are not 1, takes probabilities of the clean "
            "token"
        )


@door
def corrupt(
    x: Int[Tensor, "b c"],
    t: Real[Tensor, "b"],
    vocab_size: Annotated[int, integer("an integer of at least 1", 1)],
    generator: Generators = None,
    pinned: Bool[Tensor, "b c"] | None = None,
    mask_id: int | None = None,
) -> tuple[Int[Tensor, "b c"], Bool[Tensor, "b c"]]:
    """Noise each token of x [B, C] with probability t [B], one noise level per row. Returns (x_t,
    changed), both [B, C].

    Uniform-state by default; with `mask_id` absorbing-state: an id of the vocabulary, or V for one
    beside it. A token noised to its own value counts as unchanged, so the expected changed share is
    t (1 - 1/V). `pinned` positions stay clean. Errors: ValueError when t leaves [0, 1], an id the
    vocabulary, or a shape or dtype is another.
    """
    _check_ids("x", x, vocab_size)
    if not bool(((t >= 0) & (t <= 1)).all()):  # NaN is refused too
        raise ValueError(
            f"t: got {t.tolist()}, takes one noise level from 0 to 1 for each of the {len(x)} rows"
        )
    if mask_id is not None:
        check_integer("mask_id", mask_id, 0, vocab_size)
    shape = tuple(x.shape)
    uniform = rand_rows(lambda s, g: torch.rand(s, generator=g, device=x.device), shape, generator)
    hit = uniform < t[:, None]
    if pinned is not None:
        hit = hit & ~pinned
    if mask_id is None:
        noise = uniform_tokens(shape, vocab_size, generator, x.device)
    else:
        noise = torch.full_like(x, mask_id)
    x_t = torch.where(hit, noise, x)
    return x_t, x_t != x


@door
def posterior(
    x_t: Int[Tensor, "b c"],
    p_x0: Float[Tensor, "b c v"],
    t: Real[Tensor, "b"],
    s: Real[Tensor, "b"],
) -> Float[Tensor, "b c v"]:
    """Exact distribution of the canvas at noise level s < t, given x_t and a belief p_x0 about the
    clean tokens. [B, C, V]

    By Bayes, q(x_s = v | x_t, x_0) = q(x_t | v) q(v | x_0) / q(x_t | x_0); averaging over x_0 ~
    p_x0 needs only sums over V, because every factor is "a constant, plus something on one token".
    """
    _check_belief(x_t, p_x0)
    if not bool(((s >= 0) & (s < t) & (t <= 1)).all()):
        raise ValueError(f"s, t: got s = {s.tolist()}, t = {t.tolist()}, takes 0 <= s < t <= 1")
    v = p_x0.shape[-1]
    t, s = t[:, None, None].to(p_x0.dtype), s[:, None, None].to(p_x0.dtype)
    keep_s, keep_t, keep = 1 - s, 1 - t, (1 - t) / (1 - s)
    # 1 on the token that stands in x_t
    here = torch.zeros_like(p_x0).scatter_(-1, x_t[..., None], 1.0)
    weight = p_x0 / (keep_t * here + (1 - keep_t) / v)  # p(x_0) / q(x_t | x_0)
    forward = keep * here + (1 - keep) / v  # q(x_t | x_s = v)
    return forward * (keep_s * weight + (1 - keep_s) / v * weight.sum(-1, keepdim=True))


@door
def euler_step(
    x_t: Int[Tensor, "b c"],
    p_x0: Float[Tensor, "b c v"],
    t: Real[Tensor, "b"],
    dt: Real[Tensor, "b"],
) -> Float[Tensor, "b c v"]:
    """The report's step from t to t - dt.

    Stay with probability 1 - dt/t, else jump to a draw from p_x0. [B, C, V]

    Like `posterior` it hands on the right marginal when p_x0 is the true P(x_0 | x_t); unlike the
    exact process it never swaps noise for other noise. Errors: ValueError when dt leaves (0, t] or
    an id the vocabulary.
    """
    _check_belief(x_t, p_x0)
    if not bool(((dt > 0) & (dt <= t) & (t <= 1)).all()):
        raise ValueError(f"dt, t: got dt = {dt.tolist()}, t = {t.tolist()}, takes 0 < dt <= t <= 1")
    here = torch.zeros_like(p_x0).scatter_(-1, x_t[..., None], 1.0)
    return here + (dt / t)[:, None, None].to(p_x0.dtype) * (p_x0 - here)
