"""The command; `diffgemma_lite.course` says what each word does."""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

import nbformat

from . import __doc__ as description
from .execute import execute, find, tidy
from .gate import faults
from .pages import export, slides
from .pictures import add_pictures


def main(arguments: list[str] | None = None) -> int:
    """Returns the exit status: 1 when a notebook may not be committed."""
    given = parser().parse_args(arguments)
    paths = find(given.names)
    if given.command == "export":
        print(*export(paths, given.folder, given.formulas), sep="\n")
        return 0
    if given.command == "slides":
        print(*slides(paths, given.folder), sep="\n")
        return 0
    bad = 0
    for path in paths:
        start = time.perf_counter()
        notebook = (
            execute(path, given.timeout)
            if given.command == "run"
            else nbformat.read(str(path), as_version=4)
        )
        problems = []
        if given.command != "check":
            # what was run is kept, whatever becomes of the pictures
            nbformat.write(tidy(notebook), str(path))
            problems = add_pictures(notebook)
            nbformat.write(notebook, str(path))
        problems += faults(notebook)
        bad += bool(problems)
        print(
            f"{path.name}: {len(problems) or 'no'} fault{'s' * (len(problems) != 1)}, "
            f"{time.perf_counter() - start:.1f} s"
        )
        print("".join(f"  {problem}\n" for problem in problems), end="", flush=True)
    return 1 if bad else 0


def parser() -> argparse.ArgumentParser:
    top = argparse.ArgumentParser(
        prog="python -m diffgemma_lite.course",
        description=description,
        formatter_class=argparse.RawTextHelpFormatter,
    )
    commands = top.add_subparsers(dest="command", required=True)
    for name in ("run", "tidy", "check", "export", "slides"):
        command = commands.add_parser(name)
        if name == "run":
            command.add_argument(
                "--timeout", type=float, default=600, help="seconds one cell may take"
            )
        if name in ("export", "slides"):
            command.add_argument("folder", type=Path)
        if name == "export":
            command.add_argument(
                "--formulas",
                action="store_true",
                help="typeset formulas with a script from the network",
            )
        command.add_argument("names", nargs="*")
    return top


if __name__ == "__main__":
    sys.exit(main())
