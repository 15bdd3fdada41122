"""Recorder: collects the Steps of a `generate` call into a Trace. The tensors leave the device here and nowhere else."""

from __future__ import annotations

from dataclasses import asdict

import numpy as np
import torch
from torch import Tensor

from .sampler import SamplerConfig, Step
from .trace import CanvasTrace, Trace

CANDIDATES = 5  # most likely tokens kept for each position and step


class Recorder:
    """add(step) after every step, commit(...) after every canvas, trace(...) at the end."""

    def __init__(self, sampler: SamplerConfig, vocab_size: int):
        self.sampler, self.vocab_size = sampler, vocab_size
        self.steps: list[dict[str, np.ndarray]] = []
        self.canvases: list[CanvasTrace] = []

    def add(self, step: Step) -> None:
        probs, ids = step.scaled_logits.softmax(-1).topk(min(CANDIDATES, self.vocab_size), dim=-1)
        kept = {name: getattr(step, name) for name in _KEPT} | {"top_ids": ids, "top_probs": probs}
        self.steps.append({name: tensor.cpu().numpy() for name, tensor in kept.items()} | {"temperature": step.temperature})

    def commit(self, taken: Tensor, stop: list[str], last: Step) -> None:
        stacked = {name: np.stack([np.asarray(s[name]) for s in self.steps]) for name in self.steps[0]}
        self.canvases.append(CanvasTrace(
            **stacked, pinned=last.pinned.cpu().numpy(), last_canvas=last.next_canvas.cpu().numpy(),
            steps=taken.cpu().numpy(), stop=stop, entropy_bound=self.sampler.entropy_bound,
        ))  # fmt: skip
        self.steps = []

    def trace(self, ids: Tensor, attention_mask: Tensor | None, out) -> Trace:
        keep = torch.ones_like(ids, dtype=torch.bool) if attention_mask is None else attention_mask.bool()
        return Trace(
            prompt=[row[k].tolist() for row, k in zip(ids, keep, strict=True)], canvases=self.canvases,
            tokens=[row[:n].tolist() for row, n in zip(out.tokens, out.lengths.tolist(), strict=True)],
            vocab_size=self.vocab_size, sampler=asdict(self.sampler), meta={},
        )  # fmt: skip


_KEPT = ("canvas", "sampled", "argmax", "entropy", "accepted", "revised", "finished", "mean_entropy")
