"""Recipes: a JSON file that says which model, which data and how to train, so that a shipped
checkpoint can be made again.

    RECIPE=assets/checkpoints/python-small/recipe.json
    python -m diffgemma_lite.labs.recipe train  $RECIPE runs/python-small    # hours; resumes
    python -m diffgemma_lite.labs.recipe finish $RECIPE runs/python-small    # evaluate, save
    python -m diffgemma_lite.labs.recipe card   $RECIPE                      # the card again
"""

from __future__ import annotations

import argparse
import json
import platform
import shutil
from dataclasses import replace
from pathlib import Path

import torch

from ..attention import flatten_scores
from ..checks import check_device, from_object, read_object
from ..config import Config
from ..model import DiffusionGemma
from ..sampler import SamplerConfig
from ..train import STATE, TrainConfig, train
from ..train_state import read_state
from .evaluate import evaluate, sample_report
from .python_text.card import model_card
from .python_text.evaluate import TextPlan, evaluate_text, infill_sizes

HELD_OUT_EXAMPLES, SAMPLED_PROMPTS, TEXT_PLAN = 1000, 32, TextPlan()


NEEDED = ("preset", "data", "train", "generation")
OPTIONAL = ("about", "config", "kernels", "tokenizer", "flat_attention", "first", "text")


class Recipe:
    """A parsed recipe.json, its tokenizer (in the same folder, or in the one it names) and its
    data.

    preset, config: the model. kernels: how it is computed (`set_kernels`). flat_attention:
    `attention.flatten_scores` before training. data: kind, sizes and what is drawn. train: a
    TrainConfig. first: an earlier stage, as changes of data and train, the step `until` which it
    goes, and perhaps a `first` of its own. generation: what generation_config.json will say. text:
    changes of the TextPlan it is scored by.
    """

    def __init__(self, path: str | Path, plan: dict | None = None):
        from ..tokenizer import Tokenizer

        self.path = Path(path)
        self.plan = read_object("recipe", path, NEEDED, OPTIONAL) if plan is None else plan
        self.training = from_object("train", TrainConfig, self.plan["train"])
        self.tokenizer = Tokenizer.load(self.path.parent / self.plan.get("tokenizer", "."))
        self.config = Config.preset(
            self.plan["preset"], vocab_size=self.tokenizer.vocab_size, **self.plan.get("config", {})
        )
        self.flat_attention = self.plan.get("flat_attention", False)
        if not isinstance(self.flat_attention, bool):
            raise ValueError(f"flat_attention: got {self.flat_attention!r}, takes true or false")

    def new_model(self) -> DiffusionGemma:
        torch.manual_seed(self.training.seed)
        model = DiffusionGemma(self.config).set_kernels(**self.plan.get("kernels", {}))
        return flatten_scores(model) if self.flat_attention else model

    def first_stage(self) -> Recipe | None:
        """The stage whose weights this training starts from.

        The same recipe with what "first" changes in data and train.
        """
        if "first" not in self.plan:
            return None
        changes = self.plan["first"]
        unknown = sorted(set(changes) - {"about", "until", "data", "train", "first"})
        if unknown or "until" not in changes:
            raise ValueError(
                f"first: got {', '.join(changes)}, "
                "takes until, and any of about, data, train, first"
            )
        plan = {name: value for name, value in self.plan.items() if name != "first"}
        plan |= {part: plan[part] | changes.get(part, {}) for part in ("data", "train")}
        stage = Recipe(
            self.path, plan | ({"first": changes["first"]} if "first" in changes else {})
        )
        until, each, most = changes["until"], stage.training.log_every, stage.training.steps
        if not isinstance(until, int) or not 0 < until <= most or until % each:
            raise ValueError(
                f"first.until: got {until!r}, "
                f"takes a multiple of log_every = {each} from {each} to steps = {most}"
            )
        return stage

    def earlier_stages(self) -> list[tuple[Recipe, str]]:
        """(recipe, name of its log beside recipe.json) of each stage before the last one, the
        latest first.
        """
        stages: list[tuple[Recipe, str]] = []
        it = self
        while (it := it.first_stage()) is not None:
            stages.append((it, f"log-before-{len(stages) + 1}.jsonl"))
        return stages

    @property
    def kind(self) -> str:
        """Which data: "python", the standard library, or "templates", generated records."""
        return self.plan["data"].get("kind", "python")

    def examples(self, split: str):
        """Encoded examples of one split of the recipe's data."""
        from ..tokenizer import encode_examples

        data = self.plan["data"]
        pairs = self._pairs(split, data)
        return encode_examples(
            pairs,
            self.tokenizer,
            data["max_prompt"],
            self.config.canvas_length,
            data["max_canvases"],
        )

    def _pairs(self, split: str, data: dict) -> list:
        """Texts of one split, as encode_examples takes them."""
        if self.kind == "python":
            from .python_text import data as python_corpus

            return python_corpus.load_corpus(split, tasks=data["tasks"])
        if self.kind == "templates":
            from .records import data as templates

            if split != "train":
                return templates.records(split, HELD_OUT_EXAMPLES)
            shares, seed = (
                data.get("shares", dict.fromkeys(templates.FAMILIES, 1)),
                data.get("seed", 0),
            )
            if (
                not shares
                or not set(shares) <= set(templates.FAMILIES)
                or not all(share > 0 for share in shares.values())
            ):
                raise ValueError(
                    f"data.shares: got {shares}, "
                    f"takes numbers above 0 for some of {', '.join(templates.FAMILIES)}"
                )
            count = {
                family: int(data["records"] * share / sum(shares.values()))
                for family, share in shares.items()
            }
            return [
                r
                for family in shares
                for r in templates.records(split, count[family], seed=seed, families=(family,))
            ]
        raise ValueError(
            f"data: {self.path} names kind {self.kind!r}, takes 'python' or 'templates'"
        )


def train_recipe(recipe: str | Path, out: str | Path, device: str = "cpu") -> None:
    """Train to the end; if `out` holds a checkpoint, from there.

    An earlier stage, if there is one, in `out`/first.
    """
    it, device = Recipe(recipe), check_device("device", device)
    _train(it, it.new_model().to(device), Path(out), it.training.steps)


def _train(it: Recipe, model: DiffusionGemma, out: Path, until: int) -> None:
    """One stage up to step `until`, and before it, unless it has begun, what is missing of the
    stage it starts from.
    """
    first = it.first_stage()
    if first is not None and not (out / STATE).exists():
        needed, state = it.plan["first"]["until"], out / "first" / STATE
        if not state.exists() or int(read_state(state)[0]["step"]) < needed:
            _train(first, first.new_model().to(model.device), out / "first", needed)
        load_weights(model, out / "first")
    examples = it.examples("train")
    print(
        f"{sum(p.numel() for p in model.parameters()):,} parameters, {len(examples):,} examples",
        flush=True,
    )

    def report(entry: dict) -> bool:
        print(json.dumps({k: round(v, 5) for k, v in entry.items()}), flush=True)
        return entry["step"] >= until

    train(model, examples, it.training, folder=out, progress=False, on_log=report)


def load_weights(model: DiffusionGemma, run: Path) -> dict[str, str]:
    """Fill the model with the weights of a run's checkpoint. Returns the checkpoint's metadata."""
    meta, stored = read_state(run / STATE)
    model.load_state_dict(
        {k.removeprefix("model."): t for k, t in stored.items() if k.startswith("model.")}
    )
    return meta


def copy_logs(it: Recipe, out: Path) -> None:
    """The log of each stage, from the run's folder to the recipe's."""
    for depth, name in enumerate(["log.jsonl", *(name for _, name in it.earlier_stages())]):
        shutil.copy(out.joinpath(*["first"] * depth, "log.jsonl"), it.path.parent / name)


def read_log(path: Path) -> list[dict]:
    """The entries of a log.jsonl."""
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def trained_model(it: Recipe, out: Path) -> tuple[DiffusionGemma, dict[str, str]]:
    """(model, the checkpoint's metadata) of a run: float32, rounded to bfloat16 as the weights will
    be stored.
    """
    model = it.new_model()
    meta = load_weights(model, out)
    model.generation_defaults = it.plan["generation"]
    return model.to(torch.bfloat16).to(torch.float32).eval(), meta


def finish_recipe(recipe: str | Path, out: str | Path) -> None:
    """Evaluate the trained weights on held-out modules and write model, log, scores and card beside
    the recipe.
    """
    it, out = _of_python(Recipe(recipe)), Path(out)
    model, meta = trained_model(it, out)
    folder, held_out = it.path.parent, it.examples("validation")
    every = max(1, len(held_out) // HELD_OUT_EXAMPLES)
    prompts = [e.prompt for e in held_out[:: max(1, len(held_out) // SAMPLED_PROMPTS)]][
        :SAMPLED_PROMPTS
    ]
    scores = {"held_out": evaluate(model, held_out[::every])}
    scores["sampling"] = sample_report(
        model, prompts, SamplerConfig.from_defaults(it.plan["generation"])
    )
    scores["text"] = text_scores(it, model)
    if it.earlier_stages():
        scores["holes_before"] = holes_of_stages(it, out)
    scores |= {
        "python": platform.python_version(),
        "run": {name: json.loads(meta[name]) for name in ("data", "starts")},
    }
    model.to(torch.bfloat16).save_pretrained(folder)
    copy_logs(it, out)
    if "tokenizer" in it.plan:
        it.tokenizer.save(folder)
    (folder / "scores.json").write_text(json.dumps(scores, indent=2) + "\n", encoding="utf-8")
    write_card(it)


def _of_python(it: Recipe) -> Recipe:
    """The scores and the card of this file speak of Python."""
    if it.kind != "python":
        raise ValueError(
            f"recipe: {it.path} has kind {it.kind!r}, "
            "takes 'python' (structured.finish scores records)"
        )
    return it


def text_scores(it: Recipe, model: DiffusionGemma) -> dict:
    """What python_text.evaluate finds on the test split, whose metrics are looked at last."""
    corpus, plan = _test_texts(it)
    found = evaluate_text(model, corpus, it.examples("test"), it.tokenizer.decode, plan)
    return {"split": "test", "python": platform.python_version()} | found


def holes_of_stages(it: Recipe, out: Path) -> list[dict]:
    """{"steps", "infill"} of each stage before the last one, the first one first.

    The same holes as in the text scores.
    """
    corpus, plan = _test_texts(it)
    pairs, found = list(zip(corpus, it.examples("test"), strict=True)), []
    for depth, (stage, _) in enumerate(it.earlier_stages(), 1):
        model, meta = trained_model(stage, out.joinpath(*["first"] * depth))
        found.append({"steps": int(meta["step"]), "infill": infill_sizes(model, pairs, plan)})
    return found[::-1]


def _test_texts(it: Recipe) -> tuple[list, TextPlan]:
    from .python_text.data import load_corpus

    return load_corpus("test", tasks=it.plan["data"]["tasks"]), replace(
        TEXT_PLAN, **it.plan.get("text", {})
    )


def write_card(it: Recipe) -> None:
    """README.md beside the recipe, from the scores, the log and the weights that lie there."""
    folder = _of_python(it).path.parent
    scores = json.loads((folder / "scores.json").read_text(encoding="utf-8"))
    before = [
        (stage.training, read_log(folder / name), name) for stage, name in it.earlier_stages()
    ]
    card = model_card(
        folder.name,
        it.config,
        it.training,
        it.new_model(),
        scores,
        read_log(folder / "log.jsonl"),
        before,
        flat_attention=it.flat_attention,
    )
    (folder / "README.md").write_text(card, encoding="utf-8")


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description="Train what a recipe.json describes, finish it, or write its card again."
    )
    parser.add_argument("what", choices=("train", "finish", "card"))
    parser.add_argument("recipe")
    parser.add_argument(
        "out", nargs="?", help="folder of the checkpoint and the log; the card needs none"
    )
    parser.add_argument(
        "--device", default="cpu", help="where to train, such as cuda (default: cpu)"
    )
    given = parser.parse_args(arguments)
    if given.what == "card":
        write_card(Recipe(given.recipe))
    elif given.out is None:
        parser.error(f"{given.what} needs the folder of the checkpoint and the log")
    elif given.what == "train":
        train_recipe(given.recipe, given.out, given.device)
    else:
        finish_recipe(given.recipe, given.out)


if __name__ == "__main__":
    main()
