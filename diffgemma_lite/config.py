"""Config: every size of the model in one frozen dataclass. The tiny test model and the 26B one
differ only here.

The field names are the published ones (`config.json` of google/diffusiongemma-26B-A4B-it), so
`from_hf` and `to_hf` are a plain reading and writing. Two things differ from a plain transformer's
config: sliding and full layers have their own head width and number of key/value heads, and their
own rotary embedding.

The letters used in every shape of this package:
    B batch   S prefix (what the cache holds)   C canvas   V vocabulary   D width   H heads   Hd head width   E experts
    N denoising steps   W window
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import Any

SLIDING, FULL = "sliding_attention", "full_attention"


def _default_layer_types(n: int) -> tuple[str, ...]:
    """Five sliding layers, then a full one; the last layer is always full."""
    return tuple(FULL if (i + 1) % 6 == 0 or i == n - 1 else SLIDING for i in range(n))


@dataclass(frozen=True, kw_only=True)
class Config:
    """Sizes of a DiffusionGemma text model. Source of the names: the published config.json (facts
    of the model card).
    """

    vocab_size: int
    hidden_size: int
    intermediate_size: int  # dense MLP and self-conditioning MLP
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int  # sliding layers
    head_dim: int  # sliding layers
    num_global_key_value_heads: int  # full layers
    global_head_dim: int  # full layers
    sliding_window: int  # W: a token sees itself and W - 1 before it
    num_experts: int
    top_k_experts: int
    moe_intermediate_size: int
    canvas_length: int
    max_position_embeddings: int = 4096
    final_logit_softcapping: float = 30.0
    rms_norm_eps: float = 1e-6
    hidden_activation: str = "gelu_pytorch_tanh"
    sliding_rope_theta: float = 10_000.0
    full_rope_theta: float = 1_000_000.0
    partial_rotary_factor: float = 0.25  # full layers: the share of the head width that rotates
    pad_token_id: int = 0
    eos_token_id: int = 1
    bos_token_id: int = 2
    initializer_range: float = 0.02
    layer_types: tuple[str, ...] = field(default=())  # empty: five sliding, one full, repeated

    def __post_init__(self):
        if (
            not self.layer_types
            and isinstance(self.num_hidden_layers, int)
            and self.num_hidden_layers > 0
        ):
            object.__setattr__(self, "layer_types", _default_layer_types(self.num_hidden_layers))
        if isinstance(self.layer_types, list):
            object.__setattr__(self, "layer_types", tuple(self.layer_types))
        _validate(self)

    @classmethod
    def preset(cls, name: str, **changes: Any) -> Config:
        """A named size (see PRESETS), with any field changed: `Config.preset("tiny",
        sliding_window=16)`.
        """
        if not isinstance(name, str) or name not in PRESETS:
            raise ValueError(f"name: {name!r} is no preset; there are {', '.join(PRESETS)}")
        sizes = dict(PRESETS[name])
        if "num_hidden_layers" in changes:  # another depth has another pattern of layers
            sizes.pop("layer_types", None)
        return cls(**(sizes | changes))

    def is_sliding(self, layer: int) -> bool:
        return self.layer_types[layer] == SLIDING

    def head_width(self, layer: int) -> int:
        return self.head_dim if self.is_sliding(layer) else self.global_head_dim

    def kv_heads(self, layer: int) -> int:
        return (
            self.num_key_value_heads if self.is_sliding(layer) else self.num_global_key_value_heads
        )

    @classmethod
    def from_hf(cls, data: dict[str, Any]) -> Config:
        """From the parsed config.json of a DiffusionGemma folder. Unknown settings that change the
        maths are refused.
        """
        try:
            return _from_hf(cls, data)
        # a list where an object belongs, text where a number does
        except (AttributeError, KeyError, TypeError) as error:
            raise ValueError(
                f"data: is not a config.json of this model ({error}), takes the published layout"
            ) from error

    def to_hf(self) -> dict[str, Any]:
        """The config.json that Transformers' DiffusionGemmaConfig reads."""
        return _to_hf(self)


def _validate(c: Config) -> None:
    def need(ok: bool, name: str, takes: str) -> None:
        if not ok:
            raise ValueError(f"{name}: got {getattr(c, name)!r}, takes {takes}")

    def number(value: Any) -> bool:
        return isinstance(value, (int, float)) and not isinstance(value, bool)

    def integer(value: Any) -> bool:
        return isinstance(value, int) and not isinstance(value, bool) and value < 2**31

    reals = {
        "final_logit_softcapping",
        "rms_norm_eps",
        "sliding_rope_theta",
        "full_rope_theta",
        "initializer_range",
    }
    token_ids = {"pad_token_id", "eos_token_id", "bos_token_id"}
    for f in fields(c):
        value = getattr(c, f.name)
        if f.name in reals:
            need(number(value) and 0 < value < float("inf"), f.name, "a number above 0")
        elif f.name in token_ids:  # vocab_size, the first field, has been checked by now
            need(
                integer(value) and 0 <= value < c.vocab_size,
                f.name,
                f"a token id from 0 to vocab_size - 1 = {c.vocab_size - 1}",
            )
        elif f.name not in {"layer_types", "hidden_activation", "partial_rotary_factor"}:
            need(integer(value) and value > 0, f.name, "an integer above 0, below 2**31")
    share = c.partial_rotary_factor
    need(number(share) and 0 < share <= 1, "partial_rotary_factor", "a share above 0, at most 1")
    need(
        c.hidden_activation == "gelu_pytorch_tanh",
        "hidden_activation",
        "'gelu_pytorch_tanh', the published one",
    )
    listed = isinstance(c.layer_types, tuple) and len(c.layer_types) == c.num_hidden_layers
    need(listed, "layer_types", f"{c.num_hidden_layers} entries, one a layer")
    need(
        all(kind in (SLIDING, FULL) for kind in c.layer_types),
        "layer_types",
        f"only {SLIDING!r} and {FULL!r}",
    )
    need(
        c.layer_types[-1] == FULL,
        "layer_types",
        f"{FULL!r} as the last entry (the reference forces it)",
    )
    need(
        c.top_k_experts <= c.num_experts, "top_k_experts", f"at most num_experts = {c.num_experts}"
    )
    for name in ("num_key_value_heads", "num_global_key_value_heads"):
        divides = c.num_attention_heads % getattr(c, name) == 0
        need(divides, name, f"a divisor of num_attention_heads = {c.num_attention_heads}")
    for name in ("head_dim", "global_head_dim"):
        need(getattr(c, name) % 2 == 0, name, "an even number (rotary lanes come in pairs)")
    need(c.sliding_window >= 2, "sliding_window", "at least 2")
    need(
        c.canvas_length <= c.max_position_embeddings,
        "canvas_length",
        "at most max_position_embeddings",
    )


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


def _from_hf(cls: type[Config], data: dict[str, Any]) -> Config:
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
            "data: use_bidirectional_attention='all' and attention_bias=True are not DiffusionGemma's"
        )
    values = {name: text[name] for name in _SAME_NAME if text.get(name) is not None}
    if isinstance(values.get("eos_token_id"), list):
        values["eos_token_id"] = next(iter(values["eos_token_id"]), None)
    values["layer_types"] = tuple(text.get("layer_types") or ())
    types = values["layer_types"] or _default_layer_types(values["num_hidden_layers"])
    values["global_head_dim"], values["num_global_key_value_heads"] = _full_layer_sizes(text, types)
    rope = text.get("rope_parameters") or {}
    sliding, whole = rope.get(SLIDING) or {}, rope.get(FULL) or {}
    kinds = (sliding.get("rope_type", "default"), whole.get("rope_type", "proportional"))
    if kinds != ("default", "proportional"):
        raise ValueError(
            f"data: rope types are {kinds}, takes 'default' on sliding and 'proportional' on full layers"
        )
    for kind, settings in ((SLIDING, sliding), (FULL, whole)):
        other = sorted(
            set(settings)
            - {"rope_type", "rope_theta"}
            - ({"partial_rotary_factor"} if kind == FULL else set())
        )
        if any(settings[key] is not None for key in other):
            raise ValueError(
                f"data: rope_parameters of {kind} set {', '.join(other)}, which this model does not have"
            )
    values["sliding_rope_theta"] = float(sliding.get("rope_theta", 10_000.0))
    values["full_rope_theta"] = float(whole.get("rope_theta", 1_000_000.0))
    values["partial_rotary_factor"] = float(
        whole.get("partial_rotary_factor", 1.0 if whole else 0.25)
    )
    return cls(canvas_length=data.get("canvas_length") or 256, **values)


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
            f"data: per_layer_config is {text['per_layer_config']}, takes two sizes, equal on every full layer"
        )
    return full[0].get("head_dim", width), full[0].get("num_key_value_heads", heads)


def _to_hf(c: Config) -> dict[str, Any]:
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


PRESETS: dict[str, dict[str, Any]] = {
    # every mechanism, small enough for a unit test: two windows, two rotary settings, routed
    # experts
    "tiny": dict(
        vocab_size=97, hidden_size=32, intermediate_size=48, num_hidden_layers=4, num_attention_heads=4,
        num_key_value_heads=2, head_dim=8, num_global_key_value_heads=1, global_head_dim=16, sliding_window=8,
        num_experts=4, top_k_experts=2, moe_intermediate_size=16, canvas_length=8, max_position_embeddings=512,
        layer_types=(SLIDING, FULL, SLIDING, FULL),
    ),
    # what the shipped Python model is: 2.6M parameters, trained on two cores
    "python_small": dict(
        vocab_size=2048, hidden_size=128, intermediate_size=256, num_hidden_layers=4, num_attention_heads=4,
        num_key_value_heads=2, head_dim=32, num_global_key_value_heads=1, global_head_dim=64, sliding_window=64,
        num_experts=16, top_k_experts=2, moe_intermediate_size=64, canvas_length=64, max_position_embeddings=1024,
    ),
    # google/diffusiongemma-26B-A4B-it, text part: 25,250,986,752 parameters
    "26b_a4b": dict(
        vocab_size=262_144, hidden_size=2816, intermediate_size=2112, num_hidden_layers=30, num_attention_heads=16,
        num_key_value_heads=8, head_dim=256, num_global_key_value_heads=2, global_head_dim=512, sliding_window=1024,
        num_experts=128, top_k_experts=8, moe_intermediate_size=704, canvas_length=256,
        max_position_embeddings=262_144,
    ),
}  # fmt: skip
