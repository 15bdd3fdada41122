"""Attention: grouped queries, the cache, and every mask of the model. No other file builds a mask.

Against a plain transformer: queries and keys are normed and the scores are *not* divided by
sqrt(Hd); values are normed too, without a weight; full layers have no value projection (the values
are the unrotated, un-normed keys); and the same weights look two ways. The encoder is causal, with
a window of W on sliding layers. The decoder's canvas sees all of itself and, on sliding layers, the
last W - 1 tokens of the prefix: a rectangle, the same for every canvas row, not a diagonal band.
Walked through in notebooks 03 and 05.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from einops import rearrange, repeat
from jaxtyping import Bool, Float
from torch import Tensor, nn

from .config import FULL, SLIDING, Config
from .layers import RMSNorm, rotate


@dataclass(frozen=True)
class KVCache:
    """Keys and values of the prefix, per layer [B, heads, S, Hd], and which of its positions are
    padding.

    Never changed in place: `model.encode` returns a new one. It is dense (sliding layers keep all
    of S, and reading takes the last W - 1), so that training can read it up to a different length
    in each row.
    """

    keys: tuple[Tensor, ...]
    values: tuple[Tensor, ...]
    mask: Tensor | None = None  # bool [B, S], True = token, False = padding; None = no padding
    # int [B]: rows read only this much of the prefix (training); None = all
    read_upto: Tensor | None = None

    @property
    def length(self) -> int:
        return self.keys[0].shape[2]

    @property
    def batch(self) -> int:
        return self.keys[0].shape[0]

    def upto(self, lengths: Tensor) -> KVCache:
        """The same cache, of which row b shows its first lengths[b] positions and its canvas sits
        right after them.
        """
        if tuple(lengths.shape) != (self.batch,) or lengths.dtype not in (torch.int32, torch.int64):
            raise ValueError(
                f"lengths: got {lengths.dtype} {tuple(lengths.shape)}, "
                f"takes integers ({self.batch},), one per row"
            )
        if lengths.device.type == "cpu" and not bool(
            ((lengths >= 0) & (lengths <= self.length)).all()
        ):
            raise ValueError(
                f"lengths: got {lengths.tolist()}, takes 0 to {self.length}, what the cache holds"
            )
        return replace(self, read_upto=lengths)


class Attention(nn.Module):
    """Grouped-query attention of one layer.

    X [B, S, D] after the input norm, with the prefix's keys and values or None.
    """

    def __init__(self, config: Config, layer: int, *, device=None, dtype=None):
        super().__init__()
        like = dict(bias=False, device=device, dtype=dtype)
        self.width = config.head_width(layer)
        heads, kv_heads = config.num_attention_heads, config.kv_heads(layer)
        self.group = heads // kv_heads
        self.q_proj = nn.Linear(config.hidden_size, heads * self.width, **like)
        self.k_proj = nn.Linear(config.hidden_size, kv_heads * self.width, **like)
        self.v_proj = (
            nn.Linear(config.hidden_size, kv_heads * self.width, **like)
            if config.is_sliding(layer)
            else None
        )
        self.o_proj = nn.Linear(heads * self.width, config.hidden_size, **like)
        self.q_norm = RMSNorm(self.width, config.rms_norm_eps, device=device, dtype=dtype)
        self.k_norm = RMSNorm(self.width, config.rms_norm_eps, device=device, dtype=dtype)
        self.v_norm = RMSNorm(self.width, config.rms_norm_eps, with_scale=False)

    def project(
        self, x: Float[Tensor, "b s d"], rope: tuple[Tensor, Tensor]
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Queries, keys, values, each [B, heads, S, Hd].

        Queries and keys normed and rotated, values only normed.
        """
        split = "b s (h w) -> b s h w"
        q = rearrange(self.q_proj(x), split, w=self.width)
        k = rearrange(self.k_proj(x), split, w=self.width)
        v = k if self.v_proj is None else rearrange(self.v_proj(x), split, w=self.width)
        q, k, v = rotate(self.q_norm(q), *rope), rotate(self.k_norm(k), *rope), self.v_norm(v)
        return tuple(rearrange(t, "b s h w -> b h s w") for t in (q, k, v))

    def forward(
        self,
        x: Float[Tensor, "b s d"],
        rope: tuple[Tensor, Tensor],
        prefix: tuple[Tensor, Tensor] | None,
        mask: Mask,
    ) -> tuple[Float[Tensor, "b s d"], Tensor, Tensor]:
        """Returns the output and this pass's own keys and values, which the encoder keeps and the
        decoder drops.
        """
        q, k, v = self.project(x, rope)
        keys, values = (
            (k, v)
            if prefix is None
            else (torch.cat([prefix[0], k], 2), torch.cat([prefix[1], v], 2))
        )
        if self.group > 1:  # each key/value head serves a group of query heads
            share = "b h s w -> b (h g) s w"
            keys, values = (repeat(t, share, g=self.group) for t in (keys, values))
        out = F.scaled_dot_product_attention(
            q, keys, values, mask.allowed, is_causal=mask.causal, scale=1.0
        )
        return self.o_proj(rearrange(out, "b h s w -> b s (h w)")), k, v


@dataclass(frozen=True)
class Mask:
    """What a pass may see on one kind of layer: `allowed` bool [B or 1, 1, queries, keys], or None
    for all (or all before).
    """

    allowed: Tensor | None = None
    causal: bool = False
    first: int = 0  # the prefix is read from this position on (sliding layers read only its end)


def encoder_masks(
    config: Config, cache: KVCache | None, new: int, mask: Bool[Tensor, "b s"] | None, device
) -> dict[str, Mask]:
    """Causal masks for `new` tokens after what the cache holds.

    On sliding layers also 0 <= query - key < W.

    `mask` covers cache and new tokens together, [B, S + new]; None when nothing is padding.
    """
    old = 0 if cache is None else cache.length
    masks = {}
    for kind in (FULL, SLIDING):
        first = max(0, old - (config.sliding_window - 1)) if kind == SLIDING else 0
        total = old + new
        if (
            mask is None
            and (kind == FULL or total - first < config.sliding_window)
            and (old == 0 or new == 1)
        ):
            masks[kind] = Mask(None, causal=old == 0 and new > 1, first=first)
            continue
        query = torch.arange(old, total, device=device)[:, None]
        key = torch.arange(first, total, device=device)[None, :]
        allowed = key <= query
        if kind == SLIDING:
            allowed &= query - key < config.sliding_window
        allowed = allowed[None, None]
        if mask is not None:
            allowed = allowed & mask[:, None, None, first:]
        masks[kind] = Mask(allowed, first=first)
    return masks


def decoder_masks(config: Config, cache: KVCache, canvas: int) -> dict[str, Mask]:
    """The canvas sees itself and the prefix.

    On sliding layers only the last W - 1 tokens of the prefix.

    Without padding or per-row lengths no mask is needed: the prefix is simply read from `first` on.
    """
    masks, window, length = {}, config.sliding_window - 1, cache.length
    for kind in (FULL, SLIDING):
        if cache.read_upto is None:
            first = max(0, length - window) if kind == SLIDING else 0
            visible = None if cache.mask is None else cache.mask[:, first:]
        else:
            first = 0
            key, end = (
                torch.arange(length, device=cache.read_upto.device)[None, :],
                cache.read_upto[:, None],
            )
            visible = (key < end) & (key >= end - window if kind == SLIDING else True)
            visible = visible if cache.mask is None else visible & cache.mask
        if visible is None:
            masks[kind] = Mask(None, first=first)
        else:
            allowed = F.pad(visible, (0, canvas), value=True)
            masks[kind] = Mask(repeat(allowed, "b k -> b 1 q k", q=canvas), first=first)
    return masks


@torch.no_grad()
def flatten_scores(model: nn.Module) -> nn.Module:
    """Before training: let a fresh model look around. Returns the model.

    Normed queries and keys of width Hd have length sqrt(Hd), and nothing divides their product by
    sqrt(Hd): scores of a fresh model spread like sqrt(Hd), so its softmax picks one key almost
    alone, at random, and little of the gradient reaches the others. Norm weights of Hd^-0.25 give
    scores that spread like 1, as in a transformer that divides; training moves them from there.
    """
    for block in model.layers:
        for norm in (block.self_attn.q_norm, block.self_attn.k_norm):
            norm.weight.fill_(norm.weight.numel() ** -0.25)
    return model
