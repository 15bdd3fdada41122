"""Structured records whose fields constrain each other, often the earlier by the later.

Four seeded families. Notebook 08.

How it differs from a text corpus: everything is generated, so a record is right or wrong, and
template_checks.py says which constraint is broken. A request names what the record must hold; the
rest (keys, types, order) is the writer's choice, but every choice binds others:

    json    a count, a total and the last row's name stand before the rows they speak of; each row
            carries the running sum
    class   a comment counts the fields of each type; the fields follow
    sql     one transaction: two tables in either order, one refers to the other; rows that a
            foreign key allows
    sum     the answer stands before its working, one labelled operation a line

    records("train", 4, seed=0)      # one of each family
    python -m diffgemma_lite.labs.records.data --tokenizer FOLDER    # without it: prints examples
"""

from __future__ import annotations

import argparse
import hashlib
import random
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise

from ...tokenizer import Tokenizer, train_tokenizer
from ..splits import check_split

HELD_OUT = 0.1  # share of the requests in validation, and again in test
TASK = "record"  # the marker in front of every request
VOCABULARY = 512  # at most: the pieces of these records run out before

NAMES = (
    "ash",
    "bay",
    "cod",
    "dew",
    "elm",
    "fig",
    "gem",
    "hen",
    "ivy",
    "jar",
    "key",
    "lot",
    "map",
    "net",
    "oak",
    "pen",
)
CLASSES = ("Box", "Car", "Day", "Fox", "Hat", "Job", "Log", "Pet")
TYPES = ("int", "str")
LABELS = "abcde"  # of the operations of a sum
LARGEST_STEP = 3  # of an amount that is added or taken away


@dataclass(frozen=True)
class Record:
    """A request and one right answer to it.

    `task` is what data/tokenizer.py's encode_examples asks for.
    """

    family: str
    prompt: str
    target: str
    task: str = TASK


def _walk(rng: random.Random, steps: int) -> list[int]:
    """A random start and the values after each step, all of one digit.

    No step is 0, none is larger than LARGEST_STEP.
    """
    values = [rng.randint(0, 9)]
    for _ in range(steps):
        values.append(
            rng.choice(
                [value for value in range(10) if 0 < abs(value - values[-1]) <= LARGEST_STEP]
            )
        )
    return values


def _ask_json(rng: random.Random) -> str:
    names = rng.sample(NAMES, rng.randint(2, 3))
    values = _walk(rng, len(names))
    rows = [
        f",{name}{after - before:+d}"
        for name, (before, after) in zip(names, pairwise(values), strict=True)
    ]
    return f"json:{values[0]}" + "".join(rows)


def _write_json(request: str, rng: random.Random) -> str:
    first, *parts = request.removeprefix("json:").split(",")
    names, amounts = [part[:-2] for part in parts], [int(part[-2:]) for part in parts]
    sums = list(accumulate(amounts, initial=int(first)))[1:]
    rows = [
        f'{{"of":"{n}","add":{a},"sum":{s}}}' for n, a, s in zip(names, amounts, sums, strict=True)
    ]
    head = f'"count":{len(rows)},"open":{first},"total":{sums[-1]},"last":"{names[-1]}"'
    return f'{{{head},"rows":[{",".join(rows)}]}}'


def _ask_class(rng: random.Random) -> str:
    return f"class {rng.choice(CLASSES)}:" + ",".join(rng.sample(NAMES, rng.randint(2, 4)))


def _write_class(request: str, rng: random.Random) -> str:
    head, fields = request.split(":")
    types = [rng.choice(TYPES) for _ in fields.split(",")]
    counts = ", ".join(f"{types.count(kind)} {kind}" for kind in TYPES)
    lines = "".join(
        f"\n    {field}: {kind}" for field, kind in zip(fields.split(","), types, strict=True)
    )
    return f"# {len(types)} fields: {counts}\n@dataclass\n{head}:{lines}"


def _ask_sql(rng: random.Random) -> str:
    return "sql: " + " ".join(rng.sample(NAMES, 2))


def _write_sql(request: str, rng: random.Random) -> str:
    _, child, parent = request.split()
    key = rng.randint(1, 9)
    refers = f"CREATE TABLE {child}(id PRIMARY KEY, {parent} REFERENCES {parent});"
    tables = [refers, f"CREATE TABLE {parent}(id PRIMARY KEY);"]
    rng.shuffle(tables)
    rows = [
        f"INSERT INTO {parent} VALUES({key});",
        f"INSERT INTO {child} VALUES({rng.randint(1, 9)},{key});",
    ]
    return "\n".join(["BEGIN;", *tables, *rows, "COMMIT;"])


def _ask_sum(rng: random.Random) -> str:
    values = _walk(rng, rng.randint(3, 5))
    steps = [
        f";{label}{after - before:+d}"
        for label, (before, after) in zip(LABELS, pairwise(values), strict=False)
    ]
    return f"sum:{values[0]}" + "".join(steps)


def _write_sum(request: str, rng: random.Random) -> str:
    values = list(accumulate(int(term) for term in re.findall(r"[+-]?\d+", request)))
    steps = zip(LABELS, pairwise(values), strict=False)
    lines = [f"{label}:{before}{after - before:+d}={after}" for label, (before, after) in steps]
    return "\n".join([f"answer:{values[-1]}", *lines])


# how to ask, and one way to answer
FAMILIES: dict[str, tuple[Callable[..., str], Callable[..., str]]] = {
    "json": (_ask_json, _write_json), "class": (_ask_class, _write_class),
    "sql": (_ask_sql, _write_sql), "sum": (_ask_sum, _write_sum),
}  # fmt: skip


def split_of(prompt: str) -> str:
    """train, validation or test, from the request alone.

    A held-out request is in no other split, with any record.
    """
    place = int.from_bytes(hashlib.blake2b(prompt.encode(), digest_size=6).digest(), "big") / 2**48
    return "test" if place < HELD_OUT else "validation" if place < 2 * HELD_OUT else "train"


def records(
    split: str, count: int, *, seed: int = 0, families: Sequence[str] = tuple(FAMILIES)
) -> list[Record]:
    """`count` right records of one split, the families in turn.

    Record i depends on (seed, split, family, i) alone.
    """
    families = (families,) if isinstance(families, str) else tuple(families)
    check_split(split)
    if isinstance(count, bool) or not isinstance(count, int) or count < 1:
        raise ValueError(f"count: got {count!r}, takes an integer above 0")
    if not families or not set(families) <= set(FAMILIES):
        raise ValueError(f"families: got {families!r}, takes some of {', '.join(FAMILIES)}")
    return [
        _record(split, families[i % len(families)], seed, i // len(families)) for i in range(count)
    ]


def texts(split: str, plan: dict, held_out: int) -> list[Record]:
    """What a recipe's data asks for, as labs/recipe.py takes it: families by their shares for
    training, `held_out` records of another split.
    """
    if split != "train":
        return records(split, held_out)
    shares, seed = plan.get("shares", dict.fromkeys(FAMILIES, 1)), plan.get("seed", 0)
    known = bool(shares) and set(shares) <= set(FAMILIES)
    if not known or not all(share > 0 for share in shares.values()):
        raise ValueError(
            f"data.shares: got {shares}, takes numbers above 0 for some of {', '.join(FAMILIES)}"
        )
    total, found = sum(shares.values()), []
    for family, share in shares.items():
        count = int(plan["records"] * share / total)
        found += records(split, count, seed=seed, families=(family,))
    return found


def _record(split: str, family: str, seed: int, number: int) -> Record:
    rng = random.Random(f"{seed} {split} {family} {number}")
    ask, write = FAMILIES[family]
    prompt = ask(rng)
    while split_of(prompt) != split:
        prompt = ask(rng)
    return Record(family, prompt, write(prompt, rng))


def template_tokenizer(vocab_size: int = VOCABULARY) -> Tokenizer:
    """A tokenizer in which every name, keyword and run of punctuation of the training records is
    one token.
    """
    some = records("train", 4000)
    return train_tokenizer(
        [text for record in some for text in (record.prompt, record.target)], vocab_size
    )


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        prog="python -m diffgemma_lite.labs.records.data", description="Print records."
    )
    parser.add_argument(
        "--tokenizer", metavar="FOLDER", help="train the tokenizer and save it here"
    )
    options = parser.parse_args(arguments)
    tokenizer = template_tokenizer()
    if options.tokenizer:
        tokenizer.save(options.tokenizer)
    for record in records("train", 8):
        sizes = [len(tokenizer.encode(text)) for text in (record.prompt, record.target)]
        print(f"{record.prompt}    [{sizes[0]} tokens -> {sizes[1]}]\n{record.target}\n")


if __name__ == "__main__":
    main()
