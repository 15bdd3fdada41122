"""What a published config.json says, and how ours is written: Config as Hugging Face keeps it.

Transformers renames and folds some settings when it saves a folder; both forms are read. What would
change the maths and is not this model's is refused.
"""

from __future__ import annotations

from typing import Any

SLIDING, FULL = "sliding_attention", "full_attention"


def default_layer_types(n: int) -> tuple[str, ...]:
    """Five sliding layers, then a full one; the last layer is always full."""
    return tuple(FULL if (i + 1) % 6 == 0 or i == n - 1 else SLIDING for i in range(n))


_SAME_NAME = (
    "vocab_size",
    "hidden_size",
    "intermediate_size",
    "num_hidden_layers",
    "num_attention_heads",
    "num_key_value_heads",
    "head_dim",
    "sliding_window",
    "num_experts",
    "top_k_experts",
    "moe_intermediate_size",
    "max_position_embeddings",
    "final_logit_softcapping",
    "rms_norm_eps",
    "hidden_activation",
    "pad_token_id",
    "eos_token_id",
    "bos_token_id",
    "initializer_range",
)


def read(data: dict[str, Any]) -> dict[str, Any]:
    """The fields of a Config, from the parsed config.json. Errors: ValueError for another model."""
    if not isinstance(data, dict):
        raise ValueError(f"data: got {type(data).__name__}, takes the parsed config.json, a dict")
    text = data.get("text_config")
    if data.get("model_type") != "diffusion_gemma" or not isinstance(text, dict):
        got = data.get("model_type")
        raise ValueError(
            f"data: model_type is {got!r}, takes a 'diffusion_gemma' config with a text_config"
        )
    optional = {
        "final_logit_softcapping",
        "initializer_range",
        "pad_token_id",
        "eos_token_id",
        "bos_token_id",
    }
    missing = [name for name in _SAME_NAME if text.get(name) is None and name not in optional]
    if missing:
        raise ValueError(f"data: text_config lacks {', '.join(missing)}")
    if text.get("use_bidirectional_attention") not in (None, "vision") or text.get(
        "attention_bias"
    ):
        raise ValueError(
            "data: use_bidirectional_attention='all' and attention_bias=True are not "
            "DiffusionGemma's"
        )
    values = {name: text[name] for name in _SAME_NAME if text.get(name) is not None}
    if isinstance(values.get("eos_token_id"), list):
        values["eos_token_id"] = next(iter(values["eos_token_id"]), None)
    values["layer_types"] = tuple(text.get("layer_types") or ())
    types = values["layer_types"] or default_layer_types(values["num_hidden_layers"])
    values["global_head_dim"], values["num_global_key_value_heads"] = _full_layer_sizes(text, types)
    rope = text.get("rope_parameters") or {}
    sliding, whole = rope.get(SLIDING) or {}, rope.get(FULL) or {}
    kinds = (sliding.get("rope_type", "default"), whole.get("rope_type", "proportional"))
    if kinds != ("default", "proportional"):
        raise ValueError(
            f"data: rope types are {kinds}, "
            "takes 'default' on sliding and 'proportional' on full layers"
        )
    for kind, settings in ((SLIDING, sliding), (FULL, whole)):
        other = sorted(
            set(settings)
            - {"rope_type", "rope_theta"}
            - ({"partial_rotary_factor"} if kind == FULL else set())
        )
        if any(settings[key] is not None for key in other):
            raise ValueError(
                f"data: rope_parameters of {kind} set {', '.join(other)}, which this model does "
                "not have"
            )
    values["sliding_rope_theta"] = float(sliding.get("rope_theta", 10_000.0))
    values["full_rope_theta"] = float(whole.get("rope_theta", 1_000_000.0))
    values["partial_rotary_factor"] = float(
        whole.get("partial_rotary_factor", 1.0 if whole else 0.25)
    )
    return values | {"canvas_length": data.get("canvas_length") or 256}


def _full_layer_sizes(text: dict[str, Any], types: tuple[str, ...]) -> tuple[int, int]:
    """Head width and key/value heads of the full layers.

    The published file names them. Transformers folds them into per_layer_config when it saves,
    keyed by layer number ("05" where there are ten layers or more) and holding only what differs
    from the sliding layers.
    """
    width, heads = text["head_dim"], text["num_key_value_heads"]
    if "per_layer_config" not in text:
        return text.get("global_head_dim") or 512, text.get("num_global_key_value_heads") or heads
    if not all(str(i).isdigit() for i in text["per_layer_config"].keys()):
        raise ValueError(
            f"data: per_layer_config has keys {list(text['per_layer_config'])}, takes layer numbers"
        )
    rest = {int(i): own for i, own in text["per_layer_config"].items()}
    full = [rest.pop(i, {}) for i, kind in enumerate(types) if kind == FULL] or [{}]
    if (
        rest
        or any(own != full[0] for own in full)
        or full[0].keys() - {"head_dim", "num_key_value_heads"}
    ):
        raise ValueError(
            f"data: per_layer_config is {text['per_layer_config']}, "
            "takes two sizes, equal on every full layer"
        )
    return full[0].get("head_dim", width), full[0].get("num_key_value_heads", heads)


def written(c) -> dict[str, Any]:
    """The config.json of a Config, as Transformers reads it."""
    text = {name: getattr(c, name) for name in _SAME_NAME} | {
        "model_type": "diffusion_gemma_text",
        "layer_types": list(c.layer_types),
        "global_head_dim": c.global_head_dim,
        "num_global_key_value_heads": c.num_global_key_value_heads,
        "rope_parameters": {
            SLIDING: {"rope_type": "default", "rope_theta": c.sliding_rope_theta},
            FULL: {
                "rope_type": "proportional",
                "rope_theta": c.full_rope_theta,
                "partial_rotary_factor": c.partial_rotary_factor,
            },
        },
        "attention_bias": False,
        "attention_dropout": 0.0,
        "tie_word_embeddings": True,
        "use_bidirectional_attention": "vision",
    }
    # the smallest vision tower Transformers accepts: without one it would build its 167M-parameter
    # default
    vision = {
        "model_type": "gemma4_vision",
        "hidden_size": 32,
        "intermediate_size": 32,
        "num_hidden_layers": 1,
        "num_attention_heads": 1,
        "num_key_value_heads": 1,
        "head_dim": 32,
        "position_embedding_size": 16,
        "patch_size": 2,
        "pooling_kernel_size": 1,
    }
    # no image tokens here: the first id outside the vocabulary, which no text can hold
    none = c.vocab_size
    return {
        "architectures": ["DiffusionGemmaForBlockDiffusion"],
        "model_type": "diffusion_gemma",
        "canvas_length": c.canvas_length,
        "tie_word_embeddings": True,
        "text_config": text,
        "vision_config": vision,
        "image_token_id": none,
        "boi_token_id": none,
        "eoi_token_id": none,
    }
