"""Mixture of experts: a router that picks k of E small MLPs for each token, and the experts, twice.

Against a plain mixture of experts: the router reads the raw residual through a norm of its own,
softmax comes before top-k, the k weights are made to sum to 1 and are then multiplied by a learned
scale per expert, and a dense MLP (in model.py) runs beside the experts for every token. Walked
through in notebook 04.

`loop` is the truth: one expert after another. `grouped` sorts the tokens by expert and multiplies
all experts in one call; a test asserts that the two agree.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn

from .config import Config
from .layers import RMSNorm


class Router(nn.Module):
    """Residual [T, D] -> (weights [T, k], expert index [T, k], probabilities [T, E]).

    Softmax in float32.
    """

    def __init__(self, config: Config, *, device=None, dtype=None):
        super().__init__()
        like = dict(device=device, dtype=dtype)
        self.top_k = config.top_k_experts
        self.norm = RMSNorm(config.hidden_size, config.rms_norm_eps, with_scale=False)
        self.proj = nn.Linear(config.hidden_size, config.num_experts, bias=False, **like)
        self.scale = nn.Parameter(torch.ones(config.hidden_size, **like))
        self.per_expert_scale = nn.Parameter(torch.ones(config.num_experts, **like))

    def forward(
        self, x: Float[Tensor, "t d"]
    ) -> tuple[Float[Tensor, "t k"], Int[Tensor, "t k"], Float[Tensor, "t e"]]:
        scores = self.proj(self.norm(x) * self.scale * x.shape[-1] ** -0.5)
        probs = scores.softmax(dim=-1, dtype=torch.float32)
        weights, index = probs.topk(self.top_k, dim=-1)
        weights = weights / weights.sum(dim=-1, keepdim=True)
        return weights * self.per_expert_scale[index], index, probs


class Experts(nn.Module):
    """E gated MLPs in two stacked tensors. (x [T, D], weights [T, k], index [T, k]) -> [T, D]."""

    def __init__(self, config: Config, *, device=None, dtype=None):
        super().__init__()
        e, d, i = config.num_experts, config.hidden_size, config.moe_intermediate_size
        self.num_experts = e
        self.path = "grouped"  # or "loop"
        self.gate_up_proj = nn.Parameter(torch.empty(e, 2 * i, d, device=device, dtype=dtype))
        self.down_proj = nn.Parameter(torch.empty(e, d, i, device=device, dtype=dtype))

    def forward(
        self, x: Float[Tensor, "t d"], weights: Float[Tensor, "t k"], index: Int[Tensor, "t k"]
    ) -> Float[Tensor, "t d"]:
        # torch groups no float64, and only rows of whole 16 bytes
        fits = x.dtype != torch.float64 and all(
            n * _matmul_dtype(x).itemsize % 16 == 0 for n in self.down_proj.shape[1:]
        )
        return (
            self.grouped(x, weights, index)
            if self.path == "grouped" and fits
            else self.loop(x, weights, index)
        )

    def loop(
        self, x: Float[Tensor, "t d"], weights: Float[Tensor, "t k"], index: Int[Tensor, "t k"]
    ) -> Float[Tensor, "t d"]:
        """The plain way: for each expert that anybody chose, gather its tokens, run it, add the
        result back.
        """
        out = torch.zeros_like(x)
        for expert in index.unique().tolist():
            slot, token = torch.where(index.T == expert)
            gate, up = F.linear(x[token], self.gate_up_proj[expert]).chunk(2, dim=-1)
            y = F.linear(F.gelu(gate, approximate="tanh") * up, self.down_proj[expert])
            out.index_add_(0, token, (y * weights[token, slot, None]).to(out.dtype))
        return out

    def grouped(
        self, x: Float[Tensor, "t d"], weights: Float[Tensor, "t k"], index: Int[Tensor, "t k"]
    ) -> Float[Tensor, "t d"]:
        """The fast way: T * k rows sorted by expert, two grouped matrix products, rows put back and
        summed over k.
        """
        k, dtype = index.shape[-1], _matmul_dtype(x)
        order = index.flatten().argsort(stable=True)
        ends = F.one_hot(index, self.num_experts).sum((0, 1)).cumsum(0).to(torch.int32)
        rows = x[order // k].to(dtype)
        gate, up = F.grouped_mm(rows, self.gate_up_proj.to(dtype).transpose(1, 2), offs=ends).chunk(
            2, dim=-1
        )
        y = F.grouped_mm(
            F.gelu(gate, approximate="tanh") * up,
            self.down_proj.to(dtype).transpose(1, 2),
            offs=ends,
        )
        y = y * weights.flatten()[order, None]
        back = torch.empty_like(order).scatter_(
            0, order, torch.arange(order.numel(), device=order.device)
        )
        return y[back].unflatten(0, (-1, k)).sum(dim=1).to(x.dtype)


def _matmul_dtype(x: Tensor) -> torch.dtype:
    """grouped_mm does not know autocast, so its dtype is looked up here."""
    device = x.device.type
    return torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else x.dtype
