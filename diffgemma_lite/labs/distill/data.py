"""What a model is asked, and which answers are right. Notebook 09."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from ...checks import read_object
from ...model import DiffusionGemma
from ...tokenizer import Tokenizer, encode_prompt
from ..evaluate import evenly, left_padded
from ..python_text.data import load_corpus
from ..python_text.evaluate import parses
from ..records.checks import check
from ..records.data import FAMILIES, records
from ..sudoku.data import Puzzle, violations
from ..sudoku.splits import puzzles
from ..sudoku.task import Layout, only_digits
from ..sudoku.train import read_recipe as read_sudoku

NEEDED = ("task", "base", "questions", "tests", "limits", "distil")
OPTIONAL = (
    "about",
    "band",
    "families",
    "test_families",
    "family_tests",
    "max_prompt",
    "sampler",
    "variety",
)


@dataclass(frozen=True)
class Questions:
    """What is asked, and what is right.

    P questions, prompts [P, S] padded on the left, canvases [P, C].
    """

    ids: Tensor
    mask: Tensor | None  # bool [P, S], False for padding
    known: Tensor  # ids of the pinned positions; anything elsewhere
    pinned: Tensor  # bool [P, C]
    right: Callable[[int, Tensor], bool]  # (number of the question, canvas [C]) -> the reward
    barred: Callable[[Tensor, Tensor], Tensor] | None = None  # a logits_filter
    end: int | None = None  # the end token, which also fills what comes after it

    def __len__(self) -> int:
        return len(self.ids)


def sudoku_questions(layout: Layout, asked: list[Puzzle]) -> Questions:
    """Right is what keeps the rules and the clues: the reward never sees the solution."""
    clues = np.array([p.clues for p in asked])
    known, pinned = layout.canvas(clues, np.array([p.solution for p in asked]))

    def right(number: int, canvas: Tensor) -> bool:
        own = clues[number : number + 1]
        grid = layout.grid(canvas[None].cpu().numpy(), own)[0]
        return bool((grid > 0).all() and (grid == own[0])[own[0] > 0].all()) and not violations(
            grid.tolist()
        )

    prompt = torch.from_numpy(layout.prompt(clues))
    return Questions(
        prompt, None, torch.from_numpy(known), torch.from_numpy(pinned), right, only_digits(layout)
    )


def text_questions(
    tokenizer,
    examples: list,
    canvas_length: int,
    max_prompt: int,
    good: Callable[[object, str], bool],
) -> Questions:
    """Prompts of labs/tokenizer.py's kind. Right is a text that ends within the canvas and
    good(example, text) accepts.
    """
    if not examples:
        raise ValueError("examples: is empty, takes at least one")
    ids, mask = left_padded(
        [encode_prompt(tokenizer, e.task, e.prompt, max_prompt) for e in examples], tokenizer.pad_id
    )
    nothing = torch.zeros(len(examples), canvas_length, dtype=torch.long)

    def right(number: int, canvas: Tensor) -> bool:
        written = canvas.tolist()
        if tokenizer.eos_id not in written:
            return False
        return good(examples[number], tokenizer.decode(written[: written.index(tokenizer.eos_id)]))

    return Questions(ids, mask.bool(), nothing, nothing.bool(), right, end=tokenizer.eos_id)


def record_questions(tokenizer, asked: list, canvas_length: int, max_prompt: int) -> Questions:
    """Requests of records/data.py; right is what records/checks.py finds no fault with."""
    return text_questions(
        tokenizer,
        asked,
        canvas_length,
        max_prompt,
        lambda r, text: not check(r.family, r.prompt, text),
    )


def body_questions(
    tokenizer, examples: list, canvas_length: int, max_prompt: int, count: int
) -> Questions:
    """`count` signatures of python_text/data.py, evenly spaced; right is a body, not empty, that
    Python can parse.
    """
    some = evenly([e for e in examples if parses(e.prompt)], count)
    return text_questions(
        tokenizer,
        some,
        canvas_length,
        max_prompt,
        lambda e, text: bool(text.strip()) and parses(e.prompt + text),
    )


def read_recipe(path: str | Path) -> dict:
    """recipe.json. Errors: ValueError for a key it lacks or cannot have."""
    return read_object("recipe", path, NEEDED, OPTIONAL)


def questions(recipe: dict, base: Path, model: DiffusionGemma) -> tuple[Questions, Questions]:
    """(what is learnt from, test questions)."""
    counts = (recipe["questions"], recipe["tests"])
    if recipe["task"] == "sudoku":
        layout = read_sudoku(base / "recipe.json")[1]
        made = [
            puzzles(split, recipe["band"], n, seed=1)
            for split, n in zip(("train", "test"), counts, strict=True)
        ]
        return sudoku_questions(layout, made[0]), sudoku_questions(layout, made[1])
    if recipe["task"] not in ("records", "bodies"):
        raise ValueError(f"task: got {recipe['task']!r}, takes 'sudoku', 'records' or 'bodies'")
    tokenizer, size = Tokenizer.load(base), (model.config.canvas_length, recipe["max_prompt"])
    splits = list(zip(("train", "test"), counts, strict=True))
    if recipe["task"] == "records":
        families = {"train": recipe.get("families", FAMILIES)}
        families["test"] = recipe.get("test_families", families["train"])
        asked = [
            record_questions(tokenizer, records(split, n, seed=1, families=families[split]), *size)
            for split, n in splits
        ]
    else:
        asked = [
            body_questions(tokenizer, load_corpus(split, "body"), *size, n) for split, n in splits
        ]
    return asked[0], asked[1]
