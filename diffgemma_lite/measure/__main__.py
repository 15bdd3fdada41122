"""The command; `diffgemma_lite.measure` says what it does."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import torch

from . import __doc__ as description
from .provenance import ROOT, default_device, describe, file_name
from .recording import Recording
from .replay import report
from .run import record
from .sections import MODELS, SECTIONS


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m diffgemma_lite.measure", description=description.splitlines()[0]
    )
    commands = parser.add_subparsers(dest="command", required=True)
    make = commands.add_parser(
        "record", help="measure this device; goes on where an earlier run of the same file ended"
    )
    make.add_argument(
        "--out", help="the JSON file; if not said, assets/recordings/ and the device's name"
    )
    make.add_argument(
        "--section",
        action="append",
        choices=list(SECTIONS),
        help="only this one (may be given again)",
    )
    make.add_argument(
        "--device", help="cuda, mps or cpu; if not said, the first of them that is there"
    )
    make.add_argument(
        "--seconds", type=float, default=0.5, help="about how long each point is repeated"
    )
    make.add_argument(
        "--limit", type=float, default=480, help="seconds a section may take in this run"
    )
    make.add_argument("--retry", action="store_true", help="try the points that failed once more")
    show = commands.add_parser(
        "replay", help="print a recording; needs neither the device nor the model"
    )
    show.add_argument("file")
    given = parser.parse_args(arguments)
    if given.command == "replay":
        print(report(Recording.load(given.file), MODELS))
        return 0
    device = torch.device(given.device) if given.device else default_device()
    out = (
        Path(given.out)
        if given.out
        else ROOT / "assets" / "recordings" / f"{file_name(describe(device))}.json"
    )
    options = {name: getattr(given, name) for name in ("device", "seconds", "limit")}
    said = [
        f"--{name} {value}" for name, value in options.items() if value != make.get_default(name)
    ]
    said += ["--retry"] * given.retry + [f"--section {name}" for name in given.section or ()]
    command = " ".join(
        ["python -m diffgemma_lite.measure record --out", f"assets/recordings/{out.name}", *said]
    )
    settings = dict(seconds=given.seconds, limit=given.limit, retry=given.retry)
    record(out, sections=given.section, device=device, command=command, **settings)
    print(
        f"{out.name}: done; show it with: "
        f"python -m diffgemma_lite.measure replay {given.out or out}"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
