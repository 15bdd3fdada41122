"""Text metrics on models whose answers are known.

What is counted, what is paired, what is cut, and the documented command.
"""

import json
import shutil
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
import torch
from tiny import C, Example, refused, tiny

from diffgemma_lite.labs import __main__ as command
from diffgemma_lite.labs import recipe as recipes
from diffgemma_lite.labs.python_text import evaluate as module
from diffgemma_lite.labs.python_text.card import model_card
from diffgemma_lite.labs.python_text.evaluate import (
    TextPlan,
    canvases,
    evaluate_text,
    evenly,
    infill,
    left_padded,
    parses,
    stutter,
)
from diffgemma_lite.sampler import SamplerConfig

SHIPPED = Path(__file__).parents[2] / "assets" / "checkpoints" / "python-small"
FEW = SamplerConfig(max_denoising_steps=2, confidence_threshold=None)
PLAN = TextPlan(hole_sizes=(1, 2), holes=6, texts=4, likelihoods=4, steps=8, draws=2, batch_size=4)


@dataclass
class Pair:
    task: str
    prompt: str
    target: str


def answers(n=8, length=6):
    return [Example([2, 3, 10 + i], list(range(20 + i, 20 + i + length))) for i in range(n)]


def oracle(model, examples, monkeypatch, right=lambda i: True):
    """`generate` fills in what the pinned canvas is known to have held, where `right` says so.

    Left to right always fails.
    """
    true = [torch.tensor([*e.response, *[1] * (C - len(e.response))]) for e in examples]
    seen = []

    def told(model, ids, sampler, *, initial_canvas, pinned, **more):
        tokens = initial_canvas.clone()
        for row in range(len(ids)):
            i = next(i for i, e in enumerate(examples) if e.prompt[-1] == int(ids[row, -1]))
            assert torch.equal(initial_canvas[row][pinned[row]], true[i][pinned[row]])
            seen.append((i, int((~pinned[row]).nonzero()[0]), int((~pinned[row]).sum())))
            tokens[row] = true[i] if right(i) else torch.where(pinned[row], true[i], 0)
        return type("Out", (), {"tokens": tokens, "steps": [[2] * len(ids)]})

    def left(model, ids, *, attention_mask, max_new_tokens):
        at = len(seen) - len(ids)
        for row in range(len(ids)):  # it is shown the prompt and the answer up to the hole
            i, start, _ = seen[at + row]
            assert ids[row][attention_mask[row] > 0].tolist() == [
                *examples[i].prompt,
                *examples[i].response[:start],
            ]
        return type("Out", (), {"tokens": torch.zeros(len(ids), max_new_tokens, dtype=torch.int64)})

    monkeypatch.setattr(module, "generate", told)
    monkeypatch.setattr(module, "generate_autoregressive", left)
    return seen


@pytest.mark.parametrize("size", [1, 2, 4])
def test_a_hole_is_scored_by_all_of_its_tokens_and_in_pairs(size, monkeypatch):
    model, examples = tiny(), answers()
    seen = oracle(model, examples, monkeypatch, right=lambda i: i % 2 == 0)
    found = infill(model, examples, size, FEW, replace(PLAN, holes=8))
    assert found["diffusion"]["share"] == 0.5 and found["diffusion"]["n"] == 8
    assert found["autoregressive"]["share"] == 0 and found["difference"]["mean"] == 0.5
    for i, start, length in seen:  # the hole lies in the answer, with a token of it on either side
        assert length == size and 1 <= start and start + size < len(examples[i].response)


def test_a_hole_stands_where_the_seed_says_whatever_the_batch(monkeypatch):
    model, examples = tiny(), answers()
    seen = oracle(model, examples, monkeypatch)
    for batch in (2, 8):
        infill(model, examples, 2, FEW, replace(PLAN, holes=8, batch_size=batch))
    assert seen[:8] == seen[8:]


def test_holes_of_the_real_model_come_back_with_everything_else_unchanged():
    found = infill(tiny(), answers(), 2, FEW, PLAN)
    assert found["diffusion"]["n"] == PLAN.holes and found["steps"]["mean"] == 2
    with refused("examples", "hole of 7"):
        infill(tiny(), answers(), 7, FEW, PLAN)


def test_what_parses():
    assert (
        parses("def f():\n    return 1")
        and not parses("def f():\n    return (1")
        and not parses("def f(:")
    )
    assert not parses("x = '\0'") and parses('"\\d"')


def test_bodies_are_counted_with_and_without_the_empty_ones(monkeypatch):
    """Four signatures; the writer leaves one empty, breaks one and gets two right."""
    words = {5: "\n    return 1", 6: "\n    return (", 7: ""}

    def decode(ids):
        return "".join(words[i] for i in ids)

    pairs = [
        (Pair("body", f'def f{n}():\n    """Do."""', words[5]), Example([2, n], [5]))
        for n in range(4)
    ]
    broken = (Pair("body", "def f(:", ""), Example([2, 3], [5]))
    monkeypatch.setattr(module, "write", lambda *given: [[5], [6], [7], [5]])
    found = canvases(tiny(), [broken, *pairs], decode, FEW, PLAN)
    # the broken signature is not asked
    assert found["true"]["parse"]["share"] == 1 and found["true"]["parse"]["n"] == 4
    assert found["diffusion"]["parse"]["share"] == 0.75 and found["diffusion"]["empty"] == 1
    assert found["diffusion"]["parse_not_empty"]["share"] == pytest.approx(2 / 3)
    with refused("pairs"):
        canvases(tiny(), [broken], decode, FEW, PLAN)


def test_stutter_counts_repeats():
    found = stutter([[1, 1, 1, 2], [1, 2, 3, 4, 1, 2, 3, 4], [9]])
    assert found["same_token"]["mean"] == pytest.approx(2 / 10)
    # 1 + 5 runs of four, one of which stood there already
    assert found["repeated_run"]["mean"] == pytest.approx(1 / 6)
    assert stutter([[3]]) == {}


def test_small_helpers():
    ids, mask = left_padded([[5], [6, 7, 8]], 0)
    assert ids.tolist() == [[0, 0, 5], [6, 7, 8]] and mask.tolist() == [[0, 0, 1], [1, 1, 1]]
    assert evenly("abcdef", 3) == ["a", "c", "e"] and evenly("ab", 9) == ["a", "b"]


def test_everything_and_the_card_that_tells_it():
    examples = answers()
    corpus = [Pair("body", 'def f():\n    """Do."""', "") for _ in examples]
    model = tiny()
    model.generation_defaults = {"max_denoising_steps": 2}
    scores = evaluate_text(model, corpus, examples, lambda ids: " x" * len(ids), PLAN)
    assert [hole["size"] for hole in scores["infill"]] == [1, 2] and scores["canvases"]["true"][
        "parse"
    ]["n"] == 4
    shipped = json.loads((SHIPPED / "scores.json").read_text(encoding="utf-8"))
    log = [json.loads((SHIPPED / "log.jsonl").read_text(encoding="utf-8").splitlines()[-1])]
    told = shipped | {"text": {"split": "test", "python": "3.0"} | scores}
    card = model_card(
        "tiny", model.config, recipes.Recipe(SHIPPED / "recipe.json").training, model, told, log
    )
    assert (
        f"{scores['bits_per_token']['bound']['mean']:.3f}" in card
        and "not a separate model" in card
    )
    bare, training = (
        {k: v for k, v in shipped.items() if k != "text"},
        recipes.Recipe(SHIPPED / "recipe.json").training,
    )
    assert "bits per token" not in model_card("tiny", model.config, training, model, bare, log)
    with refused("encoded", "1"):
        evaluate_text(model, corpus, examples[:1], str)


def test_the_shipped_card_is_what_the_code_writes(tmp_path):
    folder = tmp_path / SHIPPED.name
    folder.mkdir()
    for path in SHIPPED.iterdir():
        if path.suffix in (".json", ".jsonl"):
            shutil.copy(path, folder / path.name)
    command.main(["card", str(folder)])
    assert (folder / "README.md").read_text(encoding="utf-8") == (SHIPPED / "README.md").read_text(
        encoding="utf-8"
    )


def test_the_shipped_scores_are_of_what_was_asked():
    """n of at least 300 holes, pairs that add up, intervals that hold their shares."""
    text = json.loads((SHIPPED / "scores.json").read_text(encoding="utf-8"))["text"]
    for hole in text["infill"]:
        assert hole["diffusion"]["n"] == hole["autoregressive"]["n"] >= 300
        assert hole["difference"]["mean"] == pytest.approx(
            hole["diffusion"]["share"] - hole["autoregressive"]["share"]
        )
    bits = text["bits_per_token"]
    assert bits["difference"]["mean"] == pytest.approx(
        bits["bound"]["mean"] - bits["autoregressive"]["mean"]
    )
