"""Which constraints does a record break?

Exact answers, in words, by libraries that others keep. Notebook 08.

    json    json reads it; then count, names and sums are compared
    class   ast parses it; the comment is compared with the fields
    sql     sqlite3 runs it in memory, with foreign keys on
    sum     ast parses each line; both sides are evaluated

`check("sum", "sum:20;a+3;b-1", "answer:22\\na:20+3=23\\nb:23-1=22")` is [], an empty list: nothing
is broken. A record that cannot be read breaks one constraint, its form, and no other is looked at.
"""

from __future__ import annotations

import ast
import json
import re
import sqlite3
from itertools import pairwise

from .data import FAMILIES, TYPES

FORM = "form"  # the first word of what says that a record cannot be read


def check(family: str, prompt: str, text: str) -> list[str]:
    """The broken constraints of a record written for a request, in words "name: what is wrong".

    None if it is right.
    """
    checks = {"json": _check_json, "class": _check_class, "sql": _check_sql, "sum": _check_sum}
    if family not in FAMILIES:
        raise ValueError(f"family: got {family!r}, takes one of {', '.join(FAMILIES)}")
    for name, value in (("prompt", prompt), ("text", text)):
        if not isinstance(value, str):
            raise ValueError(f"{name}: got {type(value).__name__}, takes a str")
    if not prompt.startswith(family):
        raise ValueError(f"prompt: got {prompt!r}, takes a request that starts with {family!r}")
    try:
        return checks[family](prompt[len(family) :].lstrip(": "), text)
    except _Unreadable as error:
        return [f"{FORM}: {error}"]


class _Unreadable(ValueError):
    """The record is not of its form at all."""


def _differ(pairs: dict[str, tuple]) -> list[str]:
    """{name: (what stands there, what should)} -> the constraints that do not hold."""
    return [
        f"{name}: {got}, should be {want}" for name, (got, want) in pairs.items() if got != want
    ]


def _check_json(request: str, text: str) -> list[str]:
    try:
        data = json.loads(text, object_pairs_hook=_no_key_twice)
        count, first, total, last, rows = (
            data[key] for key in ("count", "open", "total", "last", "rows")
        )
        names, amounts, sums = ([row[key] for row in rows] for key in ("of", "add", "sum"))
    except (KeyError, TypeError, ValueError, RecursionError) as error:
        raise _Unreadable(f"no such JSON record ({type(error).__name__})") from None
    numbers = [count, first, total, *amounts, *sums]
    if (
        not rows
        or len(data) != 5
        or any(len(row) != 3 for row in rows)
        or any(type(n) is not int for n in numbers)
    ):
        raise _Unreadable("no such JSON record (other keys, or values that are no integers)")
    running = [first + sum(amounts[: n + 1]) for n in range(len(rows))]
    asked = [first, *(f"{name}{amount:+d}" for name, amount in zip(names, amounts, strict=True))]
    return _differ(
        {
            "count before the list": (count, len(rows)),
            "total before the sums": (total, sums[-1]),
            "last name before the names": (last, names[-1]),
            "running sums": (sums, running),
            "as requested": (",".join(map(str, asked)), request),
        }
    )


def _no_key_twice(pairs: list[tuple]) -> dict:
    if len({key for key, _ in pairs}) != len(pairs):
        raise ValueError("a key stands twice")
    return dict(pairs)


def _check_class(request: str, text: str) -> list[str]:
    head = re.match(r"# (\d) fields: (\d) int, (\d) str\n", text)
    try:
        body = ast.parse(text).body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        raise _Unreadable("Python cannot parse it") from None
    stub = body[0] if len(body) == 1 and isinstance(body[0], ast.ClassDef) else None
    if (
        stub is None
        or head is None
        or [ast.unparse(d) for d in stub.decorator_list] != ["dataclass"]
    ):
        raise _Unreadable("no comment that counts, or no dataclass after it")
    if any(
        not isinstance(f, ast.AnnAssign) or not isinstance(f.target, ast.Name) or f.value
        for f in stub.body
    ):
        raise _Unreadable("the class holds more than fields")
    name, fields = request.split(":")
    kinds = [ast.unparse(field.annotation) for field in stub.body]
    said = [int(number) for number in head.groups()]
    return _differ(
        {
            "field count before the fields": (said[0], len(kinds)),
            "type counts before the types": (said[1:], [kinds.count(kind) for kind in TYPES]),
            "types": (sorted(set(kinds) - set(TYPES)), []),
            "as requested": (
                (stub.name, [f.target.id for f in stub.body]),
                (name, fields.split(",")),
            ),
        }
    )


_ALLOWED = {
    sqlite3.SQLITE_CREATE_TABLE,
    sqlite3.SQLITE_CREATE_INDEX,
    sqlite3.SQLITE_INSERT,
    sqlite3.SQLITE_READ,
    sqlite3.SQLITE_UPDATE,
    sqlite3.SQLITE_TRANSACTION,
    sqlite3.SQLITE_SELECT,
    sqlite3.SQLITE_REINDEX,
}


def _check_sql(request: str, text: str) -> list[str]:
    """Run it: what sqlite refuses is what is broken.

    Only tables, rows and the transaction are permitted.
    """
    child, parent = request.split()
    statements = [line.strip() for line in text.split("\n")]
    whole = "\x00" not in text and all(sqlite3.complete_statement(s) for s in statements)
    if not whole or statements[0] != "BEGIN;" or statements[-1] != "COMMIT;":
        raise _Unreadable("no list of statements from BEGIN to COMMIT")
    database = sqlite3.connect(":memory:", isolation_level=None)
    try:
        database.execute("PRAGMA foreign_keys = ON")
        database.set_authorizer(
            lambda action, *_: sqlite3.SQLITE_OK if action in _ALLOWED else sqlite3.SQLITE_DENY
        )
        for statement in statements:
            try:
                database.execute(statement)
            except (sqlite3.Error, sqlite3.Warning) as error:
                if "syntax" in str(error) or "token" in str(error):
                    raise _Unreadable(f"sqlite cannot parse {statement!r}") from None
                return [f"the migration runs: {error}"]
        return _tables(database, child, parent)
    finally:
        database.close()


def _tables(database: sqlite3.Connection, child: str, parent: str) -> list[str]:
    """After the migration: which tables, which reference, how many rows."""
    database.set_authorizer(None)
    names = sorted(
        row[0] for row in database.execute("SELECT name FROM sqlite_master WHERE type = 'table'")
    )
    wrong = _differ({"as requested": (names, sorted((child, parent)))})
    if wrong:
        return wrong
    keys = [(row[3], row[2]) for row in database.execute(f'PRAGMA foreign_key_list("{child}")')]
    empty = [
        name
        for name in names
        if not database.execute(f'SELECT count(*) FROM "{name}"').fetchone()[0]
    ]
    dangling = len(database.execute("PRAGMA foreign_key_check").fetchall())
    return _differ(
        {
            "the reference": (keys, [(parent, parent)]),
            "tables without rows": (empty, []),
            "dangling rows": (dangling, 0),
            "one transaction": (database.in_transaction, False),
        }
    )


def _check_sum(request: str, text: str) -> list[str]:
    first, *lines = text.split("\n")
    head = re.fullmatch(r"answer:(\d+)", first)
    sides = [line.split("=") for line in lines]
    if (
        head is None
        or not lines
        or any(len(pair) != 2 or not re.fullmatch(r"\d+", pair[1]) for pair in sides)
    ):
        raise _Unreadable("no answer, or no working after it")
    steps = [re.fullmatch(r"([a-z]:)(\d+)([+-]\d+)", left) for left, _ in sides]
    if any(step is None for step in steps):
        raise _Unreadable("a line that is no labelled sum of two numbers")
    results = [int(right) for _, right in sides]
    wrong = [
        step[0]
        for step, result in zip(steps, results, strict=True)
        if _value(step[2] + step[3]) != result
    ]
    carried = all(
        int(after[2]) == result
        for result, (_, after) in zip(results, pairwise(steps), strict=False)
    )
    asked = steps[0][2] + "".join(f";{step[1][0]}{step[3]}" for step in steps)
    return _differ(
        {
            "answer before the working": (int(head[1]), results[-1]),
            "each line": (wrong, []),
            "each line goes on from the one before": (carried, True),
            "as requested": (asked, request),
            "the true answer": (int(head[1]), _value(re.sub("[;a-z]", "", request))),
        }
    )


def _value(expression: str) -> int:
    """A sum of integers, from its syntax tree."""
    try:
        return _node_value(ast.parse(expression, mode="eval").body)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        raise _Unreadable(f"{expression!r} is no sum of integers") from None


def _node_value(node: ast.expr) -> int:
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add | ast.Sub):
        left, right = _node_value(node.left), _node_value(node.right)
        return left + right if isinstance(node.op, ast.Add) else left - right
    if isinstance(node, ast.Constant) and type(node.value) is int:
        return node.value
    raise ValueError("something else than a sum of integers")
