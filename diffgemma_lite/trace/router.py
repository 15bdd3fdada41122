"""Which experts the positions of one canvas go to, layer by layer, as a record that a view or a
notebook can read.

`observe` gives the router's tensors of a pass; this keeps, for one row of the canvas, the k experts
of every position with their weights and probabilities, and counts what the counting is about: the
load of each expert, and how many different experts the first n positions have touched, beside what
equal chances would give (routing.py). Walked through in notebook 04.

Letters: L layers, C canvas, E experts, k experts of a token.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Int
from torch import Tensor

from ..attention import KVCache
from ..cost.routing import distinct_experts
from .observe import observe
from .trace import pack, read_json, unpack, write_json

FORMAT, VERSION = "diffgemma_lite.cost.routing", 1


@dataclass(frozen=True)
class RoutingRecord:
    """One row of one decoder pass. Of each position's k experts the most probable comes first."""

    ids: np.ndarray  # [C] the canvas as the decoder read it
    index: np.ndarray  # [L, C, k] which experts
    # [L, C, k] what each expert's output is multiplied by, the per-expert scale included
    weights: np.ndarray
    probs: np.ndarray  # [L, C, k] the router's softmax over all E experts, before top-k
    # [C] experts that the first 1 .. C positions would touch if all were equally likely
    uniform: np.ndarray
    num_experts: int
    texts: Mapping[int, str] = field(default_factory=dict)
    # model, step, device, versions: whatever says where it came from
    meta: dict = field(default_factory=dict)

    @property
    def expert_load(self) -> np.ndarray:
        """[L, E]: to how many positions each expert was given. A row sums to C * k."""
        return np.stack(
            [np.bincount(layer.reshape(-1), minlength=self.num_experts) for layer in self.index]
        )

    @property
    def distinct(self) -> np.ndarray:
        """[L, C]: how many different experts the first 1 .. C positions of the canvas touch."""
        chosen = (self.index[..., None] == np.arange(self.num_experts)).any(2)  # [L, C, E]
        return np.logical_or.accumulate(chosen, axis=1).sum(-1)

    @property
    def even_share(self) -> float:
        """Positions an expert would have if all had equally many: C * k / E."""
        return self.index.shape[1] * self.index.shape[2] / self.num_experts

    def save(self, path: str | Path) -> Path:
        arrays = {
            name: pack(getattr(self, name), dtype, unit) for name, (dtype, unit) in _STORED.items()
        }
        texts = {str(i): text for i, text in self.texts.items()}
        plain = {"num_experts": self.num_experts, "texts": texts, "meta": self.meta}
        return write_json(path, {"format": FORMAT, "version": VERSION} | plain | arrays)

    @classmethod
    def load(cls, path: str | Path) -> RoutingRecord:
        data = read_json(path, FORMAT, VERSION)
        arrays = {name: unpack(data[name]) for name in _STORED}
        arrays |= {name: arrays[name].astype(np.int64) for name in ("ids", "index")}
        texts = {int(i): text for i, text in data["texts"].items()}
        return cls(**arrays, num_experts=data["num_experts"], texts=texts, meta=data["meta"])


_STORED = {
    "ids": ("uint32", None), "index": ("uint16", None), "weights": ("float32", None),
    "probs": ("float32", None), "uniform": ("float64", None),
}  # fmt: skip


@torch.no_grad()
def routing_record(
    model,
    canvas: Int[Tensor, "b c"],
    cache: KVCache,
    self_conditioning: Tensor | None = None,
    *,
    row: int = 0,
    texts: Callable[[int], str] | Mapping[int, str] | None = None,
    meta: dict | None = None,
) -> RoutingRecord:
    """Decode the canvas [B, C] once, as a denoising step does, and record where the router sent row
    `row`.

    cache, self_conditioning: as in `model.decode`. texts: id -> text, for the view. Pure: the
    model's numbers do not change. Errors: ValueError for a row the canvas does not have, and what
    `decode` refuses.
    """
    if not isinstance(row, int) or not 0 <= row < len(canvas):
        raise ValueError(f"row: got {row!r}, the canvas has rows 0 to {len(canvas) - 1}")
    with observe(model, attention=False) as seen:
        model.decode(canvas, cache, self_conditioning)

    def of_row(layers: list[Tensor]) -> np.ndarray:
        """L tensors [B * C, k] -> [L, C, k] of the row, with the row's experts in their order of
        probability.
        """
        return torch.stack([t.unflatten(0, (len(canvas), -1))[row] for t in layers]).cpu().numpy()

    index = of_row(seen.expert_index)
    probs = np.take_along_axis(of_row(seen.expert_probs), index, -1)
    size, ids = canvas.shape[1], canvas[row].cpu().numpy()
    text_of = texts.get if isinstance(texts, Mapping) else texts
    return RoutingRecord(
        ids=ids,
        index=index,
        weights=of_row([w.float() for w in seen.expert_weights]),
        probs=probs,
        uniform=np.array([distinct_experts(model.config, n) for n in range(1, size + 1)]),
        num_experts=model.config.num_experts,
        texts={} if text_of is None else {int(i): text_of(int(i)) or "" for i in np.unique(ids)},
        meta=meta or {},
    )
