"""Recipes that cannot be meant, and commands without what they need.

Refused by name, before any work is done.
"""

import json
import re
from dataclasses import dataclass
from pathlib import Path

import pytest

from diffgemma_lite.checks import check_keys, from_object, read_object
from diffgemma_lite.labs import __main__ as command
from diffgemma_lite.labs.distill import data as distil
from diffgemma_lite.labs.distill import train as distil_train
from diffgemma_lite.labs.recipe import Recipe
from diffgemma_lite.labs.sudoku import evaluate, finetune, siblings
from diffgemma_lite.labs.sudoku import train as sudoku

SHIPPED = Path(__file__).parents[2] / "assets" / "checkpoints"
READERS = {
    "sudoku-small": lambda path, out: sudoku.read_recipe(path),
    "sudoku-siblings-9": lambda path, out: siblings.read_comparison(path),
    "sudoku-layouts": lambda path, out: siblings.read_comparison(path),
    "sudoku-finetune": lambda path, out: finetune.train_run(path, out),
    "templates-few-steps": lambda path, out: distil_train.train_run(path, out),
    "python-small": lambda path, out: Recipe(path),
}


def changed(tmp_path: Path, name: str, **changes) -> Path:
    """A copy of a shipped recipe in a folder of its own; None takes a key away."""
    recipe = json.loads((SHIPPED / name / "recipe.json").read_text(encoding="utf-8")) | changes
    (tmp_path / "recipe.json").write_text(
        json.dumps({k: v for k, v in recipe.items() if v is not None}), encoding="utf-8"
    )
    return tmp_path / "recipe.json"


@pytest.mark.parametrize("name", READERS)
@pytest.mark.parametrize("content", [None, "{", "[]", "{}"])
def test_a_file_that_is_no_recipe(tmp_path, name, content):
    path = tmp_path / "recipe.json"
    if content is not None:
        path.write_text(content, encoding="utf-8")
    said = {
        None: "cannot be read as JSON",
        "{": "cannot be read as JSON",
        "[]": "got list, takes an object with",
        "{}": "lacks",
    }
    with pytest.raises(ValueError, match=f"^recipe: .*recipe.json.*{said[content]}"):
        READERS[name](path, tmp_path / "out")
    # nothing begun
    assert sorted(p.name for p in tmp_path.iterdir()) == ["recipe.json"][: content is not None]


@pytest.mark.parametrize("name", READERS)
def test_each_key_that_is_needed_and_one_that_is_not_known(tmp_path, name):
    recipe = json.loads((SHIPPED / name / "recipe.json").read_text(encoding="utf-8"))
    with pytest.raises(ValueError, match="recipe.json: has trian, takes an object with"):
        READERS[name](changed(tmp_path, name, trian={}), tmp_path)
    optional = {
        "about",
        "run",
        "first",
        "chosen",
        "generation",
        "families",
        "test_families",
        "family_tests",
        "max_prompt",
        "variety",
    }
    for key in set(recipe) - optional:
        # without it, it reads as one of siblings
        said = "layout, look and has n, spare" if key == "layouts" else key
        with pytest.raises(ValueError, match=f"recipe.json: lacks {said}, takes an object with"):
            READERS[name](changed(tmp_path, name, **{key: None}), tmp_path)


@pytest.mark.parametrize(
    ("name", "changes", "said"),
    [
        ("sudoku-small", {"train": {"decay_steps": 0}}, "train: lacks steps, takes"),
        (
            "sudoku-small",
            {"train": {"steps": 9, "decay_steps": 0, "stpes": 1}},
            "train: has stpes, takes",
        ),
        (
            "sudoku-small",
            {"train": {"steps": 9, "decay_steps": 0, "rate_points": "abc"}},
            "rate_points: got 'abc', takes (step, share",
        ),
        ("sudoku-small", {"train": 5}, "train: got int, takes an object with"),
        ("sudoku-small", {"layout": {"name": "legend", "side": 9}}, "layout: has side, takes"),
        (
            "sudoku-small",
            {"model": {"width": 128, "depth": 5}},
            "model: got {'width': 128, 'depth': 5}, takes sizes",
        ),
        ("sudoku-small", {"puzzles": 0}, "puzzles: got 0, takes an integer of at least 1"),
        ("sudoku-siblings-9", {"tests": {"count": 1}}, "tests: lacks fewest, most, seed, takes"),
        ("sudoku-siblings-9", {"layouts": {}}, "lacks n, spare and has layout, look, takes"),
        (
            "sudoku-finetune",
            {"points": [{"kind": "lora"}]},
            "point: got {'kind': 'lora'}, takes a kind of",
        ),
        (
            "sudoku-finetune",
            {"points": [{"kind": "full", "train": {"stpes": 3}}]},
            "train: has stpes, takes",
        ),
        ("templates-few-steps", {"distil": {"stpes": 3}}, "distil: has stpes, takes"),
        ("python-small", {"train": {"batch_size": 3}}, "train: lacks steps, takes"),
    ],
)
def test_what_a_recipe_holds_is_looked_at_before_the_work(unchecked, tmp_path, name, changes, said):
    with pytest.raises(ValueError, match=re.escape(said)):
        READERS[name](changed(tmp_path, name, **changes), tmp_path)


@pytest.mark.parametrize("name", sorted(p.parent.name for p in SHIPPED.glob("*/recipe.json")))
def test_a_shipped_recipe_is_read(name):
    path = SHIPPED / name / "recipe.json"
    if name in ("sudoku-small", "sudoku-siblings", "sudoku-siblings-9"):
        sudoku.stages_of(sudoku.read_recipe(path)[0])
    if name.startswith(("sudoku-siblings", "sudoku-layouts")):
        siblings.read_comparison(path)
    elif name == "sudoku-finetune":
        read_object("recipe", path, finetune.NEEDED, ("about",))
    elif name.endswith("few-steps"):
        read_object("recipe", path, distil.NEEDED, distil.OPTIONAL)
    elif name != "sudoku-small":
        Recipe(path).earlier_stages()


@pytest.mark.parametrize("what", ["train", "evaluate", "card"])
def test_a_command_without_arguments_says_what_it_takes(what, capsys):
    with pytest.raises(SystemExit) as stopped:
        command.main([what])
    assert (
        stopped.value.code == 2
        and "the following arguments are required: NAME" in capsys.readouterr().err
    )


def test_a_run_that_is_not_there_is_not_finished(tmp_path):
    path = changed(tmp_path, "sudoku-small")
    with pytest.raises(ValueError, match=r"^out: .*nothing holds no run \(.*safetensors\), takes"):
        evaluate.evaluate_run(path, tmp_path / "nothing", n=1, curve=0)
    with pytest.raises(
        ValueError, match="^recipe: lacks chosen, takes a recipe with generation and chosen"
    ):
        evaluate.evaluate_run(
            changed(tmp_path, "sudoku-small", chosen=None), tmp_path, n=1, curve=0
        )
    assert sorted(p.name for p in tmp_path.iterdir()) == ["recipe.json"]


@dataclass
class Two:
    one: int
    two: int = 2


def test_an_object_becomes_a_dataclass():
    assert from_object("it", Two, {"one": 5}) == Two(5) and from_object(
        "it", Two, {"one": 5, "two": 6}
    ) == Two(5, 6)
    with pytest.raises(
        ValueError, match="^it: lacks one and has three, takes an object with one, and perhaps two$"
    ):
        from_object("it", Two, {"two": 1, "three": 1})
    check_keys("it", {"a": 1}, ("a",))
    with pytest.raises(ValueError, match="^it: got str, takes an object with a$"):
        check_keys("it", "a", ("a",))
