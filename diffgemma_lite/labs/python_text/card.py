"""The card of a trained text model: README.md as text, every number of it from scores.json, the log
and the configuration.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from ...config import Config
from ...train import TrainConfig
from ..card import (
    how_again,
    row,
    size_of,
    stage_line,
    start_of_training,
    table,
    where_trained,
    write_readme,
)
from ..recipe import Recipe, read_log
from ..scores import percent, shown


def stages_of_holes(before: Sequence[dict]) -> str:
    """What diffusion made of the same holes after each earlier stage of training, a line each."""
    lines = []
    for stage in before:
        shares = ", ".join(
            f"{hole['size']}: {percent(hole['diffusion'])}" for hole in stage["infill"]
        )
        lines.append(
            f"\nThe same holes after the {stage['steps']:,} steps of an earlier stage, by diffusion: {shares}.\n"
        )
    return "".join(lines)


def _kind(kind: dict) -> list:
    """The cells of one way of writing bodies."""
    optional = ("parse_not_empty", "same_token", "repeated_run")
    full, same, again = (percent(kind[key]) if key in kind else "-" for key in optional)
    tokens = f"{kind['tokens']['mean']:.1f}"
    return [percent(kind["parse"]), kind["empty"], full, tokens, same, again]


def text_section(text: dict, before: Sequence[dict] = ()) -> str:
    """Holes, canvases and bits, as evaluate.py found them; `before` as its holes_of_stages found it."""
    holes = table(
        ("tokens", "n", "diffusion", "autoregressive", "difference"),
        (
            [
                hole["size"],
                hole["diffusion"]["n"],
                *map(percent, (hole["diffusion"], hole["autoregressive"], hole["difference"])),
            ]
            for hole in text["infill"]
        ),
    )
    kinds = "\n".join(row(name, *_kind(kind)) for name, kind in text["canvases"].items())
    plan, bits = text["plan"], text["bits_per_token"]
    first = next(iter(text["canvases"].values()))["parse"]["n"]
    return f"""## Holes, bodies and bits ({text["split"]} split, Python {text["python"]}), 95% intervals

Made by `python -m diffgemma_lite.labs evaluate`, seed {plan["seed"]}, {text["cpu_seconds"] / 60:.0f} core minutes. The
autoregressive mode is the encoder side of these same weights, trained jointly; it is not a separate model of the same size.

**Holes in code, all their tokens right.** Diffusion knows both sides of the canvas (and so where it ends) and may take
{plan["hole_steps"]} steps; the autoregressive mode, greedy, sees what stands to the left. The same holes, and the paired
difference.

{holes}
{stages_of_holes(before)}
**Bodies for {first} signatures**, one canvas each: does signature and body parse? A body that is empty does, so both counts
are given. True bodies are cut to one canvas as well. Stutter: tokens equal to the one before, and runs of four that stood
there already.

| | parse | empty | parse, of those not empty | tokens | same token twice | run repeated |
|---|---|---|---|---|---|---|
{kinds}

**Bits per token** of {bits["bound"]["n"]} held-out first canvases, end token included:

| | bits per token |
|---|---|
| diffusion, at most (bound of {plan["steps"]} steps, {plan["draws"]} of them drawn for each) | {shown(bits["bound"])} |
| autoregressive, exactly | {shown(bits["autoregressive"])} |
| difference, paired | {shown(bits["difference"])} |
| denoising loss of the same canvases, per position | {shown(bits["denoising_loss"])} |

The last line is no likelihood: most of what it asks stands in the noisy canvas already, and it lacks the weights of the
bound.
"""


def model_card(
    name: str,
    config: Config,
    training: TrainConfig,
    model,
    scores: dict,
    log: list[dict],
    before: Sequence[tuple[TrainConfig, list[dict], str]] = (),
    *,
    flat_attention: bool = False,
) -> str:
    """The card as text. scores["run"]: data and starts, as the training state holds them;
    scores["text"] may be absent.

    before: (TrainConfig, log, name of its file) of each earlier stage of training, the latest
    first.
    """
    held, sampling, last = scores["held_out"], scores["sampling"], log[-1]
    data, starts = scores["run"]["data"], scores["run"]["starts"]
    earlier = "".join(
        f"\n  Before that {stage_line(plan, entries)} (`{file}`)." for plan, entries, file in before
    )
    levels = "\n".join(
        row(f"{b['t_from']} to {b['t_to']}", shown(b)) for b in held["by_noise_level"]
    )
    return f"""# {name}

A small DiffusionGemma trained from scratch with this project's own loop. It shows how the architecture writes; it is not a
useful programmer.

- **Size**: {size_of(model)}, bfloat16; {config.num_hidden_layers} layers, width
  {config.hidden_size}, {config.num_experts} experts of which {config.top_k_experts} work for each token, canvas
  {config.canvas_length}, vocabulary {config.vocab_size:,}.
- **Data**: the source and docstrings of Python's own standard library, as installed with Python {starts[0]["python"]}
  (Python Software Foundation License); {data["examples"]:,} training examples (BLAKE2b of their ids {data["blake2b"]}).
  Held-out modules, not held-out lines: see `diffgemma_lite/labs/python_text/data.py`. The example counts
  differ with the Python version.
- **Recipe**: `recipe.json`. {start_of_training(flat_attention)}
  {stage_line(training, log)} (`log.jsonl`).{earlier}
- **Trained on**: {where_trained(starts)}
{how_again(name)}

## Held-out modules (validation split, Python {scores["python"]}), 95% intervals

Last training losses (nats, mean of {training.log_every} steps): denoising {last["denoising"]:.3f},
encoder {last["encoder"]:.3f}.

| | nats per token |
|---|---|
| denoising loss, t uniform | {shown(held["denoising"])} |
| encoder next-token loss | {shown(held["encoder"])} |

| noise level t | denoising loss |
|---|---|
{levels}

The denoising loss is not a likelihood: it averages over corrupted and clean positions alike, without the weights a bound
needs.

{text_section(scores["text"], scores.get("holes_before", ())) + chr(10) if "text" in scores else ""}## Canvases

{sampling["n"]} held-out prompts, seeds {sampling["seeds"][0]} to {sampling["seeds"][1]}, the generation settings of
`generation_config.json`: {shown(sampling["steps"])} steps; {sampling["stable"]} stopped because stable and confident,
{sampling["n"] - sampling["stable"]} ran out of steps; {sampling["end_token"]} wrote an end token; tokens kept
{shown(sampling["tokens_kept"])}; tokens per forward {shown(sampling["tokens_per_forward"])}.

## Limits

Trained for minutes, not days: it repeats itself, mixes names, and often leaves brackets open. It saw only Python's standard
library. Do not use what it writes.
"""


def write_card(recipe: str | Path) -> None:
    """README.md beside the recipe, from the scores, the log and the weights that lie there."""
    it = Recipe(recipe)
    if it.kind != "python":  # the scores and the card of this folder speak of Python
        raise ValueError(f"recipe: {it.path} has kind {it.kind!r}, takes 'python'")
    folder = it.path.parent
    scores = json.loads((folder / "scores.json").read_text(encoding="utf-8"))
    before = [
        (stage.training, read_log(folder / name), name) for stage, name in it.earlier_stages()
    ]
    parts = (folder.name, it.config, it.training, it.new_model(), scores)
    flat, log = it.flat_attention, read_log(folder / "log.jsonl")
    write_readme(folder, model_card(*parts, log, before, flat_attention=flat))
