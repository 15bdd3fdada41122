"""The table of quality by part.

Paired with the float model, and the scores are those of the evaluation elsewhere.
"""

from __future__ import annotations

import json

import pytest
import torch
from tiny import Example, random_ids, refused, sampler, tiny

from diffgemma_lite import generate
from diffgemma_lite.labs.evaluate import evaluate
from diffgemma_lite.labs.four_bits.quality import CASES, Case, canvas_scores, canvas_steps, quality

FEW = (
    Case("experts"),
    Case("everything"),
    Case("everything", "fp8"),
    Case("dense_mlp", inputs=True),
)


def examples(n: int) -> list[Example]:
    return [
        Example(
            random_ids(4 + i % 3, seed=i).tolist(), random_ids(5 + i % 4, seed=100 + i).tolist()
        )
        for i in range(n)
    ]


def test_the_loss_is_the_one_of_evaluate():
    model, some = tiny(), examples(40)
    loss, guess, counted = canvas_scores(model, some)
    assert float(loss.double().mean()) == pytest.approx(
        evaluate(model, some)["denoising"]["mean"], rel=1e-5
    )
    assert guess.shape == counted.shape == (40, 8)


def test_prompts_run_together_take_the_steps_they_take_alone():
    model, prompts = tiny(), [e.prompt for e in examples(6)]
    for layer in model.layers:  # branches this faint let a canvas settle
        layer.post_attention_layernorm.weight.data.mul_(0.1)
        layer.post_feedforward_layernorm.weight.data.mul_(0.1)
    settings = sampler(
        max_denoising_steps=16, entropy_bound=2.0, confidence_threshold=50.0, t_max=1.0, t_min=0.5
    )
    together = canvas_steps(model, prompts, settings)
    for i, prompt in enumerate(prompts):
        out = generate(
            model,
            torch.tensor([prompt]),
            settings,
            max_new_tokens=8,
            eos_token_id=1,
            generator=[torch.Generator().manual_seed(i)],
        )
        assert together[i] == out.steps[0][0]
    assert len(set(together.tolist())) > 1


def test_rows_are_paired_and_a_finer_format_is_nearer():
    model, some = tiny(), examples(40)

    def solved(m):
        return (canvas_scores(m, some)[0] < 4).float()

    rows = quality(
        model,
        some,
        prompts=[e.prompt for e in some[:3]],
        sampler=sampler(),
        calibration=examples(8),
        cases=FEW,
        exact=solved,
    )
    assert [(r["parts"], r["format"], r["inputs"]) for r in rows] == [
        ("nothing", "float32", False),
        ("experts", "nvfp4", False),
        ("everything", "nvfp4", False),
        ("everything", "fp8", False),
        ("dense_mlp", "nvfp4", True),
    ]
    first = rows[0]
    assert (
        first["agreement"]["mean"] == 1
        and first["loss_change"]["mean"] == first["steps_change"]["mean"] == 0
    )
    for row in rows[1:]:
        assert row["loss"]["mean"] - first["loss"]["mean"] == pytest.approx(
            row["loss_change"]["mean"]
        )
        assert 0 < row["agreement"]["mean"] < 1 and row["exact"]["n"] == 40
        assert row["inputs"] != ("steps" in row)  # too slow where inputs are rounded
    assert rows[3]["agreement"]["mean"] > rows[2]["agreement"]["mean"]
    assert json.loads(json.dumps(rows[1:])) == rows[1:]


def test_an_interrupted_table_goes_on_where_it_stopped():
    model, some, saved = tiny(), examples(6), []
    whole = quality(model, some, cases=FEW[:3], save=lambda rows: saved.append(list(rows)))
    assert saved[0] == whole[:2] and saved[-1] == whole
    marked = whole[1] | {"seen": True}
    again = quality(model, some, cases=FEW[:3], done=[marked])
    assert again[1] is marked and again[2:] == whole[2:]


def test_every_part_alone_and_together_is_in_the_table():
    alone = [case.parts for case in CASES if case.format == "nvfp4" and not case.inputs]
    assert alone == [
        "experts",
        "dense_mlp",
        "attention",
        "router",
        "self_conditioning",
        "embedding",
        ("experts", "dense_mlp"),
        "everything",
    ]
    assert {case.format for case in CASES if case.parts == "everything"} == {
        "nvfp4",
        "mxfp4",
        "int4",
        "fp8",
    }


def test_bad_requests_are_named():
    with refused("examples"):
        quality(tiny(), [], cases=FEW[:1])
    with refused("calibration", "dense_mlp"):
        quality(tiny(), examples(2), cases=FEW)
