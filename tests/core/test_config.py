"""Config: presets, validation that names the field, and the round trip to config.json."""

import json
import math
from dataclasses import FrozenInstanceError, fields, replace

import pytest
from tiny import refused

from diffgemma_lite import Config
from diffgemma_lite.config import FULL, PRESETS, SLIDING

TINY = Config.preset("tiny")


def test_the_published_shape():
    """Source: config.json of google/diffusiongemma-26B-A4B-it."""
    c = Config.preset("26b_a4b")
    assert (c.hidden_size, c.intermediate_size, c.num_hidden_layers, c.vocab_size) == (
        2816,
        2112,
        30,
        262_144,
    )
    assert [i for i in range(30) if not c.is_sliding(i)] == [5, 11, 17, 23, 29]
    assert (c.num_attention_heads, c.num_key_value_heads, c.num_global_key_value_heads) == (
        16,
        8,
        2,
    )
    assert (c.head_dim, c.global_head_dim, c.sliding_window, c.canvas_length) == (
        256,
        512,
        1024,
        256,
    )
    assert (c.num_experts, c.top_k_experts, c.moe_intermediate_size) == (128, 8, 704)
    assert (c.sliding_rope_theta, c.full_rope_theta, c.partial_rotary_factor) == (1e4, 1e6, 0.25)
    assert (c.final_logit_softcapping, c.rms_norm_eps, c.max_position_embeddings) == (
        30.0,
        1e-6,
        262_144,
    )
    assert (c.pad_token_id, c.eos_token_id, c.bos_token_id) == (0, 1, 2)


def test_the_tiny_preset_has_every_mechanism():
    assert {TINY.is_sliding(i) for i in range(4)} == {True, False}
    assert (TINY.vocab_size, TINY.canvas_length, TINY.sliding_window) == (97, 8, 8)
    assert (TINY.num_hidden_layers, TINY.num_experts, TINY.top_k_experts) == (4, 4, 2)
    assert (TINY.head_width(0), TINY.kv_heads(0)) == (8, 2) and (
        TINY.head_width(1),
        TINY.kv_heads(1),
    ) == (16, 1)


@pytest.mark.parametrize("layers", [1, 2, 5, 6, 7, 12])
def test_default_layer_types_are_five_sliding_then_full_and_the_last_full(layers):
    types = Config(
        **(PRESETS["tiny"] | {"num_hidden_layers": layers, "layer_types": ()})
    ).layer_types
    assert len(types) == layers and types[-1] == FULL
    assert all(types[i] == (FULL if i % 6 == 5 else SLIDING) for i in range(layers - 1))


def test_frozen_and_keyword_only():
    with pytest.raises(FrozenInstanceError):
        TINY.vocab_size = 5
    with pytest.raises(TypeError):
        Config(97)


def test_a_preset_with_changes():
    assert Config.preset("tiny", sliding_window=16) == replace(TINY, sliding_window=16)
    with refused("name", "'huge'", "tiny", "26b_a4b"):
        Config.preset("huge")


INTEGERS = [f.name for f in fields(Config) if f.type == "Size"]
REALS = [
    "final_logit_softcapping",
    "rms_norm_eps",
    "sliding_rope_theta",
    "full_rope_theta",
    "initializer_range",
]
BROKEN = [
    *[(name, value) for name in INTEGERS for value in (0, -1, 1.5, True, "8", None)],
    *[(name, value) for name in REALS for value in (0, -1.0, math.nan, math.inf, "1", None, True)],
    *[(name, value) for name in ("pad_token_id", "eos_token_id", "bos_token_id")
      for value in (-1, 97, 1.0, None, True)],
    *[("partial_rotary_factor", value) for value in (0, 1.5, -0.25, math.nan, "half", None)],
    *[("hidden_activation", value) for value in ("gelu", "silu", None)],
    *[("layer_types", value) for value in (4, (FULL,), ("full",) * 4, (FULL, FULL, FULL, SLIDING))],
    ("num_key_value_heads", 3), ("num_global_key_value_heads", 3), ("top_k_experts", 5),
    ("head_dim", 7), ("global_head_dim", 9), ("sliding_window", 1), ("canvas_length", 513),
]  # fmt: skip


@pytest.mark.parametrize(("name", "value"), BROKEN, ids=[f"{n}-{v}" for n, v in BROKEN])
def test_each_field_broken_once_is_named(unchecked, name, value):
    with refused(name, "got ", "takes "):
        Config.preset("tiny", **{name: value})


def test_every_field_has_a_broken_case():
    assert {f.name for f in fields(Config)} == {name for name, _ in BROKEN}


@pytest.mark.parametrize("name", PRESETS)
def test_round_trip_through_config_json(name):
    c = Config.preset(name)
    assert Config.from_hf(json.loads(json.dumps(c.to_hf()))) == c


def test_round_trip_keeps_every_field():
    """Each field set to a value that is not its default, so that one that is not written would come
    back different.
    """
    changed = Config.preset(
        "tiny",
        final_logit_softcapping=20.0,
        rms_norm_eps=1e-5,
        sliding_rope_theta=5e3,
        full_rope_theta=2e6,
        partial_rotary_factor=0.5,
        pad_token_id=3,
        eos_token_id=4,
        bos_token_id=5,
        initializer_range=0.1,
        max_position_embeddings=300,
        canvas_length=16,
        layer_types=(FULL, SLIDING, SLIDING, FULL),
    )
    assert Config.from_hf(json.loads(json.dumps(changed.to_hf()))) == changed


def test_the_spelling_of_the_two_global_sizes_that_transformers_saves():
    """Transformers folds them into per_layer_config; the published file has them by name.

    Both are read.
    """
    data = TINY.to_hf()
    sizes = {
        "head_dim": data["text_config"].pop("global_head_dim"),
        "num_key_value_heads": data["text_config"].pop("num_global_key_value_heads"),
    }
    data["text_config"]["per_layer_config"] = {
        str(i): sizes for i in range(4) if not TINY.is_sliding(i)
    }
    assert Config.from_hf(data) == TINY


def test_several_end_tokens_give_the_first():
    data = TINY.to_hf()
    data["text_config"]["eos_token_id"] = [7, 9]
    assert Config.from_hf(data).eos_token_id == 7


def _changed(path: str, value) -> dict:
    data = TINY.to_hf()
    *outer, last = path.split(".")
    place = data
    for key in outer:
        place = place[key]
    place[last] = value
    return data


FOREIGN = {
    "a list": ([], "dict"),
    "another model": (_changed("model_type", "gemma4"), "gemma4"),
    "no text_config": (_changed("text_config", None), "text_config"),
    "a size is missing": (_changed("text_config.head_dim", None), "head_dim"),
    "another rope on full layers": (
        _changed(f"text_config.rope_parameters.{FULL}.rope_type", "yarn"),
        "yarn",
    ),
    "another rope on sliding layers": (
        _changed(f"text_config.rope_parameters.{SLIDING}.rope_type", "linear"),
        "linear",
    ),
    "bidirectional everywhere": (
        _changed("text_config.use_bidirectional_attention", "all"),
        "use_bidirectional_attention",
    ),
    "attention bias": (_changed("text_config.attention_bias", True), "attention_bias"),
    "a theta that is no number": (
        _changed(f"text_config.rope_parameters.{FULL}.rope_theta", "big"),
        "big",
    ),
    "an empty list of end tokens": (_changed("text_config.eos_token_id", []), "eos_token_id"),
}


@pytest.mark.parametrize("case", FOREIGN)
def test_a_config_json_of_something_else_is_refused(unchecked, case):
    data, part = FOREIGN[case]
    with pytest.raises(ValueError, match=part):
        Config.from_hf(data)


# the published config.json, as far as it describes the text model
# (google/diffusiongemma-26B-A4B-it)
PUBLISHED = {
    "model_type": "diffusion_gemma", "canvas_length": 256,
    "text_config": {
        "vocab_size": 262144, "hidden_size": 2816, "intermediate_size": 2112,
        "num_hidden_layers": 30, "num_attention_heads": 16, "num_key_value_heads": 8,
        "head_dim": 256, "global_head_dim": 512, "num_global_key_value_heads": 2,
        "sliding_window": 1024, "num_experts": 128, "top_k_experts": 8,
        "moe_intermediate_size": 704, "max_position_embeddings": 262144,
        "final_logit_softcapping": 30.0, "rms_norm_eps": 1e-06,
        "hidden_activation": "gelu_pytorch_tanh", "attention_bias": False,
        "tie_word_embeddings": True, "use_bidirectional_attention": "vision", "pad_token_id": 0,
        "eos_token_id": 1, "bos_token_id": 2,
        "layer_types": [FULL if i % 6 == 5 else SLIDING for i in range(30)], "rope_parameters": {
            "full_attention": {"rope_type": "proportional", "partial_rotary_factor": 0.25,
                               "rope_theta": 1000000.0},
            "sliding_attention": {"rope_type": "default", "rope_theta": 10000.0},
        },
    },
}  # fmt: skip


def test_the_published_config_json_is_read():
    assert Config.from_hf(PUBLISHED) == Config.preset("26b_a4b")


@pytest.mark.parametrize("name", list(PRESETS))
def test_another_depth_of_a_preset_gets_its_own_pattern(name):
    config = Config.preset(name, num_hidden_layers=8)
    assert config.num_hidden_layers == len(config.layer_types) == 8 and not config.is_sliding(7)


def test_rotary_settings_that_change_the_maths_are_refused():
    data = Config.preset("tiny").to_hf()
    data["text_config"]["rope_parameters"]["full_attention"]["factor"] = 8.0
    with pytest.raises(ValueError, match="factor"):
        Config.from_hf(data)


def test_a_missing_partial_factor_is_the_references_one():
    data = Config.preset("tiny").to_hf()
    del data["text_config"]["rope_parameters"]["full_attention"]["partial_rotary_factor"]
    assert Config.from_hf(data).partial_rotary_factor == 1.0
