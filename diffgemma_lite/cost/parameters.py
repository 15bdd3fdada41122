"""What the model weighs: parameters of each part as a function of the config.

Notebooks 01 and 11.
"""

from __future__ import annotations

from ..checks import check_class
from ..config import Config

# arXiv:2608.00146, table 1. The total is our count without self-conditioning (25.233e9; with it
# 25.251e9, which rounds to 25.3). The activated number is near our count of everything one token
# uses (3.840e9: k of the experts, the embedding once, attention, the dense MLP, self-conditioning);
# the report does not say what makes up the difference.
PUBLISHED = {"total": 25.2e9, "active": 3.85e9}


def parameters(config: Config) -> dict[str, int]:
    """Parameters of each part; together exactly `sum(p.numel() for p in model.parameters())`.

    The head is the embedding (tied), so it counts once. `layer_scalar`s are buffers and do not
    count.
    """
    check_class("config", config, Config)
    c = config
    d, layers = c.hidden_size, range(c.num_hidden_layers)
    heads = c.num_attention_heads
    projections = sum(
        (2 * heads + c.kv_heads(i) * (2 if c.is_sliding(i) else 1)) * c.head_width(i) * d
        for i in layers
    )
    return {
        "embedding": c.vocab_size * d,
        "attention": projections,  # q and o; k; v on sliding layers only
        "dense_mlp": c.num_hidden_layers * 3 * d * c.intermediate_size,
        "router": c.num_hidden_layers * (d * c.num_experts + d + c.num_experts),
        "experts": c.num_hidden_layers * c.num_experts * 3 * d * c.moe_intermediate_size,
        "norms": c.num_hidden_layers * 7 * d + sum(2 * c.head_width(i) for i in layers) + d,
        "self_conditioning": 3 * d * c.intermediate_size + d,
    }


def active_parameters(config: Config) -> dict[str, int]:
    """Of `parameters`, those that take part in one token of a denoising step.

    k of the E experts, and all the rest.

    The embedding counts whole, because the head reads all of it. Published for the 26B shape: see
    PUBLISHED.
    """
    parts = parameters(config)
    return parts | {"experts": parts["experts"] * config.top_k_experts // config.num_experts}
