"""Generation: canvas after canvas, and the same weights run one token at a time.

    encode the prompt -> [ noise a canvas -> denoise it until it is stable or out of steps ->
    commit: encode the result ] -> ...

Walked through in notebooks 00 and 08. The step itself is sampler.py's; this file owns the cache,
the end tokens, the stop reasons and the record of what happened. Metrics are the report's
(arXiv:2608.00146, section 6).
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field

import torch
from jaxtyping import Int
from torch import Tensor

from .attention import KVCache
from .inputs import check_autoregressive, check_filtered, check_generation
from .noise import Generators, uniform_tokens
from .sampler import SamplerConfig, Step, denoise_step, draw_tokens, running
from .trace import Trace
from .trace.recorder import Recorder


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


@torch.no_grad()
def generate(
    model,
    ids: Tensor,
    sampler: SamplerConfig = SamplerConfig(),
    *,
    attention_mask: Tensor | None = None,
    max_new_tokens: int = 256,
    eos_token_id: int | Sequence[int] | None = None,
    pad_token_id: int | None = None,
    generator: Generators = None,
    initial_canvas: Tensor | None = None,
    pinned: Tensor | None = None,
    logits_filter: Callable[[Tensor, Tensor], Tensor] | None = None,
    on_step: Callable[[Step], bool | None] | None = None,
    streamer=None,
    trace: bool | str = False,
    step_function=denoise_step,
) -> Generation:
    """Write up to `max_new_tokens` after the prompt ids [B, S], a canvas at a time.

    A checkpoint's own settings are in model.generation_defaults and are used only where they are
    given: the sampler by `SamplerConfig.from_defaults(model.generation_defaults)`, end tokens and
    length by the arguments below. eos_token_id: end tokens, None for none. generator: one (the
    reference's stream), or a list with one per row, which makes a row independent of its batch.
    initial_canvas [B, C] with pinned (bool [B, C]): infill and edit, first canvas only; pinned ids
    never change. logits_filter(logits, canvas) -> logits, before the temperature. on_step(step)
    returning True cancels and keeps what stands. streamer: put / put_draft / end, as Transformers'
    streamers have them. trace: True keeps what every step did in out.trace; "attention" also the
    positions each one attends to most, layer by layer, which costs a second computation of the
    attention weights. Metrics: forwards counts every pass the model ran for the batch, the
    prompt's, the decoder's and the commits; the others are the report's, see `_metrics`. Errors:
    ValueError for any argument out of range, before work starts; for NaN logits, at the step where
    they appear.
    """
    ends, pad = check_generation(
        model,
        ids,
        attention_mask,
        sampler,
        max_new_tokens,
        eos_token_id,
        pad_token_id,
        generator,
        initial_canvas,
        pinned,
        {"logits_filter": logits_filter, "on_step": on_step, "step_function": step_function},
    )
    if trace not in (False, True, "attention"):
        raise ValueError(f"trace: got {trace!r}, takes False, True or 'attention'")
    if streamer is not None and not all(
        callable(getattr(streamer, name, None)) for name in ("put", "end")
    ):
        raise ValueError(
            f"streamer: got {type(streamer).__name__}, takes an object with put(ids) and end()"
        )
    start, c = time.perf_counter(), model.config.canvas_length
    recorder = (
        Recorder(sampler, model.config.vocab_size, attention=trace == "attention")
        if trace
        else None
    )
    ended = torch.zeros(len(ids), dtype=torch.bool, device=ids.device)
    cache, fresh, committed, canvas_stop, steps, cancelled, passes = None, ids, [], [], [], False, 0
    if streamer is not None:
        streamer.put(ids.cpu())
    try:
        for k in range(math.ceil(max_new_tokens / c)):
            cache = model.encode(fresh, attention_mask if k == 0 else None, cache)
            canvas = uniform_tokens(
                (len(ids), c), model.config.vocab_size, running(generator, ended), ids.device
            )
            given = {}
            # the noise above is drawn all the same, to keep the stream
            if k == 0 and initial_canvas is not None:
                canvas, given = (
                    initial_canvas,
                    {
                        "pinned": pinned,
                        "pinned_ids": initial_canvas if pinned is not None else None,
                    },
                )
            last, taken, cancelled = _denoise_canvas(
                model,
                cache,
                canvas,
                sampler,
                k,
                ended,
                generator,
                given,
                logits_filter,
                on_step,
                streamer,
                recorder,
                step_function,
            )
            before, fresh = ended, last.argmax
            fresh, ended = _cut_at_end_token(fresh, before, ends, pad)
            committed.append(fresh)
            steps.append(taken.tolist())
            passes += last.index + 1
            canvas_stop.append(_canvas_stops(last, before, cancelled))
            if recorder is not None:
                recorder.commit(taken, canvas_stop[-1], last)
            if streamer is not None:
                # never more than the caller asked for
                streamer.put(fresh[:, : max_new_tokens - k * c].cpu())
            if cancelled or bool(ended.all()):
                break
    finally:  # whoever reads the stream must not wait for ever
        if streamer is not None:
            streamer.end()
    out = _finish(torch.cat(committed, 1)[:, :max_new_tokens], ends, cancelled)
    out.steps, out.canvas_stop = steps, canvas_stop
    out.metrics = _metrics(out, c, time.perf_counter() - start) | {"forwards": passes + len(steps)}
    out.trace = None if recorder is None else recorder.trace(ids, attention_mask, out)
    return out


def _denoise_canvas(
    model,
    cache: KVCache,
    canvas: Tensor,
    sampler: SamplerConfig,
    k: int,
    ended: Tensor,
    generator: Generators,
    given: dict,
    logits_filter,
    on_step,
    streamer,
    recorder,
    step_function,
) -> tuple[Step, Tensor, bool]:
    """Denoise one canvas. Returns its last Step, the steps each row took [B], and whether `on_step`
    cancelled.
    """
    previous: list[Step] = []
    keep = max(1, sampler.stability_threshold)
    taken = torch.zeros(len(canvas), dtype=torch.int64, device=canvas.device)
    # a shared stream keeps all rows going
    rows_end = ended if isinstance(generator, (list, tuple)) else None
    for n in range(sampler.max_denoising_steps):
        # handed on in the model's dtype, as the reference does
        self_conditioning = (
            previous[-1].scaled_logits.to(model.dtype)
            if previous and sampler.self_conditioning
            else None
        )
        with nullcontext() if recorder is None else recorder.watch(model, cache):
            logits = model.decode(canvas, cache, self_conditioning)
        if logits_filter is not None:
            filtered = logits_filter(logits, canvas)
            check_filtered(filtered, logits)
            logits = filtered
        step = step_function(
            logits,
            canvas,
            n,
            sampler,
            previous=previous,
            generator=generator,
            ended=rows_end,
            **given,
        )
        if not isinstance(step, Step):
            raise ValueError(
                f"step_function: returned {type(step).__name__}, takes one that returns a Step"
            )
        taken += ~(ended | previous[-1].finished if previous else ended)
        # one synchronisation
        all_done, broken = torch.stack([step.finished.all(), step.entropy.isnan().any()]).tolist()
        if broken:
            raise ValueError(
                f"model: the logits of canvas {k}, step {n} hold NaN; weights or logits_filter are broken"
            )
        if recorder is not None:
            recorder.add(step)
        if streamer is not None and hasattr(streamer, "put_draft"):
            takes_logits = getattr(streamer, "_takes_logits", False)
            streamer.put_draft(
                **(
                    {"logits": step.scaled_logits.cpu()}
                    if takes_logits
                    else {"value": step.argmax.cpu()}
                )
            )
        cancelled = on_step is not None and bool(on_step(step))
        if cancelled or all_done:
            return step, taken, cancelled
        canvas, previous = step.next_canvas, [*previous, step][-keep:]
    return step, taken, False


def _cut_at_end_token(
    canvas: Tensor, ended: Tensor, ends: Tensor | None, pad: int
) -> tuple[Tensor, Tensor]:
    """Everything after a row's first end token becomes pad. Returns the canvas [B, C] and which
    rows have ended [B].
    """
    if ends is None:
        return canvas, ended
    is_end = torch.isin(canvas, ends)
    after = is_end.cumsum(-1) - is_end.long() > 0
    canvas = canvas.masked_fill(after | ended[:, None], pad)
    return canvas, ended | is_end.any(-1)


def _canvas_stops(last: Step, ended_before: Tensor, cancelled: bool) -> list[str]:
    unfinished = "cancelled" if cancelled else "steps"
    pairs = zip(last.finished.tolist(), ended_before.tolist(), strict=True)
    return ["ended" if e else "stable" if f else unfinished for f, e in pairs]


def _finish(tokens: Tensor, ends: Tensor | None, cancelled: bool) -> Generation:
    """Lengths and stop reasons from the committed tokens, already cut at max_new_tokens."""
    lengths = torch.full((len(tokens),), tokens.shape[1], device=tokens.device)
    reason = ["cancelled" if cancelled else "length"] * len(tokens)
    if ends is not None:
        is_end = torch.isin(tokens, ends)
        has = is_end.any(-1)
        lengths = torch.where(has, is_end.int().argmax(-1) + 1, lengths)
        reason = ["end_token" if h else r for h, r in zip(has.tolist(), reason, strict=True)]
    return Generation(tokens[:, : int(lengths.max())], lengths, reason)


def _metrics(out: Generation, canvas_length: int, seconds: float) -> dict[str, float]:
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


def next_tokens(logits: Tensor, temperature: float, generator: Generators) -> Int[Tensor, "b"]:
    """[B, V] -> [B]: the argmax at temperature 0, else a draw."""
    if temperature == 0:
        return logits.argmax(-1)
    return draw_tokens(logits[:, None] / temperature, generator)[:, 0]


@torch.no_grad()
def generate_autoregressive(
    model,
    ids: Tensor,
    *,
    attention_mask: Tensor | None = None,
    max_new_tokens: int = 256,
    temperature: float = 0.0,
    eos_token_id: int | Sequence[int] | None = None,
    pad_token_id: int | None = None,
    generator: Generators = None,
    on_token: Callable[[Tensor], bool | None] | None = None,
) -> Generation:
    """The same weights as an ordinary language model: encode, take one token, encode it, and so on.

    ids [B, S]; temperature 0 is greedy. on_token(ids [B]) returning True cancels. Metrics: forwards
    as in `generate`, every pass the model ran (the prompt's writes the first token);
    tokens_per_forward is 1, since a pass writes one token. Errors: ValueError for any argument out
    of range, before work starts, and for NaN logits.
    """
    ends, pad = check_autoregressive(
        model,
        ids,
        attention_mask,
        max_new_tokens,
        temperature,
        eos_token_id,
        pad_token_id,
        generator,
        {"on_token": on_token},
    )
    start, written, cancelled, cache, fresh = time.perf_counter(), [], False, None, ids
    ended = torch.zeros(len(ids), dtype=torch.bool, device=ids.device)
    for n in range(max_new_tokens):
        hidden, cache = model.encode_hidden(fresh, attention_mask if n == 0 else None, cache)
        # of a long prompt only the last row: [B, S, V] can be larger than the model
        logits = model.logits(hidden[:, -1:])[:, 0]
        token = next_tokens(logits, temperature, running(generator, ended)).masked_fill(ended, pad)
        if bool(logits.isnan().any()):
            raise ValueError(f"model: the logits of token {n} hold NaN; the weights are broken")
        written.append(token)
        if ends is not None:
            ended = ended | torch.isin(token, ends)
        cancelled = on_token is not None and bool(on_token(token))
        if cancelled or bool(ended.all()):
            break
        fresh = token[:, None]
    out = _finish(torch.stack(written, 1), ends, cancelled)
    seconds, kept = time.perf_counter() - start, int(out.lengths.sum())
    out.metrics = {
        "forwards": len(written),
        "tokens_per_forward": 1.0,
        "tokens_per_second": kept / seconds,
    }
    return out
