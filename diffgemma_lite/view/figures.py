"""Pictures of the inspector, the router view and the race, light and dark, from a shipped model by one command.

    python -m diffgemma_lite.view.figures assets/checkpoints/python-small assets/recordings/python-small.json \\
        assets/recordings/python-small-race.json assets/figures

The first file is a recorded trace, whose task, prompt and seed are used again; the second the race, which is timed and
written if it is not there yet (delete it to time it anew, on a machine that does nothing else). Needs playwright and a browser.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch

from .. import DiffusionGemma, SamplerConfig, Trace, generate
from ..data.tokenizer import Tokenizer, encode_prompt
from ..race import RaceRecord, race_record
from ..router_record import routing_record
from . import player, race_view, router_view
from .host import page
from .picture import shoot, slide

POSITION = 12  # of the canvas, whose attention and experts are shown


def draw(checkpoint: str | Path, trace_file: str | Path, race_file: str | Path, folder: str | Path) -> list[Path]:
    """Run the model as the trace says, then picture each view; returns the files."""
    model, tokenizer = DiffusionGemma.from_pretrained(checkpoint, dtype=torch.float32), Tokenizer.load(checkpoint)
    asked = Trace.load(trace_file).meta
    ids = torch.tensor([encode_prompt(tokenizer, asked["task"], asked["prompt"], max_prompt=48)])
    common = dict(max_new_tokens=model.config.canvas_length, eos_token_id=tokenizer.eos_id)
    sampler = SamplerConfig.from_defaults(model.generation_defaults)
    steps = []
    out = generate(model, ids, sampler, generator=torch.Generator().manual_seed(asked["seed"]), trace="attention",
                   on_step=lambda step: steps.append(step), **common)  # fmt: skip
    trace, n = out.trace.with_texts(tokenizer.token_text), int(len(steps) * 0.6)
    before = steps[n - 1].scaled_logits if n and sampler.self_conditioning else None
    routing = routing_record(model, steps[n].canvas, model.encode(ids), before, texts=tokenizer.token_text)
    if not Path(race_file).exists():
        race_record(model, ids, sampler, seed=asked["seed"], texts=tokenizer.token_text, repeats=5,
                    meta={"model": Path(checkpoint).name}, **common).save(race_file)  # fmt: skip
    race = RaceRecord.load(race_file)
    views = {
        "inspector": (player(trace, title="The inspector: why, and where it looked"), lambda tab: _inspect(tab, n)),
        "router": (router_view(routing, title=f"Where the router sends the canvas of step {n + 1}"), _choose),
        "race": (race_view(race, title="One answer, the same weights, two ways"), lambda tab: slide(tab, 450)),
    }
    return [
        shoot(page(view.html, name), Path(folder) / f"{name}_{theme}.png", act, dark=theme == "dark", width=1200)
        for name, (view, act) in views.items()
        for theme in ("light", "dark")
    ]


def _inspect(tab, step: int) -> None:
    slide(tab, step)
    tab.locator(f".cell[data-p='{POSITION}']").click()


def _choose(tab) -> None:
    tab.locator(f".cell[data-p='{POSITION}']").click()
    tab.locator("input[name=layer]").nth(1).check(force=True)  # the expert is then the position's first choice


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description="Pictures of the inspector, the router view and the race, light and dark.")
    parser.add_argument("checkpoint")
    parser.add_argument("trace", help="a file written by Trace.save, with task, prompt and seed in its meta")
    parser.add_argument("race", help="a file written by RaceRecord.save; it is timed and written if it is not there")
    parser.add_argument("folder")
    given = parser.parse_args(arguments)
    for path in draw(given.checkpoint, given.trace, given.race, given.folder):
        print(path.name)


if __name__ == "__main__":
    main()
