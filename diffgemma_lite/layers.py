"""The small layers: RMSNorm, rotary embedding (two kinds), gated MLP, scaled embedding, soft-cap.

Against a plain transformer: norms compute in float32 whatever comes in, the full layers rotate only
a quarter of the head width, embeddings are multiplied by sqrt(D), and logits are squeezed into
(-30, 30). Walked through in notebook 03.

The order of operations follows the reference, because float addition is not associative and
equality to the last bit is what the tests ask for. `RMSNorm` has a fast twin (`fused`), asserted
equal to it within rounding.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn


class RMSNorm(nn.Module):
    """x / rms(x), times a learned weight unless `with_scale` is False.

    Any shape [..., width]; float32 inside.
    """

    def __init__(self, width: int, eps: float, with_scale: bool = True, *, device=None, dtype=None):
        super().__init__()
        self.width, self.eps, self.fused = width, eps, False
        self.weight = (
            nn.Parameter(torch.ones(width, device=device, dtype=dtype)) if with_scale else None
        )

    def forward(self, x: Float[Tensor, "*rows width"]) -> Float[Tensor, "*rows width"]:
        weight = None if self.weight is None else self.weight.float()
        if self.fused:
            return F.rms_norm(x.float(), (self.width,), weight, self.eps).type_as(x)
        normed = x.float()
        normed = normed * torch.pow(normed.pow(2).mean(-1, keepdim=True) + self.eps, -0.5)
        return (normed if weight is None else normed * weight).type_as(x)


def rotary_frequencies(
    head_width: int, theta: float, fraction: float = 1.0, device=None
) -> Float[Tensor, "half"]:
    """Angle per position of each lane pair, [Hd / 2]. Lane i turns together with lane i + Hd / 2.

    `fraction` below 1 is the proportional kind: the exponent still counts in the full head width,
    only the first `fraction` of the pairs turn, and the rest stand still (frequency 0).
    """
    turning = int(fraction * head_width // 2)
    exponent = (
        torch.arange(0, 2 * turning, 2, dtype=torch.int64, device=device).float() / head_width
    )
    still = torch.zeros(head_width // 2 - turning, device=device)
    return torch.cat([1.0 / (theta**exponent), still])


def rotary_tables(
    positions: Int[Tensor, "rows s"], frequencies: Float[Tensor, "half"], dtype: torch.dtype
) -> tuple[Tensor, Tensor]:
    """cos and sin, each [rows, S, Hd], rows 1 when every row of the batch sits at the same
    positions.
    """
    angle = positions[..., None].float() * frequencies
    angle = torch.cat([angle, angle], dim=-1)
    return angle.cos().to(dtype), angle.sin().to(dtype)


def rotate(
    x: Float[Tensor, "b s h hd"], cos: Float[Tensor, "rows s hd"], sin: Float[Tensor, "rows s hd"]
) -> Float[Tensor, "b s h hd"]:
    """Turn each lane pair (i, i + Hd / 2) by its angle."""
    first, second = x.chunk(2, dim=-1)
    return x * cos[:, :, None] + torch.cat([-second, first], dim=-1) * sin[:, :, None]


class GatedMLP(nn.Module):
    """down(gelu_tanh(gate(x)) * up(x)).

    The dense MLP of every layer, also called the shared expert. [..., D] -> [..., D].
    """

    def __init__(self, width: int, inner: int, *, device=None, dtype=None):
        super().__init__()
        like = dict(bias=False, device=device, dtype=dtype)
        self.gate_proj = nn.Linear(width, inner, **like)
        self.up_proj = nn.Linear(width, inner, **like)
        self.down_proj = nn.Linear(inner, width, **like)

    def forward(self, x: Float[Tensor, "*rows d"]) -> Float[Tensor, "*rows d"]:
        return self.down_proj(F.gelu(self.gate_proj(x), approximate="tanh") * self.up_proj(x))


class ScaledEmbedding(nn.Embedding):
    """Token embedding times sqrt(D), the scale rounded to the weight's dtype first, as the
    reference does.
    """

    def reset_parameters(self) -> None:
        # there, normal_ fills nothing and makes torch import sympy: seconds
        if self.weight.device.type != "meta":
            super().reset_parameters()

    def scale(self) -> Tensor:
        return torch.tensor(
            self.embedding_dim**0.5, dtype=self.weight.dtype, device=self.weight.device
        )

    def forward(self, ids: Int[Tensor, "b s"]) -> Float[Tensor, "b s d"]:
        # as in the reference, looking up padding teaches its row nothing (the tied head still does)
        return F.embedding(ids, self.weight, self.padding_idx) * self.scale()

    def soft(self, probs: Float[Tensor, "b c v"]) -> Float[Tensor, "b c d"]:
        """The mean embedding under a distribution over the vocabulary."""
        return torch.matmul(probs.to(self.weight.dtype), self.weight) * self.scale()


def soft_cap(logits: Float[Tensor, "*rows v"], cap: float) -> Float[Tensor, "*rows v"]:
    """cap * tanh(logits / cap) in float32: large logits saturate instead of running away."""
    return torch.tanh(logits.float() / cap) * cap
