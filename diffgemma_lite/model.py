"""The model: one stack of blocks, used as a causal encoder that fills the cache and as a
bidirectional decoder of a canvas.

Against a plain transformer: there is one set of weights and two ways to run it. `encode` reads
clean tokens causally and returns a longer cache. `decode` reads a noisy canvas, lets every position
see every other and the cached prefix, and predicts all C tokens at once; it never writes the cache.
The two differ in weights only by one number per layer (`layer_scalar`). The decoder also gets its
own previous prediction as a second input (self-conditioning), and nobody tells it the noise level:
it has to see that for itself. Walked through in notebook 05.
"""

from __future__ import annotations

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from .attention import Attention, KVCache, Mask, decoder_masks, encoder_masks
from .checkpoint import load, save
from .checks import check_class, check_device, check_float_dtype
from .config import FULL, SLIDING, Config
from .inputs import check_canvas, check_prompt, check_self_conditioning
from .layers import GatedMLP, RMSNorm, ScaledEmbedding, rotary_frequencies, rotary_tables, soft_cap
from .moe import Experts, Router


class Block(nn.Module):
    """Attention, then a dense MLP and routed experts side by side.

    Every branch is normed before and after.
    """

    def __init__(self, config: Config, layer: int, *, device=None, dtype=None):
        super().__init__()
        like = dict(device=device, dtype=dtype)

        def norm():
            return RMSNorm(config.hidden_size, config.rms_norm_eps, **like)

        self.self_attn = Attention(config, layer, **like)
        self.mlp = GatedMLP(config.hidden_size, config.intermediate_size, **like)
        self.router = Router(config, **like)
        self.experts = Experts(config, **like)
        self.input_layernorm, self.post_attention_layernorm = norm(), norm()
        # around the dense MLP
        self.pre_feedforward_layernorm, self.post_feedforward_layernorm_1 = norm(), norm()
        # around the experts
        self.pre_feedforward_layernorm_2, self.post_feedforward_layernorm_2 = norm(), norm()
        self.post_feedforward_layernorm = norm()  # after their sum
        self.register_buffer("layer_scalar", torch.ones(1, **like))  # decoder side
        self.register_buffer("encoder_layer_scalar", torch.ones(1, **like))

    def forward(
        self,
        x: Float[Tensor, "b s d"],
        rope: tuple[Tensor, Tensor],
        prefix: tuple[Tensor, Tensor] | None,
        mask: Mask,
        scalar: Float[Tensor, "1"],
    ) -> tuple[Float[Tensor, "b s d"], Tensor, Tensor]:
        attended, k, v = self.self_attn(self.input_layernorm(x), rope, prefix, mask)
        h = x + self.post_attention_layernorm(attended)
        dense = self.post_feedforward_layernorm_1(self.mlp(self.pre_feedforward_layernorm(h)))
        tokens = h.flatten(0, 1)
        # the router reads the raw residual, the experts a normed one
        weights, index, _ = self.router(tokens)
        routed = self.experts(self.pre_feedforward_layernorm_2(tokens), weights, index).view_as(h)
        h = h + self.post_feedforward_layernorm(dense + self.post_feedforward_layernorm_2(routed))
        return h * scalar, k, v


class SelfConditioning(GatedMLP):
    """Adds what the model believed one step ago to the canvas embedding.

    No belief is an exact zero *signal*.

    (Zero logits would be the uniform distribution, whose embedding is the mean of all rows, not
    zero.)
    """

    def __init__(self, config: Config, *, device=None, dtype=None):
        super().__init__(config.hidden_size, config.intermediate_size, device=device, dtype=dtype)
        self.pre_norm = RMSNorm(config.hidden_size, config.rms_norm_eps, device=device, dtype=dtype)
        self.post_norm = RMSNorm(config.hidden_size, config.rms_norm_eps, with_scale=False)

    def forward(
        self, x: Float[Tensor, "b c d"], signal: Float[Tensor, "b c d"]
    ) -> Float[Tensor, "b c d"]:
        return self.post_norm(x + super().forward(self.pre_norm(signal)))


class DiffusionGemma(nn.Module):
    """DiffusionGemma's text model.

    `DiffusionGemma(Config.preset("tiny"))`, or `DiffusionGemma.from_pretrained(folder)`.
    """

    def __init__(self, config: Config, *, device=None, dtype=None):
        super().__init__()
        check_class("config", config, Config, ", such as Config.preset('tiny')")
        if device is not None:
            check_device("device", device)
        if dtype is not None:
            check_float_dtype("dtype", dtype)
        like = dict(device=device, dtype=dtype)
        self.config = config
        self.generation_defaults: dict = {}  # what the checkpoint's generation_config.json says
        self.checkpoint_report: dict = {}  # what from_pretrained read and skipped
        self.gradient_checkpointing = False
        self.embed_tokens = ScaledEmbedding(
            config.vocab_size, config.hidden_size, config.pad_token_id, **like
        )
        self.layers = nn.ModuleList(
            [Block(config, i, **like) for i in range(config.num_hidden_layers)]
        )
        self.norm = RMSNorm(config.hidden_size, config.rms_norm_eps, **like)
        self.self_conditioning = SelfConditioning(config, **like)
        if torch.device(device or "cpu").type != "meta":
            self.init_weights()

    def forward(self, *_, **__):
        """There is no one forward pass: it would hide which side reads what.

        Errors: TypeError, always.
        """
        raise TypeError(
            "model: is not called itself, "
            "takes model.encode(ids), model.decode(canvas, cache) or generate(model, ids)"
        )

    def init_weights(self, generator: torch.Generator | None = None) -> None:
        """Normal weights of std `initializer_range`.

        Norms, scales and scalars are 1 (the published initialisation).
        """
        for p in (*self.parameters(), *self.buffers()):
            if p.dim() > 1:
                nn.init.normal_(p, 0.0, self.config.initializer_range, generator=generator)
            else:
                nn.init.ones_(p)

    def set_kernels(
        self, *, experts: str | None = None, fused_norm: bool | None = None
    ) -> DiffusionGemma:
        """Choose code paths: experts "loop" (the reference's order of sums, equal to the last bit)
        or "grouped" (fast, the default, equal up to rounding); fused_norm True or False (default).
        None leaves a choice as it is.
        """
        if experts not in (None, "loop", "grouped"):
            raise ValueError(f"experts: got {experts!r}, takes 'loop' or 'grouped'")
        if fused_norm not in (None, True, False):
            raise ValueError(f"fused_norm: got {fused_norm!r}, takes True or False")
        for module in self.modules():
            if isinstance(module, Experts) and experts is not None:
                module.path = experts
            if isinstance(module, RMSNorm) and fused_norm is not None:
                module.fused = fused_norm
        return self

    @property
    def device(self) -> torch.device:
        return self.embed_tokens.weight.device

    @property
    def dtype(self) -> torch.dtype:
        return self.embed_tokens.weight.dtype

    # ---- the two ways to run the stack -----------------------------------------------------------

    def _rope(self, positions: Int[Tensor, "rows s"]) -> dict[str, tuple[Tensor, Tensor]]:
        """Rotary tables of both kinds of layer."""
        c, dev = self.config, positions.device
        kinds = {
            SLIDING: (c.head_dim, c.sliding_rope_theta, 1.0),
            FULL: (c.global_head_dim, c.full_rope_theta, c.partial_rotary_factor),
        }
        dtype = (
            torch.get_autocast_dtype(dev.type)
            if torch.is_autocast_enabled(dev.type)
            else self.dtype
        )
        return {
            kind: rotary_tables(positions, rotary_frequencies(*size, device=dev), dtype)
            for kind, size in kinds.items()
        }

    def _run(
        self,
        x: Float[Tensor, "b s d"],
        positions: Tensor,
        masks: dict[str, Mask],
        cache: KVCache | None,
        side: str,
    ) -> tuple[Float[Tensor, "b s d"], list[tuple[Tensor, Tensor]]]:
        """All blocks, then the last norm.

        Returns the hidden states and each layer's own keys and values.
        """
        rope, own = self._rope(positions), []
        for i, (block, kind) in enumerate(zip(self.layers, self.config.layer_types, strict=True)):
            mask = masks[kind]
            prefix = (
                None
                if cache is None
                else (cache.keys[i][:, :, mask.first :], cache.values[i][:, :, mask.first :])
            )
            scalar = block.encoder_layer_scalar if side == "encoder" else block.layer_scalar
            if self.gradient_checkpointing and torch.is_grad_enabled():
                x, k, v = checkpoint(
                    block, x, rope[kind], prefix, mask, scalar, use_reentrant=False
                )
            else:
                x, k, v = block(x, rope[kind], prefix, mask, scalar)
            own.append((k, v))
        return self.norm(x), own

    def logits(self, hidden: Float[Tensor, "b s d"]) -> Float[Tensor, "b s v"]:
        """Tied head and soft-cap; float32."""
        return soft_cap(
            nn.functional.linear(hidden, self.embed_tokens.weight),
            self.config.final_logit_softcapping,
        )

    def encode_hidden(
        self, ids: Tensor, attention_mask: Tensor | None = None, cache: KVCache | None = None
    ) -> tuple[Tensor, KVCache]:
        mask = check_prompt(self, ids, attention_mask, cache)
        old = 0 if cache is None else cache.length
        positions = torch.arange(old, old + ids.shape[1], device=ids.device)[None]
        masks = encoder_masks(self.config, cache, ids.shape[1], mask, ids.device)
        hidden, own = self._run(self.embed_tokens(ids), positions, masks, cache, "encoder")
        if cache is not None:
            past = zip(cache.keys, cache.values, own, strict=True)
            own = [(torch.cat([pk, k], 2), torch.cat([pv, v], 2)) for pk, pv, (k, v) in past]
        return hidden, KVCache(tuple(k for k, _ in own), tuple(v for _, v in own), mask)

    def encode(
        self,
        ids: Int[Tensor, "b s"],
        attention_mask: Tensor | None = None,
        cache: KVCache | None = None,
    ) -> KVCache:
        """Causal pass over clean tokens.

        Returns a new cache holding the old prefix and the new one.

        ids [B, S_new]; attention_mask [B, S_new], 1 = token, 0 = padding, left padding only. The
        given cache is unchanged. Errors: ValueError for ids outside the vocabulary, an empty
        prompt, right padding, or too many positions.
        """
        return self.encode_hidden(ids, attention_mask, cache)[1]

    def next_token_logits(
        self,
        ids: Int[Tensor, "b s"],
        attention_mask: Tensor | None = None,
        cache: KVCache | None = None,
    ) -> tuple[Float[Tensor, "b s v"], KVCache]:
        """Dual mode: the encoder side as an ordinary language model.

        [B, S_new, V] float32 and the grown cache.
        """
        hidden, cache = self.encode_hidden(ids, attention_mask, cache)
        return self.logits(hidden), cache

    def decode(
        self,
        canvas: Int[Tensor, "b c"],
        cache: KVCache,
        self_conditioning: Float[Tensor, "b c v"] | None = None,
        self_conditioning_mask: Bool[Tensor, "b"] | None = None,
    ) -> Float[Tensor, "b c v"]:
        """One denoising pass: canvas [B, C] -> logits [B, C, V] float32.

        Reads the cache, never writes it.

        self_conditioning: the temperature-scaled logits of the previous step, or None at the first
        one; self_conditioning_mask: rows set to False get a zero signal, as if they had none.
        """
        return self.logits(
            self.decode_hidden(canvas, cache, self_conditioning, self_conditioning_mask)
        )

    def decode_hidden(
        self,
        canvas: Tensor,
        cache: KVCache,
        self_conditioning: Tensor | None = None,
        self_conditioning_mask: Tensor | None = None,
    ) -> Float[Tensor, "b c d"]:
        """`decode` before the head: the last hidden states of the canvas."""
        check_canvas(self, canvas, cache)
        check_self_conditioning(self, canvas, self_conditioning, self_conditioning_mask)
        x = self.embed_tokens(canvas)
        if self_conditioning is None:
            signal = torch.zeros_like(x)
        else:
            believed = self_conditioning.softmax(dim=-1, dtype=torch.float32)
            signal = self.embed_tokens.soft(believed)
            if self_conditioning_mask is not None:
                signal = signal * self_conditioning_mask.to(signal.dtype)[:, None, None]
        x = self.self_conditioning(x, signal)
        start = (
            torch.tensor([cache.length], device=canvas.device)
            if cache.read_upto is None
            else cache.read_upto
        )
        positions = start[:, None] + torch.arange(canvas.shape[1], device=canvas.device)
        return self._run(
            x, positions, decoder_masks(self.config, cache, canvas.shape[1]), cache, "decoder"
        )[0]

    # ---- Hugging Face folders --------------------------------------------------------------------

    @classmethod
    def from_pretrained(
        cls, folder, *, device="cpu", dtype: torch.dtype | None = None
    ) -> DiffusionGemma:
        """Read a folder written by Transformers or by `save_pretrained`. See checkpoint.py."""
        return load(cls, folder, device=device, dtype=dtype)

    def save_pretrained(self, folder) -> None:
        """Write a folder that Transformers' `from_pretrained` reads. See checkpoint.py."""
        save(self, folder)
