"""The published 26B-A4B, on the meta device.

The same names and shapes as Transformers', counted to the last parameter.
"""

from __future__ import annotations

import pytest
import torch
from reference import FULL, SLIDING, SMALLEST_VISION, build, ours, tokens
from torch import Tensor
from transformers import (
    DiffusionGemmaConfig,
    DiffusionGemmaForBlockDiffusion,
    DiffusionGemmaTextConfig,
    Gemma4VisionConfig,
)

from diffgemma_lite import Config, DiffusionGemma

# Source: text_config of the public config.json of google/diffusiongemma-26B-A4B-it
PUBLISHED = dict(
    vocab_size=262_144,
    hidden_size=2816,
    intermediate_size=2112,
    num_hidden_layers=30,
    num_attention_heads=16,
    num_key_value_heads=8,
    head_dim=256,
    global_head_dim=512,
    num_global_key_value_heads=2,
    sliding_window=1024,
    num_experts=128,
    top_k_experts=8,
    moe_intermediate_size=704,
    max_position_embeddings=262_144,
    final_logit_softcapping=30.0,
    rms_norm_eps=1e-6,
    hidden_activation="gelu_pytorch_tanh",
    pad_token_id=0,
    eos_token_id=1,
    bos_token_id=2,
    layer_types=[FULL if i in (5, 11, 17, 23, 29) else SLIDING for i in range(30)],
    rope_parameters={
        FULL: {
            "rope_type": "proportional",
            "partial_rotary_factor": 0.25,
            "rope_theta": 1_000_000.0,
        },
        SLIDING: {"rope_type": "default", "rope_theta": 10_000.0},
    },
)
# of the text model, tied weights counted once, layer scalars (which are buffers) not
PARAMETERS = 25_250_986_752
VISION = ("model.encoder.vision_tower.", "model.encoder.embed_vision.")
ENCODER, DECODER = "model.encoder.language_model.", "model.decoder."


@pytest.fixture(scope="module")
def published() -> tuple[DiffusionGemmaConfig, dict[str, Tensor]]:
    """Transformers' config, and the text tensors of its model on the meta device (with the smallest
    vision tower).
    """
    config = DiffusionGemmaConfig(
        text_config=DiffusionGemmaTextConfig(**PUBLISHED),
        vision_config=Gemma4VisionConfig(**SMALLEST_VISION),
        canvas_length=256,
    )
    with torch.device("meta"):
        model = DiffusionGemmaForBlockDiffusion(config)
    return config, {
        name: t for name, t in model.state_dict().items() if not name.startswith(VISION)
    }


def test_names_and_shapes_are_transformers(published) -> None:
    _, theirs = published
    model = DiffusionGemma(Config.preset("26b_a4b"), device="meta")
    mine = {}
    for name, tensor in model.state_dict().items():  # by hand, not by checkpoint.py's own rule
        side = ENCODER if name.endswith("encoder_layer_scalar") else DECODER
        mine[side + name.replace("encoder_layer_scalar", "layer_scalar")] = tuple(tensor.shape)
    once = {
        name: tuple(t.shape)
        for name, t in theirs.items()
        if name.startswith(DECODER) or (name.startswith(ENCODER) and name.endswith("layer_scalar"))
    }
    assert mine == once
    tied = {name: t for name, t in theirs.items() if name not in once}
    assert tied.pop("lm_head.weight").shape == theirs[DECODER + "embed_tokens.weight"].shape
    for name, tensor in tied.items():
        assert tensor.shape == theirs[name.replace(ENCODER, DECODER)].shape, name
    assert all(p.is_meta for p in model.parameters())


def test_the_parameter_count_is_the_published_shapes(published) -> None:
    model = DiffusionGemma(Config.preset("26b_a4b"), device="meta")
    counts = sum(p.numel() for p in model.parameters()), sum(b.numel() for b in model.buffers())
    print(f"{counts[0]:,} parameters and {counts[1]} layer scalars")
    assert counts[1] == 2 * PUBLISHED["num_hidden_layers"]
    assert counts[0] == PARAMETERS


def test_the_preset_is_the_published_config(published) -> None:
    config, _ = published
    assert Config.from_hf(config.to_dict()) == Config.preset("26b_a4b")
    assert Config.from_hf(
        {"model_type": "diffusion_gemma", "canvas_length": 256, "text_config": PUBLISHED}
    ) == Config.preset("26b_a4b")


def test_a_model_made_on_the_meta_device_computes_the_same_once_filled(tmp_path) -> None:
    """Scales, rotary frequencies and the two layer scalars are not lost on the way."""
    model = ours(build("grouped_queries"), tmp_path)
    hollow = DiffusionGemma(model.config, device="meta")
    names = {name for name, _ in model.named_buffers()}
    assert {n for n, _ in hollow.named_buffers()} == names and {
        n.rpartition(".")[2] for n in names
    } == {"layer_scalar", "encoder_layer_scalar"}
    hollow.to_empty(device="cpu")
    hollow.load_state_dict(model.state_dict(), strict=True)
    hollow.eval().set_kernels(experts="loop")
    ids, canvas = (
        tokens((1, 21), model.config.vocab_size),
        tokens((1, 8), model.config.vocab_size, 1),
    )
    assert torch.equal(
        hollow.decode(canvas, hollow.encode(ids)), model.decode(canvas, model.encode(ids))
    )
