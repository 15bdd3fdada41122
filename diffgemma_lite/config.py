"""Config: every size of the model in one frozen dataclass; tiny and 26B differ only here.

The field names are the published ones (`config.json` of google/diffusiongemma-26B-A4B-it), so
`from_hf` and `to_hf` are a plain reading and writing. Two things differ from a plain transformer's
config: sliding and full layers have their own head width and number of key/value heads, and their
own rotary embedding.

The letters used in every shape of this package:
    B batch   S prefix (what the cache holds)   C canvas   V vocabulary   D width
    H heads   Hd head width   E experts   N denoising steps   W window
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Any

from . import hf_layout
from .checks import SMALLEST, check_fields, integer, is_integer, need, number, one_of
from .hf_layout import FULL, SLIDING, default_layer_types

Size = Annotated[int, integer("an integer above 0, below 2**31", 1, 2**31 - 1)]
Positive = Annotated[float, number("a number above 0", least=SMALLEST, finite=True)]
Share = Annotated[float, number("a share above 0, at most 1", least=SMALLEST, most=1)]
Published = Annotated[str, one_of("gelu_pytorch_tanh")]


@dataclass(frozen=True, kw_only=True)
class Config:
    """Sizes of a DiffusionGemma text model. Source of the names: the published config.json."""

    vocab_size: Size
    hidden_size: Size
    intermediate_size: Size  # dense MLP and self-conditioning MLP
    num_hidden_layers: Size
    num_attention_heads: Size
    num_key_value_heads: Size  # sliding layers
    head_dim: Size  # sliding layers
    num_global_key_value_heads: Size  # full layers
    global_head_dim: Size  # full layers
    sliding_window: Size  # W: a token sees itself and W - 1 before it
    num_experts: Size
    top_k_experts: Size
    moe_intermediate_size: Size
    canvas_length: Size
    max_position_embeddings: Size = 4096
    final_logit_softcapping: Positive = 30.0
    rms_norm_eps: Positive = 1e-6
    hidden_activation: Published = "gelu_pytorch_tanh"
    sliding_rope_theta: Positive = 10_000.0
    full_rope_theta: Positive = 1_000_000.0
    partial_rotary_factor: Share = 0.25  # full layers: the share of the head width that rotates
    pad_token_id: int = 0
    eos_token_id: int = 1
    bos_token_id: int = 2
    initializer_range: Positive = 0.02
    layer_types: tuple[str, ...] = field(default=())  # empty: five sliding, one full, repeated

    def __post_init__(self):
        if not self.layer_types and is_integer(self.num_hidden_layers, 1):
            object.__setattr__(self, "layer_types", default_layer_types(self.num_hidden_layers))
        if isinstance(self.layer_types, list):
            object.__setattr__(self, "layer_types", tuple(self.layer_types))
        check_fields(self)
        _check_together(self)

    @classmethod
    def preset(cls, name: str, **changes: Any) -> Config:
        """A named size of PRESETS, with fields changed: `preset("tiny", sliding_window=16)`."""
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
        sliding = self.is_sliding(layer)
        return self.num_key_value_heads if sliding else self.num_global_key_value_heads

    @classmethod
    def from_hf(cls, data: dict[str, Any]) -> Config:
        """From the parsed config.json of a folder. Unknown settings that change the maths are
        refused.
        """
        try:
            return cls(**hf_layout.read(data))
        # a list where an object belongs, text where a number does
        except (AttributeError, KeyError, TypeError) as error:
            raise ValueError(
                f"data: is not a config.json of this model ({error}), takes the published layout"
            ) from error

    def to_hf(self) -> dict[str, Any]:
        """The config.json that Transformers' DiffusionGemmaConfig reads."""
        return hf_layout.written(self)


def _check_together(c: Config) -> None:
    """What one size may be, given the others."""
    for name in ("pad_token_id", "eos_token_id", "bos_token_id"):
        known = is_integer(getattr(c, name), 0, c.vocab_size - 1)
        need(c, name, known, f"a token id from 0 to vocab_size - 1 = {c.vocab_size - 1}")
    listed = isinstance(c.layer_types, tuple) and len(c.layer_types) == c.num_hidden_layers
    need(c, "layer_types", listed, f"{c.num_hidden_layers} entries, one a layer")
    known = all(kind in (SLIDING, FULL) for kind in c.layer_types)
    need(c, "layer_types", known, f"only {SLIDING!r} and {FULL!r}")
    last = f"{FULL!r} as the last entry (the reference forces it)"
    need(c, "layer_types", c.layer_types[-1] == FULL, last)
    few = c.top_k_experts <= c.num_experts
    need(c, "top_k_experts", few, f"at most num_experts = {c.num_experts}")
    heads = c.num_attention_heads
    for name in ("num_key_value_heads", "num_global_key_value_heads"):
        divides = heads % getattr(c, name) == 0
        need(c, name, divides, f"a divisor of num_attention_heads = {heads}")
    for name in ("head_dim", "global_head_dim"):
        even = getattr(c, name) % 2 == 0
        need(c, name, even, "an even number (rotary lanes come in pairs)")
    need(c, "sliding_window", c.sliding_window >= 2, "at least 2")
    fits = c.canvas_length <= c.max_position_embeddings
    need(c, "canvas_length", fits, "at most max_position_embeddings")


PRESETS: dict[str, dict[str, Any]] = {
    # every mechanism, small enough for a unit test: two windows, two rotary settings, routed
    # experts
    "tiny": dict(
        vocab_size=97, hidden_size=32, intermediate_size=48, num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=2, head_dim=8, num_global_key_value_heads=1, global_head_dim=16,
        sliding_window=8,
        num_experts=4, top_k_experts=2, moe_intermediate_size=16, canvas_length=8,
        max_position_embeddings=512,
        layer_types=(SLIDING, FULL, SLIDING, FULL),
    ),
    # what the shipped Python model is: 2.6M parameters, trained on two cores
    "python_small": dict(
        vocab_size=2048, hidden_size=128, intermediate_size=256, num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=2, head_dim=32, num_global_key_value_heads=1, global_head_dim=64,
        sliding_window=64,
        num_experts=16, top_k_experts=2, moe_intermediate_size=64, canvas_length=64,
        max_position_embeddings=1024,
    ),
    # google/diffusiongemma-26B-A4B-it, text part: 25,250,986,752 parameters
    "26b_a4b": dict(
        vocab_size=262_144, hidden_size=2816, intermediate_size=2112, num_hidden_layers=30,
        num_attention_heads=16,
        num_key_value_heads=8, head_dim=256, num_global_key_value_heads=2, global_head_dim=512,
        sliding_window=1024,
        num_experts=128, top_k_experts=8, moe_intermediate_size=704, canvas_length=256,
        max_position_embeddings=262_144,
    ),
}  # fmt: skip
