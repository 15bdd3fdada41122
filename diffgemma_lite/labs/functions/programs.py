"""One function as it is drawn: its names, its combination of operations, the clauses of its
docstring, its lines.

Operations are drawn one after another (pipeline.py, ends.py). Nothing here runs what is written.
"""

from __future__ import annotations

import random

from . import words as W


class Draft:
    """What is decided so far: names, the combination of operations (`keys`), clauses of the
    docstring, lines of the body.
    """

    def __init__(self, rng: random.Random, held_names: bool = False, held_words: bool = False):
        self.rng, self.held_words = rng, held_words
        self.kind = rng.choices(("ints", "words", "text", "dict"), (45, 28, 14, 13))[0]
        names = W.HELD_OUT_ARGUMENTS if held_names else W.ARGUMENTS
        self.argument = rng.choice(list(names[self.kind]))
        usual = names[self.kind][self.argument]
        self.x = (
            usual
            if rng.random() < 0.85
            else rng.choice([e for e in W.ELEMENTS if e != self.argument])
        )
        verbs, nouns = (W.HELD_OUT_VERBS, W.HELD_OUT_NOUNS) if held_names else (W.VERBS, W.NOUNS)
        self.name = f"{rng.choice(verbs)}_{rng.choice(nouns)}"
        limits = W.HELD_OUT_LIMITS if held_names else W.LIMITS
        self.limit = (
            rng.choice(limits) if rng.random() < 0.25 else None
        )  # the second argument, once it is used
        self.arguments = [(self.argument, self.kind)]
        self.keys, self.clauses, self.lines = [], [], []
        self.loop = rng.random() < 0.35
        self.free_lists, self.free_totals = list(W.LISTS), list(W.TOTALS)
        for names_ in (self.free_lists, self.free_totals):
            if rng.random() < 0.15:
                rng.shuffle(names_)
            names_[:] = [n for n in names_ if n not in (self.argument, self.x)]

    def fill(self, entry: tuple, **known: str) -> tuple[str, str]:
        """(code, wording) of an entry of words.py, its constants drawn; {x} and {e} of the code are
        left open.
        """
        wording = entry[-1] if self.held_words else self.rng.choice(entry[1:-1])
        parts = {
            "x": "{x}",
            "e": "{e}",
            "c": self.rng.choice("aesrtno"),
            "j": self.rng.choice((",", "-", " ", "+")),
        } | known
        if "{k}" in entry[0] + wording:
            parts["k"] = self.small()
        return entry[0].format(**parts), wording.format(**parts)

    def small(self) -> str:
        """A number from 2 to 5, or the second argument."""
        if self.limit and (len(self.arguments) == 1):
            self.arguments.append((self.limit, "int"))
            return self.limit
        return str(self.rng.randint(3, 9) if self.rng.random() < 0.5 else 3)

    def say(self, ask: str, **parts: str) -> None:
        self.clauses.append(self.fill(("", *W.ASKS[ask]), **parts)[1])

    def pick(self, table: dict) -> tuple[str, str, str]:
        """(key, code, wording) of one entry, drawn."""
        key = self.rng.choice(list(table))
        return key, *self.fill(table[key])
