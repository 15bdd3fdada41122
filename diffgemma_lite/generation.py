"""Generation: canvas after canvas, and the same weights run one token at a time.

    encode the prompt -> [ noise a canvas -> denoise it until it is stable or out of steps ->
    commit: encode the result ] -> ...

Walked through in notebooks 00 and 08. The step itself is sampler.py's; `denoise` yields the
Steps of one canvas, `generate` is a loop over canvases and Steps, answer.py keeps what it commits.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from .answer import Answer, Generation, Stream, finish
from .attention import KVCache
from .checks import door
from .inputs import check_autoregressive, check_generation, checked_filter
from .noise import Generators, uniform_tokens
from .sampler import SamplerConfig, Step, denoise_step, draw_tokens, running
from .trace.recorder import Recorder


@door
@torch.no_grad()
def denoise(
    model,
    cache: KVCache,
    canvas: Int[Tensor, "b c"],
    sampler: SamplerConfig,
    *,
    generator: Generators = None,
    pinned: Bool[Tensor, "b c"] | None = None,
    ended: Bool[Tensor, "b"] | None = None,
    logits_filter: Callable[[Tensor, Tensor], Tensor] | None = None,
    step_function: Callable[..., Step] = denoise_step,
) -> Iterator[Step]:
    """One canvas [B, C] as its Steps, until every row is stable and confident or N steps are done.

    The canvas is noise, or ids of which the pinned ones never change. Leaving the loop cancels.
    Other arguments as in `generate`; `ended` rows have nothing to do. Errors: ValueError for NaN
    logits, at the step where they appear, and for what a filter or step function may not return.
    """
    previous: list[Step] = []
    kept, given = max(1, sampler.stability_threshold), {}
    if pinned is not None:
        given = {"pinned": pinned, "pinned_ids": canvas}
    for n in range(sampler.max_denoising_steps):
        believed = None
        if previous and sampler.self_conditioning:  # in the model's dtype, as the reference does
            believed = previous[-1].scaled_logits.to(model.dtype)
        logits = model.decode(canvas, cache, believed)
        if logits_filter is not None:
            logits = checked_filter(logits_filter, logits, canvas)
        step = step_function(
            logits, canvas, n, sampler, previous=previous, generator=generator, ended=ended, **given
        )
        all_done, broken = _at_once(step)
        if broken:
            raise ValueError(
                f"model: the logits of step {n} hold NaN, on the canvas after {cache.length} "
                "tokens; weights or logits_filter are broken"
            )
        yield step
        if all_done:
            return
        canvas, previous = step.next_canvas, [*previous, step][-kept:]


def _at_once(step: Step) -> list[bool]:
    """(are all rows finished, is anything NaN), for one synchronisation of the device."""
    if not isinstance(step, Step):
        raise ValueError(
            f"step_function: returned {type(step).__name__}, takes one that returns a Step"
        )
    return torch.stack([step.finished.all(), step.entropy.isnan().any()]).tolist()


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
    step_function: Callable[..., Step] = denoise_step,
) -> Generation:
    """Write up to `max_new_tokens` after the prompt ids [B, S], a canvas at a time.

    A checkpoint's own settings are in model.generation_defaults and are used only where they are
    given: the sampler by `SamplerConfig.from_defaults(model.generation_defaults)`, end tokens and
    length by the arguments below.

    eos_token_id: end tokens, None for none. generator: one (the reference's stream), or a list with
    one per row, which makes a row independent of its batch. initial_canvas [B, C] with pinned (bool
    [B, C]): infill and edit, first canvas only; pinned ids never change. logits_filter(logits,
    canvas) -> logits, before the temperature. on_step(step) returning True cancels and keeps what
    stands. streamer: put / put_draft / end, as Transformers' streamers have them. trace: True keeps
    what every step did in out.trace; "attention" also the positions each one attends to most, layer
    by layer, which costs a second computation of the attention weights.

    Metrics: forwards counts every pass the model ran for the batch, the prompt's, the decoder's and
    the commits; the others are the report's, see `answer.metrics`. Errors: ValueError for any
    argument out of range, before work starts; for NaN logits, at the step where they appear.
    """
    calls = {"logits_filter": logits_filter, "on_step": on_step, "step_function": step_function}
    ends, pad = check_generation(
        model, ids, attention_mask, sampler, max_new_tokens, eos_token_id, pad_token_id,
        generator, initial_canvas, pinned, calls, streamer, trace,
    )  # fmt: skip
    start, c, vocab = time.perf_counter(), model.config.canvas_length, model.config.vocab_size
    recorder = Recorder(sampler, vocab, attention=trace == "attention") if trace else None
    stream, answer, cache, fresh = Stream(streamer), Answer(ids, ends, pad), None, ids
    stream.put(ids)
    try:
        for k in range(math.ceil(max_new_tokens / c)):
            cache = model.encode(fresh, attention_mask if k == 0 else None, cache)
            own = running(generator, answer.ended)
            canvas, held = uniform_tokens((len(ids), c), vocab, own, ids.device), None
            if k == 0 and initial_canvas is not None:  # the noise is drawn all the same
                canvas, held = initial_canvas, pinned
            # a shared stream keeps all rows going
            ended = answer.ended if isinstance(generator, (list, tuple)) else None
            steps = denoise(
                model, cache, canvas, sampler, generator=generator, pinned=held, ended=ended,
                logits_filter=logits_filter, step_function=step_function,
            )  # fmt: skip
            for step in steps if recorder is None else recorder.record(steps, model, cache):
                answer.count(step)
                stream.draft(step)
                if on_step is not None and on_step(step):
                    answer.cancelled = True
                    break
            fresh = answer.commit(step)
            if recorder is not None:
                recorder.commit(answer.steps[-1], answer.canvas_stop[-1], step)
            stream.put(fresh[:, : max_new_tokens - k * c])  # never more than was asked for
            if answer.cancelled or bool(answer.ended.all()):
                break
    finally:  # whoever reads the stream must not wait for ever
        stream.end()
    out = answer.finish(max_new_tokens, time.perf_counter() - start)
    out.trace = None if recorder is None else recorder.trace(ids, attention_mask, out)
    return out


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
    out = finish(torch.stack(written, 1), ends, cancelled)
    seconds, kept = time.perf_counter() - start, int(out.lengths.sum())
    out.metrics = {
        "forwards": len(written),
        "tokens_per_forward": 1.0,
        "tokens_per_second": kept / seconds,
    }
    return out
