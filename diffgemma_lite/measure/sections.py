"""What is measured, cut into small points: a section yields (key, function that measures it).

The measurements themselves are in device.py, steps.py, answers.py and, for a large GPU, large.py.
Walked through in notebooks 01 and 11.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch

from ..config import Config
from ..model import DiffusionGemma
from ..sampler import SamplerConfig
from .answers import answer
from .device import MATRIX_DTYPES, bandwidth, beyond_cache, cache_bytes, matmul_peak
from .large import enough_memory
from .large import points as large_points
from .provenance import ROOT
from .steps import LAPTOP, breakdown, dense_twin, measure_step, random_model, step_work

Points = Iterator[tuple[dict[str, Any], Callable[[], dict[str, Any]]]]
MODELS = {"small": Config.preset("python_small"), "experts": LAPTOP, "dense": dense_twin(LAPTOP)}
CANVASES, BATCHES, PREFIX = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512), (1, 2, 4, 8, 16, 32, 64), 128
# of one step; more takes a CPU seconds a step
MOST_POSITIONS = {"cpu": 2048, "mps": 8192, "cuda": 64 * 512}
CHECKPOINT = ROOT / "assets" / "checkpoints" / "python-small"


def bandwidth_points(device: torch.device, seconds: float) -> Points:
    for what in ("copy", "read"):
        key = {"what": what, "where": "memory"}
        yield key, lambda what=what: bandwidth(what, beyond_cache(device), device, seconds=seconds)
    inside = cache_bytes(device) // 4
    if inside >= 2**20:
        yield (
            {"what": "read", "where": "cache"},
            lambda: bandwidth("read", inside, device, seconds=seconds),
        )


def peak_points(device: torch.device, seconds: float) -> Points:
    sizes = (8192, 16384) if device.type == "cuda" else (1024, 2048)
    for dtype in MATRIX_DTYPES[device.type]:
        for n in sizes:
            key = {"dtype": dtype, "n": n}
            yield key, lambda key=key: matmul_peak(device=device, seconds=seconds, **key)


def step_points(
    device: torch.device,
    seconds: float,
    models: Sequence[str] = tuple(MODELS),
    canvases=CANVASES,
    batches=BATCHES,
    least: int = 5,
) -> Points:
    """Every canvas length at batch 1, and every batch of one-token steps and of canvases of 64."""
    model = functools.lru_cache(maxsize=1)(lambda name: random_model(MODELS[name], device))
    for name in models:
        sizes = [("canvas", q, 1) for q in canvases] + [("autoregressive", 1, b) for b in batches]
        sizes += [("canvas", 64, b) for b in batches if b > 1] + [("encode", 64, 1)] * (
            len(batches) > 1
        )
        for mode, queries, batch in sizes:
            if queries * batch <= MOST_POSITIONS[device.type]:
                key = {
                    "model": name,
                    "mode": mode,
                    "queries": queries,
                    "batch": batch,
                    "prefix": PREFIX,
                }

                def measured(name=name, mode=mode, queries=queries, batch=batch):
                    size = dict(queries=queries, batch=batch, prefix=PREFIX)
                    return measure_step(model(name), mode, seconds=seconds, least=least, **size)

                yield key, measured


def breakdown_points(device: torch.device, seconds: float) -> Points:
    model = functools.lru_cache(maxsize=1)(lambda name: random_model(MODELS[name], device))
    for name in MODELS:
        for mode, queries in (("autoregressive", 1), ("canvas", 64), ("canvas", 256)):
            key = {"model": name, "mode": mode, "queries": queries, "batch": 1, "prefix": PREFIX}

            def measured(name=name, mode=mode, queries=queries):
                with torch.inference_mode():
                    work = step_work(model(name), mode, queries=queries, batch=1, prefix=PREFIX)
                return breakdown(model(name), work)

            yield key, measured


def answer_points(device: torch.device, seconds: float) -> Points:
    """The shipped model writes: tokens kept per second, time to the first, for one user and for
    eight.
    """
    del seconds  # an answer takes what it takes

    @functools.cache
    def shipped() -> DiffusionGemma:
        return DiffusionGemma.from_pretrained(CHECKPOINT, dtype=torch.float32, device=device)

    def measured(mode: str, batch: int) -> dict[str, Any]:
        from ..tokenizer import Tokenizer, encode_prompt

        tokenizer = Tokenizer.load(CHECKPOINT)
        prompt = 'def load(path):\n    """Read the file and return its lines."""'
        ids = torch.tensor(
            [encode_prompt(tokenizer, "body", prompt, max_prompt=48)] * batch, device=device
        )
        sampler = SamplerConfig.from_defaults(shipped().generation_defaults)
        answer(shipped(), ids, "autoregressive", sampler, tokens=2, end=None)  # warm
        return answer(
            shipped(),
            ids,
            mode,
            sampler,
            tokens=shipped().config.canvas_length,
            end=tokenizer.eos_id,
        )

    for mode in ("canvas", "autoregressive"):
        for batch in (1, 8):
            yield (
                {"model": CHECKPOINT.name, "mode": mode, "batch": batch},
                functools.partial(measured, mode, batch),
            )


def published_points(device: torch.device, seconds: float) -> Points:
    """The 26B shape, where a GPU has the memory for it; elsewhere no point at all."""
    config = Config.preset("26b_a4b")
    if enough_memory(config, device):
        yield from large_points(config, device, seconds=seconds)


SECTIONS: dict[str, tuple[str, Callable[[torch.device, float], Points]]] = {
    "bandwidth": ("bytes per second, from memory and from the cache", bandwidth_points),
    "peak": ("FLOPs per second of a dense product, by dtype", peak_points),
    "steps": (
        "seconds of one step of three small models in float32, by mode, canvas and batch",
        step_points,
    ),
    "breakdown": ("seconds of one step, part by part (torch.profiler)", breakdown_points),
    "answers": ("whole answers of the shipped model: rates and time to first token", answer_points),
    "published_shape": (
        "the published 26B shape, random weights in bf16: ours and Transformers'",
        published_points,
    ),
}
