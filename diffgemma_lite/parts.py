"""The parts of a model by name, and the matrices in each: what is packed, rounded or adapted.

The names are those that cost.parameters counts by; norms and the router's scales are no matrices.
"""

from __future__ import annotations

from collections.abc import Iterable

from torch import nn

from .layers import ScaledEmbedding
from .moe import Experts

PARTS = ("experts", "dense_mlp", "attention", "router", "self_conditioning", "embedding")


def is_packed(module: nn.Module) -> bool:
    """A matrix held in four bits says so."""
    return getattr(module, "is_packed", False)


def part_of(name: str) -> str | None:
    """Module name -> the part of PARTS it is a matrix of."""
    words = name.split(".")
    if words[-1] == "experts" or name == "embed_tokens":
        return {"experts": "experts", "embed_tokens": "embedding"}[words[-1]]
    holder = {
        "mlp": "dense_mlp",
        "self_attn": "attention",
        "router": "router",
        "self_conditioning": "self_conditioning",
    }
    return holder.get(words[-2]) if len(words) > 1 and words[-1].endswith("proj") else None


def matrices(model: nn.Module, parts: str | Iterable[str]) -> dict[str, nn.Module]:
    """{name: module} of all matrices of the parts: one of PARTS, some of them, or "everything".

    Errors: ValueError for another name, for a part that is not there, and for a packed one.
    """
    asked = PARTS if parts == "everything" else (parts,) if isinstance(parts, str) else tuple(parts)
    if not asked or not set(asked) <= set(PARTS):
        raise ValueError(f"parts: got {parts!r}, takes 'everything' or some of {', '.join(PARTS)}")
    named = [(n, m) for n, m in model.named_modules() if part_of(n) in asked]
    kinds = (nn.Linear, Experts, ScaledEmbedding)
    found = {n: m for n, m in named if isinstance(m, kinds) or is_packed(m)}
    packed = [n for n, m in found.items() if is_packed(m)]
    missing = [part for part in asked if part not in {part_of(n) for n in found}]
    if packed or missing:
        got = (
            f"{packed[0]} is in NVFP4 already"
            if packed
            else f"nothing found of {', '.join(missing)}"
        )
        raise ValueError(
            f"model: {got}, takes a float model with weights in all of {', '.join(asked)}"
        )
    return found
