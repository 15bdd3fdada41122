"""The Python corpus: text pairs (prompt, target) made from the standard library that every Python
carries.

How it differs from the usual: nothing is downloaded, whole modules are held out (never lines of a
module that is also trained on), and every target ends where the text itself ends (a body, a
paragraph), so that an end token means something. Walked in notebook 06. Except for doc, `prompt +
target` is the text itself, nothing put in between.

    body      signature and docstring -> the body, rewritten by `ast.unparse` (4 spaces, no
              comments)
    doc       signature and body -> the first paragraph of the docstring
    prose     the beginning of a paragraph (module and class docstrings, the topics of `help()`) ->
              the rest of it
    continue  lines of source as they stand -> the rest of the paragraph (up to the next blank line)
    hole      lines of source, lines left out in the middle, more lines -> the lines left out
              (asked for by name only)

    python -m diffgemma_lite.labs.python_text.data                       # prints what is in it
    python -m diffgemma_lite.labs.python_text.data --tokenizer FOLDER    # trains the tokenizer
"""

from __future__ import annotations

import argparse
import ast
import hashlib
import inspect
import os
import platform
import re
import sysconfig
import tokenize
import warnings
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from diffgemma_lite.labs.splits import SPLITS, check_split
from diffgemma_lite.tokenizer import (
    GAP,
    EncodedExample,
    Tokenizer,
    encode_examples,
    encode_prompt,
    train_tokenizer,
)

__all__ = [
    "EncodedExample",
    "Example",
    "SPLITS",
    "TASKS",
    "encode_examples",
    "encode_prompt",
    "load_corpus",
    "split_of",
]

TASKS = ("body", "doc", "prose", "continue")
# by name only, so that the tasks above, and what was trained on them, stay as they are
MORE_TASKS = ("hole",)
HELD_OUT = 0.04  # share of the packages in validation, and again in test
# the draw: one that gives both held-out splits near 4% of the functions, not one package each
SALT = 235
# longer contexts are shortened, from the side that matters least for the task
PROMPT_CHARS = 480
TARGET_CHARS = 1200  # a paragraph's rest longer than this is a table or a licence: left out
SHORTEST = 16  # characters of a target, white space aside
STRIDE = 6  # lines from one 'continue' window to the next inside a paragraph

# Folders that are installed packages, tests, or tables made by a program. pydoc_data gives its
# topics as prose only.
LEFT_OUT = {
    "site-packages",
    "dist-packages",
    "test",
    "tests",
    "idle_test",
    "encodings",
    "pgen2",
    "msilib",
    "pydoc_data",
    "__pycache__",
    "lib-dynload",
    "_bundled",
}
GENERATED = re.compile(r"_sysconfigdata|config-\d|_osx_support|_aix_support")
# Modules that share code or docstrings are held out together. A leading underscore never makes
# another module.
FAMILIES = {
    "ntpath": "posixpath",
    "genericpath": "posixpath",
    "sre_compile": "re",
    "sre_parse": "re",
    "sre_constants": "re",
    "cprofile": "profile",
    "aifc": "wave",
    "sunau": "wave",
    "chunk": "wave",
    "asynchat": "asyncore",
    "smtpd": "asyncore",
    "imp": "importlib",
    "zipimport": "importlib",
    "opcode": "dis",
    "pickletools": "pickle",
    "pyio": "io",
    "pydecimal": "decimal",
    "compression": "gzip",
    "bz2": "gzip",
    "lzma": "gzip",
    "shelve": "dbm",
    "turtledemo": "turtle",
    "xmlrpc": "xml",
    "py_abc": "abc",
    "pydatetime": "datetime",
    "collections_abc": "collections",
    "weakrefset": "weakref",
    "markupbase": "html",
    "nturl2path": "urllib",
    "sitebuiltins": "site",
}


@dataclass(frozen=True)
class Example:
    """One text pair. `module` is the dotted name of the file it comes from."""

    module: str
    task: str
    prompt: str
    target: str


def fraction(text: str) -> float:
    """A number in [0, 1) that depends on `text` only: the same in every run, on every machine."""
    return int.from_bytes(hashlib.sha256(text.encode("utf-8")).digest()[:6], "big") / 2**48


def split_of(module: str) -> str:
    """train, validation or test, from the top-level package of a dotted name."""
    package = module.split(".")[0].strip("_").lower()
    if package == "pydoc_data":
        return "train"  # the topics repeat each other, so they stay on one side
    place = fraction(f"split {SALT} {FAMILIES.get(package, package)}")
    return "test" if place < HELD_OUT else "validation" if place < 2 * HELD_OUT else "train"


def modules(root: Path) -> Iterator[tuple[str, str]]:
    """(dotted name, source) of every file used under `root`, in the order of the names."""
    paths = {}
    for folder, inside, files in os.walk(root):
        inside[:] = set(inside) - LEFT_OUT  # never walks through the installed packages
        paths.update(
            {
                (Path(folder) / name).relative_to(root).with_suffix("").parts: Path(folder) / name
                for name in files
                if name.endswith(".py")
            }
        )
    for parts, path in sorted(paths.items()):
        if parts[-1] in LEFT_OUT or GENERATED.match(parts[0]):
            continue
        try:
            with tokenize.open(path) as file:  # honours the coding line, utf-8 otherwise
                yield (
                    ".".join(parts[:-1] if parts[-1] == "__init__" else parts) or "__init__",
                    file.read(),
                )
        except (SyntaxError, UnicodeDecodeError):
            continue


def shorten(text: str, limit: int = PROMPT_CHARS, last: bool = False) -> str:
    """The first (or last) whole lines of `text` that fit in `limit` characters.

    One line at least, cut if need be.
    """
    if len(text) <= limit:
        return text
    if last:
        cut = text.find("\n", len(text) - limit - 1)
        return text[len(text) - limit :] if cut < 0 else text[cut + 1 :]
    cut = text.rfind("\n", 0, limit)
    return text[:limit] if cut <= 0 else text[:cut].rstrip()


def function_examples(module: str, tree: ast.Module) -> Iterator[Example]:
    """The tasks body and doc, for each function and method that has a docstring."""
    for node in ast.walk(tree):
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) or not ast.get_docstring(
            node
        ):
            continue
        doc, statements = ast.get_docstring(node), node.body[1:]
        if not statements or all(_is_stub(statement) for statement in statements):
            continue
        node.body = [ast.Pass()]
        header = ast.unparse(node).removesuffix("\n    pass")
        node.body = statements
        body = ast.unparse(node).removeprefix(header)
        if len(header) > PROMPT_CHARS // 2:
            continue
        quoted = (
            shorten(doc, PROMPT_CHARS - len(header)).replace("\\", "\\\\").replace('"""', "'''")
        )
        quoted = quoted.replace("\n", "\n    ").replace("\n    \n", "\n\n") + (
            " " if quoted.endswith('"') else ""
        )
        yield Example(module, "body", f'{header}\n    """{quoted}"""', body)
        yield Example(module, "doc", shorten(header + body), re.split(r"\n\s*\n", doc)[0].rstrip())


def _is_stub(node: ast.stmt) -> bool:
    """pass, ... (or any lone constant), raise NotImplementedError."""
    if isinstance(node, ast.Raise) and node.exc is not None:
        return "NotImplementedError" in ast.unparse(node.exc)
    return isinstance(node, ast.Pass) or (
        isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
    )


def prose_examples(module: str, text: str) -> Iterator[Example]:
    """Each paragraph of `text`, cut between two words in its first half.

    The paragraphs before it lead in.
    """
    start = 0
    for paragraph in re.split(r"(\n\s*\n)", text):
        spaces = [
            match.start()
            for match in re.finditer(r"(?<=\S)\s", paragraph[: max(len(paragraph) // 2, 0)])
        ]
        if paragraph.strip() and spaces:
            cut = spaces[int(fraction(paragraph) * len(spaces))]
            yield Example(
                module,
                "prose",
                shorten(text[: start + cut], last=True).lstrip("\n"),
                paragraph[cut:].rstrip(),
            )
        start += len(paragraph)


def continue_examples(module: str, source: str) -> Iterator[Example]:
    """Windows over source lines: a paragraph of n lines gives about n / STRIDE cuts, the first one
    placed by a hash.
    """
    text = "\n".join(line.rstrip() for line in source.splitlines())
    for match in re.finditer(r"(?:\n+|^)[^\n]+(?:\n[^\n]+)*", text):
        inner = re.finditer(r"(?<=[^\n])\n", match[0][1:])
        breaks = [match.start(), *(match.start() + 1 + place.start() for place in inner)]
        for cut in breaks[int(fraction(match[0]) * min(STRIDE, len(breaks))) :: STRIDE]:
            prompt = shorten(text[max(0, cut - PROMPT_CHARS - 200) : cut], last=True).strip("\n")
            if prompt:
                yield Example(module, "continue", prompt, text[cut : match.end()])


def hole_examples(module: str, source: str) -> Iterator[Example]:
    """One hole of one to three lines in each paragraph of three lines or more; `prompt` has GAP
    where they are missing.
    """
    text = "\n".join(line.rstrip() for line in source.splitlines())
    for match in re.finditer(r"[^\n]+(?:\n[^\n]+){2,}", text):
        ends = [
            match.start() - 1,
            *(match.start() + place.start() for place in re.finditer(r"\n", match[0])),
            match.end(),
        ]
        # never the first line of the paragraph nor the last
        first = 1 + int(fraction(match[0]) * (len(ends) - 3))
        last = min(first + 1 + int(fraction("size " + match[0]) * 3), len(ends) - 2)
        left, right = text[: ends[first]], text[ends[last] :]
        if left.strip():
            around = (
                shorten(left, PROMPT_CHARS // 2, last=True).lstrip("\n")
                + GAP
                + shorten(right, PROMPT_CHARS // 2)
            )
            yield Example(module, "hole", around, text[ends[first] : ends[last]])


def topics(root: Path) -> Iterator[tuple[str, str]]:
    """(name, text) of the topics that `help()` shows."""
    path = root / "pydoc_data" / "topics.py"
    tree = (
        ast.parse(path.read_text(encoding="utf-8"))
        if path.is_file()
        else ast.Module(body=[], type_ignores=[])
    )
    for node in ast.walk(tree):
        if isinstance(node, ast.Dict):
            table = ast.literal_eval(node)
            yield from ((f"pydoc_data.topics.{name}", table[name]) for name in sorted(table))


def module_examples(module: str, source: str) -> Iterator[Example]:
    """Every example of one file, before anything is left out.

    A file that does not parse gives none.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # old escapes in strings
            tree = ast.parse(source)
    except (SyntaxError, ValueError):
        return
    yield from continue_examples(module, source)
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef) and ast.get_docstring(node):
            yield from prose_examples(module, inspect.cleandoc(ast.get_docstring(node)))
    yield from function_examples(module, tree)


def readable(example: Example) -> bool:
    """Not too short, nor too long for a window, hardly any non-ASCII, no table of numbers, no
    endless line.
    """
    target = example.target
    size = len("".join(target.split()))
    if size < SHORTEST or (example.task in ("prose", "continue") and len(target) > TARGET_CHARS):
        return False
    strange = sum(not char.isascii() for char in target) if not target.isascii() else 0
    digits = sum(char.isdigit() for char in target)
    return (
        strange <= 0.02 * size
        and digits <= 0.15 * size
        and not _RULER.search(target)
        and max(map(len, target.split("\n"))) <= 160
    )


_RULER = re.compile(r"([^\w\s])\1{9}")


@lru_cache(maxsize=4)
def build_corpus(root: Path | None = None) -> dict[str, tuple[Example, ...]]:
    """All examples by split.

    A target occurs once per task, and a held-out target nowhere in an earlier split.
    """
    root = Path(root or sysconfig.get_path("stdlib"))
    found: dict[str, list[Example]] = {split: [] for split in SPLITS}
    for module, source in modules(root):
        found[split_of(module)].extend(filter(readable, module_examples(module, source)))
    for name, text in topics(root):
        found["train"].extend(filter(readable, prose_examples(name, text)))
    if not any(found.values()):
        raise ValueError(
            f"root: no usable .py file under {str(root)!r}, takes a folder of Python sources "
            "(a Python whose library is a zip file has none)"
        )
    return distinct(found)


@lru_cache(maxsize=4)
def build_holes(root: Path | None = None) -> dict[str, tuple[Example, ...]]:
    """As `build_corpus`, of the task hole only."""
    found: dict[str, list[Example]] = {split: [] for split in SPLITS}
    for module, source in modules(Path(root or sysconfig.get_path("stdlib"))):
        found[split_of(module)].extend(filter(readable, hole_examples(module, source)))
    return distinct(found)


def distinct(found: dict[str, list[Example]]) -> dict[str, tuple[Example, ...]]:
    """Each target once per task, and none that stands in an earlier split."""
    earlier: set[str] = set()
    result = {}
    for split in SPLITS:
        kept = {}
        for example in found[split]:
            key = " ".join(example.target.split())
            if key not in earlier:
                kept.setdefault((example.task, key), example)
        earlier.update(key for _, key in kept)
        result[split] = tuple(kept.values())
    return result


def load_corpus(
    split: str, tasks: Iterable[str] = TASKS, root: str | Path | None = None
) -> list[Example]:
    """The examples of one split, of some tasks.

    Always the same ones in the same order for one Python version.
    """
    tasks = (tasks,) if isinstance(tasks, str) else tuple(tasks)
    check_split(split)
    if not tasks or not set(tasks) <= {*TASKS, *MORE_TASKS}:
        raise ValueError(f"tasks: got {tasks!r}, takes some of {', '.join((*TASKS, *MORE_TASKS))}")
    if root is not None and not Path(root).is_dir():
        raise ValueError(f"root: got {str(root)!r}, takes a folder")
    root = Path(root) if root else None
    found = (
        [example for example in build_corpus(root)[split] if example.task in tasks]
        if set(tasks) & set(TASKS)
        else []
    )
    return found + (list(build_holes(root)[split]) if "hole" in tasks else [])


def texts(split: str, plan: dict, held_out: int) -> list[Example]:
    """What a recipe's data asks for, as labs/recipe.py takes it; held-out splits are whole."""
    return load_corpus(split, tasks=plan["tasks"])


def tokenizer_texts(root: str | Path | None = None) -> list[str]:
    """What the tokenizer learns from.

    Targets of the training split, and the prompts that show code in full.
    """
    examples = load_corpus("train", root=root)
    return [e.target for e in examples] + [e.prompt for e in examples if e.task in ("body", "doc")]


def report(tokenizer: Tokenizer, canvas_length: int = 64, root: str | Path | None = None) -> str:
    """Per split and task: modules, examples, tokens, tokens per character, share of targets that
    fit 1 and 2 canvases.
    """
    head = (
        "split",
        "task",
        "modules",
        "examples",
        "target tok",
        "prompt tok",
        "tok/char",
        "p50",
        "p90",
        f"fit {canvas_length}",
        f"fit 2x{canvas_length}",
    )
    lines = ["{:10} {:8}".format(*head) + "".join(f"{name:>11}" for name in head[2:])]
    for split in SPLITS:
        for task in TASKS:
            examples = load_corpus(split, task, root)
            if not examples:
                continue
            sizes = sorted(map(len, tokenizer.encode_batch([e.target for e in examples])))
            prompts = sum(map(len, tokenizer.encode_batch([e.prompt for e in examples]))) + 2 * len(
                examples
            )
            fits = [
                sum(size < room for size in sizes) / len(sizes)
                for room in (canvas_length, 2 * canvas_length)
            ]
            cells = [
                f"{len({e.module for e in examples}):,}",
                f"{len(examples):,}",
                f"{sum(sizes):,}",
                f"{prompts:,}",
                f"{sum(sizes) / sum(len(e.target) for e in examples):.3f}",
                str(sizes[len(sizes) // 2]),
                str(sizes[len(sizes) * 9 // 10]),
                *(f"{fit:.1%}" for fit in fits),
            ]
            lines.append(f"{split:10} {task:8}" + "".join(f"{cell:>11}" for cell in cells))
    for split in SPLITS[1:]:
        lines.append(
            f"{split}: "
            + ", ".join(sorted({e.module.split(".")[0] for e in load_corpus(split, root=root)}))
        )
    return "\n".join(
        [f"Python {platform.python_version()}, vocabulary {tokenizer.vocab_size}", *lines]
    )


def main(arguments: list[str] | None = None) -> None:
    """The command line: train the tokenizer (--tokenizer keeps it), then print the report."""
    parser = argparse.ArgumentParser(
        prog="python -m diffgemma_lite.labs.python_text.data", description=main.__doc__
    )
    parser.add_argument("--tokenizer", metavar="FOLDER", help="save the tokenizer here")
    parser.add_argument("--vocab-size", type=int, default=2048)
    parser.add_argument("--canvas-length", type=int, default=64)
    parser.add_argument(
        "--root", help="another folder of Python sources (default: the standard library)"
    )
    options = parser.parse_args(arguments)
    tokenizer = train_tokenizer(tokenizer_texts(options.root), options.vocab_size)
    if options.tokenizer:
        tokenizer.save(options.tokenizer)
    print(report(tokenizer, options.canvas_length, options.root))


if __name__ == "__main__":
    main()
