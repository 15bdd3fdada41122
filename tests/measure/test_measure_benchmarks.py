"""Each benchmark runs, compares two ways that agree, and prints their ratio from one run.

No speed is asserted.
"""

from __future__ import annotations

import importlib
import re
import subprocess
import sys

import pytest
import torch

from diffgemma_lite import Config
from diffgemma_lite.measure.provenance import ROOT
from diffgemma_lite.sampler import draw_tokens

FOLDER = ROOT / "benchmarks"
NAMES = sorted(path.stem for path in FOLDER.glob("*.py") if path.stem != "compare")
SMALL = {
    "experts_grouped": ["--tokens", "8", "--experts", "4"],
    "draw": ["--canvas", "4", "--vocabulary", "32"],
    "cached_decode": ["--prefix", "9", "--canvas", "4"],
    "canvas_step": ["--canvas", "8", "--prefix", "9"],
    "norm_fused": ["--rows", "4", "--width", "16"], "nvfp4": ["--prefix", "9", "--canvas", "4"],
}  # fmt: skip


@pytest.fixture
def small(monkeypatch):
    """The benchmarks importable, and their models tiny."""
    monkeypatch.syspath_prepend(str(FOLDER))
    tiny = Config.preset("tiny")
    for name in ("compare", *NAMES):
        monkeypatch.delitem(sys.modules, name, raising=False)
        module = importlib.import_module(name)
        if hasattr(module, "LAPTOP"):
            monkeypatch.setattr(module, "LAPTOP", tiny)
        if hasattr(module, "MODELS"):
            monkeypatch.setattr(module, "MODELS", {"tiny": tiny})
    yield
    for name in ("compare", *NAMES):
        sys.modules.pop(name, None)


@pytest.mark.parametrize("name", NAMES)
def test_a_benchmark_prints_a_ratio(name, small, capsys):
    found = sys.modules[name].main(["--seconds", "0", "--device", "cpu", *SMALL[name]])
    out = capsys.readouterr().out
    for ratio in found if isinstance(found, list) else [found]:
        assert ratio.pairs >= 5 and 0 < ratio.low <= ratio.median <= ratio.high
        assert re.search(rf"/ .*: {ratio.median:.2f} \(half of {ratio.pairs} pairs", out)
        assert f"torch {torch.__version__}" in out
    assert f"python benchmarks/{name}.py" in sys.modules[name].__doc__


def test_the_two_are_timed_in_turns(small):
    calls = []
    plain, other = (lambda name=name: calls.append(name) for name in "ab")
    sys.modules["compare"].in_turns(plain, other, torch.device("cpu"), seconds=0.0, least=3)
    assert "".join(calls) == "ab" * 4  # one pair that does not count, then three


def test_ways_that_disagree_are_not_timed(small, monkeypatch):
    draw = sys.modules["draw"]
    monkeypatch.setattr(
        draw, "draw_tokens", lambda logits, g, how: draw_tokens(logits, g, "race") + (how == "cdf")
    )
    with pytest.raises(AssertionError):
        draw.main(["--seconds", "0", "--device", "cpu", *SMALL["draw"]])


def test_a_benchmark_runs_as_the_command_it_names():
    command = [
        sys.executable,
        "benchmarks/draw.py",
        "--seconds",
        "0",
        "--device",
        "cpu",
        *SMALL["draw"],
    ]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0 and done.stdout.startswith("race / cdf, 4 positions, 32 words: "), (
        done.stderr
    )
