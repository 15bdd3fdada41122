"""Which grids are for training, validation and test, and the puzzles of each, by seed.

Walked through in notebook 09.

A sudoku stays a sudoku when digits are renamed, rows change places inside their band, bands change
places, the same for columns, or rows and columns are exchanged: about 1.2e12 ways. A test grid that
is a training grid in disguise would be worth nothing, so the split is decided by a hash that all
disguises share (`invariant`). Training grids can then be disguised afresh at every look
(`disguise`), and cannot become test grids.
"""

from __future__ import annotations

import hashlib
import itertools
import random
from collections.abc import Iterator, Sequence

import numpy as np

from ..splits import check_split
from .data import BANDS, BOXES, Grid, Puzzle, dig, full_grid, side_of

_SHARES = {"test": range(2), "validation": range(2, 3), "train": range(3, 8)}  # of 8 hash classes


def _cycles(a: Sequence[int], b: Sequence[int]) -> str:
    """Cycle lengths of the permutation that takes a[i] to b[i], sorted."""
    step, lengths = dict(zip(a, b, strict=True)), []
    while step:
        start, length = next(iter(step)), 0
        while start in step:
            start, length = step.pop(start), length + 1
        lengths.append(length)
    return "".join(map(str, sorted(lengths)))


def _line_pairs(lines: Sequence[Sequence[int]], size: int) -> str:
    """Cycle types between lines: inside each band, then across bands.

    Blind to the order of lines and bands and to names.
    """
    inside: list[list[str]] = [[] for _ in range(len(lines) // size)]
    across = []
    for i, j in itertools.combinations(range(len(lines)), 2):
        (inside[i // size] if i // size == j // size else across).append(
            _cycles(lines[i], lines[j])
        )
    return repr((sorted(sorted(band) for band in inside), sorted(across)))


def invariant(grid: Sequence[int]) -> int:
    """A number that all disguises of a full grid share.

    (Different grids may share it too; that costs nothing here.)
    """
    n = side_of(grid)
    high, wide = BOXES[n]
    rows = [grid[r * n : r * n + n] for r in range(n)]
    cols = list(zip(*rows, strict=True))
    # column of digit d in each row
    where = [[row.index(d) for row in rows] for d in range(1, n + 1)]
    digits = sorted(_cycles(a, b) for a, b in itertools.combinations(where, 2))
    text = repr((sorted((_line_pairs(rows, high), _line_pairs(cols, wide))), digits))
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little")


def split_of(grid: Sequence[int]) -> str:
    """ "train", "validation" or "test": 5, 1 and 2 of 8 hash classes."""
    part = invariant(grid) % 8
    return next(name for name, parts in _SHARES.items() if part in parts)


def grids(
    split: str, n: int = 9, seed: int = 0, stream: str = ""
) -> Iterator[tuple[Grid, random.Random]]:
    """Full grids of a split without end, each with random numbers of its own.

    Another `stream` means other grids.

    Errors: ValueError for no split, or for n = 4 and another split than training: the 288 grids of
    side 4 are so few in disguise that none can be held out.
    """
    if n == 4 and split != "train":
        raise ValueError(f"n: got 4 with split {split!r}, takes 6 or 9, or split 'train'")
    check_split(split)
    for number in itertools.count():
        rng = random.Random(f"sudoku {n} {seed} {stream}{number}")
        grid = full_grid(rng, n)
        if n == 4 or split_of(grid) == split:
            yield grid, rng


def puzzles(split: str, band: str, count: int, seed: int = 0) -> list[Puzzle]:
    """9 x 9 puzzles of one band, one for each grid, givens spread evenly over the band.

    About 30 ms each.

    Errors: ValueError for no split or band, or a count below 1.
    """
    if band not in BANDS:
        raise ValueError(f"band: got {band!r}, takes one of {', '.join(BANDS)}")
    if count < 1:
        raise ValueError(f"count: got {count}, takes at least 1")
    low, high = BANDS[band]
    made: list[Puzzle] = []
    for grid, rng in grids(split, seed=seed, stream=band):
        wanted = low + len(made) % (high - low + 1)
        puzzle = Puzzle(dig(grid, rng, wanted), grid)
        if puzzle.givens == wanted:  # few grids, dug in one random order, get down to 24
            made.append(puzzle)
            if len(made) == count:
                return made
    raise AssertionError("grids() never ends")


def minimal_puzzles(count: int, seed: int = 0, n: int = 9, split: str = "train") -> list[Puzzle]:
    """Puzzles that no clue can be taken from, one for each grid.

    Every set of clues around them has one solution as well.
    """
    if count < 1:
        raise ValueError(f"count: got {count}, takes at least 1")
    return [
        Puzzle(dig(grid, rng), grid) for grid, rng in itertools.islice(grids(split, n, seed), count)
    ]


def _disguised_order(rng: np.random.Generator, rows: int, n: int, size: int) -> np.ndarray:
    """[rows, n]: lines in a new order, bands of `size` lines moved as wholes."""
    bands = rng.permuted(np.tile(np.arange(n // size), (rows, 1)), axis=1)
    inside = rng.permuted(np.tile(np.arange(size), (rows, n // size, 1)), axis=2)
    return (bands[:, :, None] * size + inside).reshape(rows, n)


def disguise(grid: np.ndarray, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """A random disguise of each grid [B, cells]: returns the new digits and, for each new cell,
    which old cell it shows.

    Zeros stay zeros. `np.take_along_axis(mask, source, 1)` disguises a mask of the same cells in
    the same way.
    """
    rows, cells = grid.shape
    n = side_of(grid[0].tolist())
    high, wide = BOXES[n]
    r, c = _disguised_order(rng, rows, n, high), _disguised_order(rng, rows, n, wide)
    turned = rng.random(rows)[:, None, None] < (0.5 if high == wide else 0.0)
    source = np.where(
        turned, c[:, None, :] * n + r[:, :, None], r[:, :, None] * n + c[:, None, :]
    ).reshape(rows, cells)
    names = np.concatenate(
        [
            np.zeros((rows, 1), np.int64),
            rng.permuted(np.tile(np.arange(1, n + 1), (rows, 1)), axis=1),
        ],
        1,
    )
    return np.take_along_axis(names, np.take_along_axis(grid, source, 1), 1), source


def draw_clues(minimal: np.ndarray, givens: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Which cells to show, bool [B, cells]: those of a minimal puzzle (bool [B, cells]) and others,
    up to `givens` [B].
    """
    order = (
        np.where(minimal, -1.0, rng.random(minimal.shape))
        .argsort(1, kind="stable")
        .argsort(1, kind="stable")
    )
    return order < np.maximum(givens, minimal.sum(1))[:, None]
