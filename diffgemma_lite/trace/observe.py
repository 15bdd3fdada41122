"""Looking inside a pass: which expert each token went to, what each position attended to, and how
many passes there were.

The model itself returns neither experts nor attention weights (fused attention never forms them).
`observe` listens with hooks while a pass runs and computes these weights beside it, the plain way.
For notebooks 03, 04 and 07 and their views; of the core only `generate(trace="attention")` asks for
it. `counting` counts calls of the decoder, whoever makes them.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import torch
from einops import repeat
from jaxtyping import Float, Int
from torch import Tensor

from ..attention import Attention


@dataclass
class Observation:
    """One entry per layer of the last pass that ran.

    T = B * queries tokens, k experts of each token.
    """

    expert_index: list[Int[Tensor, "t k"]] = field(default_factory=list)
    expert_weights: list[Float[Tensor, "t k"]] = field(default_factory=list)
    expert_probs: list[Float[Tensor, "t e"]] = field(default_factory=list)
    attention: list[Float[Tensor, "b h q keys"]] = field(default_factory=list)  # rows sum to 1
    # position of each layer's first key (sliding layers skip some)
    first_key: list[int] = field(default_factory=list)


@contextmanager
def counting(model) -> Iterator[list[int]]:
    """Inside, every call of `model.decode` adds 1 to the only number of the list it yields."""
    calls, decode, before = [0], model.decode, vars(model).get("decode")

    @functools.wraps(decode)
    def counted(*args, **kwargs):
        calls[0] += 1
        return decode(*args, **kwargs)

    model.decode = counted
    try:
        yield calls
    finally:
        if before is None:
            del model.decode
        else:  # counted already, further out
            model.decode = before


def attention_weights(
    layer: Attention, x: Tensor, rope: tuple[Tensor, Tensor], prefix, mask
) -> Float[Tensor, "b h q keys"]:
    """softmax(Q K^T) under the mask, written out.

    What the fused kernel computes and throws away.
    """
    q, k, _ = layer.project(x, rope)
    keys = k if prefix is None else torch.cat([prefix[0], k], 2)
    scores = q @ repeat(keys, "b h s w -> b (h g) s w", g=layer.group).transpose(-1, -2)
    if mask.causal:
        future = torch.ones(scores.shape[-2:], dtype=torch.bool, device=x.device).triu(1)
        scores = scores.masked_fill(future, -torch.inf)
    if mask.allowed is not None:
        scores = scores.masked_fill(~mask.allowed, -torch.inf)
    # a row that may see nothing (padding) attends to nothing
    return scores.softmax(-1, dtype=torch.float32).nan_to_num(0.0)


@contextmanager
def observe(model, *, attention: bool = True, routing: bool = True) -> Iterator[Observation]:
    """`with observe(model) as seen: model.decode(...)`.

    Then `seen.attention[layer]` and `seen.expert_index[layer]`.

    Each pass overwrites what the one before left. The model's own numbers do not change.
    """
    seen, handles = Observation(), []

    def start(_module, _inputs) -> None:
        for name in ("expert_index", "expert_weights", "expert_probs", "attention", "first_key"):
            getattr(seen, name).clear()

    def on_router(_module, _inputs, output) -> None:
        weights, index, probs = (t.detach() for t in output)
        seen.expert_weights.append(weights)
        seen.expert_index.append(index)
        seen.expert_probs.append(probs)

    def on_attention(module, inputs, _output) -> None:
        with torch.no_grad():
            seen.attention.append(attention_weights(module, *inputs))
        seen.first_key.append(inputs[3].first)

    handles.append(model.layers[0].register_forward_pre_hook(start))
    for block in model.layers:
        if routing:
            handles.append(block.router.register_forward_hook(on_router))
        if attention:
            handles.append(block.self_attn.register_forward_hook(on_attention))
    try:
        yield seen
    finally:
        for handle in handles:
            handle.remove()


def most_attended(
    seen: Observation, k: int, padding: Int[Tensor, "b"] | None = None
) -> tuple[Int[Tensor, "b q layers k"], Float[Tensor, "b q layers k"]]:
    """The k keys that each query attends to most, layer by layer, with their weights (the mean over
    heads).

    A key's number is its position in its row: first the prefix, without the row's `padding` [B]
    tokens at the left, then the canvas. Where some layer and row sees fewer than k keys, everything
    gives as many as that one has.
    """
    unseen = 0 if padding is None else int(padding.max())
    layers = list(zip(seen.attention, seen.first_key, strict=True))
    k = min(k, *(weights.shape[-1] - max(0, unseen - first) for weights, first in layers))
    best = [(weights.mean(1).topk(k, dim=-1), first) for weights, first in layers]
    positions = torch.stack([top.indices + first for top, first in best], dim=2)
    if padding is not None:
        positions = positions - padding[:, None, None, None]
    return positions, torch.stack([top.values for top, _ in best], dim=2)
