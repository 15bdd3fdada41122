"""Sudoku as a canvas: what the prompt says, what stands in the canvas, and where each cell's digit
is. Notebook 09.

Rows, columns and boxes are not in the architecture: its positions are a line, seen through rotary
embeddings. A layout is one way to tell the model where a cell lies, by tokens alone, so that any
checkpoint stays an ordinary DiffusionGemma:

    plain    prompt: 81 digits or blanks          canvas: 81 digits              (as published)
    named    prompt: 81 tokens "cell, clue"       canvas: 81 digits
    legend   prompt: 81 tokens "cell"             canvas: 81 digits, clues pinned as tokens
                                                  "given 1" to "given 9"
    pairs    prompt: one token                    canvas: 81 times "cell" (pinned), digit (clues
                                                  pinned as in legend)

In `named` and `legend` every canvas position finds its cell at the same distance, n * n tokens
back; in `pairs` one back. `start_geometry` only chooses where training starts: cell tokens that
name row, column and box, and, in the first layer, heads that look at that distance. Noise is drawn
from the whole vocabulary, most of which, as in any large model, are no digits (`spare`): so noise
rarely looks like a clue.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from ...attention import flatten_scores
from ...config import FULL, SLIDING, Config
from .data import geometry

LAYOUTS = ("plain", "named", "legend", "pairs")
# the mask is used by the absorbing-state sibling only, but every sibling has it
PAD, EOS, BOS, MASK = range(4)
FIRST = 4  # id of the digit 1


@dataclass(frozen=True)
class Layout:
    """Names and places of all tokens. n is the side of the grid: 9, 6 or 4."""

    name: str = "legend"
    n: int = 9
    spare: int = 0  # tokens that are never used, as most of a large vocabulary is not in a puzzle

    def __post_init__(self):
        if self.name not in LAYOUTS:
            raise ValueError(f"name: got {self.name!r}, takes one of {', '.join(LAYOUTS)}")
        geometry(self.n)

    @property
    def cells(self) -> int:
        return self.n**2

    @property
    def canvas_length(self) -> int:
        return self.cells * (2 if self.name == "pairs" else 1)

    @property
    def vocab_size(self) -> int:
        """Specials, digits and the layout's own tokens, rounded up to a multiple of 8."""
        own = {
            "plain": 1,
            "named": self.cells * (self.n + 1),
            "legend": self.n + self.cells,
            "pairs": self.n + self.cells,
        }
        return -(-(self.first + own[self.name] + self.spare) // 8) * 8

    @property
    def first(self) -> int:
        """The id of the layout's first own token, after specials and digits."""
        return FIRST + self.n

    @property
    def names(self) -> int:
        """The id of the first cell token; `legend` and `pairs` have the given digits before it."""
        return self.first + (self.n if self.name in ("legend", "pairs") else 0)

    def digits(self, grid: np.ndarray) -> np.ndarray:
        """Digits 1 .. n -> ids; any shape."""
        return grid + (FIRST - 1)

    def prompt(self, clues: np.ndarray) -> np.ndarray:
        """Clues [B, cells], 0 for empty -> ids [B, S]."""
        cell = np.arange(self.cells)
        if self.name == "plain":
            return np.where(clues > 0, self.digits(clues), self.first)
        if self.name == "named":
            return self.names + cell * (self.n + 1) + clues
        if self.name == "legend":
            return np.broadcast_to(self.names + cell, clues.shape).copy()
        return np.full((len(clues), 1), BOS)

    def canvas(self, clues: np.ndarray, solution: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Clues and solution [B, cells] -> (clean canvas, pinned), both [B, C]."""
        ids, given = self.digits(solution), clues > 0
        if self.name in ("legend", "pairs"):
            ids = np.where(given, self.first - 1 + clues, ids)
        if self.name == "legend":
            return ids, given
        if self.name == "pairs":
            cell = np.broadcast_to(self.names + np.arange(self.cells), ids.shape)
            both = np.stack([cell, ids], 2).reshape(len(ids), -1)
            return both, np.stack([np.ones_like(given), given], 2).reshape(len(ids), -1)
        return ids, np.zeros_like(given)

    def grid(self, canvas: np.ndarray, clues: np.ndarray) -> np.ndarray:
        """Canvas [B, C] -> digits [B, cells].

        What the model wrote, and the clues where they were pinned; 0 for no digit.
        """
        written = canvas[:, 1::2] if self.name == "pairs" else canvas
        digits = written - (FIRST - 1)
        digits = np.where((digits >= 1) & (digits <= self.n), digits, 0)
        return np.where(clues > 0, clues, digits) if self.name in ("legend", "pairs") else digits

    def config(
        self, *, width: int = 128, layers: int = 5, heads: int = 4, experts: int = 4, **changes
    ) -> Config:
        """A Config for this layout: all layers see everything, the last is a full one, and most
        rotary lanes turn slowly.
        """
        sizes = dict(
            vocab_size=self.vocab_size,
            hidden_size=width,
            intermediate_size=2 * width,
            num_hidden_layers=layers,
            num_attention_heads=heads,
            num_key_value_heads=heads,
            head_dim=width // heads,
            num_global_key_value_heads=heads,
            global_head_dim=width // heads,
            sliding_window=4 * self.cells,
            num_experts=experts,
            top_k_experts=2,
            moe_intermediate_size=width,
            canvas_length=self.canvas_length,
            max_position_embeddings=4 * self.cells,
            layer_types=(SLIDING,) * (layers - 1) + (FULL,),
            sliding_rope_theta=1e6,
            partial_rotary_factor=0.0625,
            pad_token_id=PAD,
            eos_token_id=EOS,
            bos_token_id=BOS,
        )
        return Config(**(sizes | changes))


@torch.no_grad()
def start_geometry(
    model, layout: Layout, generator: torch.Generator, *, look: float = 3.0, faint: float = 0.25
) -> None:
    """Where training starts.

    All tokens share one vector; digits add one of their own; cell tokens add, faintly, the sum of a
    row, a column and a box vector. So a cell token in the prompt names its cell, and one that noise
    put into the canvas says little. look: norm weight of queries and keys in the first layer, the
    sharpness of its looking heads; 0 leaves that layer as any other. `plain` has no cell tokens and
    gets neither.
    """
    width, n, table = model.config.hidden_size, layout.n, model.embed_tokens.weight

    def vectors(rows: int) -> Tensor:
        return torch.randn(rows, width, generator=generator) / math.sqrt(width)

    common, digit, row, col, box = vectors(1), vectors(n), vectors(n), vectors(n), vectors(n)
    place = torch.stack([row[r] + col[c] + box[b] for r, c, b in geometry(n)]) / math.sqrt(3)
    table.copy_(common + faint * vectors(len(table)))
    table[FIRST : layout.first] = common + digit
    if layout.name == "named":
        clue = torch.cat([vectors(1), digit])
        both = (place[:, None] + clue[None]).flatten(0, 1) / math.sqrt(2)
        table[layout.names : layout.names + len(both)] = common + faint * both
    elif layout.name != "plain":
        table[layout.first : layout.names] = common + (digit + vectors(1)) / math.sqrt(2)
        table[layout.names : layout.names + layout.cells] = common + faint * place
    flatten_scores(model)
    if look and layout.name != "plain":
        _look_back(model, 1 if layout.name == "pairs" else layout.cells, common[0], look)


def _look_back(model, distance: int, common: Tensor, sharpness: float) -> None:
    """In the first layer, two heads get queries and keys whose product peaks `distance` tokens
    back.

    From the vector that all tokens share, these heads make the same query and the same key for
    every token. With the key turned `distance` tokens ahead, rotation makes both equal where the
    key stands that far back. Their values leave the shared vector out.
    """
    c, attention = model.config, model.layers[0].self_attn
    half, group = c.head_dim // 2, attention.group * c.head_dim
    angle = distance / c.sliding_rope_theta ** (torch.arange(half) / half)
    key = torch.cat([angle.cos() - angle.sin(), angle.cos() + angle.sin()])
    direction = common / common.norm()
    for g in range(min(2, c.num_key_value_heads)):
        attention.k_proj.weight[g * c.head_dim : (g + 1) * c.head_dim] += (
            0.5 * key[:, None] * direction
        )
        attention.q_proj.weight[g * group : g * group + c.head_dim] += 0.5 * direction
    value = attention.v_proj.weight
    value -= (value @ direction)[:, None] * direction
    attention.q_norm.weight.fill_(sharpness)
    attention.k_norm.weight.fill_(sharpness)


def only_digits(layout: Layout):
    """A logits_filter that leaves no other token than a digit."""

    def allow(logits: torch.Tensor, canvas: torch.Tensor) -> torch.Tensor:
        barred = torch.ones(logits.shape[-1], dtype=torch.bool, device=logits.device)
        barred[FIRST : layout.first] = False
        return logits.masked_fill(barred, -torch.inf)

    return allow
