"""From 0% on: the Python model, which solves no Sudoku, is fine-tuned on it, whole or by adapters.

Notebook 09.

    python -m diffgemma_lite.labs train    sudoku-finetune    # resumes
    python -m diffgemma_lite.labs evaluate sudoku-finetune    # the adapters that lie there

The base keeps its vocabulary: digits are its own digits, cells and given digits are pieces of text
it knows, used as names (`token_order`). Its rows of the embedding are put into the order of
`sudoku.task.Layout`, which is another numbering and the same model, so that training, sampling and
scores are those of sudoku/train.py and sudoku/evaluate.py. No geometry is put into its weights:
that a cell's name stands one canvas length back, and which cells share a row, has to be learnt.

A point is one fine-tuning, of all weights or by adapters of rank 1 to 32: its score, its curve over
the puzzles seen (each puzzle in a disguise of its own), its parameters.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from ...checks import check_class, check_keys, from_object, read_object
from ...lora import add_lora, load_lora, merge, save_lora
from ...model import DiffusionGemma
from ...sampler import SamplerConfig
from ...tokenizer import BYTES, SPECIAL_TOKENS, Tokenizer
from ..scores import begun_scores, percent, write_scores
from .batches import SudokuTraining, stack_puzzles
from .data import Puzzle
from .evaluate import attempt, score
from .siblings import small_tests, watch
from .splits import minimal_puzzles
from .task import Layout
from .train import train_sudoku

NEEDED = ("base", "layout", "puzzles", "each", "watched", "train", "tests", "sampler", "points")
# all weights of the base, adapters on it, all weights of a model that learnt nothing yet
KINDS = ("full", "lora", "fresh")


def wide_layout(name: str, n: int, vocab_size: int) -> Layout:
    """The layout with so many spare tokens that it has the base's whole vocabulary."""
    own = Layout(name, n).vocab_size
    if own > vocab_size:
        raise ValueError(
            f"vocab_size: got {vocab_size}, "
            f"takes at least {own}, what layout {name} of side {n} needs"
        )
    return Layout(name, n, spare=vocab_size - own)


def token_order(layout: Layout, tokenizer: Tokenizer) -> list[int]:
    """For each id of the layout the tokenizer's id that plays it.

    One to one, over the whole vocabulary.

    pad, eos and bos are the tokenizer's; the sibling's mask, unused here, is <puzzle>; digits are
    the digits; what else the layout names (cells, given digits) is played by the first pieces that
    the tokenizer learnt.
    """
    check_class("tokenizer", tokenizer, Tokenizer)
    if tokenizer.vocab_size != layout.vocab_size:
        raise ValueError(
            f"layout: has {layout.vocab_size} tokens, "
            f"takes one of {tokenizer.vocab_size}; see wide_layout"
        )
    digits = [tokenizer.encode(str(d))[0] for d in range(1, layout.n + 1)]
    own = [
        tokenizer.pad_id,
        tokenizer.eos_id,
        tokenizer.bos_id,
        tokenizer.marker_id("puzzle"),
        *digits,
    ]
    taken, learnt = set(own), len(SPECIAL_TOKENS) + BYTES
    return own + [i for i in (*range(learnt, layout.vocab_size), *range(learnt)) if i not in taken]


def renumbered(base: DiffusionGemma, order: list[int], canvas_length: int) -> DiffusionGemma:
    """A copy of the base that knows token order[i] by the number i; canvases of this length."""
    if sorted(order) != list(range(base.config.vocab_size)):
        raise ValueError(
            f"order: got {len(order)} ids, takes each of 0 to {base.config.vocab_size - 1} once"
        )
    model = DiffusionGemma(replace(base.config, canvas_length=canvas_length))
    model.load_state_dict(base.state_dict())
    with torch.no_grad():
        model.embed_tokens.weight.copy_(base.embed_tokens.weight[torch.tensor(order)])
    return model.eval()


def sudoku_base(folder: str | Path, name: str, n: int) -> tuple[DiffusionGemma, Layout]:
    """A text checkpoint in the numbering of layout `name`, side n, and that layout."""
    text = DiffusionGemma.from_pretrained(folder, dtype=torch.float32)
    layout = wide_layout(name, n, text.config.vocab_size)
    return renumbered(
        text, token_order(layout, Tokenizer.load(folder)), layout.canvas_length
    ), layout


def point_name(point: dict) -> str:
    """Its own name, or "full", "fresh", "rank 8". Errors: ValueError for another kind."""
    kind = point.get("kind")
    if kind not in KINDS or (kind == "lora") != ("rank" in point):
        raise ValueError(
            f"point: got {point}, takes a kind of {', '.join(KINDS)}, and a rank for lora alone"
        )
    return point.get("name") or (f"rank {point['rank']}" if kind == "lora" else kind)


def start_point(base: DiffusionGemma, point: dict, seed: int) -> DiffusionGemma:
    """The model a point begins with.

    The base with adapters, the base, or one of its size that learnt nothing before.
    """
    kind, generator = point["kind"], torch.Generator().manual_seed(seed)
    model = DiffusionGemma(base.config)
    if kind == "fresh":
        model.init_weights(generator)
        return model
    model.load_state_dict(base.state_dict())
    return (
        add_lora(model, point["rank"], point.get("alpha"), generator=generator)
        if kind == "lora"
        else model
    )


def run_point(
    base: DiffusionGemma,
    layout: Layout,
    recipe: dict,
    point: dict,
    tests: list[Puzzle],
    out: Path,
    show: Callable[[dict], None] | None = None,
) -> dict[str, Any]:
    """Fine-tune and score one point.

    What stands in the folder `out` is gone on with, exactly; an adapter is kept there.
    """
    plan = SudokuTraining(**(recipe["train"] | point.get("train", {})))
    sampler, curve = SamplerConfig(draw="cdf", **recipe["sampler"]), out / "curve.jsonl"
    model = start_point(base, point, plan.seed)
    trained = sum(p.numel() for p in model.parameters() if p.requires_grad)

    def keep(found: dict) -> None:
        with curve.open("a", encoding="utf-8") as file:
            file.write(json.dumps(found) + "\n")
        if show is not None:
            show(found)

    out.mkdir(parents=True, exist_ok=True)
    _, on_log = watch(
        model, layout, "uniform", tests[: recipe["watched"]], sampler, recipe["each"], keep
    )
    stacked = stack_puzzles(minimal_puzzles(recipe["puzzles"], n=layout.n))
    log = train_sudoku(model, layout, stacked, plan, folder=out, on_log=on_log)
    if point["kind"] == "lora":
        save_lora(model, out / "adapter.safetensors")
        merge(model)
    found = score(attempt(model, layout, tests, sampler=sampler), tests)
    # a restart repeats some
    seen = {p["step"]: p for p in map(json.loads, curve.read_text(encoding="utf-8").splitlines())}
    rows = [
        {"puzzles": step * plan.batch_size, "exact": p["exact"], "loss": p["loss"]}
        for step, p in sorted(seen.items())
    ]
    return {
        **{k: v for k, v in point.items() if k != "train"},
        **found,
        "trained_parameters": trained,
        "puzzles": plan.steps * plan.batch_size,
        "steps_trained": plan.steps,
        "learning_rate": plan.learning_rate,
        "seconds": log[-1]["seconds"],
        "curve": rows,
        "log": [{"step": e["step"], "loss": e["loss"]} for e in log],
    }


def words(scores: dict) -> list[str]:
    """What was found, in sentences made from the numbers alone."""
    before, points = scores["before"], scores["points"]
    said = [
        f"Before: {percent(before['exact'])} of {before['exact']['n']} puzzles solved, "
        f"{before['steps']:.1f} steps a puzzle."
    ]
    for name, p in points.items():
        goal = (
            "reaches the 80% hoped for"
            if p["exact"]["share"] >= 0.8
            else "does not reach the 80% hoped for"
        )
        size = f"{p['trained_parameters']:,} weights trained on {p['puzzles']:,} puzzles"
        said.append(f"{name}: {percent(p['exact'])} at {p['steps']:.1f} steps, {size}; {goal}.")
    ranks = sorted((p["rank"], p["exact"]["share"]) for p in points.values() if p["kind"] == "lora")
    if len(ranks) > 1:
        rises = sum(b[1] >= a[1] for a, b in zip(ranks, ranks[1:], strict=False))
        said.append(
            f"From rank {ranks[0][0]} to rank {ranks[-1][0]} accuracy rises or stays in {rises} of "
            f"{len(ranks) - 1} steps."
        )
    if "full" in points and "fresh" in points:
        gain = points["full"]["exact"]["share"] - points["fresh"]["exact"]["share"]
        better = (
            "helped"
            if points["full"]["exact"]["low"] > points["fresh"]["exact"]["high"]
            else "did not clearly help"
        )
        said.append(
            f"Having learnt Python first {better}: "
            f"{gain:+.1%} against a model that learnt nothing before."
        )
    return said


def read_recipe(path: str | Path) -> dict:
    """recipe.json, every point of it looked at before the first one is trained."""
    recipe = read_object("recipe", path, NEEDED, ("about",))
    check_keys("tests", recipe["tests"], ("count", "fewest", "most", "seed"))
    for point in recipe["points"]:
        point_name(point)
        from_object("train", SudokuTraining, recipe["train"] | point.get("train", {}))
    return recipe


def train_run(recipe: str | Path, out: str | Path) -> dict[str, Any]:
    """All points of a recipe that scores.json beside it does not hold yet; it is written after
    each.
    """
    recipe_path, out, recipe = Path(recipe), Path(out), read_recipe(recipe)
    folder, asked = recipe_path.parent.parent / recipe["base"], recipe["tests"]
    base, layout = sudoku_base(folder, **recipe["layout"])
    tests = small_tests(layout.n, asked["count"], asked["fewest"], asked["most"], asked["seed"])
    path, sampler = (
        recipe_path.with_name("scores.json"),
        SamplerConfig(draw="cdf", **recipe["sampler"]),
    )
    scores = {"tests": asked, "points": {}} | begun_scores(path, folder)
    if "before" not in scores:
        scores["before"] = score(attempt(base, layout, tests, sampler=sampler), tests)
    for point in recipe["points"]:
        name = point_name(point)
        if name not in scores["points"]:
            done = run_point(
                base,
                layout,
                recipe,
                point,
                tests,
                out / re.sub(r"\W+", "-", name),
                lambda p, name=name: print(name, json.dumps(p), flush=True),
            )
            scores["points"][name] = done
        version = torch.__version__.split("+")[0]
        scores["machine"] = {
            "cores": os.cpu_count(),
            "threads": torch.get_num_threads(),
            "torch": version,
        }
        scores["words"] = words(scores)
        write_scores(path, scores)
    print("\n".join(scores["words"]))
    return scores


def evaluate_run(recipe: str | Path, *, n: int | None = None, seed: int = 0) -> dict[str, Any]:
    """The base without and with each adapter beside the recipe, on the recipe's test puzzles.

    n: how many of them (None: all that the recipe names). seed: of the sampler.
    """
    folder, asked = Path(recipe).parent, read_recipe(recipe)
    tests = asked["tests"] | ({} if n is None else {"count": n})
    base = folder.parent / asked["base"]
    how = {"sampler": SamplerConfig(draw="cdf", **asked["sampler"]), "seed": seed}
    scores: dict[str, Any] = {"tests": tests, "seed": seed}
    for adapter in (None, *sorted(folder.glob("adapter-*.safetensors"))):
        model, layout = sudoku_base(base, **asked["layout"])
        some = small_tests(layout.n, *(tests[k] for k in ("count", "fewest", "most", "seed")))
        if adapter is not None:
            load_lora(model, adapter)
        name = "before" if adapter is None else adapter.stem
        scores[name] = score(attempt(model, layout, some, **how), some)
    return scores
