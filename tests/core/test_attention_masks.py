"""Who may see whom: every mask against a loop over rows, queries and keys, and through the model by
flipping tokens.
"""

import itertools

import pytest
import torch
from tiny import C, V, W, exact, generator, random_ids, tiny

from diffgemma_lite import Config, DiffusionGemma
from diffgemma_lite.attention import (
    Attention,
    KVCache,
    Mask,
    decoder_masks,
    encoder_masks,
    flatten_scores,
)
from diffgemma_lite.config import FULL, SLIDING
from diffgemma_lite.layers import rotary_frequencies, rotary_tables

TINY = Config.preset("tiny")
KINDS = (FULL, SLIDING)


def cache_of(length: int, batch: int = 1, mask=None, read_upto=None) -> KVCache:
    """A cache whose contents do not matter."""
    empty = torch.zeros(batch, 1, length, 2)
    return KVCache((empty,), (empty,), mask, read_upto)


def written_out(mask: Mask, batch: int, queries: int, keys: int) -> list[list[list[bool]]]:
    """Mask -> lists [B][queries][keys] over all keys, those before `first` included."""
    read = keys - mask.first
    if mask.allowed is not None:
        allowed = mask.allowed.expand(batch, 1, queries, read)[:, 0]
    elif mask.causal:
        allowed = torch.ones(queries, read, dtype=torch.bool).tril().expand(batch, queries, read)
    else:
        allowed = torch.ones(batch, queries, read, dtype=torch.bool)
    return torch.cat(
        [torch.zeros(batch, queries, mask.first, dtype=torch.bool), allowed], -1
    ).tolist()


def left_padding(lengths: list[int], total: int) -> torch.Tensor:
    return torch.arange(total)[None] >= total - torch.tensor(lengths)[:, None]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.parametrize("old", [0, 1, 5, 6, 7, 8, 9, 15])
def test_encoder_masks_against_a_loop(kind, padded, old):
    for new in (1, 2, 7, 8, 9, 17):
        total = old + new
        real = left_padding([total, max(1, total - 3)], total) if padded else None
        mask = encoder_masks(
            TINY, cache_of(old, 2) if old else None, new, real, torch.device("cpu")
        )[kind]
        got, shown = written_out(mask, 2, new, total), None if real is None else real.tolist()
        for b, q, k in itertools.product(range(2), range(new), range(total)):
            position = old + q
            expected = (
                k <= position
                and (kind == FULL or position - k < W)
                and (real is None or shown[b][k])
            )
            assert got[b][q][k] == expected, (new, b, q, k)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.parametrize("length", [1, 6, 7, 8, 9, 20])
def test_decoder_masks_against_a_loop(kind, padded, length):
    """Pitfall 1: the last W - 1 prefix tokens, the same for every row, and the whole canvas."""
    real = left_padding([length, max(1, length - 3)], length) if padded else None
    got = written_out(decoder_masks(TINY, cache_of(length, 2, real), C)[kind], 2, C, length + C)
    shown = None if real is None else real.tolist()
    for b, q, k in itertools.product(range(2), range(C), range(length + C)):
        in_window = kind == FULL or k >= length - (W - 1)
        expected = k >= length or (in_window and (real is None or shown[b][k]))
        assert got[b][q][k] == expected, (b, q, k)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("padded", [False, True])
def test_decoder_masks_with_a_length_per_row(kind, padded):
    """Training: row b reads its first upto[b] prefix tokens, on sliding layers the last W - 1 of
    them.
    """
    length, upto = 20, [1, 7, 8, 20]
    real = left_padding([20, 18, 15, 14], length) if padded else None
    got = written_out(
        decoder_masks(TINY, cache_of(length, 4, real, torch.tensor(upto)), C)[kind],
        4,
        C,
        length + C,
    )
    shown = None if real is None else real.tolist()
    for b, q, k in itertools.product(range(4), range(C), range(length + C)):
        seen = (
            k < upto[b]
            and (kind == FULL or k >= upto[b] - (W - 1))
            and (real is None or shown[b][k])
        )
        assert got[b][q][k] == (k >= length or seen), (b, q, k)


def single_sliding_layer():
    """One sliding layer that mixes tokens.

    The full layer after it (there has to be one) adds nothing of its attention.
    """
    model = spread_attention(exact(num_hidden_layers=2, layer_types=(SLIDING, FULL)))
    model.layers[1].self_attn.o_proj.weight.data.zero_()
    return model


def spread_attention(model):
    """Small queries: every visible key gets a like share, so that no flip is lost in rounding."""
    for layer in model.layers:
        layer.self_attn.q_norm.weight.data.mul_(0.1)
    return model


def moved(before: torch.Tensor, after: torch.Tensor) -> list[int]:
    """Rows of the first example that changed by more than rounding (a flip also changes how experts
    batch their rows).
    """
    return ((before - after)[0].abs().amax(-1) > 1e-3).nonzero().flatten().tolist()


@torch.no_grad()
def test_flipping_a_prefix_token_moves_every_canvas_row_or_none():
    """Pitfall 1: a rectangle, not a diagonal band."""
    model, canvas, length = single_sliding_layer(), random_ids(1, C, seed=1), 20
    ids = random_ids(1, length)
    before = model.decode(canvas, model.encode(ids))
    for j in range(length):
        flipped = ids.clone()
        flipped[0, j] = (ids[0, j] + 1) % V
        rows = moved(before, model.decode(canvas, model.encode(flipped)))
        assert rows == (list(range(C)) if j >= length - (W - 1) else []), j


@torch.no_grad()
def test_flipping_a_canvas_token_moves_every_canvas_row():
    model, canvas, cache = single_sliding_layer(), random_ids(1, C, seed=1), None
    cache = model.encode(random_ids(1, 20))
    before = model.decode(canvas, cache)
    for j in range(C):
        flipped = canvas.clone()
        flipped[0, j] = (canvas[0, j] + 1) % V
        assert moved(before, model.decode(flipped, cache)) == list(range(C))


@torch.no_grad()
def test_flipping_a_prompt_token_moves_the_next_w_encoder_rows():
    model, ids = single_sliding_layer(), random_ids(1, 20)
    before, _ = model.next_token_logits(ids)
    for j in range(20):
        flipped = ids.clone()
        flipped[0, j] = (ids[0, j] + 1) % V
        assert moved(before, model.next_token_logits(flipped)[0]) == list(
            range(j, min(20, j + W))
        ), j


@torch.no_grad()
def test_full_layers_see_the_whole_prefix_and_nothing_later():
    model, ids, canvas = (
        exact(num_hidden_layers=1, layer_types=(FULL,)),
        random_ids(1, 20),
        random_ids(1, C, seed=1),
    )
    model = spread_attention(model)
    logits, cache = model.next_token_logits(ids)
    decoded = model.decode(canvas, cache)
    for j in (0, 5, 19):
        flipped = ids.clone()
        flipped[0, j] = (ids[0, j] + 1) % V
        again, cache = model.next_token_logits(flipped)
        assert moved(logits, again) == list(range(j, 20))
        assert moved(decoded, model.decode(canvas, cache)) == list(range(C))


@pytest.mark.parametrize("length", [5, 8, 30])
@torch.no_grad()
def test_ids_under_padding_move_nothing(length):
    """Pitfall 2: no logit of the decoder, none of the encoder (beyond rounding: experts batch their
    rows in another way).
    """
    model, canvas = exact(), random_ids(2, C, seed=1)
    mask = left_padding([length, length - 3], length)
    ids, other = random_ids(2, length), random_ids(2, length, seed=9)
    other = torch.where(mask, ids, other)
    assert not torch.equal(ids, other)
    (first, cache), (second, cache2) = (
        model.next_token_logits(ids, mask),
        model.next_token_logits(other, mask),
    )
    decoded, unmasked = model.decode(canvas, cache), model.decode(canvas, model.encode(ids))
    torch.testing.assert_close(first[mask], second[mask], atol=1e-3, rtol=0)
    torch.testing.assert_close(decoded, model.decode(canvas, cache2), atol=1e-3, rtol=0)
    assert (decoded - unmasked)[1].abs().amax() > 0.1  # the mask was not ignored
    assert all(t.isfinite().all() for t in (*cache.keys, *cache.values, first))


@pytest.mark.parametrize("length", [5, 30])
@torch.no_grad()
def test_a_padded_row_equals_the_row_alone(length):
    """Pitfall 2.

    Padding shifts the row's positions; rotary scores depend on distances alone, so only rounding
    differs.
    """
    model, canvas, ids = tiny(), random_ids(2, C, seed=1), random_ids(2, length)
    mask = left_padding([length, length - 3], length)
    logits, cache = model.next_token_logits(ids, mask)
    decoded = model.decode(canvas, cache)
    for row, start in ((0, 0), (1, 3)):
        alone, own = model.next_token_logits(ids[row : row + 1, start:])
        torch.testing.assert_close(logits[row : row + 1, start:], alone, atol=2e-3, rtol=2e-3)
        torch.testing.assert_close(
            decoded[row : row + 1], model.decode(canvas[row : row + 1], own), atol=2e-3, rtol=2e-3
        )


@torch.no_grad()
def test_padding_is_kept_in_the_cache():
    """Later passes have no mask argument of their own.

    The padding of the prompt must still be hidden from them.
    """
    model, mask = exact(), left_padding([6, 3], 6)
    ids, more = random_ids(2, 6), random_ids(2, 5, seed=2)
    other = torch.where(mask, ids, random_ids(2, 6, seed=9))
    grown = [model.encode(more, cache=model.encode(i, mask)) for i in (ids, other)]
    assert (
        grown[0].mask.tolist() == torch.cat([mask, torch.ones(2, 5, dtype=torch.bool)], 1).tolist()
    )
    for a, b in zip(grown[0].keys, grown[1].keys, strict=True):
        torch.testing.assert_close(a[:, :, 6:], b[:, :, 6:], atol=1e-3, rtol=0)
    canvas = random_ids(2, C, seed=3)
    torch.testing.assert_close(*(model.decode(canvas, cache) for cache in grown), atol=1e-3, rtol=0)


@torch.no_grad()
def test_a_mask_of_ones_is_no_mask():
    model, ids = tiny(), random_ids(2, 6)
    cache = model.encode(ids, torch.ones(2, 6, dtype=torch.int64))
    assert cache.mask is None and all(
        torch.equal(a, b) for a, b in zip(cache.keys, model.encode(ids).keys, strict=True)
    )


@pytest.mark.parametrize("pieces", [[1] * 30, [7, 1, 22], [8, 8, 14], [29, 1], [3, 9, 2, 16]])
@torch.no_grad()
def test_one_pass_equals_the_prompt_in_pieces(pieces):
    """Pitfall 3: the prompt is longer than the window, and fed token by token among other ways."""
    model, ids = exact(), random_ids(2, 30)
    whole, cache = model.next_token_logits(ids)
    parts, grown = [], None
    for piece in ids.split(pieces, dim=1):
        logits, grown = model.next_token_logits(piece, cache=grown)
        parts.append(logits)
    torch.testing.assert_close(torch.cat(parts, 1), whole, atol=1e-3, rtol=1e-3)
    canvas = random_ids(2, C, seed=1)
    torch.testing.assert_close(
        model.decode(canvas, grown), model.decode(canvas, cache), atol=1e-3, rtol=1e-3
    )


@torch.no_grad()
def test_padded_prompt_in_pieces():
    model, ids, mask = exact(), random_ids(2, 20), left_padding([20, 17], 20)
    whole, cache = model.next_token_logits(ids, mask)
    grown = model.encode(ids[:, :5], mask[:, :5])
    for i in range(5, 20):
        logits, grown = model.next_token_logits(ids[:, i : i + 1], cache=grown)
        torch.testing.assert_close(logits[:, 0], whole[:, i], atol=1e-3, rtol=1e-3)
    assert torch.equal(grown.mask, cache.mask)


@torch.no_grad()
def test_upto_equals_a_cache_that_ends_there():
    """Training reads row b of one long cache up to upto[b].

    That must be what generation would have had at that point.
    """
    model, ids, canvas, upto = exact(), random_ids(3, 30), random_ids(3, C, seed=1), [4, 9, 30]
    together = model.decode(canvas, model.encode(ids).upto(torch.tensor(upto)))
    for b, n in enumerate(upto):
        alone = model.decode(canvas[b : b + 1], model.encode(ids[b : b + 1, :n]))
        torch.testing.assert_close(together[b : b + 1], alone, atol=1e-3, rtol=1e-3)


@torch.no_grad()
def test_tokens_after_upto_move_nothing():
    model, ids, canvas = exact(), random_ids(1, 30), random_ids(1, C, seed=1)
    other = ids.clone()
    other[0, 12:] = random_ids(18, seed=5)
    upto = torch.tensor([12])
    torch.testing.assert_close(
        *(model.decode(canvas, model.encode(i).upto(upto)) for i in (ids, other)), atol=1e-3, rtol=0
    )


@pytest.mark.parametrize("heads", [(4, 2, 1), (4, 4, 4), (2, 1, 2)])
@pytest.mark.parametrize("side", ["encoder", "decoder"])
@pytest.mark.parametrize("kind", KINDS)
@torch.no_grad()
def test_attention_against_a_loop(kind, side, heads):
    """Pitfall 4 and 9.

    Written out in float64 over heads, queries and keys, past the window: the oracle is the whole
    prefix.

    Scores are not divided by the root of the width; a full layer has no value projection, its
    values are the raw keys through a norm without weight, not rotated.
    """
    names = ("num_attention_heads", "num_key_value_heads", "num_global_key_value_heads")
    config = Config.preset("tiny", **dict(zip(names, heads, strict=True)))
    layer = 0 if kind == SLIDING else 1
    attention, g = Attention(config, layer).double(), generator(3)
    for p in attention.parameters():
        p.data.normal_(0.0, 0.4, generator=g)
    assert (attention.v_proj is None) == (kind == FULL)
    old, new, width = 13, 6, config.head_width(layer)
    x = torch.randn(1, old + new, 32, generator=g, dtype=torch.float64)
    theta, share = (1e4, 1.0) if kind == SLIDING else (1e6, 0.25)
    rope = rotary_tables(
        torch.arange(old + new)[None], rotary_frequencies(width, theta, share), torch.float64
    )
    q, k, v = attention.project(x, rope)

    raw = (x @ attention.k_proj.weight.T).view(1, -1, config.kv_heads(layer), width)
    values = raw if kind == FULL else (x @ attention.v_proj.weight.T).view_as(raw)
    values = values.float() * (values.float().pow(2).mean(-1, keepdim=True) + 1e-6) ** -0.5
    torch.testing.assert_close(v, values.double().transpose(1, 2), atol=1e-6, rtol=1e-6)

    cache = KVCache((k[:, :, :old],), (v[:, :, :old],))
    masks = (
        encoder_masks(config, cache, new, None, x.device)
        if side == "encoder"
        else decoder_masks(config, cache, new)
    )
    mask, tail = masks[kind], tuple(t[:, old:] for t in rope)
    got, own_k, own_v = attention(
        x[:, old:], tail, (k[:, :, mask.first : old], v[:, :, mask.first : old]), mask
    )
    # only the new ones
    assert torch.equal(own_k, k[:, :, old:]) and torch.equal(own_v, v[:, :, old:])

    heads_out = torch.zeros(new, config.num_attention_heads, width, dtype=torch.float64)
    for h, i in itertools.product(range(config.num_attention_heads), range(new)):
        group = h // (config.num_attention_heads // config.kv_heads(layer))
        if side == "encoder":
            seen = [j for j in range(old + i + 1) if kind == FULL or old + i - j < W]
        else:
            seen = [j for j in range(old + new) if kind == FULL or j >= old - (W - 1)]
        scores = torch.stack([q[0, h, old + i] @ k[0, group, j] for j in seen])
        heads_out[i, h] = scores.softmax(0) @ v[0, group, seen]
    torch.testing.assert_close(
        got[0], heads_out.flatten(1) @ attention.o_proj.weight.T, atol=1e-9, rtol=1e-9
    )


@torch.no_grad()
def test_the_cache_keeps_the_whole_prefix_on_sliding_layers_too():
    cache = tiny().encode(random_ids(2, 30))
    assert (cache.length, cache.batch) == (30, 2) and {k.shape[2] for k in cache.keys} == {30}


def test_a_fresh_model_looks_around_once_its_scores_are_flat():
    torch.manual_seed(0)
    model = DiffusionGemma(Config.preset("python_small"))
    g, ids = generator(1), torch.randint(2048, (2, 64), generator=generator(2))

    def scores() -> torch.Tensor:
        """Of normed queries and keys of random directions, in each layer: [layers * 64 * 64]."""
        out = []
        for block in model.layers:
            q, k = (
                norm(torch.randn(64, block.self_attn.width, generator=g))
                for norm in (block.self_attn.q_norm, block.self_attn.k_norm)
            )
            out.append((q @ k.T).flatten())
        return torch.cat(out).detach()

    sharp, before = scores().std(), model.logits(model.encode_hidden(ids)[0]).detach()
    assert flatten_scores(model) is model
    assert 4 < sharp < 9 and 0.9 < scores().std() < 1.1  # sqrt(32) or sqrt(64), against 1
    assert not torch.equal(before, model.logits(model.encode_hidden(ids)[0]))
