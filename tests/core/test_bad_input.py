"""Bad input of the model and of generation.

A ValueError that names the argument, what it got and what it takes, before any work. What single
parts say to bad input is tested beside them (config, sampler, noise, train, checkpoint, trace).
"""

import math
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from tiny import C, V, generator, random_ids, refused, sampler, tiny

from diffgemma_lite import Config, DiffusionGemma, generate, generate_autoregressive
from diffgemma_lite.attention import KVCache
from diffgemma_lite.tokenizer import Tokenizer

# as a reader runs it: annotations are not checked
pytestmark = pytest.mark.usefixtures("unchecked")

IDS, CANVAS = random_ids(2, 9), random_ids(2, C, seed=1)
LIMIT = Config.preset("tiny").max_position_embeddings


class Counting(DiffusionGemma):
    """Counts its passes."""

    passes = 0

    def _run(self, *args):
        self.passes += 1
        return super()._run(*args)


@pytest.fixture(scope="module")
def model():
    model = Counting(Config.preset("tiny"))
    model.load_state_dict(tiny().state_dict())
    return model.eval()


@pytest.fixture(scope="module")
def cache(model):
    with torch.no_grad():
        return model.encode(IDS)


# ---- token ids, wherever they are given ----------------------------------------------------------

BAD_IDS = {
    "too large": (torch.full((2, C), V), f"got ids from {V} to {V}", f"takes 0 to {V - 1}"),
    "negative": (torch.full((2, C), -1), "got ids from -1 to -1", f"takes 0 to {V - 1}"),
    "one bad id": (
        IDS[:, :C].clone().index_fill(1, torch.tensor([2]), 4000),
        "to 4000",
        "vocabulary",
    ),
    "float": (IDS[:, :C].float(), "torch.float32", "torch.int64"),
    "bool": (IDS[:, :C] > 4, "torch.bool", "torch.int64"),
    "uint8": (IDS[:, :C].to(torch.uint8), "torch.uint8", "torch.int64"),
    "a list": (IDS[:, :C].tolist(), "got list", "tensor"),
    "None": (None, "got NoneType", "tensor"),
    "one row without a batch": (IDS[0, :C], r"got shape \(8,\)", r"\[B, S\]"),
    "three axes": (IDS[None, :, :C], r"got shape \(1, 2, 8\)", r"\[B, S\]"),
    "empty": (IDS[:, :0], r"got shape \(2, 0\)", "at least one"),
    "no rows": (IDS[:0], r"got shape \(0, 9\)", "at least one"),
    "another device": (IDS[:, :C].to("meta"), "is on meta", "model is on cpu"),
}
PLACES = {
    "encode": ("ids", lambda model, cache, ids: model.encode(ids)),
    "next_token_logits": ("ids", lambda model, cache, ids: model.next_token_logits(ids)),
    "encode with a cache": ("ids", lambda model, cache, ids: model.encode(ids, cache=cache)),
    "decode": ("canvas", lambda model, cache, ids: model.decode(ids, cache)),
    "generate": ("ids", lambda model, cache, ids: generate(model, ids, sampler())),
    "generate_autoregressive": (
        "ids",
        lambda model, cache, ids: generate_autoregressive(model, ids),
    ),
    "initial_canvas": (
        "initial_canvas",
        lambda model, cache, ids: generate(model, IDS, sampler(), initial_canvas=ids),
    ),
}


PAIRS = [
    (place, case)
    for place in PLACES
    for case in BAD_IDS
    if (place, case) != ("initial_canvas", "None")
]


@pytest.mark.parametrize(("place", "case"), PAIRS)
def test_bad_ids(model, cache, place, case):
    (name, call), (ids, *parts), before = PLACES[place], BAD_IDS[case], model.passes
    with refused(name, *parts):
        call(model, cache, ids)
    assert model.passes == before


# ---- masks, caches and positions -----------------------------------------------------------------


def mask_of(*rows: str) -> torch.Tensor:
    return torch.tensor([[int(c) for c in row] for row in rows])


BAD_MASKS = {
    "right padding": (
        mask_of("111111110", "111111111"),
        "padding to the right of a token",
        "left padding only",
    ),
    "a hole": (
        mask_of("111011111", "111111111"),
        "padding to the right of a token",
        "left padding only",
    ),
    "a row of padding": (mask_of("000000000", "111111111"), "all padding", "at least one token"),
    "another shape": (mask_of("11111111", "11111111"), r"got \(2, 8\)", r"takes \(2, 9\)"),
    "one row": (mask_of("111111111"), r"got \(1, 9\)", r"takes \(2, 9\)"),
    "a list": ([[1] * 9] * 2, "got list", "shape of ids"),
    "an additive mask": (torch.full((2, 9), -1e9), "only 1", "0"),
    "NaN": (torch.full((2, 9), math.nan), "only 1", "0"),
    "another device": (torch.ones(2, 9).to("meta"), "is on meta", "cpu"),
}
TAKES_MASKS = {
    "encode": lambda model, mask: model.encode(IDS, mask),
    "next_token_logits": lambda model, mask: model.next_token_logits(IDS, mask),
    "generate": lambda model, mask: generate(model, IDS, sampler(), attention_mask=mask),
    "generate_autoregressive": lambda model, mask: generate_autoregressive(
        model, IDS, attention_mask=mask
    ),
}


@pytest.mark.parametrize("place", TAKES_MASKS)
@pytest.mark.parametrize("case", BAD_MASKS)
def test_bad_masks(model, place, case):
    (mask, *parts), before = BAD_MASKS[case], model.passes
    with refused("attention_mask", *parts):
        TAKES_MASKS[place](model, mask)
    assert model.passes == before


def test_padding_after_a_cached_prefix(model, cache):
    with refused("attention_mask", "after a cached prefix", "very left"):
        model.encode(CANVAS, mask_of("01111111", "11111111"), cache)


BAD_CACHES = {
    "None": (None, "got NoneType", "encode"),
    "a tuple": ((torch.zeros(1),), "got tuple", "encode"),
    "Transformers' kind": ({"keys": 1}, "got dict", "encode"),
    "of a model with other layers": (lambda c: replace(c, keys=c.keys[:2], values=c.values[:2]),
                                     "has 2 layers", "4 layers"),
    "on another device": (lambda c: KVCache(tuple(k.to("meta") for k in c.keys),
                                            tuple(v.to("meta") for v in c.values)),
                          "is on meta", "the model is on cpu"),
}  # fmt: skip


@pytest.mark.parametrize("case", BAD_CACHES)
def test_bad_caches(model, cache, case):
    bad, *parts = BAD_CACHES[case]
    bad, before = bad(cache) if callable(bad) else bad, model.passes
    with refused("cache", *parts):
        model.decode(CANVAS, bad)
    if bad is not None:
        with refused("cache", *parts):
            model.encode(IDS, cache=bad)
    assert model.passes == before


def test_rows_of_ids_and_cache_differ(model, cache):
    with refused("canvas", "got 1 rows", "cache has 2"):
        model.decode(CANVAS[:1], cache)
    with refused("ids", "got 3 rows", "cache has 2"):
        model.encode(random_ids(3, 4), cache=cache)


@pytest.mark.parametrize("lengths", [[3, 10], [-1, 3], [3], [1, 2, 3]])
def test_a_cache_cut_outside_itself(cache, lengths):
    with refused("lengths", "got", "takes"):
        cache.upto(torch.tensor(lengths))


def test_a_cache_cut_at_half_a_token(cache):
    with refused("lengths", "torch.float32", "integers"):
        cache.upto(torch.tensor([1.5, 2.0]))


def test_a_cut_cache_is_not_extended(model, cache):
    with refused("cache", "upto", "whole one"):
        model.encode(IDS, cache=cache.upto(torch.tensor([2, 3])))


def test_prompt_over_the_position_limit(model, cache):
    long, before = random_ids(2, LIMIT + 1), model.passes
    for call in (
        model.encode,
        model.next_token_logits,
        lambda ids: generate(model, ids, sampler(), max_new_tokens=1),
        lambda ids: generate_autoregressive(model, ids, max_new_tokens=1),
    ):
        with refused("ids", str(LIMIT + 1), f"takes at most {LIMIT}"):
            call(long)
    with refused("ids", "9 cached and 512 new", f"takes at most {LIMIT}"):
        model.encode(random_ids(2, LIMIT), cache=cache)
    assert model.passes == before


@torch.no_grad()
def test_canvas_over_the_position_limit(model):
    cache = model.encode(random_ids(2, LIMIT - C + 1))
    with refused("canvas", f"position {LIMIT + 1}", f"at most {LIMIT}"):
        model.decode(CANVAS, cache)
    model.decode(CANVAS[:, 1:], cache)  # one less fits


@pytest.mark.parametrize(
    ("prompt", "wanted", "fits"),
    [
        (LIMIT - C, C, True),
        (LIMIT - C, 1, True),
        (LIMIT - C + 1, 1, False),
        (LIMIT - 2 * C, C + 1, True),
        (LIMIT - 2 * C + 1, C + 1, False),
    ],
)
def test_answer_over_the_position_limit(model, prompt, wanted, fits):
    """Whole canvases are denoised, so whole canvases have to fit."""
    ids, before = random_ids(1, prompt), model.passes
    if fits:
        assert generate(
            model, ids, sampler(max_denoising_steps=1), max_new_tokens=wanted
        ).tokens.shape == (1, wanted)
        return
    with refused("max_new_tokens", "position", f"takes at most {LIMIT}"):
        generate(model, ids, sampler(), max_new_tokens=wanted)
    assert model.passes == before


def test_autoregressive_answer_over_the_position_limit(model):
    generate_autoregressive(model, random_ids(1, LIMIT - 1), max_new_tokens=1)
    with refused("max_new_tokens", "position 513", f"takes at most {LIMIT}"):
        generate_autoregressive(model, random_ids(1, LIMIT - 1), max_new_tokens=2)


BAD_BELIEFS = {
    "another vocabulary": ("self_conditioning", dict(self_conditioning=torch.zeros(2, C, V - 1)),
                           "96", "97"),
    "another canvas": ("self_conditioning", dict(self_conditioning=torch.zeros(2, C - 1, V)),
                       "7", "8"),
    "ids": ("self_conditioning", dict(self_conditioning=CANVAS), r"\(2, 8\)", "logits"),
    "integers": ("self_conditioning",
                 dict(self_conditioning=torch.zeros(2, C, V, dtype=torch.int64)),
                 "torch.int64", "floating"),
    "a list": ("self_conditioning", dict(self_conditioning=[0.0]), "got list", "logits"),
    "another device": ("self_conditioning",
                       dict(self_conditioning=torch.zeros(2, C, V, device="meta")),
                       "is on meta", "cpu"),
    "a mask alone": ("self_conditioning_mask", dict(self_conditioning_mask=torch.ones(2) > 0),
                     "without self_conditioning", "both"),
    "a mask of numbers": ("self_conditioning_mask", dict(
        self_conditioning=torch.zeros(2, C, V), self_conditioning_mask=torch.ones(2)),
        "torch.float32", "torch.bool"),
    "a mask per position": ("self_conditioning_mask", dict(
        self_conditioning=torch.zeros(2, C, V), self_conditioning_mask=torch.ones(2, C) > 0),
        r"\(2, 8\)", r"\(2,\)"),
    "a mask that is a list": ("self_conditioning_mask", dict(
        self_conditioning=torch.zeros(2, C, V), self_conditioning_mask=[True, False]), "got list",
        "torch.bool"),
    "a mask on another device": ("self_conditioning_mask", dict(
        self_conditioning=torch.zeros(2, C, V),
        self_conditioning_mask=(torch.ones(2) > 0).to("meta")), "is on meta", "cpu"),
}  # fmt: skip


@pytest.mark.parametrize("case", BAD_BELIEFS)
def test_bad_self_conditioning(model, cache, case):
    (name, given, *parts), before = BAD_BELIEFS[case], model.passes
    with refused(name, *parts):
        model.decode(CANVAS, cache, **given)
    assert model.passes == before


# ---- generate and generate_autoregressive --------------------------------------------------------

PINNED = torch.zeros(2, C, dtype=torch.bool)
BOTH = {
    "max_new_tokens": [0, -3, 2.0, True, "8", None],
    "eos_token_id": [-1, V, 1.0, "1", True, [], [1, V], [1, None], (True,), torch.tensor(1)],
    "pad_token_id": [-1, V, 0.0, "0", True],
    "generator": [
        0,
        "cpu",
        [],
        [generator()],
        [generator()] * 3,
        [generator(), None],
        [generator(), 3],
        (generator(),),
    ],
}
ONE = {
    "sampler": [None, {}, "fast", 48],
    "pinned": [PINNED],
    "initial_canvas": [CANVAS[:1], CANVAS[:, :-1], torch.cat([CANVAS, CANVAS], 1)],
    "logits_filter": [1, "none", torch.zeros(1)],
    "on_step": [1, True],
    "step_function": [None, "euler"],
    "trace": ["all", 2, None],
}
PINS = [
    PINNED.int(), PINNED.float(), PINNED[:1], PINNED[:, :-1],
    torch.zeros(2, C + 1, dtype=torch.bool), PINNED[0], [[False] * C] * 2, 3, [3, 200],
    PINNED.to("meta"), torch.tensor([3, C]),
]  # fmt: skip
ALONE = {"temperature": [-0.1, math.nan, math.inf, "1", None, True], "on_token": [1, "x"]}


def shown(value) -> str:
    return f"{tuple(value.shape)}" if isinstance(value, torch.Tensor) else str(value)[:20]


def cases(table) -> list:
    return [
        pytest.param(name, value, id=f"{name}-{shown(value)}")
        for name, values in table.items()
        for value in values
    ]


@pytest.mark.parametrize(("name", "value"), cases(BOTH | ONE))
def test_generate_names_a_bad_argument_before_the_first_pass(model, name, value):
    before = model.passes
    with refused(name, "takes" if name != "pinned" else "initial_canvas"):
        generate(model, IDS, **({"sampler": sampler()} | {name: value}))
    assert model.passes == before


@pytest.mark.parametrize("value", PINS, ids=shown)
def test_pinned_positions_outside_the_canvas(model, value):
    before = model.passes
    with refused("pinned"):
        generate(model, IDS, sampler(), initial_canvas=CANVAS, pinned=value)
    assert model.passes == before


@pytest.mark.parametrize(("name", "value"), cases(BOTH | ALONE))
def test_generate_autoregressive_names_a_bad_argument_before_the_first_pass(model, name, value):
    before = model.passes
    with refused(name, "takes"):
        generate_autoregressive(model, IDS, **{name: value})
    assert model.passes == before


@pytest.mark.parametrize(
    "returned",
    [None, torch.zeros(2, C), torch.zeros(2, C, V, dtype=torch.int64), torch.zeros(1, C, V)],
    ids=shown,
)
def test_a_logits_filter_that_returns_something_else(model, returned):
    with refused("logits_filter", "returned", "takes"):
        generate(
            model, IDS, sampler(), max_new_tokens=C, logits_filter=lambda logits, canvas: returned
        )


def test_a_bad_argument_is_named_before_the_streamer_hears_of_it(model):
    class Loud:
        def put(self, value):
            pytest.fail("the streamer was called")

    with refused("attention_mask"):
        generate(
            model, IDS, sampler(), attention_mask=mask_of("111111110", "111111111"), streamer=Loud()
        )


@pytest.mark.parametrize("config", [None, "tiny", {"vocab_size": 97}, Config])
def test_a_model_of_something_that_is_no_config(config):
    with refused("config", "got", "takes a Config"):
        DiffusionGemma(config)


def test_the_model_is_not_called_itself(model):
    with pytest.raises(TypeError, match=r"model.encode\(ids\).*generate\(model, ids\)"):
        model(IDS)


def test_texts_and_rows_of_ids_are_named():
    out = generate(tiny(), IDS[:1], sampler(max_denoising_steps=1), max_new_tokens=C, trace=True)
    with refused("decode", "Tokenizer", "tokenizer.token_text"):
        out.trace.with_texts(
            Tokenizer.load(Path(__file__).parents[2] / "assets/checkpoints/python-small")
        )
    with refused("ids", "one row"):
        Tokenizer.load(Path(__file__).parents[2] / "assets/checkpoints/python-small").decode(
            out.tokens.repeat(2, 1)
        )
