"""What one step reads, writes and computes, op by op, as closed forms of the config.

Against the usual estimate (2 FLOPs a weight, every weight read once): the experts are counted by
how many *distinct* ones the tokens of a step touch, sliding layers read at most W - 1 keys of the
prefix, and what works over the whole vocabulary (head, soft-cap, self-conditioning, sampling) is
counted too, because a canvas does it at every position. Nothing is run and nothing allocated, so
the 26B shape costs as little to ask about as the tiny one. Walked through in notebooks 01 and 11.

The list is what `DiffusionGemma` does in plain PyTorch, one entry per op and layer. Matrix products
and attention are those torch's FLOP counter knows (`counted_by_torch`); the others are counted here
by the element, roughly, by the constants below.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from ..checks import check_class, check_integer
from ..config import Config
from .routing import distinct_experts

# FLOPs per element of what torch does not count. Rough, and harmless: these ops are bound by bytes,
# not by FLOPs.
NORM, ROTATE, GELU_GATE, SOFT_CAP, SOFTMAX, MULTIPLY_ADD = 4, 3, 10, 3, 4, 2
# float32 passes over B * queries * V that sampling makes when nothing is fused: each reads or
# writes every element once.
CANVAS_PASSES = (
    # temperature (read, write), softmax (read, write), draw, argmax, log-sum-exp, entropy (read),
    # accepted belief (write)
    9
)
TOKEN_PASSES = 5  # temperature (read, write), softmax (read, write), draw (read)
MODES = ("canvas", "autoregressive", "draft", "encode")


@dataclass(frozen=True)
class OpCost:
    """One op of one step.

    Bytes are split by what they are: weights, keys and values of the cache, activations.
    """

    part: str  # as in `parameters`, and head, sampling
    name: str  # "layers.3.q_proj"
    flops: float
    bytes_weights: float
    bytes_kv: float
    bytes_activations: float
    counted_by_torch: bool  # torch.utils.flop_counter counts it (and counts it as `flops`)

    @property
    def bytes(self) -> float:
        return self.bytes_weights + self.bytes_kv + self.bytes_activations

    @property
    def intensity(self) -> float:
        """FLOPs per byte."""
        return self.flops / self.bytes if self.bytes else math.inf


# ---- one step ------------------------------------------------------------------------------------


def step_cost(
    config: Config,
    *,
    prefix: int,
    queries: int,
    batch: int = 1,
    mode: str = "canvas",
    weight_bytes: float | Mapping[str, float] = 2.0,
    kv_bytes: float = 2.0,
    activation_bytes: float = 2.0,
    experts: float | None = None,
) -> list[OpCost]:
    """Every op of one forward pass and of the sampling after it.

    prefix: tokens in the cache. queries: tokens each row puts through the model: C of a canvas, 1
    for one token, k + 1 to check k drafted ones, the prompt's length in mode "encode". mode:
    "canvas" is a decoder pass with self-conditioning, which writes no cache; "autoregressive" and
    "draft" are causal passes with a head and a draw at every query (the model that made the draft
    is not counted); "encode" is a causal pass without a head, which is a prompt or a commit.
    weight_bytes: bytes a weight, one number or one per part ({"experts": 1.0, ...}; parts left out
    take 2.0). experts: distinct experts read per layer; None takes `distinct_experts` under uniform
    routing. Units: FLOPs and bytes. Errors: ValueError for a size below what a step needs, or an
    unknown mode or part.
    """
    _check(config, prefix, queries, batch, mode)
    size = _Sizes(
        config, prefix, queries, batch, mode, _by_part(weight_bytes), kv_bytes, activation_bytes
    )
    touched = distinct_experts(config, batch * queries) if experts is None else experts
    if not 0 < touched <= config.num_experts:
        raise ValueError(
            f"experts: got {experts!r}, "
            f"takes a number above 0, at most num_experts = {config.num_experts}"
        )
    ops = list(_embedding(size))
    if mode == "canvas":
        ops += _self_conditioning(size)
    for layer in range(config.num_hidden_layers):
        ops += [
            *_attention(size, layer),
            *_feed_forward(size, layer),
            *_experts(size, layer, touched),
            _norms(size, layer),
        ]
    ops.append(
        size.per_element(
            "norms", "norm", NORM, size.tokens * config.hidden_size, 2, config.hidden_size
        )
    )
    if mode != "encode":
        ops += _vocabulary(size)
    return ops


def by_part(ops: Iterable[OpCost]) -> dict[str, OpCost]:
    """The ops of each part summed, in the order in which the parts first appear.

    `counted_by_torch`: all of them are.
    """
    groups: dict[str, list[OpCost]] = {}
    for op in ops:
        groups.setdefault(op.part, []).append(op)
    return {
        part: OpCost(
            part,
            part,
            sum(o.flops for o in g),
            sum(o.bytes_weights for o in g),
            sum(o.bytes_kv for o in g),
            sum(o.bytes_activations for o in g),
            all(o.counted_by_torch for o in g),
        )
        for part, g in groups.items()
    }


WEIGHT_PARTS = (
    "embedding",
    "attention",
    "dense_mlp",
    "router",
    "experts",
    "norms",
    "self_conditioning",
)


def _by_part(weight_bytes: float | Mapping[str, float]) -> dict[str, float]:
    given = (
        dict.fromkeys(WEIGHT_PARTS, weight_bytes)
        if not isinstance(weight_bytes, Mapping)
        else dict(weight_bytes)
    )
    if set(given) - set(WEIGHT_PARTS) or not all(v > 0 for v in given.values()):
        raise ValueError(
            f"weight_bytes: got {weight_bytes!r}, "
            f"takes a number above 0, or one for some of {', '.join(WEIGHT_PARTS)}"
        )
    return dict.fromkeys(WEIGHT_PARTS, 2.0) | given


def _check(config: Config, prefix: int, queries: int, batch: int, mode: str) -> None:
    check_class("config", config, Config)
    for name, value, least in (("prefix", prefix, 0), ("queries", queries, 1), ("batch", batch, 1)):
        check_integer(name, value, least)
    if mode not in MODES:
        raise ValueError(f"mode: got {mode!r}, takes one of {', '.join(MODES)}")


@dataclass(frozen=True)
class _Sizes:
    config: Config
    prefix: int
    queries: int
    batch: int
    mode: str
    weight: dict[str, float]
    kv: float
    act: float

    @property
    def tokens(self) -> int:
        return self.batch * self.queries

    def matmul(
        self,
        part: str,
        name: str,
        rows: float,
        inner: int,
        outer: int,
        weights: float | None = None,
        stored: str = "",
    ) -> OpCost:
        """[rows, inner] x [inner, outer]; `weights` read, if not inner * outer; `stored` the part
        they are stored with.
        """
        read = (inner * outer if weights is None else weights) * self.weight[stored or part]
        return OpCost(
            part,
            name,
            2.0 * rows * inner * outer,
            read,
            0.0,
            rows * (inner + outer) * self.act,
            True,
        )

    def per_element(
        self,
        part: str,
        name: str,
        flops: float,
        elements: float,
        touches: float,
        weights: float = 0.0,
    ) -> OpCost:
        """`touches`: how often each element is read or written, at the activations' precision."""
        read = weights * self.weight.get(part, 2.0)
        return OpCost(
            part, name, float(flops * elements), read, 0.0, elements * touches * self.act, False
        )


def _embedding(s: _Sizes) -> Iterator[OpCost]:
    rows = s.tokens * s.config.hidden_size
    yield OpCost(
        "embedding",
        "embed_tokens",
        float(rows),
        rows * s.weight["embedding"],
        0.0,
        rows * s.act,
        False,
    )


def _self_conditioning(s: _Sizes) -> Iterator[OpCost]:
    """softmax of the last step's logits, times the embedding table, then a norm and a gated MLP."""
    c, part = s.config, "self_conditioning"
    over = s.tokens * c.vocab_size
    # float32 in and out
    yield OpCost(part, "softmax", float(SOFTMAX * over), 0.0, 0.0, over * (4 + 4), False)
    yield s.matmul(
        part, "soft_embedding", s.tokens, c.vocab_size, c.hidden_size, stored="embedding"
    )
    yield from _gated(s, part, "", s.tokens)
    yield s.per_element(part, "norms", 2 * NORM + 1, s.tokens * c.hidden_size, 5, c.hidden_size)


def _gated(s: _Sizes, part: str, at: str, rows: int) -> Iterator[OpCost]:
    d, inner = s.config.hidden_size, s.config.intermediate_size
    yield s.matmul(part, f"{at}gate_proj", rows, d, inner)
    yield s.matmul(part, f"{at}up_proj", rows, d, inner)
    yield s.per_element(part, f"{at}gelu_gate", GELU_GATE, rows * inner, 3)
    yield s.matmul(part, f"{at}down_proj", rows, inner, d)


def _attention(s: _Sizes, layer: int) -> Iterator[OpCost]:
    c, part, at = s.config, "attention", f"layers.{layer}."
    width, heads, kv_heads, sliding = (
        c.head_width(layer),
        c.num_attention_heads,
        c.kv_heads(layer),
        c.is_sliding(layer),
    )
    yield s.matmul(part, f"{at}q_proj", s.tokens, c.hidden_size, heads * width)
    yield s.matmul(part, f"{at}k_proj", s.tokens, c.hidden_size, kv_heads * width)
    if sliding:  # full layers have no value projection
        yield s.matmul(part, f"{at}v_proj", s.tokens, c.hidden_size, kv_heads * width)
    elements = s.tokens * (heads + 2 * kv_heads) * width
    yield s.per_element(part, f"{at}qk_norm_rope", NORM + ROTATE, elements, 2, 2 * width)
    seen = min(s.prefix, c.sliding_window - 1) if sliding else s.prefix
    flops = (
        4.0 * s.tokens * heads * (seen + s.queries) * width
    )  # scores and mix; the masked half of a causal pass is counted too
    pair = 2 * kv_heads * width  # a key and a value
    written = 0 if s.mode == "canvas" else s.tokens
    moved = (s.batch * seen + written) * pair * s.kv
    own = s.tokens * (2 * heads * width + pair) * s.act
    yield OpCost(part, f"{at}attention", flops, 0.0, moved, own, True)
    yield s.matmul(part, f"{at}o_proj", s.tokens, heads * width, c.hidden_size)


def _feed_forward(s: _Sizes, layer: int) -> Iterator[OpCost]:
    yield from _gated(s, "dense_mlp", f"layers.{layer}.", s.tokens)


def _experts(s: _Sizes, layer: int, touched: float) -> Iterator[OpCost]:
    """Router, then T * k rows through their experts.

    Weights are read once for each distinct expert.
    """
    c, at, rows = s.config, f"layers.{layer}.", s.tokens * s.config.top_k_experts
    d, inner = c.hidden_size, c.moe_intermediate_size
    yield s.per_element("router", f"{at}router_norm", NORM + 2, s.tokens * d, 2, d)
    yield s.matmul("router", f"{at}router", s.tokens, d, c.num_experts)
    yield s.per_element(
        "router",
        f"{at}top_k",
        SOFTMAX + c.top_k_experts,
        s.tokens * c.num_experts,
        2,
        c.num_experts,
    )
    yield s.matmul(
        "experts", f"{at}gate_up_proj", rows, d, 2 * inner, weights=touched * d * 2 * inner
    )
    yield s.per_element("experts", f"{at}expert_gelu_gate", GELU_GATE, rows * inner, 3)
    yield s.matmul("experts", f"{at}down_proj", rows, inner, d, weights=touched * inner * d)
    yield s.per_element("experts", f"{at}combine", MULTIPLY_ADD, rows * d, 1 + 1 / c.top_k_experts)


def _norms(s: _Sizes, layer: int) -> OpCost:
    """The seven norms of a block, its two residual sums, the sum of the two branches and the layer
    scalar.
    """
    d = s.config.hidden_size
    return s.per_element(
        "norms", f"layers.{layer}.norms", 7 * NORM + 4, s.tokens * d, 7 * 2 + 3, 7 * d
    )


def _vocabulary(s: _Sizes) -> Iterator[OpCost]:
    """Head, soft-cap and sampling: all at every query, over the whole vocabulary."""
    c = s.config
    over = s.tokens * c.vocab_size
    yield s.matmul("head", "lm_head", s.tokens, c.hidden_size, c.vocab_size, stored="embedding")
    # to float32
    yield OpCost("head", "soft_cap", float(SOFT_CAP * over), 0.0, 0.0, over * (s.act + 4), False)
    passes = CANVAS_PASSES if s.mode == "canvas" else TOKEN_PASSES
    work = 2 * SOFTMAX + 6 if s.mode == "canvas" else SOFTMAX + 3
    yield OpCost("sampling", "sampling", float(work * over), 0.0, 0.0, over * 4.0 * passes, False)
