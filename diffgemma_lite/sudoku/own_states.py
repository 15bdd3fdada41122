"""Training on the states that sampling meets (on-policy): some rows of the batch are runs under way. See notebook 09.

A spoilt answer is not what a sampler meets. After a few steps its canvas holds its own guesses, and it brings a belief about
each of them. So here a row begins as sampling does, with a puzzle and noise, and every gradient step is a denoising step of
it too: the logits that the loss is taken from also give, with no further pass, the canvas and the belief that the row has
next. The answer is known, so every state is learnt at with the whole answer as its target. A row that wrote it twice running,
or has spent its steps, gets the next puzzle; so hard puzzles, which take longer, fill most of the batch by themselves.

The rows stand in the checkpoint, and what they draw is a function of (seed, step), so that resuming is exact.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from ..sampler import SamplerConfig, accept, draw_tokens, renoise, temperature_at, token_entropy
from .batches import SudokuTraining, draw_batch
from .evaluate import only_digits
from .task import Layout


@dataclass(frozen=True)
class OwnBatch:
    """[B, ...]; `told` [B] marks the rows that bring a belief [B, C, V]."""

    prompt: Tensor
    canvas: Tensor
    belief: Tensor
    told: Tensor
    clean: Tensor
    counted: Tensor  # bool [B, C]: positions of the loss


class OwnStates:
    """The rows that are runs under way: `plan.own_rows` of them, sampled as `plan.own_sampler` says."""

    def __init__(self, layout: Layout, stacked: tuple[np.ndarray, np.ndarray], plan: SudokuTraining):
        rows, length = plan.own_rows, layout.canvas_length
        self.layout, self.stacked, self.plan = layout, stacked, plan
        self.sampler = SamplerConfig(**({"draw": "cdf"} | plan.own_sampler))
        steps = range(self.sampler.max_denoising_steps)
        self.temperatures = torch.tensor([temperature_at(i, self.sampler) for i in steps])
        self.prompt = torch.zeros(rows, layout.prompt(np.zeros((1, layout.cells), np.int64)).shape[1], dtype=torch.long)
        self.clean, self.canvas = (torch.zeros(rows, length, dtype=torch.long) for _ in range(2))
        self.pinned = torch.zeros(rows, length, dtype=torch.bool)
        self.belief = torch.zeros(rows, length, layout.vocab_size)
        self.age = torch.zeros(rows, dtype=torch.long)  # denoising steps of this puzzle so far
        self.right = torch.zeros(rows, dtype=torch.bool)  # the last step wrote the answer
        self.taken = torch.zeros((), dtype=torch.long)  # puzzles begun so far, over all rows
        self.seen: list[tuple[bool, int]] = []  # (solved, steps) of the puzzles that ended since `tell`
        self._drawn: tuple[int, object] = (-1, None)
        for row in range(rows):
            self._begin(row)

    STORED = ("prompt", "clean", "canvas", "pinned", "belief", "age", "right", "taken")

    def state(self) -> dict[str, Tensor]:
        """Everything a checkpoint needs."""
        return {name: getattr(self, name).contiguous() for name in self.STORED}

    def load(self, state: dict[str, Tensor]) -> None:
        for name in self.STORED:
            getattr(self, name).copy_(state[name])

    def batch(self, step: int) -> OwnBatch:
        """Ordinary rows of `draw_batch` first, then the runs under way."""
        told, counted = self.age > 0, ~self.pinned
        own = (self.prompt, self.canvas, self.belief, told, self.clean, counted)
        ordinary = self.plan.batch_size - self.plan.own_rows
        if not ordinary:
            return OwnBatch(*own)
        b = draw_batch(self.layout, self.stacked, replace(self.plan, batch_size=ordinary, own_rows=0, own_sampler={}), step)
        nothing = torch.zeros(ordinary, *self.belief.shape[1:])
        first = (b.prompt, b.noisy, nothing, torch.zeros(ordinary, dtype=torch.bool), b.clean, b.counted)
        return OwnBatch(*(torch.cat(pair) for pair in zip(first, own, strict=True)))

    @torch.no_grad()
    def advance(self, logits: Tensor, step: int) -> None:
        """One denoising step of every run, from the last rows of the batch's logits [B, C, V]: the sampler's own parts, each
        row at the temperature of its own age."""
        own = only_digits(self.layout)(logits[-len(self.age) :].float(), self.canvas)
        scaled = own / self.temperatures[self.age][:, None, None]
        generator = torch.Generator().manual_seed(self.plan.seed * 1_000_003 + step)
        accepted = accept(token_entropy(scaled), self.sampler.entropy_bound, self.pinned)
        canvas = renoise(draw_tokens(scaled, generator, self.sampler.draw), accepted, self.layout.vocab_size, generator)
        self.canvas, self.belief = torch.where(self.pinned, self.clean, canvas), scaled
        self.age += 1
        right = ((scaled.argmax(-1) == self.clean) | self.pinned).all(1)
        over = (right & self.right) | (self.age >= self.sampler.max_denoising_steps)
        self.right = right
        for row in torch.where(over)[0].tolist():
            self.seen.append((bool(right[row]), int(self.age[row])))
            self._begin(row)

    def tell(self) -> dict[str, float]:
        """Share of the puzzles solved and their mean steps since the last call; empty where none ended."""
        if not self.seen:
            return {}
        solved, steps = np.mean(self.seen, axis=0).tolist()
        self.seen = []
        return {"own_solved": solved, "own_steps": steps}

    def _begin(self, row: int) -> None:
        """The next puzzle of the stream, all noise."""
        number, at = divmod(int(self.taken), 64)
        if self._drawn[0] != number:
            only = replace(self.plan, batch_size=64, own_rows=0, own_sampler={}, all_noise=1.0, slips=0.0)
            self._drawn = number, draw_batch(self.layout, self.stacked, only, number, stream=1)
        batch = self._drawn[1]
        self.prompt[row], self.clean[row], self.canvas[row] = batch.prompt[at], batch.clean[at], batch.noisy[at]
        self.pinned[row], self.belief[row], self.age[row], self.right[row] = ~batch.counted[at], 0.0, 0, False
        self.taken += 1
