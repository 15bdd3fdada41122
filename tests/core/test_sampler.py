"""The step function and its parts, each against a slower way of saying the same."""

import math
from dataclasses import fields, replace

import pytest
import torch
from tiny import B, C, V, confident, generator, random_ids, refused, sampler

from diffgemma_lite import SamplerConfig
from diffgemma_lite.noise import uniform_tokens
from diffgemma_lite.sampler import (
    Step,
    accept,
    denoise_step,
    draw_tokens,
    renoise,
    running,
    should_stop,
    temperature_at,
    token_entropy,
)


def logits_of(seed: int = 0, spread: float = 1.5, shape=(B, C, V)) -> torch.Tensor:
    return torch.randn(*shape, generator=generator(seed)) * spread


# ---- temperature ---------------------------------------------------------------------------------


@pytest.mark.parametrize("steps", [1, 2, 12, 48])
def test_temperature_starts_at_t_max_and_ends_one_step_above_t_min(steps):
    """Pitfall 16."""
    s = SamplerConfig(max_denoising_steps=steps, t_max=0.8, t_min=0.4)
    assert temperature_at(0, s) == pytest.approx(0.8, rel=1e-6)
    assert temperature_at(steps - 1, s) == pytest.approx(0.4 + 0.4 / steps, rel=1e-6)
    taus = [temperature_at(n, s) for n in range(steps)]
    assert taus == pytest.approx([0.4 + 0.4 * (steps - n) / steps for n in range(steps)], rel=1e-6)


def test_a_constant_temperature():
    s = SamplerConfig(max_denoising_steps=5, t_max=1.0, t_min=1.0)
    assert {temperature_at(n, s) for n in range(5)} == {1.0}


@pytest.mark.parametrize("step", [-1, 5])
def test_temperature_of_a_step_that_does_not_exist(step):
    with refused("step", str(step), "takes 0 to 4"):
        temperature_at(step, SamplerConfig(max_denoising_steps=5))


# ---- entropy -------------------------------------------------------------------------------------


def test_entropy_by_hand():
    p = torch.tensor([0.5, 0.25, 0.125, 0.125])
    # nats, not bits
    assert token_entropy(p.log().view(1, 1, 4)).item() == pytest.approx(
        1.75 * math.log(2), rel=1e-6
    )
    assert token_entropy(torch.zeros(1, 1, V)).item() == pytest.approx(math.log(V), rel=1e-6)
    assert token_entropy(confident(random_ids(1, 1))).item() == pytest.approx(0.0, abs=1e-6)
    torch.testing.assert_close(
        token_entropy(logits_of() + 50), token_entropy(logits_of()), atol=1e-4, rtol=1e-4
    )


def test_entropy_against_the_library():
    x = logits_of()
    torch.testing.assert_close(
        token_entropy(x), torch.distributions.Categorical(logits=x).entropy(), atol=1e-5, rtol=1e-5
    )


def test_entropy_of_a_forbidden_token_and_of_nan():
    x = torch.tensor([[[0.0, 0.0, -math.inf]], [[0.0, 1.0, math.nan]]])
    assert (
        token_entropy(x)[0, 0].item() == pytest.approx(math.log(2))
        and token_entropy(x)[1, 0].isnan()
    )


# ---- accept --------------------------------------------------------------------------------------


def naive_accept(entropy: list[float], bound: float, pinned: list[bool]) -> list[bool]:
    """Walk from the surest position on.

    Take it if what was taken before sums to at most the bound.
    """
    taken, total = [False] * len(entropy), 0.0
    for i in sorted(range(len(entropy)), key=lambda i: entropy[i]):
        if pinned[i]:
            continue
        if total > bound:
            break
        taken[i] = True
        total += entropy[i]
    return taken


# multiples of 1/8 add up exactly, so that a sum can meet the bound to the bit
EIGHTHS = torch.randint(0, 40, (200, 12), generator=generator(1)) / 8.0


@pytest.mark.parametrize("bound", [0.0, 0.125, 0.5, 1.0, 3.0, 10.0, 1e9])
@pytest.mark.parametrize("share_pinned", [None, 0.0, 0.3, 1.0])
def test_accept_against_a_walk_over_the_positions(bound, share_pinned):
    pinned = (
        None if share_pinned is None else torch.rand(200, 12, generator=generator(2)) < share_pinned
    )
    got = accept(EIGHTHS, bound, pinned).tolist()
    given = [[False] * 12] * 200 if pinned is None else pinned.tolist()
    for row, entropy in enumerate(EIGHTHS.tolist()):
        expected = naive_accept(entropy, bound, given[row])
        # among equal entropies only the number is fixed, not which
        kept = [
            sorted(e for e, a in zip(entropy, rule, strict=True) if a)
            for rule in (got[row], expected)
        ]
        assert kept[0] == kept[1]
        assert not any(a and p for a, p in zip(got[row], given[row], strict=True))


def test_the_sum_stops_at_the_bound_and_includes_it():
    entropy = torch.tensor([[0.5, 0.25, 1.0, 0.75]])
    assert accept(entropy, 0.0).tolist() == [[False, True, False, False]]
    # 0.25 <= 0.25: what is *before* must fit
    assert accept(entropy, 0.25).tolist() == [[True, True, False, False]]
    assert accept(entropy, 0.7499).tolist() == [[True, True, False, False]]
    assert accept(entropy, 0.75).tolist() == [[True, True, False, True]]
    assert accept(entropy, 1.5).all()


def test_the_surest_position_is_always_accepted():
    entropy = torch.rand(20, C, generator=generator()) + 1
    accepted = accept(entropy, 0.0)
    assert accepted.sum(-1).tolist() == [1] * 20
    assert torch.equal(accepted.int().argmax(-1), entropy.argmin(-1))


def test_zero_entropies_are_free_and_ties_count_one_by_one():
    assert accept(torch.zeros(1, C), 0.0).all()
    assert accept(torch.full((1, C), 0.5), 1.0).sum() == 3


def test_rows_do_not_share_a_budget():
    entropy = torch.rand(5, C, generator=generator())
    together = accept(entropy, 0.3)
    assert all(torch.equal(accept(entropy[i : i + 1], 0.3)[0], together[i]) for i in range(5))


def test_pinned_positions_take_nothing_from_the_bound():
    """Neither accepted nor paid for: the others are judged as if the pinned ones were not there."""
    entropy, pinned = torch.rand(1, 12, generator=generator()), torch.zeros(1, 12, dtype=torch.bool)
    pinned[0, ::3] = True
    entropy[pinned] = 0.01
    assert torch.equal(
        accept(entropy, 0.5, pinned)[~pinned], accept(entropy[~pinned][None], 0.5)[0]
    )
    assert not accept(entropy, 1e9, torch.ones(1, 12, dtype=torch.bool)).any()


@pytest.mark.parametrize("bound", [-0.1, math.nan, -math.inf])
def test_a_negative_bound_is_refused(bound):
    with refused("bound", str(bound), "takes"):
        accept(torch.ones(1, C), bound)


# ---- draws ---------------------------------------------------------------------------------------


def test_race_is_torch_multinomial_under_the_same_generator():
    x = logits_of()
    expected = torch.multinomial(x.softmax(-1).flatten(0, 1), 1, generator=generator(3)).view(B, C)
    assert torch.equal(draw_tokens(x, generator(3), "race"), expected)
    torch.manual_seed(3)
    expected = torch.multinomial(x.softmax(-1).flatten(0, 1), 1).view(B, C)
    torch.manual_seed(3)
    assert torch.equal(draw_tokens(x), expected)  # the default, and the global stream


def chi_square(counts: torch.Tensor, p: torch.Tensor) -> float:
    """Pearson's statistic in units of its standard deviation, cells of fewer than five expected
    draws put together.
    """
    n = counts.sum()
    rare = p * n < 5
    observed = torch.cat([counts[~rare], counts[rare].sum()[None]])
    expected = torch.cat([(p * n)[~rare], (p * n)[rare].sum()[None]]).clamp(min=1e-9)
    freedom = len(observed) - 1
    return (((observed - expected) ** 2 / expected).sum().item() - freedom) / math.sqrt(2 * freedom)


@pytest.mark.parametrize("draw", ["race", "cdf"])
def test_both_draws_have_the_softmax_distribution(draw):
    """Chi-square of 40,000 draws, fixed seeds; 4.5 sigma, and the same test must see a temperature
    that is 5% off.
    """
    x = logits_of(spread=1.5, shape=(1, 1, V))
    n, p = 40_000, x[0, 0].double().softmax(-1)
    counts = (
        draw_tokens(x.expand(1, n, V).contiguous(), generator(4), draw)
        .flatten()
        .bincount(minlength=V)
        .double()
    )
    assert chi_square(counts, p) < 4.5
    assert chi_square(counts, (x[0, 0].double() / 1.05).softmax(-1)) > 4.5


@pytest.mark.parametrize("draw", ["race", "cdf"])
def test_a_token_without_probability_is_never_drawn(draw):
    x = torch.full((1, 5000, V), -math.inf)
    x[..., 3], x[..., 90] = 0.0, 1.0
    assert set(draw_tokens(x, generator(), draw).flatten().tolist()) == {3, 90}


@pytest.mark.parametrize("point", [0.0, 1 - 2**-24])
def test_the_ends_of_the_uniform_number(monkeypatch, point):
    """The smallest and the largest number that torch.rand gives in float32."""
    monkeypatch.setattr(
        torch, "rand", lambda *shape, generator, device: torch.full(shape[0], point)
    )
    x = torch.full((1, 1, V), -math.inf)
    x[..., 3], x[..., 90] = 0.0, 1.0
    assert draw_tokens(x, None, "cdf").item() == (3 if point == 0 else 90)


@pytest.mark.parametrize("draw", ["race", "cdf"])
def test_one_generator_per_row_makes_rows_independent(draw):
    """Pitfall 19."""
    x = logits_of(shape=(3, C, V))
    together = draw_tokens(x, [generator(i) for i in range(3)], draw)
    for order in ([1], [2, 0], [2, 1, 0]):
        assert torch.equal(
            draw_tokens(x[order], [generator(i) for i in order], draw), together[order]
        )


def test_a_cumulative_sum_that_ends_below_one(monkeypatch):
    """Rounding leaves some sums short of 1.

    The largest uniform number must still fall on a token that can be drawn.
    """
    monkeypatch.setattr(
        torch, "rand", lambda *shape, generator, device: torch.full(shape[0], 1 - 2**-24)
    )
    x = logits_of(shape=(1, 500, V))
    x[..., 60:] = -math.inf
    assert (x.softmax(-1).cumsum(-1)[..., -1] < 1 - 2**-24).any()
    assert draw_tokens(x, None, "cdf").max() < 60


def test_an_unknown_draw_is_refused():
    with refused("draw", "'rase'", "'race'"):
        draw_tokens(logits_of(), generator(), "rase")


@pytest.mark.parametrize("n", [1, 3])
def test_a_wrong_number_of_generators_is_refused(n):
    with refused("generator", f"a list of {n}", "2"):
        draw_tokens(logits_of(), [generator()] * n)


def test_renoise_keeps_the_accepted_and_draws_noise_for_all():
    sampled, accepted = random_ids(B, C), torch.rand(B, C, generator=generator()) < 0.5
    noise = uniform_tokens((B, C), V, generator(5), sampled.device)
    out = renoise(sampled, accepted, V, generator(5))
    assert torch.equal(out[accepted], sampled[accepted]) and torch.equal(
        out[~accepted], noise[~accepted]
    )
    g = generator(5)
    renoise(sampled, torch.ones_like(accepted), V, g)
    uniform_tokens((B, C), V, h := generator(5), sampled.device)
    assert torch.equal(g.get_state(), h.get_state())  # also when nothing is renoised


# ---- stop ----------------------------------------------------------------------------------------


def canvases(*numbers: int) -> torch.Tensor:
    """One row per number: [k, 1, C]."""
    return torch.tensor(numbers)[:, None, None].expand(-1, 1, C)


SURE, UNSURE = torch.full((1, C), 1e-4), torch.full((1, C), 0.5)


@pytest.mark.parametrize(
    ("history", "now", "k", "stops"),
    [
        ((), 7, 1, False),
        ((7,), 7, 1, True),
        ((3,), 7, 1, False),
        ((7, 7), 7, 1, True),
        ((7, 3), 7, 1, False),
        ((3, 7), 7, 1, True),
        ((7,), 7, 2, False),
        ((7, 7), 7, 2, True),
        ((3, 7), 7, 2, False),
        ((7, 3), 7, 2, False),
        ((3, 7, 7), 7, 2, True),
        ((), 7, 0, True),
        ((3,), 7, 0, True),
    ],
)
def test_stability_needs_k_equal_canvases_before_this_one(history, now, k, stops):
    """Pitfall 13."""
    s = SamplerConfig(stability_threshold=k)
    previous = canvases(*history) if history else torch.empty(0, 1, C, dtype=torch.int64)
    assert should_stop(canvases(now)[0], previous, SURE, s).tolist() == [stops]
    assert should_stop(canvases(now)[0], previous, UNSURE, s).tolist() == [False]


def test_one_position_that_changes_is_enough():
    a, b = random_ids(1, C), random_ids(1, C)
    b[0, C - 1] += 1
    assert should_stop(a, b[None], SURE, SamplerConfig()).tolist() == [False]


def test_confidence_is_strictly_below_the_threshold_and_a_mean_over_the_canvas():
    a, s = random_ids(1, C), SamplerConfig(confidence_threshold=0.25)
    entropy = torch.zeros(1, C)
    entropy[0, 0] = 0.25 * C
    assert should_stop(a, a[None], entropy, s).tolist() == [False]  # exactly the threshold
    entropy[0, 0] -= 0.125
    assert should_stop(a, a[None], entropy, s).tolist() == [True]


def test_rows_stop_on_their_own():
    a = random_ids(3, C)
    previous = a.clone()
    previous[1, 0] = (a[1, 0] + 1) % V
    entropy = torch.cat([SURE, SURE, UNSURE])
    assert should_stop(a, previous[None], entropy, SamplerConfig()).tolist() == [True, False, False]


def test_no_threshold_never_stops():
    a = random_ids(1, C)
    assert not should_stop(a, a[None], SURE, SamplerConfig(confidence_threshold=None)).any()


def test_pinned_positions_do_not_count_in_the_mean():
    a, pinned = random_ids(1, C), torch.zeros(1, C, dtype=torch.bool)
    pinned[0, 0] = True
    entropy = torch.full((1, C), 1e-4)
    entropy[0, 0] = 9.0
    s = SamplerConfig(confidence_threshold=2e-4)
    assert should_stop(a, a[None], entropy, s).tolist() == [False]
    assert should_stop(a, a[None], entropy, s, pinned).tolist() == [True]
    entropy = torch.full((1, C), 2.1e-4)
    entropy[0, 0] = 0.0
    # divided by the positions that count
    assert should_stop(a, a[None], entropy, s, pinned).tolist() == [False]
    # all pinned: nothing to do
    assert should_stop(a, a[None], UNSURE, s, torch.ones(1, C, dtype=torch.bool)).tolist() == [True]


# ---- the step ------------------------------------------------------------------------------------


def test_a_step_is_its_parts_in_the_reference_order():
    """Draw a token for every position, then noise for every position, from one stream."""
    x, canvas, s, g = logits_of(), random_ids(B, C), sampler(), generator(6)
    step = denoise_step(x, canvas, 2, s, generator=generator(6))
    scaled = x / temperature_at(2, s)
    sampled = torch.multinomial(scaled.softmax(-1).flatten(0, 1), 1, generator=g).view(B, C)
    noise = torch.randint(0, V, (B, C), generator=g)
    accepted = accept(token_entropy(scaled), s.entropy_bound)
    assert (step.index, step.temperature) == (2, temperature_at(2, s)) and torch.equal(
        step.canvas, canvas
    )
    assert torch.equal(step.scaled_logits, scaled) and torch.equal(step.sampled, sampled)
    assert torch.equal(step.argmax, x.argmax(-1)) and torch.equal(
        step.entropy, token_entropy(scaled)
    )
    assert torch.equal(step.accepted, accepted) and 0 < accepted.sum() < B * C
    assert torch.equal(step.next_canvas, torch.where(accepted, sampled, noise))
    assert not step.revised.any() and not step.finished.any() and not step.pinned.any()
    torch.testing.assert_close(step.mean_entropy, step.entropy.mean(-1))


@pytest.mark.parametrize("draw", ["race", "cdf"])
def test_the_step_uses_the_configured_draw(draw):
    x, canvas = logits_of(spread=1.0), random_ids(B, C)
    step = denoise_step(
        x, canvas, 0, sampler(draw=draw, t_max=1.0, t_min=1.0), generator=generator(6)
    )
    assert torch.equal(step.sampled, draw_tokens(x, generator(6), draw))


def test_revised_marks_an_argmax_that_changed_since_the_step_before():
    canvas, s = random_ids(B, C), sampler()
    first = denoise_step(logits_of(0), canvas, 0, s, generator=generator())
    second = denoise_step(
        logits_of(1), first.next_canvas, 1, s, previous=[first], generator=generator()
    )
    third = denoise_step(
        logits_of(1), second.next_canvas, 2, s, previous=[first, second], generator=generator()
    )
    assert torch.equal(second.revised, first.argmax != second.argmax) and second.revised.any()
    assert not third.revised.any()


def chain(logits: list[torch.Tensor], s: SamplerConfig, *, keep: int = 99, **more) -> list[Step]:
    """Steps one after another over given logits."""
    canvas, steps = random_ids(len(logits[0]), C, seed=7), []
    for n, x in enumerate(logits):
        steps.append(denoise_step(x, canvas, n, s, previous=steps[-keep:], **more))
        canvas = steps[-1].next_canvas
    return steps


@pytest.mark.parametrize("k", [0, 1, 2, 3])
def test_constant_confident_logits(k):
    """Pitfall 13: with threshold k the (k+1)-th step is the first to stop: False, True, True for k
    = 1.
    """
    s = SamplerConfig(max_denoising_steps=6, stability_threshold=k)
    steps = chain([confident(random_ids(1, C))] * 5, s, keep=max(1, k), generator=generator())
    assert [bool(step.finished) for step in steps] == [n >= k for n in range(5)]


def test_confidence_is_judged_on_temperature_scaled_logits():
    """Pitfall 14: the same logits are sure at a low temperature and unsure at a high one."""
    x, canvas = confident(random_ids(1, C), sure=10.0), random_ids(1, C)
    cold, hot = (
        sampler(t_max=t, t_min=t, stability_threshold=0, confidence_threshold=0.1)
        for t in (0.5, 2.0)
    )
    assert denoise_step(x, canvas, 0, cold, generator=generator()).finished.tolist() == [True]
    assert denoise_step(x, canvas, 0, hot, generator=generator()).finished.tolist() == [False]
    assert token_entropy(x).min() < 0.1  # the unscaled logits would call both sure


FROZEN = ("argmax", "scaled_logits", "entropy", "accepted", "next_canvas")


@pytest.mark.parametrize("shared", [True, False])
def test_finished_rows_are_frozen(shared):
    """Pitfall 14: canvas, argmax and self-conditioning stay, whatever the logits of later steps
    say.
    """
    sure, wild = confident(random_ids(2, C)), [logits_of(i) for i in range(5)]
    # row 0 finishes at step 1, then its logits go wild
    logits = [torch.cat([sure[:1], w[1:]]) for w in wild[:2]] + wild[2:]
    g = generator(8) if shared else [generator(8), generator(9)]
    steps = chain(logits, SamplerConfig(max_denoising_steps=6), generator=g)
    assert [step.finished.tolist() for step in steps] == [[False, False]] + [[True, False]] * 4
    for step in steps[2:]:
        for name in FROZEN[:-1]:
            assert torch.equal(getattr(step, name)[0], getattr(steps[1], name)[0]), name
        assert torch.equal(step.next_canvas[0], step.canvas[0]) and torch.equal(
            step.canvas[0], steps[1].next_canvas[0]
        )
        assert not step.revised[0].any()
        assert not torch.equal(step.next_canvas[1], step.canvas[1])


def test_a_shared_stream_does_not_depend_on_who_is_finished():
    """Shapes never change: the unfinished row draws the same whether the other one is finished or
    not.
    """
    wild, sure = [logits_of(i) for i in range(4)], confident(random_ids(2, C))
    s = SamplerConfig(max_denoising_steps=6)
    busy = chain([torch.cat([w[1:], w[1:]]) for w in wild], s, generator=generator(8))
    one_done = chain([torch.cat([sure[:1], w[1:]]) for w in wild], s, generator=generator(8))
    assert one_done[-1].finished.tolist() == [True, False]
    for a, b in zip(busy, one_done, strict=True):
        assert torch.equal(a.next_canvas[1], b.next_canvas[1])


def test_with_own_generators_a_finished_row_stops_drawing():
    """Pitfall 19: its stream stands where it stood when the row finished, as it would alone."""
    sure, wild = confident(random_ids(2, C)), [logits_of(i) for i in range(4)]
    own, s = [generator(8), generator(9)], SamplerConfig(max_denoising_steps=6)
    chain([torch.cat([sure[:1], w[1:]]) for w in wild], s, generator=own)
    alone = generator(8)
    chain([sure[:1]] * 2, s, generator=[alone])
    assert torch.equal(own[0].get_state(), alone.get_state())
    other = generator(9)
    chain([w[1:] for w in wild], s, generator=[other])
    assert torch.equal(own[1].get_state(), other.get_state())


def test_running_replaces_the_generators_of_finished_rows_only():
    own = [generator(0), generator(1)]
    swapped = running(own, torch.tensor([True, False]))
    assert swapped[0] is not own[0] and swapped[1] is own[1]
    assert (
        running(own, torch.tensor([False, False])) is own
        and running(own[0], torch.tensor([True])) is own[0]
    )
    assert running(None, torch.tensor([True])) is None


def test_rows_that_have_ended_do_nothing():
    x, canvas = logits_of(), random_ids(B, C)
    own = [generator(1), generator(2)]
    step = denoise_step(x, canvas, 0, sampler(), generator=own, ended=torch.tensor([True, False]))
    assert step.finished.tolist() == [True, False]
    assert torch.equal(step.next_canvas[0], canvas[0]) and not torch.equal(
        step.next_canvas[1], canvas[1]
    )
    assert torch.equal(own[0].get_state(), generator(1).get_state())


def test_pinned_ids_are_restored_after_renoise_and_at_commit():
    x, canvas, ids = logits_of(), random_ids(B, C), random_ids(B, C, seed=3)
    pinned = torch.rand(B, C, generator=generator()) < 0.5
    step = denoise_step(
        x,
        canvas,
        0,
        sampler(entropy_bound=1e9),
        generator=generator(4),
        pinned=pinned,
        pinned_ids=ids,
    )
    free = denoise_step(x, canvas, 0, sampler(entropy_bound=1e9), generator=generator(4))
    assert torch.equal(step.next_canvas[pinned], ids[pinned]) and torch.equal(
        step.argmax[pinned], ids[pinned]
    )
    assert not step.accepted[pinned].any() and step.accepted[~pinned].all()
    # draws are still made: the stream is the same
    assert torch.equal(step.next_canvas[~pinned], free.next_canvas[~pinned])
    assert torch.equal(step.argmax[~pinned], free.argmax[~pinned]) and torch.equal(
        step.pinned, pinned
    )
    masked = torch.where(pinned, 0.0, step.entropy).sum(-1) / (~pinned).sum(-1)
    torch.testing.assert_close(step.mean_entropy, masked)


@pytest.mark.parametrize("half", ["pinned", "pinned_ids"])
def test_pinned_without_its_ids_is_refused(half):
    given = {"pinned": torch.ones(B, C, dtype=torch.bool), "pinned_ids": random_ids(B, C)}
    with refused("pinned", "both or neither"):
        denoise_step(logits_of(), random_ids(B, C), 0, sampler(), **{half: given[half]})


def test_confidence_of_a_step_leaves_pinned_positions_out():
    ids = random_ids(1, C)
    x = confident(ids)
    x[0, 0] = 0.0  # no idea at position 0, which is pinned
    pinned = torch.zeros(1, C, dtype=torch.bool)
    pinned[0, 0] = True
    s = SamplerConfig(max_denoising_steps=6)
    assert chain([x] * 3, s, generator=generator(), pinned=pinned, pinned_ids=ids)[
        -1
    ].finished.tolist() == [True]
    assert chain([x] * 3, s, generator=generator())[-1].finished.tolist() == [False]


def test_a_step_is_pure():
    """It changes neither logits, canvas nor the steps it is given."""
    x, canvas = logits_of(), random_ids(B, C)
    first = denoise_step(x, canvas, 0, sampler(), generator=generator())
    kept = {f.name: getattr(first, f.name) for f in fields(Step)}
    copies = {k: v.clone() for k, v in kept.items() if isinstance(v, torch.Tensor)}
    before = x.clone(), canvas.clone()
    denoise_step(x, canvas, 1, sampler(), previous=[first], generator=generator())
    assert torch.equal(x, before[0]) and torch.equal(canvas, before[1])
    assert all(torch.equal(kept[k], v) for k, v in copies.items())


def test_a_knob_changed_between_two_calls_counts_at_once():
    """Pitfall 20, in a single step: nothing is kept from the call before."""
    x, canvas = logits_of(), random_ids(B, C)
    for changed in (
        dict(entropy_bound=0.0),
        dict(t_max=2.0),
        dict(draw="cdf"),
        dict(max_denoising_steps=3),
    ):
        denoise_step(x, canvas, 1, sampler(), generator=generator())
        after = denoise_step(x, canvas, 1, sampler(**changed), generator=generator())
        again = denoise_step(x, canvas, 1, replace(sampler(), **changed), generator=generator())
        plain = denoise_step(x, canvas, 1, sampler(), generator=generator())
        assert torch.equal(after.next_canvas, again.next_canvas)
        assert not (
            torch.equal(after.next_canvas, plain.next_canvas)
            and torch.equal(after.scaled_logits, plain.scaled_logits)
        )


# ---- settings ------------------------------------------------------------------------------------


def test_the_published_defaults():
    """generation_config.json of google/diffusiongemma-26B-A4B-it; report, table 2."""
    s = SamplerConfig()
    assert (s.max_denoising_steps, s.entropy_bound, s.t_max, s.t_min) == (48, 0.1, 0.8, 0.4)
    assert (s.stability_threshold, s.confidence_threshold, s.self_conditioning) == (1, 0.005, True)


def test_from_defaults():
    s = SamplerConfig.from_defaults(
        {"entropy_bound": 0.3, "t_max": 0.9, "eos_token_id": [1], "max_new_tokens": 9}, t_min=0.1
    )
    assert (s.entropy_bound, s.t_max, s.t_min, s.max_denoising_steps) == (0.3, 0.9, 0.1, 48)
    assert SamplerConfig.from_defaults({"t_max": 0.9}, t_max=0.5).t_max == 0.5


BROKEN = [
    *[("max_denoising_steps", v) for v in (0, -1, 2.5, True, None)],
    *[("entropy_bound", v) for v in (-0.1, math.nan, None, "1", True)],
    *[("t_max", v) for v in (0, -1.0, math.nan, math.inf, None, True)],
    *[("t_min", v) for v in (-0.1, 0.9, math.nan, None, True)],
    *[("stability_threshold", v) for v in (-1, 0.5, True, None)],
    *[("confidence_threshold", v) for v in (0, -0.1, math.nan, "1", True)],
    *[("self_conditioning", v) for v in (1, None, "yes")],
    *[("draw", v) for v in ("gumbel", None, 1)],
]  # fmt: skip


@pytest.mark.parametrize(("name", "value"), BROKEN, ids=[f"{n}-{v}" for n, v in BROKEN])
def test_each_knob_broken_once(unchecked, name, value):
    with refused(name, "got ", "takes "):
        SamplerConfig(**{name: value})


def test_every_knob_has_a_broken_case():
    assert set(SamplerConfig.__dataclass_fields__) == {name for name, _ in BROKEN}
