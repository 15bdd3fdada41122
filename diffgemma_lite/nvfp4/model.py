"""A whole model in NVFP4, part by part, without touching the float one.

Calibration of the inputs' tensor scales.

Against a load in four bits: the parts are chosen by name, as the public checkpoints differ in
exactly that, and what is not chosen stays as it was. Walked through in notebook 10.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Mapping

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..layers import ScaledEmbedding
from ..model import DiffusionGemma
from ..moe import Experts
from ..parts import matrices
from .checkpoint import saves_packed
from .formats import round_trip
from .layers import NVFP4Embedding, NVFP4Experts, NVFP4Linear, PackedWeight
from .tensor import E2M1_MAX, E4M3_MAX, quantize


def quantize_model(
    model: DiffusionGemma,
    parts: str | Iterable[str] = "experts",
    *,
    input_scales: Mapping[str, Tensor] | None = None,
    **knobs,
) -> DiffusionGemma:
    """A copy of the model with `parts` in NVFP4.

    The model itself keeps its floats and shares nothing with the copy.

    parts: "experts" is what the public checkpoint packs (facts: nvidia card); ("experts",
    "dense_mlp"), or "everything". input_scales: what `calibrate` returns, to round the inputs too
    (the embedding's stay float); None rounds weights only. knobs: those of `quantize`. Errors:
    ValueError for an unknown part, a model that is packed already, a missing scale.
    """
    found = matrices(model, parts)
    if input_scales is not None:
        wanted = {key for name, m in found.items() for key in _scale_names(name, m)}
        if wanted - set(input_scales):
            raise ValueError(
                f"input_scales: lacks {', '.join(sorted(wanted - set(input_scales))[:3])}; "
                "see `calibrate`"
            )
    # not copied: it is replaced
    spared = {id(t): t for m in found.values() for t in m.parameters(recurse=False)}
    made = copy.deepcopy(model, spared)
    for name, module in found.items():
        scales = (
            None
            if input_scales is None
            else tuple(input_scales[key] for key in _scale_names(name, module))
        )
        made.set_submodule(name, _packed(module, scales, knobs))
    return saves_packed(made)


def _packed(module: nn.Module, scales: tuple[Tensor, ...] | None, knobs: dict) -> nn.Module:
    if isinstance(module, Experts):
        return NVFP4Experts.from_experts(module, scales, **knobs)
    if isinstance(module, ScaledEmbedding):
        return NVFP4Embedding(
            PackedWeight(quantize(module.weight.detach(), **knobs)), module.padding_idx
        )
    return NVFP4Linear.from_linear(module, scales[0] if scales else None, **knobs)


def _scale_names(name: str, module: nn.Module) -> tuple[str, ...]:
    if isinstance(module, Experts):
        return (f"{name}.gate_up_proj", f"{name}.down_proj")
    return () if isinstance(module, ScaledEmbedding) else (name,)


def round_model(
    model: DiffusionGemma, parts: str | Iterable[str], format: str = "nvfp4", **knobs
) -> DiffusionGemma:
    """A float copy whose `parts` went once through a format of FORMATS: to compare formats, not to
    save memory.

    With "nvfp4" its weights are those `quantize_model` unpacks (a test asserts it).
    """
    found = matrices(model, parts)
    made = copy.deepcopy(model)
    with torch.no_grad():
        for name, module in found.items():
            for leaf, weight in module.named_parameters(recurse=False):
                halves = weight.chunk(2, dim=1) if leaf == "gate_up_proj" else [weight]
                own = dict(stacked=True) if format == "nvfp4" and weight.dim() == 3 else {}
                rounded = torch.cat(
                    [round_trip(w, format, **own, **knobs) for w in halves],
                    dim=1 if len(halves) > 1 else 0,
                )
                made.get_submodule(name).get_parameter(leaf).copy_(rounded)
    return made


def calibrate(
    model: DiffusionGemma,
    run: Callable[[DiffusionGemma], object],
    parts: str | Iterable[str] = "experts",
) -> dict[str, Tensor]:
    """Input scales by name: the largest |input| of each matrix while run(model) runs, over 6 * 448.

    For experts [E] each.

    An expert that no token reached takes the largest scale of its layer. Errors: ValueError where
    nothing was seen at all.
    """
    largest: dict[str, Tensor] = {}

    def note(key: str, value: Tensor) -> None:
        largest[key] = torch.maximum(largest[key], value) if key in largest else value

    def look(name: str, module: nn.Module):
        if not isinstance(module, Experts):
            return lambda m, args: note(name, args[0].detach().abs().amax().float().reshape(1))

        def experts(m: Experts, args) -> None:
            for key, value in zip(_scale_names(name, m), _largest_inputs(m, *args), strict=True):
                note(key, value)

        return experts

    found = {n: m for n, m in matrices(model, parts).items() if not isinstance(m, ScaledEmbedding)}
    hooks = [m.register_forward_pre_hook(look(n, m)) for n, m in found.items()]
    try:
        with torch.no_grad():
            run(model)
    finally:
        for hook in hooks:
            hook.remove()
    keys = [key for name, module in found.items() for key in _scale_names(name, module)]
    silent = [key for key in keys if key not in largest or not bool((largest[key] > 0).any())]
    if silent:
        raise ValueError(
            f"run: sent nothing through {', '.join(silent[:3])}, "
            "so there is no input to take a scale from"
        )
    return {k: torch.where(v > 0, v, v.max()) / (E2M1_MAX * E4M3_MAX) for k, v in largest.items()}


def _largest_inputs(
    experts: Experts, x: Tensor, weights: Tensor, index: Tensor
) -> tuple[Tensor, Tensor]:
    """[E] each: the largest |input| of gate and up, and of down, 0 where no token went."""
    before, between = (x.new_zeros(experts.num_experts, dtype=torch.float32) for _ in range(2))
    for expert in index.unique().tolist():
        rows = x[(index == expert).any(-1)].detach()
        gate, up = F.linear(rows, experts.gate_up_proj[expert]).chunk(2, dim=-1)
        before[expert] = rows.abs().max()
        between[expert] = (F.gelu(gate, approximate="tanh") * up).abs().max()
    return before, between


def stored_bytes(model: nn.Module) -> int:
    """Bytes of all weights, scales and buffers as they are held."""
    return sum(t.numel() * t.element_size() for t in (*model.parameters(), *model.buffers()))
