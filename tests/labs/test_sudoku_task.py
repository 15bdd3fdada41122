"""Layouts, where training starts, the three siblings' batches and losses, exact resume, and honest
scores.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from tiny import refused

from diffgemma_lite import DiffusionGemma
from diffgemma_lite.labs.sudoku.batches import SudokuTraining, draw_batch, stack_puzzles
from diffgemma_lite.labs.sudoku.data import solve
from diffgemma_lite.labs.sudoku.evaluate import SAMPLER, Attempt, attempt, score
from diffgemma_lite.labs.sudoku.splits import minimal_puzzles
from diffgemma_lite.labs.sudoku.task import FIRST, LAYOUTS, MASK, Layout
from diffgemma_lite.labs.sudoku.train import new_model, sudoku_loss, train_sudoku
from diffgemma_lite.trace.observe import counting

SIZES = dict(width=32, layers=2)
PLAN = SudokuTraining(
    steps=4,
    decay_steps=2,
    batch_size=4,
    fewest=6,
    middle=8,
    most=12,
    checkpoint_every=2,
    log_every=1,
)


@pytest.fixture(scope="module")
def small():
    """Ten minimal puzzles of side 4."""
    return minimal_puzzles(10, n=4)


def arrays(puzzles):
    return np.array([p.clues for p in puzzles]), np.array([p.solution for p in puzzles])


@pytest.mark.parametrize("name", LAYOUTS)
@pytest.mark.parametrize("n", [4, 6, 9])
def test_a_layout_gives_back_the_solution_and_never_shows_it(name, n):
    layout, puzzles = Layout(name, n), minimal_puzzles(3, n=n)
    clues, solution = arrays(puzzles)
    canvas, pinned = layout.canvas(clues, solution)
    assert (
        canvas.shape == pinned.shape == (3, layout.canvas_length)
        and canvas.max() < layout.vocab_size
    )
    assert (layout.grid(canvas, clues) == solution).all()
    # what must be found out is different, what is shown is not
    other = np.where(clues > 0, solution, solution % n + 1)
    changed, still = layout.canvas(clues, other)
    assert (still == pinned).all() and (changed[pinned] == canvas[pinned]).all()
    prompt = layout.prompt(clues)
    assert prompt.min() >= 0 and prompt.max() < layout.vocab_size
    seen = {tuple(prompt[b]) + tuple(np.where(pinned[b], canvas[b], -1)) for b in range(3)}
    assert len(seen) == 3, "prompt and pinned tokens must tell the puzzles apart"


@pytest.mark.parametrize("name", ["named", "legend", "pairs"])
def test_fresh_heads_of_the_first_layer_look_at_the_own_cell(name):
    layout = Layout(name)
    model = new_model(layout, dict(width=128, layers=2), seed=0)
    clues, solution = arrays(minimal_puzzles(2))
    prompt, (canvas, _) = torch.from_numpy(layout.prompt(clues)), layout.canvas(clues, solution)
    block, start = model.layers[0], prompt.shape[1]
    with torch.no_grad():
        x = model.embed_tokens(torch.from_numpy(canvas))
        x = block.input_layernorm(model.self_conditioning(x, torch.zeros_like(x)))
        rope = model._rope(torch.arange(start, start + canvas.shape[1])[None])["sliding_attention"]
        q, k, _ = block.self_attn.project(x, rope)
        keys = torch.cat([model.encode(prompt).keys[0], k], 2)
        looks = (q[:, :2] @ keys[:, :2].transpose(-1, -2)).softmax(-1)
    digits = torch.arange(81) * 2 + 1 if name == "pairs" else torch.arange(81)
    back = 1 if name == "pairs" else 81
    assert float(looks[:, :, digits, start + digits - back].min()) > 0.9


@pytest.mark.parametrize("name", ["legend", "pairs"])
def test_the_autoregressive_sibling_needs_the_puzzle_as_prompt(name, small):
    layout, plan = Layout(name, 4), replace(PLAN, sibling="autoregressive")
    with refused("sibling", "autoregressive", "plain or named"):
        train_sudoku(new_model(layout, SIZES, 0), layout, stack_puzzles(small), plan)


@pytest.mark.parametrize(
    "name, sibling", [("legend", "uniform"), ("pairs", "masked"), ("named", "autoregressive")]
)
def test_resume_is_exact(name, sibling, small, tmp_path):
    layout, stacked, plan = Layout(name, 4), stack_puzzles(small), replace(PLAN, sibling=sibling)
    whole, cut, resumed = (new_model(layout, SIZES, seed) for seed in (0, 0, 1))
    log = train_sudoku(whole, layout, stacked, plan)
    train_sudoku(cut, layout, stacked, plan, folder=tmp_path, on_log=lambda e: e["step"] == 2)
    again = train_sudoku(resumed, layout, stacked, plan, folder=tmp_path)
    assert [e["loss"] for e in again] == [e["loss"] for e in log]
    assert all(
        torch.equal(a, b) for a, b in zip(whole.parameters(), resumed.parameters(), strict=True)
    )
    with refused("folder", "another plan"):
        train_sudoku(resumed, layout, stacked, replace(plan, learning_rate=0.5), folder=tmp_path)


def test_noise_of_the_siblings(small):
    layout, stacked, many = Layout("legend", 4), stack_puzzles(small), replace(PLAN, batch_size=400)
    uniform = draw_batch(layout, stacked, many, 0)
    masked = draw_batch(layout, stacked, replace(many, sibling="masked"), 0)
    assert torch.equal(uniform.clean, masked.clean) and torch.equal(uniform.prompt, masked.prompt)
    assert bool(((masked.noisy == MASK) == masked.counted).all())
    assert bool((masked.noisy == masked.clean)[~masked.counted].all())
    # pinned clues are tokens of their own here
    given = (uniform.clean >= layout.first) & (uniform.clean < layout.names)
    assert torch.equal(uniform.counted, ~given) and torch.equal(
        uniform.noisy[given], uniform.clean[given]
    )
    own = (uniform.noisy != uniform.clean)[uniform.counted]
    assert int(uniform.noisy.max()) >= layout.names and 0.4 < float(own.float().mean()) < 0.8
    wrong = (
        (uniform.noisy >= FIRST) & (uniform.noisy < layout.first) & (uniform.noisy != uniform.clean)
    )
    assert bool(wrong.any()), "some noise must be a wrong digit"
    assert not torch.equal(draw_batch(layout, stacked, many, 1).clean, uniform.clean)
    fully = replace(many, all_noise=1.0)
    assert bool(
        (
            draw_batch(layout, stacked, replace(fully, sibling="masked"), 0).noisy[uniform.counted]
            == MASK
        ).all()
    )


def test_training_puzzles_have_one_solution(small):
    layout = Layout("plain", 4)
    batch = draw_batch(layout, stack_puzzles(small), replace(PLAN, batch_size=20), 3)
    clues = np.where(batch.prompt.numpy() == layout.first, 0, batch.prompt.numpy() - FIRST + 1)
    for shown, full in zip(clues.tolist(), (batch.clean.numpy() - FIRST + 1).tolist(), strict=True):
        assert solve(shown) == [tuple(full)]


def test_one_prompt_for_all_rows_is_the_same_loss(small):
    layout = Layout("legend", 4)
    model = new_model(layout, SIZES, 0).double()
    batch = draw_batch(layout, stack_puzzles(small), PLAN, 0)
    shared = sudoku_loss(model, batch, layout, "uniform")
    cache, half = model.encode(batch.prompt), 2
    belief = model.decode(batch.noisy, cache).detach()
    logits = model.decode(batch.noisy, cache, belief, torch.tensor([True] * half + [False] * half))
    each = (
        torch.nn.functional.cross_entropy(logits.transpose(1, 2), batch.clean, reduction="none")
        * batch.counted
    )
    assert torch.allclose(shared, (each.sum(1) / batch.counted.sum(1)).mean(), atol=1e-9)


PAIRS = [
    ("uniform", "legend"),
    ("masked", "named"),
    ("autoregressive", "named"),
    ("uniform", "pairs"),
]


@pytest.mark.parametrize("sibling, name", PAIRS)
def test_attempts_are_scored_and_do_not_depend_on_the_batch(sibling, name, small):
    layout = Layout(name, 4)
    model = new_model(layout, SIZES, 0).eval().double()
    small, sampler = small[:3], replace(SAMPLER, max_denoising_steps=5)
    one = attempt(model, layout, small, sibling=sibling, sampler=sampler, batch_size=1)
    all_at_once = attempt(model, layout, small, sibling=sibling, sampler=sampler, batch_size=3)
    assert (one.grids == all_at_once.grids).all() and (one.steps == all_at_once.steps).all()
    shown = np.array([p.clues for p in small])
    if name in ("legend", "pairs"):
        assert (one.grids[shown > 0] == shown[shown > 0]).all()
    assert one.steps.max() <= (layout.canvas_length if sibling == "autoregressive" else 5)


def test_counting_counts_calls_and_goes_away():
    layout = Layout("legend", 4)
    model = new_model(layout, SIZES, 0).eval()
    prompt, canvas = (
        layout.prompt(np.zeros((1, 16), np.int64)),
        torch.zeros(1, 16, dtype=torch.long),
    )
    cache = model.encode(torch.from_numpy(prompt))
    with counting(model) as calls:
        assert torch.equal(model.decode(canvas, cache), type(model).decode(model, canvas, cache))
        assert calls == [1]
    model.decode(canvas, cache)
    assert calls == [1]


def test_learning_rate():
    plan = SudokuTraining(steps=100, decay_steps=40, warmup_steps=10, learning_rate=1.0)
    assert [plan.rate(step) for step in (0, 9, 30, 60, 80, 99)] == pytest.approx(
        [0.1, 1, 1, 1, 0.5, 0.025]
    )
    points = replace(plan, rate_points=((0, 0.1), (9, 1), (60, 1), (100, 0)))
    assert [points.rate(step) for step in range(100)] == pytest.approx(
        [plan.rate(step) for step in range(100)]
    )
    with refused("rate_points", "ascending"):
        replace(plan, rate_points=((5, 1), (3, 0)))


def test_score(small):
    solution = np.array([p.solution for p in small])
    wrong = solution.copy()
    cell = next(i for i, d in enumerate(small[0].clues) if not d)
    wrong[0, cell] = wrong[0, cell] % 4 + 1
    perfect = score(Attempt(solution, np.full(10, 3), 1.0), small)
    assert perfect["exact"]["share"] == 1 and perfect["violations"] == 0 and perfect["steps"] == 3
    spoilt = score(Attempt(wrong, np.full(10, 3), 1.0), small)
    empty = sum(d == 0 for p in small for d in p.clues)
    assert spoilt["exact"]["share"] == 0.9 and spoilt["cells"]["share"] == pytest.approx(
        1 - 1 / empty
    )
    assert spoilt["violations"] > 0 and spoilt["exact"]["low"] < 0.9 < spoilt["exact"]["high"]


def test_a_small_one_learns(small):
    layout = Layout("legend", 4)
    model = new_model(layout, SIZES, 0)
    plan = replace(
        PLAN,
        steps=40,
        decay_steps=20,
        batch_size=8,
        learning_rate=3e-3,
        log_every=10,
        checkpoint_every=10,
    )
    plan = replace(plan, warmup_steps=5)
    log = train_sudoku(model, layout, stack_puzzles(small), plan)
    assert log[-1]["loss"] < 0.6 * log[0]["loss"]


def test_loads_in_the_house_format(tmp_path):
    model = new_model(Layout("legend", 4), SIZES, 0).eval()
    model.save_pretrained(tmp_path)
    again = DiffusionGemma.from_pretrained(tmp_path)
    ids, canvas = torch.arange(16)[None], torch.arange(16)[None]
    assert torch.equal(
        model.decode(canvas, model.encode(ids)), again.decode(canvas, again.encode(ids))
    )


def test_refused(small):
    with refused("name", "'spiral'", "plain, named, legend, pairs"):
        Layout("spiral")
    with refused("n", "7", "4, 6 or 9"):
        Layout("plain", 7)
    with refused("sibling", "'gan'", "uniform, masked, autoregressive"):
        replace(PLAN, sibling="gan")
    with refused("batch_size", "3", "even"):
        replace(PLAN, batch_size=3)
    with refused("precision", "'int4'", "float32"):
        replace(PLAN, precision="int4")
    with refused("checkpoint_every", "3", "multiple"):
        replace(PLAN, checkpoint_every=3, log_every=2)
    with refused("decay_steps, steps", "9, 4", "<="):
        replace(PLAN, decay_steps=9)
    with refused("puzzles", "empty"):
        attempt(new_model(Layout("legend", 4), SIZES, 0), Layout("legend", 4), [])
