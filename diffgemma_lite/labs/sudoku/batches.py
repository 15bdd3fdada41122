"""What training on Sudoku reads: the plan, and the batch of a step, a function of (seed, step).

See notebook 09.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from ...checks import check_integer
from ...sampler import SamplerConfig
from .splits import disguise, draw_clues, minimal_puzzles
from .task import FIRST, MASK, Layout

SIBLINGS = ("uniform", "masked", "autoregressive")


@dataclass(frozen=True, kw_only=True)
class SudokuTraining:
    """How to train.

    The learning rate warms up, stays, and falls in a straight line to zero in the last
    `decay_steps`.

    rate_points replaces that: (step, share of the rate) pairs with straight lines between them, in
    the order of the steps.
    """

    steps: int
    decay_steps: int
    sibling: str = "uniform"
    batch_size: int = 32
    learning_rate: float = 1e-3
    warmup_steps: int = 50
    rate_points: Sequence[Sequence[float]] = ()
    weight_decay: float = 0.01
    betas: Sequence[float] = (0.9, 0.98)
    clip_norm: float = 1.0
    # givens of a training puzzle; half of them are drawn up to `middle`, half up to `most`
    fewest: int = 24
    middle: int = 33
    most: int = 60
    all_noise: float = 0.2  # share of the examples with noise level 1; the others' is uniform
    # share of the examples whose noise is digits (given ones too) instead of any token
    slips: float = 0.15
    # rows of the batch that are runs of the sampler under way (own_states.py) ...
    own_rows: int = 0
    own_runs: int = 0  # ... taken in turn out of so many,
    own_disguised: bool = False  # ... each in a new disguise before each step (layout legend)
    # what differs from the published SamplerConfig; draw is "cdf"
    own_sampler: dict = field(default_factory=dict)
    seed: int = 0
    precision: str = "float32"  # or "bfloat16": autocast
    experts: str = "grouped"  # or "loop", which can be faster in bfloat16 on a CPU
    compile: bool = False  # needs a C++ compiler on a CPU
    checkpoint_every: int = 100
    log_every: int = 20

    def __post_init__(self):
        if self.sibling not in SIBLINGS:
            raise ValueError(f"sibling: got {self.sibling!r}, takes one of {', '.join(SIBLINGS)}")
        for name, least in dict(
            steps=1, log_every=1, checkpoint_every=1, own_rows=0, own_runs=0, seed=0
        ).items():
            check_integer(name, getattr(self, name), least)
        if not 0 < self.fewest <= min(self.middle, self.most):
            got = f"{self.fewest}, {self.middle}, {self.most}"
            raise ValueError(
                f"fewest, middle, most: got {got}, "
                "takes givens: 1 <= fewest <= middle, and fewest <= most"
            )
        if not 0 <= self.decay_steps <= self.steps:
            got = f"{self.decay_steps}, {self.steps}"
            raise ValueError(f"decay_steps, steps: got {got}, takes 0 <= decay_steps <= steps")
        if self.batch_size < 2 or self.batch_size % 2:
            raise ValueError(
                f"batch_size: got {self.batch_size}, takes an even number of at least 2"
            )
        if self.checkpoint_every % self.log_every:
            each = self.log_every
            raise ValueError(
                f"checkpoint_every: got {self.checkpoint_every}, "
                f"takes a multiple of log_every = {each}"
            )
        if self.precision not in ("float32", "bfloat16"):
            raise ValueError(f"precision: got {self.precision!r}, takes 'float32' or 'bfloat16'")
        object.__setattr__(self, "betas", tuple(self.betas))
        try:
            points = tuple((float(step), float(share)) for step, share in self.rate_points)
        except (TypeError, ValueError):
            raise ValueError(
                f"rate_points: got {self.rate_points!r}, takes (step, share of the rate) pairs"
            ) from None
        if list(points) != sorted(points) or any(share < 0 for _, share in points):
            raise ValueError(
                f"rate_points: got {points}, "
                "takes (step, share of at least 0) pairs, steps ascending"
            )
        object.__setattr__(self, "rate_points", points)
        self._check_own()

    def _check_own(self) -> None:
        rows, runs, size = self.own_rows, self.own_runs, self.batch_size
        if not 0 <= rows <= size or (size - rows) % 2:
            raise ValueError(
                f"own_rows: got {rows}, takes 0 to batch_size = {size}, "
                "leaving an even number of others"
            )
        if rows and self.sibling != "uniform":
            raise ValueError(f"own_rows: got {rows} for the {self.sibling} sibling, takes 0 there")
        if runs < rows or (runs and not rows):
            raise ValueError(
                f"own_runs: got {runs}, takes at least own_rows = {rows}, and 0 where that is 0"
            )
        if self.own_disguised and not rows:
            raise ValueError("own_disguised: got True with own_rows = 0, takes own_rows above 0")
        # when to stop is not the sampler's here
        names = ("max_denoising_steps", "entropy_bound", "t_max", "t_min", "draw")
        if (self.own_sampler and not rows) or not set(self.own_sampler) <= set(names):
            got = f"{self.own_sampler} with own_rows = {rows}"
            raise ValueError(
                f"own_sampler: got {got}, takes with own_rows any of {', '.join(names)}"
            )
        SamplerConfig(**self.own_sampler)

    def rate(self, step: int) -> float:
        """Learning rate of step 0 .. steps - 1."""
        if self.rate_points:
            return self.learning_rate * float(np.interp(step, *zip(*self.rate_points, strict=True)))
        up = min(1.0, (step + 1) / max(1, self.warmup_steps))
        return self.learning_rate * min(up, (self.steps - step) / max(1, self.decay_steps))


@dataclass(frozen=True)
class SudokuBatch:
    """[B, ...]; the first half of the rows is self-conditioned."""

    prompt: Tensor
    clean: Tensor
    noisy: Tensor
    counted: Tensor  # bool [B, C]: positions of the loss


def stack_puzzles(puzzles) -> tuple[np.ndarray, np.ndarray]:
    """Minimal puzzles -> (solutions [P, cells], which cells are clues [P, cells])."""
    return np.array([p.solution for p in puzzles]), np.array([p.clues for p in puzzles]) > 0


def draw_batch(
    layout: Layout,
    stacked: tuple[np.ndarray, np.ndarray],
    plan: SudokuTraining,
    step: int,
    stream: int = 0,
) -> SudokuBatch:
    """The batch of a step: puzzles in disguise, clues around the minimal ones, noise.

    Depends on (seed, step, stream) alone.
    """
    seed = [plan.seed, step, stream] if stream else [plan.seed, step]
    rng, b, (solutions, minimal) = np.random.default_rng(seed), plan.batch_size, stacked
    pick = rng.integers(0, len(solutions), b)
    grid, source = disguise(solutions[pick], rng)
    most = np.where(rng.random(b) < 0.5, plan.middle, plan.most)
    shown = draw_clues(
        np.take_along_axis(minimal[pick], source, 1), rng.integers(plan.fewest, most + 1), rng
    )
    clues = np.where(shown, grid, 0)
    clean, pinned = layout.canvas(clues, grid)
    t = np.where(rng.random(b) < plan.all_noise, 1.0, rng.random(b))[:, None]
    hit = (rng.random(clean.shape) < t) & ~pinned
    if plan.sibling == "masked":
        noise, counted = np.full_like(clean, MASK), hit
    else:
        slips = rng.random(b)[:, None] < plan.slips
        any_token, digit = (
            rng.integers(0, layout.vocab_size, clean.shape),
            rng.integers(FIRST, layout.names, clean.shape),
        )
        noise, counted = np.where(slips, digit, any_token), ~pinned
    prompt, noisy = layout.prompt(clues), np.where(hit, noise, clean)
    return SudokuBatch(*(torch.from_numpy(x) for x in (prompt, clean, noisy, counted)))


def training_puzzles(
    count: int, n: int, cached: Path | None = None
) -> tuple[np.ndarray, np.ndarray]:
    """`stack_puzzles` of minimal training puzzles; 10,000 take minutes, so they are kept in a file
    if one is named.
    """
    if cached is not None and cached.exists():
        with np.load(cached) as kept:
            if len(kept["solutions"]) == count:
                return kept["solutions"].astype(np.int64), kept["minimal"]
    solutions, minimal = stack_puzzles(minimal_puzzles(count, n=n))
    if cached is not None:
        cached.parent.mkdir(parents=True, exist_ok=True)
        np.savez_compressed(cached, solutions=solutions.astype(np.int8), minimal=minimal)
    return solutions, minimal
