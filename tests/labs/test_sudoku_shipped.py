"""The shipped Sudoku model: the same logits in Transformers, one copy in bfloat16, and it solves
what its scores say.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from transformers import DiffusionGemmaForBlockDiffusion

from diffgemma_lite import DiffusionGemma, SamplerConfig
from diffgemma_lite.labs.sudoku.data import BANDS
from diffgemma_lite.labs.sudoku.evaluate import attempt, score
from diffgemma_lite.labs.sudoku.splits import puzzles
from diffgemma_lite.labs.sudoku.train import read_recipe

FOLDER = Path(__file__).parents[2] / "assets" / "checkpoints" / "sudoku-small"


@pytest.fixture(scope="module")
def ours():
    return DiffusionGemma.from_pretrained(FOLDER, dtype=torch.float32).eval()


@torch.no_grad()
def test_logits_are_those_of_transformers(ours):
    theirs = DiffusionGemmaForBlockDiffusion.from_pretrained(FOLDER, dtype=torch.float32).eval()
    theirs.set_experts_implementation("eager")
    ours.set_kernels(experts="loop", fused_norm=False)
    _, layout, _ = read_recipe(FOLDER / "recipe.json")
    ids = torch.from_numpy(layout.prompt(torch.zeros(1, 81, dtype=torch.long).numpy()))
    canvas = torch.randint(
        0, layout.vocab_size, (1, 81), generator=torch.Generator().manual_seed(0)
    )
    belief = ours.decode(canvas, ours.encode(ids))
    assert torch.equal(belief, theirs(input_ids=ids, decoder_input_ids=canvas).logits)
    again = theirs(input_ids=ids, decoder_input_ids=canvas, self_conditioning_logits=belief).logits
    assert torch.equal(ours.decode(canvas, ours.encode(ids), belief), again)


def test_size_is_one_copy_in_bfloat16(ours):
    size = (FOLDER / "model.safetensors").stat().st_size
    assert 2 * sum(t.numel() for t in ours.state_dict().values()) < size < 32e6


def test_recorded_scores_are_whole_and_a_few_puzzles_agree(ours):
    scores = json.loads((FOLDER / "scores.json").read_text(encoding="utf-8"))
    _, layout, _ = read_recipe(FOLDER / "recipe.json")
    assert set(scores["bands"]) == set(BANDS) and all(
        s["exact"]["n"] >= 100 for s in scores["bands"].values()
    )
    some = puzzles("test", "easy", 10)
    sampler = SamplerConfig.from_defaults(ours.generation_defaults, draw="cdf")
    solved = score(attempt(ours, layout, some, sampler=sampler), some)["exact"]["share"]
    # ten puzzles tell little, but a broken model solves none
    assert solved >= scores["bands"]["easy"]["exact"]["low"] - 0.3
