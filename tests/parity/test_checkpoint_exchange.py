"""Folders written by one and read by the other.

Same names, same logits, same tokens, one copy of the weights.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
import transformers
from reference import (
    FULL,
    SHAPES,
    SLIDING,
    build,
    ours,
    read_by_transformers,
    reference_decode,
    reference_encode,
    tokens,
    wide_logits,
)
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from transformers import AutoConfig, DiffusionGemmaConfig
from transformers.models.diffusion_gemma.generation_diffusion_gemma import (
    DiffusionGemmaGenerationConfig,
    EntropyBoundSamplerConfig,
)

from diffgemma_lite import Config, DiffusionGemma, SamplerConfig, generate

SHAPES_HERE = [
    "grouped_queries",
    "no_grouping",
    "one_layer",
    "default_layer_pattern",
    "half_rotary",
    "odd_sizes",
]
VISION = ("model.encoder.vision_tower.", "model.encoder.embed_vision.")


@pytest.fixture
def warnings_of_transformers(caplog) -> Iterator[list[logging.LogRecord]]:
    """What Transformers logs at warning level and above while the test runs."""
    transformers.utils.logging.enable_propagation()
    with caplog.at_level(logging.WARNING, logger="transformers"):
        yield caplog.records
    transformers.utils.logging.disable_propagation()


@torch.no_grad()
def assert_same_model(reference: nn.Module, model: DiffusionGemma) -> None:
    c = model.config
    ids, canvas = tokens((2, 21), c.vocab_size - 1), tokens((2, c.canvas_length), c.vocab_size, 1)
    belief = wide_logits((2, c.canvas_length, c.vocab_size))
    _, cache = reference_encode(reference, ids)
    assert torch.equal(
        model.decode(canvas, model.encode(ids), belief),
        reference_decode(reference, canvas, cache, None, belief)[1],
    )


@pytest.mark.parametrize("shape", SHAPES_HERE)
def test_each_tensor_lands_where_its_name_says(tmp_path: Path, shape: str) -> None:
    """Every tensor its own constant.

    Ours under each name equal the reference's under that name, on both sides.
    """
    reference = build(shape, fill="constants")
    model = ours(reference, tmp_path)
    decoder = dict(reference.model.decoder.named_parameters()) | dict(
        reference.model.decoder.named_buffers()
    )
    encoder = dict(reference.model.encoder.language_model.named_buffers())
    seen = set()
    for name, tensor in model.state_dict().items():
        theirs = (
            encoder[name.replace("encoder_", "")]
            if "encoder_layer_scalar" in name
            else decoder[name]
        )
        assert torch.equal(tensor, theirs), name
        seen.add(name)
    kept = {n for n in decoder if not n.endswith(("embed_scale", "inv_freq"))}
    assert {n for n in seen if "encoder_layer_scalar" not in n} == kept
    assert reference.lm_head.weight is reference.model.encoder.language_model.embed_tokens.weight


@pytest.mark.parametrize("shape", SHAPES_HERE)
def test_our_folder_is_read_without_a_word(
    tmp_path: Path, shape: str, warnings_of_transformers
) -> None:
    """Nothing missing or unexpected, no warning, equal logits.

    And once more through a folder of theirs.
    """
    model = ours(build(shape), tmp_path / "theirs")
    warnings_of_transformers.clear()
    model.save_pretrained(tmp_path / "ours")
    reference = read_by_transformers(tmp_path / "ours")
    assert [record.getMessage() for record in warnings_of_transformers] == []
    assert_same_model(reference, model)
    again = ours(reference, tmp_path / "again")
    assert again.config == model.config
    assert all(
        torch.equal(a, b)
        for a, b in zip(again.state_dict().values(), model.state_dict().values(), strict=True)
    )
    assert isinstance(AutoConfig.from_pretrained(tmp_path / "ours"), DiffusionGemmaConfig)


@pytest.mark.parametrize("shape", SHAPES)
def test_the_config_survives_both_ways(tmp_path: Path, shape: str) -> None:
    """What a layer is built from is the same for both, layer by layer, after each has been written
    by the other.
    """
    theirs = build(shape).config
    theirs.save_pretrained(tmp_path)
    mine = Config.from_hf(json.loads((tmp_path / "config.json").read_text()))
    back = AutoConfig.for_model(**mine.to_hf())
    assert Config.from_hf(mine.to_hf()) == mine and Config.from_hf(back.to_dict()) == mine
    assert back.canvas_length == theirs.canvas_length == mine.canvas_length
    for i, (a, b) in enumerate(
        zip(back.text_config.per_layer_config, theirs.text_config.per_layer_config, strict=True)
    ):
        mine_here = (mine.head_width(i), mine.kv_heads(i), mine.layer_types[i])
        for layer in (a, b):
            assert (
                layer.head_dim,
                layer.num_key_value_heads,
                theirs.text_config.layer_types[i],
            ) == mine_here
    for kind in set(mine.layer_types):
        assert back.text_config.rope_parameters[kind] == theirs.text_config.rope_parameters[kind]


def test_full_layers_as_wide_as_sliding_ones(tmp_path: Path) -> None:
    """Transformers then writes no size for them at all, which does not mean its default."""
    reference = build({"global_head_dim": 16, "num_global_key_value_heads": 2})
    assert_same_model(reference, ours(reference, tmp_path))


def test_sizes_of_single_layers_are_refused() -> None:
    data = Config.preset("tiny").to_hf()
    for layers in (
        {"1": {"head_dim": 16}, "3": {"head_dim": 8}},
        {"0": {"head_dim": 16}},
        {"1": {"sliding_window": 3}},
    ):
        with pytest.raises(ValueError, match="per_layer_config"):
            Config.from_hf(
                data | {"text_config": data["text_config"] | {"per_layer_config": layers}}
            )


def test_shards_with_an_index_are_read(tmp_path: Path) -> None:
    reference = build("grouped_queries")
    reference.save_pretrained(tmp_path, max_shard_size="60KB")
    assert (
        len(list(tmp_path.glob("model-*.safetensors"))) > 5
        and (tmp_path / "model.safetensors.index.json").exists()
    )
    model = DiffusionGemma.from_pretrained(tmp_path).set_kernels(experts="loop")
    assert_same_model(reference, model)
    # over the shards: the index goes, or Transformers would read the old weights
    model.save_pretrained(tmp_path)
    assert_same_model(read_by_transformers(tmp_path), model)


def test_the_file_is_one_copy_of_the_weights(tmp_path: Path) -> None:
    """In both dtypes, and no larger than the reference's own file."""
    model = ours(build("grouped_queries"), tmp_path / "theirs")
    for dtype in (torch.float32, torch.bfloat16):
        model.to(dtype).save_pretrained(tmp_path / "ours")
        once = sum(t.numel() * t.element_size() for t in model.state_dict().values())
        stored = load_file(tmp_path / "ours" / "model.safetensors")
        vision = sum(
            t.numel() * t.element_size() for name, t in stored.items() if name.startswith(VISION)
        )
        size = (tmp_path / "ours" / "model.safetensors").stat().st_size
        assert once < size < 1.03 * (once + vision) + 150 * len(stored), (
            "bytes, and 150 for each name in the header"
        )
        assert {t.dtype for t in stored.values()} == {dtype}
        if dtype == torch.float32:
            assert size <= 1.03 * (tmp_path / "theirs" / "model.safetensors").stat().st_size


def test_tied_copies_in_a_file_must_agree(tmp_path: Path) -> None:
    """Other tools write the tied copies out.

    Equal ones are read; one that differs is an error, not a choice.
    """
    reference = build("one_layer")
    reference.save_pretrained(tmp_path)
    file = tmp_path / "model.safetensors"
    stored: dict[str, Tensor] = load_file(file)
    copies = {k: v.clone() for k, v in reference.state_dict().items() if k not in stored}
    assert "lm_head.weight" in copies and any(
        k.startswith("model.encoder.language_model.layers.0.") for k in copies
    )
    save_file(stored | copies, file)
    assert_same_model(
        reference, DiffusionGemma.from_pretrained(tmp_path).set_kernels(experts="loop")
    )
    for name in ("lm_head.weight", "model.encoder.language_model.layers.0.self_attn.q_proj.weight"):
        save_file(stored | copies | {name: copies[name] + 1}, file)
        with pytest.raises(ValueError, match="differs from another copy"):
            DiffusionGemma.from_pretrained(tmp_path)


SETTINGS = dict(
    max_denoising_steps=9,
    t_min=0.3,
    t_max=0.9,
    stability_threshold=2,
    confidence_threshold=0.25,
    max_new_tokens=16,
    eos_token_id=[1, 9],
    pad_token_id=0,
)


def test_generation_config_of_theirs_is_read(tmp_path: Path) -> None:
    reference = build({"num_hidden_layers": 2, "layer_types": [SLIDING, FULL]})
    sampler = EntropyBoundSamplerConfig(entropy_bound=1.5)
    reference.generation_config = DiffusionGemmaGenerationConfig(sampler_config=sampler, **SETTINGS)
    model = ours(reference, tmp_path)
    assert model.generation_defaults == SETTINGS | {"entropy_bound": 1.5}
    assert_defaults_generate_the_same(reference, model)


def test_generation_config_of_ours_is_read(tmp_path: Path) -> None:
    model = ours(
        build({"num_hidden_layers": 2, "layer_types": [SLIDING, FULL]}), tmp_path / "theirs"
    )
    model.generation_defaults = SETTINGS | {"entropy_bound": 1.5}
    model.save_pretrained(tmp_path / "ours")
    reference = read_by_transformers(tmp_path / "ours")
    assert reference.generation_config.sampler_config == EntropyBoundSamplerConfig(
        entropy_bound=1.5
    )
    assert {k: getattr(reference.generation_config, k) for k in SETTINGS} == SETTINGS
    assert (
        DiffusionGemma.from_pretrained(tmp_path / "ours").generation_defaults
        == model.generation_defaults
    )
    assert_defaults_generate_the_same(reference, model)


def assert_defaults_generate_the_same(reference: nn.Module, model: DiffusionGemma) -> None:
    """The reference without a single argument, ours with what the folder said."""
    defaults, ids = model.generation_defaults, tokens((2, 20), model.config.vocab_size - 1)
    for seed in (0, 1):
        torch.manual_seed(seed)
        new = reference.generate(ids).sequences[:, 20:]
        rest = {k: defaults[k] for k in ("max_new_tokens", "eos_token_id", "pad_token_id")}
        out = generate(
            model,
            ids,
            SamplerConfig.from_defaults(defaults),
            generator=torch.Generator().manual_seed(seed),
            **rest,
        )
        assert torch.equal(out.tokens, new[:, : out.tokens.shape[1]]) and not bool(
            new[:, out.tokens.shape[1] :].any()
        )
