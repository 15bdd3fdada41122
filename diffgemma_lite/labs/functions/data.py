"""Examples: a signature and a docstring -> the body, executed before use; held out by combination,
wording and name.

functions("train", 4, seed=0)               # one function an item
functions("combinations", 4)    # never composed so in training; also "wordings", "names"
python -m diffgemma_lite.labs.functions.data    # prints examples; --tokenizer FOLDER trains it
"""

from __future__ import annotations

import argparse
import random
from dataclasses import dataclass

from ...tokenizer import Tokenizer, train_tokenizer
from .ends import write
from .programs import Draft
from .splits import held_out, may_be_tested

SPLITS = ("train", "combinations", "wordings", "names")
TASK, VOCABULARY, HIDDEN_INPUTS = "body", 640, 20
WORDS = (
    "",
    "a",
    "tea",
    "Rose",
    "stone",
    "NET",
    "radar",
    "oat",
    "Sea",
    "noon",
    "east",
    "tree",
    "ox",
    "trees",
    "SOS",
)
TEXTS = (
    "",
    " ",
    "a",
    "Rose and tea",
    "see 12 stones",
    "NET 7",
    "no on east",
    "oat sea oat",
    "A1b2 c",
    "tree tree ox",
    "sos",
)


@dataclass(frozen=True)
class Function:
    """A prompt, the body that answers it, and inputs with what the body returned (as reprs)."""

    prompt: str
    target: str
    name: str
    keys: tuple[str, ...]
    kinds: tuple[str, ...]  # of the arguments
    examples: tuple[tuple[str, str], ...]  # shown: (arguments, result)
    hidden: tuple[tuple[str, str], ...]
    task: str = TASK

    @property
    def source(self) -> str:
        return self.prompt + self.target + "\n"


def draw_input(kind: str, rng: random.Random, size: int):
    """One argument of a kind, with about `size` elements; size 0 is the empty one."""
    if kind == "ints":
        return [rng.randint(-9, 12) for _ in range(size)]
    if kind == "words":
        return [rng.choice(WORDS) for _ in range(size)]
    if kind == "text":
        return rng.choice(TEXTS) if size else ""
    if kind == "dict":
        return {key: rng.randint(-9, 12) for key in rng.sample(WORDS[1:], size)}
    return rng.randint(2, 6)


def inputs(kinds: tuple[str, ...], rng: random.Random, count: int, most: int = 8) -> list[tuple]:
    """`count` tuples of arguments: the empty one first, then one element, then any size."""
    sizes = [0, 1, *(rng.randint(2, most) for _ in range(count))][:count]
    return [tuple(draw_input(kind, rng, size) for kind in kinds) for size in sizes]


def run_own(source: str, name: str, calls: list[tuple]) -> list[str]:
    """What a function of this generator returns for each call. Only for code written here: nothing
    limits it.
    """
    scope: dict = {}
    exec(source, scope)
    return [
        repr(scope[name](*(a.copy() if hasattr(a, "copy") else a for a in call))) for call in calls
    ]


def _docstring(d: Draft, rng: random.Random) -> str:
    clauses = d.clauses
    text = (
        clauses[0]
        if len(clauses) == 1
        else ", ".join(clauses[:-1]) + rng.choice((", then ", " and ")) + clauses[-1]
    )
    text = ("with a loop, " if d.loop else "") + text
    return text[0].upper() + text[1:] + "."


def function_of(rng: random.Random, split: str, *, hidden: int = 0) -> Function:
    """The next function of a split. hidden: how many inputs are run beside the shown ones."""
    while True:
        d = Draft(rng, split == "names", split == "wordings")
        target = write(d, rng.choices((1, 2, 3), (30, 52, 18))[0])
        keys = tuple(d.keys)
        if held_out(keys) != (split == "combinations") or (
            split == "combinations" and not may_be_tested(keys)
        ):
            continue
        kinds = tuple(kind for _, kind in d.arguments)
        head = f"def {d.name}({', '.join(name for name, _ in d.arguments)}):"
        text, shown = _docstring(d, rng), []
        calls = inputs(kinds, rng, hidden or 3)
        bare = f'{head}\n    """{text}"""'
        try:
            results = run_own(bare + target + "\n", d.name, calls)
            if rng.random() < 0.1:
                call = tuple(draw_input(kind, rng, 2) for kind in kinds)
                shown = [
                    (", ".join(map(repr, call)), run_own(bare + target + "\n", d.name, [call])[0])
                ]
        except (SyntaxError, NameError, TypeError) as error:
            raise AssertionError(f"the generator wrote {bare + target}") from error
        lines = "".join(f"\n\n    >>> {d.name}({a})\n    {r}\n    " for a, r in shown)
        given = tuple(
            (", ".join(map(repr, call)), r) for call, r in zip(calls, results, strict=True)
        )
        return Function(
            f'{head}\n    """{text}{lines}"""',
            target,
            d.name,
            keys,
            kinds,
            tuple(shown),
            given if hidden else (),
        )


def functions(split: str, count: int, *, seed: int = 0, hidden: int = 0) -> list[Function]:
    """`count` functions of one split. Function i depends on (seed, split, i) alone."""
    if split not in SPLITS:
        raise ValueError(f"split: got {split!r}, takes one of {', '.join(SPLITS)}")
    if isinstance(count, bool) or not isinstance(count, int) or count < 1:
        raise ValueError(f"count: got {count!r}, takes an integer above 0")
    hidden = hidden or (0 if split == "train" else HIDDEN_INPUTS)
    return [
        function_of(random.Random(f"{seed} {split} {i}"), split, hidden=hidden)
        for i in range(count)
    ]


def function_tokenizer(vocab_size: int = VOCABULARY) -> Tokenizer:
    """Learnt on training functions only."""
    return train_tokenizer(
        [text for f in functions("train", 20000, seed=1) for text in (f.prompt, f.target)],
        vocab_size,
    )


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        prog="python -m diffgemma_lite.labs.functions.data", description="Print functions."
    )
    parser.add_argument(
        "--tokenizer", metavar="FOLDER", help="train the tokenizer and save it here"
    )
    options = parser.parse_args(arguments)
    tokenizer = function_tokenizer()
    if options.tokenizer:
        tokenizer.save(options.tokenizer)
    for f in functions("train", 12):
        sizes = [len(tokenizer.encode(text)) for text in (f.prompt, f.target)]
        print(f"{f.source}    [{sizes[0]} tokens -> {sizes[1]}; {' | '.join(f.keys)}]\n")


if __name__ == "__main__":
    main()
