"""Predict, then reveal; and exercises whose check names the mistake.

Used by every notebook, walked by none.

Both answer with a `Figure` and never raise, so that Run All goes on over a blank guess or an
unfinished exercise.
"""

from __future__ import annotations

import html
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from .figures import Figure


def feedback(state: str, message: str, picture: Figure | None = None) -> Figure:
    """state "not done yet", "right" or "not right", with what to look at."""
    symbols = {"not done yet": "…", "right": "✓", "not right": "✗"}
    words = f"{symbols[state]} {state.capitalize()}."
    line = f'<div style="margin:4px 0"><b>{words}</b> {html.escape(message)}</div>'
    drawn = ("", "") if picture is None else (picture.html, "\n" + picture.text)
    return Figure(line + drawn[0], f"{words} {message}{drawn[1]}")


def reveal(
    guess: Any, measured: Any, *, because: str, instead: Mapping[Any, str] | None = None
) -> Figure:
    """Answer a prediction: None is not done yet, with the answer folded away for who reads without
    a kernel. `instead` says what a particular wrong guess would have meant. A number may be written
    as text, and capital letters do not matter."""
    if guess is None:
        asked = feedback(
            "not done yet", "Write your guess into the cell above and run both cells again."
        )
        answer = html.escape(f"Measured: {measured}. {because}")
        fold = (
            "<details><summary>Without a kernel: make your guess, then look here</summary>"
            f"{answer}</details>"
        )
        return Figure(asked.html + fold, asked.text)
    if _plain(guess) == _plain(measured):
        return feedback("right", f"You said {guess}, measured: {measured}. {because}")
    meant = next(
        (words for wrong, words in (instead or {}).items() if _plain(wrong) == _plain(guess)), ""
    )
    return feedback(
        "not right",
        " ".join(
            part for part in (f"You said {guess}, measured: {measured}.", meant, because) if part
        ),
    )


def _plain(answer: Any) -> Any:
    """What two answers are compared by.

    Numbers as numbers, text without case and outer spaces, the rest by its words.
    """
    words = str(answer).strip().lower()
    try:
        return float(words)
    except ValueError:
        return words


@dataclass(frozen=True)
class Mistake:
    """One way to go wrong: how to tell (True when made), and what to say to who made it."""

    made: Callable[[Callable], bool]
    says: str


@dataclass(frozen=True)
class Exercise:
    """trial(answer) is one call of the student's function, None while it is blank.

    Mistakes stand in order of dependence.
    """

    trial: Callable[[Callable], Any]
    mistakes: tuple[Mistake, ...]
    praise: str
    picture: Callable[[Callable], Figure | None] | None = None


def check(answer: Callable, exercise: Exercise) -> Figure:
    """The first mistake that the answer makes, or that it makes none.

    Never raises: an error of the answer is shown.
    """
    try:
        if exercise.trial(answer) is None:
            return feedback(
                "not done yet",
                "The function returns None. Fill it in, then run its cell and this one again.",
            )
        for mistake in exercise.mistakes:
            if mistake.made(answer):
                return feedback(
                    "not right", mistake.says, exercise.picture and _drawn(exercise.picture, answer)
                )
    except Exception as error:
        return feedback("not right", f"Your function raised {type(error).__name__}: {error}")
    return feedback("right", exercise.praise)


def _drawn(picture: Callable[[Callable], Figure | None], answer: Callable) -> Figure | None:
    try:
        return picture(answer)
    # an answer of the wrong type or shape cannot be drawn, and the message already says so
    except Exception:
        return None
