"""Training on the states that sampling meets (on-policy): rows of the batch are runs of the sampler
under way. Notebook 09.

Only a sampler's first canvas is a spoilt answer. After that it holds the model's own guesses, and a
belief about each of them from the step before. So here many runs are kept, each of them a puzzle
that is being sampled. A gradient step takes the next few of them, and is a denoising step of each
too: the logits that the loss is taken from also give, with no further pass, the canvas and the
belief that the run has next. The answer is known, so every state is learnt at with the whole answer
as its target, and it decides when a run ends, not the sampler's stop rule: a run that wrote it
twice running, or has spent its steps, gets the next puzzle. So hard puzzles, which take longer, get
a larger share of the batch by themselves.

A model that meets one puzzle again and again can learn that puzzle's answer, and then solves while
it learns what it cannot solve once its weights stand still. Against that there are many runs, and
with `own_disguised` a run is put into a new disguise before each step: its canvas and belief move
with it.

The runs stand in the checkpoint, what they draw is a function of (seed, step), and puzzles come in
the order of a seed, so that resuming is exact.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from ...sampler import SamplerConfig, accept, draw_tokens, renoise, temperature_at, token_entropy
from .batches import SudokuTraining, draw_batch
from .splits import disguise
from .task import FIRST, Layout, only_digits


def redisguise(layout: Layout, clean: Tensor, rng: np.random.Generator) -> tuple[Tensor, Tensor]:
    """One random disguise for each run, drawn by its answer `clean` [B, C], in layout legend (a
    position is a cell).

    Returns (source [B, C], the position that each new one shows; table [B, V], the new id of each
    id). Digits and given digits are renamed alike; other tokens keep their names.
    """
    n = layout.n
    digits = torch.where(clean >= layout.first, clean - layout.first, clean - FIRST).numpy() + 1
    new, source = disguise(digits, rng)
    old = np.take_along_axis(digits, source, 1)
    names = np.zeros((len(clean), n), np.int64)
    np.put_along_axis(names, old - 1, new - 1, 1)
    table = torch.arange(layout.vocab_size).repeat(len(clean), 1)
    table[:, FIRST : FIRST + n] = FIRST + torch.from_numpy(names)
    table[:, layout.first : layout.first + n] = layout.first + torch.from_numpy(names)
    return torch.from_numpy(source), table


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
    """`plan.own_runs` runs, of which each step takes `plan.own_rows` in turn.

    Sampled as `plan.own_sampler` says.
    """

    STORED = ("prompt", "clean", "canvas", "pinned", "belief", "age", "right", "taken")

    def __init__(
        self, layout: Layout, stacked: tuple[np.ndarray, np.ndarray], plan: SudokuTraining
    ):
        if plan.own_disguised and layout.name != "legend":
            raise ValueError(
                f"own_disguised: got True in layout {layout.name}, "
                "takes legend, where a position is a cell"
            )
        runs, length = plan.own_runs, layout.canvas_length
        self.layout, self.stacked, self.plan = layout, stacked, plan
        self.sampler = SamplerConfig(**({"draw": "cdf"} | plan.own_sampler))
        steps = range(self.sampler.max_denoising_steps)
        self.temperatures = torch.tensor([temperature_at(i, self.sampler) for i in steps])
        self.prompt = torch.zeros(
            runs, layout.prompt(np.zeros((1, layout.cells), np.int64)).shape[1], dtype=torch.long
        )
        self.clean, self.canvas = (torch.zeros(runs, length, dtype=torch.long) for _ in range(2))
        self.pinned = torch.zeros(runs, length, dtype=torch.bool)
        # scaled logits of the digits: no other token is allowed
        self.belief = torch.zeros(runs, length, layout.n)
        self.age = torch.zeros(runs, dtype=torch.long)  # denoising steps of this puzzle so far
        self.right = torch.zeros(runs, dtype=torch.bool)  # the last step wrote the answer
        self.taken = torch.zeros((), dtype=torch.long)  # puzzles begun so far, over all runs
        # (solved, steps) of the puzzles that ended since `take_ended`
        self.seen: list[tuple[bool, int]] = []
        self._drawn: tuple[int, object] = (-1, None)
        for run in range(runs):
            self._begin(run)

    def state(self) -> dict[str, Tensor]:
        """Everything a checkpoint needs."""
        return {name: getattr(self, name).contiguous() for name in self.STORED}

    def load(self, state: dict[str, Tensor]) -> None:
        for name in self.STORED:
            getattr(self, name).copy_(state[name])

    def turn(self, step: int) -> Tensor:
        """The runs that take a step now [own_rows]."""
        return (torch.arange(self.plan.own_rows) + step * self.plan.own_rows) % self.plan.own_runs

    def batch(self, step: int) -> OwnBatch:
        """Ordinary rows of `draw_batch` first, which bring no belief, then the runs whose turn it
        is. Call it once a step: it puts these into their new disguise."""
        now, vocab_size = self.turn(step), self.layout.vocab_size
        if self.plan.own_disguised:
            self._redisguise(now, step)
        told, belief = (
            self.age[now] > 0,
            torch.full((len(now), self.clean.shape[1], vocab_size), -torch.inf),
        )
        belief[..., FIRST : FIRST + self.layout.n] = self.belief[now]
        own = (self.prompt[now], self.canvas[now], belief, told, self.clean[now], ~self.pinned[now])
        ordinary = self.plan.batch_size - len(now)
        if not ordinary:
            return OwnBatch(*own)
        b = draw_batch(self.layout, self.stacked, self._plan(batch_size=ordinary), step)
        first = (
            b.prompt,
            b.noisy,
            torch.zeros(ordinary, *belief.shape[1:]),
            torch.zeros(ordinary, dtype=torch.bool),
            b.clean,
            b.counted,
        )
        return OwnBatch(*(torch.cat(pair) for pair in zip(first, own, strict=True)))

    @torch.no_grad()
    def advance(self, logits: Tensor, step: int) -> None:
        """One denoising step of the runs whose turn it is, from the last rows of the batch's logits
        [B, C, V]: the sampler's own parts, each run at the temperature of its own age."""
        now = self.turn(step)
        clean, pinned = self.clean[now], self.pinned[now]
        own = only_digits(self.layout)(logits[-len(now) :].float(), self.canvas[now])
        scaled = own / self.temperatures[self.age[now]][:, None, None]
        generator = torch.Generator().manual_seed(self.plan.seed * 1_000_003 + step)
        accepted = accept(token_entropy(scaled), self.sampler.entropy_bound, pinned)
        sampled = draw_tokens(scaled, generator, self.sampler.draw)
        canvas = renoise(sampled, accepted, self.layout.vocab_size, generator)
        right = ((scaled.argmax(-1) == clean) | pinned).all(1)
        over = (right & self.right[now]) | (self.age[now] + 1 >= self.sampler.max_denoising_steps)
        self.canvas[now], self.right[now] = torch.where(pinned, clean, canvas), right
        self.belief[now] = scaled[..., FIRST : FIRST + self.layout.n]
        self.age[now] += 1
        for run in now[over].tolist():
            self.seen.append((bool(self.right[run]), int(self.age[run])))
            self._begin(run)

    def take_ended(self) -> dict[str, float]:
        """Share of the puzzles solved and their mean steps since the last call.

        Empty where none ended.
        """
        if not self.seen:
            return {}
        solved, steps = np.mean(self.seen, axis=0).tolist()
        self.seen = []
        return {"own_solved": solved, "own_steps": steps}

    def _begin(self, run: int) -> None:
        """The next puzzle of the stream, all noise."""
        number, at = divmod(int(self.taken), 64)
        if self._drawn[0] != number:
            plan = self._plan(batch_size=64, all_noise=1.0, slips=0.0)
            self._drawn = number, draw_batch(self.layout, self.stacked, plan, number, stream=1)
        batch = self._drawn[1]
        self.prompt[run], self.clean[run], self.canvas[run] = (
            batch.prompt[at],
            batch.clean[at],
            batch.noisy[at],
        )
        self.pinned[run], self.belief[run], self.age[run], self.right[run] = (
            ~batch.counted[at],
            0.0,
            0,
            False,
        )
        self.taken += 1

    def _redisguise(self, now: Tensor, step: int) -> None:
        source, table = redisguise(
            self.layout, self.clean[now], np.random.default_rng([self.plan.seed, step, 2])
        )
        for name in ("clean", "canvas"):
            tokens = getattr(self, name)
            tokens[now] = table.gather(1, tokens[now].gather(1, source))
        self.pinned[now] = self.pinned[now].gather(1, source)
        n = self.layout.n
        moved = self.belief[now].gather(1, source[..., None].expand(-1, -1, n))
        digit = table[:, FIRST : FIRST + n] - FIRST  # [B, n]: the new number of each digit
        self.belief[now] = torch.empty_like(moved).scatter_(
            2, digit[:, None].expand_as(moved), moved
        )

    def _plan(self, **changes) -> SudokuTraining:
        """The plan for `draw_batch`."""
        return replace(
            self.plan, own_rows=0, own_runs=0, own_disguised=False, own_sampler={}, **changes
        )
