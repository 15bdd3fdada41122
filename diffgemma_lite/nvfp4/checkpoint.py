"""NVFP4 checkpoints: both public layouts, written and read.

A scale that is missing or upside down is named, never guessed.

Against a float checkpoint: a packed weight is three or four tensors. The two layouts name them
differently, and one stores the tensor scale as a divisor where the other stores a factor, so that a
mix-up would load and be wrong by many powers of ten. ModelOpt (facts: nvidia NVFP4 card) writes
each expert by itself; compressed-tensors (RedHatAI card) too, or all experts of a layer stacked,
gate above up. Walked through in notebook 10.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import Tensor

from .. import checkpoint as floats
from ..config import Config
from ..model import DiffusionGemma
from .assemble import assemble
from .layers import PACKED, NVFP4Embedding, NVFP4Experts, PackedWeight
from .tensor import BLOCK


@dataclass(frozen=True)
class Layout:
    """How a layout names the tensors of one packed weight, and whether it stores 1 / scale."""

    packed: str
    block_scale: str
    tensor_scale: str
    input_scale: str
    reciprocal: bool

    @property
    def roles(self) -> dict[str, str]:
        """Leaf of a name -> what it is."""
        return {
            getattr(self, role): role
            for role in ("packed", "block_scale", "tensor_scale", "input_scale")
        }

    def stored(self, scale: Tensor) -> Tensor:
        """A factor as it is stored, and what is stored as a factor (both in float32)."""
        return 1 / scale if self.reciprocal else scale


LAYOUTS = {
    "modelopt": Layout("weight", "weight_scale", "weight_scale_2", "input_scale", False),
    "compressed-tensors": Layout(
        "weight_packed", "weight_scale", "weight_global_scale", "input_global_scale", True
    ),
}


def save_quantized(
    model: DiffusionGemma, folder: str | Path, *, layout: str = "modelopt", fused: bool = False
) -> None:
    """A model of `quantize_model` -> folder. fused (compressed-tensors only).

    All experts of a layer in one stack.

    Errors: ValueError for an unknown layout, a model without packed weights, blocks other than 16.
    """
    if layout not in LAYOUTS:
        raise ValueError(f"layout: got {layout!r}, takes one of {', '.join(LAYOUTS)}")
    if fused and layout == "modelopt":
        raise ValueError("fused: got True, but ModelOpt's layout holds each expert by itself")
    held = {n: m for n, m in model.named_modules() if isinstance(m, PACKED)}
    others = {m.block for m in model.modules() if isinstance(m, PackedWeight)} - {BLOCK}
    if not held or others:
        got = (
            f"blocks of {others.pop()}"
            if others
            else "no packed weights (save_pretrained is for those)"
        )
        raise ValueError(f"model: has {got}, takes one of quantize_model with blocks of {BLOCK}")
    inside = tuple(f"{name}." for name in held)
    tensors = {
        floats.to_hf_name(k): v for k, v in model.state_dict().items() if not k.startswith(inside)
    }
    for name, module in held.items():
        for owner, weight in _weights(name, module, fused):
            tensors |= {
                floats.to_hf_name(f"{owner}.{leaf}"): t
                for leaf, t in _tensors(weight, LAYOUTS[layout]).items()
            }
    tensors |= floats._vision_zeros(model.config, model.dtype)
    _write(
        model,
        Path(folder),
        {k: v.detach().contiguous() for k, v in tensors.items()},
        layout,
        list(held),
    )


def load_quantized(
    folder: str | Path, *, device: str = "cpu", dtype: torch.dtype | None = None
) -> DiffusionGemma:
    """Folder in either layout -> model in eval mode. dtype.

    Of what is float and of what packed weights unpack to.

    Errors: ValueError that lists every missing, unknown, mis-shaped or impossible tensor.
    """
    folder = Path(folder)
    data = floats._read_json(folder / "config.json", "config.json")
    name = layout_of(data, folder)
    model = DiffusionGemma(Config.from_hf(data), device="meta", dtype=torch.float32)
    problems: list[str] = []
    tensors = {}
    for shard in floats._shards(folder):
        with floats._open(shard, torch.device(device)) as file:
            tensors |= {
                own: file.get_tensor(n).clone()
                for n in file.keys()
                if (own := floats.from_hf_name(n)) is not None
            }
    left = assemble(model, tensors, LAYOUTS[name], dtype, problems)
    _refuse(problems, folder, name)
    _place_floats(model, left, dtype, problems)
    _refuse(problems, folder, name)
    settings = folder / "generation_config.json"
    if settings.exists():
        model.generation_defaults = floats._generation_defaults(
            floats._read_json(settings, settings.name)
        )
    for module in model.modules():
        if isinstance(module, PackedWeight):
            module.dtype = dtype or model.norm.weight.dtype
    return saves_packed(model).eval()


def _place_floats(
    model: DiffusionGemma, left: dict[str, Tensor], dtype: torch.dtype | None, problems: list[str]
) -> None:
    shapes = {k: tuple(v.shape) for k, v in model.state_dict().items() if v.is_meta}
    problems += [f"unknown tensor {floats.to_hf_name(k)}" for k in left if k not in shapes]
    problems += [f"missing tensor {floats.to_hf_name(k)}" for k in shapes if k not in left]
    for k in shapes.keys() & left.keys():
        if tuple(left[k].shape) != shapes[k]:
            problems.append(
                f"{floats.to_hf_name(k)} has shape {tuple(left[k].shape)}, "
                f"the config asks for {shapes[k]}"
            )
        else:
            floats._place(model, k, floats.to_hf_name(k), left[k], dtype, False, problems)


def _refuse(problems: list[str], folder: Path, layout: str) -> None:
    if problems:
        shown = "\n  ".join(sorted(problems)[:20])
        raise ValueError(
            f"folder: {folder} is not the {layout} checkpoint its config.json describes:\n  {shown}"
        )


def saves_packed(model: DiffusionGemma) -> DiffusionGemma:
    """Makes `save_pretrained` of this model write ModelOpt's layout.

    The float one has no place for packed bytes.
    """
    from functools import partial

    model.save_pretrained = partial(save_quantized, model)
    return model


def layout_of(data: dict, folder: Path) -> str:
    """Which of LAYOUTS a parsed config.json (or hf_quant_config.json beside it) names."""
    said = data.get("quantization_config")
    beside = folder / "hf_quant_config.json"
    if said is None and beside.exists():
        said = {"quant_method": "modelopt"} | floats._read_json(beside, beside.name).get(
            "quantization", {}
        )
    if not isinstance(said, dict) or said.get("quant_method") not in LAYOUTS:
        got = said.get("quant_method") if isinstance(said, dict) else said
        raise ValueError(
            f"folder: quantization_config names {got!r}, takes one of {', '.join(LAYOUTS)}"
        )
    algorithm = said.get("quant_algo") if said["quant_method"] == "modelopt" else said.get("format")
    if algorithm not in ("NVFP4", "nvfp4-pack-quantized"):
        raise ValueError(
            f"folder: quantization_config says {algorithm!r}, takes NVFP4 (nvfp4-pack-quantized)"
        )
    return said["quant_method"]


def _weights(name: str, module, fused: bool) -> Iterator[tuple[str, PackedWeight]]:
    """(name in the file, one packed weight), experts one by one or stacked."""
    if isinstance(module, NVFP4Experts):
        matrices = {"gate_proj": module.gate, "up_proj": module.up, "down_proj": module.down}
        if fused:
            yield f"{name}.gate_up_proj", _stacked(module.gate, module.up)
            yield f"{name}.down_proj", module.down
            return
        for e in range(module.num_experts):
            for leaf, w in matrices.items():
                yield (
                    f"{name}.{e}.{leaf}",
                    PackedWeight(w.q[e], None if w.input_scale is None else w.input_scale[e]),
                )
    else:
        yield name, module.table if isinstance(module, NVFP4Embedding) else module


def _stacked(gate: PackedWeight, up: PackedWeight) -> PackedWeight:
    """Gate above up [E, 2 I, D]; the tensor scales side by side [E, 2], so that neither takes the
    other's.
    """
    made = PackedWeight(gate.q, gate.input_scale)
    for leaf in ("packed", "block_scale"):
        pair = [getattr(w, leaf).view(torch.uint8) for w in (gate, up)]
        setattr(made, leaf, torch.cat(pair, dim=1).view(getattr(gate, leaf).dtype))
    made.tensor_scale = torch.stack([gate.tensor_scale, up.tensor_scale], dim=1)
    return made


def _tensors(w: PackedWeight, layout: Layout) -> dict[str, Tensor]:
    """{leaf: tensor} of one packed weight; a single scale is a scalar in the file."""
    made = {
        layout.packed: w.packed,
        layout.block_scale: w.block_scale,
        layout.tensor_scale: layout.stored(w.tensor_scale),
    }
    if w.input_scale is not None:
        made[layout.input_scale] = layout.stored(w.input_scale)
    return {
        leaf: t.reshape(()) if t.numel() == 1 and t.dtype == torch.float32 else t
        for leaf, t in made.items()
    }


def _write(
    model: DiffusionGemma, folder: Path, tensors: dict[str, Tensor], layout: str, packed: list[str]
) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    ignored = [
        floats.to_hf_name(n) for n, m in model.named_modules() if isinstance(m, torch.nn.Linear)
    ]
    ignored += [] if "embed_tokens" in packed else ["lm_head", floats.to_hf_name("embed_tokens")]
    inputs = any(w.input_scale is not None for w in model.modules() if isinstance(w, PackedWeight))
    four = {
        "num_bits": 4,
        "type": "float",
        "strategy": "tensor_group",
        "group_size": BLOCK,
        "symmetric": True,
    }
    group = {
        "targets": ["Linear"],
        "weights": four,
        "input_activations": four | {"dynamic": "local"} if inputs else None,
    }
    modelopt = {
        "quant_algo": "NVFP4",
        "group_size": BLOCK,
        "exclude_modules": ignored,
        "kv_cache_quant_algo": None,
    }
    said = {
        "modelopt": {"quant_method": "modelopt"} | modelopt,
        "compressed-tensors": {
            "quant_method": "compressed-tensors",
            "format": "nvfp4-pack-quantized",
            "config_groups": {"group_0": group},
            "ignore": ignored,
        },
    }[layout]
    config = model.config.to_hf() | {
        "dtype": str(model.dtype).removeprefix("torch."),
        "quantization_config": said,
    }
    partial = folder / "model.safetensors.partial"
    save_file(tensors, partial, metadata={"format": "pt"})
    partial.chmod(0o644)
    partial.replace(folder / "model.safetensors")
    floats._write_json(folder / "config.json", config)
    if layout == "modelopt":
        beside = {"producer": {"name": "diffgemma_lite"}, "quantization": modelopt}
        floats._write_json(folder / "hf_quant_config.json", beside)
    if model.generation_defaults:
        floats._write_json(
            folder / "generation_config.json", floats._generation_config(model.generation_defaults)
        )
