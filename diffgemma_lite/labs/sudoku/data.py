"""Sudoku: full grids, puzzles with one solution, an exact solver that counts solutions.

Walked through in notebook 09.

A grid is a tuple of n * n digits row by row, n = 9 (boxes of 3 rows by 3 columns), 6 (2 by 3) or 4
(2 by 2); 0 is an empty cell. Everything is drawn from a seed, so that nothing has to be stored.
Which grids a model may see in training is sudoku_splits.py's.
"""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

Grid = tuple[int, ...]
BOXES = {4: (2, 2), 6: (2, 3), 9: (3, 3)}  # rows and columns of a box
BANDS = {"easy": (40, 60), "medium": (30, 39), "hard": (24, 29)}  # givens, both ends included


@dataclass(frozen=True)
class Puzzle:
    """Clues (0 = empty) and the only solution, each n * n digits."""

    clues: Grid
    solution: Grid

    @property
    def givens(self) -> int:
        return sum(d > 0 for d in self.clues)


@cache
def geometry(n: int) -> tuple[tuple[int, int, int], ...]:
    """(row, column, box) of each of the n * n cells. Errors: ValueError when n is not 4, 6 or 9."""
    if n not in BOXES:
        raise ValueError(f"n: got {n}, takes 4, 6 or 9, the side of the grid")
    high, wide = BOXES[n]
    return tuple((i // n, i % n, i // n // high * high + i % n // wide) for i in range(n * n))


def side_of(grid: Sequence[int]) -> int:
    """n of a grid. Errors: ValueError for anything but 16, 36 or 81 digits from 0 to n."""
    n = math.isqrt(len(grid))
    if n * n != len(grid) or n not in BOXES:
        raise ValueError(f"grid: got {len(grid)} cells, takes 16, 36 or 81")
    if not all(0 <= d <= n for d in grid):
        raise ValueError(
            f"grid: got digits from {min(grid)} to {max(grid)}, takes 0 (empty) to {n}"
        )
    return n


def violations(grid: Sequence[int]) -> int:
    """Pairs of equal digits that share a row, a column or a box, once for each such unit.

    Empty cells break no rule.
    """
    n, broken = side_of(grid), 0
    for kind in range(3):
        seen: dict[tuple[int, int], int] = {}
        for d, place in zip(grid, geometry(n), strict=True):
            if d:
                broken += seen.get((place[kind], d), 0)
                seen[place[kind], d] = seen.get((place[kind], d), 0) + 1
    return broken


class _Search:
    """Depth first: always the empty cell with the fewest digits left, digits in the order of `rng`
    or ascending.
    """

    def __init__(self, clues: Sequence[int], rng: random.Random | None = None):
        self.n, self.rng = side_of(clues), rng
        self.grid, self.places = list(clues), geometry(self.n)
        full = (1 << self.n) - 1
        self.rows, self.cols, self.boxes = ([full] * self.n for _ in range(3))
        self.empty = [i for i, d in enumerate(clues) if not d]
        if rng is not None:
            rng.shuffle(self.empty)
        self.legal = all(self.put(i, 1 << d - 1) for i, d in enumerate(clues) if d)

    def left(self, cell: int) -> int:
        """Bits of the digits that neither row, column nor box of the cell holds."""
        r, c, b = self.places[cell]
        return self.rows[r] & self.cols[c] & self.boxes[b]

    def put(self, cell: int, bit: int) -> bool:
        """Use a digit up, or say that it is used up already."""
        if not self.left(cell) & bit:
            return False
        self.flip(cell, bit)
        return True

    def flip(self, cell: int, bit: int) -> None:
        r, c, b = self.places[cell]
        self.rows[r] ^= bit
        self.cols[c] ^= bit
        self.boxes[b] ^= bit

    def solutions(self, limit: int) -> list[Grid]:
        found: list[Grid] = []
        if self.legal:
            self._descend(found, limit)
        return found

    def _descend(self, found: list[Grid], limit: int) -> None:
        if not self.empty:
            found.append(tuple(self.grid))
            return
        rows, cols, boxes, places = self.rows, self.cols, self.boxes, self.places
        fewest, at, bits = 99, -1, 0
        for k, cell in enumerate(self.empty):
            r, c, b = places[cell]
            left = rows[r] & cols[c] & boxes[b]
            count = left.bit_count()
            if count < fewest:
                fewest, at, bits = count, k, left
                if count < 2:
                    break
        if not bits:
            return
        empty = self.empty
        cell, empty[at] = empty[at], empty[-1]
        empty.pop()
        choices = [1 << d for d in range(self.n) if bits >> d & 1]
        if self.rng is not None:
            self.rng.shuffle(choices)
        for bit in choices:
            self.flip(cell, bit)
            self.grid[cell] = bit.bit_length()
            self._descend(found, limit)
            self.flip(cell, bit)
            if len(found) >= limit:
                break
        self.grid[cell] = 0
        empty.append(cell)
        empty[at], empty[-1] = empty[-1], empty[at]


def solve(clues: Sequence[int], limit: int = 2) -> list[Grid]:
    """Up to `limit` solutions of a puzzle; [] when there is none.

    With the default, one entry means exactly one solution.

    Errors: ValueError for a limit below 1, or clues that are no grid.
    """
    if limit < 1:
        raise ValueError(f"limit: got {limit}, takes at least 1")
    return _Search(clues).solutions(limit)


def full_grid(rng: random.Random, n: int = 9) -> Grid:
    """A full grid by randomised backtracking from the empty one."""
    return _Search((0,) * len(geometry(n)), rng).solutions(1)[0]


def dig(solution: Sequence[int], rng: random.Random, givens: int = 0) -> Grid:
    """Clues of a puzzle with this as its only solution.

    Cells are emptied in random order while it stays the only one.

    Stops at `givens` clues; 0: only where no more can be emptied. May end with more than asked for.
    """
    clues, left = list(solution), len(solution)
    order = list(range(len(solution)))
    rng.shuffle(order)
    for cell in order:
        if left <= givens:
            break
        digit, clues[cell] = clues[cell], 0
        others = _Search(clues).left(cell) & ~(1 << digit - 1)
        if any(
            _solvable_with(clues, cell, d + 1) for d in range(side_of(clues)) if others >> d & 1
        ):
            clues[cell] = digit
        else:
            left -= 1
    return tuple(clues)


def _solvable_with(clues: list[int], cell: int, digit: int) -> bool:
    return bool(solve([digit if i == cell else d for i, d in enumerate(clues)], limit=1))


def band_of(givens: int) -> str:
    """Easy, medium or hard. Errors: ValueError below 24 or above 60 givens."""
    for name, (low, high) in BANDS.items():
        if low <= givens <= high:
            return name
    raise ValueError(f"givens: got {givens}, takes 24 to 60")
