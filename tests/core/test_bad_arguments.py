"""Bad input of the public functions, one call a line.

A ValueError that starts with the argument's name and says what it got.

Beside test_bad_input.py, which covers what the model and `generate` are given. Folders and files
are in the second part.
"""

import json
import math
import os
import re
import shutil
from functools import partial

import pytest
import torch
from tiny import C, Example, V, generator, random_ids, refused, sampler, tiny

from diffgemma_lite import (
    Config,
    DiffusionGemma,
    SamplerConfig,
    Trace,
    generate,
    generate_autoregressive,
)
from diffgemma_lite.cost import parameters, step_cost
from diffgemma_lite.cost.hardware import floor
from diffgemma_lite.loss import collate
from diffgemma_lite.noise import corrupt, euler_step, posterior
from diffgemma_lite.sampler import (
    accept,
    denoise_step,
    draw_tokens,
    renoise,
    should_stop,
    temperature_at,
    token_entropy,
)
from diffgemma_lite.train import TrainConfig, train
from diffgemma_lite.view import player_html

# as a reader runs it: annotations are not checked
pytestmark = pytest.mark.usefixtures("unchecked")

IDS, X, T = random_ids(2, 9), random_ids(2, C), torch.tensor([0.3, 0.6])
L = torch.randn(2, C, V, generator=generator())
H, P, NO = token_entropy(L), L.softmax(-1), torch.zeros(2, C, dtype=torch.bool)
TINY, DEFAULT = Config.preset("tiny"), SamplerConfig()
one_step = partial(denoise_step, L, X, 0, DEFAULT)
one_batch = partial(collate, canvas_length=C, vocab_size=V, eos=1, pad=0, seed=0, epoch=0)
ONE = [Example([5], [6])]
train_one = partial(train, examples=ONE, config=TrainConfig(steps=1), progress=False)


@pytest.fixture(scope="module")
def model():
    return tiny()


PURE = {
    "vocab_size": [lambda: corrupt(X, T, 0), lambda: corrupt(X, T, 97.0),
                   lambda: corrupt(X, T, True), lambda: renoise(X, NO, 0),
                   lambda: renoise(X, NO, 97.5)],
    "x": [lambda: corrupt(X.float(), T, V), lambda: corrupt(X > 4, T, V),
          lambda: corrupt(X.tolist(), T, V),
          lambda: corrupt(X[0], T, V), lambda: corrupt(X[None], T[:1], V),
          lambda: corrupt(X[:, :0], T, V)],
    "t": [lambda: corrupt(X, 0.5, V), lambda: corrupt(X, [0.5, 0.5], V),
          lambda: corrupt(X, T[:, None], V),
          lambda: corrupt(X, T > 0.5, V), lambda: corrupt(X, T.to("meta"), V),
          lambda: posterior(X, P, T[:1], T / 2),
          lambda: posterior(X, P, 0.5, T / 2), lambda: euler_step(X, P, 0.5, T / 2)],
    "pinned": [lambda: corrupt(X, T, V, pinned=NO.long()),
               lambda: corrupt(X, T, V, pinned=NO.float()),
               lambda: corrupt(X, T, V, pinned=NO.tolist()),
               lambda: corrupt(X, T, V, pinned=NO[:, 1:]),
               lambda: corrupt(X, T, V, pinned=NO.to("meta")), lambda: accept(H, 0.1, NO.long()),
               lambda: accept(H, 0.1, NO[:1]), lambda: one_step(pinned=NO.long(), pinned_ids=X),
               lambda: one_step(pinned=NO)],
    "mask_id": [lambda: corrupt(X, T, V, mask_id=-1), lambda: corrupt(X, T, V, mask_id=V + 1),
                lambda: corrupt(X, T, V, mask_id=1.5), lambda: corrupt(X, T, V, mask_id=True)],
    "generator": [lambda: corrupt(X, T, V, 3), lambda: corrupt(X, T, V, [None, None]),
                  lambda: corrupt(X, T, V, [generator()] * 3),
                  lambda: draw_tokens(L, "cpu"), lambda: draw_tokens(L, [generator()])],
    "s": [lambda: posterior(X, P, T, 0.1), lambda: posterior(X, P, T, T[:1] / 2)],
    "dt": [lambda: euler_step(X, P, T, 0.1), lambda: euler_step(X, P, T, T[:1] / 2)],
    "x_t": [lambda: posterior(X[0], P, T, T / 2), lambda: posterior(X.float(), P, T, T / 2),
            lambda: euler_step(X + V, P, T, T / 2)],
    "p_x0": [lambda: posterior(X, P[0], T, T / 2), lambda: posterior(X[:, :3], P, T, T / 2),
             lambda: posterior(X, L.long(), T, T / 2),
             lambda: posterior(X, -P, T, T / 2), lambda: posterior(X, 3 * P, T, T / 2),
             lambda: posterior(X, L, T, T / 2),
             lambda: euler_step(X, P.tolist(), T, T / 2),
             lambda: euler_step(X[:, :3], P, T, T / 2)],
    "step": [lambda: temperature_at(1.5, DEFAULT), lambda: temperature_at("1", DEFAULT),
             lambda: temperature_at(True, DEFAULT),
             lambda: denoise_step(L, X, 99, DEFAULT)],
    "sampler": [lambda: temperature_at(0, None), lambda: should_stop(X, X[None], H, None)],
    "scaled_logits": [lambda: token_entropy(L.long()), lambda: token_entropy([1.0]),
                      lambda: token_entropy(L[..., :0]),
                      lambda: draw_tokens(L[0]), lambda: draw_tokens(L.long())],
    "entropy": [lambda: accept(H.long(), 1), lambda: accept(H.tolist(), 0.1),
                lambda: accept(H[0], 0.1),
                lambda: should_stop(X, X[None], H[:, :3], DEFAULT),
                lambda: should_stop(X, X[None], X, DEFAULT)],
    "bound": [lambda: accept(H, "1"), lambda: accept(H, None), lambda: accept(H, T),
              lambda: accept(H, -0.1),
              lambda: accept(H, math.nan)],
    "sampled": [lambda: renoise(X.float(), NO, V), lambda: renoise(X.tolist(), NO, V)],
    "accepted": [lambda: renoise(X, NO.long(), V), lambda: renoise(X, NO[:1], V),
                 lambda: renoise(X, None, V)],
    "argmax": [lambda: should_stop(X.float(), X[None], H, DEFAULT)],
    "previous": [lambda: should_stop(X, X, H, DEFAULT), lambda: should_stop(X, [X], H, DEFAULT),
                 lambda: should_stop(X, [], H, DEFAULT),
                 lambda: should_stop(X, X[None, :1], H, DEFAULT)],
    "logits": [lambda: denoise_step(L[0], X, 0, DEFAULT),
               lambda: denoise_step(L.long(), X, 0, DEFAULT)],
    "canvas": [lambda: denoise_step(L, X[:, :3], 0, DEFAULT),
               lambda: denoise_step(L, X.float(), 0, DEFAULT)],
    "pinned_ids": [lambda: one_step(pinned=NO, pinned_ids=X.float()),
                   lambda: one_step(pinned=NO, pinned_ids=X[:1])],
    "ended": [lambda: one_step(ended=torch.tensor([0, 1])), lambda: one_step(ended=NO)],
    "defaults": [lambda: SamplerConfig.from_defaults(None),
                 lambda: SamplerConfig.from_defaults([])],
    "t_max": [lambda: SamplerConfig(t_max=1e-42, t_min=0.0),
              lambda: SamplerConfig.from_defaults({"t_max": "x"})],
    "name": [lambda: Config.preset(None), lambda: Config.preset([]),
             lambda: Config.preset("large")],
    "vocab_size ": [lambda: Config.preset("tiny", vocab_size=2**31),
                    lambda: Config.preset("tiny", vocab_size=97.0)],
    "layer_types": [lambda: Config.preset("tiny", layer_types=[[], [], [], []]),
                    lambda: Config.preset("tiny", layer_types="full")],
    "config": [lambda: parameters(None), lambda: parameters({}),
               lambda: step_cost(None, queries=1, prefix=1),
               lambda: DiffusionGemma({}), lambda: train_one(tiny(), config=None),
               lambda: train_one(tiny(), config={"steps": 1})],
    "dtype": [lambda: DiffusionGemma(TINY, dtype="float32"),
              lambda: DiffusionGemma(TINY, dtype=torch.int64)],
    "device": [lambda: DiffusionGemma(TINY, device="nonsense"),
               lambda: DiffusionGemma(TINY, device=[0])],
    "batch": [lambda: step_cost(TINY, queries=1, prefix=1, batch=1.5),
              lambda: step_cost(TINY, queries=1, prefix=1, batch=True)],
    "hardware": [lambda: floor(step_cost(TINY, queries=1, prefix=1), "H100")],
    "model": [lambda: generate(None, IDS), lambda: generate(DiffusionGemma, IDS),
              lambda: generate_autoregressive("x", IDS),
              lambda: train_one(None)],
    "on_log": [lambda: train_one(tiny(), on_log=3)],
    "examples": [lambda: train_one(tiny(), examples=None),
                 lambda: train_one(tiny(), examples=[{"prompt": [1]}]),
                 lambda: train_one(tiny(), examples=[Example(None, [6])]),
                 lambda: train_one(tiny(), examples=iter(ONE))],
    "indices": [lambda: one_batch([], []), lambda: one_batch(ONE, [0, 1])],
    "multiple": [lambda: one_batch(ONE, [0], multiple=0)],
    "self_conditioning": [lambda: one_batch(ONE, [0], self_conditioning=2)],
    "eos": [lambda: one_batch(ONE, [0], eos=V)],
    "pad": [lambda: one_batch(ONE, [0], pad=-1)],
    "trace": [lambda: Trace.from_json([]), lambda: Trace.from_json({})],
}  # fmt: skip
CALLS = [
    pytest.param(name.strip(), call, id=f"{name}-{i}")
    for name, calls in PURE.items()
    for i, call in enumerate(calls)
]


@pytest.mark.parametrize(("name", "call"), CALLS)
def test_a_bad_argument_is_named(name, call):
    with pytest.raises(ValueError, match=rf"^({name}|.*, {name}): ") as raised:
        call()
    assert re.search("takes|this code reads|there are", str(raised.value))


def test_a_state_beside_the_vocabulary_is_allowed():
    """The absorbing state may be an id of its own, the first one after the vocabulary."""
    x_t, changed = corrupt(X, torch.ones(2), V, mask_id=V)
    assert (x_t == V).all() and changed.all()


def test_nan_goes_through_and_is_seen_where_it_matters():
    """Not looked for in the parts (a GPU would wait for the answer).

    It stays NaN, and is never confident or accepted.
    """
    bad = H.index_fill(1, torch.tensor([2]), math.nan)
    assert not accept(bad, 4.0)[:, 2].any() and not should_stop(X, X[None], bad, DEFAULT).any()
    assert denoise_step(L * math.nan, X, 0, DEFAULT).entropy.isnan().all()
    assert posterior(X, P * math.nan, T, T / 2).isnan().all()


TOO_HOT_OR_COLD = [1e-42, 1e-7, -1e-9]


@pytest.mark.parametrize("temperature", TOO_HOT_OR_COLD)
def test_a_temperature_that_would_overflow(model, temperature):
    """30 / 1e-42 is infinity, and the draw from what follows is token 0."""
    with refused("temperature", "takes 0"):
        generate_autoregressive(model, IDS, temperature=temperature)
    coldest = generate_autoregressive(
        model, IDS, temperature=1e-6, max_new_tokens=3, generator=generator()
    )
    assert torch.equal(coldest.tokens, generate_autoregressive(model, IDS, max_new_tokens=3).tokens)


@pytest.mark.parametrize("returned", [None, 3, {}])
def test_a_step_function_that_returns_no_step(model, returned):
    with refused("step_function", f"returned {type(returned).__name__}"):
        generate(model, IDS, sampler(), max_new_tokens=C, step_function=lambda *a, **k: returned)


def test_a_filter_that_lowers_the_precision_can_be_recorded(model):
    out = generate(
        model,
        IDS,
        sampler(),
        max_new_tokens=C,
        trace=True,
        logits_filter=lambda logits, canvas: logits.bfloat16(),
    )
    assert out.trace.canvases[0].entropy.dtype.name == "float32"


@pytest.mark.parametrize(
    "change", [dict(num_key_value_heads=1), dict(head_dim=16), dict(global_head_dim=8)]
)
def test_a_cache_of_a_model_with_other_heads(model, change):
    cache = tiny(**change).encode(IDS)
    with refused("cache", "layer", "takes one of this model"):
        model.decode(X, cache)


# ---- folders and files ---------------------------------------------------------------------------


@pytest.fixture(scope="module")
def saved(tmp_path_factory, model):
    folder = tmp_path_factory.mktemp("checkpoint")
    model.save_pretrained(folder)
    return folder


@pytest.fixture
def folder(saved, tmp_path):
    return shutil.copytree(saved, tmp_path / "checkpoint")


def text_config(folder, **changes):
    data = json.loads((folder / "config.json").read_text())
    data["text_config"] |= changes
    (folder / "config.json").write_text(json.dumps(data))


@pytest.mark.parametrize("device", ["nonsense", "cuda:99", "meta", None, 99, [], "cpu:"], ids=str)
def test_a_device_that_is_not_here(saved, device):
    with refused("device", "takes"):
        DiffusionGemma.from_pretrained(saved, device=device)


@pytest.mark.parametrize("device", ["cpu", "cpu:0", torch.device("cpu")], ids=str)
def test_a_device_that_is_here(saved, device):
    assert DiffusionGemma.from_pretrained(saved, device=device).device.type == "cpu"


BROKEN = {
    "an empty weights file": ("folder", lambda f: (f / "model.safetensors").write_bytes(b"")),
    "weights that are a folder": (
        "folder",
        lambda f: ((f / "model.safetensors").unlink(), (f / "model.safetensors").mkdir()),
    ),
    "a config that is a folder": (
        "folder",
        lambda f: ((f / "config.json").unlink(), (f / "config.json").mkdir()),
    ),
    "a config that is binary": (
        "folder",
        lambda f: (f / "config.json").write_bytes(b"\xff\xfe\x00"),
    ),
    "a number of layers that is text": (
        "data",
        lambda f: text_config(f, num_hidden_layers="4", layer_types=None),
    ),
    "layer types that are a number": ("data", lambda f: text_config(f, layer_types=3)),
    "rope parameters that are a list": ("data", lambda f: text_config(f, rope_parameters=[1])),
    "a rope base that is null": (
        "data",
        lambda f: text_config(f, rope_parameters={"sliding_attention": {"rope_theta": None}}),
    ),
    "per-layer sizes that are a list": ("data", lambda f: text_config(f, per_layer_config=[1])),
    "per-layer sizes by a name": ("data", lambda f: text_config(f, per_layer_config={"x": {}})),
    "sampler settings that are text": (
        "folder",
        lambda f: (f / "generation_config.json").write_text('{"sampler_config": "x"}'),
    ),
}


@pytest.mark.parametrize("case", BROKEN)
def test_a_folder_that_is_no_checkpoint(folder, case):
    name, damage = BROKEN[case]
    damage(folder)
    with refused(name):
        DiffusionGemma.from_pretrained(folder)


@pytest.fixture
def places(tmp_path):
    """What is no folder to write to: a file, a path under a file, and no path at all."""
    file = tmp_path / "file"
    file.write_text("x")
    return {"a file": file, "under a file": file / "x", "None": None, "a number": 3}


WRITES = {
    "save_pretrained": ("folder", lambda place: tiny().save_pretrained(place)),
    "train": ("folder", lambda place: train_one(tiny(), folder=place)),
    "Trace.save": ("path", lambda place: Trace([[3]], [], [[3]], V).save(place)),
    "player_html": ("path", lambda place: player_html(
        generate(tiny(), IDS, sampler(max_denoising_steps=1), max_new_tokens=1, trace=True).trace,
        place)),
}  # fmt: skip


@pytest.mark.parametrize("place", ["a file", "under a file", "None", "a number"])
@pytest.mark.parametrize("what", WRITES)
def test_a_place_that_cannot_be_written_to(places, tmp_path, what, place):
    name, call = WRITES[what]
    where = places[place]
    if name == "path" and place == "a file":
        where = tmp_path  # a file may be written over, a folder not
    if where is None and what == "train":
        return  # None is no folder, which is allowed there
    if name == "path" and place == "under a file":
        where = where / "deeper"
    with refused(name, "takes"):
        call(where)
    assert (tmp_path / "file").read_text() == "x" and [p.name for p in tmp_path.iterdir()] == [
        "file"
    ]


@pytest.mark.parametrize("what", ["save_pretrained", "train"])
def test_a_folder_the_system_calls_read_only(tmp_path, monkeypatch, what):
    monkeypatch.setattr(os, "access", lambda *a: False)
    with refused("folder", "may not be written"):
        WRITES[what][1](tmp_path)
    assert not list(tmp_path.iterdir())


def test_weights_that_could_not_be_read_again_are_not_written(folder):
    """A model gone wrong does not replace one that is whole."""
    before, broken = (folder / "model.safetensors").read_bytes(), tiny()
    broken.layers[2].mlp.up_proj.weight.data[0, 0] = math.inf
    with refused("model", "layers.2.mlp.up_proj.weight hold NaN or infinity"):
        broken.save_pretrained(folder)
    assert (folder / "model.safetensors").read_bytes() == before


@pytest.mark.parametrize("read", [Trace.load, DiffusionGemma.from_pretrained])
def test_what_is_read_is_a_path(read, tmp_path):
    for place in (None, 3, tmp_path / "missing"):
        with pytest.raises(ValueError, match="^(path|folder): "):
            read(place)
