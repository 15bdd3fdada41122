"""How long the model's own steps take: one token, a canvas, a commit; and part by part.

Against timing the model's forward pass: a step is timed as generation takes it, with sampling and
self-conditioning, and `breakdown` says which part of cost.py's list the time goes to. Walked
through in notebooks 01 and 11.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile, record_function

from ..config import Config
from ..generation import next_tokens
from ..model import DiffusionGemma
from ..sampler import SamplerConfig, denoise_step
from ..trace.observe import observe
from .device import Work, high_water, synchronize, timed

# a model whose weights no laptop's cache holds (96M parameters, 384 MB in float32), small enough
# for two cores
LAPTOP = Config(
    vocab_size=8192,
    hidden_size=512,
    intermediate_size=1024,
    num_hidden_layers=6,
    num_attention_heads=8,
    num_key_value_heads=4,
    head_dim=64,
    num_global_key_value_heads=2,
    global_head_dim=128,
    sliding_window=256,
    num_experts=32,
    top_k_experts=4,
    moe_intermediate_size=256,
    canvas_length=256,
)
SAMPLING = SamplerConfig(draw="cdf")
PART = "part:"


def dense_twin(config: Config) -> Config:
    """The same model with one expert as wide as the k that a token visits.

    Equal work for a token, nothing to choose.
    """
    width = config.top_k_experts * config.moe_intermediate_size
    return replace(config, num_experts=1, top_k_experts=1, moe_intermediate_size=width)


def random_model(
    config: Config, device: torch.device, dtype: torch.dtype = torch.float32
) -> DiffusionGemma:
    """Fresh weights, the same each time.

    Speed does not depend on what they have learned, but routing does (`distinct`).
    """
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        torch.manual_seed(0)
        return DiffusionGemma(config, device=device, dtype=dtype).eval().requires_grad_(False)


# ---- one step ------------------------------------------------------------------------------------


def step_work(
    model: DiffusionGemma, mode: str, *, queries: int, batch: int, prefix: int, decode=None
) -> Work:
    """One step as `generate` takes it, sampling included, ready to be called again and again.

    mode: "canvas" (self-conditioned, then a draw at each of `queries` positions), "autoregressive"
    (one token and its draw) or "encode" (a commit of `queries` tokens). decode: a compiled twin of
    the model's own pass, or None.
    """
    g = torch.Generator(device=model.device).manual_seed(0)

    def ids(length: int) -> torch.Tensor:
        return torch.randint(
            0, model.config.vocab_size, (batch, length), device=model.device, generator=g
        )

    cache = model.encode(ids(prefix))
    if mode == "canvas":
        canvas, decode = ids(queries), decode or model.decode
        shape = (batch, queries, model.config.vocab_size)
        believed = torch.randn(shape, device=model.device, dtype=model.dtype, generator=g)

        def canvas_step():
            logits = decode(canvas, cache, believed)
            with record_function(PART + "sampling"):
                return denoise_step(logits, canvas, 0, SAMPLING)

        return canvas_step
    if mode == "autoregressive":
        token, forward = ids(1), decode or model.next_token_logits

        def token_step():
            logits, grown = forward(token, cache=cache)
            with record_function(PART + "sampling"):
                return next_tokens(logits[:, -1], 1.0, None), grown

        return token_step
    if mode == "encode":
        fresh, encode = ids(queries), decode or model.encode
        return lambda: encode(fresh, cache=cache)
    raise ValueError(f"mode: got {mode!r}, takes 'canvas', 'autoregressive' or 'encode'")


@torch.inference_mode()
def measure_step(
    model: DiffusionGemma,
    mode: str,
    *,
    queries: int,
    batch: int,
    prefix: int,
    seconds: float = 0.5,
    least: int = 5,
    decode=None,
) -> dict[str, Any]:
    """{"timing", "memory" (where it can be asked), "distinct" (experts touched, mean over layers)}
    of one step.
    """
    work = step_work(model, mode, queries=queries, batch=batch, prefix=prefix, decode=decode)
    with high_water(model.device) as memory:
        timing = timed(
            work, model.device, seconds=seconds, least=least, warm=1 if decode is None else 3
        )
    plain = (
        work
        if decode is None
        else step_work(model, mode, queries=queries, batch=batch, prefix=prefix)
    )
    return {"timing": timing.to_json(), "distinct": distinct(model, plain)} | (
        {"memory": memory["bytes"]} if memory else {}
    )


def distinct(model: DiffusionGemma, work: Work) -> float:
    """Different experts that the tokens of a step touch, mean over the layers."""
    with observe(model, attention=False) as seen:
        work()
    return sum(len(index.unique()) for index in seen.expert_index) / len(seen.expert_index)


# ---- part by part --------------------------------------------------------------------------------


@contextmanager
def named_parts(model: DiffusionGemma) -> Iterator[None]:
    """While this is open, the profiler sees cost.py's parts by name around the modules that are
    them.
    """
    norms = [
        "input_layernorm",
        "post_attention_layernorm",
        "pre_feedforward_layernorm",
        "pre_feedforward_layernorm_2",
        "post_feedforward_layernorm_1",
        "post_feedforward_layernorm_2",
        "post_feedforward_layernorm",
    ]
    modules = [
        ("embedding", model.embed_tokens),
        ("self_conditioning", model.self_conditioning),
        ("norms", model.norm),
    ]
    for block in model.layers:
        modules += [
            ("attention", block.self_attn),
            ("dense_mlp", block.mlp),
            ("router", block.router),
        ]
        modules += [
            ("experts", block.experts),
            *(("norms", getattr(block, name)) for name in norms),
        ]
    open_ranges: list[ExitStack] = []

    def enter(part: str) -> None:
        open_ranges.append(ExitStack())
        open_ranges[-1].enter_context(record_function(PART + part))

    def around(part: str, function):
        def call(*args, **kwargs):
            with record_function(PART + part):
                return function(*args, **kwargs)

        return call

    handles = []
    for part, module in modules:
        handles.append(module.register_forward_pre_hook(lambda *_, part=part: enter(part)))
        handles.append(module.register_forward_hook(lambda *_: open_ranges.pop().close()))
    # methods, not modules: shadowed on this one model while the block runs
    model.logits = around("head", model.logits)
    model.embed_tokens.soft = around("self_conditioning", model.embed_tokens.soft)
    try:
        yield
    finally:
        del model.logits, model.embed_tokens.soft
        for handle in handles:
            handle.remove()


@torch.inference_mode()
def breakdown(model: DiffusionGemma, work: Work, *, repeats: int = 5) -> dict[str, Any]:
    """Seconds of one step by part: {"parts": {...}, "wall": profiled seconds, "repeats"}.

    On a CPU the time of an op is its own; what the interpreter takes between ops is the part
    "interpreter". On CUDA it is the time on the GPU, and "idle" is what the wall clock took beyond
    that. "rest" is what belongs to no module: residual sums, rotary tables, masks, checks. The
    softmax of the belief runs outside of every module and is self-conditioning's.
    """
    # the profiler would report an absent GPU as an error
    os.environ.setdefault("KINETO_LOG_LEVEL", "99")
    on_gpu = model.device.type == "cuda"
    activities = [ProfilerActivity.CPU] + ([ProfilerActivity.CUDA] if on_gpu else [])
    with named_parts(model):
        work()
        synchronize(model.device)
        with profile(activities=activities) as seen:
            start = time.perf_counter()
            for _ in range(repeats):
                work()
            synchronize(model.device)
            wall = time.perf_counter() - start
    parts: dict[str, float] = {}
    for event in seen.events():
        if event.device_type != torch.autograd.DeviceType.CPU:
            continue
        part = _part_of(event)
        own = event.self_device_time_total if on_gpu else event.self_cpu_time_total
        if not (on_gpu and event.name.startswith(PART)):
            parts[part] = parts.get(part, 0.0) + own * 1e-6 / repeats
    wall /= repeats
    between = "idle" if on_gpu else "interpreter"
    parts[between] = parts.get(between, 0.0) + max(0.0, wall - sum(parts.values()))
    return {"parts": parts, "wall": wall, "repeats": repeats}


def _part_of(event) -> str:
    """The innermost named range around an event."""
    if event.name.startswith(PART):  # a range's own time is what no op inside it took
        return "interpreter"
    at, softmax = event, False
    while at is not None:
        if at.name.startswith(PART):
            return at.name.removeprefix(PART)
        softmax = softmax or at.name == "aten::softmax"
        at = at.cpu_parent
    return "self_conditioning" if softmax else "rest"
