"""Recorder: collects the Steps of a `generate` call into a Trace.

The tensors leave the device here and nowhere else.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict

import numpy as np
import torch
from torch import Tensor

from ..attention import KVCache
from ..sampler import SamplerConfig, Step
from .observe import most_attended, observe
from .trace import CanvasTrace, Trace

CANDIDATES = 5  # most likely tokens kept for each position and step
ATTENDED = 4  # most attended positions kept for each position, step and layer


def _array(tensor: Tensor) -> np.ndarray:
    """To numpy, which knows no bfloat16; float32 holds it exactly."""
    return (tensor.float() if tensor.dtype == torch.bfloat16 else tensor).cpu().numpy()


class Recorder:
    """add(step) after every step, commit(...) after every canvas, trace(...) at the end.

    With `attention`, `watch` around a decoder pass notes what each position attends to most: the
    weights are formed a second time, beside the fused attention that never shows them.
    """

    def __init__(self, sampler: SamplerConfig, vocab_size: int, *, attention: bool = False):
        self.sampler, self.vocab_size, self.attention = sampler, vocab_size, attention
        self.attended: dict[str, Tensor] = {}
        self.meta: dict = {}
        self.steps: list[dict[str, np.ndarray]] = []
        self.canvases: list[CanvasTrace] = []

    @contextmanager
    def watch(self, model, cache: KVCache) -> Iterator[None]:
        """Around the decoder pass whose Step is added next."""
        if not self.attention:
            yield
            return
        with observe(model, routing=False) as seen:
            yield
        if not seen.attention:  # no pass ran: the canvas had been finished
            return
        padding = None if cache.mask is None else (~cache.mask).sum(-1)
        positions, weights = most_attended(seen, ATTENDED, padding)
        self.attended = {"attended": positions, "attended_weight": weights}
        self.meta = {"layer_types": list(model.config.layer_types)}

    def record(self, steps: Iterator[Step], model, cache: KVCache) -> Iterator[Step]:
        """The same steps, each kept; the pass that makes a step is watched."""
        while True:
            with self.watch(model, cache):
                step = next(steps, None)
            if step is None:
                return
            self.add(step)
            yield step

    def add(self, step: Step) -> None:
        probs, ids = step.scaled_logits.softmax(-1).topk(min(CANDIDATES, self.vocab_size), dim=-1)
        kept = (
            {name: getattr(step, name) for name in _KEPT}
            | {"top_ids": ids, "top_probs": probs}
            | self.attended
        )
        arrays = {name: _array(tensor) for name, tensor in kept.items()}
        self.steps.append(arrays | {"temperature": step.temperature})

    def commit(self, taken: list[int], stop: list[str], last: Step) -> None:
        stacked = {
            name: np.stack([np.asarray(s[name]) for s in self.steps]) for name in self.steps[0]
        }
        self.canvases.append(
            CanvasTrace(
                **stacked,
                pinned=last.pinned.cpu().numpy(),
                last_canvas=last.next_canvas.cpu().numpy(),
                steps=np.array(taken),
                stop=stop,
                entropy_bound=self.sampler.entropy_bound,
            )
        )
        self.steps = []

    def trace(self, ids: Tensor, attention_mask: Tensor | None, out) -> Trace:
        keep = (
            torch.ones_like(ids, dtype=torch.bool)
            if attention_mask is None
            else attention_mask.bool()
        )
        return Trace(
            prompt=[row[k].tolist() for row, k in zip(ids, keep, strict=True)],
            canvases=self.canvases,
            tokens=[
                row[:n].tolist() for row, n in zip(out.tokens, out.lengths.tolist(), strict=True)
            ],
            vocab_size=self.vocab_size,
            sampler=asdict(self.sampler),
            meta=self.meta,
        )


_KEPT = (
    "canvas",
    "sampled",
    "argmax",
    "entropy",
    "accepted",
    "revised",
    "finished",
    "mean_entropy",
)
