"""What the model accepts. Every check raises a ValueError that names the argument, what it got and
what it takes.
"""

from __future__ import annotations

import torch
from torch import Tensor

from .attention import KVCache
from .checks import check_generators, is_integer, kind_of, shown
from .config import Config
from .sampler import SamplerConfig


def check_ids(
    name: str, ids: Tensor, vocab_size: int, device: torch.device, *, look: bool = True
) -> None:
    """Token ids: an integer tensor [B, S] on the model's device, every id in the vocabulary, no
    empty axis.

    `look` False leaves out the one check that has to read the values, which on a GPU would wait for
    them.
    """
    if not isinstance(ids, Tensor):
        raise ValueError(f"{name}: got {type(ids).__name__}, takes an integer tensor [B, S]")
    if ids.dtype not in (torch.int64, torch.int32):
        raise ValueError(f"{name}: got dtype {ids.dtype}, takes token ids as torch.int64")
    if ids.dim() != 2 or ids.numel() == 0:
        raise ValueError(
            f"{name}: got shape {tuple(ids.shape)}, "
            "takes [B, S] with at least one row and one token"
        )
    if ids.device != device:
        raise ValueError(
            f"{name}: is on {ids.device}, the model is on {device}; move one of them with .to()"
        )
    if not look or ids.device.type == "meta" or torch.compiler.is_compiling():
        return
    low, high = int(ids.min()), int(ids.max())
    if low < 0 or high >= vocab_size:
        raise ValueError(
            f"{name}: got ids from {low} to {high}, takes 0 to {vocab_size - 1} (the vocabulary)"
        )


def check_prompt(model, ids: Tensor, attention_mask: Tensor | None, cache) -> Tensor | None:
    """Check what `encode` was given; returns the mask over prefix and new tokens as bool [B, S], or
    None without padding.
    """
    check_ids("ids", ids, model.config.vocab_size, model.device)
    batch, new = ids.shape
    if cache is not None:
        _check_cache(model, "ids", batch, cache)
    old = 0 if cache is None else cache.length
    if cache is not None and cache.read_upto is not None:
        raise ValueError(
            "cache: was cut to a length per row by upto(), takes a whole one to extend"
        )
    if old + new > model.config.max_position_embeddings:
        limit = model.config.max_position_embeddings
        raise ValueError(
            f"ids: {old} cached and {new} new tokens are {old + new} positions, "
            f"takes at most {limit}"
        )
    before = None if cache is None else cache.mask
    if attention_mask is not None:
        attention_mask = _check_mask(attention_mask, ids, old)
        if bool(attention_mask.all()):
            attention_mask = None
    if attention_mask is None and before is None:
        return None
    if attention_mask is None:
        attention_mask = torch.ones(batch, new, dtype=torch.bool, device=ids.device)
    if before is None:
        before = torch.ones(batch, old, dtype=torch.bool, device=ids.device)
    return torch.cat([before, attention_mask], dim=1)


def _check_mask(mask: Tensor, ids: Tensor, old: int) -> Tensor:
    if not isinstance(mask, Tensor) or mask.shape != ids.shape:
        got = tuple(mask.shape) if isinstance(mask, Tensor) else type(mask).__name__
        raise ValueError(f"attention_mask: got {got}, takes {tuple(ids.shape)}, the shape of ids")
    if mask.device != ids.device:
        raise ValueError(f"attention_mask: is on {mask.device}, ids are on {ids.device}")
    if not bool(((mask == 0) | (mask == 1)).all()):
        raise ValueError("attention_mask: takes only 1 (token) and 0 (padding)")
    mask = mask.bool()
    if bool((mask[:, :-1] & ~mask[:, 1:]).any()):
        raise ValueError(
            "attention_mask: has padding to the right of a token, takes left padding only"
        )
    if not bool(mask[:, -1].all()) and old == 0:
        raise ValueError(
            "attention_mask: a row is all padding, takes at least one token in each row"
        )
    if old and not bool(mask.all()):
        raise ValueError(
            "attention_mask: has padding after a cached prefix, takes padding only at the very left"
        )
    return mask


def _check_cache(model, name: str, batch: int, cache) -> None:
    if not isinstance(cache, KVCache):
        raise ValueError(
            f"cache: got {type(cache).__name__}, "
            "takes what encode() returned; the prefix is read from it"
        )
    if len(cache.keys) != model.config.num_hidden_layers:
        raise ValueError(
            f"cache: has {len(cache.keys)} layers, "
            f"takes one of this model, {model.config.num_hidden_layers} layers"
        )
    for layer, keys in enumerate(cache.keys):
        have, want = (
            (keys.shape[1], keys.shape[3]),
            (model.config.kv_heads(layer), model.config.head_width(layer)),
        )
        if have != want:
            raise ValueError(
                f"cache: layer {layer} has (heads, width) {have}, takes one of this model, {want}"
            )
    if cache.keys[0].device != model.device:
        raise ValueError(f"cache: is on {cache.keys[0].device}, the model is on {model.device}")
    if cache.batch != batch:
        raise ValueError(
            f"{name}: got {batch} rows, the cache has {cache.batch}, takes the same number"
        )


def check_canvas(model, canvas: Tensor, cache) -> None:
    on_cpu = isinstance(canvas, Tensor) and canvas.device.type == "cpu"
    # a step must not wait for the GPU
    check_ids("canvas", canvas, model.config.vocab_size, model.device, look=on_cpu)
    _check_cache(model, "canvas", canvas.shape[0], cache)
    end, limit = cache.length + canvas.shape[1], model.config.max_position_embeddings
    if cache.read_upto is None and end > limit:
        raise ValueError(f"canvas: prefix and canvas end at position {end}, takes at most {limit}")


def check_self_conditioning(
    model, canvas: Tensor, logits: Tensor | None, mask: Tensor | None
) -> None:
    want = (*canvas.shape, model.config.vocab_size)
    if logits is not None and (not isinstance(logits, Tensor) or tuple(logits.shape) != want):
        got = tuple(logits.shape) if isinstance(logits, Tensor) else type(logits).__name__
        raise ValueError(f"self_conditioning: got {got}, takes logits of shape {want}")
    if logits is not None and not logits.is_floating_point():
        raise ValueError(
            f"self_conditioning: got dtype {logits.dtype}, takes floating-point logits"
        )
    if mask is not None and logits is None:
        raise ValueError(
            "self_conditioning_mask: was given without self_conditioning, takes both or neither"
        )
    if mask is not None and (
        kind_of(mask) != "torch.bool" or tuple(mask.shape) != (canvas.shape[0],)
    ):
        raise ValueError(
            f"self_conditioning_mask: got {shown(mask)}, takes torch.bool ({canvas.shape[0]},)"
        )
    for name, given in (("self_conditioning", logits), ("self_conditioning_mask", mask)):
        if given is not None and given.device != model.device:
            raise ValueError(f"{name}: is on {given.device}, the model is on {model.device}")


def check_generation(
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
    callbacks,
    streamer,
    trace,
) -> tuple[Tensor | None, int]:
    """Check what `generate` was given, before any work. Returns the end tokens as a tensor (or
    None) and the pad id.
    """
    if not isinstance(sampler, SamplerConfig):
        raise ValueError(f"sampler: got {type(sampler).__name__}, takes a SamplerConfig")
    ends, pad = _check_common(
        model, ids, attention_mask, max_new_tokens, eos_token_id, pad_token_id, generator, callbacks
    )
    c, limit = model.config.canvas_length, model.config.max_position_embeddings
    end = ids.shape[1] + -(-max_new_tokens // c) * c
    if end > limit:
        raise ValueError(
            f"max_new_tokens: prompt and whole canvases end at position {end}, "
            f"takes at most {limit}"
        )
    shape = (ids.shape[0], c)
    if initial_canvas is not None:
        check_ids("initial_canvas", initial_canvas, model.config.vocab_size, model.device)
        if tuple(initial_canvas.shape) != shape:
            raise ValueError(
                f"initial_canvas: got shape {tuple(initial_canvas.shape)}, "
                f"takes {shape}, one whole canvas"
            )
    if pinned is not None:
        if initial_canvas is None:
            raise ValueError("pinned: was given without initial_canvas, which holds the ids to pin")
        if kind_of(pinned) != "torch.bool" or tuple(pinned.shape) != shape:
            raise ValueError(
                f"pinned: got {shown(pinned)}, "
                f"takes torch.bool {shape}, True where the canvas must not change"
            )
        if pinned.device != model.device:
            raise ValueError(f"pinned: is on {pinned.device}, the model is on {model.device}")
    if trace not in (False, True, "attention"):
        raise ValueError(f"trace: got {trace!r}, takes False, True or 'attention'")
    calls = [getattr(streamer, name, None) for name in ("put", "end")]
    if streamer is not None and not all(map(callable, calls)):
        raise ValueError(
            f"streamer: got {type(streamer).__name__}, takes an object with put(ids) and end()"
        )
    return ends, pad


def checked_filter(logits_filter, logits: Tensor, canvas: Tensor) -> Tensor:
    """What a logits_filter makes of the logits."""
    filtered = logits_filter(logits, canvas)
    fits = isinstance(filtered, Tensor) and filtered.shape == logits.shape
    if not fits or not filtered.is_floating_point():
        raise ValueError(
            f"logits_filter: returned {shown(filtered)}, takes one that returns logits of shape "
            f"{tuple(logits.shape)}"
        )
    return filtered


def check_autoregressive(
    model,
    ids,
    attention_mask,
    max_new_tokens,
    temperature,
    eos_token_id,
    pad_token_id,
    generator,
    callbacks,
) -> tuple[Tensor | None, int]:
    """The same for `generate_autoregressive`."""
    ends, pad = _check_common(
        model, ids, attention_mask, max_new_tokens, eos_token_id, pad_token_id, generator, callbacks
    )
    number = isinstance(temperature, (int, float)) and not isinstance(temperature, bool)
    if not number or not (temperature == 0 or 1e-6 <= temperature < float("inf")):
        raise ValueError(
            f"temperature: got {temperature!r}, takes 0 (greedy) or a number of at least 1e-6"
        )
    limit = model.config.max_position_embeddings
    if ids.shape[1] + max_new_tokens > limit:
        end = ids.shape[1] + max_new_tokens
        raise ValueError(
            f"max_new_tokens: prompt and answer end at position {end}, takes at most {limit}"
        )
    return ends, pad


def _check_common(
    model,
    ids,
    attention_mask,
    max_new_tokens,
    eos_token_id,
    pad_token_id,
    generator,
    callbacks: dict,
) -> tuple[Tensor | None, int]:
    if not isinstance(getattr(model, "config", None), Config):
        got = model if isinstance(model, type) else type(model).__name__
        raise ValueError(f"model: got {got}, takes a DiffusionGemma")
    vocab = model.config.vocab_size
    check_prompt(model, ids, attention_mask, None)
    if not is_integer(max_new_tokens, 1):
        raise ValueError(f"max_new_tokens: got {max_new_tokens!r}, takes an integer above 0")
    ends = None
    if eos_token_id is not None:
        listed = list(eos_token_id) if isinstance(eos_token_id, (list, tuple)) else [eos_token_id]
        if not listed or not all(is_integer(e, 0, vocab - 1) for e in listed):
            takes = f"an id from 0 to {vocab - 1}, a list of them, or None"
            raise ValueError(f"eos_token_id: got {eos_token_id!r}, takes {takes}")
        ends = torch.tensor(listed, device=ids.device)
    pad = model.config.pad_token_id if pad_token_id is None else pad_token_id
    if not is_integer(pad, 0, vocab - 1):
        raise ValueError(f"pad_token_id: got {pad!r}, takes an id from 0 to {vocab - 1}")
    for name, callback in callbacks.items():
        if not callable(callback) and (callback is not None or name == "step_function"):
            raise ValueError(f"{name}: got {type(callback).__name__}, takes a function")
    _check_generator(model, len(ids), generator)
    return ends, pad


def _check_generator(model, rows: int, generator) -> None:
    check_generators(generator, rows)
    for g in generator if isinstance(generator, (list, tuple)) else [generator]:
        if g is not None and g.device.type != model.device.type:
            raise ValueError(
                f"generator: is on {g.device}, takes one on the model's device {model.device}"
            )
