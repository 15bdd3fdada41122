"""Scores of structured records and planted tokens.

Exact where the decoder knows all, honest where it knows nothing.
"""

import json

import pytest
import torch
from tiny import exact, tiny

from diffgemma_lite import DiffusionGemma, SamplerConfig
from diffgemma_lite.labs import __main__ as command
from diffgemma_lite.labs import recipe
from diffgemma_lite.labs.records import evaluate as finish
from diffgemma_lite.labs.records import planted
from diffgemma_lite.labs.records import scores as structured
from diffgemma_lite.labs.records.checks import check
from diffgemma_lite.labs.records.data import records, template_tokenizer

VOCABULARY = template_tokenizer().vocab_size
STEPS = SamplerConfig(max_denoising_steps=4, draw="cdf")


@pytest.fixture(scope="module")
def tokenizer():
    return template_tokenizer()


@pytest.fixture(scope="module")
def model(tokenizer):
    return tiny(vocab_size=tokenizer.vocab_size, canvas_length=64)


def knows(monkeypatch, tokenizer, some, canvas):
    """The decoder answers the request of some[i] with canvas[i], without a doubt, whatever it
    reads.
    """
    answers = {
        tuple(tokenizer.encode(record.prompt)): row
        for record, row in zip(some, canvas, strict=True)
    }
    encode = DiffusionGemma.encode

    def remember(self, ids, *more):
        # after <bos><record>
        self.asked = torch.stack([answers[tuple(row[2:])] for row in ids.tolist()])
        return encode(self, ids, *more)

    def decode(self, ids, cache, belief=None):
        return torch.zeros(*ids.shape, VOCABULARY).scatter_(-1, self.asked[..., None], 60.0)

    monkeypatch.setattr(DiffusionGemma, "encode", remember)
    monkeypatch.setattr(DiffusionGemma, "decode", decode)


def test_a_decoder_that_knows_the_records_is_right_everywhere(model, tokenizer, monkeypatch):
    some = records("test", 12)
    knows(monkeypatch, tokenizer, some, structured.canvases_of(tokenizer, some, 64)[0])
    written = structured.denoise_records(model, tokenizer, some, STEPS)
    found = structured.score_records(tokenizer, some, written)
    assert found["valid"]["share"] == 1 and found["passes"] == 2 and found["broken"] == {}
    assert [structured.text_of(tokenizer, row) for row in written.rows] == [r.target for r in some]


def test_another_records_answer_is_no_answer(model, tokenizer, monkeypatch):
    """Right of its form, but not what was asked."""
    some = records("test", 12, families=["sum"])
    knows(monkeypatch, tokenizer, some, structured.canvases_of(tokenizer, some, 64)[0].roll(1, 0))
    found = structured.score_records(
        tokenizer, some, structured.denoise_records(model, tokenizer, some, STEPS)
    )
    assert found["valid"]["share"] == 0 and found["broken"]["as requested"] == 12
    assert "answer before the working" not in found["broken"]


def test_an_untrained_model_breaks_the_form(model, tokenizer):
    some = records("test", 4, families=["sql"])  # one batch
    drawn = structured.write_forward(model, tokenizer, some, temperature=0.8)
    for written in (structured.denoise_records(model, tokenizer, some, STEPS), drawn):
        found = structured.score_records(tokenizer, some, written)
        assert (
            found["valid"]["share"] == 0
            and found["valid"]["n"] == 4
            and found["broken"] == {"form": 4}
        )
        assert len(written.rows) == len(written.passes) == 4


def test_a_record_does_not_depend_on_its_batch(tokenizer, monkeypatch):
    model, some = exact(vocab_size=tokenizer.vocab_size, canvas_length=64), records("test", 6)
    one = structured.denoise_records(model, tokenizer, some, STEPS, seed=7).rows
    monkeypatch.setattr(structured, "BATCH", 4)
    other = structured.denoise_records(model, tokenizer, some, STEPS, seed=7).rows
    assert all(torch.equal(a, b) for a, b in zip(one, other, strict=True))


def test_markers_are_seen_and_what_follows_the_end_is_not(tokenizer):
    ids = tokenizer.encode("BEGIN;")
    row = torch.tensor([*ids, tokenizer.marker_id("edit"), tokenizer.eos_id, *ids])
    assert structured.text_of(tokenizer, row) == "BEGIN;<edit>"


def test_a_given_end_is_all_that_is_given(model, tokenizer):
    some, seen = records("test", 4, families=["sql"]), []  # one batch
    canvas, sizes = structured.canvases_of(tokenizer, some, 64)
    pinned = torch.arange(64) >= (sizes - structured.END_TOKENS)[:, None]
    structured.denoise_records(
        model,
        tokenizer,
        some,
        STEPS,
        canvas=canvas,
        pinned=pinned,
        on_step=lambda step: seen.append(step.canvas),
    )
    assert torch.equal(seen[0][pinned], canvas[pinned])
    assert (seen[0] == canvas)[~pinned].float().mean() < 0.1


def test_ends_are_compared_and_replaced(model, tokenizer, monkeypatch):
    some = records("test", 8)
    canvas, sizes = structured.canvases_of(tokenizer, some, 64)
    knows(monkeypatch, tokenizer, some, canvas)
    right = structured.Written(
        [row[: int(n) + 1] for row, n in zip(canvas, sizes, strict=True)], sizes.tolist()
    )
    found = structured.score_ends(model, tokenizer, some, STEPS, right)
    assert (
        found["greedy_ends_as_given"]["share"] == found["greedy_end_replaced_valid"]["share"] == 1
    )
    assert found["diffusion_pinned"]["valid"]["share"] == 1
    other = structured.Written(right.rows[1:] + right.rows[:1], right.passes)
    found = structured.score_ends(model, tokenizer, some, STEPS, other)
    assert (
        found["greedy_ends_as_given"]["share"] < 0.5
        and found["greedy_end_replaced_valid"]["share"] < 0.5
    )


@pytest.mark.parametrize("kind", planted.KINDS)
def test_what_is_planted_breaks_the_record_and_stands_alone(model, tokenizer, kind):
    trials = planted.plant(model, tokenizer, 12, kind=kind)
    clean, sizes = structured.canvases_of(tokenizer, trials.records, 64)
    for i, record in enumerate(trials.records):
        place = int(trials.position[i])
        assert (trials.canvas[i] != clean[i]).nonzero().flatten().tolist() == [place]
        assert (
            int(trials.canvas[i, place]) == int(trials.wrong[i]) and not trials.unsettled[i, place]
        )
        assert int(trials.unsettled[i].sum()) == max(1, round(planted.LATE * int(sizes[i])))
        assert check(record.family, record.prompt, structured.text_of(tokenizer, trials.canvas[i]))
        assert kind == "any" or tokenizer.token_text(int(trials.wrong[i])).isdigit()
    again = planted.plant(model, tokenizer, 8, kind=kind)
    assert torch.equal(again.canvas, trials.canvas[:8]) and torch.equal(
        again.unsettled, trials.unsettled[:8]
    )


def test_masked_decoding_cannot_repair_and_the_other_can(model, tokenizer, monkeypatch):
    """Both samplers with a decoder that knows the record: only what they may touch differs."""
    trials = planted.plant(model, tokenizer, 12)
    knows(
        monkeypatch,
        tokenizer,
        trials.records,
        structured.canvases_of(tokenizer, trials.records, 64)[0],
    )
    found = {
        way: planted.score_planted(
            tokenizer, trials, planted.go_on(model, tokenizer, trials, STEPS, way=way)
        )
        for way in ("uniform", "masked")
    }
    assert found["uniform"]["repaired"]["share"] == found["uniform"]["replaced"]["share"] == 1
    assert found["masked"]["repaired"]["share"] == found["masked"]["replaced"]["share"] == 0


def test_bad_arguments_are_named(model, tokenizer):
    trials = planted.plant(model, tokenizer, 4)
    for call, name in (
        (lambda: planted.plant(model, tokenizer, 4, kind="word"), "kind"),
        (lambda: planted.plant(model, tokenizer, 0), "count"),
        (lambda: planted.go_on(model, tokenizer, trials, STEPS, way="both"), "way"),
        (lambda: structured.canvases_of(tokenizer, trials.records, 20), "records"),
    ):
        with pytest.raises(ValueError, match=f"^{name}: "):
            call()


def test_train_finish_and_score_again(tokenizer, tmp_path, monkeypatch, capsys):
    """The commands of the card, on a tiny model."""
    folder = tmp_path / "tiny-records"
    tokenizer.save(folder)
    plan = {
        "preset": "tiny",
        "config": {"canvas_length": 64},
        "data": {"kind": "templates", "records": 16, "max_prompt": 16, "max_canvases": 1},
        "train": {
            "steps": 2,
            "batch_size": 4,
            "log_every": 1,
            "checkpoint_every": 2,
            "warmup_steps": 1,
        },
        "generation": {
            "max_denoising_steps": 3,
            "entropy_bound": 0.1,
            "eos_token_id": [1],
            "pad_token_id": 0,
        },
    }
    (folder / "recipe.json").write_text(json.dumps(plan), encoding="utf-8")
    monkeypatch.setattr(recipe, "HELD_OUT_EXAMPLES", 8)
    monkeypatch.setattr(structured, "FAMILIES", ("sum",))
    monkeypatch.setattr(finish, "FAMILIES", ("sum",))
    run = ["--out", str(tmp_path / "run")]
    command.main(["train", str(folder), *run])
    command.main(["evaluate", str(folder), *run, "--n", "1"])
    first, text = (
        (folder / "scores.json").read_text(encoding="utf-8"),
        (folder / "README.md").read_text(encoding="utf-8"),
    )
    scores = json.loads(first)
    assert (
        set(scores["structured"]["families"]) == {"sum"}
        and scores["held_out"]["denoising"]["n"] == 8
    )
    both = scores["structured"]["all"]["diffusion"]
    assert both["valid"]["n"] == 1 and both["valid"]["share"] == 0 and both["passes"] == 3
    assert (
        "16 records" in text
        and "2 steps of 4 canvases" in text
        and "planned" not in text
        and "| sum | 1 |" in text
    )
    (folder / "scores.json").write_text(json.dumps({"run": scores["run"]}), encoding="utf-8")
    capsys.readouterr()
    command.main(["evaluate", str(folder), "--n", "1", "--json"])
    told = json.loads(capsys.readouterr().out)  # one object, nothing else, and nothing written
    assert told["n"] == 1 and told["structured"] == scores["structured"]
    assert set(json.loads((folder / "scores.json").read_text(encoding="utf-8"))) == {"run"}
    command.main(["evaluate", str(folder), "--n", "1", "--write"])
    assert json.loads((folder / "scores.json").read_text(encoding="utf-8")) == scores
    with pytest.raises(ValueError, match="data: .* names kind 'xml'"):
        (folder / "recipe.json").write_text(
            json.dumps(plan | {"data": plan["data"] | {"kind": "xml"}}), encoding="utf-8"
        )
        recipe.Recipe(folder / "recipe.json").examples("train")
