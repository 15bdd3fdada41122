"""What a model is asked, and which answers are right. Notebook 09."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from ..sudoku.data import Puzzle, violations
from ..sudoku.evaluate import only_digits
from ..sudoku.task import Layout


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


def sudoku_questions(layout: Layout, puzzles: list[Puzzle]) -> Questions:
    """Right is what keeps the rules and the clues: the reward never sees the solution."""
    clues = np.array([p.clues for p in puzzles])
    known, pinned = layout.canvas(clues, np.array([p.solution for p in puzzles]))

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
    """Prompts of data/tokenizer.py's kind.

    Right is a text that ends within the canvas and good(example, text) accepts.
    """
    from ...tokenizer import encode_prompt
    from ..python_text.evaluate import left_padded

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


def record_questions(tokenizer, records: list, canvas_length: int, max_prompt: int) -> Questions:
    """Requests of data/templates.py; right is what template_checks.py finds no fault with."""
    from ..records.checks import check

    return text_questions(
        tokenizer,
        records,
        canvas_length,
        max_prompt,
        lambda r, text: not check(r.family, r.prompt, text),
    )


def body_questions(
    tokenizer, examples: list, canvas_length: int, max_prompt: int, count: int
) -> Questions:
    """`count` signatures of data/python_corpus.py, evenly spaced.

    Right is a body, not empty, that Python can parse.
    """
    from ..python_text.evaluate import evenly, parses

    some = evenly([e for e in examples if parses(e.prompt)], count)
    return text_questions(
        tokenizer,
        some,
        canvas_length,
        max_prompt,
        lambda e, text: bool(text.strip()) and parses(e.prompt + text),
    )
