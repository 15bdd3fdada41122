"""Layers that hold NVFP4 instead of floats: linear, experts, embedding.

Against a linear layer: the weight is three buffers of packed bytes and scales, turned into floats
anew at each call, and the input may be rounded to NVFP4 too, as hardware does it: block scales from
the input itself, the tensor scale calibrated before. This is a simulation: the numbers are those of
four bits, the products are float. Walked through in notebook 10.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn

from ..layers import ScaledEmbedding
from ..moe import Experts
from .tensor import NVFP4Tensor, quantize


class PackedWeight(nn.Module):
    """One NVFP4Tensor as buffers.

    They move between devices and never change their type; `dtype` is what they unpack to.
    """

    def __init__(self, q: NVFP4Tensor, input_scale: Tensor | None = None):
        super().__init__()
        for name in ("packed", "block_scale", "tensor_scale"):
            self.register_buffer(name, getattr(q, name))
        self.register_buffer(
            "input_scale", None if input_scale is None else input_scale.float().reshape(-1).clone()
        )
        self.shape, self.dtype, self.block = q.shape, q.dtype, q.block

    @property
    def q(self) -> NVFP4Tensor:
        return NVFP4Tensor(
            self.packed, self.block_scale, self.tensor_scale, self.shape, self.dtype, self.block
        )

    def _apply(self, fn: Callable, recurse: bool = True):
        # .to(bfloat16) would round the scales: show it bytes, which it only moves
        like = torch.empty(0, dtype=self.dtype, device=self.packed.device)
        super()._apply(lambda t: fn(t.view(torch.uint8)).view(t.dtype), recurse)
        self.dtype = fn(like).dtype
        return self


class NVFP4Linear(PackedWeight):
    """x [..., input] -> [..., output], any rank and stride.

    With an input_scale the input is rounded to NVFP4 as well.
    """

    is_packed = True  # for parts.matrices

    def __init__(
        self, q: NVFP4Tensor, input_scale: Tensor | None = None, bias: Tensor | None = None
    ):
        super().__init__(q, input_scale)
        self.out_features, self.in_features = q.shape
        self.bias = None if bias is None else nn.Parameter(bias.detach().clone())

    @classmethod
    def from_linear(
        cls, linear: nn.Linear, input_scale: Tensor | None = None, **knobs
    ) -> NVFP4Linear:
        """knobs: those of `quantize`."""
        if not isinstance(linear, nn.Linear):
            raise ValueError(f"linear: got {type(linear).__name__}, takes an nn.Linear")
        return cls(quantize(linear.weight.detach(), **knobs), input_scale, linear.bias)

    def forward(self, x: Float[Tensor, "*rows i"]) -> Float[Tensor, "*rows o"]:
        if self.input_scale is not None:
            x = rounded_input(x, self.input_scale)
        return F.linear(x, self.q.dequantize(x.dtype), self.bias)

    def _apply(self, fn: Callable, recurse: bool = True):
        bias, self.bias = self.bias, None  # the bias is an ordinary parameter
        super()._apply(fn, recurse)
        self.bias = None if bias is None else nn.Parameter(fn(bias.detach()), bias.requires_grad)
        return self

    def extra_repr(self) -> str:
        inputs = "float inputs" if self.input_scale is None else "inputs in NVFP4"
        return f"{self.in_features} -> {self.out_features}, blocks of {self.block}, {inputs}"


class NVFP4Experts(Experts):
    """Experts with gate, up and down packed apart, so that each of the 3 E matrices has a tensor
    scale of its own.
    """

    is_packed = True  # for parts.matrices

    def __init__(self, gate: PackedWeight, up: PackedWeight, down: PackedWeight):
        nn.Module.__init__(self)
        self.num_experts, self.path = gate.shape[0], "grouped"
        self.gate, self.up, self.down = gate, up, down

    @classmethod
    def from_experts(
        cls, experts: Experts, scales: tuple[Tensor, Tensor] | None = None, **knobs
    ) -> NVFP4Experts:
        """scales: input scales [E] of gate and up together, and of down; None leaves the inputs
        float.
        """
        before, between = scales or (None, None)
        gate, up = experts.gate_up_proj.detach().chunk(2, dim=1)
        packed = [
            quantize(w, stacked=True, **knobs) for w in (gate, up, experts.down_proj.detach())
        ]
        made = cls(
            *(PackedWeight(q, s) for q, s in zip(packed, (before, before, between), strict=True))
        )
        made.path = experts.path
        return made

    @property
    def gate_up_proj(self) -> Float[Tensor, "e o i"]:
        """All experts unpacked at once, for the grouped path."""
        return torch.cat([w.q.dequantize(torch.float32) for w in (self.gate, self.up)], dim=1)

    @property
    def down_proj(self) -> Float[Tensor, "e o i"]:
        return self.down.q.dequantize(torch.float32)

    def forward(
        self, x: Float[Tensor, "t d"], weights: Float[Tensor, "t k"], index: Int[Tensor, "t k"]
    ) -> Float[Tensor, "t d"]:
        one_by_one = self.path == "loop" or self.gate.input_scale is not None
        return self.loop(x, weights, index) if one_by_one else super().forward(x, weights, index)

    def loop(
        self, x: Float[Tensor, "t d"], weights: Float[Tensor, "t k"], index: Int[Tensor, "t k"]
    ) -> Float[Tensor, "t d"]:
        """One expert after another, unpacked when its turn comes.

        Never more than one of them is float.
        """
        out = torch.zeros_like(x)
        for expert in index.unique().tolist():
            slot, token = torch.where(index.T == expert)
            rows = self._input(x[token], self.gate, expert)
            gate, up = (
                F.linear(rows, w.q[expert].dequantize(x.dtype)) for w in (self.gate, self.up)
            )
            inner = self._input(F.gelu(gate, approximate="tanh") * up, self.down, expert)
            y = (
                F.linear(inner, self.down.q[expert].dequantize(x.dtype))
                * weights[token, slot, None]
            )
            out = out.index_add(0, token, y.to(out.dtype))
        return out

    @staticmethod
    def _input(x: Tensor, w: PackedWeight, expert: int) -> Tensor:
        return x if w.input_scale is None else rounded_input(x, w.input_scale[expert])


class NVFP4Embedding(ScaledEmbedding):
    """The embedding table, which is also the head. `weight` unpacks all of it, at each access."""

    is_packed = True  # for parts.matrices

    def __init__(self, table: PackedWeight, padding_idx: int | None):
        nn.Module.__init__(self)
        self.num_embeddings, self.embedding_dim = table.shape
        self.padding_idx, self.table = padding_idx, table

    @property
    def weight(self) -> Float[Tensor, "v d"]:
        return self.table.q.dequantize(self.table.dtype)


PACKED = (NVFP4Linear, NVFP4Experts, NVFP4Embedding)


def rounded_input(x: Float[Tensor, "*rows i"], input_scale: Tensor) -> Float[Tensor, "*rows i"]:
    """The input as NVFP4 hardware sees it: block scales from x, tensor scale as calibrated.

    What is larger saturates.

    The gradient is that of x itself (straight through).
    """
    if x.numel() == 0:
        return x
    seen = quantize(x.detach(), tensor_scale=input_scale).dequantize(x.dtype)
    return x + (seen - x).detach() if x.requires_grad else seen
