"""The bound on the likelihood: above the truth and touching it where the truth is known, and the
same tokens for both modes.
"""

import math

import pytest
import torch
import torch.nn.functional as F
from tiny import C, Example, V, generator, random_ids, refused, tiny

from diffgemma_lite.labs.likelihood import bound, model_denoiser, ratio, step_cost, text_likelihood
from diffgemma_lite.labs.toy_world.likelihood import toy_bound, world_denoiser
from diffgemma_lite.labs.toy_world.world import World, chain, entropy, phrases

WORLD = phrases({"a b a": 0.5, "b a a": 0.3, "c c b": 0.1}, slips=0.1)


def texts(world, n, seed=0):
    return world.canvases[
        torch.multinomial(world.joint, n, replacement=True, generator=generator(seed))
    ]


@pytest.mark.parametrize(
    "world",
    [WORLD, chain({"x": 0.6, "y": 0.4}, 0.8, 4), phrases({"p q": 0.7, "q p": 0.3}, noise_words=2)],
)
def test_the_exact_belief_touches_the_truth_from_above(world):
    truth = float(entropy(world.joint))
    found = [toy_bound(world, steps) for steps in (1, 4, 16, 32, 64)]
    assert all(a > b for a, b in zip(found, found[1:], strict=False)) and found[-1] > truth
    assert found[-1] - truth < 0.04 * truth  # what is left is drawing positions independently
    # and that halves with twice the steps
    assert found[-1] - truth == pytest.approx((found[-2] - truth) / 2, rel=0.15)


def test_one_step_is_the_product_of_the_marginals():
    assert toy_bound(WORLD, 1) == pytest.approx(float(entropy(WORLD.marginals()).sum()))


@pytest.mark.parametrize("steps", [1, 3, 20])
def test_with_one_position_any_number_of_steps_is_exact(steps):
    world = phrases({"a": 0.6, "b": 0.3, "c": 0.1})
    assert toy_bound(world, steps) == pytest.approx(float(entropy(world.joint)))


@pytest.mark.parametrize("steps, draws", [(1, 1), (8, 3), (40, 4)])
def test_what_is_drawn_agrees_with_what_is_enumerated(steps, draws):
    """The estimate is unbiased, also when draws does not divide steps.

    Within four standard errors of the exact bound.
    """
    found, _ = bound(
        world_denoiser(WORLD),
        texts(WORLD, 1500),
        3,
        steps=steps,
        draws=draws,
        generator=generator(),
    )
    assert (
        abs(float(found.mean()) - toy_bound(WORLD, steps))
        < 4 * float(found.std()) / len(found) ** 0.5
    )


def test_a_worse_belief_costs_more_at_every_step():
    truth, flat = float(entropy(WORLD.joint)), torch.full((27, 3, 3), 1 / 3, dtype=torch.float64)
    for steps in (2, 16):
        exact = toy_bound(WORLD, steps)
        assert toy_bound(WORLD, steps, lambda t: 0.8 * WORLD.belief(t) + 0.2 * flat) > exact > truth
        assert toy_bound(WORLD, steps, lambda t: WORLD.belief(None)) > exact  # not told the level
    uniform = World(torch.full((27,), 1 / 27, dtype=torch.float64), WORLD.words, 3)
    # who knows only noise gives every text 1/27
    assert toy_bound(WORLD, 16, uniform.belief) == pytest.approx(3 * math.log(3))


def test_the_loss_is_no_likelihood():
    """The same belief, the same canvases.

    The unweighted loss lies below the true bits, where no bound can.
    """
    world = chain({"x": 0.5, "y": 0.5}, 0.5, 2)  # four texts, all equally likely
    found, loss = bound(
        world_denoiser(world), texts(world, 2000), 2, steps=32, draws=4, generator=generator()
    )
    assert abs(float(found.mean()) - 2 * math.log(2)) < 4 * float(found.std()) / 2000**0.5
    assert float(loss.mean()) + 4 * float(loss.std()) / 2000**0.5 < 2 * math.log(2)


def test_the_cost_of_a_step_is_a_divergence():
    g = generator(1)
    x_0, x_t = (torch.randint(5, (4, 6), generator=g) for _ in range(2))
    t, s = torch.tensor([1.0, 0.7, 0.5, 0.3]), torch.tensor([0.5, 0.6, 0.0, 0.0])
    p = torch.rand(4, 6, 5, generator=g, dtype=torch.float64)
    p = p / p.sum(-1, keepdim=True)
    cost = step_cost(x_t, x_0, p, t, s)
    assert bool((cost > 0).all())
    # the last step is cross-entropy
    torch.testing.assert_close(cost[2:], -p.gather(-1, x_0[..., None])[2:, :, 0].log())
    sure = F.one_hot(x_0, 5).double()
    torch.testing.assert_close(
        step_cost(x_t, x_0, sure, t, s), torch.zeros(4, 6, dtype=torch.float64)
    )


def test_both_modes_are_asked_for_the_same_tokens():
    """The autoregressive number by hand: prompt, answer, one end token.

    A long answer up to one canvas and no end token.
    """
    model = tiny().requires_grad_(False)
    ids = random_ids(1, 24)[0].tolist()
    examples = [Example(ids[:5], ids[5:8]), Example(ids[:3], ids[3:24], False)]
    found = text_likelihood(model, examples, steps=8, draws=2)
    nats, asked = 0.0, 0
    for prompt, answer in (
        (ids[:5], [*ids[5:8], model.config.eos_token_id]),
        (ids[:3], ids[3 : 3 + C]),
    ):
        row = torch.tensor([[*prompt, *answer]])
        log_p = (
            model.next_token_logits(row)[0]
            .log_softmax(-1)[0, :-1]
            .gather(-1, row[0, 1:, None])[:, 0]
        )
        nats, asked = nats - float(log_p[len(prompt) - 1 :].sum()), asked + len(answer)
    assert found["autoregressive"]["mean"] == pytest.approx(nats / asked / math.log(2), rel=1e-5)
    assert found["difference"]["mean"] == pytest.approx(
        found["bound"]["mean"] - found["autoregressive"]["mean"]
    )


def test_the_bound_of_a_model_is_that_of_its_belief_and_of_the_seed():
    model, examples = (
        tiny(),
        [Example([3, 4, 5], random_ids(1, 6, seed=i)[0].tolist()) for i in range(3)],
    )
    one, two = (
        text_likelihood(model, examples, steps=16, draws=3, batch_size=size) for size in (3, 1)
    )
    # noise is an example's own
    assert one["bound"]["mean"] == pytest.approx(two["bound"]["mean"], rel=1e-4)
    plain = text_likelihood(model, examples, steps=16, draws=3, self_conditioning=False)
    assert (
        plain["bound"]["mean"] != one["bound"]["mean"]
        and plain["autoregressive"] == one["autoregressive"]
    )
    cache = model.encode(torch.tensor([[3, 4, 5]]))
    canvas = random_ids(1, C)
    believed = model_denoiser(model, cache, False)(canvas, torch.ones(1))
    torch.testing.assert_close(believed, model.decode(canvas, cache).double().softmax(-1))
    assert believed.shape == (1, C, V)


def test_ratio_of_equal_counts_is_the_mean():
    found = ratio(torch.tensor([1.0, 2.0, 3.0]).double(), torch.full((3,), 2.0).double())
    assert (
        found["n"] == 3
        and found["mean"] == 1.0
        and found["half_width"] == pytest.approx(1.96 * 1.0 / 3**0.5 / 2)
    )


def test_bad_arguments_are_named():
    with refused("examples", "empty"):
        text_likelihood(tiny(), [])
    with refused("examples", "cut inside"):
        text_likelihood(tiny(), [Example([3], [4, 5], False)])
    for name in ("steps", "draws"):
        with refused(name, "0"):
            bound(world_denoiser(WORLD), texts(WORLD, 2), 3, **{name: 0})
