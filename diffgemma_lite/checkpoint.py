"""Checkpoints in the Hugging Face folder layout, both ways.

Safetensors only, no pickle is ever read.

`load` maps one shard at a time and copies tensor by tensor into a model made on the meta device, so
its memory is one copy of the weights and one tensor. Names differ from ours by a prefix only: text
weights stand under `model.decoder.`, and each encoder layer adds its own `layer_scalar`. The vision
tower is skipped and reported.
"""

from __future__ import annotations

import json
import re
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from .checks import check_device, check_float_dtype, check_path, folder_to_write
from .config import Config

_DECODER, _ENCODER = "model.decoder.", "model.encoder.language_model."
_VISION = ("model.encoder.vision_tower.", "model.encoder.embed_vision.")
_INDEX = "model.safetensors.index.json"
_SHARD = re.compile(r"model-\d+-of-\d+\.safetensors")


def to_hf_name(name: str) -> str:
    """Our parameter name -> the name in the file."""
    if name.endswith("encoder_layer_scalar"):
        return _ENCODER + name.replace("encoder_layer_scalar", "layer_scalar")
    return _DECODER + name


def from_hf_name(name: str) -> str | None:
    """The name in the file -> our parameter name; None for the vision part.

    Tied copies map to the same name as the original.
    """
    if name.startswith(_VISION):
        return None
    if name == "lm_head.weight":
        return "embed_tokens.weight"
    if name.startswith(_ENCODER):
        return name.removeprefix(_ENCODER).replace("layer_scalar", "encoder_layer_scalar")
    return name.removeprefix(_DECODER)


def load(cls, folder, *, device="cpu", dtype: torch.dtype | None = None):
    """Folder -> model in eval mode. dtype None keeps each tensor as it is stored.

    Errors: ValueError that lists missing, unknown, mis-shaped or NaN tensors, or says why the
    folder is not a checkpoint.
    """
    folder, device = check_path("folder", folder), check_device("device", device)
    if dtype is not None:
        check_float_dtype("dtype", dtype)
    if device.type == "meta":
        raise ValueError("device: got 'meta', takes one that can hold weights")
    config = Config.from_hf(_read_json(folder / "config.json", "config.json"))
    settings = folder / "generation_config.json"
    defaults = (
        _generation_defaults(_read_json(settings, settings.name)) if settings.exists() else {}
    )
    model = cls(config, device="meta", dtype=torch.float32)
    wanted = dict(model.state_dict())
    problems, seen, skipped = [], set(), []
    for shard in _shards(folder):
        with _open(shard, device) as file:
            for stored in file.keys():
                name = from_hf_name(stored)
                if name is None:
                    skipped.append(stored)
                elif name not in wanted:
                    problems.append(f"unknown tensor {stored}")
                elif tuple(file.get_slice(stored).get_shape()) != tuple(wanted[name].shape):
                    got, want = tuple(file.get_slice(stored).get_shape()), tuple(wanted[name].shape)
                    problems.append(f"{stored} has shape {got}, the config asks for {want}")
                else:
                    _place(
                        model, name, stored, file.get_tensor(stored), dtype, name in seen, problems
                    )
                seen.add(name)
    problems += [f"missing tensor {to_hf_name(name)}" for name in wanted if name not in seen]
    if problems:
        shown = "\n  ".join(problems[:20]) + (
            f"\n  ... and {len(problems) - 20} more" if len(problems) > 20 else ""
        )
        raise ValueError(
            f"folder: {folder} does not hold the weights its config.json describes:\n  {shown}"
        )
    model.generation_defaults = defaults
    model.checkpoint_report = {"tensors": len(seen - {None}), "skipped": skipped}
    return model.eval()


def _is_finite(tensor: Tensor) -> bool:
    # isfinite alone would make a second tensor
    return bool(torch.isfinite(torch.stack(torch.aminmax(tensor))).all())


def _place(
    model, name: str, stored: str, tensor: Tensor, dtype, again: bool, problems: list[str]
) -> None:
    """Put one tensor where its meta placeholder is.

    A tied copy must equal what is already there.
    """
    owner, _, leaf = name.rpartition(".")
    module = model.get_submodule(owner)
    if not tensor.is_floating_point():
        problems.append(
            f"{stored} is {tensor.dtype}, not a floating-point weight "
            "(a quantised checkpoint needs diffgemma_lite.nvfp4)"
        )
        return
    if not _is_finite(tensor):
        problems.append(f"{stored} holds NaN or infinity")
    # a copy, so that the file can be unmapped
    tensor = tensor.to(dtype=dtype or tensor.dtype, copy=True)
    held = getattr(module, leaf)
    if again and not held.is_meta:
        if not torch.equal(tensor, held):
            problems.append(f"{stored} differs from another copy of the same weight")
        return
    if leaf in module._parameters:
        module._parameters[leaf] = torch.nn.Parameter(tensor)
    else:
        module._buffers[leaf] = tensor


def save(model, folder) -> None:
    """Model -> folder.

    One copy of the weights; every file appears whole or not at all, and shards of another model go.

    Errors: ValueError for weights that `load` would refuse, and for a folder that cannot be
    written; nothing is touched then.
    """
    if model.device.type == "meta":
        raise ValueError("model: is on the meta device and has no weights to save")
    broken = [name for name, w in model.state_dict().items() if not _is_finite(w)]
    if broken:
        raise ValueError(
            f"model: {', '.join(broken[:5])} hold NaN or infinity, takes weights that are numbers"
        )
    folder = folder_to_write("folder", folder)
    config = model.config.to_hf() | {"dtype": str(model.dtype).removeprefix("torch.")}
    tensors = {to_hf_name(k): v.detach().contiguous() for k, v in model.state_dict().items()}
    # Transformers always builds a vision tower; zeros of the smallest one keep its loader quiet
    tensors |= _vision_zeros(model.config, model.dtype)
    partial = folder / "model.safetensors.partial"
    save_file(tensors, partial, metadata={"format": "pt"})
    partial.chmod(0o644)  # the library makes it readable by its owner only
    partial.replace(folder / "model.safetensors")
    (folder / _INDEX).unlink(missing_ok=True)
    for old in [path for path in folder.iterdir() if _SHARD.fullmatch(path.name)]:
        old.unlink()
    _write_json(folder / "config.json", config)
    if model.generation_defaults:
        _write_json(
            folder / "generation_config.json", _generation_config(model.generation_defaults)
        )
    else:  # another model's settings must not speak for this one
        (folder / "generation_config.json").unlink(missing_ok=True)


_SAMPLER_KEYS = (
    "max_denoising_steps",
    "t_min",
    "t_max",
    "stability_threshold",
    "confidence_threshold",
)
_PLAIN_KEYS = ("max_new_tokens", "eos_token_id", "pad_token_id", "bos_token_id")


def _generation_defaults(data: dict) -> dict:
    """generation_config.json -> flat dict; entropy_bound comes out of its nested sampler_config."""
    defaults = {k: data[k] for k in _SAMPLER_KEYS + _PLAIN_KEYS if data.get(k) is not None}
    sampler = data.get("sampler_config") or {}
    if not isinstance(sampler, dict):
        raise ValueError(
            f"folder: sampler_config of generation_config.json is {sampler!r}, "
            "takes a JSON object or null"
        )
    bound = sampler.get("entropy_bound", data.get("entropy_bound"))
    return defaults | ({} if bound is None else {"entropy_bound": bound})


def _generation_config(defaults: dict) -> dict:
    data = {k: v for k, v in defaults.items() if k != "entropy_bound"}
    if "entropy_bound" in defaults:
        data["sampler_config"] = {
            "_cls_name": "EntropyBoundSamplerConfig",
            "entropy_bound": defaults["entropy_bound"],
        }
    return data


def _vision_zeros(config: Config, dtype: torch.dtype) -> dict[str, Tensor]:
    v, tower = config.to_hf()["vision_config"], "model.encoder.vision_tower."
    d, i, patch = v["hidden_size"], v["intermediate_size"], 3 * v["patch_size"] ** 2
    shapes = {
        "model.encoder.embed_vision.embedding_projection.weight": (config.hidden_size, d),
        tower + "patch_embedder.input_proj.weight": (d, patch),
        tower + "patch_embedder.position_embedding_table": (2, v["position_embedding_size"], d),
    }
    layer = tower + "encoder.layers.0."
    for norm in (
        "input_layernorm",
        "post_attention_layernorm",
        "pre_feedforward_layernorm",
        "post_feedforward_layernorm",
    ):
        shapes[layer + norm + ".weight"] = (d,)
    for proj in ("q_proj", "k_proj", "v_proj", "o_proj"):
        shapes[layer + f"self_attn.{proj}.linear.weight"] = (d, d)
    for norm in ("q_norm", "k_norm"):
        shapes[layer + f"self_attn.{norm}.weight"] = (v["head_dim"],)
    for proj, shape in {"gate_proj": (i, d), "up_proj": (i, d), "down_proj": (d, i)}.items():
        shapes[layer + f"mlp.{proj}.linear.weight"] = shape
    return {name: torch.zeros(shape, dtype=dtype) for name, shape in shapes.items()}


def _shards(folder: Path) -> list[Path]:
    """The safetensors files of a folder, from the index if there is one."""
    if (folder / _INDEX).exists():
        index = _read_json(folder / _INDEX, _INDEX).get("weight_map")
        names = sorted({str(n) for n in index.values()}) if isinstance(index, dict) else []
        missing = [n for n in names if not (folder / n).exists()]
        if missing or not names or any(Path(n).name != n for n in names):
            raise ValueError(
                f"folder: {folder / _INDEX} names {missing or names}, "
                "which are not files of this folder"
            )
        return [folder / n for n in names]
    if (folder / "model.safetensors").exists():
        return [folder / "model.safetensors"]
    raise ValueError(
        f"folder: {folder} has no model.safetensors and no {_INDEX}; "
        "only safetensors are read, never pickle"
    )


def _open(shard: Path, device):
    try:
        return safe_open(
            shard, framework="pt", device="cpu" if device.type == "cpu" else str(device)
        )
    except (OSError, SafetensorError) as error:
        raise ValueError(f"folder: {shard} is not a whole safetensors file ({error})") from error


def _read_json(path: Path, name: str) -> dict:
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ValueError(
            f"folder: {path.parent} is not a checkpoint, {name} cannot be read ({error})"
        ) from error
    except ValueError as error:
        raise ValueError(f"folder: {path} is not JSON ({error})") from error
    if not isinstance(data, dict):
        raise ValueError(f"folder: {path} holds {type(data).__name__}, takes a JSON object")
    return data


def _write_json(path: Path, data: dict) -> None:
    partial = path.with_name(path.name + ".partial")
    partial.write_text(json.dumps(data, indent=2) + "\n", encoding="utf-8")
    partial.replace(path)
