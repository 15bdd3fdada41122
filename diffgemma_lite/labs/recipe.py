"""Recipes: a JSON file that says which model, which data and how to train, so that a shipped
checkpoint can be made again.

    python -m diffgemma_lite.labs train    python-small    # hours; goes on with a run it finds
    python -m diffgemma_lite.labs evaluate python-small --out runs/python-small    # and save
    python -m diffgemma_lite.labs card     python-small    # the card again

Those are the commands; here stand what a recipe says and what a finished run holds.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import torch

from ..attention import flatten_scores
from ..checks import from_object, read_object
from ..config import Config
from ..model import DiffusionGemma
from ..tokenizer import Tokenizer, encode_examples
from ..train import STATE, TrainConfig
from ..train_state import read_state
from .table import TEXTS, kind_of, module

HELD_OUT_EXAMPLES = 1000


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
        """Which data: a kind of table.py, such as "python" or "templates"."""
        return kind_of(self.plan)

    def examples(self, split: str):
        """Encoded examples of one split of the recipe's data."""
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
        if self.kind not in TEXTS:
            raise ValueError(
                f"data: {self.path} names kind {self.kind!r}, "
                f"takes {', '.join(map(repr, TEXTS[:-1]))} or {TEXTS[-1]!r}"
            )
        return module(self.kind, "data").texts(split, data, HELD_OUT_EXAMPLES)


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
