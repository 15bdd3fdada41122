"""The judged side: a script for `python -I -S`, which runs what it is sent and says what came out.
Never imported.

One JSON object a line: {"source", "name", "calls"} in, [["ok", repr] or ["error", kind], ...] out.
Limits first, then no more files, sockets, processes or imports (an audit hook, which nothing can
take away again), then the first program. It knows no right answers; those stay with the judge.
"""

import ast
import builtins
import json
import resource
import sys

MEMORY, CPU_SECONDS, LONGEST = (
    256 * 2**20,
    120,
    20_000,
)  # bytes, of the whole process, letters of one result
REFUSED = (
    "open",
    "os.",
    "socket.",
    "subprocess.",
    "import",
    "ctypes.",
    "shutil.",
    "signal.",
    "sys.",
    "mmap.",
    "pty.",
    "fcntl.",
    "gc.",
    "marshal.",
    "pickle.",
    "resource.",
    "webbrowser.",
    "urllib.",
)
ALLOWED = """abs all any bool chr dict divmod enumerate filter float frozenset int isinstance
iter len list map max min next ord pow range repr reversed round set sorted str
sum tuple zip True False None ArithmeticError AttributeError BaseException
Exception IndexError KeyError LookupError MemoryError OverflowError
RecursionError RuntimeError StopIteration TypeError ValueError ZeroDivisionError""".split()


def refuse(event: str, _arguments: tuple) -> None:
    if event.startswith(REFUSED):
        raise PermissionError(event)


def limit() -> None:
    """Nothing of these can be raised again: hard limits as well as soft ones."""
    for what, most in (
        (resource.RLIMIT_AS, MEMORY),
        (resource.RLIMIT_CPU, CPU_SECONDS),
        (resource.RLIMIT_FSIZE, 0),
        (resource.RLIMIT_CORE, 0),
        (resource.RLIMIT_NPROC, 0),
        (resource.RLIMIT_NOFILE, 3),
    ):
        resource.setrlimit(what, (most, most))
    sys.setrecursionlimit(400)
    sys.addaudithook(refuse)


def forbidden(tree: ast.AST) -> str | None:
    """What the language offers beyond functions of values: imports, names and attributes with two
    underscores.
    """
    for node in ast.walk(tree):
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            return "ImportError"
        name = getattr(node, "attr", None) or getattr(node, "id", None)
        if isinstance(name, str) and (
            name.startswith("__") or name in ("format", "format_map", "gi_frame", "f_globals")
        ):
            return "PermissionError"
    return None


def judged(source: str, name: str, calls: list[str]) -> list[list[str]]:
    scope = {"__builtins__": {key: getattr(builtins, key) for key in ALLOWED}}
    try:
        tree = ast.parse(source)
        problem = forbidden(tree)
        if problem:
            return [["error", problem]] * len(calls)
        exec(compile(tree, "<judged>", "exec"), scope)
        function = scope[name]
    except BaseException as error:
        return [["error", type(error).__name__]] * len(calls)
    return [one(function, call) for call in calls]


def one(function, call: str) -> list[str]:
    try:
        result = repr(function(*ast.literal_eval(f"({call},)")))
        return ["ok", result] if len(result) <= LONGEST else ["error", "OverflowError"]
    except BaseException as error:
        return ["error", type(error).__name__]


def main() -> None:
    judged("def f(a):\n    return a", "f", ["1"])  # whatever is imported late is imported now
    reply, read = sys.stdout.write, sys.stdin.readline
    limit()
    while line := read():
        asked = json.loads(line)
        reply(json.dumps(judged(asked["source"], asked["name"], asked["calls"])) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
