"""A world small enough to enumerate: V words, C positions, the probability of every text known
exactly.

Nothing is learnt here: the denoiser is Bayes' rule over all V**C texts. So the error of drawing
positions independently can be measured by itself, with no model error in it. toy/sampler.py lets
samplers write in such a world. Walked through in notebook 07.

Letters: V words, C positions, S = V**C texts (or canvases), numbered in the order of
`World.canvases`. All float64.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

MOST = 4096  # texts; tables of S x S are made


@dataclass(frozen=True)
class World:
    """The joint distribution of C words as a table.

    Words that never occur in a text can still occur as noise.
    """

    joint: Float[Tensor, "s"]  # [S] probability of every text
    words: tuple[str, ...]  # V names
    length: int  # C
    _beliefs: dict = field(default_factory=dict, repr=False, compare=False)  # those computed so far

    def __post_init__(self):
        s = len(self.words) ** self.length
        if s > MOST:
            raise ValueError(
                f"words, length: got {len(self.words)} ** {self.length} = {s} texts, "
                f"takes at most {MOST}"
            )
        shape, total = tuple(self.joint.shape), float(self.joint.sum())
        if shape != (s,) or bool((self.joint < 0).any()) or abs(total - 1) > 1e-9:
            raise ValueError(
                f"joint: got shape {shape} and sum {total}, takes {s} probabilities that sum to 1"
            )

    @cached_property
    def canvases(self) -> Int[Tensor, "s c"]:
        """[S, C] word ids of every text, the last position running fastest."""
        return torch.cartesian_prod(*[torch.arange(len(self.words))] * self.length).view(
            -1, self.length
        )

    def number(self, canvas: Int[Tensor, "... c"]) -> Int[Tensor, "..."]:
        """The number of a canvas in that order."""
        v, c = len(self.words), self.length
        return (canvas * torch.tensor([v ** (c - 1 - i) for i in range(c)])).sum(-1)

    def text(self, number: int) -> str:
        return " ".join(self.words[i] for i in self.canvases[number].tolist())

    def marginals(self, texts: Float[Tensor, "*r s"] | None = None) -> Float[Tensor, "*r c v"]:
        """Each position's own distribution, of the joint or of rows of distributions over texts."""
        one_hot = torch.nn.functional.one_hot(self.canvases, len(self.words)).to(torch.float64)
        return torch.einsum("...s,scv->...cv", self.joint if texts is None else texts, one_hot)

    def texts_given(
        self, t: float | None = None, mask_id: int | None = None
    ) -> Float[Tensor, "s s"]:
        """p(x_0 | x_t): a row for each canvas, a column for each text, by enumeration.

        Uniform-state noise at level t in (0, 1]; t None: not told, so averaged over all levels, as
        in training. With mask_id absorbing-state noise (the level does not matter). A canvas that
        no text can become gets the joint.
        """
        v, c = len(self.words), self.length
        if mask_id is not None:
            seen = self.canvases[:, None]
            likely = ((seen == self.canvases) | (seen == mask_id)).all(-1).to(torch.float64)
        else:
            if t is not None and not 0 < t <= 1:
                raise ValueError(f"t: got {t}, takes a noise level above 0 and up to 1, or None")
            levels, weights = ([t], [1.0]) if t is not None else _levels(c)
            # [S, S] positions in which they agree
            equal = (self.canvases[:, None] == self.canvases).sum(-1)
            k = torch.arange(c + 1, dtype=torch.float64)
            by_count = sum(
                w * (1 - x + x / v) ** k * (x / v) ** (c - k)
                for x, w in zip(levels, weights, strict=True)
            )
            likely = by_count[equal]
        weighed = likely * self.joint
        total = weighed.sum(-1, keepdim=True)
        return torch.where(total > 0, weighed / total.clamp(min=1e-300), self.joint)

    def belief(self, t: float | None = None, mask_id: int | None = None) -> Float[Tensor, "s c v"]:
        """The exact denoiser: p(x_0 at a position | x_t) for every canvas. [S, C, V]"""
        if (t, mask_id) not in self._beliefs:
            self._beliefs[t, mask_id] = self.marginals(self.texts_given(t, mask_id))
        return self._beliefs[t, mask_id]


def phrases(
    probabilities: Mapping[str, float], *, slips: float = 0.0, noise_words: int = 0
) -> World:
    """A world of the given phrases; `slips` is spread over all other texts of their words.

    {"so so": 0.5, ...}

    noise_words: further words that no text holds. In a large vocabulary nearly all words are such
    words at a given place.
    """
    split = [phrase.split() for phrase in probabilities]
    words = list(dict.fromkeys(word for phrase in split for word in phrase))
    length, v = len(split[0]), len(words) + noise_words
    if any(len(phrase) != length for phrase in split):
        raise ValueError(
            f"probabilities: got phrases of {sorted({len(p) for p in split})} words, "
            "takes one length"
        )
    joint = torch.zeros((v,) * length, dtype=torch.float64)
    possible = joint[(slice(len(words)),) * length]
    possible += slips / max(1, possible.numel() - len(split))
    for phrase, p in zip(split, probabilities.values(), strict=True):
        possible[tuple(words.index(word) for word in phrase)] = p
    return World(joint.flatten(), (*words, *(f"#{i}" for i in range(noise_words))), length)


def chain(first: Mapping[str, float], stay: float, length: int, *, noise_words: int = 0) -> World:
    """A world of texts whose next word is the last one with probability `stay`, else one of the
    others, all equally.
    """
    n = len(first)
    go = torch.full((n, n), (1 - stay) / (n - 1), dtype=torch.float64).fill_diagonal_(stay)
    inside = torch.tensor(list(first.values()), dtype=torch.float64)
    for _ in range(length - 1):
        inside = inside[..., None] * go
    joint = torch.zeros((n + noise_words,) * length, dtype=torch.float64)
    joint[(slice(n),) * length] = inside
    return World(joint.flatten(), (*first, *(f"#{i}" for i in range(noise_words))), length)


def one_step(world: World) -> Float[Tensor, "s"]:
    """What comes out when every position is drawn from its own marginal, without looking at the
    others.
    """
    return independent(world, world.marginals()[None])[0]


def distance(p: Tensor, q: Tensor) -> float:
    """Total variation: half the sum of |p - q|. The share of texts that would have to be others."""
    return float((p - q).abs().sum() / 2)


def total_correlation(
    world: World, texts: Float[Tensor, "r s"], chosen: Bool[Tensor, "r c"]
) -> Float[Tensor, "r"]:
    """[R] nats: what drawing the chosen positions independently loses, KL(joint of them | product
    of their marginals).

    For two positions it is their mutual information. texts: a distribution in each row; chosen:
    positions in each row.
    """
    v, c = len(world.words), world.length
    alone = (entropy(world.marginals(texts)) * chosen).sum(-1)
    together = torch.zeros_like(alone)
    for subset in chosen.unique(dim=0):
        rows = (chosen == subset).all(-1)
        others = [1 + i for i in range(c) if not subset[i]]
        table = texts[rows].view(-1, *[v] * c)
        together[rows] = entropy((table.sum(others) if others else table).reshape(len(table), -1))
    return alone - together


def entropy(p: Tensor) -> Tensor:
    """Nats, over the last axis."""
    return -torch.special.xlogy(p, p).sum(-1)


def independent(world: World, each: Float[Tensor, "r c v"]) -> Float[Tensor, "r s"]:
    """Distributions of each position -> of texts, the positions being drawn independently."""
    picked = [each[:, i, world.canvases[:, i]] for i in range(world.length)]
    return math.prod(picked[1:], start=picked[0])


def _levels(c: int) -> tuple[Sequence[float], Sequence[float]]:
    """Noise levels and weights that integrate a polynomial of degree C over [0, 1] exactly
    (Gauss-Legendre).
    """
    x, w = np.polynomial.legendre.leggauss(c // 2 + 1)
    return ((x + 1) / 2).tolist(), (w / 2).tolist()
