"""The small model every unit test of the core uses, and helpers to watch it work.

Weights have a realistic spread. A fresh model (std 0.02, norms and scales at one) hides errors: a
mask that is wrong moves its logits by less than rounding.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import pytest
import torch

from diffgemma_lite import Config, DiffusionGemma, SamplerConfig

B, C, W, V = 2, 8, 8, 97  # batch, canvas, window, vocabulary of Config.preset("tiny")


@dataclass
class Example:
    prompt: list[int]
    response: list[int] = field(default_factory=list)
    complete: bool = True


def tiny(seed: int = 0, **changes) -> DiffusionGemma:
    """Config.preset("tiny") with every weight drawn from a wide distribution.

    Each call gives the same bits.
    """
    model = DiffusionGemma(Config.preset("tiny", **changes))
    g = torch.Generator().manual_seed(seed)
    for name, p in model.named_parameters():
        if name == "embed_tokens.weight":
            p.data.normal_(0.0, 0.3, generator=g)
        elif p.dim() > 1:
            p.data.normal_(0.0, 1.5 / math.sqrt(p.shape[-1]), generator=g)
        else:
            p.data.uniform_(0.6, 1.6, generator=g)
    for _, b in model.named_buffers():
        b.uniform_(0.7, 1.1, generator=g)
    return model.eval()


def exact(**changes) -> DiffusionGemma:
    """`tiny` in float64, for tests that compare two orders of computation.

    The rounding of float32 can send a token to another expert, which is no rounding any more.
    """
    return tiny(**changes).double()


def random_ids(*shape: int, seed: int = 0, low: int = 3) -> torch.Tensor:
    """Ids that are no special token."""
    return torch.randint(low, V, shape, generator=torch.Generator().manual_seed(seed))


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def logits(model, seed: int = 0) -> torch.Tensor:
    """[2, 8, 97] of a canvas that is conditioned on an earlier guess."""
    believed = torch.randn(2, 8, 97, generator=generator(seed)).to(model.dtype)
    with torch.no_grad():
        return model.decode(
            random_ids(2, 8, seed=seed + 1), model.encode(random_ids(2, 11, seed=seed)), believed
        )


def sampler(**changes) -> SamplerConfig:
    """Six steps and a wide bound, so that something is accepted, renoised and revised in each of
    them.
    """
    return SamplerConfig(
        **(dict(max_denoising_steps=6, entropy_bound=4.0, confidence_threshold=None) | changes)
    )


def confident(ids: torch.Tensor, sure: float = 60.0) -> torch.Tensor:
    """Logits [*ids.shape, V] that leave no doubt about `ids`."""
    return torch.zeros(*ids.shape, V).scatter_(-1, ids[..., None], sure)


def refused(argument: str, *parts: str):
    """The block raises a ValueError that starts with the argument's name and holds each part, such
    as what it got.
    """
    looks = "".join(f"(?=[\\s\\S]*{part})" for part in parts)
    return pytest.raises(ValueError, match=f"^{looks}{argument}: ")
