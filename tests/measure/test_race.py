"""A race record is two runs of the same weights.

Their tokens, their passes, their bytes, and a clock that is only read.
"""

import itertools
import json
import math

import pytest
import torch
from tiny import C, generator, random_ids, refused, sampler, tiny

from diffgemma_lite import generate, generate_autoregressive
from diffgemma_lite.cost import step_cost
from diffgemma_lite.measure.race import KINDS, RaceRecord, experts_touched, race_record
from diffgemma_lite.trace.observe import observe

S, NEW = 9, 2 * C + 3  # three canvases


@pytest.fixture(scope="module")
def model():
    return tiny()


@pytest.fixture(scope="module")
def ids():
    return random_ids(1, S, seed=7)


def ticking(step: float = 0.25):
    """A clock that goes on by `step` whenever somebody looks."""
    return (step * n for n in itertools.count()).__next__


@pytest.fixture(scope="module")
def record(model, ids):
    return race_record(
        model,
        ids,
        sampler(),
        max_new_tokens=NEW,
        seed=5,
        repeats=1,
        texts=lambda i: f" w{i}",
        clock=ticking(),
    )


def test_both_lanes_write_what_the_two_generators_write(model, ids, record):
    one = generate_autoregressive(model, ids, max_new_tokens=NEW)
    seen = []
    many = generate(
        model,
        ids,
        sampler(),
        max_new_tokens=NEW,
        generator=generator(5),
        on_step=lambda s: seen.append(s),
    )
    assert (
        record.autoregressive.tokens == one.tokens[0].tolist()
        and record.canvas.tokens == many.tokens[0].tolist()
    )
    assert [lane.passes[-1] for lane in record.lanes] == [
        out.metrics["forwards"] for out in (one, many)
    ]
    assert record.autoregressive.ids == [[i] for i in one.tokens[0].tolist()]
    assert record.canvas.ids == [s.argmax[0].tolist() for s in seen]
    assert record.canvas.accepted == [s.accepted[0].tolist() for s in seen]
    assert record.canvas.canvas == [k for k, (n,) in enumerate(many.steps) for _ in range(n)]
    assert (
        record.prompt == ids[0].tolist()
        and record.texts[record.prompt[0]] == f" w{record.prompt[0]}"
    )
    assert {i for lane in record.lanes for row in lane.ids for i in row} <= set(record.texts)


def test_stamps_are_the_clocks(record):
    """The start is one look at the clock, every event one more.

    The n-th event stands at n steps of this clock.
    """
    for lane in record.lanes:
        assert lane.seconds == pytest.approx([0.25 * (n + 1) for n in range(len(lane.ids))])
        assert lane.runs == [lane.total_seconds]
        assert lane.tokens_per_second == pytest.approx(NEW / (0.25 * len(lane.ids)))


def test_tokens_are_kept_one_by_one_or_with_the_last_step_of_their_canvas(record):
    assert record.autoregressive.kept == list(range(1, NEW + 1))
    steps = sampler().max_denoising_steps
    assert record.canvas.kept == [0] * (steps - 1) + [C] * steps + [2 * C] * steps + [NEW]


def test_an_end_token_ends_the_lane(model, ids):
    first = generate_autoregressive(model, ids, max_new_tokens=NEW).tokens[0].tolist()
    end = first[4]
    record = race_record(
        model, ids, sampler(), max_new_tokens=NEW, eos_token_id=end, seed=5, repeats=1
    )
    lane = record.autoregressive
    assert (
        lane.tokens == first[: first.index(end) + 1]
        and lane.stop == "end_token"
        and lane.kept[-1] == len(lane.tokens)
    )
    assert len(lane.seconds) == len(lane.tokens) == lane.passes[-1]
    assert record.canvas.kept[-1] == len(record.canvas.tokens) and (
        end not in record.canvas.tokens[:-1]
    )


def test_passes_and_bytes_are_those_of_step_cost_with_the_experts_each_pass_touched(
    model, ids, record
):
    """The experts come from `observe`, pass by pass, in runs of our own.

    The sizes of the passes are written out here.
    """
    size, config = 4, model.config

    def touched(seen) -> float:
        return sum(layer.unique().numel() for layer in seen.expert_index) / len(seen.expert_index)

    def cost(prefix, queries, mode, experts):
        ops = step_cost(
            config,
            prefix=prefix,
            queries=queries,
            mode=mode,
            experts=experts,
            weight_bytes=size,
            kv_bytes=size,
            activation_bytes=size,
        )
        return [
            sum(o.bytes_weights for o in ops),
            sum(o.bytes_kv for o in ops),
            sum(o.bytes_activations for o in ops),
        ]

    expected, total = [], [0.0] * 3
    with torch.no_grad(), observe(model, attention=False) as seen:
        cache, fresh = None, ids
        for n, token in enumerate(record.autoregressive.tokens):
            _, cache = model.next_token_logits(fresh, None, cache)
            part = (
                cost(S + n - 1, 1, "autoregressive", touched(seen))
                if n
                else cost(0, S, "autoregressive", touched(seen))
            )
            total = [a + b for a, b in zip(total, part, strict=True)]
            expected.append(total)
            fresh = torch.tensor([[token]])
    assert record.autoregressive.passes == list(range(1, NEW + 1))
    assert_bytes(record.autoregressive, expected)

    steps, expected, total, counts = [], [], [0.0] * 3, []
    generate(
        model,
        ids,
        sampler(),
        max_new_tokens=NEW,
        generator=generator(5),
        on_step=lambda s: steps.append(s),
    )
    with torch.no_grad(), observe(model, attention=False) as seen:
        cache, fresh, passes = None, ids, 0
        for n, step in enumerate(steps):
            k = record.canvas.canvas[n]
            if step.index == 0:
                before = cache.length if cache else 0
                cache = model.encode(fresh, None, cache)
                part = cost(before, fresh.shape[1], "encode", touched(seen))
                total, passes = [a + b for a, b in zip(total, part, strict=True)], passes + 1
            model.decode(
                step.canvas, cache, None if step.index == 0 else steps[n - 1].scaled_logits
            )
            part = cost(S + k * C, C, "canvas", touched(seen))
            total, passes = [a + b for a, b in zip(total, part, strict=True)], passes + 1
            expected.append(total)
            counts.append(passes)
            fresh = step.argmax
    assert record.canvas.passes == counts
    assert_bytes(record.canvas, expected)


def assert_bytes(lane, expected) -> None:
    assert len(lane.bytes) == len(expected)
    for got, want in zip(lane.bytes, expected, strict=True):
        assert [got[kind] for kind in KINDS] == pytest.approx(want)
    assert sum(lane.bytes_per_token.values()) == pytest.approx(sum(expected[-1]) / len(lane.tokens))


def test_the_run_in_the_middle_is_the_one_that_is_shown(model, ids):
    """Three runs of each lane under a clock that slows down from run to run."""
    looks = itertools.count()

    def clock() -> float:
        return next(looks) ** 2 / 1000

    record = race_record(model, ids, sampler(), max_new_tokens=C, seed=1, repeats=3, clock=clock)
    for lane in record.lanes:
        assert len(set(lane.runs)) == 3 and lane.total_seconds == sorted(lane.runs)[1]


def test_counting_experts_leaves_nothing_behind(model, ids):
    with torch.no_grad(), experts_touched(model) as passes:
        model.encode(ids)
        model.encode(ids[:, :1])
    assert len(passes) == 2 and passes[1] == model.config.top_k_experts and passes[0] >= passes[1]
    assert not any(block.router._forward_hooks for block in model.layers)


def test_a_file_keeps_it_and_names_the_machine(record, tmp_path):
    back = RaceRecord.load(record.save(tmp_path / "race.json"))
    assert back == record
    assert {"device", "threads", "dtype", "torch", "python", "date", "seed", "sampler"} <= set(
        back.meta
    )
    assert back.meta["dtype"] == "float32" and back.meta["device"]
    data = json.loads((tmp_path / "race.json").read_text())
    (tmp_path / "other.json").write_text(json.dumps(data | {"format": "x"}))
    with refused("path", "other.json"):
        RaceRecord.load(tmp_path / "other.json")


def test_a_real_clock_runs_forward(model, ids):
    record = race_record(model, ids, sampler(), max_new_tokens=C, repeats=1)
    for lane in record.lanes:
        assert (
            lane.seconds[0] > 0
            and lane.seconds == sorted(lane.seconds)
            and math.isfinite(lane.tokens_per_second)
        )


@pytest.mark.parametrize(
    ("change", "named"),
    [({"repeats": 0}, "repeats"), ({"repeats": 1.5}, "repeats"), ({"rows": 2}, "ids")],
)
def test_bad_input_is_named(model, unchecked, change, named):
    prompt = random_ids(change.pop("rows", 1), 4)
    with refused(named):
        race_record(model, prompt, sampler(), max_new_tokens=C, **change)
