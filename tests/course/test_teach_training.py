"""Notebook 06's little language, and the pictures it draws.

Right is right, held out is held out, the mask leaks nothing.
"""

import math

import pytest
import torch
from tiny import Example, refused, tiny

from diffgemma_lite.course import training as task
from diffgemma_lite.loss import collate
from diffgemma_lite.model import DiffusionGemma
from diffgemma_lite.train import TrainConfig, train


def test_the_language():
    examples, tests = task.lines(held_out=False), task.prompts(held_out=True)
    assert len(set(task.WORDS)) == len(task.WORDS)
    assert not set(tests) & set(task.prompts(held_out=False))
    assert {op for op, _ in task.prompts(False)} == {op for op, _ in tests} == set(task.LINES)
    assert {name for _, name in tests} <= {name for _, name in task.prompts(False)}
    assert len(examples) == len(task.prompts(False)) * len(task.NAMES) and task.BITS == math.log2(
        len(task.NAMES)
    )
    assert all(len(e.response) < task.CANVAS for e in examples)


@pytest.mark.parametrize("op", list(task.LINES))
def test_every_line_is_python_that_does_what_its_name_says(op):
    values = [3, -1, 0, 4]
    does = {
        "squares": [9, 1, 0, 16],
        "halves": [1.5, -0.5, 0, 2],
        "positive": [3, 4],
        "total": 6,
        "count": 3,
        "table": {3: 4, -1: 0, 0: 1, 4: 5},
    }
    assert eval(task.text(task.line(op, "ages", "n").response), {"ages": values}) == does[op]


def test_what_counts_as_right():
    good = [*task.line("squares", "rows", "k").response]
    fill = [task.EOS] * (task.CANVAS - len(good))
    assert task.right("squares", "rows", [*good, *fill])
    mixed = [task.WORDS.index("x") if i == 1 else t for i, t in enumerate(good)]
    assert not task.right("squares", "rows", [*mixed, *fill])  # two names in one line
    assert not task.right("squares", "ages", [*good, *fill]) and not task.right(
        "halves", "rows", [*good, *fill]
    )
    assert not task.right("squares", "rows", [*good, *fill[:-1], task.BOS])


def test_a_small_model_begins_to_learn_and_is_watched():
    torch.manual_seed(0)
    model = DiffusionGemma(task.small_config())
    shows = []
    points, on_log = task.watch(
        model, task.prompts(True)[:2], each=2, show=lambda: shows.append(len(points)), stop_at=4
    )
    plan = TrainConfig(steps=9, batch_size=8, warmup_steps=1, log_every=2)
    log = train(model, task.lines(False), plan, progress=False, on_log=on_log)
    assert log[-1]["step"] == 4 and [p["step"] for p in points] == [2, 4] and shows == [1, 2]
    assert log[-1]["denoising"] < log[0]["denoising"] and points[0]["right"]["n"] == 2


def test_loss_by_level_is_that_of_training():
    """At t = 0 everything is unchanged.

    At t = 1 the mean of changed and unchanged, each by its share, is the whole.
    """
    torch.manual_seed(1)
    model, some = DiffusionGemma(task.small_config()), task.lines(True)[:8]
    clean, _, noise = task.loss_by_level(model, some, (0.0, 0.5, 1.0))
    assert "changed" not in clean and clean["all"]["mean"] == pytest.approx(
        clean["unchanged"]["mean"]
    )
    assert noise["changed"]["n"] == 8
    told, plain = (
        task.loss_by_level(model, some, (0.5,), told=x)[0]["all"]["mean"] for x in (True, False)
    )
    assert told != plain
    batch = collate(
        some,
        list(range(8)),
        canvas_length=16,
        vocab_size=len(task.WORDS),
        eos=1,
        pad=0,
        seed=0,
        epoch=0,
    )
    logits = model.decode(batch.clean, model.encode(batch.ids[:, :3]))
    by_hand = -logits.log_softmax(-1).gather(-1, batch.clean[..., None]).mean()
    assert clean["all"]["mean"] == pytest.approx(float(by_hand.detach()), rel=1e-5)
    with refused("examples", "one length"):
        task.loss_by_level(tiny(), [Example([3], [4]), Example([3, 4], [4])], (0.5,))


def test_no_clean_token_of_the_drawn_canvas_or_a_later_one_is_seen():
    mask = task.layout_mask(3, 4, 3)
    assert mask.shape == (12, 3 + 12 + 4)
    for k in range(3):
        rows = mask[4 * k : 4 * k + 4]
        assert (
            bool(rows[:, : 3 + 4 * k].all())
            and not rows[:, 3 + 4 * k : 15].any()
            and bool(rows[:, 15:].all())
        )
    assert "canvas 3" in task.layout_figure(3, 4, 3).text
    assert task.encoder_figure(4, 2).text.count("■") == 4 * 5 // 2
