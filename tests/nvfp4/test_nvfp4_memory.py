"""Sizes by arithmetic: equal to what is stored for a small model, within 0.5% of what is published
for the large one.
"""

from __future__ import annotations

import pytest
from tiny import logits, refused, tiny

from diffgemma_lite import Config
from diffgemma_lite.cost import parameters
from diffgemma_lite.nvfp4 import PARTS, calibrate, quantize_model
from diffgemma_lite.nvfp4.layers import PackedWeight
from diffgemma_lite.nvfp4.memory import (
    CARDS,
    STORAGE,
    VISION,
    cache_bytes,
    checkpoint_bytes,
    matrix_shapes,
    room,
    step_bytes,
)

PUBLISHED = Config.preset("26b_a4b")


@pytest.mark.parametrize("name", [name for name, storage in STORAGE.items() if storage.published])
def test_the_published_sizes_come_out_within_half_a_percent(name):
    storage = STORAGE[name]
    total = sum(checkpoint_bytes(PUBLISHED, storage.parts, vision=VISION.value).values())
    print(
        f"{name}: {total / 1e9:.2f} GB, published {storage.published / 1e9:.2f} GB, "
        f"{total / storage.published - 1:+.2%}"
    )
    assert total == pytest.approx(storage.published, rel=0.005)


def test_the_text_part_in_bfloat16_is_exact():
    assert sum(parameters(PUBLISHED).values()) == 25_250_986_752
    assert sum(checkpoint_bytes(PUBLISHED).values()) == 2 * 25_250_986_752 == 50_501_973_504


def test_the_matrices_of_a_part_are_its_parameters_but_for_vectors():
    for config in (PUBLISHED, Config.preset("tiny"), Config.preset("python_small")):
        counted = parameters(config)
        for part, shapes in matrix_shapes(config).items():
            left = counted[part] - sum(n * r * w for n, r, w in shapes)
            assert (
                0 <= left <= config.num_hidden_layers * (config.hidden_size + config.num_experts)
            ), part


@pytest.mark.parametrize("parts", ["experts", "everything"])
def test_the_arithmetic_is_what_a_packed_model_holds(parts):
    model = tiny(hidden_size=40)  # an odd width: blocks are padded
    chosen = PARTS if parts == "everything" else (parts,)
    scales = calibrate(model, logits, chosen)
    packed = quantize_model(model, chosen, input_scales=scales)
    buffers = [b for m in packed.modules() if isinstance(m, PackedWeight) for b in m.buffers(False)]
    held = sum(b.numel() * b.element_size() for b in buffers)
    sizes = checkpoint_bytes(model.config, dict.fromkeys(chosen, "nvfp4"))
    vectors = {
        part: 2 * (n - sum(k * r * w for k, r, w in matrix_shapes(model.config)[part]))
        for part, n in parameters(model.config).items()
        if part in chosen
    }
    without_inputs = 4 if "embedding" in chosen else 0  # the table is no input's matrix
    assert held == sum(sizes[part] - vectors[part] for part in chosen) - without_inputs


def test_the_cache_is_the_published_bytes_a_token():
    per_token = cache_bytes(PUBLISHED, 1)
    assert per_token == 25 * 8192 + 5 * 4096  # facts, 5.5: derived from the config there too
    long, longer = (cache_bytes(PUBLISHED, n) for n in (100_000, 100_001))
    assert longer - long == 5 * 4096  # sliding layers stopped growing at their window
    assert cache_bytes(PUBLISHED, 1024) == 1024 * per_token and cache_bytes(PUBLISHED, 0) == 0
    assert cache_bytes(PUBLISHED, 100, kv_bytes=1, batch=3) == 1.5 * cache_bytes(PUBLISHED, 100)
    assert step_bytes(PUBLISHED) == 256 * 262_144 * 4


def test_what_fits_where():
    left = {name: room(PUBLISHED, name, 8192) for name in STORAGE}
    assert all(set(cards) == set(CARDS) for cards in left.values())
    assert left["NVFP4 experts"]["RTX 4090"] > 0 > left["NVFP4 experts"]["RTX 5080"]
    assert left["FP8"]["RTX 5090"] > 0 > left["FP8"]["RTX 4090"] and all(
        v < 0 for v in left["BF16"].values()
    )
    far = room(PUBLISHED, "NVFP4 experts", 262_144)
    assert far["RTX 4090"] < left["NVFP4 experts"]["RTX 4090"]


def test_bad_requests_are_named():
    with refused("parts", "heads"):
        checkpoint_bytes(PUBLISHED, {"heads": "fp8"})
    with refused("kind", "int4"):
        checkpoint_bytes(PUBLISHED, {"experts": "int4"})
    with refused("storage", "GGUF"):
        room(PUBLISHED, "GGUF", 10)
    with refused("context", "-1"):
        cache_bytes(PUBLISHED, -1)
