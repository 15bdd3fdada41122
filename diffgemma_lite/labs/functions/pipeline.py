"""The steps over a source, each adding a clause to the docstring: tests, maps, whole-list
operations; as code, both ways.

A source is an argument or a list made from one. The same steps are written as a comprehension or as
a loop.
"""

from __future__ import annotations

import re

from . import words as W
from .programs import Draft

TESTS = {"ints": W.INT_TESTS, "words": W.WORD_TESTS, "letters": W.LETTER_TESTS}
MAPS = {"ints": W.INT_MAPS, "words": W.WORD_MAPS, "letters": W.LETTER_MAPS}
SHAPES = {"ints": W.SHAPES, "words": W.WORD_SHAPES}
FOLDS = {"ints": W.INT_FOLDS, "words": W.WORD_FOLDS, "letters": {"count": W.INT_FOLDS["count"]}}
TABLES = {
    "ints": ("tally", "by", "running", "product"),
    "words": ("tally", "by"),
    "letters": ("tally",),
}
SEARCHES = ("any", "every", "find", "how many")
BODY = "\n    "


class Pipeline:
    """The source of a draft and the steps over it: ("if", test), ("map", code) or ("branch", test,
    code, code).
    """

    def __init__(self, draft: Draft):
        self.d, self.source, self.steps, self.type = draft, draft.argument, [], draft.kind
        self.entries = False
        ask = {"text": ("split", None), "dict": ("values", "names", "entries")}.get(draft.kind)
        ask = draft.rng.choice(ask) if ask else None
        if draft.kind == "text":
            self.type = "words" if ask else "letters"
        elif draft.kind == "dict":
            self.type = "words" if ask == "names" else "ints"
        if ask:
            draft.say(ask)
            draft.keys.append(ask)
            a = draft.argument
            self.source = {
                "split": f"{a}.split()",
                "values": f"{a}.values()",
                "names": f"list({a})",
                "entries": a,
            }[ask]
            self.entries = ask == "entries"
        else:
            draft.keys.append(self.type)

    def test(self) -> None:
        key, code, wording = self.d.pick(TESTS[self.type])
        self.d.say("keep", p=wording)
        self.d.keys.append(f"keep {key}")
        self.steps.append(("if", code))

    def pair(self) -> None:
        """A second list of numbers."""
        if (
            self.d.kind != "ints"
            or len(self.d.arguments) > 1
            or self.steps
            or self.source != self.d.argument
        ):
            return self.test()
        ask, other = (
            self.d.rng.choice(("zip", "common", "minus")),
            self.d.rng.choice(("other", "more", "b")),
        )
        self.d.arguments.append((other, "ints"))
        self.d.say(ask, a=self.d.argument, b=other)
        self.d.keys.append(ask)
        if ask == "zip":
            name = self.d.free_lists.pop(0)
            self.d.lines.append(f"{name} = [p + q for p, q in zip({self.source}, {other})]")
            self.source = name
        else:
            self.steps.append(
                ("if", "{x} in " + other if ask == "common" else "{x} not in " + other)
            )
        return None

    def map(self) -> None:
        key, code, wording = self.d.pick(MAPS[self.type])
        if self.d.rng.random() < 0.2 and key != "length":
            test, p_code, p = self.d.pick(TESTS[self.type])
            other, o_code, o = self.d.pick(
                {k: v for k, v in MAPS[self.type].items() if k not in ("length", key)}
            )
            self.d.say("branch", m=wording, p=p, o=o)
            self.d.keys.append(f"{key} if {test} else {other}")
            self.steps.append(("branch", p_code, code, o_code))
            return
        self.d.say("map", m=wording)
        self.d.keys.append(key)
        self.steps.append(("map", code))
        self.type = "ints" if key == "length" else self.type

    def shape(self) -> None:
        if self.type == "letters" or self.entries:
            return self.map()
        if self.type == "ints" and self.d.rng.random() < 0.1:
            self.d.say("gaps")
            self.d.keys.append("gaps")
            e = self.named()
            self.source = f"[q - p for p, q in zip({e}, {e}[1:])]"
            return None
        key, code, wording = self.d.pick(SHAPES[self.type])
        self.d.clauses.append(wording)
        self.d.keys.append(key)
        self.source = code.format(e=self.inside(code) if "({e}" in code else self.named())
        return None

    def elements(self, kind: str = "list") -> str:
        """The steps as a comprehension: a list's, or a generator's inside."""
        x, value, tests = self.d.x, self.d.x, []
        for at, step in enumerate(self.steps):
            if (
                step[0] == "if" and value != x
            ):  # a test of what was made: the list so far gets a name
                self.steps, rest = self.steps[:at], self.steps[at:]
                self.named()
                self.steps = rest
                return self.elements(kind)
            value = value if step[0] == "if" else put(step, value)
            tests += [put(step, x)] if step[0] == "if" else []
        if self.entries:
            text = f"key: {value} for key, {x} in {self.source}.items()"
        else:
            text = f"{value} for {x} in {self.source}"
        text += f" if {' and '.join(tests)}" if tests else ""
        return f"{{{text}}}" if self.entries else f"[{text}]" if kind == "list" else text

    def whole(self) -> str:
        """The list with its steps done."""
        if self.steps or self.entries:
            done = self.elements()
        else:
            done = f"list({self.source})" if self.source.endswith(".values()") else self.source
        self.steps = []
        return done

    def named(self) -> str:
        """The list so far, under a name if it has none."""
        done = self.whole()
        if not re.fullmatch(r"\w+(\(\w+\))?(\.split\(\))?", done):
            name = self.d.free_lists.pop(0)
            self.d.lines.append(f"{name} = {done}")
            done = name
        self.source = done
        return done

    def inside(self, code: str) -> str:
        """The list so far as the argument of a call: a generator where it may stand alone."""
        if self.steps and re.search(r"(sum|join|sorted|set)\(\{e\}\)", code):
            done = self.elements("generator")
            self.steps = []
            return done
        return self.source if not self.steps and "len(" not in code else self.whole()


def put(step: tuple, value: str) -> str:
    """A step's code with the element's value in its place."""

    def one(code: str) -> str:
        bare = re.fullmatch(r"[\w.()\[\]:'-]*", value) or "({x})" in code and code.count("{x}") == 1
        return code.format(x=value if bare else f"({value})")

    return (
        one(step[1]) if len(step) == 2 else f"{one(step[2])} if {one(step[1])} else {one(step[3])}"
    )


def loop_lines(x: str, source: str, steps: list[tuple], last: list[str]) -> list[str]:
    """`for x in source`, the steps as nested statements, then the lines `last` where they lead."""
    lines, depth = [f"for {x} in {source}:"], 1
    for step in steps:
        pad = "    " * depth
        if step[0] == "if":
            lines.append(f"{pad}if {step[1].format(x=x)}:")
            depth += 1
        elif step[0] == "map":
            lines.append(f"{pad}{x} = {step[1].format(x=x)}")
        else:
            test, yes, no = (code.format(x=x) for code in step[1:])
            lines += [
                f"{pad}if {test}:",
                f"{pad}    {x} = {yes}",
                f"{pad}else:",
                f"{pad}    {x} = {no}",
            ]
    return lines + ["    " * depth + line for line in last]
