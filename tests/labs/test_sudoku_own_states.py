"""Training on the states that sampling meets.

The rows are real runs of the sampler, and a run resumes exactly.
"""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
import torch
from tiny import refused

from diffgemma_lite.labs.sudoku.batches import SudokuTraining, stack_puzzles
from diffgemma_lite.labs.sudoku.data import violations
from diffgemma_lite.labs.sudoku.evaluate import only_digits
from diffgemma_lite.labs.sudoku.own_states import OwnStates
from diffgemma_lite.labs.sudoku.splits import minimal_puzzles
from diffgemma_lite.labs.sudoku.state import STATE
from diffgemma_lite.labs.sudoku.task import FIRST, Layout
from diffgemma_lite.labs.sudoku.train import (
    new_model,
    own_states_loss,
    stages_of,
    train_run,
    train_sudoku,
)
from diffgemma_lite.sampler import Step, denoise_step

SIZES, LAYOUT = dict(width=32, layers=2), Layout("legend", 4, spare=10)
SAMPLER = dict(max_denoising_steps=4, t_max=1.5, t_min=1.0, entropy_bound=0.2)
PLAN = SudokuTraining(
    steps=6,
    decay_steps=2,
    batch_size=6,
    fewest=6,
    middle=8,
    most=12,
    own_rows=4,
    own_runs=4,
    own_sampler=SAMPLER,
    checkpoint_every=2,
    log_every=1,
)


@pytest.fixture(scope="module")
def stacked():
    return stack_puzzles(minimal_puzzles(20, n=4))


def test_a_row_begins_as_sampling_does(stacked):
    own = OwnStates(LAYOUT, stacked, PLAN)
    batch = own.batch(0)
    assert len(batch.clean) == 6 and not batch.told.any()
    assert torch.equal(own.canvas[own.pinned], own.clean[own.pinned]), "clues stand in the canvas"
    many = OwnStates(LAYOUT, stacked, replace(PLAN, batch_size=64, own_rows=64, own_runs=64))
    free = many.canvas[~many.pinned]
    assert (free == many.clean[~many.pinned]).float().mean() < 0.1 and len(free.unique()) > 30, (
        "the rest is any token"
    )
    assert own.taken == 4 and many.taken == 64


def test_rows_are_the_samplers_runs(stacked):
    """A model that never changes: all rows at one age are what denoise_step gives from the same
    numbers.
    """
    own, model = (
        OwnStates(LAYOUT, stacked, replace(PLAN, batch_size=4)),
        new_model(LAYOUT, SIZES, 0).eval(),
    )
    begun = {name: value.clone() for name, value in own.state().items()}
    steps: list[Step] = []
    canvas, belief, cache = begun["canvas"], None, model.encode(begun["prompt"])
    for i in range(3):
        with torch.no_grad():
            _, logits = own_states_loss(model, own.batch(i), LAYOUT)
            own.advance(logits, i)
            wanted = only_digits(LAYOUT)(model.decode(canvas, cache, belief), canvas)
        g = torch.Generator().manual_seed(PLAN.seed * 1_000_003 + i)
        steps.append(
            denoise_step(
                wanted,
                canvas,
                i,
                own.sampler,
                previous=steps,
                generator=g,
                pinned=begun["pinned"],
                pinned_ids=begun["clean"],
            )
        )
        canvas, belief = steps[-1].next_canvas, steps[-1].scaled_logits
        assert torch.equal(own.clean, begun["clean"]), "no row ended: a fresh model solves nothing"
        assert torch.equal(own.canvas, canvas)
        torch.testing.assert_close(own.batch(i + 1).belief, belief, rtol=1e-5, atol=1e-4)
    assert own.age.tolist() == [3] * 4 and own.batch(3).told.all()


def answer_of(own: OwnStates, rows: torch.Tensor) -> torch.Tensor:
    """Logits [B, C, V] that write the answer in these rows and a digit that is wrong everywhere in
    the others.
    """
    wrong = (own.clean - 4 + 1) % 4 + 4
    return (
        torch.nn.functional.one_hot(torch.where(rows[:, None], own.clean, wrong), LAYOUT.vocab_size)
        * 30.0
    )


def test_solved_twice_or_spent_and_the_next_puzzle_comes(stacked):
    own = OwnStates(LAYOUT, stacked, PLAN)
    first, good = own.clean.clone(), torch.tensor([True, True, False, False])
    own.advance(answer_of(own, good), 0)
    assert torch.equal(own.clean, first) and own.take_ended() == {}, "once is not enough"
    own.advance(answer_of(own, good), 1)
    assert own.age.tolist() == [0, 0, 2, 2] and own.taken == 6
    assert own.take_ended() == {"own_solved": 1.0, "own_steps": 2.0}
    for step in (2, 3):
        own.advance(answer_of(own, torch.zeros(4, dtype=torch.bool)), step)
    assert own.age.tolist() == [2, 2, 0, 0], "their four steps are spent"
    assert own.take_ended() == {"own_solved": 0.0, "own_steps": 4.0} and own.take_ended() == {}
    assert not own.belief[2:].any() and own.belief[:2].any()


def test_the_loss_is_that_of_ordinary_training_where_no_row_has_a_belief(stacked):
    own, model = OwnStates(LAYOUT, stacked, PLAN), new_model(LAYOUT, SIZES, 0)
    batch = own.batch(0)
    loss, logits = own_states_loss(model, batch, LAYOUT)
    alone = model.decode(batch.canvas, model.encode(batch.prompt))
    torch.testing.assert_close(logits, alone)
    nats = -alone.log_softmax(-1).gather(-1, batch.clean[..., None])[..., 0]
    each = (nats * batch.counted).sum(1) / batch.counted.sum(1)
    torch.testing.assert_close(loss, each.mean())


def test_runs_take_turns(stacked):
    own = OwnStates(LAYOUT, stacked, replace(PLAN, own_runs=10))
    assert [own.turn(step).tolist() for step in range(3)] == [
        [0, 1, 2, 3],
        [4, 5, 6, 7],
        [8, 9, 0, 1],
    ]
    before = own.state()["canvas"].clone()
    own.advance(answer_of(own, torch.zeros(10, dtype=torch.bool))[4:8], 1)
    assert own.age.tolist() == [0] * 4 + [1] * 4 + [0] * 2
    moved = (own.canvas != before).any(1)
    assert moved[4:8].all() and not moved[:4].any() and not moved[8:].any()
    assert own.batch(1).told.tolist() == [False] * 2 + [True] * 4


@pytest.mark.parametrize("n", [4, 6, 9])
def test_a_run_in_another_disguise_is_the_same_run(n):
    layout = Layout("legend", n, spare=10)
    plan = replace(PLAN, fewest=n, middle=2 * n, most=3 * n, own_runs=10)
    own = OwnStates(layout, stack_puzzles(minimal_puzzles(6, n=n)), plan)
    g = torch.Generator().manual_seed(0)
    own.belief = torch.randn(own.belief.shape, generator=g)
    # digits and given digits, most of them wrong
    guess = torch.randint(FIRST, layout.names, own.canvas.shape, generator=g)
    own.canvas = torch.where(torch.rand(own.canvas.shape, generator=g) < 0.7, guess, own.canvas)
    before = {name: value.clone() for name, value in own.state().items()}
    own._redisguise(torch.arange(4), 0)
    after = own.state()
    moved = (after["clean"] != before["clean"]).any(1)
    assert moved[:4].all() and not moved[4:].any()

    def digit_of(ids):
        """0 to n - 1 for digits and given digits, else -1."""
        return torch.where((ids >= FIRST) & (ids < layout.names), (ids - FIRST) % n, -1)

    def told(state, run):
        """What no disguise changes, cell by cell.

        Clue or not, what kind of token stands there, how strongly its digit and the right one are
        believed, and all beliefs without their names.
        """
        clean, canvas, belief = state["clean"][run], state["canvas"][run], state["belief"][run]
        rows = []
        for p, c, k, b in zip(state["pinned"][run], clean, canvas, belief, strict=True):
            kind = (
                int(k)
                if k >= layout.names or k < FIRST
                else ("given" if k >= layout.first else "digit")
            )
            here = float(b[digit_of(k)]) if digit_of(k) >= 0 else None
            rows.append(
                (
                    bool(p),
                    str(kind),
                    bool(c == k),
                    float(b[digit_of(c)]),
                    str(here),
                    tuple(sorted(b.tolist())),
                )
            )
        return sorted(rows)

    for run in range(10):
        assert told(before, run) == told(after, run)
        grid = (digit_of(after["clean"][run]) + 1).tolist()
        assert min(grid) > 0 and violations(grid) == 0, "still a grid"
    pairs = [
        {
            (int(digit_of(a)), int(digit_of(b)))
            for a, b in zip(s["clean"][0], s["canvas"][0], strict=True)
        }
        for s in (before, after)
    ]
    assert len(pairs[0]) == len(pairs[1]), "wrong digits are renamed like right ones"
    assert torch.equal(after["age"], before["age"]) and torch.equal(
        after["prompt"], before["prompt"]
    )


@pytest.mark.parametrize("runs, disguised", [(4, False), (10, False), (5, True)])
def test_resume_is_exact(runs, disguised, stacked, tmp_path):
    few = SAMPLER | {"max_denoising_steps": 2}  # so that puzzles end
    plan = replace(PLAN, own_runs=runs, own_disguised=disguised, own_sampler=few)
    whole, cut, resumed = (new_model(LAYOUT, SIZES, seed) for seed in (0, 0, 1))
    log = train_sudoku(whole, LAYOUT, stacked, plan)
    assert runs > 5 or any("own_solved" in entry for entry in log)
    train_sudoku(cut, LAYOUT, stacked, plan, folder=tmp_path, on_log=lambda e: e["step"] == 3)
    again = train_sudoku(resumed, LAYOUT, stacked, plan, folder=tmp_path)
    assert [e["loss"] for e in again] == [e["loss"] for e in log]
    assert all(
        torch.equal(a, b) for a, b in zip(whole.parameters(), resumed.parameters(), strict=True)
    )


def test_the_next_puzzle_does_not_depend_on_a_stop(stacked):
    whole = OwnStates(LAYOUT, stacked, replace(PLAN, own_runs=62))
    again = OwnStates(LAYOUT, stacked, replace(PLAN, own_runs=62))
    again.load({name: value.clone() for name, value in whole.state().items()})
    for own in (whole, again):
        for run in range(4):  # over the edge of the 64 that are drawn at a time
            own._begin(run)
    assert all(
        torch.equal(a, b)
        for a, b in zip(whole.state().values(), again.state().values(), strict=True)
    )
    assert whole.taken == 66 and not torch.equal(whole.clean[2], whole.clean[3])


def test_a_later_stage_starts_from_the_earlier_ones_weights(tmp_path, capsys):
    train = dict(
        steps=2,
        decay_steps=1,
        batch_size=4,
        fewest=6,
        middle=8,
        most=12,
        checkpoint_every=2,
        log_every=1,
    )
    recipe = {
        "layout": {"name": "legend", "n": 4},
        "look": 0.0,
        "model": SIZES,
        "puzzles": 12,
        "about": "a test",
        "train": train
        | dict(
            seed=1,
            learning_rate=1e-9,
            weight_decay=0.0,
            own_rows=4,
            own_runs=8,
            own_sampler=SAMPLER,
        ),
        "first": {"puzzles": 6, "train": train},
    }
    (tmp_path / "recipe.json").write_text(json.dumps(recipe))
    train_run(tmp_path / "recipe.json", tmp_path / "run")
    said = capsys.readouterr().out
    assert "6 puzzles" in said and "12 puzzles" in said
    from safetensors.torch import load_file

    early, late = (load_file(tmp_path / "run" / part / STATE) for part in ("first", ""))
    weights = [name for name in early if name.startswith("model.")]
    assert max(float((early[n] - late[n]).abs().max()) for n in weights) < 1e-7, (
        "a rate of nearly nothing keeps them"
    )
    assert "own.belief" in late and "own.belief" not in early
    before = (tmp_path / "run" / "first" / STATE).read_bytes()
    train_run(tmp_path / "recipe.json", tmp_path / "run")
    assert (tmp_path / "run" / "first" / STATE).read_bytes() == before, (
        "what is done is not done again"
    )


def test_a_state_from_before_a_setting_existed_is_read(stacked, tmp_path):
    from safetensors import safe_open
    from safetensors.torch import load_file, save_file

    plan = replace(PLAN, own_rows=0, own_runs=0, own_sampler={})
    train_sudoku(
        new_model(LAYOUT, SIZES, 0),
        LAYOUT,
        stacked,
        plan,
        folder=tmp_path,
        on_log=lambda e: e["step"] == 2,
    )
    with safe_open(tmp_path / STATE, framework="pt") as file:
        meta = file.metadata()
    old = json.loads(meta["plan"])
    del old["own_rows"], old["own_runs"], old["own_sampler"]
    save_file(
        load_file(tmp_path / STATE), tmp_path / STATE, metadata=meta | {"plan": json.dumps(old)}
    )
    assert [
        e["step"]
        for e in train_sudoku(new_model(LAYOUT, SIZES, 0), LAYOUT, stacked, plan, folder=tmp_path)
    ][-1] == 6


def test_refused(stacked):
    for rows in (-1, 5, 8):
        with refused("own_rows", str(rows)):
            replace(PLAN, own_rows=rows)
    with refused("own_rows", "masked", "takes 0"):
        replace(PLAN, sibling="masked")
    for name in ("speed", "confidence_threshold"):  # the answer says when a run ends
        with refused("own_sampler", name, "max_denoising_steps"):
            replace(PLAN, own_sampler={name: 3})
    with refused("own_disguised", "own_rows = 0"):
        replace(PLAN, own_rows=0, own_runs=0, own_sampler={}, own_disguised=True)
    with refused("entropy_bound", "-1"):
        replace(PLAN, own_sampler={"entropy_bound": -1})
    with refused("own_sampler", "own_rows = 0"):
        replace(PLAN, own_rows=0, own_runs=0)
    for runs in (0, 3):
        with refused("own_runs", str(runs), "own_rows = 4"):
            replace(PLAN, own_runs=runs)
    with refused("own_disguised", "plain", "legend"):
        OwnStates(Layout("plain", 4), stacked, replace(PLAN, own_disguised=True))
    with refused("log_every", "0", "at least 1"):
        replace(PLAN, log_every=0)
    with refused("fewest, middle, most", "9, 8, 12"):
        replace(PLAN, fewest=9)
    train = dict(steps=1, decay_steps=0)
    for first in (
        {"puzzles": 3},
        {"train": train, "layout": {}},
        {"train": train, "first": {"train": train, "tests": 3}},
    ):
        with refused("first", "takes train"):
            stages_of({"train": train, "first": first})
    with refused("steps", "0"):
        stages_of({"train": train, "first": {"train": dict(steps=0, decay_steps=0)}})
