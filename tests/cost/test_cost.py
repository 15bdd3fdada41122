"""The cost model against the model itself (parameters, FLOPs, cache), against arithmetic, and
against what was published.
"""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
import torch
from tiny import B, C, V, W, random_ids, refused, tiny
from torch.utils.flop_counter import FlopCounterMode

from diffgemma_lite import Config, DiffusionGemma
from diffgemma_lite.attention import decoder_masks
from diffgemma_lite.config import FULL, PRESETS, SLIDING
from diffgemma_lite.cost import (
    PRECISIONS,
    PUBLISHED,
    OpCost,
    active_parameters,
    by_part,
    calibrate,
    crossover,
    distinct_experts,
    facts,
    fit_skew,
    floor,
    parameters,
    predict,
    step_cost,
)
from diffgemma_lite.cost.hardware import HARDWARE, Hardware, Sourced
from diffgemma_lite.cost.ops import CANVAS_PASSES
from diffgemma_lite.cost.prediction import REPORT_PREFIX, step_ops, step_seconds
from diffgemma_lite.cost.routing import inclusion
from diffgemma_lite.tokenizer import Tokenizer
from diffgemma_lite.trace.router import routing_record

BIG = Config.preset("26b_a4b")


@pytest.fixture(scope="module")
def fitted():
    return calibrate(BIG)


# ---- parameters ----------------------------------------------------------------------------------


@pytest.mark.parametrize("preset", PRESETS)
def test_parameters_are_those_of_the_model(preset):
    model = DiffusionGemma(Config.preset(preset), device="meta")
    counted = parameters(model.config)
    assert sum(counted.values()) == sum(p.numel() for p in model.parameters())
    named = {name: p.numel() for name, p in model.named_parameters()}
    own = {
        "embedding": "embed_tokens",
        "attention": "_proj.weight",
        "dense_mlp": ".mlp.",
        "router": ".router.",
        "experts": ".experts.",
        "self_conditioning": "self_conditioning.",
    }
    for part, mark in own.items():
        inside = [
            n
            for name, n in named.items()
            if mark in name and (part != "attention" or ".self_attn." in name)
        ]
        assert counted[part] == sum(inside), part


def test_the_published_counts_and_what_they_count():
    parts = parameters(BIG)
    assert sum(parts.values()) == 25_250_986_752
    without = sum(parts.values()) - parts["self_conditioning"]
    assert (
        round(without / 1e9, 1) == PUBLISHED["total"] / 1e9 != round(sum(parts.values()) / 1e9, 1)
    )
    active = sum(active_parameters(BIG).values())
    assert 0.995 < active / PUBLISHED["active"] < 1
    assert (
        active_parameters(BIG)["experts"] * BIG.num_experts == parts["experts"] * BIG.top_k_experts
    )


# ---- FLOPs ---------------------------------------------------------------------------------------


def counted_flops(model: DiffusionGemma, mode: str, prefix: int, queries: int) -> float:
    with torch.no_grad():
        cache = model.encode(random_ids(B, prefix)) if prefix else None
        ids, believed = random_ids(B, queries, seed=1), torch.randn(B, queries, V)
        with FlopCounterMode(display=False) as counter:
            if mode == "canvas":
                model.decode(ids, cache, believed)
            elif mode == "encode":
                model.encode(ids, cache=cache)
            else:
                model.next_token_logits(ids, cache=cache)
    return counter.get_total_flops()


CASES = [
    ("canvas", 5, C), ("canvas", 3 * W, C), ("canvas", 20, 3), ("autoregressive", 5, 1),
    ("autoregressive", 30, 1), ("draft", 30, 5), ("encode", 0, 30), ("encode", 12, C),
]  # fmt: skip


@pytest.mark.parametrize(("mode", "prefix", "queries"), CASES)
def test_flops_are_what_torch_counts(mode, prefix, queries):
    model = tiny().set_kernels(experts="loop")
    ops = step_cost(model.config, prefix=prefix, queries=queries, batch=B, mode=mode)
    ours = sum(op.flops for op in ops if op.counted_by_torch)
    assert ours == pytest.approx(counted_flops(model, mode, prefix, queries), rel=0.01)


def test_torch_counts_a_grouped_product_as_nothing():
    """PITFALLS: a counter on the fast path misses the experts, most of the work.

    So the plain loop is what it is held to.
    """
    model = tiny().set_kernels(experts="grouped")
    ops = step_cost(model.config, prefix=20, queries=C, batch=B)
    experts = sum(op.flops for op in ops if op.counted_by_torch and op.part == "experts")
    ours = sum(op.flops for op in ops if op.counted_by_torch)
    assert experts > 0
    assert counted_flops(model, "canvas", 20, C) == pytest.approx(ours - experts)


def test_what_torch_does_not_count_is_named_and_counted_here():
    ops = step_cost(Config.preset("tiny"), prefix=20, queries=C, batch=B)
    uncounted = {op.name.split(".")[-1] for op in ops if not op.counted_by_torch}
    assert uncounted == {
        "embed_tokens",
        "softmax",
        "gelu_gate",
        "norms",
        "norm",
        "qk_norm_rope",
        "router_norm",
        "top_k",
        "expert_gelu_gate",
        "combine",
        "soft_cap",
        "sampling",
    }
    assert all(op.flops > 0 and op.bytes_activations > 0 for op in ops)
    big = step_cost(BIG, prefix=4096, queries=256)
    assert sum(op.flops for op in big if not op.counted_by_torch) < 0.01 * sum(
        op.flops for op in big
    )


# ---- bytes ---------------------------------------------------------------------------------------


def test_a_step_that_touches_every_expert_reads_every_weight():
    """The table three times: rows of the canvas, the soft embedding, the head."""
    c = Config.preset("tiny")
    ops = step_cost(c, prefix=20, queries=C, batch=B, experts=c.num_experts, weight_bytes=4)
    table, rows = c.vocab_size * c.hidden_size, B * C * c.hidden_size
    assert sum(op.bytes_weights for op in ops) == 4 * (sum(parameters(c).values()) + table + rows)


@pytest.mark.parametrize("prefix", [3, W - 1, W, 5 * W])
def test_the_cache_read_is_the_slice_the_decoder_takes(prefix):
    model = tiny()
    cache = model.encode(random_ids(B, prefix))
    masks = decoder_masks(model.config, cache, C)
    layers = zip(cache.keys, cache.values, model.config.layer_types, strict=True)
    read = sum(t[:, :, masks[kind].first :].numel() for k, v, kind in layers for t in (k, v))
    ops = step_cost(model.config, prefix=prefix, queries=C, batch=B, kv_bytes=4)
    assert sum(op.bytes_kv for op in ops) == 4 * read


def test_a_causal_pass_also_writes_the_cache():
    model = tiny()
    short, long = model.encode(random_ids(B, 3)), model.encode(random_ids(B, 5))
    written = sum(
        b.numel() - a.numel()
        for a, b in zip(short.keys + short.values, long.keys + long.values, strict=True)
    )
    ops = step_cost(model.config, prefix=0, queries=2, batch=B, mode="encode", kv_bytes=4)
    assert sum(op.bytes_kv for op in ops) == 4 * written


def test_bytes_of_the_26b_shape_are_the_published_ones():
    """8,192 bytes of cache a token on a sliding layer, 4,096 on a full one; 268 MB of float32
    logits for a canvas.
    """
    ops = {op.name: op for op in step_cost(BIG, prefix=1000, queries=256)}
    by_kind = {
        kind: ops[f"layers.{BIG.layer_types.index(kind)}.attention"].bytes_kv / 1000
        for kind in (SLIDING, FULL)
    }
    assert by_kind == {SLIDING: 8192, FULL: 4096}
    assert ops["sampling"].bytes / CANVAS_PASSES == 268_435_456
    far = {op.name: op for op in step_cost(BIG, prefix=100_000, queries=256)}
    assert far["layers.0.attention"].bytes_kv == 1023 * 8192  # the window, however long the prefix
    assert far["layers.5.attention"].bytes_kv == 100_000 * 4096


def test_bytes_follow_the_precision_of_each_part():
    whole, mixed = (
        by_part(step_cost(BIG, prefix=10, queries=1, mode="autoregressive", weight_bytes=w))
        for w in (2.0, {"experts": 0.5})
    )
    assert mixed["experts"].bytes_weights == whole["experts"].bytes_weights / 4
    assert mixed["attention"] == whole["attention"]
    assert (
        by_part(step_cost(BIG, prefix=10, queries=1, weight_bytes={"embedding": 1.0}))[
            "head"
        ].bytes_weights
        == BIG.vocab_size * BIG.hidden_size
    )


def test_modes_differ_in_what_they_do():
    def parts(mode, queries=1):
        return by_part(step_cost(BIG, prefix=100, queries=queries, mode=mode))

    assert set(parts("canvas")) - set(parts("autoregressive")) == {"self_conditioning"}
    assert set(parts("autoregressive")) - set(parts("encode")) == {"head", "sampling"}
    assert parts("draft", 5)["head"].flops == 5 * parts("autoregressive")["head"].flops
    op = OpCost("p", "n", 12.0, 1.0, 2.0, 3.0, True)
    assert (op.bytes, op.intensity, OpCost("p", "n", 1.0, 0, 0, 0, True).intensity) == (
        6.0,
        2.0,
        math.inf,
    )


# ---- distinct experts ----------------------------------------------------------------------------


def test_distinct_experts_under_uniform_routing_is_the_formula_and_a_simulation():
    c = Config.preset("tiny", num_experts=16, top_k_experts=3)
    assert distinct_experts(c, 0) == 0
    assert distinct_experts(c, 1) == pytest.approx(3)
    assert distinct_experts(c, 5) == pytest.approx(16 * (1 - (1 - 3 / 16) ** 5))
    assert distinct_experts(c, 6, texts=3) == pytest.approx(
        distinct_experts(c, 6)
    )  # equal chances: texts make no difference
    rng = np.random.default_rng(0)
    seen = [len(np.unique(rng.random((5, 16)).argsort(1)[:, :3])) for _ in range(4000)]
    assert np.mean(seen) == pytest.approx(distinct_experts(c, 5), abs=0.05)


@pytest.mark.parametrize("skew", [0.5, 1.5])
def test_skewed_routing_is_the_race_it_says_it_is(skew):
    c = Config.preset("tiny", num_experts=32, top_k_experts=4)
    assert sum(inclusion(c, skew)) == pytest.approx(4)
    rates = np.arange(1, 33.0) ** -skew
    arrivals = np.random.default_rng(0).exponential(size=(3000, 8, 32)) / rates
    seen = [len(np.unique(text.argsort(1)[:, :4])) for text in arrivals]
    assert np.mean(seen) == pytest.approx(
        distinct_experts(c, 8, skew), rel=0.04
    )  # a race to a fixed time, not to a count of 4


def test_skew_is_fitted_to_the_published_84():
    skew = fit_skew(BIG, 256, 84)
    assert distinct_experts(BIG, 256, skew) == pytest.approx(84, abs=1e-6)
    assert distinct_experts(BIG, 256) > 127.9  # equal chances would touch all 128
    assert distinct_experts(BIG, 1, skew) == pytest.approx(8)
    counts = [distinct_experts(BIG, n, skew) for n in (1, 4, 16, 64, 256, 1024)]
    assert counts == sorted(counts)
    assert (
        distinct_experts(BIG, 512, skew) < distinct_experts(BIG, 512, skew, texts=2) < 128
    )  # other texts, other favourites


def test_a_trained_router_touches_fewer_experts_than_the_formula_says():
    """The shipped model on a text of its own corpus.

    Nearly all 16 by the formula, measured far fewer.
    """
    folder = Path(__file__).resolve().parents[2] / "assets" / "checkpoints" / "python-small"
    model = DiffusionGemma.from_pretrained(folder, dtype=torch.float32)
    text = "for name in names:\n    total = total + values[name]\n" * 4
    ids = torch.tensor([Tokenizer.load(folder).encode(text)[: model.config.canvas_length]])
    counted = routing_record(model, ids, model.encode(ids[:, :8])).distinct.mean(0)
    formula = [distinct_experts(model.config, n) for n in range(1, len(counted) + 1)]
    assert counted[0] == formula[0] == model.config.top_k_experts
    assert len(counted) >= 32 and counted[-1] < 0.9 * formula[-1]


# ---- floor ---------------------------------------------------------------------------------------

TOY = Hardware(
    "toy",
    Sourced(10.0, "made up"),
    {"bf16": Sourced(100.0, "made up"), "fp8": Sourced(200.0, "made up")},
)


def test_floor_is_the_longer_of_moving_and_computing_op_by_op():
    # 3 s to move, 1 s to compute in bf16
    moves = OpCost("experts", "a", 100.0, 20.0, 10.0, 40.0, True)
    computes = OpCost("head", "b", 800.0, 20.0, 0.0, 0.0, True)  # 2 s to move, 8 s to compute
    assert floor([moves, computes], TOY) == 3 + 8
    assert floor([moves, computes], TOY, "fp8") == 3 + 4
    assert floor([moves, computes], TOY, {"head": "fp8"}) == 3 + 4
    assert floor([moves, computes], TOY, activations=True) == 7 + 8
    with refused("dtype", "fp4", "bf16, fp8"):
        floor([moves], TOY, "fp4")


def test_no_published_row_beats_the_floor(fitted):
    """Every row that states its tokens per forward.

    Then again with no more experts than one user needs.
    """
    shown = predict(BIG, calibration=fitted)
    stated = [r for r in facts.published_throughput() if r["tokens_per_forward"]]
    assert [p.row for p in shown] == stated  # none was left out
    assert all(p.published < p.bound for p in shown)
    for p in shown:  # the same with the fewest experts possible: those of one user
        canvas = p.row["mode"] == "diffusion"
        precision = PRECISIONS[p.row["precision"]]
        step = (
            dict(queries=256, mode="canvas", experts=84)
            if canvas
            else dict(queries=1, mode="autoregressive", experts=8)
        )
        stored = dict(weight_bytes=precision.weight_bytes, kv_bytes=precision.kv_bytes)
        ops = step_cost(BIG, prefix=1024, batch=p.users, **step, **stored)
        least = floor(ops, HARDWARE[p.row["hardware"]], precision.dtype)
        assert p.published < p.users * float(p.row["tokens_per_forward"]) / least
    faster = [dict(p.row, tokens_per_second=str(8 * p.published)) for p in shown if p.users == 1]
    # the bound is near enough to be broken
    assert all(p.published > p.bound for p in predict(BIG, faster, fitted))


def test_a_bound_that_counts_activations_would_be_no_bound(fitted):
    """The reason `floor` leaves them out: the report's experts take 4.66 ms."""
    ops = step_ops(
        BIG, "canvas", PRECISIONS["FP8"], prefix=REPORT_PREFIX, batch=1, skew=fitted.skew
    )
    experts = [op for op in ops if op.part == "experts"]
    measured = facts.single_user("canvas experts") * 1e-3
    h100, dtype = HARDWARE["H100"], PRECISIONS["FP8"].dtype
    assert floor(experts, h100, dtype) < measured < floor(experts, h100, dtype, activations=True)


# ---- prediction ----------------------------------------------------------------------------------


def test_the_four_numbers_reproduce_their_figures(fitted):
    assert distinct_experts(BIG, 256, fitted.skew) == pytest.approx(
        facts.single_user("canvas distinct experts per layer")
    )
    token = step_ops(
        BIG, "autoregressive", PRECISIONS["FP8"], prefix=REPORT_PREFIX, batch=1, skew=fitted.skew
    )
    assert 1 / step_seconds(token, HARDWARE["H100"], PRECISIONS["FP8"], fitted, 1) == pytest.approx(
        204, rel=1e-6
    )
    canvas = step_ops(
        BIG, "canvas", PRECISIONS["FP8"], prefix=REPORT_PREFIX, batch=1, skew=fitted.skew
    )

    def milliseconds(*parts, positions=0):
        some = [op for op in canvas if op.part in parts]
        return 1e3 * step_seconds(some, HARDWARE["H100"], PRECISIONS["FP8"], fitted, positions)

    small = 1e3 * 60 * fitted.launch_seconds  # the gates and sums between the products
    assert milliseconds("experts") == pytest.approx(4.66 + small)
    # soft-cap and the belief's softmax are in the cost per position; the norms of self-conditioning
    # come on top of 3.06
    assert milliseconds("head", "self_conditioning", "sampling", positions=256) == pytest.approx(
        3.06, abs=0.05
    )
    left_out = facts.single_user("canvas attention") + facts.single_user(
        "canvas attention output projection"
    )
    assert 1.5 < left_out / milliseconds("attention") < 2  # what prediction.py says of attention
    assert 0.5 < fitted.bandwidth_fraction < 1
    assert 1e-6 < fitted.launch_seconds < 1e-4


def test_the_head_must_be_inside_the_reports_sampling():
    """Its parts leave less of the total than the head's floor, so the head has to be in one of
    them.
    """
    rows = {r["quantity"]: float(r["value"]) for r in facts.rows("report_single_user.csv")}
    for step in ("canvas", "autoregressive"):
        named = sum(
            rows[f"{step} {part}"]
            for part in (
                "experts",
                "sampling",
                "attention",
                "shared expert",
                "attention output projection",
                "norm and route",
            )
        )
        head = [
            op
            for op in step_cost(BIG, prefix=1, queries=1, mode="autoregressive")
            if op.part == "head"
        ]
        assert rows[f"{step} step on the GPU"] - named < 1e3 * floor(head, HARDWARE["H100"])


def test_rows_never_seen_come_out_within_30_percent(fitted):
    goal = [p for p in predict(BIG, calibration=fitted) if p.row["hardware"] in ("H100", "H200")]
    assert len(goal) == 20 and sum(p.fitted for p in goal) == 1
    misses = {
        (p.row["hardware"], p.row["mode"], p.users): round(p.ratio, 2)
        for p in goal
        if not 0.7 <= p.ratio <= 1.3
    }
    assert not misses
    assert {p.users for p in goal if p.row["mode"] == "diffusion"} == {1, 2, 4, 8, 16}


def test_the_crossover_is_predicted_between_16_and_64_users(fitted):
    users = crossover(BIG, fitted)
    assert users is not None and 16 <= users <= 64
    assert crossover(BIG, fitted, most=users) == users
    assert crossover(BIG, fitted, most=users - 1) is None


def test_published_rates_that_were_not_fitted_cannot_move_a_prediction(fitted):
    rows = facts.published_throughput()
    rng = np.random.default_rng(0)
    disturbed = [
        dict(r, tokens_per_second=str(float(r["tokens_per_second"]) * rng.uniform(0.2, 5)))
        for r in rows
    ]
    before, after = predict(BIG, rows, fitted), predict(BIG, disturbed)
    assert [p.predicted for p in before] == [p.predicted for p in after]
    assert all(a.published != b.published for a, b in zip(before, after, strict=True))
    used = {
        "canvas experts",
        "autoregressive rate",
        "canvas sampling",
        "canvas distinct experts per layer",
    }
    figures = {r["quantity"]: float(r["value"]) for r in facts.rows("report_single_user.csv")}
    unused = {name: 3 * value for name, value in figures.items() if name not in used}
    assert len(unused) == len(figures) - 4 and calibrate(BIG, unused) == fitted
    for name in used:  # and each of the four does move it
        assert calibrate(BIG, {name: 0.9 * figures[name]}) != fitted


# ---- input ---------------------------------------------------------------------------------------


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize(
    ("changes", "argument"),
    [
        ({"prefix": -1}, "prefix"),
        ({"queries": 0}, "queries"),
        ({"batch": 0}, "batch"),
        ({"mode": "blocks"}, "mode"),
        ({"experts": 0}, "experts"),
        ({"experts": 5}, "experts"),
        ({"weight_bytes": {"tower": 1}}, "weight_bytes"),
        ({"weight_bytes": 0}, "weight_bytes"),
        ({"queries": 1.5}, "queries"),
    ],
)
def test_sizes_that_make_no_step_are_refused(changes, argument):
    with refused(argument):
        step_cost(Config.preset("tiny"), **(dict(prefix=4, queries=2) | changes))


def test_counts_that_cannot_be_are_refused():
    with refused("tokens", "-1"):
        distinct_experts(BIG, -1)
    with refused("skew", "-0.1"):
        distinct_experts(BIG, 4, -0.1)
    with refused("texts", "0"):
        distinct_experts(BIG, 4, texts=0)
    for impossible in (8, 200):
        with refused("distinct", str(impossible)):
            fit_skew(BIG, 256, impossible)
    with refused("quantity", "no such"):
        facts.single_user("no such")
