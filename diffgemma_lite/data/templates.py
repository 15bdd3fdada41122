"""Structured records whose fields constrain each other, often the earlier by the later: four seeded families. Notebook 08.

How it differs from a text corpus: everything is generated, so a record is right or wrong, and template_checks.py says which
constraint is broken. A request names what the record must hold; the rest (keys, types, order) is the writer's choice, but
every choice binds others:

    json    a count, a total and the last row's id stand before the rows they speak of; each row carries the running sum
    class   a comment counts the fields of each type; the fields follow
    sql     one transaction: two tables in either order, one refers to the other; rows that a foreign key allows
    sum     the answer stands before its working, one operation a line

    records("train", 4, seed=0)      # one of each family
    python -m diffgemma_lite.data.templates --tokenizer FOLDER      trains the tokenizer; without it, prints examples
"""

from __future__ import annotations

import argparse
import hashlib
import random
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise

from .tokenizer import Tokenizer, train_tokenizer

SPLITS = ("train", "validation", "test")
HELD_OUT = 0.1  # share of the requests in validation, and again in test
TASK = "record"  # the marker in front of every request
VOCABULARY = 512  # at most: the pieces of these records run out before

NAMES = ("ash", "bay", "cod", "dew", "elm", "fig", "gem", "hen", "ivy", "jar", "key", "lot", "map", "net", "oak", "pen",
         "ray", "sky", "tin", "urn", "van", "web", "yak", "zoo")  # fmt: skip
CLASSES = ("Box", "Car", "Day", "Fox", "Hat", "Job", "Log", "Pet")
TYPES = ("int", "str")


@dataclass(frozen=True)
class Record:
    """A request and one right answer to it. `task` is what data/tokenizer.py's encode_examples asks for."""

    family: str
    prompt: str
    target: str
    task: str = TASK


def _ask_json(rng: random.Random) -> str:
    return "json:" + ",".join(map(str, (rng.randint(10, 69), *(rng.randint(1, 9) for _ in range(rng.randint(1, 2))))))


def _write_json(request: str, rng: random.Random) -> str:
    amounts = [int(number) for number in request.removeprefix("json:").split(",")]
    ids, sums = rng.sample(range(1, 10), len(amounts)), list(accumulate(amounts))
    rows = [f'{{"id":{i},"add":{a},"sum":{s}}}' for i, a, s in zip(ids, amounts, sums, strict=True)]
    return f'{{"count":{len(ids)},"total":{sums[-1]},"last":{ids[-1]},"rows":[{",".join(rows)}]}}'


def _ask_class(rng: random.Random) -> str:
    return f"class {rng.choice(CLASSES)}:" + ",".join(rng.sample(NAMES, rng.randint(2, 5)))


def _write_class(request: str, rng: random.Random) -> str:
    head, fields = request.split(":")
    types = [rng.choice(TYPES) for _ in fields.split(",")]
    counts = ", ".join(f"{types.count(kind)} {kind}" for kind in TYPES)
    lines = "".join(f"\n    {field}: {kind}" for field, kind in zip(fields.split(","), types, strict=True))
    return f"# {len(types)} fields: {counts}\n@dataclass\n{head}:{lines}"


def _ask_sql(rng: random.Random) -> str:
    return "sql: " + " ".join(rng.sample(NAMES, 2))


def _write_sql(request: str, rng: random.Random) -> str:
    _, child, parent = request.split()
    keys = rng.sample(range(1, 10), rng.randint(1, 2))
    refers = f"CREATE TABLE {child}(id PRIMARY KEY, {parent} REFERENCES {parent});"
    tables = [refers, f"CREATE TABLE {parent}(id PRIMARY KEY);"]
    rng.shuffle(tables)
    rows = [f"INSERT INTO {parent} VALUES({key});" for key in keys]
    own = f"INSERT INTO {child} VALUES({rng.randint(1, 9)},{rng.choice(keys)});"
    return "\n".join(["BEGIN;", *tables, *rows, own, "COMMIT;"])


def _ask_sum(rng: random.Random) -> str:
    values = [rng.randint(20, 79)]
    for _ in range(rng.randint(3, 5)):
        step = rng.choice((-1, 1)) * rng.randint(1, 9)
        values.append(values[-1] + (step if 10 <= values[-1] + step <= 99 else -step))  # two digits throughout
    return f"sum:{values[0]}" + "".join(f"{after - before:+d}" for before, after in pairwise(values))


def _write_sum(request: str, rng: random.Random) -> str:
    values = list(accumulate(int(term) for term in re.findall(r"[+-]?\d+", request)))
    lines = [f"{before}{after - before:+d}={after}" for before, after in pairwise(values)]
    return "\n".join([f"answer:{values[-1]}", *lines])


FAMILIES: dict[str, tuple[Callable[..., str], Callable[..., str]]] = {  # how to ask, and one way to answer
    "json": (_ask_json, _write_json), "class": (_ask_class, _write_class), "sql": (_ask_sql, _write_sql),
    "sum": (_ask_sum, _write_sum),
}  # fmt: skip


def split_of(prompt: str) -> str:
    """train, validation or test, from the request alone: a held-out request is in no other split, with any record."""
    place = int.from_bytes(hashlib.blake2b(prompt.encode(), digest_size=6).digest(), "big") / 2**48
    return "test" if place < HELD_OUT else "validation" if place < 2 * HELD_OUT else "train"


def records(split: str, count: int, *, seed: int = 0, families: Sequence[str] = tuple(FAMILIES)) -> list[Record]:
    """`count` right records of one split, the families in turn. Record i depends on (seed, split, family, i) alone."""
    families = (families,) if isinstance(families, str) else tuple(families)
    if split not in SPLITS:
        raise ValueError(f"split: got {split!r}, takes one of {', '.join(SPLITS)}")
    if isinstance(count, bool) or not isinstance(count, int) or count < 1:
        raise ValueError(f"count: got {count!r}, takes an integer above 0")
    if not families or not set(families) <= set(FAMILIES):
        raise ValueError(f"families: got {families!r}, takes some of {', '.join(FAMILIES)}")
    return [_record(split, families[i % len(families)], seed, i // len(families)) for i in range(count)]


def _record(split: str, family: str, seed: int, number: int) -> Record:
    rng = random.Random(f"{seed} {split} {family} {number}")
    ask, write = FAMILIES[family]
    prompt = ask(rng)
    while split_of(prompt) != split:
        prompt = ask(rng)
    return Record(family, prompt, write(prompt, rng))


def template_tokenizer(vocab_size: int = VOCABULARY) -> Tokenizer:
    """A tokenizer in which every name, keyword and run of punctuation of the training records is one token."""
    some = records("train", 4000)
    return train_tokenizer([text for record in some for text in (record.prompt, record.target)], vocab_size)


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m diffgemma_lite.data.templates", description="Print records.")
    parser.add_argument("--tokenizer", metavar="FOLDER", help="train the tokenizer and save it here")
    options = parser.parse_args(arguments)
    tokenizer = template_tokenizer()
    if options.tokenizer:
        tokenizer.save(options.tokenizer)
    for record in records("train", 8):
        sizes = [len(tokenizer.encode(text)) for text in (record.prompt, record.target)]
        print(f"{record.prompt}    [{sizes[0]} tokens -> {sizes[1]}]\n{record.target}\n")


if __name__ == "__main__":
    main()
