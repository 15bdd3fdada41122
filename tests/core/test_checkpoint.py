"""Checkpoints: every tensor lands where its published name says, one copy on disk, and what is not
whole is listed.
"""

import json
import math
import pickle
import shutil

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from tiny import C, V, random_ids, refused, tiny

from diffgemma_lite import Config, DiffusionGemma, checkpoint
from diffgemma_lite.checkpoint import from_hf_name, to_hf_name

DECODER, ENCODER = "model.decoder.", "model.encoder.language_model."
IDS, CANVAS = random_ids(1, 9), random_ids(1, C, seed=1)


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    folder = tmp_path_factory.mktemp("saved")
    tiny().save_pretrained(folder)
    return folder


@pytest.fixture
def folder(saved, tmp_path):
    """A copy of a good checkpoint, to be broken."""
    return shutil.copytree(saved, tmp_path / "checkpoint")


def tensors_of(folder) -> dict[str, torch.Tensor]:
    return load_file(folder / "model.safetensors")


def rewrite(folder, change) -> None:
    tensors = tensors_of(folder)
    change(tensors)
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})


def load(folder, **more) -> DiffusionGemma:
    return DiffusionGemma.from_pretrained(folder, **more)


@torch.no_grad()
def logits(model) -> torch.Tensor:
    return model.decode(CANVAS, model.encode(IDS))


# ---- names ---------------------------------------------------------------------------------------


def published_names() -> dict[str, tuple[str, tuple[int, ...]]]:
    """Name in the file -> (our name, shape), written down without the mapping under test.

    Tiny, layers 0 and 2 sliding.
    """
    names = {
        "embed_tokens.weight": ("embed_tokens.weight", (V, 32)),
        "norm.weight": ("norm.weight", (32,)),
    }
    for part, shape in {
        "gate_proj": (48, 32),
        "up_proj": (48, 32),
        "down_proj": (32, 48),
        "pre_norm": (32,),
    }.items():
        names[f"self_conditioning.{part}.weight"] = (f"self_conditioning.{part}.weight", shape)
    for i in range(4):
        sliding, at = i % 2 == 0, f"layers.{i}."
        width, kv = (8, 2) if sliding else (16, 1)
        own = {
            "self_attn.q_proj.weight": (4 * width, 32),
            "self_attn.k_proj.weight": (kv * width, 32),
            "self_attn.o_proj.weight": (32, 4 * width),
            "self_attn.q_norm.weight": (width,),
            "self_attn.k_norm.weight": (width,),
            "mlp.gate_proj.weight": (48, 32),
            "mlp.up_proj.weight": (48, 32),
            "mlp.down_proj.weight": (32, 48),
            "router.proj.weight": (4, 32),
            "router.scale": (32,),
            "router.per_expert_scale": (4,),
            "experts.gate_up_proj": (4, 32, 32),
            "experts.down_proj": (4, 32, 16),
            "layer_scalar": (1,),
        } | {
            f"{n}.weight": (32,)
            for n in (
                "input_layernorm",
                "post_attention_layernorm",
                "pre_feedforward_layernorm",
                "post_feedforward_layernorm",
                "pre_feedforward_layernorm_2",
                "post_feedforward_layernorm_1",
                "post_feedforward_layernorm_2",
            )
        }
        if sliding:
            own["self_attn.v_proj.weight"] = (kv * width, 32)
        names |= {at + n: (at + n, shape) for n, shape in own.items()}
    named = {DECODER + n: value for n, value in names.items()}
    return named | {
        f"{ENCODER}layers.{i}.layer_scalar": (f"layers.{i}.encoder_layer_scalar", (1,))
        for i in range(4)
    }


def test_a_constant_in_each_tensor_lands_where_its_name_says(saved, tmp_path):
    """Pitfall 11: many tensors have equal shapes, and a swapped key would load without a word."""
    names = published_names()
    file = {
        name: torch.full(shape, 0.01 * (i + 1))
        for i, (name, (_, shape)) in enumerate(names.items())
    }
    save_file(file, tmp_path / "model.safetensors")
    shutil.copy(saved / "config.json", tmp_path)
    model = load(tmp_path)
    state = model.state_dict()
    assert set(state) == {ours for ours, _ in names.values()}
    for i, (name, (ours, _)) in enumerate(names.items()):
        assert torch.equal(state[ours], torch.full_like(state[ours], 0.01 * (i + 1))), name
    # and out again under the same names
    model.save_pretrained(tmp_path / "again")
    again = tensors_of(tmp_path / "again")
    assert all(torch.equal(again[name], tensor) for name, tensor in file.items())


def test_names_map_back_and_forth():
    for name, (ours, _) in published_names().items():
        assert to_hf_name(ours) == name and from_hf_name(name) == ours
    assert (
        from_hf_name("lm_head.weight")
        == from_hf_name(ENCODER + "embed_tokens.weight")
        == "embed_tokens.weight"
    )
    assert from_hf_name(ENCODER + "layers.1.mlp.up_proj.weight") == "layers.1.mlp.up_proj.weight"
    assert from_hf_name("model.encoder.vision_tower.anything") is None
    assert from_hf_name("model.encoder.embed_vision.embedding_projection.weight") is None


# ---- the round trip ------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_save_and_load_give_the_same_bits(tmp_path, dtype):
    model = tiny().to(dtype)
    model.save_pretrained(tmp_path)
    again = load(tmp_path)
    assert again.dtype == dtype and not again.training and again.config == model.config
    assert all(
        torch.equal(a, b)
        for a, b in zip(model.state_dict().values(), again.state_dict().values(), strict=True)
    )
    assert torch.equal(logits(again), logits(model))
    assert json.loads((tmp_path / "config.json").read_text())["dtype"] == str(dtype).removeprefix(
        "torch."
    )


def test_the_file_holds_one_copy_of_the_weights(saved):
    """Pitfall 10: neither the tied head nor a second set for the encoder.

    Beside them only the smallest vision tower.
    """
    model, size = tiny(), (saved / "model.safetensors").stat().st_size
    ours = sum(t.numel() for t in model.state_dict().values())
    vision = sum(t.numel() for n, t in tensors_of(saved).items() if from_hf_name(n) is None)
    assert sum(t.numel() for t in tensors_of(saved).values()) == ours + vision
    assert 4 * (ours + vision) < size < 4 * (ours + vision) + 25_000  # names and offsets
    assert not any(n.startswith("lm_head") for n in tensors_of(saved))


def test_the_report_says_what_was_read_and_skipped(saved):
    report = load(saved).checkpoint_report
    assert report["tensors"] == len(published_names())
    assert report["skipped"] and all(from_hf_name(n) is None for n in report["skipped"])


def test_loading_into_another_dtype(saved):
    assert {t.dtype for t in load(saved, dtype=torch.bfloat16).state_dict().values()} == {
        torch.bfloat16
    }
    assert {t.dtype for t in load(saved).state_dict().values()} == {torch.float32}


def test_a_loaded_model_can_be_trained(saved):
    model = load(saved)
    assert all(p.requires_grad and p.is_leaf for p in model.parameters())
    assert {n for n, _ in model.named_buffers()} == {n for n, _ in tiny().named_buffers()}


def test_generation_defaults_round_trip(tmp_path):
    model = tiny()
    model.generation_defaults = {
        "max_new_tokens": 64,
        "entropy_bound": 0.2,
        "t_min": 0.3,
        "eos_token_id": [1, 5],
    }
    model.save_pretrained(tmp_path)
    stored = json.loads((tmp_path / "generation_config.json").read_text())
    assert stored["sampler_config"]["entropy_bound"] == 0.2 and "entropy_bound" not in stored
    assert load(tmp_path).generation_defaults == model.generation_defaults


def test_without_a_generation_config_there_are_no_defaults(saved):
    assert not (saved / "generation_config.json").exists() and load(saved).generation_defaults == {}


def test_saving_over_a_checkpoint_replaces_it(folder):
    other = tiny(seed=1)
    (folder / "model.safetensors.index.json").write_text(
        json.dumps({"weight_map": {"x": "y.safetensors"}})
    )
    other.save_pretrained(folder)
    assert torch.equal(logits(load(folder)), logits(other))
    assert sorted(p.name for p in folder.iterdir()) == ["config.json", "model.safetensors"]


def test_saving_over_shards_leaves_none_of_them(folder):
    """They would be as large as the model again, and a tool that looks for shards would find
    another model's. Other files stay.
    """
    shard(folder)
    mine = ["notes.txt", "model-of-mine.safetensors", "model-1-of-2.txt"]
    for name in mine:
        (folder / name).write_text("mine")
    other = tiny(seed=1)
    other.save_pretrained(folder)
    assert torch.equal(logits(load(folder)), logits(other))
    assert sorted(p.name for p in folder.iterdir()) == sorted(
        ["config.json", "model.safetensors", *mine]
    )


def test_a_failed_save_leaves_the_old_weights(folder, monkeypatch):
    before = logits(load(folder))

    def full(tensors, path, metadata):
        path.write_bytes(b"half")
        raise OSError("no space left")

    monkeypatch.setattr(checkpoint, "save_file", full)
    with pytest.raises(OSError, match="no space"):
        tiny(seed=1).save_pretrained(folder)
    assert torch.equal(logits(load(folder)), before)


# ---- shards --------------------------------------------------------------------------------------


def shard(folder, parts: int = 3) -> None:
    """Split into shards with an index, as large checkpoints are."""
    tensors = tensors_of(folder)
    (folder / "model.safetensors").unlink()
    names, where = list(tensors), {}
    for i in range(parts):
        file = f"model-{i + 1:05d}-of-{parts:05d}.safetensors"
        save_file({n: tensors[n] for n in names[i::parts]}, folder / file)
        where |= dict.fromkeys(names[i::parts], file)
    (folder / "model.safetensors.index.json").write_text(
        json.dumps({"metadata": {}, "weight_map": where})
    )


def test_shards_with_an_index(folder):
    shard(folder)
    assert torch.equal(logits(load(folder)), logits(tiny()))


def test_one_shard_is_open_at_a_time(folder, monkeypatch):
    shard(folder, 4)
    opened, most, real = [], [], checkpoint.safe_open

    class Watched:
        def __init__(self, *args, **more):
            self.file = real(*args, **more)

        def __enter__(self):
            opened.append(self)
            most.append(len(opened))
            return self.file.__enter__()

        def __exit__(self, *error):
            opened.remove(self)
            return self.file.__exit__(*error)

    monkeypatch.setattr(checkpoint, "safe_open", Watched)
    load(folder)
    assert most == [1, 1, 1, 1] and not opened


@pytest.mark.parametrize("damage", ["missing", "cut"])
def test_a_shard_that_is_missing_or_cut(folder, damage):
    shard(folder)
    file = folder / "model-00002-of-00003.safetensors"
    if damage == "missing":
        file.unlink()
    else:
        file.write_bytes(file.read_bytes()[:-100])
    with refused("folder", "model-00002-of-00003"):
        load(folder)


@pytest.mark.parametrize(
    "index",
    [
        "{}",
        '{"weight_map": {}}',
        '{"weight_map": []}',
        "[]",
        "no json",
        '{"weight_map": {"a": "../outside.safetensors"}}',
        '{"weight_map": {"a": 3}}',
    ],
)
def test_an_index_that_is_none(folder, index):
    save_file({"a": torch.zeros(1)}, folder.parent / "outside.safetensors")
    (folder / "model.safetensors.index.json").write_text(index)
    with refused("folder", "index.json"):
        load(folder)


# ---- what is wrong is listed ---------------------------------------------------------------------

NORM, UP = DECODER + "norm.weight", DECODER + "layers.0.mlp.up_proj.weight"


def _nan(tensors):
    tensors[UP][3, 4] = math.nan


def _infinite(tensors):
    tensors[UP][3, 4] = -math.inf


WRONG = {
    "missing": (lambda t: t.pop(NORM), f"missing tensor {NORM}"),
    "missing scalar": (
        lambda t: t.pop(ENCODER + "layers.2.layer_scalar"),
        "missing tensor .*language_model.layers.2.layer_scalar",
    ),
    "extra": (
        lambda t: t.update({DECODER + "layers.9.x": torch.zeros(1)}),
        "unknown tensor model.decoder.layers.9.x",
    ),
    "another model's": (
        lambda t: t.update({"model.layers.0.mlp.up_proj": torch.zeros(1)}),
        "unknown tensor model.layers.0",
    ),
    "another shape": (
        lambda t: t.update({UP: torch.zeros(32, 48)}),
        r"up_proj.weight has shape \(32, 48\), .* \(48, 32\)",
    ),
    "NaN": (_nan, "up_proj.weight holds NaN"),
    "infinity": (_infinite, "up_proj.weight holds NaN or infinity"),
    "packed bytes": (
        lambda t: t.update({UP: torch.zeros(48, 32, dtype=torch.uint8)}),
        "up_proj.weight is torch.uint8",
    ),
    "a second copy that differs": (
        lambda t: t.update({"lm_head.weight": torch.zeros(V, 32)}),
        "(lm_head|embed_tokens).weight differs from another copy",
    ),
}


@pytest.mark.parametrize("case", WRONG)
def test_a_wrong_tensor_is_named(folder, case):
    change, message = WRONG[case]
    rewrite(folder, change)
    with pytest.raises(ValueError, match=f"^folder: [\\s\\S]*{message}"):
        load(folder)


def test_all_wrong_tensors_are_listed_at_once(folder):
    def break_several(tensors):
        tensors.pop(NORM)
        tensors[UP] = torch.zeros(1)
        tensors["surprise"] = torch.zeros(1)

    rewrite(folder, break_several)
    with pytest.raises(ValueError) as error:
        load(folder)
    assert all(
        part in str(error.value)
        for part in (f"missing tensor {NORM}", f"{UP} has shape (1,)", "unknown tensor surprise")
    )


def test_a_long_list_is_cut(folder):
    (folder / "config.json").write_text(json.dumps(Config.preset("tiny", hidden_size=16).to_hf()))
    with pytest.raises(ValueError, match=r"\.\.\. and \d+ more"):
        load(folder)


def test_equal_second_copies_are_fine(folder):
    """Some writers store the tied head, or the encoder's view of shared weights, once more."""

    def repeat(tensors):
        tensors["lm_head.weight"] = tensors[DECODER + "embed_tokens.weight"].clone()
        tensors[ENCODER + "norm.weight"] = tensors[NORM].clone()

    rewrite(folder, repeat)
    assert torch.equal(logits(load(folder)), logits(tiny()))


# ---- what is no checkpoint -----------------------------------------------------------------------


def _cut(folder):
    file = folder / "model.safetensors"
    file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])


def _pickle(folder):
    (folder / "model.safetensors").unlink()
    (folder / "pytorch_model.bin").write_bytes(pickle.dumps({"norm.weight": [1.0]}))


NO_CHECKPOINT = {
    "a folder that is not there": (lambda f: shutil.rmtree(f), "config.json cannot be read"),
    "an empty folder": (lambda f: [p.unlink() for p in f.iterdir()], "config.json cannot be read"),
    "no weights": (lambda f: (f / "model.safetensors").unlink(), "no model.safetensors"),
    "only a pickle": (_pickle, "never pickle"),
    "cut weights": (_cut, "not a whole safetensors file"),
    "empty weights": (
        lambda f: (f / "model.safetensors").write_bytes(b""),
        "not a whole safetensors file",
    ),
    "weights that are text": (
        lambda f: (f / "model.safetensors").write_text("hello, this is text"),
        "not a whole safetensors file",
    ),
    "a config that is no JSON": (lambda f: (f / "config.json").write_text("{"), "is not JSON"),
    "a config that is a list": (
        lambda f: (f / "config.json").write_text("[]"),
        "takes a JSON object",
    ),
    "a generation_config that is no JSON": (
        lambda f: (f / "generation_config.json").write_text("{"),
        "is not JSON",
    ),
}


@pytest.mark.parametrize("case", NO_CHECKPOINT)
def test_a_folder_that_is_not_a_checkpoint_is_named(folder, case):
    change, message = NO_CHECKPOINT[case]
    change(folder)
    with refused("folder", "checkpoint", message):
        load(folder)


def test_no_pickle_is_opened(folder, monkeypatch):
    _pickle(folder)
    monkeypatch.setattr(pickle, "load", lambda *a, **k: pytest.fail("a pickle was opened"))
    monkeypatch.setattr(torch, "load", lambda *a, **k: pytest.fail("a pickle was opened"))
    with refused("folder"):
        load(folder)


def test_a_file_instead_of_a_folder(folder):
    with refused("folder", "config.json"):
        load(folder / "model.safetensors")
    with refused("folder", "is a file"):
        tiny().save_pretrained(folder / "config.json")


def test_the_config_of_another_model(folder):
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"model_type": "gemma4"}))
    with refused("data", "gemma4"):
        load(folder)


def test_settings_are_read_before_weights(folder, monkeypatch):
    """Nothing of 50 GB is read for a checkpoint whose last file is broken."""
    (folder / "generation_config.json").write_text("{")
    monkeypatch.setattr(checkpoint, "safe_open", lambda *a, **k: pytest.fail("weights were opened"))
    with refused("folder", "generation_config.json"):
        load(folder)


@pytest.mark.parametrize("dtype", [torch.int8, "bfloat16", 16])
def test_a_dtype_that_is_none(unchecked, saved, dtype):
    with refused("dtype", "floating-point"):
        load(saved, dtype=dtype)


def test_a_model_without_weights_is_not_saved(tmp_path):
    with refused("model", "meta"):
        DiffusionGemma(Config.preset("tiny"), device="meta").save_pretrained(tmp_path / "new")
    assert not (tmp_path / "new").exists()


def test_safetensors_metadata_says_pt(saved):
    with safe_open(saved / "model.safetensors", framework="pt") as file:
        assert file.metadata() == {"format": "pt"}


def test_every_broken_tensor_is_listed(tmp_path):
    """Two with NaN and one of another shape: all three are named, whichever comes first."""
    model = tiny()
    model.save_pretrained(tmp_path)
    stored = load_file(tmp_path / "model.safetensors")
    nan = ["model.decoder.norm.weight", "model.decoder.layers.3.mlp.up_proj.weight"]
    for name in nan:
        stored[name] = torch.full_like(stored[name], float("nan"))
    stored["model.decoder.layers.0.router.scale"] = torch.ones(3)
    save_file(stored, tmp_path / "model.safetensors")
    with pytest.raises(ValueError, match="does not hold the weights") as error:
        DiffusionGemma.from_pretrained(tmp_path)
    assert all(name in str(error.value) for name in [*nan, "model.decoder.layers.0.router.scale"])


def test_settings_of_another_model_do_not_stay(tmp_path):
    first, second = tiny(), tiny()
    first.generation_defaults = {"entropy_bound": 9.0}
    first.save_pretrained(tmp_path)
    second.save_pretrained(tmp_path)
    assert DiffusionGemma.from_pretrained(tmp_path).generation_defaults == {}
