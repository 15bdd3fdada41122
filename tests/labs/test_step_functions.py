"""The other denoising steps: their distributions against the formulas, what they freeze, and
`generate` run with them.
"""

from __future__ import annotations

from functools import partial

import pytest
import torch
from tiny import B, C, V, confident, generator, random_ids, refused, sampler, tiny

from diffgemma_lite import generate
from diffgemma_lite.labs.step_functions import jump_step, masked_step, posterior_step, unmask
from diffgemma_lite.noise import euler_step, posterior
from diffgemma_lite.sampler import denoise_step, token_entropy

MASK = V - 1
MASKED = partial(masked_step, mask_id=MASK)
REVERSE = {posterior_step: posterior, jump_step: lambda x, p, t, s: euler_step(x, p, t, t - s)}
plain = partial(sampler, t_max=1.0, t_min=1.0)


def masks(rows: int = B) -> torch.Tensor:
    return torch.full((rows, C), MASK)


def run(step_function, canvas, steps: int, logits=None, **given):
    """The steps of one canvas under logits that do not depend on it."""
    logits = (
        torch.randn(len(canvas), C, V, generator=generator(5)) * 3 if logits is None else logits
    )
    made, g, s = [], generator(1), plain(max_denoising_steps=steps)
    for n in range(steps):
        made.append(step_function(logits, canvas, n, s, previous=made, generator=g, **given))
        canvas = made[-1].next_canvas
    return made


# ---- the way back along the noise ----------------------------------------------------------------


@pytest.mark.parametrize("step_function", REVERSE)
@pytest.mark.parametrize("index", [0, 2, 3])
def test_each_position_draws_from_the_law_of_its_level(step_function, index):
    rows, v, n = 40_000, 4, 4
    logits, canvas = torch.randn(1, 2, v, generator=generator(2)), torch.tensor([[0, 3]])
    step = step_function(
        logits.expand(rows, 2, v),
        canvas.expand(rows, 2),
        index,
        plain(max_denoising_steps=n),
        generator=generator(index),
    )
    t, s = torch.tensor([1 - index / n]), torch.tensor([1 - (index + 1) / n])
    want = REVERSE[step_function](canvas, logits.softmax(-1), t, s)[0]
    got = torch.nn.functional.one_hot(step.next_canvas, v).float().mean(0)
    spread = (want * (1 - want) / rows).sqrt()
    assert bool(((got - want).abs() <= 4.5 * spread + 1e-6).all())
    assert torch.equal(step.next_canvas, step.sampled) and bool(step.accepted.all())
    assert torch.equal(step.argmax, logits.argmax(-1).expand(rows, 2))


@pytest.mark.parametrize("step_function", REVERSE)
def test_the_last_step_back_is_a_draw_from_the_belief(step_function):
    sure = random_ids(B, C, seed=3)
    step = step_function(confident(sure), random_ids(B, C), 5, sampler(), generator=generator())
    assert torch.equal(step.next_canvas, sure)


def test_a_jump_never_goes_anywhere_but_to_a_believed_token():
    sure, canvas = random_ids(B, C, seed=3), random_ids(B, C, seed=4)
    seen = run(jump_step, canvas, 6, confident(sure))
    for step in seen:
        assert bool(((step.next_canvas == step.canvas) | (step.next_canvas == sure)).all())
    assert any(bool((step.next_canvas == step.canvas).any()) for step in seen[:3])


@pytest.mark.parametrize("step_function", [posterior_step, jump_step])
def test_the_stop_rule_is_the_samplers(step_function):
    s = sampler(confidence_threshold=0.01)
    logits, canvas = confident(random_ids(B, C, seed=3)), random_ids(B, C)
    first = step_function(logits, canvas, 0, s, generator=generator())
    second = step_function(logits, first.next_canvas, 1, s, previous=[first], generator=generator())
    assert first.finished.tolist() == [False] * B and second.finished.tolist() == [True] * B
    open_end = step_function(logits, canvas, 1, sampler(), previous=[first], generator=generator())
    assert open_end.finished.tolist() == [False] * B


# ---- absorbing-state decoding --------------------------------------------------------------------


@pytest.mark.parametrize("bound", [0.0, 0.5, 100.0])
def test_what_is_unmasked_is_frozen_and_the_schedule_is_kept(bound):
    logits, canvas, made, s = (
        torch.randn(B, C, V, generator=generator(5)) * 3,
        masks(),
        [],
        plain(entropy_bound=bound),
    )
    for n in range(6):
        step = MASKED(logits, canvas, n, s, previous=made, generator=generator(n))
        was, now = canvas == MASK, step.next_canvas == MASK
        assert torch.equal(step.next_canvas[~was], canvas[~was]), "a written token changed"
        assert torch.equal(was & ~now, step.accepted) and not bool((now & ~was).any())
        assert bool((now.sum(-1) <= C * (5 - n) // 6).all())
        assert not bool((step.argmax == MASK).any()) and not bool((step.sampled == MASK).any())
        assert torch.equal(step.argmax[~now], step.next_canvas[~now]), (
            "the commit would differ from what is frozen"
        )
        assert torch.equal(step.finished, ~now.any(-1))
        made, canvas = [*made, step], step.next_canvas
        if bool(step.finished.all()):
            break
    assert bool(made[-1].finished.all())
    assert len(made) == {0.0: 6, 0.5: 6, 100.0: 1}[bound]


def test_unmask_takes_the_surest_and_no_fewer_than_the_schedule_needs():
    entropy = torch.tensor([[0.5, 0.1, 0.4, 0.2, 0.3, 0.05]])
    masked = torch.tensor([[True, True, True, True, True, False]])
    s = sampler(max_denoising_steps=3, entropy_bound=0.0)
    # 5 masks, 4 may stay
    assert unmask(entropy, masked, 0, s).tolist() == [[False, True, False, False, False, False]]
    # 2 may stay
    assert unmask(entropy, masked, 1, s).tolist() == [[False, True, False, True, True, False]]
    assert torch.equal(unmask(entropy, masked, 2, s), masked)
    wide = sampler(max_denoising_steps=3, entropy_bound=0.35)  # before them 0, 0.1, 0.3, 0.6, 1.0
    assert unmask(entropy, masked, 0, wide).tolist() == [[False, True, False, True, True, False]]
    assert not bool(unmask(entropy, torch.zeros_like(masked), 2, wide).any())


def test_bad_masks_are_refused():
    logits = torch.zeros(B, C, V)
    with refused("mask_id", "got 97", "0 to 96"):
        masked_step(logits, masks(), 0, sampler(), mask_id=V)
    with refused("mask_id", "got -1"):
        masked_step(logits, masks(), 0, sampler(), mask_id=-1)
    with refused("canvas", "holds no mask"):
        MASKED(logits, random_ids(B, C).clamp(max=MASK - 1), 0, sampler())


# ---- the same contract as denoise_step -----------------------------------------------------------

EVERY = {"posterior": posterior_step, "jump": jump_step, "masked": MASKED}


@pytest.mark.parametrize("name", EVERY)
def test_pinned_ids_never_change(name):
    held = random_ids(B, C, seed=8).clamp(max=MASK - 1)
    pinned = torch.arange(C).expand(B, C) % 3 == 0
    canvas = torch.where(pinned, held, masks() if name == "masked" else random_ids(B, C))
    for step in run(EVERY[name], canvas, 5, pinned=pinned, pinned_ids=held):
        for tokens in (step.argmax, step.next_canvas):
            assert torch.equal(tokens[pinned], held[pinned])
        assert not bool((step.accepted & pinned).any()) and torch.equal(step.pinned, pinned)


@pytest.mark.parametrize("name", EVERY)
def test_finished_rows_stay_and_only_they(name):
    canvas = masks() if name == "masked" else random_ids(B, C)
    logits = torch.randn(B, C, V, generator=generator(5))
    first = EVERY[name](logits, canvas, 0, sampler(), generator=generator())
    first.finished[0] = True
    second = EVERY[name](
        -logits, first.next_canvas, 1, sampler(), previous=[first], generator=generator()
    )
    assert second.finished[0]
    assert torch.equal(second.next_canvas[0], first.next_canvas[0]) and torch.equal(
        second.argmax[0], first.argmax[0]
    )
    assert torch.equal(second.scaled_logits[0], first.scaled_logits[0]) and torch.equal(
        second.entropy[0], first.entropy[0]
    )
    assert not torch.equal(second.argmax[1], first.argmax[1])
    assert second.revised.tolist() == (second.argmax != first.argmax).tolist()


@pytest.mark.parametrize("name", EVERY)
def test_a_row_with_its_own_generator_does_not_see_its_batch(name):
    model, ids = tiny(), random_ids(3, 5)
    start = {"initial_canvas": masks(3)} if name == "masked" else {}

    def written(rows):
        given = {key: value[rows] for key, value in start.items()}
        # rounding grows tenfold with every step
        g, few = [generator(r) for r in rows], sampler(max_denoising_steps=3)
        return generate(
            model, ids[rows], few, max_new_tokens=C, generator=g, step_function=EVERY[name], **given
        ).tokens

    together = written([0, 1, 2])
    assert torch.equal(written([2, 0]), together[[2, 0]]) and torch.equal(
        written([1]), together[[1]]
    )


@pytest.mark.parametrize("name", EVERY)
def test_generate_runs_it_and_records_what_it_did(name):
    start = {"initial_canvas": masks()} if name == "masked" else {}
    out = generate(
        tiny(),
        random_ids(B, 5),
        sampler(),
        max_new_tokens=C,
        generator=generator(),
        trace=True,
        step_function=EVERY[name],
        **start,
    )
    canvas = out.trace.canvases[0]
    kept = torch.from_numpy(canvas.committed)
    assert torch.equal(kept, out.tokens)
    assert all(s == 6 for s in out.steps[0]) or (name == "masked" and max(out.steps[0]) <= 6)
    assert not (name == "masked" and bool((out.tokens == MASK).any()))
    reference = generate(
        tiny(), random_ids(B, 5), sampler(), max_new_tokens=C, generator=generator(), **start
    )
    assert not torch.equal(reference.tokens, out.tokens)


def test_the_entropy_is_that_of_the_scaled_logits():
    logits, s = torch.randn(B, C, V, generator=generator(5)), sampler()
    for step_function in (denoise_step, posterior_step, jump_step):
        step = step_function(logits, random_ids(B, C), 2, s, generator=generator())
        assert torch.equal(step.entropy, token_entropy(logits / step.temperature))
