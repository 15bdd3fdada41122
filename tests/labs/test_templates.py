"""Generated records: right by their own checkers, split by request, short enough for the canvas.

Checkers see each fault.
"""

import json

import pytest

from diffgemma_lite.labs.records.checks import check
from diffgemma_lite.labs.records.data import FAMILIES, NAMES, records, split_of, template_tokenizer
from diffgemma_lite.labs.records.scores import MAX_PROMPT
from diffgemma_lite.labs.splits import SPLITS

JSON = (
    '{"count":2,"open":4,"total":7,"last":"elm",'
    '"rows":[{"of":"ash","add":5,"sum":9},{"of":"elm","add":-2,"sum":7}]}'
)
CLASS = "# 2 fields: 1 int, 1 str\n@dataclass\nclass Box:\n    ash: int\n    key: str"
SQL = (
    "BEGIN;\nCREATE TABLE oak(id PRIMARY KEY, ash REFERENCES ash);\n"
    "CREATE TABLE ash(id PRIMARY KEY);\n"
    "INSERT INTO ash VALUES(3);\nINSERT INTO oak VALUES(1,3);\nCOMMIT;"
)
SUM = "answer:26\na:20+3=23\nb:23-1=22\nc:22+4=26"
RIGHT = {
    "json": ("json:4,ash+5,elm-2", JSON),
    "class": ("class Box:ash,key", CLASS),
    "sql": ("sql: oak ash", SQL),
    "sum": ("sum:20;a+3;b-1;c+4", SUM),
}


def test_every_generated_record_is_right():
    for split in SPLITS:
        for record in records(split, 120, seed=3):
            assert check(record.family, record.prompt, record.target) == [], record
            assert record.task == "record" and split_of(record.prompt) == split


def test_a_request_is_in_one_split_only():
    asked = {split: {r.prompt for r in records(split, 400)} for split in SPLITS}
    assert (
        not asked["train"] & (asked["test"] | asked["validation"])
        and not asked["test"] & asked["validation"]
    )
    assert all(len(prompts) > 200 for prompts in asked.values())


def test_records_depend_on_seed_and_number_alone():
    some = records("test", 40, seed=5)
    assert some == records("test", 80, seed=5)[:40] != records("test", 40, seed=6)
    assert records("test", 10, seed=5, families=["sql"]) == [r for r in some if r.family == "sql"]
    assert [r.family for r in some[:4]] == list(FAMILIES)


def test_a_record_and_an_end_token_fit_a_canvas_of_64():
    tokenizer = template_tokenizer()
    some = records("validation", 400)
    sizes = [len(ids) for ids in tokenizer.encode_batch([r.target for r in some])]
    assert (
        max(sizes) < 64
        and max(map(len, tokenizer.encode_batch([r.prompt for r in some]))) <= MAX_PROMPT - 2
    )
    assert all(len(tokenizer.encode(space + name)) == 1 for name in NAMES for space in ("", " "))
    assert all(tokenizer.decode(tokenizer.encode(r.target)) == r.target for r in some[:40])


def test_all_records_of_a_family_begin_alike():
    """Which is why the first token may be given to who writes from left to right."""
    tokenizer = template_tokenizer()
    for family in FAMILIES:
        assert (
            len({tokenizer.encode(r.target)[0] for r in records("test", 30, families=[family])})
            == 1
        )


@pytest.mark.parametrize("family", FAMILIES)
def test_the_examples_of_this_file_are_right(family):
    assert check(family, *RIGHT[family]) == []


@pytest.mark.parametrize(
    ("family", "old", "new", "name"),
    [
        ("json", '"count":2', '"count":3', "count before the list"),
        ("json", '"total":7', '"total":8', "total before the sums"),
        ("json", '"last":"elm"', '"last":"ash"', "last name before the names"),
        ("json", '"sum":9', '"sum":8', "running sums"),
        ("json", '"add":5,"sum":9', '"add":4,"sum":8', "as requested"),
        ("json", '"of":"ash"', '"of":"elm"', "as requested"),
        ("json", '"open":4', '"open":5', "running sums"),
        ("json", "]}", "]", "form"),
        ("json", '"add":5', '"add":"5"', "form"),
        ("json", '"add":5', '"add":true', "form"),
        ("json", '"add":5', '"add":5,"add":6', "form"),
        ("json", '"last":"elm",', "", "form"),
        ("json", '"last"', '"first"', "form"),
        ("class", "# 2", "# 3", "field count before the fields"),
        ("class", "1 int", "2 int", "type counts before the types"),
        ("class", ": str", ": int", "type counts before the types"),
        ("class", ": str", ": dict", "types"),
        ("class", "Box", "Car", "as requested"),
        ("class", "key", "ash", "as requested"),
        ("class", "@dataclass\n", "", "form"),
        ("class", ": int", ":: int", "form"),
        ("class", "# 2 fields", "# fields", "form"),
        ("class", "ash: int", "ash = 1", "form"),
        ("class", "ash: int", "ash: int = 1", "form"),
        ("sql", "VALUES(1,3)", "VALUES(1,4)", "the migration runs: FOREIGN KEY"),
        (
            "sql",
            "VALUES(3);",
            "VALUES(3);\nINSERT INTO ash VALUES(3);",
            "the migration runs: UNIQUE",
        ),
        ("sql", "INTO ash", "INTO elm", "the migration runs: no such table"),
        ("sql", "REFERENCES ash", "REFERENCES oak", "the migration runs"),
        ("sql", " REFERENCES ash", "", "the reference"),
        ("sql", "\nINSERT INTO oak VALUES(1,3);", "", "tables without rows"),
        ("sql", "VALUES(1,3);", "VALUES(1,3);\nCREATE TABLE elm(id);", "as requested"),
        ("sql", "COMMIT;", "ROLLBACK;", "form"),
        ("sql", "BEGIN;\n", "", "form"),
        ("sql", "VALUES(3)", "VALUES 3)", "form"),
        ("sql", "COMMIT;", "BEGIN;\nCOMMIT;", "the migration runs"),
        (
            "sql",
            "COMMIT;",
            "ATTACH DATABASE 'other.db' AS other;\nCOMMIT;",
            "the migration runs: not authorized",
        ),
        ("sum", "answer:26", "answer:25", "answer before the working"),
        ("sum", "20+3=23\nb:23", "20+3=24\nb:24", "each line"),
        ("sum", "23-1=22", "24-1=23", "each line goes on"),
        ("sum", "-1=22\nc:22", "-2=21\nc:21", "as requested"),
        ("sum", "=26", "=27", "each line"),
        ("sum", "answer:", "", "form"),
        ("sum", "20+3", "20+(3)", "form"),
        ("sum", "b:", "c:", "as requested"),
        ("sum", "b:", "", "form"),
        ("sum", "=26", "", "form"),
    ],
)
def test_each_broken_constraint_is_named(family, old, new, name):
    prompt, text = RIGHT[family]
    assert old in text
    found = check(family, prompt, text.replace(old, new, 1))
    assert any(words.startswith(name) for words in found), found
    assert name != "form" or len(found) == 1


@pytest.mark.parametrize(
    "text",
    [
        "",
        "\n",
        "answer:" + "9" * 5000,
        "[" * 100_000,
        "((" * 50_000,
        "\x00",
        "answer:1\n" + "a:1+1=2\n" * 3,
    ],
)
def test_rubbish_is_refused_and_never_raises(text):
    for family, (prompt, _) in RIGHT.items():
        assert check(family, prompt, text), (family, text[:20])


def test_json_check_agrees_with_plain_arithmetic():
    data = json.loads(JSON)
    assert data["total"] == data["open"] + sum(row["add"] for row in data["rows"]) and data[
        "count"
    ] == len(data["rows"])


def test_bad_arguments_are_named():
    for call, name in (
        (lambda: records("all", 4), "split"),
        (lambda: records("train", 0), "count"),
        (lambda: records("train", 4, families=["xml"]), "families"),
        (lambda: check("xml", "xml:1", ""), "family"),
        (lambda: check("sum", "json:1", ""), "prompt"),
    ):
        with pytest.raises(ValueError, match=f"^{name}: "):
            call()
