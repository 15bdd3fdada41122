"""What is held out, and the proof that it is: combinations of operations, and syntax trees without
names.

A combination is the kind of argument and the operations in their order. A tenth of those of two and
more operations, by hash, is never trained on. Two combinations may be written alike (the first two
of a list of numbers, or of words), so a function is tested only if every combination that is
written like its own is held out as well.
"""

from __future__ import annotations

import ast
import hashlib
from collections.abc import Iterable

from .pipeline import FOLDS, MAPS, SEARCHES, SHAPES, TABLES, TESTS

HELD_OUT = 0.1  # share of the combinations of two and more operations
ASKED = ("keep", *SEARCHES)
SAME_CODE = {"twice": "double", "double": "twice"}  # of a word, of a number: both are x * 2


def held_out(keys: tuple[str, ...]) -> bool:
    """Is this combination of operations kept out of training? By its hash; single operations never
    are.
    """
    if len(keys) < 3:  # the kind of argument and one operation
        return False
    digest = hashlib.blake2b(" | ".join(keys).encode(), digest_size=6).digest()
    return int.from_bytes(digest, "big") / 2**48 < HELD_OUT


def may_be_tested(keys: tuple[str, ...]) -> bool:
    """May a function of this combination be in the test? Only if all that is written like it is
    held out.
    """
    return all(held_out(other) for other in alike(keys))


def alike(keys: tuple[str, ...]) -> set[tuple[str, ...]]:
    """The combinations whose functions may have the same syntax tree: this one, other kinds of
    element, other counting.
    """
    found = set()
    if keys[0] not in TESTS:
        return {keys, *_counted(keys)}
    for kind in TESTS:
        other = (kind, *keys[1:])
        swapped = (kind, *(SAME_CODE.get(key, key) for key in keys[1:]))
        found |= {some for some in (other, swapped) if some == keys or _possible(some)}
    return found | {again for some in found for again in _counted(some)}


def _counted(keys: tuple[str, ...]) -> Iterable[tuple[str, ...]]:
    """Keeping and counting, and asking how many, are one and the same."""
    for i, key in enumerate(keys):
        if key.startswith("how many "):
            yield (*keys[:i], "keep " + key.removeprefix("how many "), "count", *keys[i + 1 :])
        if key.startswith("keep ") and keys[i + 1 : i + 2] == ("count",):
            yield (*keys[:i], "how many " + key.removeprefix("keep "), *keys[i + 2 :])


def _possible(keys: tuple[str, ...]) -> bool:
    """Does every operation exist for this kind of element?"""
    kind = keys[0]
    known = {*MAPS[kind], *SHAPES.get(kind, ()), *FOLDS[kind], *TABLES[kind], "cap", "label"}
    known |= {f"{ask} {test}" for ask in ASKED for test in TESTS[kind]}
    return all(key in known or key.startswith("guard ") for key in keys[1:])


def normal_form(source: str) -> str:
    """The syntax tree of a function without its docstring and with its names numbered in order of
    appearance.
    """
    tree, numbers = ast.parse(source), {}
    definition = tree.body[0]
    own = {node.arg for node in ast.walk(tree) if isinstance(node, ast.arg)}
    own |= {
        node.id
        for node in ast.walk(tree)
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)
    }
    definition.body, definition.name = definition.body[1:], "f"
    for node in ast.walk(tree):
        if isinstance(node, ast.arg):
            node.arg = numbers.setdefault(node.arg, f"v{len(numbers)}")
        elif isinstance(node, ast.Name) and node.id in own:
            node.id = numbers.setdefault(node.id, f"v{len(numbers)}")
    return ast.dump(tree)


def disjoint(train: Iterable, held: Iterable) -> dict[str, int]:
    """How many normalised trees each side has, and how many both: 0 is the proof for these
    functions.
    """
    a, b = ({normal_form(f.source) for f in some} for some in (train, held))
    return {"train": len(a), "held_out": len(b), "both": len(a & b)}
