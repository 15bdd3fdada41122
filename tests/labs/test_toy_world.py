"""The enumerable world: Bayes against plain loops, the bound against the information it bounds,
exact against sampled.
"""

from __future__ import annotations

import itertools
import math

import pytest
import torch
from tiny import generator, refused

from diffgemma_lite import SamplerConfig
from diffgemma_lite.labs.toy_world.sampler import PROCESSES, exact, measured_distance, sample
from diffgemma_lite.labs.toy_world.world import (
    World,
    chain,
    distance,
    entropy,
    independent,
    one_step,
    phrases,
    total_correlation,
)
from diffgemma_lite.sampler import accept, token_entropy


def doubles(noise_words: int = 2) -> World:
    return phrases(
        {"so so": 0.42, "bye bye": 0.31, "no no": 0.21}, slips=0.06, noise_words=noise_words
    )


def random_world(words: int, length: int, seed: int = 0) -> World:
    weights = torch.rand(words**length, generator=generator(seed), dtype=torch.float64) ** 4
    return World(weights / weights.sum(), tuple(f"w{i}" for i in range(words)), length)


def settings(steps: int, bound: float = 0.1, **changes) -> SamplerConfig:
    given = dict(
        max_denoising_steps=steps,
        entropy_bound=bound,
        t_max=1.0,
        t_min=1.0,
        confidence_threshold=None,
    )
    return SamplerConfig(**(given | changes))


# ---- the world -----------------------------------------------------------------------------------


def test_phrases_and_slips_are_where_they_were_put():
    world = doubles(noise_words=1)
    assert world.words == ("so", "bye", "no", "#0") and len(world.joint) == 16
    p = {world.text(i): float(world.joint[i]) for i in range(16)}
    assert (
        p["so so"] == 0.42 and p["bye so"] == pytest.approx(0.01) and p["so #0"] == p["#0 #0"] == 0
    )
    assert float(world.joint.sum()) == pytest.approx(1)
    assert [world.number(world.canvases[i]).item() for i in range(16)] == list(range(16))


def test_a_chain_of_words():
    world = chain({"a": 0.5, "b": 0.3, "c": 0.2}, 0.8, 3, noise_words=1)
    p = {world.text(i): float(world.joint[i]) for i in range(64)}
    assert (
        p["a a a"] == pytest.approx(0.5 * 0.64)
        and p["b c c"] == pytest.approx(0.3 * 0.1 * 0.8)
        and p["a #0 a"] == 0
    )
    assert float(world.joint.sum()) == pytest.approx(1)


@pytest.mark.parametrize(
    ("joint", "words", "length", "parts"),
    [
        (
            torch.ones(4, dtype=torch.float64),
            ("a", "b"),
            2,
            ["joint", "sum 4.0", "4 probabilities"],
        ),
        (
            torch.tensor([0.5, 0.5], dtype=torch.float64),
            ("a", "b"),
            2,
            ["joint", "4 probabilities"],
        ),
        (torch.tensor([1.5, -0.5], dtype=torch.float64), ("a", "b"), 1, ["joint"]),
        (
            torch.ones(1, dtype=torch.float64),
            tuple("abcdefghij"),
            4,
            ["words, length", "10000 texts", "4096"],
        ),
    ],
)
def test_a_table_that_is_no_distribution_is_refused(joint, words, length, parts):
    with refused(*parts):
        World(joint, words, length)


def test_phrases_of_different_lengths_are_refused():
    with refused("probabilities", r"\[1, 2\]"):
        phrases({"so so": 0.5, "no": 0.5})


# ---- the exact denoiser --------------------------------------------------------------------------


def by_hand(world: World, likelihood) -> torch.Tensor:
    """p(x_0 at a position | x_t) with loops over every pair of texts."""
    v, c = len(world.words), world.length
    every = list(itertools.product(range(v), repeat=c))
    belief = torch.zeros(len(every), c, v, dtype=torch.float64)
    for i, seen in enumerate(every):
        weights = [float(world.joint[j]) * likelihood(seen, text) for j, text in enumerate(every)]
        for text, weight in zip(every, weights, strict=True):
            for position, word in enumerate(text):
                belief[i, position, word] += weight / sum(weights)
    return belief


@pytest.mark.parametrize(("words", "length"), [(3, 2), (2, 3), (4, 1)])
@pytest.mark.parametrize("t", [0.05, 0.5, 1.0])
def test_the_denoiser_told_the_level_is_bayes_rule(words, length, t):
    world = random_world(words, length)
    rate = {True: 1 - t + t / words, False: t / words}
    want = by_hand(
        world, lambda seen, text: math.prod(rate[a == b] for a, b in zip(seen, text, strict=True))
    )
    torch.testing.assert_close(world.belief(t), want)


@pytest.mark.parametrize(("words", "length"), [(3, 2), (2, 3), (2, 4)])
def test_the_denoiser_not_told_the_level_averages_over_all_of_them(words, length):
    world = random_world(words, length)
    levels = [(i + 0.5) / 4000 for i in range(4000)]

    def likelihood(k):  # the midpoint rule; nothing like the quadrature of the package
        return sum((1 - t + t / words) ** k * (t / words) ** (length - k) for t in levels) / len(
            levels
        )

    table = [likelihood(k) for k in range(length + 1)]
    want = by_hand(
        world, lambda seen, text: table[sum(a == b for a, b in zip(seen, text, strict=True))]
    )
    torch.testing.assert_close(world.belief(), want, rtol=1e-5, atol=1e-7)


def test_the_denoiser_of_masks_conditions_on_what_is_written():
    world = doubles(noise_words=1)
    belief, mask = world.belief(mask_id=3), 3

    def at(*ids):
        return belief[world.number(torch.tensor(ids))]

    torch.testing.assert_close(at(mask, mask), world.marginals())
    row = world.joint.view(4, 4)[1]
    torch.testing.assert_close(at(1, mask)[1], row / row.sum())
    assert at(1, mask)[0].tolist() == pytest.approx([0, 1, 0, 0]) and at(1, 2)[
        1
    ].tolist() == pytest.approx([0, 0, 1, 0])


def test_pure_noise_says_nothing_and_a_level_of_zero_is_refused():
    world = doubles()
    torch.testing.assert_close(world.belief(1.0), world.marginals().expand(25, 2, 5))
    with refused("t", "got 0"):
        world.belief(0.0)


# ---- what drawing independently costs ------------------------------------------------------------


def test_one_step_is_the_product_of_the_marginals():
    world = random_world(3, 2)
    table = world.joint.view(3, 3)
    want = table.sum(1)[:, None] * table.sum(0)[None]
    torch.testing.assert_close(one_step(world), want.flatten())
    assert distance(one_step(world), world.joint) == pytest.approx(
        float((want - table).abs().sum() / 2)
    )


def test_total_correlation_of_two_positions_is_their_mutual_information():
    world = random_world(3, 2)
    table, product = world.joint.view(3, 3), one_step(world).view(3, 3)
    information = float((table * (table / product).log()).sum())
    both, one, none = (torch.tensor([row]) for row in ([True, True], [False, True], [False, False]))
    assert float(total_correlation(world, world.joint[None], both)) == pytest.approx(information)
    for few in (one, none):
        assert float(total_correlation(world, world.joint[None], few)) == pytest.approx(
            0, abs=1e-12
        )


def test_total_correlation_looks_at_the_chosen_positions_of_each_row_only():
    world, pair = random_world(2, 4, seed=3), random_world(2, 2, seed=4)
    inner = pair.joint.view(2, 2)
    apart = torch.einsum(
        "ad,b,c->abcd", inner, *torch.tensor([[0.3, 0.7], [0.6, 0.4]], dtype=torch.float64)
    )
    rows = torch.stack([apart.flatten(), apart.flatten(), world.joint])
    chosen = torch.tensor([[True, False, True, True], [False, True, True, False], [True] * 4])
    got = total_correlation(world, rows, chosen)
    information = float(
        total_correlation(pair, pair.joint[None], torch.ones(1, 2, dtype=torch.bool))
    )
    assert got[:2].tolist() == pytest.approx([information, 0], abs=1e-12)
    assert float(got[2]) == pytest.approx(
        float((world.joint * (world.joint / one_step(world)).log()).sum())
    )


@pytest.mark.parametrize("bound", [0.0, 0.1, 0.6, 1.5, 10.0])
@pytest.mark.parametrize(
    "world",
    [
        doubles(),
        random_world(3, 3),
        random_world(2, 5, seed=1),
        chain({"a": 0.6, "b": 0.4}, 0.9, 4),
    ],
)
def test_the_bound_bounds_the_information_of_what_is_accepted(world, bound):
    """Information lost <= sum of entropies without the largest <= bound, on every canvas."""
    belief = world.belief()
    unsure = token_entropy(belief.log().float()).double()
    accepted = accept(unsure, bound)
    lost = total_correlation(world, world.texts_given(), accepted)
    budget = (unsure * accepted).sum(-1) - (unsure * accepted).amax(-1)
    assert bool((lost <= budget + 1e-6).all()) and bool((budget <= bound + 1e-6).all())
    assert bool((lost >= -1e-9).all()) and (bound > 0 or float(lost.max()) < 1e-9)
    if bound == 10.0:
        assert bool(accepted.all()) and float(lost.max()) > 0.01


# ---- what a sampler writes -----------------------------------------------------------------------


def agree(world: World, texts: torch.Tensor, samples: torch.Tensor) -> bool:
    """Every text as often as expected, up to five standard deviations."""
    n = len(samples)
    share = torch.bincount(world.number(samples), minlength=len(texts)) / n
    return bool(
        ((share - texts).abs() <= 5 * (texts * (1 - texts) / n).clamp(min=0).sqrt() + 3 / n).all()
    )


@pytest.mark.parametrize("process", PROCESSES)
@pytest.mark.parametrize("bound", [0.1, 0.5, 3.0])
@pytest.mark.parametrize("steps", [1, 2, 5])
def test_what_the_step_functions_write_is_what_was_enumerated(process, bound, steps):
    world, s = doubles(), settings(steps, bound)
    outcome = exact(world, s, process)
    assert float(outcome.texts.sum()) == pytest.approx(1) and bool((outcome.texts >= -1e-12).all())
    samples = sample(world, s, 20_000, process, generator=generator(steps))
    # what is committed is the best guess, not the last draw
    if process == "posterior" and steps == 1:
        assert not agree(world, exact(world, s, process, commit="canvas").texts, samples)
    assert agree(world, outcome.texts, samples)


@pytest.mark.parametrize(
    "changes",
    [dict(confidence_threshold=0.3), dict(t_max=0.8, t_min=0.4, confidence_threshold=0.05)],
)
@pytest.mark.parametrize("told", [True, False])
def test_the_stop_rule_and_the_temperatures_are_enumerated_too(changes, told):
    world, s = doubles(noise_words=9), settings(6, 1.0, **changes)
    outcome, endless = exact(world, s, told=told), exact(world, settings(6, 1.0), told=told)
    assert outcome.steps < 5.9 and endless.steps == pytest.approx(6)
    assert distance(outcome.texts, endless.texts) > 0.005
    assert agree(world, outcome.texts, sample(world, s, 20_000, told=told, generator=generator()))


def test_one_step_of_the_chain_by_hand():
    """Two steps, bound 0: the surest position is drawn from the belief, the other from all words,
    and the argmax written.
    """
    world, v = doubles(noise_words=1), 4
    belief, want = world.belief(), torch.zeros(16, dtype=torch.float64)
    for i, seen in enumerate(itertools.product(range(v), repeat=2)):
        unsure = token_entropy(belief[i].log().float()[None])[0]
        kept = 0 if unsure[0] <= unsure[1] else 1
        for a, b in itertools.product(range(v), repeat=2):
            chance = 1.0
            for position, word in enumerate((a, b)):
                chance *= float(belief[i, position, word]) if position == kept else 1 / v
            best = belief[world.number(torch.tensor([a, b]))].argmax(-1)
            want[world.number(best)] += chance / 16
        assert seen == tuple(world.canvases[i].tolist())
    torch.testing.assert_close(exact(world, settings(2, 0.0)).texts, want)


def test_masked_one_at_a_time_is_exact_and_all_at_once_is_the_product():
    for world in (doubles(1), chain({"a": 0.5, "b": 0.3, "c": 0.2}, 0.8, 4, noise_words=1)):
        one_at_a_time = exact(world, settings(world.length, 0.0), "masked")
        assert distance(
            one_at_a_time.texts, world.joint
        ) < 1e-9 and one_at_a_time.steps == pytest.approx(world.length)
        at_once = exact(world, settings(world.length, 100.0), "masked")
        torch.testing.assert_close(at_once.texts, one_step(world))
        assert at_once.steps == pytest.approx(1)


@pytest.mark.parametrize("bound", [0.0, 0.4, 0.9, 1.6, 2.5])
def test_what_masked_decoding_loses_is_at_most_the_bound_in_each_step(bound):
    """KL(joint | sampler) <= steps x bound, once no schedule forces more than the bound allows."""
    world = chain({"a": 0.5, "b": 0.3, "c": 0.2}, 0.8, 4, noise_words=1)
    texts = exact(world, settings(4, bound), "masked").texts
    inside = world.joint > 0
    lost = float((world.joint[inside] * (world.joint[inside] / texts[inside]).log()).sum())
    assert -1e-9 <= lost <= 4 * bound + 1e-9
    assert (lost > 0.02) == (bound >= 0.9)


def test_the_way_back_along_the_noise_comes_closer_with_more_steps():
    found = [
        distance(exact(doubles(9), settings(n), "posterior").texts, doubles(9).joint)
        for n in (1, 4, 16, 64)
    ]
    assert all(b < a / 1.5 for a, b in itertools.pairwise(found)), found


def test_wrong_arguments_are_named():
    with refused("process", "'euler'", "posterior"):
        exact(doubles(), settings(2), "euler")
    with refused("commit", "'noise'"):
        exact(doubles(), settings(2), commit="noise")
    with refused("world", "'no'", "mask"):
        sample(doubles(0), settings(2), 3, "masked")
    with refused("stability_threshold", "got 2"):
        exact(doubles(), settings(2, confidence_threshold=0.1, stability_threshold=2))


# ---- the interval --------------------------------------------------------------------------------


def test_the_interval_covers_the_true_distance_about_nineteen_times_in_twenty():
    world, s, hits, sides = doubles(9), settings(2, 2.0), 0, []
    true = distance(exact(world, s).texts, world.joint)
    for seed in range(40):
        m = measured_distance(
            world, sample(world, s, 2000, generator=generator(seed)), resamples=400, seed=seed
        )
        assert m["n"] == 2000 and m["low"] <= m["distance"] <= m["high"] + 0.02
        hits += m["low"] <= true <= m["high"]
        sides.append(m["high"] - m["low"])
    assert 34 <= hits <= 40 and 0.01 < sum(sides) / 40 < 0.08


def test_samples_of_the_joint_itself_are_near_it():
    world = doubles(9)
    drawn = torch.multinomial(world.joint, 20_000, replacement=True, generator=generator())
    measured = measured_distance(world, world.canvases[drawn])
    assert measured["low"] < 0.01 and measured["high"] < 0.02
    assert measured == measured_distance(world, world.canvases[drawn])


def test_the_product_and_the_entropy():
    world = random_world(3, 2)
    each = torch.tensor([[[0.2, 0.8, 0.0], [0.5, 0.25, 0.25]]], dtype=torch.float64)
    made = independent(world, each)[0].view(3, 3)
    torch.testing.assert_close(made, each[0, 0][:, None] * each[0, 1][None])
    want = entropy(each[0]).sum()
    torch.testing.assert_close(entropy(made.flatten()), want)
