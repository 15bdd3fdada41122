"""The published 26B shape on a large GPU: random weights in bf16, ours eager and compiled, and
Transformers' beside it.

Against a benchmark of the checkpoint: the weights are noise, so the text is too, and the router
chooses more evenly than a trained one (how many experts a step touched is recorded). What does not
depend on the weights is what is measured: bytes, FLOPs, launches, and with them the time of a step.
Needs about 51 GB for each model, one after the other. Any other config runs through the same lines,
which is how the tests exercise them on a CPU. Shown in notebooks 11 and 12.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from itertools import product
from typing import Any

import torch

from ..attention import KVCache
from ..config import Config
from ..cost import floor, parameters, step_cost
from ..cost.hardware import Hardware
from ..model import DiffusionGemma
from .device import Work, timed
from .recording import Recording
from .steps import breakdown, measure_step, random_model, step_work

BATCHES = (1, 8, 64, 4, 16, 2, 32)  # the ends and the middle first: a session may run out of time
STEPS = (12, 16, 48)  # denoising steps of a canvas for which rates are given
KINDS = (("ours", "eager"), ("ours", "compiled"), ("transformers", "eager"))
MODES = ("autoregressive", "canvas", "encode")
Points = Iterator[tuple[dict[str, Any], Callable[[], dict[str, Any]]]]


def enough_memory(config: Config, device: torch.device) -> bool:
    """Whether a GPU holds the bf16 weights with a quarter to spare."""
    if device.type != "cuda":
        return False
    return torch.cuda.get_device_properties(device).total_memory > 1.25 * 2 * sum(
        parameters(config).values()
    )


def points(
    config: Config,
    device: torch.device,
    *,
    prefix: int = 1024,
    batches=BATCHES,
    seconds: float = 1.0,
    backend: str = "inductor",
) -> Points:
    """(key, measurement) of every implementation, mode and batch, and a breakdown of ours.

    A model is built when it is first asked for, and the one before is given back first.
    """
    held = _Held(config, device, backend)
    for (who, how), mode, batch in product(KINDS, MODES, batches):
        queries = 1 if mode == "autoregressive" else config.canvas_length
        key = {
            "who": who,
            "how": how,
            "mode": mode,
            "queries": queries,
            "batch": batch,
            "prefix": prefix,
        }
        yield key, lambda key=key: held.measure(seconds=seconds, **key)
    for mode, batch in product(
        ("autoregressive", "canvas"), (batches[0], batches[len(batches) // 2])
    ):
        queries = 1 if mode == "autoregressive" else config.canvas_length
        key = {
            "who": "ours",
            "how": "profiled",
            "mode": mode,
            "queries": queries,
            "batch": batch,
            "prefix": prefix,
        }
        yield key, lambda key=key: held.profile(**key)


class _Held:
    """One model at a time, and its compiled passes."""

    def __init__(self, config: Config, device: torch.device, backend: str):
        self.config, self.device, self.backend = config, device, backend
        self.who, self.model, self.compiled = "", None, {}

    def get(self, who: str):
        if who != self.who:
            self.model, self.compiled, self.who = None, {}, ""
            torch.compiler.reset()
            gc.collect()
            if self.device.type == "cuda":
                torch.cuda.empty_cache()
            build = random_model if who == "ours" else reference_model
            self.model, self.who = build(self.config, self.device, torch.bfloat16), who
        return self.model

    def measure(
        self,
        *,
        who: str,
        how: str,
        mode: str,
        queries: int,
        batch: int,
        prefix: int,
        seconds: float,
    ) -> dict[str, Any]:
        model = self.get(who)
        size = dict(queries=queries, batch=batch, prefix=prefix)
        if who == "ours":
            decode = self._compiled(model, mode) if how == "compiled" else None
            return measure_step(model, mode, seconds=seconds, decode=decode, **size)
        with torch.inference_mode():
            return {
                "timing": timed(
                    reference_work(model, mode, **size), self.device, seconds=seconds
                ).to_json()
            }

    def profile(
        self, *, who: str, how: str, mode: str, queries: int, batch: int, prefix: int
    ) -> dict[str, Any]:
        model = self.get(who)
        with torch.inference_mode():
            return breakdown(
                model, step_work(model, mode, queries=queries, batch=batch, prefix=prefix)
            )

    def _compiled(self, model: DiffusionGemma, mode: str) -> Work:
        """The pass compiled, on CUDA with CUDA graphs.

        Its outputs are overwritten by the next call, which is fine here.
        """
        if mode not in self.compiled:
            plain = {
                "canvas": model.decode,
                "autoregressive": model.next_token_logits,
                "encode": model.encode,
            }[mode]
            graphs = (
                {"mode": "reduce-overhead"}
                if self.backend == "inductor" and self.device.type == "cuda"
                else {}
            )
            fast = torch.compile(plain, backend=self.backend, dynamic=False, **graphs)

            def call(*args, **kwargs):
                for given in (*args, *kwargs.values()):
                    _stays_where_it_is(given)
                torch.compiler.cudagraph_mark_step_begin()
                return fast(*args, **kwargs)

            self.compiled[mode] = call
        return self.compiled[mode]


def _stays_where_it_is(given: Any) -> None:
    """Tell the compiler that an input's memory does not move, or a CUDA graph would copy the whole
    cache at every call.
    """
    tensors = (*given.keys, *given.values) if isinstance(given, KVCache) else (given,)
    for tensor in tensors:
        if isinstance(tensor, torch.Tensor) and tensor.is_cuda:
            torch._dynamo.mark_static_address(tensor)


# ---- Transformers, for comparison ----------------------------------------------------------------


def reference_model(config: Config, device: torch.device, dtype: torch.dtype):
    """`transformers.DiffusionGemmaForBlockDiffusion` of the same sizes with random weights, with
    grouped experts as ours.
    """
    from transformers import DiffusionGemmaConfig, DiffusionGemmaForBlockDiffusion

    settings = DiffusionGemmaConfig.from_dict(config.to_hf())
    settings._attn_implementation = "sdpa"
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        torch.manual_seed(0)
        with torch.device(device):
            model = DiffusionGemmaForBlockDiffusion._from_config(settings, dtype=dtype)
    model.set_experts_implementation("grouped_mm")
    return model.to(device).eval().requires_grad_(False)


def reference_work(model, mode: str, *, queries: int, batch: int, prefix: int) -> Work:
    """The passes of `step_work` by Transformers' model: "canvas", "autoregressive" (the encoder's
    pass over one token and a head) or "encode". Its cache grows with every causal pass, so its
    layers are put back as they were; the tensors are not copied for that. Sampling is ours, the
    same for both."""
    from transformers.cache_utils import DynamicCache

    from ..generation import next_tokens
    from ..sampler import denoise_step
    from .steps import SAMPLING

    vocabulary, device = model.config.get_text_config().vocab_size, model.device
    g = torch.Generator(device=device).manual_seed(0)
    prompt, fresh = (
        torch.randint(0, vocabulary - 1, (batch, n), device=device, generator=g)
        for n in (prefix, queries)
    )

    empty = DynamicCache(config=model.config.get_text_config(decoder=True))
    cache = model.model.encoder(input_ids=prompt, cache=empty).cache
    before = [dict(vars(layer)) for layer in cache.layers]
    if mode == "canvas":
        believed = torch.randn(
            (batch, queries, vocabulary), device=device, dtype=model.dtype, generator=g
        )

        def canvas_step():
            logits = model(
                decoder_input_ids=fresh, cache=cache, self_conditioning_logits=believed
            ).logits
            return denoise_step(logits.float(), fresh, 0, SAMPLING)

        return canvas_step

    def causal():
        hidden = model.model.encoder(input_ids=fresh, cache=cache).last_hidden_state
        for layer, as_it_was in zip(cache.layers, before, strict=True):
            vars(layer).update(as_it_was)
        return (
            next_tokens(model.lm_head(hidden)[:, -1].float(), 1.0, None)
            if mode == "autoregressive"
            else hidden
        )

    return causal


# ---- what follows from the steps -----------------------------------------------------------------


def against_floor(
    recording: Recording, config: Config, hardware: Hardware, section: str = "published_shape"
) -> list[dict[str, Any]]:
    """Each measured step beside the time its bytes and FLOPs take at least on `hardware`: key,
    seconds, floor, ratio.
    """
    rows = []
    for key, result in recording.points(section):
        if key["how"] == "profiled":
            continue
        experts = result.get("distinct") or _distinct_of_ours(recording, section, key)
        size = {name: key[name] for name in ("prefix", "queries", "batch", "mode")}
        ops = step_cost(config, **size, experts=experts)
        seconds, least = result["timing"]["median"], floor(ops, hardware, "bf16")
        rows.append(
            {
                "key": key,
                "seconds": seconds,
                "floor": least,
                "ratio": seconds / least,
                "distinct": experts,
            }
        )
    return rows


def _distinct_of_ours(recording: Recording, section: str, key: dict[str, Any]) -> float | None:
    """Transformers' router is not watched.

    Random weights of the same sizes touch as many as ours, and None is uniform.
    """
    alike = {name: key[name] for name in ("mode", "queries", "batch")}
    return next(
        (r["distinct"] for _, r in recording.points(section, who="ours", how="eager", **alike)),
        None,
    )


def derived_rates(
    recording: Recording, canvas: int, section: str = "published_shape"
) -> list[dict[str, Any]]:
    """Tokens per second that the measured steps add up to: N canvas steps and a commit give
    `canvas` tokens a row; one step of the other kind gives one. An upper bound on what is kept,
    since an end token may cut the last canvas.
    """
    rows = []
    for key, result in recording.points(section, mode="canvas"):
        if key["how"] == "profiled":
            continue
        same = {name: key[name] for name in ("who", "how", "batch", "prefix")}
        commit = [
            r["timing"]["median"] for _, r in recording.points(section, mode="encode", **same)
        ]
        token = [
            r["timing"]["median"]
            for _, r in recording.points(section, mode="autoregressive", **same)
        ]
        if commit:
            step, batch = result["timing"]["median"], key["batch"]
            rates = {n: batch * canvas / (n * step + commit[0]) for n in STEPS}
            rows.append(
                same | {"canvas": rates, "autoregressive": batch / token[0] if token else None}
            )
    return rows
