"""Few steps: what counts as right, which answers become targets, at which states they are learnt,
and what is said of it.
"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from tiny import C, V, generator, random_ids, refused, tiny

from diffgemma_lite import SamplerConfig
from diffgemma_lite.generation import generate
from diffgemma_lite.labs.distill import (
    Answers,
    Distillation,
    Questions,
    answers,
    ask_teacher,
    body_questions,
    distill,
    record_questions,
    state_of_few_steps,
    step_curve,
    sudoku_questions,
    targets,
    variety,
)
from diffgemma_lite.labs.distill import train as recipe_run
from diffgemma_lite.labs.python_text.data import Example
from diffgemma_lite.labs.records.data import records, template_tokenizer
from diffgemma_lite.labs.sudoku.data import Puzzle
from diffgemma_lite.labs.sudoku.splits import minimal_puzzles
from diffgemma_lite.labs.sudoku.task import Layout
from diffgemma_lite.tokenizer import Tokenizer

SAMPLER = SamplerConfig(
    max_denoising_steps=4, entropy_bound=4.0, confidence_threshold=None, draw="cdf"
)
P = 6


def asked(right=lambda number, canvas: number % 2 == 0, **changes) -> Questions:
    """Six questions to the tiny model; the first position is pinned to 7."""
    pinned = torch.zeros(P, C, dtype=torch.bool)
    pinned[:, 0] = True
    return Questions(random_ids(P, 5), None, torch.full((P, C), 7), pinned, right, **changes)


def test_the_sudoku_reward_is_the_rules_and_never_the_solution():
    layout, puzzles = Layout("legend", 4), minimal_puzzles(3, n=4)
    q = sudoku_questions(layout, puzzles)
    blind = sudoku_questions(
        layout,
        [
            Puzzle(
                p.clues,
                tuple(d % 4 + 1 if not c else d for c, d in zip(p.clues, p.solution, strict=True)),
            )
            for p in puzzles
        ],
    )
    for n, p in enumerate(puzzles):
        canvas = torch.from_numpy(layout.canvas(np.array([p.clues]), np.array([p.solution]))[0][0])
        assert q.right(n, canvas) and blind.right(n, canvas)
        free = int(torch.where(~q.pinned[n])[0][0])
        for wrong in (0, 4 + p.solution[free] % 4):  # no digit, another digit
            spoilt = canvas.clone()
            spoilt[free] = wrong
            assert not q.right(n, spoilt)
    plain = sudoku_questions(Layout("plain", 4), puzzles)
    other = torch.tensor(puzzles[1].solution) + 3
    assert not plain.right(0, other), "a full grid that changes a clue"


def test_the_record_reward_is_the_checker():
    tokenizer, some = template_tokenizer(), records("train", 4)
    q = record_questions(tokenizer, some, 64, 24)
    assert (
        q.ids.shape == q.mask.shape
        and bool((q.ids[~q.mask] == tokenizer.pad_id).all())
        and bool(q.mask[:, -1].all())
    )
    for n, record in enumerate(some):
        ids = tokenizer.encode(record.target)
        whole = torch.tensor(ids + [tokenizer.eos_id] * (64 - len(ids)))
        assert q.right(n, whole)
        assert not q.right(n, whole.masked_fill(whole == tokenizer.eos_id, 5)), "no end token"
        assert not q.right(n, whole.roll(-1)), "the first token is missing"
        assert not q.right((n + 1) % 4, whole), "an answer to another question"


def test_answers_do_what_generate_does():
    model, q = tiny(), asked(end=11)
    a = answers(model, q, SAMPLER, seed=2, batch_size=4)
    assert a.canvas.shape == (P, C) and a.steps.tolist() == [4] * P
    assert a.right.tolist() == [n % 2 == 0 for n in range(P)]
    assert bool((a.canvas[:, 0] == 7).all()), "pinned"
    ended = (a.canvas == 11).cumsum(1) > 0
    assert bool((a.canvas[ended] == 11).all())
    again = answers(model, q, SAMPLER, seed=2, batch_size=4)
    assert torch.equal(a.canvas, again.canvas) and not torch.equal(
        a.canvas, answers(model, q, SAMPLER, seed=3).canvas
    )
    assert bool((a.at_sight < 0).all())


def made_up(right, sight, number):
    """Answers to three questions; the canvas holds the number of the attempt."""
    return Answers(
        torch.full((3, C), number), torch.full((3,), 5), torch.tensor(right), torch.tensor(sight)
    )


def test_targets_are_right_and_of_the_right_ones_the_likeliest_at_first_sight():
    tried = [
        made_up([True, False, False], [-1.0, -1.0, -1.0], 0),
        made_up([True, True, False], [-2.0, -2.0, -2.0], 1),
    ]
    plan = Distillation(candidates=2)
    rows, canvas, seen = targets(tried, plan)
    # the second question's surest answer was wrong
    assert rows.tolist() == [0, 1] and canvas[:, 0].tolist() == [0, 1]
    assert seen == {"answers": 6, "right": 0.5, "targets": 2, "steps": 5.0}
    rows, canvas, _ = targets(tried, replace(plan, rewarded=False))
    assert rows.tolist() == [0, 1, 2] and canvas[:, 0].tolist() == [0, 0, 0]
    with refused("model", "none of its 6 answers"):
        targets([made_up([False] * 3, [-1.0] * 3, n) for n in range(2)], plan)


def test_the_teacher_answers_anew_for_each_candidate_and_round():
    model, q, plan = tiny(), asked(), Distillation(candidates=2)
    first, second = ask_teacher(model, q, SAMPLER, plan, 0), ask_teacher(model, q, SAMPLER, plan, 1)
    drawn = [a.canvas for a in (*first, *second)]
    assert len(drawn) == 4 and not any(
        torch.equal(drawn[i], drawn[j]) for i in range(4) for j in range(i)
    )
    one, two = tiny(), tiny()
    short = replace(plan, steps=1)
    assert distill(one, q, SAMPLER, short) == distill(two, q, SAMPLER, short, tried=first)


def test_the_body_reward_is_the_parser():
    folder = Path(__file__).parents[2] / "assets/checkpoints/python-small"
    tokenizer = Tokenizer.load(folder)
    some = [
        Example("m", "body", 'def f(x):\n    """Double."""', "\n    return 2 * x"),
        Example("m", "body", "def (", "x"),
    ]
    q = body_questions(tokenizer, some, 32, 24, 5)
    assert len(q) == 1, "a signature that cannot be parsed is not asked"

    def canvas(text):
        ids = tokenizer.encode(text)
        return torch.tensor(ids + [tokenizer.eos_id] * (32 - len(ids)))

    assert q.right(0, canvas(some[0].target))
    assert (
        not q.right(0, canvas("\n    return ("))
        and not q.right(0, canvas(""))
        and not q.right(0, canvas("\n    "))
    )


@pytest.mark.parametrize("k", [0, 1, 3])
def test_states_are_those_of_a_run(k):
    model, q, rows, met = tiny(), asked(), torch.tensor([4, 1]), []
    canvas, belief = state_of_few_steps(model, q, rows, SAMPLER, k, generator(5))
    g = generator(5)
    start = torch.where(q.pinned[rows], q.known[rows], torch.randint(0, V, (2, C), generator=g))
    if k == 0:
        assert torch.equal(canvas, start) and belief is None
        return
    generate(
        model,
        q.ids[rows],
        SAMPLER,
        max_new_tokens=C,
        generator=g,
        initial_canvas=start,
        pinned=q.pinned[rows],
        on_step=lambda step: met.append(step) and None,
    )
    assert torch.equal(canvas, met[k].canvas) and torch.equal(belief, met[k - 1].scaled_logits)


def test_the_targets_become_likelier_at_first_sight_and_pinned_positions_do_not_count():
    model, q, log = tiny(), asked(), []
    plan = Distillation(steps=6, batch_size=3, learning_rate=3e-3, few_steps=2, rounds=2)
    distill(model, q, SAMPLER, plan, log.append)
    assert [e["round"] for e in log] == [0, 1] and log[0]["targets"] == 3 and log[0]["right"] == 0.5
    assert log[-1]["loss"][-1] < log[0]["loss"][0]
    assert not model.training
    everything = replace(q, pinned=torch.ones_like(q.pinned))
    fixed = tiny()
    before = {k: v.clone() for k, v in fixed.state_dict().items()}
    assert distill(fixed, everything, SAMPLER, replace(plan, steps=1, rounds=1))[0]["loss"] == [0.0]
    assert all(torch.allclose(v, before[k], atol=1e-3) for k, v in fixed.state_dict().items())


def test_curve_and_variety():
    model, q = tiny(), asked(right=lambda number, canvas: True)
    curve = step_curve(model, q, SAMPLER, (1, 3))
    assert [(row["limit"], row["steps"], row["right"]["share"]) for row in curve] == [
        (1, 1.0, 1.0),
        (3, 3.0, 1.0),
    ]
    # a tiny untrained model never writes the same twice
    assert variety(model, q, SAMPLER, draws=2, count=3) == 1.0
    pinned = replace(q, pinned=torch.ones_like(q.pinned))
    assert variety(model, pinned, SAMPLER, draws=2, count=3) == 0.5
    assert variety(model, asked(right=lambda number, canvas: False), SAMPLER, draws=2) is None


def made_scores(steps: float, right: float) -> dict:
    def stage(s, r):
        def row(limit, steps):
            return {
                "limit": limit,
                "right": {"n": 10, "share": r, "low": r - 0.1, "high": r + 0.1},
                "steps": steps,
            }

        return {"curve": [row(1, 1.0), row(16, s)], "variety": 0.5, "seconds": 60.0, "log": []}

    return {
        "base": {"name": "b", "sha256": "0"},
        "before": stage(10.0, 0.8),
        "after": stage(steps, right),
        "without the reward": stage(3, 0.2),
    }


def test_words_come_from_the_numbers():
    said = " ".join(recipe_run.words(made_scores(4.0, 0.9)))
    assert (
        "fall 2.50 times" in said
        and "+10.0%" in said
        and "is reached" in said
        and "differs by -70.0%" in said
    )
    assert (
        "10.00 steps before is reached or passed at a limit of 1 after it "
        "(90.0% [80.0%, 100.0%]), 10.00 times fewer" in said
    )
    worse = " ".join(recipe_run.words(made_scores(4.0, 0.7)))
    assert "is not reached" in worse and "reached at none of the limits" in worse
    assert "is not reached" in " ".join(recipe_run.words(made_scores(5.0, 0.9)))
    assert recipe_run.worth_keeping(made_scores(4.0, 0.75)) and not recipe_run.worth_keeping(
        made_scores(4.0, 0.6)
    )
    assert not recipe_run.worth_keeping(made_scores(11.0, 0.9))
    # a row of the curve: that is how it is shipped
    few = " ".join(recipe_run.words(made_scores(8.0, 0.9), few_steps=1))
    assert (
        "Allowed the 1 steps it was taught for: 90.0% [80.0%, 100.0%] right at 1.00 steps" in few
        and "fall 10.00 times" in few
    )
    assert recipe_run.worth_keeping(made_scores(11.0, 0.9), few_steps=1)


def test_a_recipe_runs_stage_by_stage_and_ships(tmp_path, monkeypatch):
    base, folder = tmp_path / "base", tmp_path / "few"
    model = tiny()
    model.generation_defaults = {"max_denoising_steps": 4, "entropy_bound": 4.0}
    model.save_pretrained(base)
    folder.mkdir()
    recipe = {
        "task": "records",
        "base": "base",
        "questions": P,
        "tests": P,
        "limits": [1, 4],
        "max_prompt": 5,
        "families": ["sql"],
        "distil": {"steps": 2, "batch_size": 2},
    }
    (folder / "recipe.json").write_text(json.dumps(recipe))
    monkeypatch.setattr(recipe_run, "questions", lambda *_: (asked(), asked()))
    monkeypatch.setattr(recipe_run, "worth_keeping", lambda *_: True)
    valid = {"valid": {"n": 10, "share": 0.9, "low": 0.8, "high": 1.0}, "passes": 2.5}
    monkeypatch.setattr(
        recipe_run,
        "by_family",
        lambda *_: [
            {"stage": s, "limit": 4, "found": {"sum": valid, "all": valid}}
            for s in ("before", "after")
        ],
    )
    scores = recipe_run.train_run(folder / "recipe.json", tmp_path / "out")
    assert [s for s in scores if s in recipe_run.STAGES] == list(recipe_run.STAGES)
    card = (folder / "README.md").read_text()
    assert (
        "(task records, sql)" in card
        and "| sum | 90.0% [80.0%, 100.0%], 2.50 steps | 90.0%" in card
    )
    assert (
        all(sentence in card for sentence in scores["words"])
        and (folder / "model.safetensors").exists()
    )
    stamp = (folder / "scores.json").read_text()
    monkeypatch.setattr(recipe_run, "distill", None)  # nothing is run twice
    recipe_run.train_run(folder / "recipe.json", tmp_path / "out")
    assert (folder / "scores.json").read_text() == stamp
    tiny(seed=1).save_pretrained(base)
    with refused("base", "other weights"):
        recipe_run.train_run(folder / "recipe.json", tmp_path / "out")


@pytest.mark.usefixtures("unchecked")
def test_refused():
    for name in ("rounds", "candidates", "few_steps", "steps", "batch_size"):
        with refused(name, "0", "at least 1"):
            Distillation(**{name: 0})
    with refused("learning_rate", "0", "above 0"):
        Distillation(learning_rate=0)
    with refused("task", "'poems'", "records"):
        recipe_run.questions({"task": "poems", "questions": 1, "tests": 1}, None, None)
