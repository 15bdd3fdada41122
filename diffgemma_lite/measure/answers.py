"""How fast whole answers are: tokens kept per second, for one user and for all, and the time to the
first of them.

Against the usual tokens per second: what counts is what is kept, up to and with the end token. What
a canvas computes on the way to it is work, and is called positions per second. Walked through in
notebook 11.
"""

from __future__ import annotations

import time
from typing import Any

import torch

from ..generation import generate, generate_autoregressive
from ..model import DiffusionGemma
from ..sampler import SamplerConfig
from .device import synchronize


class _Clock:
    """A streamer that notes when the first tokens arrive; the prompt comes before them."""

    def __init__(self, device: torch.device):
        self.device, self.arrivals, self.start = device, [], time.perf_counter()

    def put(self, _ids: torch.Tensor) -> None:
        self.arrivals.append(time.perf_counter() - self.start)

    def end(self) -> None:
        pass

    def token(self, _ids: torch.Tensor) -> None:
        synchronize(self.device)
        self.arrivals.append(time.perf_counter() - self.start)


def answer(
    model: DiffusionGemma,
    ids: torch.Tensor,
    mode: str,
    sampler: SamplerConfig,
    *,
    tokens: int,
    end: int | None,
) -> dict[str, Any]:
    """Write one answer per row and say how fast. mode: "canvas" or "autoregressive".

    tokens_kept: up to and with the end token, all rows. first_seconds: until the first tokens that
    stay (a whole canvas, or one token). total_rate: tokens kept per second, all users together;
    user_rate: what one user sees of it. positions_rate: canvas positions computed per second, which
    is work and not speed.
    """
    if mode not in ("canvas", "autoregressive"):
        raise ValueError(f"mode: got {mode!r}, takes 'canvas' or 'autoregressive'")
    synchronize(model.device)
    clock = _Clock(model.device)
    if mode == "canvas":
        rows = [torch.Generator(device=model.device).manual_seed(i) for i in range(len(ids))]
        out = generate(
            model,
            ids,
            sampler,
            max_new_tokens=tokens,
            eos_token_id=end,
            generator=rows,
            streamer=clock,
        )
        first, computed = (
            clock.arrivals[1],
            model.config.canvas_length * len(ids) * sum(max(rows) for rows in out.steps),
        )
    else:
        out = generate_autoregressive(
            model, ids, max_new_tokens=tokens, eos_token_id=end, on_token=clock.token
        )
        first, computed = clock.arrivals[0], len(ids) * out.metrics["forwards"]
    synchronize(model.device)
    wall, kept = time.perf_counter() - clock.start, int(out.lengths.sum())
    return {
        "seconds": wall,
        "first_seconds": first,
        "tokens_kept": kept,
        "total_rate": kept / wall,
        "user_rate": kept / wall / len(ids),
        "positions_rate": computed / wall,
        "forwards": out.metrics["forwards"],
        "tokens_per_forward": out.metrics["tokens_per_forward"],
    }
