"""The loader holds one copy of the weights and no more than two shards beside it, whatever the
number of shards.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from diffgemma_lite import Config, DiffusionGemma

MB = 2**20
# 170 MB of weights in a dozen shards
SIZES = dict(
    vocab_size=4096,
    hidden_size=512,
    intermediate_size=512,
    num_hidden_layers=12,
    num_experts=4,
    moe_intermediate_size=384,
    head_dim=64,
    global_head_dim=64,
    canvas_length=8,
)
SHARD = 12 * MB
# what the allocator keeps aside differs from run to run and only adds: the least is the loader's
RUNS = 3

# One arena for glibc and one thread, so that freed memory is used again
ONE_ARENA = os.environ | {"MALLOC_ARENA_MAX": "1", "OMP_NUM_THREADS": "1"}

# Runs by itself, so that the peak is the loader's. Writing 5 to clear_refs sets the peak back to
# what is held now.
MEASURE = """
import json, sys
import torch
from diffgemma_lite import DiffusionGemma
from safetensors.torch import load_file

def status(key):
    lines = open("/proc/self/status").read().splitlines()
    return 1024 * int(next(l for l in lines if l.startswith(key + ":")).split()[1])

def growth(work):
    open("/proc/self/clear_refs", "w").write("5")
    before = status("VmRSS")
    kept = work()
    return status("VmHWM") - before, kept

folder, files = sys.argv[1], sys.argv[2:]
warm = DiffusionGemma.from_pretrained(sys.argv[1] + "/small")
ours, model = growth(lambda: DiffusionGemma.from_pretrained(folder))
def at_once():
    state = {k: v.clone() for f in files for k, v in load_file(f).items()}
    return state, {k: v.clone() for k, v in state.items()}
naive, _ = growth(at_once)
weights = sum(t.nbytes for t in model.state_dict().values())
print(json.dumps({"ours": ours, "naive": naive, "weights": weights}))
"""


def write_shards(model: DiffusionGemma, folder: Path) -> list[Path]:
    """Save the model and cut its file into shards with an index, as Transformers names them.

    Returns the shards.
    """
    from safetensors.torch import load_file, save_file

    model.save_pretrained(folder)
    whole = folder / "model.safetensors"
    groups: list[dict[str, torch.Tensor]] = [{}]
    for name, tensor in load_file(whole).items():
        if groups[-1] and sum(t.nbytes for t in groups[-1].values()) + tensor.nbytes > SHARD:
            groups.append({})
        groups[-1][name] = tensor.clone()
    whole.unlink()
    names = [f"model-{i + 1:05d}-of-{len(groups):05d}.safetensors" for i in range(len(groups))]
    for name, group in zip(names, groups, strict=True):
        save_file(group, folder / name)
    index = {
        "weight_map": {
            tensor: name for name, group in zip(names, groups, strict=True) for tensor in group
        }
    }
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    return [folder / name for name in names]


@pytest.mark.skipif(
    not Path("/proc/self/clear_refs").exists(),
    reason="the peak of one stretch of work is read from Linux's /proc",
)
def test_the_loaders_memory_is_the_weights_and_two_shards(tmp_path: Path) -> None:
    torch.manual_seed(0)
    shards = write_shards(DiffusionGemma(Config.preset("tiny", **SIZES)), tmp_path)
    DiffusionGemma(Config.preset("tiny")).save_pretrained(tmp_path / "small")
    command = [sys.executable, "-c", MEASURE, str(tmp_path), *map(str, shards)]
    largest = max(shard.stat().st_size for shard in shards)
    for _ in range(RUNS):
        run = subprocess.run(
            command,
            capture_output=True,
            text=True,
            check=False,
            cwd=Path(__file__).parents[2],
            env=ONE_ARENA,
        )
        assert run.returncode == 0, run.stderr
        seen = json.loads(run.stdout)
        limit = seen["weights"] + 2 * largest
        print(
            f"{len(shards)} shards of at most {largest / MB:.1f} MB:",
            {k: f"{v / MB:.1f} MB" for k, v in seen.items()},
        )
        assert len(shards) > 10 and limit < 1.3 * seen["weights"]
        assert seen["naive"] > limit, (
            "the measurement would not see a loader that holds everything twice"
        )
        if seen["ours"] < limit:
            break
    assert seen["ours"] < limit
