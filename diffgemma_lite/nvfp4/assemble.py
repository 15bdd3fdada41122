"""From the tensors of an NVFP4 file to packed layers.

Which belong together, and whether their numbers are possible.

Against a float loader: a scale has no shape to be checked by. What can be checked is its size: a
factor above 1 would mean weights above 6 * 448, so it is a divisor that somebody took for a factor.
Walked through in notebook 10.
"""

from __future__ import annotations

import re

import torch
from torch import Tensor, nn

from ..checkpoint import to_hf_name
from ..layers import ScaledEmbedding
from ..moe import Experts
from .layers import NVFP4Embedding, NVFP4Experts, NVFP4Linear, PackedWeight
from .tensor import BLOCK, E2M1_MAX, E4M3_MAX, NVFP4Tensor

ROLES = ("packed", "block_scale", "tensor_scale")
DTYPES = {
    "packed": torch.uint8, "block_scale": torch.float8_e4m3fn, "tensor_scale": torch.float32,
    "input_scale": torch.float32,
}  # fmt: skip
_EXPERT = re.compile(r"(.+\.experts)\.(\d+)\.(gate_proj|up_proj|down_proj)")
_FUSED = re.compile(r"(.+\.experts)\.(gate_up_proj|down_proj)")

Group = dict[str, Tensor]  # role -> tensor, of one packed weight


def assemble(
    model, tensors: dict[str, Tensor], layout, dtype: torch.dtype | None, problems: list[str]
) -> dict[str, Tensor]:
    """Puts packed layers into the (meta) model for every packed weight found.

    Returns the tensors that are left, all float.

    tensors: by our names. layout: how the file names and stores scales. problems: what is wrong is
    added here, by name.
    """
    groups, left = _grouped(tensors, layout)
    experts: dict[str, dict[str, Group]] = {}
    for owner, group in groups.items():
        _checked(owner, group, layout, problems)
        one, fused = _EXPERT.fullmatch(owner), _FUSED.fullmatch(owner)
        if one or fused:
            at = one or fused
            experts.setdefault(at[1], {})[f"{at[2]}.{at[3]}" if one else at[2]] = group
    if problems:
        return left
    for owner, group in groups.items():
        if not (_EXPERT.fullmatch(owner) or _FUSED.fullmatch(owner)):
            _place_one(model, owner, group, problems)
    for owner, own in experts.items():
        _place_experts(model, owner, own, problems)
    return left


def _grouped(tensors: dict[str, Tensor], layout) -> tuple[dict[str, Group], dict[str, Tensor]]:
    """{owner: group}, and the rest.

    A leaf named as a float weight is packed if its bytes are, or if it has scales.
    """
    roles, groups, left = layout.roles, {}, {}
    for name, tensor in tensors.items():
        owner, _, leaf = name.rpartition(".")
        scaled = any(f"{owner}.{s}" in tensors for s, role in roles.items() if role != "packed")
        if leaf in roles and (roles[leaf] != "packed" or tensor.dtype == torch.uint8 or scaled):
            groups.setdefault(owner, {})[roles[leaf]] = tensor
        else:
            left[name] = tensor
    return groups, left


def _checked(owner: str, group: Group, layout, problems: list[str]) -> None:
    """Everything there, of the right type, and of a size that can be.

    Turns stored scales into factors.
    """
    leaf = {role: name for name, role in layout.roles.items()}
    problems += [
        f"missing tensor {to_hf_name(f'{owner}.{leaf[role]}')}"
        for role in ROLES
        if role not in group
    ]
    for role, tensor in group.items():
        name = to_hf_name(f"{owner}.{leaf[role]}")
        if tensor.dtype != DTYPES[role]:
            problems.append(f"{name} is {tensor.dtype}, takes {DTYPES[role]}")
        elif role == "block_scale":
            if not bool(torch.isfinite(tensor.float()).all()) or bool((tensor.float() < 0).any()):
                problems.append(f"{name} holds NaN or a negative scale")
        elif role != "packed":
            group[role] = layout.stored(tensor)
            worst = float(group[role].max())
            if not bool((torch.isfinite(tensor) & (tensor > 0)).all()):
                problems.append(
                    f"{name} holds {tensor.flatten().tolist()[:3]}, takes finite numbers above 0"
                )
            elif worst > 1:
                what, largest = (
                    "inputs" if role == "input_scale" else "weights",
                    E2M1_MAX * E4M3_MAX * worst,
                )
                kind, other = (
                    ("1 / scale", "a scale") if layout.reciprocal else ("a scale", "1 / scale")
                )
                got = f"{float(tensor.flatten()[group[role].flatten().argmax()]):.3g}"
                means = (
                    f"which means {what} up to {largest:.3g}: is it {other} where {kind} belongs?"
                )
                problems.append(f"{name} is {got}, {means}")


def _place_one(model, owner: str, group: Group, problems: list[str]) -> None:
    module = dict(model.named_modules()).get(owner)
    if not isinstance(module, (nn.Linear, ScaledEmbedding)):
        problems.append(f"unknown tensors {to_hf_name(owner)}.*")
        return
    q = _tensor(to_hf_name(owner), group, tuple(module.weight.shape), problems)
    if q is None:
        return
    scale = group.get("input_scale")
    made = (
        NVFP4Linear(q, scale)
        if isinstance(module, nn.Linear)
        else NVFP4Embedding(PackedWeight(q), module.padding_idx)
    )
    model.set_submodule(owner, made)


def _place_experts(model, owner: str, own: dict[str, Group], problems: list[str]) -> None:
    """All matrices of one layer's experts, from a stack or one by one."""
    module = dict(model.named_modules()).get(owner)
    if not isinstance(module, Experts):
        problems.append(f"unknown tensors {to_hf_name(owner)}.*")
        return
    count, width, (_, _, inner) = (
        module.num_experts,
        module.gate_up_proj.shape[2],
        module.down_proj.shape,
    )
    shapes = {"gate_proj": (inner, width), "up_proj": (inner, width), "down_proj": (width, inner)}
    if "gate_up_proj" in own or "down_proj" in own:
        own = _unfused(to_hf_name(owner), own, count, problems)
    wanted = [f"{e}.{leaf}" for e in range(count) for leaf in shapes]
    problems += [f"missing tensor {to_hf_name(owner)}.{key}.*" for key in wanted if key not in own]
    problems += [f"unknown tensors {to_hf_name(owner)}.{key}.*" for key in own if key not in wanted]
    with_inputs = {"input_scale" in own[key] for key in wanted if key in own}
    if len(with_inputs) > 1:
        problems.append(f"{to_hf_name(owner)}: some experts have an input scale and some have none")
    if problems:
        return
    made = {}
    for leaf, shape in shapes.items():
        keys = [f"{e}.{leaf}" for e in range(count)]
        each = [_tensor(f"{to_hf_name(owner)}.{key}", own[key], shape, problems) for key in keys]
        if None in each:
            return
        inputs = (
            torch.stack([own[key]["input_scale"].reshape(()) for key in keys])
            if with_inputs == {True}
            else None
        )
        made[leaf] = PackedWeight(_stack(each), inputs)
    model.set_submodule(owner, NVFP4Experts(made["gate_proj"], made["up_proj"], made["down_proj"]))


def _unfused(name: str, own: dict[str, Group], count: int, problems: list[str]) -> dict[str, Group]:
    """Stacks -> one group for each matrix.

    Gate and up may share a tensor scale [E], or have one each [E, 2].
    """
    out: dict[str, Group] = {}
    for stack, halves in (
        ("gate_up_proj", ("gate_proj", "up_proj")),
        ("down_proj", ("down_proj",)),
    ):
        group = own.get(stack, {})
        for role, tensor in group.items():
            per = (
                tensor.numel() / count
                if role.endswith("_scale") and role != "block_scale"
                else None
            )
            bad = (
                per not in (1, len(halves))
                if per is not None
                else tensor.dim() != 3 or tensor.shape[0] != count
            )
            if bad:
                takes = f"{count} experts" + (
                    f", one scale or {len(halves)} each" if per is not None else " in three axes"
                )
                problems.append(
                    f"{name}.{stack}: {role} has shape {tuple(tensor.shape)}, takes {takes}"
                )
                return {}
        for e in range(count):
            for i, leaf in enumerate(halves):
                out[f"{e}.{leaf}"] = {
                    role: t[e].chunk(len(halves))[i]
                    if t.dim() == 3 and role in ("packed", "block_scale")
                    else t.reshape(count, -1)[e, i if t.numel() > count else 0]
                    for role, t in group.items()
                }
    return {key: group for key, group in out.items() if group}


def _tensor(
    name: str, group: Group, shape: tuple[int, ...], problems: list[str]
) -> NVFP4Tensor | None:
    blocks = -(-shape[-1] // BLOCK)
    wanted = {"packed": (*shape[:-1], blocks * BLOCK // 2), "block_scale": (*shape[:-1], blocks)}
    wrong = [role for role, s in wanted.items() if tuple(group[role].shape) != s]
    wrong += ["tensor_scale"] if group["tensor_scale"].numel() != 1 else []
    problems += [
        f"{name}: {r} has shape {tuple(group[r].shape)}, takes {wanted.get(r, '()')}" for r in wrong
    ]
    if wrong:
        return None
    return NVFP4Tensor(
        group["packed"],
        group["block_scale"],
        group["tensor_scale"].reshape(1),
        shape,
        torch.float32,
    )


def _stack(each: list[NVFP4Tensor]) -> NVFP4Tensor:
    """Separate tensors of one shape -> a stack."""
    packed = torch.stack([q.packed for q in each])
    scales = torch.stack([q.block_scale.view(torch.uint8) for q in each]).view(torch.float8_e4m3fn)
    return NVFP4Tensor(
        packed,
        scales,
        torch.cat([q.tensor_scale for q in each]),
        (len(each), *each[0].shape),
        torch.float32,
    )
