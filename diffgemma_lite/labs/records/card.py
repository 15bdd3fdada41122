"""The card of a model of records: its tables, the stages of its training, everything made from
scores, recipe and log.
"""

from __future__ import annotations

import json
from pathlib import Path

from ..card import how_again, size_of, start_of_training, table, where_trained, write_readme
from ..recipe import Recipe, read_log
from ..scores import percent, shown
from .data import FAMILIES, HELD_OUT, records
from .planted import LATE
from .scores import END_TOKENS, TEMPERATURE


def family_table(structured: dict) -> str:
    """Markdown: records that break no constraint, and the passes they took, for each family and way
    of writing.
    """
    ways = ("diffusion", "greedy", "drawn")

    def cells(name: str, found: dict) -> list:
        told = (f"{percent(found[w]['valid'])}, {found[w]['passes']:.1f} passes" for w in ways)
        return [name, found["diffusion"]["valid"]["n"], *told]

    rows = {**structured["families"], "all": structured["all"]}
    head = ("family", "n", "diffusion", "left to right, greedy", "left to right, drawn")
    return table(head, (cells(name, found) for name, found in rows.items()))


def broken_table(structured: dict, way: str = "greedy") -> str:
    """Markdown: which constraints the records break, diffusion beside one way of writing from left
    to right.
    """
    lines = []
    for family, found in structured["families"].items():
        counts = [found[name]["broken"] for name in ("diffusion", way)]
        n, both = found[way]["valid"]["n"], {*counts[0], *counts[1]}
        for name in sorted(both, key=lambda name: (-counts[1].get(name, 0), name)):
            lines.append([family, name, *(f"{each.get(name, 0) / n:.1%}" for each in counts)])
    return table(("family", "broken constraint", "diffusion", "left to right"), lines)


def ends_table(structured: dict) -> str:
    """Markdown: the end of the record is given."""
    lines = []
    for family, found in structured["families"].items():
        ends = found["ends"]
        cells = (
            ends["diffusion_pinned"]["valid"],
            ends["greedy_ends_as_given"],
            ends["greedy_end_replaced_valid"],
        )
        lines.append([family, *map(percent, cells)])
    head = (
        "family",
        "end pinned, diffusion: valid",
        "left to right: ends as given",
        "left to right, end replaced: valid",
    )
    return table(head, lines)


def planted_table(planted: dict) -> str:
    """Markdown: the share of planted tokens that are repaired."""
    lines = []
    for family, kinds in planted.items():
        for kind, found in kinds.items():
            n, steps = found["uniform"]["repaired"]["n"], found["uniform"]["steps"]
            cells = (percent(found[way]["repaired"]) for way in ("uniform", "masked"))
            lines.append([family, kind, n, *cells, f"{steps:.1f}"])
    ways = ("uniform: repaired", "masked: repaired", "uniform: steps")
    return table(("family", "planted", "trials", *ways), lines)


def different_requests(scores: dict) -> str:
    """How many different requests the scored records of each family have: sql, of two names, has
    few.
    """
    counted = {}
    for family, found in scores["structured"]["families"].items():
        some = records(
            "test", found["diffusion"]["valid"]["n"], seed=scores["seed"], families=(family,)
        )
        counted[family] = len({record.prompt for record in some})
    return ", ".join(f"{family} {count}" for family, count in counted.items())


def shares_of(it: Recipe) -> str:
    """How much of each family a stage of training saw, in words."""
    shares = it.plan["data"].get("shares", dict.fromkeys(FAMILIES, 1))
    return f"{', '.join(shares)} as {' : '.join(map(str, shares.values()))}"


def stages_before(it: Recipe) -> str:
    """A line of the card for each of them."""
    lines = []
    for stage, name in it.earlier_stages():
        last = read_log(it.path.parent / name)[-1]
        lines.append(
            f"\n  Before that {last['step']:,} steps, {last['seconds'] / 60:.0f} minutes, with other records: "
            f"{shares_of(stage)}\n  (`{name}`)."
        )
    return "".join(lines)


def card(it: Recipe, model, scores: dict, log: list[dict]) -> str:
    """The model card; every number in it comes from the run."""
    c, last, run, sampler, name = (
        it.config,
        log[-1],
        scores["run"],
        it.plan["generation"],
        it.path.parent.name,
    )
    planned = "" if last["step"] == it.training.steps else f" (of {it.training.steps:,} planned)"
    return f"""# {name}

A small DiffusionGemma that writes four kinds of structured records, trained from scratch with this project's own loop.

- **Size**: {size_of(model)}, bfloat16; {c.num_hidden_layers} layers, width
  {c.hidden_size}, {c.num_experts} experts of which {c.top_k_experts} work for each token, canvas {c.canvas_length},
  vocabulary {c.vocab_size:,}, most of which no record uses: noise is drawn from all of it, and so rarely looks like
  a right token.
- **Data**: {run["data"]["examples"]:,} records made by `diffgemma_lite/labs/records/data.py` (its licence, Apache-2.0), four
  families: {shares_of(it)}. A hash of the request decides its split, {HELD_OUT:.0%} for test: no test request is in training.
- **Recipe**: `recipe.json`, {last["step"]:,} steps{planned} of {it.training.batch_size} canvases, seed {it.training.seed};
  {last["seconds"] / 60:.0f} minutes on a machine busy with other work; {it.training.precision}, no C++ compiler.
  {start_of_training(it.flat_attention)}
  Log: `log.jsonl`.{stages_before(it)}
- **Trained on**: {where_trained(run["starts"])}
{how_again(name)}

Losses on validation records (nats per token): denoising, t uniform, {shown(scores["held_out"]["denoising"])}; encoder's
next token {shown(scores["held_out"]["encoder"])}. The denoising loss is not a likelihood.

## Test records that break no constraint, 95% intervals

Seeds from {scores["seed"]}; at most {sampler["max_denoising_steps"]} denoising steps, entropy bound
{sampler["entropy_bound"]}, adaptive stop; passes: calls of `decode`, or tokens. Left to right: the encoder side of these
same weights, greedy, or drawn at temperature {TEMPERATURE}; its first token is given (a request has no mark of its end) and not
counted as a pass.

{family_table(scores["structured"])}

Different requests among them: {different_requests(scores)}. A request that comes again is met with other noise; the intervals
take records, not requests, as independent.

Which constraints are broken, as shares of the family's records (left to right: greedy):

{broken_table(scores["structured"])}

The last {END_TOKENS} tokens are given, and with them where the record ends. A canvas pins them; from left to right nothing can be
told, so the end is compared, or put in its place over what was written, which also breaks a record of another length:

{ends_table(scores["structured"])}

## A wrong token in a nearly finished canvas

A right test record, {LATE:.0%} of its tokens unsettled, one wrong token that breaks a constraint among the others. Repaired:
the record breaks none at the end. Masked decoding never touches a written token; its mask is a marker that no
record holds, which training met only as noise.

{planted_table(scores["planted"])}

## Limits

It knows these four forms and requests of their kind only. Nothing checks what it writes; a wrong record looks like a right
one.
"""


def write_card(recipe: str | Path) -> None:
    """README.md beside the recipe, from the scores and the log that lie there."""
    it = Recipe(recipe)
    folder = it.path.parent
    scores = json.loads((folder / "scores.json").read_text(encoding="utf-8"))
    log = read_log(folder / "log.jsonl")
    write_readme(folder, card(it, it.new_model(), scores, log))
