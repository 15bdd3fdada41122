"""Grids, the exact solver, puzzles with one solution, and splits that no disguise gets around."""

from __future__ import annotations

import random

import numpy as np
import pytest
from tiny import refused

from diffgemma_lite.labs.splits import SPLITS
from diffgemma_lite.labs.sudoku import data as sudoku
from diffgemma_lite.labs.sudoku.splits import (
    disguise,
    draw_clues,
    grids,
    invariant,
    minimal_puzzles,
    puzzles,
    split_of,
)

KNOWN = "53..7....6..195....98....6.8...6...34..8.3..17...2...6.6....28....419..5....8..79"
SOLVED = "534678912672195348198342567859761423426853791713924856961537284287419635345286179"


def parsed(text: str) -> tuple[int, ...]:
    return tuple(0 if c == "." else int(c) for c in text)


def test_solves_a_known_puzzle():
    assert sudoku.solve(parsed(KNOWN)) == [parsed(SOLVED)]
    assert sudoku.violations(parsed(SOLVED)) == 0


def test_counts_all_grids_of_side_4():
    assert len(set(sudoku.solve((0,) * 16, limit=1000))) == 288


def test_counts_solutions_as_brute_force_does():
    every = sudoku.solve((0,) * 16, limit=1000)
    rng = random.Random(0)
    for _ in range(60):
        grid = rng.choice(every)
        clues = tuple(d if rng.random() < 0.35 else 0 for d in grid)
        fits = {g for g in every if all(c in (0, d) for c, d in zip(clues, g, strict=True))}
        assert set(sudoku.solve(clues, limit=1000)) == fits
        assert len(sudoku.solve(clues, limit=2)) == min(2, len(fits))


def test_clues_that_break_a_rule_have_no_solution():
    assert sudoku.solve((1, 1) + (0,) * 79) == []
    assert sudoku.violations((1, 1) + (0,) * 79) == 2  # one row, one box


def test_solver_leaves_its_clues_alone():
    clues = list(parsed(KNOWN))
    sudoku.solve(clues)
    assert clues == list(parsed(KNOWN))


def test_full_grids_are_full_legal_and_different():
    rng = random.Random(3)
    made = [sudoku.full_grid(rng) for _ in range(20)]
    assert len(set(made)) == 20 and len({invariant(g) for g in made}) == 20
    assert all(sudoku.violations(g) == 0 and min(g) == 1 for g in made)


def test_dug_puzzles_have_one_solution_and_minimal_ones_no_spare_clue():
    rng = random.Random(1)
    grid = sudoku.full_grid(rng)
    clues = sudoku.dig(grid, rng)
    assert sudoku.solve(clues) == [grid]
    for cell, digit in enumerate(clues):
        if digit:
            assert len(sudoku.solve(clues[:cell] + (0,) + clues[cell + 1 :])) == 2


@pytest.mark.parametrize("band, split", list(zip(sudoku.BANDS, SPLITS, strict=True)))
def test_puzzles_of_a_band(band, split):
    low, high = sudoku.BANDS[band]
    some = puzzles(split, band, 2)
    assert some[:1] == puzzles(split, band, 1), "the same seed must give the same puzzles"
    for p in some:
        assert low <= p.givens <= high and sudoku.band_of(p.givens) == band
        assert sudoku.solve(p.clues) == [p.solution] and split_of(p.solution) == split


@pytest.mark.parametrize("n", [6, 9])
def test_a_disguise_is_a_grid_of_the_same_split(n):
    rng = np.random.default_rng(0)
    originals = [g for _, (g, _) in zip(range(30), grids("test", n), strict=False)]
    changed, source = disguise(np.array(originals), rng)
    again, _ = disguise(changed, rng)
    for old, new, twice in zip(originals, changed.tolist(), again.tolist(), strict=True):
        assert sudoku.violations(new) == 0 and tuple(new) != old
        assert invariant(new) == invariant(old) == invariant(twice) and split_of(twice) == "test"
    assert (np.sort(source, 1) == np.arange(n * n)).all()


def test_a_disguise_takes_masks_along():
    rng, p = np.random.default_rng(1), minimal_puzzles(1)[0]
    grid, source = disguise(np.array([p.solution]), rng)
    shown = np.take_along_axis(np.array([p.clues]) > 0, source, 1)
    assert sudoku.solve(np.where(shown, grid, 0)[0].tolist()) == [tuple(grid[0].tolist())]


@pytest.mark.parametrize(
    "change",
    [
        lambda g: g[9:18] + g[:9] + g[18:],  # two rows of a band
        lambda g: g[27:54] + g[:27] + g[54:],  # two bands
        lambda g: tuple(g[i % 9 * 9 + i // 9] for i in range(81)),  # rows become columns
        lambda g: tuple(d % 9 + 1 for d in g),  # other names
    ],
)
def test_each_kind_of_disguise_keeps_the_hash(change):
    grid = parsed(SOLVED)
    assert invariant(change(grid)) == invariant(grid)


def test_an_exchange_across_bands_is_no_disguise():
    grid = parsed(SOLVED)
    broken = grid[27:36] + grid[9:27] + grid[:9] + grid[36:]
    assert sudoku.violations(broken) > 0 and invariant(broken) != invariant(grid)


def test_clues_are_drawn_around_the_minimal_ones():
    rng, p = np.random.default_rng(2), minimal_puzzles(1)[0]
    minimal = np.array([p.clues]) > 0
    for givens in (24, 40, 60):
        shown = draw_clues(minimal, np.array([givens]), rng)
        assert shown.sum() == max(givens, minimal.sum()) and (shown | ~minimal).all()


def test_refused():
    with refused("n", "4 with split 'test'", "6 or 9"):
        next(grids("test", 4))
    with refused("n", "7", "4, 6 or 9"):
        sudoku.geometry(7)
    with refused("grid", "80 cells", "16, 36 or 81"):
        sudoku.solve((0,) * 80)
    with refused("grid", "from 0 to 12", "to 9"):
        sudoku.solve((12,) + (0,) * 80)
    with refused("limit", "0", "at least 1"):
        sudoku.solve((0,) * 81, limit=0)
    with refused("givens", "61", "24 to 60"):
        sudoku.band_of(61)
    with refused("split", "'dev'", "train, validation, test"):
        next(grids("dev"))
    with refused("band", "'evil'", "easy, medium, hard"):
        puzzles("test", "evil", 1)
    with refused("count", "0", "at least 1"):
        puzzles("test", "easy", 0)
