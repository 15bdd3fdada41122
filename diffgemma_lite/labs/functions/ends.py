"""How a body ends: a fold, a search, a table, the list itself, and what may be said about a number
at the end.
"""

from __future__ import annotations

from . import words as W
from .pipeline import BODY, FOLDS, SEARCHES, TABLES, TESTS, Pipeline, loop_lines
from .programs import Draft

STARTS = {"sum": "0", "count": "0", "how many": "0", "product": "1"}


def search(d: Draft, p: Pipeline) -> tuple[str, list[str]]:
    """any, all, the first, how many: (expression, or "" where a loop has said it all; lines)."""
    ask = d.rng.choice(SEARCHES)
    key, code, wording = d.pick(TESTS[p.type])
    d.say(ask, p=wording)
    d.keys.append(f"{ask} {key}")
    test = code.format(x=d.x)
    if d.loop and ask != "how many":
        negated = f"not ({test})" if " " in test else f"not {test}"
        asked = f"if {negated}:" if ask == "every" else f"if {test}:"
        found = {"any": "True", "every": "False", "find": d.x}[ask]
        after = {"any": "False", "every": "True", "find": "None"}[ask]
        return "", [
            *loop_lines(d.x, p.source, p.steps, [asked, f"    return {found}"]),
            f"return {after}",
        ]
    if ask in ("any", "every"):
        if any(step[0] != "if" for step in p.steps):
            p.named()
        p.steps.append(("map", code))
        return ("any" if ask == "any" else "all") + f"({p.elements('generator')})", []
    p.steps.append(("if", code))
    if ask == "find":
        return f"next(({p.elements('generator')}), None)", []
    if d.loop:
        return summed(d, p, "how many")
    return f"len({p.elements()})", []


def summed(d: Draft, p: Pipeline, key: str) -> tuple[str, list[str]]:
    """A loop that adds up or multiplies."""
    total = d.free_totals.pop(0)
    change = {"sum": f"{total} += {d.x}", "product": f"{total} *= {d.x}"}.get(key, f"{total} += 1")
    return total, [f"{total} = {STARTS[key]}", *loop_lines(d.x, p.source, p.steps, [change])]


def table(d: Draft, p: Pipeline) -> tuple[str, list[str]]:
    """Counts, groups, running sums, products: always a loop."""
    key = d.rng.choice(TABLES[p.type])
    if key == "product":
        d.say(key)
        d.keys.append(key)
        return summed(d, p, key)
    out, x = d.free_lists.pop(0), d.x
    start = "[]" if key == "running" else "{}"
    lines = [f"{out} = {start}"]
    if key == "tally":
        d.say(key)
        change = [f"{out}[{x}] = {out}.get({x}, 0) + 1"]
    elif key == "running":
        d.say(key)
        total = d.free_totals.pop(0)
        lines.append(f"{total} = 0")
        change = [f"{total} += {x}", f"{out}.append({total})"]
    else:
        kinds = ("parity",) if p.type == "ints" else ("length", "initial")
        group = d.rng.choice(kinds)
        code, wording = d.fill(W.GROUPS[group])
        d.say(key, g=wording)
        key = f"group by {group}"
        change = [f"{out}.setdefault({code.format(x=x)}, []).append({x})"]
    d.keys.append(key)
    return out, lines + loop_lines(x, p.source, p.steps, change)


def fold(d: Draft, p: Pipeline) -> tuple[str, list[str]]:
    key, code, wording = d.pick(FOLDS[p.type])
    d.clauses.append(wording)
    d.keys.append(key)
    if d.loop and key in ("sum", "count"):
        return summed(d, p, key)
    return code.format(e=p.inside(code)), []


def plain(d: Draft, p: Pipeline) -> tuple[str, list[str]]:
    """The list itself, built by a loop or a comprehension; letters become a text again."""
    if p.entries or not p.steps:
        return p.whole(), []
    if p.type == "letters":
        return f"''.join({p.elements('generator')})", []
    if d.loop:
        out = d.free_lists.pop(0)
        return out, [f"{out} = []", *loop_lines(d.x, p.source, p.steps, [f"{out}.append({d.x})"])]
    return p.whole(), []


def number_end(d: Draft, value: str) -> list[str]:
    """A cap on a number, or a label for it."""
    ask, k = d.rng.choice(("cap", "label")), d.small()
    d.say(ask, k=k)
    d.keys.append(ask)
    if ask == "cap":
        return [f"return min({value}, {k})"]
    lines = []
    if not value.isidentifier():
        name = d.free_totals.pop(0)
        lines, value = [f"{name} = {value}"], name
    return [
        *lines,
        f"if {value} > {k}:",
        "    return 'high'",
        f"return 'low' if {value} < 0 else 'mid'",
    ]


NUMBERS = {"sum", "largest", "smallest", "count", "unique", "product"}


def write(d: Draft, depth: int) -> str:
    """Draw `depth` operations and write the body, "\\n    return ..."."""
    guard = d.rng.random() < 0.1
    p = Pipeline(d)
    if guard:
        r = d.rng.choice(("None", "0", "-1"))
        d.say("guard", r=r, a=d.argument)
        d.clauses.insert(0, d.clauses.pop())
        d.keys.append(f"guard {r}")
    ends = not p.entries and d.rng.random() < 0.65
    for _ in range(depth - ends):
        d.rng.choices((p.test, p.map, p.shape, p.pair), (35, 33, 24, 8))[0]()
    how = d.rng.choices((fold, search, table), (50, 30, 20))[0] if ends else plain
    value, lines = how(d, p)
    if value and d.keys[-1] in NUMBERS and d.rng.random() < 0.15:
        lines += number_end(d, value)
    elif value:
        lines.append(f"return {value}")
    if not any(line.startswith("for ") for line in lines):
        d.loop = False
    lines = d.lines + lines
    if guard:
        lines = [f"if not {d.argument}:", f"    return {r}", *lines]
    return BODY + BODY.join(lines)
