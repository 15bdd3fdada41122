"""Any lab by one command: train, evaluate, or write the card of a checkpoint again.

    python -m diffgemma_lite.labs train    python-small --minutes 10
    python -m diffgemma_lite.labs evaluate sudoku-small --n 20 --json
    python -m diffgemma_lite.labs card     templates-small

NAME is a folder under assets/checkpoints, or the path of one; its recipe.json says which lab.
"""

from __future__ import annotations

import argparse
import contextlib
import inspect
import json
import math
import sys
from pathlib import Path

from .scores import in_words
from .table import kind_of, module

CHECKPOINTS = Path(__file__).parents[2] / "assets" / "checkpoints"


def recipe_of(name: str) -> Path:
    """The recipe.json that a NAME stands for. Errors: ValueError where there is none."""
    tried = (Path(name), CHECKPOINTS / name)
    found = next((folder for folder in tried if (folder / "recipe.json").exists()), None)
    if found is None:
        known = sorted(path.parent.name for path in CHECKPOINTS.glob("*/recipe.json"))
        raise ValueError(
            f"NAME: got {name!r}, takes the path of a folder with a recipe.json, "
            f"or one of {', '.join(known)}"
        )
    return found / "recipe.json"


def read_plan(path: Path) -> dict:
    """What a recipe.json says; its lab looks at the keys."""
    try:
        plan = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ValueError(f"recipe: {path} cannot be read as JSON ({error})") from error
    if not isinstance(plan, dict) or not isinstance(plan.get("data", {}), dict):
        raise ValueError(f"recipe: {path} holds no recipe, takes an object, as its data is")
    return plan


def above_zero(kind: type):
    """A number above 0, for argparse."""

    def number(text: str):
        value = kind(text)
        if not value > 0:
            raise ValueError
        return value

    number.__name__ = f"{kind.__name__} above 0"
    return number


def arguments_of(commands: argparse._SubParsersAction) -> None:
    """The three commands and what each may be told."""
    parts = {
        "train": "train what the recipe says; goes on with a run it finds",
        "evaluate": "scores of the weights that lie there, or of a run",
        "card": "write README.md again, from the files beside the recipe",
    }
    for name, about in parts.items():
        own = commands.add_parser(name, help=about, description=f"{name}: {about}")
        own.add_argument(
            "name", metavar="NAME", help="a folder under assets/checkpoints, or a path"
        )
        if name == "train":
            own.add_argument("--out", metavar="RUN", help="folder of the run (default: runs/NAME)")
            own.add_argument("--device", help="where to train, such as cuda (default: cpu)")
            own.add_argument(
                "--minutes", type=above_zero(float), help="stop after these, with a checkpoint"
            )
        elif name == "evaluate":
            own.add_argument(
                "--out",
                metavar="RUN",
                help="folder of a finished run: its weights, scores, log and card are written "
                "beside the recipe (default: score the weights there, write nothing)",
            )
            own.add_argument(
                "--n", type=above_zero(int), help="how many of each test (default: as recorded)"
            )
            own.add_argument("--seed", type=int, help="of tests and noise (default: 0)")
            own.add_argument(
                "--write",
                action="store_const",
                const=True,
                help="without --out: write the new scores and the card beside the recipe",
            )
            own.add_argument("--json", action="store_true", help="print one JSON object")


def plain(value):
    """The same for JSON, which has no NaN."""
    if isinstance(value, dict):
        return {key: plain(x) for key, x in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(x) for x in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        prog="python -m diffgemma_lite.labs",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    arguments_of(
        parser.add_subparsers(dest="command", required=True, metavar="train|evaluate|card")
    )
    given = vars(parser.parse_args(arguments))
    command, name, as_json = given.pop("command"), given.pop("name"), given.pop("json", False)
    recipe = recipe_of(name)
    kind = kind_of(read_plan(recipe))
    work = getattr(module(kind, command), "write_card" if command == "card" else f"{command}_run")
    takes = inspect.signature(work).parameters
    options = {option: value for option, value in given.items() if value is not None}
    if command == "train" and "out" in takes:
        options.setdefault("out", Path("runs") / recipe.parent.resolve().name)
    for option in options:
        if option not in takes:
            parser.error(f"--{option}: {command} of kind {kind!r} takes none")
    # what a lab tells on its way is no part of the JSON object
    with contextlib.redirect_stdout(sys.stderr) if as_json else contextlib.nullcontext():
        found = work(recipe, **options)
    if as_json:
        about = {"name": recipe.parent.resolve().name, "kind": kind}
        about |= {"seed": options.get("seed", 0), "n": options.get("n")}
        print(json.dumps(about | plain(found)))
    elif command == "evaluate":
        print("\n".join(in_words(found)))


if __name__ == "__main__":
    main()
