"""Both public layouts, written and read; whatever is missing, wrong or upside down is named."""

from __future__ import annotations

import json

import pytest
import torch
from safetensors.torch import load_file, save_file
from tiny import logits, refused, tiny

from diffgemma_lite import DiffusionGemma
from diffgemma_lite.nvfp4 import calibrate, load_quantized, quantize_model, save_quantized
from diffgemma_lite.nvfp4.layers import PackedWeight

PARTS = ("experts", "dense_mlp")
KINDS = [("modelopt", False), ("compressed-tensors", False), ("compressed-tensors", True)]
EXPERT = "model.decoder.layers.1.experts.2.gate_proj."
LINEAR = "model.decoder.layers.0.mlp.up_proj."
LEAVES = ("weight", "weight_scale", "weight_scale_2", "input_scale")


@pytest.fixture(scope="module")
def packed() -> DiffusionGemma:
    model = tiny()
    with torch.no_grad():
        for layer in model.layers:
            layer.experts.gate_up_proj[:, :16] *= 5  # gate and up far apart
    return quantize_model(model, PARTS, input_scales=calibrate(model, logits, PARTS))


def edited(folder, changes: dict) -> None:
    """Change tensors of a written checkpoint; None removes one."""
    tensors = load_file(folder / "model.safetensors")
    for name, value in changes.items():
        assert name in tensors or value is not None, name
        tensors.pop(name, None)
        if value is not None:
            tensors[name] = value
    save_file(tensors, folder / "model.safetensors")


@pytest.mark.parametrize(("layout", "fused"), KINDS)
def test_a_model_comes_back_from_either_layout(tmp_path, packed, layout, fused):
    save_quantized(packed, tmp_path, layout=layout, fused=fused)
    again = load_quantized(tmp_path)
    ours, theirs = packed.state_dict(), again.state_dict()
    assert list(ours) == list(theirs)
    for name, tensor in ours.items():
        assert tensor.dtype == theirs[name].dtype
        if name.endswith(("tensor_scale", "input_scale")) and layout != "modelopt":
            # 1 / (1 / x) can move the last bit
            assert torch.allclose(tensor, theirs[name], rtol=2.0**-23, atol=0), name
        else:
            assert torch.equal(tensor.view(torch.uint8), theirs[name].view(torch.uint8)), name
    assert torch.allclose(logits(again), logits(packed), atol=1e-3 if layout != "modelopt" else 0)


def test_weights_alone_have_no_input_scales(tmp_path):
    alone = quantize_model(tiny(), "everything")
    # writes ModelOpt's layout: the float one has no place for packed bytes
    alone.save_pretrained(tmp_path)
    assert not any("input_scale" in name for name in load_file(tmp_path / "model.safetensors"))
    assert torch.equal(logits(load_quantized(tmp_path)), logits(alone))
    half = load_quantized(tmp_path, dtype=torch.bfloat16)
    unpacked = {m.dtype for m in half.modules() if isinstance(m, PackedWeight)}
    assert half.dtype == torch.bfloat16 and unpacked == {torch.bfloat16}


def test_names_types_and_shapes_are_the_published_ones(tmp_path, packed):
    save_quantized(packed, tmp_path)
    tensors = load_file(tmp_path / "model.safetensors")
    found = {
        leaf: (tensors[EXPERT + leaf].dtype, tuple(tensors[EXPERT + leaf].shape)) for leaf in LEAVES
    }
    assert found == {
        "weight": (torch.uint8, (16, 16)),
        "weight_scale": (torch.float8_e4m3fn, (16, 2)),
        "weight_scale_2": (torch.float32, ()),
        "input_scale": (torch.float32, ()),
    }
    count = sum(
        name.startswith("model.decoder.layers.") and ".experts." in name for name in tensors
    )
    # layers, experts, matrices, tensors each; the published file has 30 x 128 x 3 x 4
    assert count == 4 * 4 * 3 * 4
    save_quantized(packed, tmp_path / "other", layout="compressed-tensors")
    other = load_file(tmp_path / "other" / "model.safetensors")
    assert torch.equal(other[EXPERT + "weight_packed"], tensors[EXPERT + "weight"])
    assert float(
        other[EXPERT + "weight_global_scale"] * tensors[EXPERT + "weight_scale_2"]
    ) == pytest.approx(1)
    assert float(
        other[EXPERT + "input_global_scale"] * tensors[EXPERT + "input_scale"]
    ) == pytest.approx(1)
    save_quantized(packed, tmp_path / "fused", layout="compressed-tensors", fused=True)
    stacks = load_file(tmp_path / "fused" / "model.safetensors")
    assert stacks["model.decoder.layers.1.experts.gate_up_proj.weight_packed"].shape == (4, 32, 16)
    assert stacks["model.decoder.layers.1.experts.gate_up_proj.weight_global_scale"].shape == (4, 2)


def test_a_stack_with_one_scale_for_gate_and_up_is_read_as_it_says(tmp_path, packed):
    save_quantized(packed, tmp_path, layout="compressed-tensors", fused=True)
    name = "model.decoder.layers.0.experts.gate_up_proj.weight_global_scale"
    edited(tmp_path, {name: torch.tensor([100.0, 200.0, 400.0, 800.0])})
    experts = load_quantized(tmp_path).layers[0].experts
    assert experts.gate.tensor_scale.tolist() == experts.up.tensor_scale.tolist()
    assert experts.up.tensor_scale.tolist() == pytest.approx([0.01, 0.005, 0.0025, 0.00125])


WRONG = {
    "missing block scale": ({EXPERT + "weight_scale": None}, EXPERT + "weight_scale", "missing"),
    "missing tensor scale": ({EXPERT + "weight_scale_2": None}, EXPERT + "weight_scale_2",
                             "missing"),
    "missing bytes": ({LINEAR + "weight": None}, LINEAR + "weight", "missing"),
    "upside down": ({EXPERT + "weight_scale_2": torch.tensor(3141.0)}, EXPERT + "weight_scale_2",
                    "1 / scale"),
    "input upside down": ({LINEAR + "input_scale": torch.tensor(250.0)}, LINEAR + "input_scale",
                          "1 / scale"),
    "zero": ({LINEAR + "weight_scale_2": torch.tensor(0.0)}, LINEAR + "weight_scale_2", "above 0"),
    "not a number": ({LINEAR + "weight_scale_2": torch.tensor(torch.nan)},
                     LINEAR + "weight_scale_2", "above 0"),
    "type of a scale": ({EXPERT + "weight_scale": torch.ones(16, 2)}, EXPERT + "weight_scale",
                        "float32"),
    "type of a tensor scale": ({LINEAR + "weight_scale_2": torch.ones(()).half()},
                               LINEAR + "weight_scale_2", "float16"),
    "negative block scale": (
        {EXPERT + "weight_scale": torch.full((16, 2), -1.0).to(torch.float8_e4m3fn)},
        EXPERT + "weight_scale", "negative",
    ),
    "shape of the bytes": ({LINEAR + "weight": torch.zeros(48, 8, dtype=torch.uint8)}, LINEAR[:-1],
                           "(48, 16)"),
    "float weight with scales": ({LINEAR + "weight": torch.zeros(48, 32)}, LINEAR + "weight",
                                 "uint8"),
    "a whole matrix gone": (dict.fromkeys([EXPERT + leaf for leaf in LEAVES]), EXPERT, "missing"),
    "some inputs": ({EXPERT + "input_scale": None}, "layers.1.experts", "some"),
    "another layout": ({LINEAR + "weight_global_scale": torch.tensor(9.0)},
                       LINEAR + "weight_global_scale", "unknown"),
    "missing float": ({"model.decoder.norm.weight": None}, "model.decoder.norm.weight", "missing"),
    "unknown float": ({"model.decoder.layers.0.mlp.bias": torch.zeros(3)}, "layers.0.mlp.bias",
                      "unknown"),
}  # fmt: skip


@pytest.mark.parametrize("what", WRONG)
def test_what_is_wrong_is_named(tmp_path, packed, what):
    changes, name, words = WRONG[what]
    save_quantized(packed, tmp_path)
    edited(tmp_path, changes)
    with pytest.raises(ValueError, match="folder: ") as caught:
        load_quantized(tmp_path)
    assert name in str(caught.value) and words in str(caught.value)


def test_a_factor_where_a_divisor_belongs_is_named_too(tmp_path, packed):
    save_quantized(packed, tmp_path, layout="compressed-tensors")
    edited(tmp_path, {LINEAR + "weight_global_scale": torch.tensor(0.0004)})
    with refused(
        "folder",
        "up_proj.weight_global_scale is 0.0004",
        "weights up to",
        "a scale where 1 / scale",
    ):
        load_quantized(tmp_path)


def test_the_config_decides_the_layout_and_is_not_guessed(tmp_path, packed):
    save_quantized(packed, tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    eight = {"quant_method": "modelopt", "quant_algo": "FP8"}
    other = {"quant_method": "compressed-tensors", "format": "nvfp4-pack-quantized"}
    for said, words in (
        (None, "None"),
        ({"quant_method": "awq"}, "awq"),
        (eight, "FP8"),
        (other, "unknown|missing"),
    ):
        (tmp_path / "config.json").write_text(json.dumps(config | {"quantization_config": said}))
        if said is None:
            assert load_quantized(tmp_path).config == packed.config  # hf_quant_config.json says it
            (tmp_path / "hf_quant_config.json").unlink()
        with refused("folder", f"({words})"):
            load_quantized(tmp_path)


def test_each_loader_refuses_the_others_folder(tmp_path, packed):
    save_quantized(packed, tmp_path / "four")
    with refused("folder", "unknown tensor"):
        DiffusionGemma.from_pretrained(tmp_path / "four")
    tiny().save_pretrained(tmp_path / "float")
    with refused("folder", "quantization_config"):
        load_quantized(tmp_path / "float")


def test_what_cannot_be_written_is_named(tmp_path, packed):
    with refused("layout", "gguf"):
        save_quantized(packed, tmp_path, layout="gguf")
    with refused("fused"):
        save_quantized(packed, tmp_path, fused=True)
    with refused("model", "no packed"):
        save_quantized(tiny(), tmp_path)
    with refused("model", "blocks of 32"):
        save_quantized(quantize_model(tiny(), block=32), tmp_path)
    assert not list(tmp_path.iterdir())
