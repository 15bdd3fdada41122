"""Noise: how much of a canvas changes, and the way back against transition matrices multiplied out
in float64.
"""

import math

import pytest
import torch
from tiny import B, C, V, generator, random_ids

from diffgemma_lite.noise import corrupt, euler_step, posterior, rand_rows, uniform_tokens


def within(successes: int, n: int, p: float, z: float = 4.0) -> bool:
    """Inside a normal interval of a binomial.

    Wrong once in 16,000 by chance, and the seed is fixed.
    """
    return abs(successes - n * p) <= z * math.sqrt(n * p * (1 - p)) + 0.5


@pytest.mark.parametrize("t", [0.0, 0.01, 0.3, 0.5, 0.9, 1.0])
@pytest.mark.parametrize("vocab", [2, 5, V])
def test_share_of_changed_tokens(t, vocab):
    """A noised token may draw its own value: t (1 - 1/V), not t."""
    x = torch.randint(0, vocab, (4, 2000), generator=generator())
    x_t, changed = corrupt(x, torch.full((4,), t), vocab, generator(1))
    assert torch.equal(changed, x_t != x)
    assert within(int(changed.sum()), x.numel(), t * (1 - 1 / vocab))
    assert 0 <= x_t.min() and x_t.max() < vocab


def test_one_noise_level_per_row():
    x = random_ids(3, 3000)
    changed = corrupt(x, torch.tensor([0.0, 0.25, 1.0]), V, generator())[1].sum(1).tolist()
    assert (
        changed[0] == 0
        and within(changed[1], 3000, 0.25 * (1 - 1 / V))
        and within(changed[2], 3000, 1 - 1 / V)
    )


def test_pure_noise_is_uniform_over_the_whole_vocabulary():
    """Special tokens included: chi-square of 20,000 draws over V cells, 5 sigma."""
    counts = (
        corrupt(torch.full((1, 20_000), 7), torch.ones(1), V, generator())[0]
        .flatten()
        .bincount(minlength=V)
    )
    expected = 20_000 / V
    chi2 = ((counts - expected) ** 2 / expected).sum().item()
    assert len(counts) == V and abs(chi2 - (V - 1)) < 5 * math.sqrt(2 * (V - 1))


def test_pinned_positions_stay_clean():
    x, pinned = random_ids(2, 500), torch.rand(2, 500, generator=generator()) < 0.4
    x_t, changed = corrupt(x, torch.ones(2), V, generator(1), pinned)
    free, changed_free = corrupt(x, torch.ones(2), V, generator(1))
    assert torch.equal(x_t[pinned], x[pinned]) and not changed[pinned].any()
    assert torch.equal(x_t[~pinned], free[~pinned])  # the draws are made all the same
    assert changed_free[pinned].float().mean() > 0.9


def test_absorbing_state():
    x = random_ids(2, 3000)
    x_t, changed = corrupt(x, torch.tensor([0.3, 1.0]), V, generator(), mask_id=1)
    assert set(x_t[changed].tolist()) == {1} and torch.equal(x_t[~changed], x[~changed])
    assert within(int(changed[0].sum()), 3000, 0.3) and changed[1].all()
    uniform = corrupt(x, torch.tensor([0.3, 1.0]), V, generator())[1]
    # the same positions are hit, whatever they become
    assert (changed[0] & ~uniform[0]).sum() < 100
    pinned = torch.ones(2, 3000, dtype=torch.bool)
    assert not corrupt(x, torch.ones(2), V, generator(), pinned, mask_id=1)[1].any()


def test_a_generator_per_row_makes_rows_independent():
    """Pitfall 19."""
    x, t = random_ids(3, C), torch.tensor([0.5, 0.9, 0.7])
    together = corrupt(x, t, V, [generator(i) for i in range(3)])[0]
    for order in ([0], [2], [2, 0, 1], [1, 2]):
        rows = corrupt(x[order], t[order], V, [generator(i) for i in order])[0]
        assert torch.equal(rows, together[order])
    assert torch.equal(corrupt(x, t, V, generator(5))[0], corrupt(x, t, V, generator(5))[0])


def test_row_draws_have_their_own_generators_and_one_generator_draws_once():
    def draw(shape, g):
        return torch.rand(shape, generator=g)

    assert torch.equal(
        rand_rows(draw, (3, 4), generator()), torch.rand(3, 4, generator=generator())
    )
    rows = rand_rows(draw, (2, 4), (generator(1), generator(2)))
    assert torch.equal(rows, torch.cat([torch.rand(1, 4, generator=generator(i)) for i in (1, 2)]))
    torch.manual_seed(3)
    expected = torch.rand(2, 2)
    torch.manual_seed(3)
    assert torch.equal(rand_rows(draw, (2, 2), None), expected)  # the global stream


def test_uniform_tokens_are_one_randint():
    expected = torch.randint(0, V, (B, C), generator=generator(4))
    assert torch.equal(uniform_tokens((B, C), V, generator(4), torch.device("cpu")), expected)


def transition(t: float, v: int) -> torch.Tensor:
    """q(x_t | x_0) as a matrix [from, to] in float64."""
    return (1 - t) * torch.eye(v, dtype=torch.float64) + t / v * torch.ones(
        v, v, dtype=torch.float64
    )


def brute_posterior(x_t: int, p_x0: torch.Tensor, t: float, s: float) -> torch.Tensor:
    """Bayes over every x_0 and x_s, with the matrix from s to t solved for rather than written
    down.
    """
    v = len(p_x0)
    q_s, q_t = transition(s, v), transition(t, v)
    s_to_t = torch.linalg.solve(q_s, q_t)
    result = torch.zeros(v, dtype=torch.float64)
    for x_0 in range(v):
        joint = torch.tensor(
            [q_s[x_0, x_s] * s_to_t[x_s, x_t] for x_s in range(v)], dtype=torch.float64
        )
        result += p_x0[x_0] * joint / joint.sum()
    return result


def belief(*shape, seed=0):
    return (
        torch.rand(*shape, generator=generator(seed), dtype=torch.float64)
        .pow(3)
        .clamp(min=1e-4)
        .log()
        .softmax(-1)
    )


@pytest.mark.parametrize(
    ("t", "s"), [(0.9, 0.6), (1.0, 0.5), (0.5, 0.499), (0.3, 0.0), (0.01, 0.0), (1.0, 0.0)]
)
@pytest.mark.parametrize("v", [2, 7])
def test_posterior_against_transition_matrices(t, s, v):
    x_t, p = torch.randint(0, v, (2, 3), generator=generator(1)), belief(2, 3, v)
    got = posterior(
        x_t, p, torch.full((2,), t, dtype=torch.float64), torch.full((2,), s, dtype=torch.float64)
    )
    torch.testing.assert_close(got.sum(-1), torch.ones(2, 3, dtype=torch.float64))
    for b in range(2):
        for i in range(3):
            expected = brute_posterior(int(x_t[b, i]), p[b, i], t, s)
            torch.testing.assert_close(got[b, i], expected, atol=1e-10, rtol=1e-8)


def test_posterior_has_a_noise_level_per_row():
    x_t, p = random_ids(2, 3, low=0) % 5, belief(2, 3, 5)
    t, s = (
        torch.tensor([0.9, 0.4], dtype=torch.float64),
        torch.tensor([0.2, 0.3], dtype=torch.float64),
    )
    both = posterior(x_t, p, t, s)
    for b in range(2):
        torch.testing.assert_close(
            both[b : b + 1], posterior(x_t[b : b + 1], p[b : b + 1], t[b : b + 1], s[b : b + 1])
        )


def test_posterior_at_its_ends():
    """Down to s = 0 it is the belief updated by x_t.

    From pure noise it is the belief noised to s.
    """
    x_t, p = torch.tensor([[2]]), belief(1, 1, 5)
    one, half, zero = (torch.tensor([a], dtype=torch.float64) for a in (1.0, 0.5, 0.0))
    torch.testing.assert_close(posterior(x_t, p, one, zero), p)
    torch.testing.assert_close(posterior(x_t, p, one, half), 0.5 * p + 0.5 / 5)
    certain = torch.nn.functional.one_hot(torch.tensor([[3]]), 5).double()
    torch.testing.assert_close(posterior(x_t, certain, half, zero), certain)


def test_sampling_the_posterior_from_noised_data_gives_data_noised_less():
    """The chain is consistent: corrupt to t, step back to s with the true x_0, and tokens are kept
    as often as at s.
    """
    n, v, t, s = 40_000, 5, 0.8, 0.3
    x = torch.randint(0, v, (1, n), generator=generator())
    x_t, _ = corrupt(x, torch.tensor([t]), v, generator(1))
    p = torch.nn.functional.one_hot(x, v).float()
    back = posterior(x_t, p, torch.tensor([t]), torch.tensor([s]))[0]
    x_s = torch.multinomial(back, 1, generator=generator(2))[:, 0]
    assert within(int((x_s != x[0]).sum()), n, s * (1 - 1 / v))


@pytest.mark.parametrize(("t", "dt"), [(0.8, 0.1), (1.0, 1.0), (0.3, 0.3), (0.02, 0.01)])
def test_euler_step_against_the_report(t, dt):
    """P(v) = delta(v, x) - dt kappa'_t / (1 - kappa_t) [P(X_0 = v) - delta(v, x)], kappa_t = 1 - t
    (footnote of the report).
    """
    x_t, p = torch.tensor([[1, 4], [0, 2]]), belief(2, 2, 5)
    got = euler_step(
        x_t, p, torch.full((2,), t, dtype=torch.float64), torch.full((2,), dt, dtype=torch.float64)
    )
    kappa, derivative = 1 - t, -1.0
    for b in range(2):
        for i in range(2):
            for v in range(5):
                delta = float(v == x_t[b, i])
                expected = delta - dt * derivative / (1 - kappa) * (p[b, i, v].item() - delta)
                assert got[b, i, v].item() == pytest.approx(expected, abs=1e-12)
    torch.testing.assert_close(got.sum(-1), torch.ones(2, 2, dtype=torch.float64))
    assert got.min() >= 0


def test_euler_step_has_a_size_per_row():
    x_t, p = torch.tensor([[1], [1]]), belief(1, 1, 5).expand(2, 1, 5)
    got = euler_step(x_t, p, torch.tensor([0.5, 1.0]).double(), torch.tensor([0.5, 0.25]).double())
    torch.testing.assert_close(got[0], p[0])
    assert got[1, 0, 1] == pytest.approx(0.75 + 0.25 * p[0, 0, 1].item())


@pytest.mark.parametrize("step", ["posterior", "euler"])
def test_both_steps_hand_on_the_right_marginal(step):
    """With the true P(x_0 | x_t) of some data, stepping from the noised marginal at t gives the
    marginal at s = t - dt.
    """
    v, t, dt = 6, 0.7, 0.2
    data, x_t = belief(v), torch.arange(v)[None]
    at_t, at_s = data @ transition(t, v), data @ transition(t - dt, v)
    clean = (data[:, None] * transition(t, v) / at_t).T[None]  # [1, x_t, x_0]
    one_t, one_dt = torch.tensor([t]).double(), torch.tensor([dt]).double()
    moved = (
        posterior(x_t, clean, one_t, one_t - one_dt)
        if step == "posterior"
        else euler_step(x_t, clean, one_t, one_dt)
    )
    torch.testing.assert_close(at_t @ moved[0], at_s, atol=1e-7, rtol=0)


@pytest.mark.parametrize("x", [0, 3])
def test_euler_step_is_the_first_order_of_the_posterior(x):
    """For a short step the two move each token's probability at the same rate, but for terms of 1/V
    (noise that turns into other noise, which only the exact process does): the largest difference
    falls like 1/V."""
    t, dt, gaps = torch.tensor([0.6]).double(), torch.tensor([1e-6]).double(), []
    for v in (10, 100, 1000):
        p = torch.zeros(1, 1, v, dtype=torch.float64)
        p[0, 0, :3] = torch.tensor([0.5, 0.3, 0.2])
        at = torch.tensor([[x]])
        jumps = torch.arange(v) != x  # the rest is what stays
        rate = [
            q[0, 0, jumps] / dt for q in (posterior(at, p, t, t - dt), euler_step(at, p, t, dt))
        ]
        assert rate[1].max() > 0.3
        gaps.append((rate[0] - rate[1]).abs().max().item())
    assert gaps[0] / gaps[1] == pytest.approx(10, rel=0.15) and gaps[1] / gaps[2] == pytest.approx(
        10, rel=0.15
    )


BAD = {
    "t below 0": ("t", lambda: corrupt(random_ids(2, C), torch.tensor([-0.1, 0.5]), V)),
    "t above 1": ("t", lambda: corrupt(random_ids(2, C), torch.tensor([0.1, 1.5]), V)),
    "t is NaN": ("t", lambda: corrupt(random_ids(2, C), torch.tensor([0.1, math.nan]), V)),
    "one t for two rows": ("t", lambda: corrupt(random_ids(2, C), torch.tensor([0.1]), V)),
    "an id outside the vocabulary": ("x", lambda: corrupt(torch.full((1, C), V), torch.ones(1), V)),
    "a negative id": ("x", lambda: corrupt(torch.full((1, C), -1), torch.ones(1), V)),
    "too few generators": ("generator", lambda: corrupt(random_ids(2, C), torch.ones(2), V,
                                                        [generator()])),
    "too many generators": ("generator", lambda: uniform_tokens((1, C), V, [generator()] * 2,
                                                                torch.device("cpu"))),
    "pinned of another shape": (
        "pinned", lambda: corrupt(random_ids(2, C), torch.ones(2), V,
                                  pinned=torch.ones(1, C, dtype=torch.bool))),
    "s above t": ("s, t", lambda: posterior(random_ids(1, 1) % 5, belief(1, 1, 5),
                                            torch.ones(1) * 0.3, torch.ones(1) * 0.4)),
    "s equals t": ("s, t", lambda: posterior(random_ids(1, 1) % 5, belief(1, 1, 5),
                                             torch.ones(1) * 0.3, torch.ones(1) * 0.3)),
    "s below 0": ("s, t", lambda: posterior(random_ids(1, 1) % 5, belief(1, 1, 5), torch.ones(1),
                                            -torch.ones(1))),
    "s is NaN": ("s, t", lambda: posterior(random_ids(1, 1) % 5, belief(1, 1, 5), torch.ones(1),
                                           torch.ones(1) * math.nan)),
    "x_t outside the belief": ("x_t", lambda: posterior(torch.tensor([[5]]), belief(1, 1, 5),
                                                        torch.ones(1), torch.zeros(1))),
    "dt of 0": ("dt, t", lambda: euler_step(random_ids(1, 1) % 5, belief(1, 1, 5), torch.ones(1),
                                            torch.zeros(1))),
    "dt above t": ("dt, t", lambda: euler_step(random_ids(1, 1) % 5, belief(1, 1, 5),
                                               torch.ones(1) * 0.1, torch.ones(1))),
    "t above 1 in a step": ("dt, t", lambda: euler_step(random_ids(1, 1) % 5, belief(1, 1, 5),
                                                        torch.ones(1) * 2, torch.ones(1))),
    "x_t outside the belief in a step": ("x_t", lambda: euler_step(torch.tensor([[-1]]),
                                                                   belief(1, 1, 5), torch.ones(1),
                                                                   torch.ones(1))),
}  # fmt: skip


@pytest.mark.parametrize("case", BAD)
def test_bad_input_is_named(unchecked, case):
    argument, call = BAD[case]
    with pytest.raises(ValueError, match=f"^{argument}: got .*takes "):
        call()
