"""Noise: how a clean canvas is blurred, and what undoing a little of it means.

Text cannot be blurred by adding a number. Uniform-state diffusion replaces each token, with probability t, by one drawn
uniformly from the whole vocabulary, so that nothing in the input says which tokens are wrong. Absorbing-state (masked)
diffusion replaces it by one special id instead, which says so. Both are the same process with another resting state, and
here they are one function. Walked through in notebook 02.

Keep probability kappa_t = 1 - t: t = 0 is clean, t = 1 is pure noise. Source: DiffusionGemma Technical Report,
arXiv:2608.00146, section 4 (forward process) and the footnote on its sampling step (Euler step).
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from jaxtyping import Bool, Float, Int
from torch import Generator, Tensor

Generators = Generator | Sequence[Generator] | None


def rand_rows(draw, shape: tuple[int, ...], generator: Generators) -> Tensor:
    """`draw(shape, generator)` once for all rows, or row by row when there is one generator per row."""
    if generator is None or isinstance(generator, Generator):
        return draw(shape, generator)
    if len(generator) != shape[0]:
        raise ValueError(f"generator: got a list of {len(generator)}, takes one per row, {shape[0]}")
    return torch.cat([draw((1, *shape[1:]), g) for g in generator])


def uniform_tokens(shape: tuple[int, ...], vocab_size: int, generator: Generators, device) -> Int[Tensor, "b c"]:
    """Ids drawn uniformly from the whole vocabulary: a canvas of pure noise."""
    return rand_rows(lambda s, g: torch.randint(0, vocab_size, s, generator=g, device=device), shape, generator)


def _check_ids(name: str, ids: Tensor, vocab_size: int) -> None:
    if ids.numel() and (int(ids.min()) < 0 or int(ids.max()) >= vocab_size):
        raise ValueError(f"{name}: got ids from {int(ids.min())} to {int(ids.max())}, takes 0 to {vocab_size - 1}")


def corrupt(
    x: Int[Tensor, "b c"], t: Float[Tensor, "b"], vocab_size: int, generator: Generators = None,
    pinned: Bool[Tensor, "b c"] | None = None, mask_id: int | None = None,
) -> tuple[Int[Tensor, "b c"], Bool[Tensor, "b c"]]:  # fmt: skip
    """Noise each token of x [B, C] with probability t [B], one noise level per row. Returns (x_t, changed), both [B, C].

    Uniform-state by default; with `mask_id` absorbing-state. A token noised to its own value counts as unchanged, so the
    expected changed share is t (1 - 1/V). `pinned` positions stay clean. Errors: ValueError when t leaves [0, 1] or an
    id the vocabulary.
    """
    if t.shape != x.shape[:1] or not bool(((t >= 0) & (t <= 1)).all()):  # NaN is refused too
        raise ValueError(f"t: got {t.tolist()}, takes one noise level from 0 to 1 for each of the {len(x)} rows")
    _check_ids("x", x, vocab_size)
    if pinned is not None and pinned.shape != x.shape:
        raise ValueError(f"pinned: got shape {tuple(pinned.shape)}, takes {tuple(x.shape)}, the shape of x")
    hit = rand_rows(lambda s, g: torch.rand(s, generator=g, device=x.device), tuple(x.shape), generator) < t[:, None]
    if pinned is not None:
        hit = hit & ~pinned
    noise = uniform_tokens(tuple(x.shape), vocab_size, generator, x.device) if mask_id is None else torch.full_like(x, mask_id)
    x_t = torch.where(hit, noise, x)
    return x_t, x_t != x


def posterior(
    x_t: Int[Tensor, "b c"], p_x0: Float[Tensor, "b c v"], t: Float[Tensor, "b"], s: Float[Tensor, "b"]
) -> Float[Tensor, "b c v"]:
    """Exact distribution of the canvas at noise level s < t, given x_t and a belief p_x0 about the clean tokens. [B, C, V]

    By Bayes, q(x_s = v | x_t, x_0) = q(x_t | v) q(v | x_0) / q(x_t | x_0); averaging over x_0 ~ p_x0 needs only sums over V,
    because every factor is "a constant, plus something on one token".
    """
    if not bool(((s >= 0) & (s < t) & (t <= 1)).all()):
        raise ValueError(f"s, t: got s = {s.tolist()}, t = {t.tolist()}, takes 0 <= s < t <= 1")
    v = p_x0.shape[-1]
    _check_ids("x_t", x_t, v)
    t, s = t[:, None, None].to(p_x0.dtype), s[:, None, None].to(p_x0.dtype)
    keep_s, keep_t, keep = 1 - s, 1 - t, (1 - t) / (1 - s)
    here = torch.zeros_like(p_x0).scatter_(-1, x_t[..., None], 1.0)  # 1 on the token that stands in x_t
    weight = p_x0 / (keep_t * here + (1 - keep_t) / v)  # p(x_0) / q(x_t | x_0)
    forward = keep * here + (1 - keep) / v  # q(x_t | x_s = v)
    return forward * (keep_s * weight + (1 - keep_s) / v * weight.sum(-1, keepdim=True))


def euler_step(
    x_t: Int[Tensor, "b c"], p_x0: Float[Tensor, "b c v"], t: Float[Tensor, "b"], dt: Float[Tensor, "b"]
) -> Float[Tensor, "b c v"]:
    """The report's step from t to t - dt: stay with probability 1 - dt/t, else jump to a draw from p_x0. [B, C, V]

    Like `posterior` it hands on the right marginal when p_x0 is the true P(x_0 | x_t); unlike the exact process it never
    swaps noise for other noise. Errors: ValueError when dt leaves (0, t] or an id the vocabulary.
    """
    if not bool(((dt > 0) & (dt <= t) & (t <= 1)).all()):
        raise ValueError(f"dt, t: got dt = {dt.tolist()}, t = {t.tolist()}, takes 0 < dt <= t <= 1")
    _check_ids("x_t", x_t, p_x0.shape[-1])
    here = torch.zeros_like(p_x0).scatter_(-1, x_t[..., None], 1.0)
    return here + (dt / t)[:, None, None].to(p_x0.dtype) * (p_x0 - here)
