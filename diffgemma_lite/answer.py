"""What `generate` returns, how it comes about canvas by canvas, and the report's metrics.

End tokens are found here, and what follows one becomes padding: text and padding are counted apart
from here on. Metrics are the report's (arXiv:2608.00146, section 6).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import torch
from jaxtyping import Int
from torch import Tensor

from .sampler import Step
from .trace.trace import Trace


@dataclass
class Generation:
    """What `generate` returns. K canvases, B rows."""

    # [B, <= max_new_tokens] without the prompt; pad after the first end token
    tokens: Int[Tensor, "b t"]
    lengths: Int[Tensor, "b"]  # [B] tokens kept, the end token included
    stop_reason: list[str]  # per row: "end_token", "length" or "cancelled"
    # [K][B]: "stable", "steps", "ended" or "cancelled"
    canvas_stop: list[list[str]] = field(default_factory=list)
    steps: list[list[int]] = field(default_factory=list)  # [K][B] denoising steps
    metrics: dict[str, float] = field(default_factory=dict)
    trace: Trace | None = None


class Answer:
    """What `generate` has committed so far, and how it came about. B rows."""

    def __init__(self, ids: Int[Tensor, "b s"], ends: Tensor | None, pad: int):
        self.ends, self.pad, self.cancelled, self.passes = ends, pad, False, 0
        self.ended = torch.zeros(len(ids), dtype=torch.bool, device=ids.device)  # [B]
        self.committed: list[Tensor] = []  # [B, C] each
        self.steps: list[list[int]] = []  # [K][B]
        self.canvas_stop: list[list[str]] = []  # [K][B]
        self._start_canvas()

    def _start_canvas(self) -> None:
        self.done, self.taken = self.ended, torch.zeros_like(self.ended, dtype=torch.int64)

    def count(self, step: Step) -> None:
        """A step of the canvas at hand: counted for the rows that were not done before it."""
        self.taken = self.taken + ~self.done
        self.done = self.ended | step.finished

    def commit(self, last: Step) -> Int[Tensor, "b c"]:
        """Take the canvas of its last step; what follows a row's first end token becomes pad."""
        before, canvas = self.ended, last.argmax
        if self.ends is not None:
            is_end = torch.isin(canvas, self.ends)
            after = is_end.cumsum(-1) - is_end.long() > 0
            canvas = canvas.masked_fill(after | before[:, None], self.pad)
            self.ended = before | is_end.any(-1)
        unfinished = "cancelled" if self.cancelled else "steps"
        rows = zip(last.finished.tolist(), before.tolist(), strict=True)
        self.canvas_stop.append(["ended" if e else "stable" if f else unfinished for f, e in rows])
        self.committed.append(canvas)
        self.steps.append(self.taken.tolist())
        self.passes += last.index + 1
        self._start_canvas()
        return canvas

    def finish(self, max_new_tokens: int, seconds: float) -> Generation:
        c, tokens = self.committed[0].shape[1], torch.cat(self.committed, 1)[:, :max_new_tokens]
        out = finish(tokens, self.ends, self.cancelled)
        out.steps, out.canvas_stop = self.steps, self.canvas_stop
        forwards = self.passes + len(self.steps)
        out.metrics = metrics(out, c, seconds) | {"forwards": forwards}
        return out


class Stream:
    """A streamer as Transformers has them, or none."""

    def __init__(self, streamer):
        self.streamer, self.drafts = streamer, hasattr(streamer, "put_draft")

    def put(self, ids: Int[Tensor, "b s"]) -> None:
        if self.streamer is not None:
            self.streamer.put(ids.cpu())

    def draft(self, step: Step) -> None:
        if self.drafts and getattr(self.streamer, "_takes_logits", False):
            self.streamer.put_draft(logits=step.scaled_logits.cpu())
        elif self.drafts:
            self.streamer.put_draft(value=step.argmax.cpu())

    def end(self) -> None:
        if self.streamer is not None:
            self.streamer.end()


def finish(tokens: Tensor, ends: Tensor | None, cancelled: bool) -> Generation:
    """Lengths and stop reasons from the committed tokens, already cut at max_new_tokens."""
    lengths = torch.full((len(tokens),), tokens.shape[1], device=tokens.device)
    reason = ["cancelled" if cancelled else "length"] * len(tokens)
    if ends is not None:
        is_end = torch.isin(tokens, ends)
        has = is_end.any(-1)
        lengths = torch.where(has, is_end.int().argmax(-1) + 1, lengths)
        reason = ["end_token" if h else r for h, r in zip(has.tolist(), reason, strict=True)]
    return Generation(tokens[:, : int(lengths.max())], lengths, reason)


def metrics(out: Generation, canvas_length: int, seconds: float) -> dict[str, float]:
    """The report's efficiency numbers, over the kept tokens of all rows.

    effective_denoising_steps: mean steps of a canvas, each canvas weighted by the tokens kept from
    it; tokens_per_forward: tokens / (sum of steps + canvases - 1) of each row alone, the commit
    passes counted, the prompt's pass not. (`forwards` is not of this kind: it is what ran for the
    whole batch, the prompt's pass included.)
    """
    weighted, row_forwards, tokens = 0, 0, int(out.lengths.sum())
    for row, kept in enumerate(out.lengths.tolist()):
        used = math.ceil(kept / canvas_length)
        for k in range(used):
            weighted += out.steps[k][row] * min(canvas_length, kept - k * canvas_length)
        row_forwards += sum(out.steps[k][row] for k in range(used)) + used - 1
    return {
        "effective_denoising_steps": weighted / tokens,
        "tokens_per_forward": tokens / row_forwards,
        "tokens_per_second": tokens / seconds,
    }
