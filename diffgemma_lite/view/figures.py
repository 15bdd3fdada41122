"""Pictures of every view, light and dark, from a shipped model by one command.

    python -m diffgemma_lite.view.figures \\
        assets/checkpoints/python-small assets/recordings/python-small.json \\
        assets/recordings/python-small-race.json assets/figures

The first file is a recorded trace, whose task, prompt and seed are used again; the second the race,
which is timed and written if it is not there yet (delete it to time it anew, on a machine that does
nothing else). Needs playwright and a browser.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path

import torch

from .. import Config, DiffusionGemma, SamplerConfig, Trace, generate
from ..measure.race import RaceRecord, race_record
from ..tokenizer import Tokenizer, encode_prompt
from ..trace.router import routing_record
from . import live_player, noise_view, player, race_view, roofline, router_view
from .host import page, stage
from .noise_record import noise_record
from .picture import shoot, slide

POSITION = 12  # of the canvas, whose attention and experts are shown
SHARE = 0.6  # of the steps, after which the views of a run are taken
NAMES = ("player", "inspector", "noise", "router", "race", "roofline", "live_knobs")


def draw(
    checkpoint: str | Path,
    trace_file: str | Path,
    race_file: str | Path,
    folder: str | Path,
    names: tuple[str, ...] = NAMES,
) -> list[Path]:
    """Run the model as the trace says, then picture the named views; returns the files."""
    views = made(checkpoint, trace_file, race_file, names)
    return [
        shoot(markup, Path(folder) / f"{name}_{theme}.png", act, dark=theme == "dark", width=1200)
        for name, (markup, act) in views.items()
        for theme in ("light", "dark")
    ]


def made(
    checkpoint: str | Path, trace_file: str | Path, race_file: str | Path, names: tuple[str, ...]
) -> dict[str, tuple[str, Callable]]:
    """Name -> page, and what brings its view where the picture should show it."""
    model, tokenizer = (
        DiffusionGemma.from_pretrained(checkpoint, dtype=torch.float32),
        Tokenizer.load(checkpoint),
    )
    recorded = Trace.load(trace_file)
    asked = recorded.meta
    ids = torch.tensor([encode_prompt(tokenizer, asked["task"], asked["prompt"], max_prompt=48)])
    common = dict(max_new_tokens=model.config.canvas_length, eos_token_id=tokenizer.eos_id)
    sampler = SamplerConfig.from_defaults(model.generation_defaults)
    steps: list = []

    def write(on_step: Callable, trace: bool | str = True, seed: int = asked["seed"]) -> Trace:
        out = generate(
            model,
            ids,
            sampler,
            generator=torch.Generator().manual_seed(seed),
            trace=trace,
            on_step=on_step,
            **common,
        )
        return out.trace.with_texts(tokenizer.token_text)

    def inspector() -> tuple[str, Callable]:
        trace, n = write(steps.append, "attention"), int(len(steps) * SHARE)
        return player(
            trace, title="The inspector: why, and where it looked"
        ).html, lambda tab: _inspect(tab, n)

    def router() -> tuple[str, Callable]:
        if not steps:
            write(steps.append)
        n = int(len(steps) * SHARE)
        before = steps[n - 1].scaled_logits if n and sampler.self_conditioning else None
        routing = routing_record(
            model, steps[n].canvas, model.encode(ids), before, texts=tokenizer.token_text
        )
        return router_view(
            routing, title=f"Where the router sends the canvas of step {n + 1}"
        ).html, _choose

    def race() -> tuple[str, Callable]:
        if not Path(race_file).exists():
            race_record(
                model,
                ids,
                sampler,
                seed=asked["seed"],
                texts=tokenizer.token_text,
                repeats=5,
                meta={"model": Path(checkpoint).name},
                **common,
            ).save(race_file)
        return race_view(
            RaceRecord.load(race_file), title="One answer, the same weights, two ways"
        ).html, lambda t: slide(t, 450)

    def roofs() -> tuple[str, Callable]:
        return roofline(
            Config.preset("26b_a4b"), hardware=("H100", "L4")
        ).view().html, lambda tab: None

    def noise() -> tuple[str, Callable]:
        text = tokenizer.encode(asked["prompt"] + tokenizer.decode(recorded.tokens[0]))
        record = noise_record(text, tokenizer.token_text, model.config.vocab_size)
        return noise_view(record, title="One text at noise level t").html, lambda tab: slide(tab, 8)

    shown = int(SHARE * recorded.canvases[0].canvas.shape[0])
    makers = {
        "player": lambda: (
            player(recorded, title="One canvas, from noise to text").html,
            lambda tab: slide(tab, shown),
        ),
        "inspector": inspector,
        "noise": noise,
        "router": router,
        "race": race,
        "roofline": roofs,
        "live_knobs": lambda: (_under_way(write, asked, sampler, tokenizer), lambda tab: None),
    }
    return {name: (page(markup, name), act) for name in names for markup, act in [makers[name]()]}


def _inspect(tab, step: int) -> None:
    slide(tab, step)
    tab.locator(f".cell[data-p='{POSITION}']").click()


def _choose(tab) -> None:
    tab.locator(f".cell[data-p='{POSITION}']").click()
    # the expert is then the position's first choice
    tab.locator("input[name=layer]").nth(1).check(force=True)


def _under_way(write: Callable, asked: dict, sampler: SamplerConfig, tokenizer: Tokenizer) -> str:
    """The knob panel while the model runs: what its page is shown at a step of a real run."""
    total, seen = sampler.max_denoising_steps, {}

    def run(settings: dict, on_step: Callable) -> Trace:
        def step_taken(step) -> bool:
            ended = on_step(step)
            if step.index >= int(SHARE * total) and "state" not in seen and widget.partial:
                seen["state"] = widget.still()
            return ended

        return write(step_taken, True, settings["seed"])

    knobs = {
        "prompt": asked["prompt"],
        "seed": 1,
        "steps": total,
        "bound": sampler.entropy_bound,
        "t_max": sampler.t_max,
        "t_min": sampler.t_min,
        "self_conditioning": sampler.self_conditioning,
        "stop": True,
    }
    widget = live_player(run, knobs=knobs, decode=tokenizer.token_text)
    widget.run_count = 1
    widget.join()
    widget.raise_error()
    return stage(seen.get("state", widget.still()))


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description="Pictures of every view, light and dark.")
    parser.add_argument("checkpoint")
    parser.add_argument(
        "trace", help="a file written by Trace.save, with task, prompt and seed in its meta"
    )
    parser.add_argument(
        "race", help="a file written by RaceRecord.save; it is timed and written if it is not there"
    )
    parser.add_argument("folder")
    parser.add_argument(
        "--only",
        nargs="+",
        choices=NAMES,
        default=NAMES,
        metavar="VIEW",
        help=f"of {', '.join(NAMES)}",
    )
    given = parser.parse_args(arguments)
    for path in draw(given.checkpoint, given.trace, given.race, given.folder, tuple(given.only)):
        print(path.name)


if __name__ == "__main__":
    main()
