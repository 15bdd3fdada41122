"""Lab functions: what the generator writes runs, what is held out is nowhere else, and the judge
survives what it is given.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from diffgemma_lite.labs.functions import words
from diffgemma_lite.labs.functions.data import SPLITS, functions
from diffgemma_lite.labs.functions.judge import WORKER, Judge
from diffgemma_lite.labs.functions.scores import evaluate, load, quotient, write_one
from diffgemma_lite.labs.functions.splits import (
    alike,
    disjoint,
    held_out,
    may_be_tested,
    normal_form,
)
from diffgemma_lite.labs.functions.train import (
    new_model,
    read_recipe,
    stages,
    train_run,
    training_examples,
)
from diffgemma_lite.labs.scores import named_weights
from diffgemma_lite.tokenizer import Tokenizer

FOLDER = Path(__file__).parents[2] / "assets" / "checkpoints" / "functions-small"
SHIPPED = pytest.mark.skipif(
    not (FOLDER / "model.safetensors").exists(), reason="the weights are not in this checkout"
)


@pytest.fixture(scope="module")
def judge():
    with Judge(1.0) as it:
        yield it


def test_functions_are_reproducible_and_of_one_form():
    some = functions("train", 40, seed=3)
    assert some == functions("train", 40, seed=3) and some[:5] == functions("train", 5, seed=3)
    assert some != functions("train", 40, seed=4)
    for f in some:
        assert (
            f.prompt.startswith(f"def {f.name}(")
            and f.prompt.endswith('"""')
            and f.target.startswith("\n    ")
        )


def test_examples_are_what_the_function_returned():
    shown = [f for f in functions("train", 200) if f.examples]
    assert shown and all(
        f">>> {f.name}({call})\n    {result}\n" in f.prompt
        for f in shown
        for call, result in f.examples
    )


def test_twenty_hidden_inputs_empty_ones_among_them():
    for f in functions("combinations", 20):
        assert len(f.hidden) == 20
        assert any(call.startswith(("[]", "''", "{}")) for call, _ in f.hidden)


def test_sizes_fit_the_canvas_and_the_prompt():
    tokenizer = Tokenizer.load(FOLDER)
    assert tokenizer.vocab_size == 640
    some = functions("train", 400)
    bodies = [len(tokenizer.encode(f.target)) for f in some]
    prompts = [len(tokenizer.encode(f.prompt)) for f in some]
    assert 20 < sum(bodies) / len(bodies) < 36 and 20 < sum(prompts) / len(prompts) < 45
    assert sum(n < 64 for n in bodies) > 0.97 * len(bodies)


def test_many_different_programs():
    """Of 1,000 functions nearly all differ, names and all; and most differ even as trees without
    names.
    """
    some = functions("train", 1000)
    assert len({f.source for f in some}) > 990
    assert len({normal_form(f.source) for f in some}) > 600


def test_more_than_a_million_programs_are_reachable():
    """Counted without constants, loops, other kinds of argument, wordings: two steps over numbers
    and a fold, and the names.
    """
    steps, names = len(words.INT_TESTS) + len(words.INT_MAPS), len(words.VERBS) * len(words.NOUNS)
    assert 0.9 * steps**2 * len(words.INT_FOLDS) * len(words.ARGUMENTS["ints"]) * names > 1_000_000


def test_combinations_are_held_out_whole():
    train, held = functions("train", 800), functions("combinations", 150)
    assert not {f.keys for f in train} & {f.keys for f in held}
    assert all(held_out(f.keys) and may_be_tested(f.keys) for f in held) and not any(
        held_out(f.keys) for f in train
    )
    found = disjoint(train, held)
    assert found["both"] == 0 and min(found["train"], found["held_out"]) > 120


def test_what_is_written_alike_is_held_out_alike():
    assert ("words", "sort", "unique") in alike(("ints", "sort", "unique"))
    assert ("ints", "how many even") in alike(("ints", "keep even", "count"))
    assert ("words", "twice", "first") in alike(("ints", "double", "first"))
    assert alike(("split", "sort", "title")) == {("split", "sort", "title")}


def test_names_and_wordings_are_held_out():
    train = " ".join(f.prompt for f in functions("train", 800))
    assert not [
        w
        for w in (*words.HELD_OUT_VERBS, *words.HELD_OUT_NOUNS)
        if f"{w}_" in train or f"_{w}(" in train
    ]
    assert not [
        w
        for w in ("divisible by two", "truncate to", "tabulate", "arrange upwards")
        if w in train.lower()
    ]
    assert all(f.name.split("_")[0] in words.HELD_OUT_VERBS for f in functions("names", 20))
    assert any("select what is" in f.prompt.lower() for f in functions("wordings", 40))


def test_unknown_split_is_refused():
    with pytest.raises(ValueError, match="split: got 'all', takes one of train"):
        functions("all", 3)
    with pytest.raises(ValueError, match="count"):
        functions("train", 0)
    assert SPLITS[0] == "train"


def test_normal_form_forgets_names_and_keeps_operations():
    one, two = (
        "def f(a):\n    return [x + 1 for x in a]",
        "def g(b):\n    '''Text.'''\n    return [y + 1 for y in b]",
    )
    one = one.replace("\n", "\n    '''Other.'''\n", 1)
    assert normal_form(one) == normal_form(two) != normal_form(two.replace("+", "-"))


def test_references_are_right_and_others_wrong(judge):
    some = [f for split in SPLITS[1:] for f in functions(split, 30)]
    assert all(judge.right(f, f.target) for f in some)
    assert sum(judge.right(f, "\n    return 0") for f in some) < 0.2 * len(some)
    assert not any(judge.right(f, "\n    return (") for f in some)


HOSTILE = {
    "endless": ("while True:\n        pass", "TimeoutError"),
    "catches all": ("while True:\n        try:\n            sum(range(10 ** 9))\n        except "
    "BaseException:\n            0",
                    "TimeoutError"),
    "fork": ("import os\n    os.fork()", "ImportError"),
    "os": ("import os\n    return os.listdir('/')", "ImportError"),
    "socket": ("from socket import socket\n    return socket()", "ImportError"),
    "import": ("return __import__('os').getpid()", "PermissionError"),
    "read": ("return open('/etc/hostname').read()", "NameError"),
    "classes": ("return ().__class__.__base__.__subclasses__()", "PermissionError"),
    "names in texts": ("return '{0.__class__}'.format(a)", "PermissionError"),
    "globals": ("return (x for x in a).gi_frame", "PermissionError"),
    "allocation": ("return len([0] * 10 ** 10)", "MemoryError"),
    "recursion": ("return f(a)", "RecursionError"),
    "long result": ("return 'x' * 10 ** 6", "OverflowError"),
    "nesting": ("return " + "(" * 3000 + ")" * 3000, "SyntaxError"),
    "eval": ("return eval('1')", "NameError"),
}  # fmt: skip


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_programs_get_nothing_and_break_nothing(judge, name):
    body, kind = HOSTILE[name]
    assert judge.run(f"def f(a):\n    {body}\n", "f", ["[1]"]) == [("error", kind)]
    assert judge.run("def f(a):\n    return a + [2]\n", "f", ["[1]", "[]"]) == [
        ("ok", "[1, 2]"),
        ("ok", "[2]"),
    ]


def test_one_program_leaves_nothing_for_the_next(judge):
    judge.run("seen = []\ndef f(a):\n    seen.append(a)\n    return seen\n", "f", ["1"])
    assert judge.run("def f(a):\n    return seen\n", "f", ["1"]) == [("error", "NameError")]


@pytest.mark.parametrize(
    "attempt",
    [
        "open('/etc/hostname')",
        "__import__('socket').socket()",
        "__import__('os').fork()",
        "__import__('os').listdir('/')",
        "__import__('subprocess').Popen(['true'])",
        "bytearray(10 ** 9)",
    ],
)
def test_the_process_has_no_files_sockets_or_processes_even_without_the_first_fence(attempt):
    """The limits and the audit hook, without restricted builtins, without a look at the tree."""
    script = WORKER.read_text(encoding="utf-8").rsplit("if __name__", 1)[0]
    script += f"import os, socket, subprocess\nlimit()\ntry:\n    {attempt}\n"
    script += "except BaseException as e:\n    print(type(e).__name__)"
    found = subprocess.run(
        [sys.executable, "-I", "-S", "-c", script],
        check=False,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert found.stdout.strip() in ("PermissionError", "MemoryError"), found


def test_quotient():
    found = quotient([2.0, 4.0], [1.0, 2.0])
    assert found["ratio"] == 2 and found["half_width"] == 0


def small(tmp_path: Path, steps: int) -> Path:
    """The recipe with another size, in two stages of a few steps."""
    plan = read_recipe(FOLDER)
    plan |= {"preset": "tiny", "config": {"canvas_length": 64, "max_position_embeddings": 1024}}
    plan["data"] = plan["data"] | {"functions": 40}
    plan["train"] = plan["train"] | {
        "steps": steps,
        "batch_size": 2,
        "log_every": 1,
        "checkpoint_every": 1,
    }
    plan["first"] = {"until": 2, "train": {"steps": 9}}
    folder = tmp_path / "small"
    folder.mkdir()
    (folder / "recipe.json").write_text(json.dumps(plan), encoding="utf-8")
    Tokenizer.load(FOLDER).save(folder)
    return folder


def test_a_recipe_trains_in_stages_and_resumes_exactly(tmp_path):
    from diffgemma_lite.train_state import read_state

    torch.set_num_threads(1)  # two wait for each other longer than a model of this size computes
    folder = small(tmp_path, 3)
    train_run(folder / "recipe.json", tmp_path / "a")
    # one step of the first stage, then it is stopped
    train_run(folder / "recipe.json", tmp_path / "b", minutes=1e-9)
    assert not (tmp_path / "b" / "train_state.safetensors").exists()
    train_run(folder / "recipe.json", tmp_path / "b")
    one, two = (read_state(tmp_path / run / "train_state.safetensors")[1] for run in "ab")
    assert all(torch.equal(one[name], two[name]) for name in one if not name.startswith("log"))


def test_training_examples_are_whole():
    plan, tokenizer = read_recipe(FOLDER), Tokenizer.load(FOLDER)
    plan["data"] = plan["data"] | {"functions": 300}
    for e in training_examples(plan, tokenizer, 64):
        assert e.complete and len(e.response) < 64 and len(e.prompt) <= plan["data"]["max_prompt"]
    assert all(until <= stage["train"]["steps"] for stage, until in stages(plan))


def test_prompts_that_are_too_long_are_refused():
    model = new_model(read_recipe(FOLDER) | {"preset": "tiny"}, 640)
    with pytest.raises(ValueError, match="takes a shorter one"):
        write_one(model, Tokenizer.load(FOLDER), "x = 1\n" * 1000, "denoiser", 0)


@SHIPPED
def test_shipped_weights_write_functions_and_their_scores_are_about_them():
    scores = json.loads((FOLDER / "scores.json").read_text(encoding="utf-8"))
    assert scores["weights"] == named_weights(FOLDER)
    assert scores["disjoint"]["both"] == 0
    torch.set_num_threads(1)
    model, tokenizer = load(FOLDER)
    found = evaluate(model, tokenizer, n=10, seed=0)
    wanted = {
        "right",
        "right_left_to_right",
        "text_tokens_per_forward",
        "forwards",
        "seconds",
        "seconds_left_to_right",
        "speed_up",
    }
    assert wanted <= found.keys() and found["n"] == 10
    assert 0 <= found["right"] <= 1 and 1 < found["forwards"] <= 50
    low = scores["combinations"]["right_left_to_right_interval"][0]
    assert found["right_left_to_right"] >= low - 0.45


@SHIPPED
def test_the_card_is_what_the_files_say(tmp_path):
    import shutil

    from diffgemma_lite.labs.functions.card import write_card

    copy = tmp_path / FOLDER.name
    shutil.copytree(FOLDER, copy, ignore=shutil.ignore_patterns("README.md"))
    write_card(copy / "recipe.json")
    assert (copy / "README.md").read_text(encoding="utf-8") == (FOLDER / "README.md").read_text(
        encoding="utf-8"
    )
