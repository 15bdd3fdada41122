"""The size of a checkpoint by arithmetic.

Bytes of each part as it is stored, the cache beside it, what fits where.

Against "25B at four bits is 12.6 GB": a four-bit weight is 4.5 bits with its block scale, and the
public checkpoints leave attention, embedding and the vision part in bfloat16, so the total depends
on which parts are packed. Nothing is allocated. Walked through in notebook 10; the published totals
are held against it in the tests, each within 0.5%.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from ..config import Config
from ..cost import parameters
from ..cost.hardware import Sourced
from .tensor import BLOCK

# The vision tower and its projection are not built here. The report rounds; the safetensors index
# leaves 0.573e9 for them.
VISION = Sourced(550e6, "arXiv:2608.00146, table 1: vision 550M")
KINDS = ("bf16", "fp8", "nvfp4")


@dataclass(frozen=True)
class Storage:
    """How a checkpoint stores each part ("bf16" where nothing is said), and what it is published to
    weigh.
    """

    source: str
    parts: Mapping[str, str] = field(default_factory=dict)
    published: float | None = None  # bytes


_EVERYTHING = ("experts", "dense_mlp", "attention", "router", "self_conditioning", "embedding")
STORAGE = {
    "BF16": Storage("google/diffusiongemma-26B-A4B-it, safetensors index", {}, 51_647_562_456),
    "FP8": Storage("RedHatAI FP8-dynamic: all linears but router and self-conditioning",
                   dict.fromkeys(("experts", "dense_mlp", "attention"), "fp8"), 27.2e9),
    "NVFP4 experts": Storage("nvidia NVFP4 card, safetensors header: routed experts only",
                             {"experts": "nvfp4"}, 18_818_050_776),
    "NVFP4 experts + dense": Storage("what RedHatAI's NVFP4 packs; its size is not in our sources",
                                     {"experts": "nvfp4", "dense_mlp": "nvfp4"}),
    "NVFP4 everything": Storage("no public checkpoint: every matrix of the text model, "
                                "embedding and router too",
                                dict.fromkeys(_EVERYTHING, "nvfp4")),
}  # fmt: skip

# A card's 24 GB are 24 * 2**30 bytes, of which the driver and the desktop take some.
CARDS = {
    "RTX 5080": Sourced(16 * 2**30, "16 GB, tweaktown.com/news/102469"),
    "RTX 3090": Sourced(24 * 2**30, "24 GB, neowin.net, RTX 5000 series against 4000 and 3000"),
    "RTX 4090": Sourced(24 * 2**30, "24 GB, the same"),
    "RTX 5090": Sourced(32 * 2**30, "32 GB, tweaktown.com/news/102469"),
}


def matrix_shapes(config: Config) -> dict[str, list[tuple[int, int, int]]]:
    """[(how many, rows, input width)] of the matrices of each part."""
    c = config
    d, layers, f, i = (
        c.hidden_size,
        c.num_hidden_layers,
        c.intermediate_size,
        c.moe_intermediate_size,
    )
    attention = []
    for layer in range(layers):
        query, key = (
            c.num_attention_heads * c.head_width(layer),
            c.kv_heads(layer) * c.head_width(layer),
        )
        attention += [(1, query, d), (2 if c.is_sliding(layer) else 1, key, d), (1, d, query)]
    return {
        "experts": [(2 * layers * c.num_experts, i, d), (layers * c.num_experts, d, i)],
        "dense_mlp": [(2 * layers, f, d), (layers, d, f)],
        "attention": attention,
        "router": [(layers, c.num_experts, d)],
        "self_conditioning": [(2, f, d), (1, d, f)],
        "embedding": [(1, c.vocab_size, d)],
    }


def matrix_bytes(kind: str, rows: int, width: int) -> float:
    """One matrix: weights and their scales.

    NVFP4: codes, block scales, a tensor and an input scale. FP8: bfloat16 a row.
    """
    if kind not in KINDS:
        raise ValueError(f"kind: got {kind!r}, takes one of {', '.join(KINDS)}")
    blocks = -(-width // BLOCK)
    return {
        "bf16": 2 * rows * width,
        "fp8": rows * width + 2 * rows,
        "nvfp4": rows * blocks * (BLOCK / 2 + 1) + 8,
    }[kind]


def checkpoint_bytes(
    config: Config, parts: Mapping[str, str] | None = None, *, vision: float = 0.0
) -> dict[str, float]:
    """{part: bytes}, parts as in `parameters`, and "vision" for that many parameters in bfloat16.
    parts: {part: kind}.
    """
    parts, shapes = dict(parts or {}), matrix_shapes(config)
    if set(parts) - set(shapes):
        raise ValueError(
            f"parts: got {', '.join(sorted(set(parts) - set(shapes)))}, "
            f"takes some of {', '.join(shapes)}"
        )
    sizes = {}
    for part, count in parameters(config).items():
        held = shapes.get(part, [])
        vectors = count - sum(n * rows * width for n, rows, width in held)  # scales and norms
        sizes[part] = 2.0 * vectors + sum(
            n * matrix_bytes(parts.get(part, "bf16"), r, w) for n, r, w in held
        )
    return sizes | ({"vision": 2.0 * vision} if vision else {})


def cache_bytes(config: Config, context: int, *, kv_bytes: float = 2.0, batch: int = 1) -> float:
    """Keys and values of `context` tokens.

    Sliding layers hold no more than their window, as serving engines do.

    (`KVCache` here is dense: it holds all of it on every layer.)
    """
    if context < 0 or batch < 1:
        raise ValueError(
            f"context: got {context!r} for a batch of {batch!r}, takes at least 0 tokens and 1 row"
        )
    layers = range(config.num_hidden_layers)
    held = [
        min(context, config.sliding_window) if config.is_sliding(i) else context for i in layers
    ]
    pairs = [2 * config.kv_heads(i) * config.head_width(i) for i in layers]
    return batch * kv_bytes * sum(n * pair for n, pair in zip(held, pairs, strict=True))


def step_bytes(config: Config, batch: int = 1) -> float:
    """The largest array of a denoising step: float32 logits of a canvas over the vocabulary."""
    return 4.0 * batch * config.canvas_length * config.vocab_size


def room(
    config: Config, storage: str, context: int, *, kv_bytes: float = 2.0, batch: int = 1
) -> dict[str, float]:
    """{card: bytes left} for the published weights with vision, the cache and one array of logits.

    Below 0 it does not fit.

    Real engines need more (other activations, workspace, fragmentation): a small number left is no
    promise.
    """
    if storage not in STORAGE:
        raise ValueError(f"storage: got {storage!r}, takes one of {', '.join(STORAGE)}")
    weights = sum(checkpoint_bytes(config, STORAGE[storage].parts, vision=VISION.value).values())
    taken = (
        weights
        + cache_bytes(config, context, kv_bytes=kv_bytes, batch=batch)
        + step_bytes(config, batch)
    )
    return {card: memory.value - taken for card, memory in CARDS.items()}
