"""README.md of the model folder, from the files beside it: recipe, scores, logs."""

from __future__ import annotations

import json
from pathlib import Path

from ...tokenizer import Tokenizer
from .train import new_model, read_recipe, stages


def percent(scores: dict, name: str) -> str:
    low, high = scores[f"{name}_interval"]
    return f"{scores[name]:.1%} [{low:.1%}, {high:.1%}]"


def rows(scores: dict) -> str:
    """The table of the splits."""
    head = (
        "| split | n | denoiser: right | left to right: right | passes, both | text tokens a "
        "pass | "
        "seconds, both | speed-up |\n|---|---|---|---|---|---|---|---|\n"
    )
    found = []
    for split in ("combinations", "wordings", "names"):
        s = scores[split]
        found.append(
            f"| {split} | {s['n']} | {percent(s, 'right')} | {percent(s, 'right_left_to_right')} | "
            f"{s['forwards']:.1f} / {s['forwards_left_to_right']:.1f} | "
            f"{s['text_tokens_per_forward']:.2f} ± {s['text_tokens_per_forward_half_width']:.2f} | "
            f"{s['seconds']:.2f} / {s['seconds_left_to_right']:.2f} | "
            f"{s['speed_up']:.2f} ± {s['speed_up_half_width']:.2f} |"
        )
    return head + "\n".join(found)


def by_operations(scores: dict) -> str:
    """How right falls with the number of operations."""
    lines = ["| operations | n | denoiser: right | left to right: right |", "|---|---|---|---|"]
    for depth, both in scores["combinations"]["by_operations"].items():
        cells = [f"{s['share']:.1%} [{s['low']:.1%}, {s['high']:.1%}]" for s in both.values()]
        lines.append(f"| {depth} | {both['denoiser']['n']} | {' | '.join(cells)} |")
    return "\n".join(lines)


def training(plan: dict, scores: dict, logs: list[list[dict]]) -> str:
    """What was trained on, how long, and whether it came to its end."""
    run, lines = scores["run"], []
    for number, ((stage, until), log) in enumerate(zip(stages(plan), logs, strict=False), 1):
        t, last = stage["train"], log[-1]
        lines.append(
            f"- Stage {number}: {last['step']:,} of {until:,} steps of {t['batch_size']} "
            "functions out of "
            f"{stage['data']['functions']:,} (seed {stage['data']['seed']}), learning rate "
            f"{t['learning_rate']} with a cosine "
            f"to {t['final_learning_rate']} at step {t['steps']:,}, {t['precision']}; "
            f"{last['seconds'] / 60:.0f} minutes; "
            f"last losses: denoising {last['denoising']:.3f}, encoder {last['encoder']:.3f} nats."
        )
    done = run["stage"] == run["of_stages"] and run["step"] >= run["until"]
    state = (
        "The recipe was run to its end."
        if done
        else "**The recipe was not run to its end**: these are its newest weights."
    )
    start = run["starts"][-1]
    where = f"{start['threads']} thread(s) of {start['machine']} with {start['cores']} cores, torch {start['torch']}"
    return "\n".join(
        [
            *lines,
            "",
            f"{state} Trained on {where}, beside other work; the minutes are of the clock.",
        ]
    )


def write_card(recipe: str | Path) -> None:
    """README.md from the files beside the recipe."""
    folder = Path(recipe).parent
    if not (folder / "scores.json").exists():
        raise ValueError(
            f"recipe: {folder} has no scores.json yet, takes a folder that evaluate --out RUN filled"
        )
    plan, scores = (
        read_recipe(folder),
        json.loads((folder / "scores.json").read_text(encoding="utf-8")),
    )
    names = [n for n in ("log-before-1.jsonl", "log.jsonl") if (folder / n).exists()]
    texts = [(folder / n).read_text(encoding="utf-8").splitlines() for n in names]
    logs = [[json.loads(line) for line in lines] for lines in texts]
    model, s = new_model(plan, Tokenizer.load(folder).vocab_size), scores["combinations"]
    size, both = sum(p.numel() for p in model.parameters()), scores["disjoint"]
    examples = "\n".join(
        f"```python\n{e['prompt']}{e['body']}\n```\n{e['tokens']} tokens in {e['forwards']} "
        "passes, "
        f"{'right' if e['right'] else 'wrong'}.\n"
        for e in scores["shown"]
    )
    short = [
        f"{name} {found} instead of {wanted}"
        for name, found, wanted in (
            ("right", f"{s['right']:.1%}", "95%"),
            ("text tokens a pass", f"{s['text_tokens_per_forward']:.2f}", "6"),
            ("speed-up", f"{s['speed_up']:.2f}", "2"),
        )
        if float(found.rstrip("%")) < float(wanted.rstrip("%"))
    ]
    text = CARD.format(
        name=folder.name,
        size=size,
        layers=model.config.num_hidden_layers,
        experts=model.config.num_experts,
        canvas=model.config.canvas_length,
        vocab=model.config.vocab_size,
        seed=s["seed"],
        threads=s["threads"],
        rows=rows(scores),
        by=by_operations(scores),
        training=training(plan, scores, logs),
        examples=examples,
        short="Short of the aims: " + "; ".join(short) + "." if short else "The aims are met.",
        **both,
    )
    (folder / "README.md").write_text(text, encoding="utf-8")


CARD = """# {name}: functions that run

{size:,} parameters, {layers} layers, {experts} experts, a canvas of {canvas} tokens, a vocabulary of {vocab}. A signature and
a docstring of one line go in, the body comes out: generated functions (lists, words, texts, dicts; filters, maps, folds,
searches, tables, one to three operations deep). Right means equal to the reference on the shown examples and on 20 hidden
inputs, run in a process with limits.

{short}

## Measured (seed {seed}, {threads} thread(s), batch 1, 95% intervals)

{rows}

combinations: operations never composed so in training, in trained wordings and names; wordings, names: those are new.
Left to right is greedy with its cache, the same weights in the same process, in turn. Passes include the prompt's. Text tokens
are those before the end token. The published sampler settings with the cdf draw. Seconds depend on what else the machine does.

On combinations, by the number of operations:

{by}

Of a sample, {train:,} different normalised syntax trees of training functions and {held_out:,} of held-out ones: {both} in both.

## The first of this seed

{examples}
## Training

{training}

What is missing: the few-step stage, holes, planted bugs, the masked and left-to-right siblings.

    uv run python -m diffgemma_lite.labs train    {name} --out RUN
    uv run python -m diffgemma_lite.labs evaluate {name} --out RUN
    uv run python -m diffgemma_lite.labs evaluate {name} --n 1000 --seed 0 --json
"""
