"""The training layout and the two losses: what is noised, what counts, and where gradients go."""

import math
from dataclasses import fields, replace

import pytest
import torch
import torch.nn.functional as F
from tiny import C, Example, V, exact, generator, random_ids, tiny

from diffgemma_lite.loss import (
    LONGEST_HOLE,
    T_EPSILON,
    Batch,
    collate,
    denoising_logits,
    dig_hole,
    encoder_loss,
    example_generator,
    lay_out,
    losses,
    mean_cross_entropy,
    total_loss,
)

EOS, PAD = 1, 0


def examples(n: int = 12) -> list[Example]:
    """Prompts and answers of many lengths, some cut."""
    g = generator(5)
    lengths = torch.randint(1, 30, (n, 2), generator=g).tolist()
    return [
        Example(random_ids(p, seed=i).tolist(), random_ids(r, seed=100 + i).tolist(), i % 3 != 0)
        for i, (p, r) in enumerate(lengths)
    ]


def batch_of(chosen, indices=None, **changes) -> Batch:
    settings = dict(canvas_length=C, vocab_size=V, eos=EOS, pad=PAD, seed=0, epoch=0)
    return collate(
        chosen, list(range(len(chosen))) if indices is None else indices, **(settings | changes)
    )


def rows_equal(a: Batch, i: int, b: Batch, j: int) -> bool:
    """Row i of a is row j of b, whatever padding the longest row of each asked for."""
    length = min(int(a.real[i].sum()), int(b.real[j].sum()))
    same = [
        torch.equal(getattr(a, f.name)[i], getattr(b, f.name)[j])
        for f in fields(Batch)
        if f.name not in ("ids", "real")
    ]
    return (
        all(same)
        and torch.equal(a.ids[i, :length], b.ids[j, :length])
        and int(a.real[i].sum()) == int(b.real[j].sum())
    )


# ---- layout --------------------------------------------------------------------------------------


@pytest.mark.parametrize("length", [0, 1, C - 1, C, C + 1, 2 * C])
def test_a_complete_answer_is_filled_with_supervised_end_tokens(length):
    """Pitfall 26."""
    answer = random_ids(length).tolist() if length else []
    ids, canvases, labelled = lay_out(Example([5, 6], answer), C, EOS)
    assert canvases == length // C + 1  # there is always at least one end token
    assert ids == [5, 6, *answer, *[EOS] * (canvases * C - length)] and labelled == canvases * C


@pytest.mark.parametrize("length", [0, 1, C - 1, C, C + 1, 2 * C])
def test_a_cut_answer_has_no_end_token(length):
    """Pitfall 26."""
    answer = random_ids(length).tolist() if length else []
    ids, canvases, labelled = lay_out(Example([5, 6], answer, complete=False), C, EOS)
    assert (
        ids == [5, 6, *answer] and labelled == length and canvases == max(1, math.ceil(length / C))
    )


def test_labels_of_cut_and_complete_answers():
    """Pitfall 26: the fill counts in both losses, the unknown end of a cut answer in neither."""
    answer = random_ids(C + 3).tolist()
    seen = set()
    for epoch in range(12):
        whole = batch_of([Example([5, 6], answer)], epoch=epoch)
        cut = batch_of([Example([5, 6], answer, complete=False)], epoch=epoch)
        k = (int(whole.start) - 2) // C
        seen.add(k)
        assert whole.labelled.all() and whole.real.all() and whole.ids.shape[1] == 2 + 2 * C
        assert torch.equal(
            whole.clean[0], torch.tensor((answer + [EOS] * (C - 3))[k * C : (k + 1) * C])
        )
        known = C if (int(cut.start) - 2) // C == 0 else 3
        assert cut.labelled[0].tolist() == [True] * known + [False] * (C - known)
        # neither an end token nor anything else that says something
        assert (cut.clean[~cut.labelled] == PAD).all()
        assert not (cut.clean[cut.labelled] == EOS).any() and int(cut.real.sum()) == 2 + C + 3
    assert seen == {0, 1}


def test_every_canvas_is_drawn_and_starts_after_whole_canvases():
    example = Example(random_ids(5).tolist(), random_ids(3 * C).tolist())
    starts = [int(batch_of([example], epoch=e).start) for e in range(200)]
    counts = [starts.count(5 + k * C) for k in range(4)]
    assert sum(counts) == 200 and min(counts) > 25  # uniform would be 50


def test_noise_levels_are_uniform_and_stay_off_the_ends():
    batches = [batch_of(examples(), epoch=e) for e in range(40)]
    t = torch.cat([b.t for b in batches])
    assert T_EPSILON <= t.min() and t.max() <= 1 - T_EPSILON
    assert torch.histc(t, 4, 0, 1).min() > len(t) / 4 * 0.75 and t.min() < 0.05 and t.max() > 0.95
    assert t.mean().item() == pytest.approx(0.5, abs=0.05)


def test_a_canvas_is_noised_as_much_as_its_level_says():
    long = Example([5], random_ids(2000).tolist())
    for epoch in range(4):
        batch = batch_of([long], epoch=epoch, canvas_length=2000)
        share = (batch.noisy != batch.clean).float().mean().item()
        assert share == pytest.approx(float(batch.t) * (1 - 1 / V), abs=0.05)
        noise = batch.noisy[batch.noisy != batch.clean]
        assert noise.min() < 0.1 * V and noise.max() > 0.9 * V  # from the whole vocabulary


@pytest.mark.parametrize(("share", "low", "high"), [(0.0, 0, 0), (0.5, 0.4, 0.6), (1.0, 1, 1)])
def test_share_of_self_conditioned_examples(share, low, high):
    drawn = torch.cat(
        [batch_of(examples(), epoch=e, self_conditioning=share).self_conditioned for e in range(40)]
    )
    assert low <= drawn.float().mean() <= high


@pytest.mark.parametrize("labelled", [1, 2, 5, 40, 64])
def test_a_hole_is_one_run_of_noise_and_half_of_what_counts(labelled):
    clean, vocab_size, sizes, ends = torch.full((64,), 7), 100_000, set(), set()
    for n in range(300):
        noisy, counted = dig_hole(clean, labelled, vocab_size, generator(n))
        # noise is the clean token once in 100,000
        hole = (noisy != clean).nonzero().flatten().tolist()
        size = len(hole)
        assert 1 <= size <= min(LONGEST_HOLE, labelled) and hole == list(
            range(hole[0], hole[0] + size)
        )
        assert (
            counted[hole].all()
            and counted.sum() == min(2 * size, labelled)
            and not counted[labelled:].any()
        )
        sizes.add(size)
        ends |= {hole[0], hole[-1]}
    if labelled >= 40:
        assert sizes == set(range(1, LONGEST_HOLE + 1)) and {0, labelled - 1} <= ends


@pytest.mark.parametrize(("share", "low", "high"), [(0.3, 0.2, 0.4), (1.0, 1, 1)])
def test_share_of_rows_with_one_hole(share, low, high):
    """The other rows, and what else is drawn of these, are as they would be without holes."""
    data = [Example([5], random_ids(64, seed=i).tolist()) for i in range(200)]
    plain, holed = (
        batch_of(data, canvas_length=64, vocab_size=100_000, holes=holes) for holes in (0.0, share)
    )
    one = ~holed.labelled.all(1)
    assert low <= one.float().mean() <= high
    assert torch.equal(plain.noisy[~one], holed.noisy[~one]) and plain.labelled.all()
    assert ((holed.noisy != holed.clean).sum(1)[one] <= LONGEST_HOLE).all()
    for name in ("clean", "ids", "t", "self_conditioned", "start"):
        assert torch.equal(getattr(plain, name), getattr(holed, name)), name


# ---- noise of an example depends on (seed, epoch, number) alone ----------------------------------


def test_noise_does_not_depend_on_batch_size_or_order():
    """Pitfall 24."""
    data = examples()
    whole = batch_of(data)
    for order in ([3], [7, 3], [3, 7, 0, 11], list(reversed(range(12)))):
        part = batch_of([data[i] for i in order], order)
        assert all(rows_equal(part, row, whole, i) for row, i in enumerate(order))


def test_noise_depends_on_seed_epoch_and_number():
    """Pitfall 24."""
    data = [Example([5, 6, 7], random_ids(2 * C).tolist())]
    draws = {
        (s, e, i): batch_of(data, [i], seed=s, epoch=e)
        for s in (0, 1)
        for e in (0, 1)
        for i in (0, 1, 2**31, 2**32)
    }
    assert len({tuple(b.noisy[0].tolist()) + (float(b.t),) for b in draws.values()}) == len(draws)
    states = {tuple(example_generator(s, e, i).get_state().tolist()) for s, e, i in draws}
    assert len(states) == len(draws)


def test_noise_leaves_the_global_stream_alone():
    """Pitfall 24: no worker, restart or user's own draw can shift it."""
    torch.manual_seed(1)
    before = torch.get_rng_state()
    first = batch_of(examples())
    assert torch.equal(torch.get_rng_state(), before)
    torch.manual_seed(2)
    assert all(
        torch.equal(getattr(first, f.name), getattr(batch_of(examples()), f.name))
        for f in fields(Batch)
    )


def test_rounding_the_row_length_changes_nothing_else():
    plain, rounded = batch_of(examples()), batch_of(examples(), multiple=16)
    assert rounded.ids.shape[1] % 16 == 0 and 0 < rounded.ids.shape[1] - plain.ids.shape[1] < 16
    assert all(rows_equal(plain, i, rounded, i) for i in range(12))
    assert (
        not rounded.real[:, plain.ids.shape[1] :].any()
        and (rounded.ids[~rounded.real] == PAD).all()
    )


def test_an_example_without_a_prompt_is_refused():
    with pytest.raises(ValueError, match="^examples: number 41 has an empty prompt, takes"):
        batch_of([Example([5], [6]), Example([], [6])], [40, 41])


# ---- the losses ----------------------------------------------------------------------------------


def test_mean_cross_entropy_by_hand():
    logits = torch.randn(2, 3, 5, generator=generator(), dtype=torch.float64)
    labels, counted = (
        torch.tensor([[0, 4, 2], [1, 1, 3]]),
        torch.tensor([[True, False, True], [True, True, True]]),
    )
    got = mean_cross_entropy(logits, labels, counted)
    for b in range(2):
        terms = [
            -math.log(logits[b, i].exp()[labels[b, i]] / logits[b, i].exp().sum())
            for i in range(3)
            if counted[b, i]
        ]
        assert got[b].item() == pytest.approx(sum(terms) / len(terms))


def test_denoising_loss_counts_corrupted_and_clean_positions_alike_without_a_weight():
    """Pitfall 27: the mean over the canvas, one function of the logits at every noise level."""
    model, batch = tiny(), batch_of(examples())
    with torch.no_grad():
        cache = model.encode(batch.ids)
        logits = denoising_logits(model, cache, batch)
        each = F.cross_entropy(logits.transpose(1, 2), batch.clean, reduction="none")
        expected = torch.stack(
            [row[known].mean() for row, known in zip(each, batch.labelled, strict=True)]
        )
        got = losses(model, batch)[0]
        torch.testing.assert_close(got, expected, atol=1e-5, rtol=1e-5)
        other_level = losses(model, replace(batch, t=batch.t / 3))[0]
    assert torch.equal(got, other_level)
    assert (batch.noisy == batch.clean).any() and (batch.noisy != batch.clean).any()


def test_encoder_loss_is_next_token_cross_entropy_of_prompt_and_answer():
    model, batch = tiny(), batch_of(examples())
    with torch.no_grad():
        hidden, _ = model.encode_hidden(batch.ids)
        logits = model.logits(hidden)
        got = encoder_loss(model, hidden, batch)
    for b in range(len(batch.ids)):
        n = int(batch.real[b].sum())
        expected = F.cross_entropy(logits[b, : n - 1], batch.ids[b, 1:n])
        torch.testing.assert_close(got[b], expected, atol=1e-5, rtol=1e-5)


def test_total_loss_is_the_plain_sum():
    """Pitfall 7: nothing else is in it, a load-balance term least of all."""
    model, batch = tiny(), batch_of(examples())
    with torch.no_grad():
        denoising, encoder = losses(model, batch)
        torch.testing.assert_close(total_loss(model, batch), denoising.mean() + encoder.mean())


def test_a_padded_batch_is_the_mean_of_the_rows_alone():
    """Pitfall 2, the training side: rows of different length are padded on the right."""
    model, data = (
        exact(),
        [
            Example(random_ids(4).tolist(), random_ids(5).tolist()),
            Example(random_ids(9, seed=1).tolist(), random_ids(22, seed=2).tolist(), False),
        ],
    )
    with torch.no_grad():
        together = total_loss(model, batch_of(data, [3, 8]))
        alone = [total_loss(model, batch_of([e], [i])) for e, i in zip(data, (3, 8), strict=True)]
    assert together.item() == pytest.approx(sum(a.item() for a in alone) / 2, abs=2e-4)


def test_ids_under_padding_do_not_count():
    """Pitfall 2."""
    model, batch = exact(), batch_of(examples())
    other = replace(batch, ids=torch.where(batch.real, batch.ids, torch.full_like(batch.ids, 50)))
    assert not torch.equal(other.ids, batch.ids)
    with torch.no_grad():
        for a, b in zip(losses(model, batch), losses(model, other), strict=True):
            torch.testing.assert_close(a, b, atol=1e-4, rtol=1e-4)


def test_the_decoder_sees_nothing_from_its_canvas_on():
    """The clean canvas stands in the row that the encoder reads.

    If the decoder saw it, it would only have to copy it.
    """
    model, batch = exact(), batch_of(examples())
    at = torch.arange(batch.ids.shape[1])[None] >= batch.start[:, None]
    other = replace(batch, ids=torch.where(at, torch.full_like(batch.ids, 50), batch.ids))
    with torch.no_grad():
        a, b = (denoising_logits(model, model.encode(x.ids), x) for x in (batch, other))
    torch.testing.assert_close(a, b, atol=2e-3, rtol=0)


def test_training_sees_what_generation_sees():
    """The logits of the drawn canvas equal decode() after encode() of just the tokens before it."""
    model, batch = exact(), batch_of(examples(6), self_conditioning=0.0)
    with torch.no_grad():
        together = denoising_logits(model, model.encode(batch.ids), batch)
        for b in range(6):
            cache = model.encode(batch.ids[b : b + 1, : int(batch.start[b])])
            alone = model.decode(batch.noisy[b : b + 1], cache)
            torch.testing.assert_close(together[b : b + 1], alone, atol=2e-3, rtol=2e-3)


def test_self_conditioned_rows_are_told_a_first_pass_and_the_others_nothing():
    model, batch = exact(), batch_of(examples(4))
    batch = replace(batch, self_conditioned=torch.tensor([True, False, True, False]))
    with torch.no_grad():
        cache = model.encode(batch.ids)
        got = denoising_logits(model, cache, batch)
        none = model.decode(batch.noisy, cache.upto(batch.start))
        told = model.decode(batch.noisy, cache.upto(batch.start), none)
    torch.testing.assert_close(got[::2], told[::2], atol=1e-3, rtol=0)
    torch.testing.assert_close(got[1::2], none[1::2], atol=1e-3, rtol=0)
    assert (told - none).abs().max() > 0.1


def test_the_first_pass_leaves_no_graph():
    """Pitfall 27: its logits carry no gradient, and nothing is kept of it for the way back."""
    model, batch, calls = tiny(), batch_of(examples(4), self_conditioning=1.0), []
    decode = model.decode

    def watched(canvas, cache, *more):
        out = decode(canvas, cache, *more)
        calls.append((torch.is_grad_enabled(), out.requires_grad, more))
        return out

    model.decode = watched
    denoising_logits(model, model.encode(batch.ids), batch)
    (enabled, needs, first), (enabled2, needs2, second) = calls
    assert (enabled, needs, first) == (False, False, ()) and (enabled2, needs2) == (True, True)
    assert not second[0].requires_grad and torch.equal(second[1], batch.self_conditioned)


# ---- gradients -----------------------------------------------------------------------------------


def gradients(model, objective) -> dict[str, torch.Tensor]:
    model.zero_grad(set_to_none=True)
    objective().backward()
    return {
        n: torch.zeros_like(p) if p.grad is None else p.grad.clone()
        for n, p in model.named_parameters()
    }


def test_the_decoder_loss_alone_trains_the_encoder_through_the_cache():
    """Pitfall 23: with the cache detached some of every layer's gradient is gone.

    With it the keys of the prefix have one.
    """
    model, batch = tiny(), batch_of(examples(4))
    cache = model.encode(batch.ids)
    for t in (*cache.keys, *cache.values):
        t.retain_grad()
    mean_cross_entropy(
        denoising_logits(model, cache, batch), batch.clean, batch.labelled
    ).mean().backward()
    for layer, t in enumerate((*cache.keys, *cache.values)):
        assert t.grad is not None and t.grad.abs().max() > 0, layer
        read = t.grad.abs().sum((1, 3)) > 0
        after = torch.arange(cache.length)[None] >= batch.start[:, None]
        assert not read[after].any()  # and none of it comes from the canvas' own clean tokens

    whole = gradients(model, lambda: losses(model, batch)[0].mean())

    def without_encoder():
        with torch.no_grad():
            cache = model.encode(batch.ids)
        return mean_cross_entropy(
            denoising_logits(model, cache, batch), batch.clean, batch.labelled
        ).mean()

    cut = gradients(model, without_encoder)
    for name in whole:
        reached = not torch.allclose(whole[name], cut[name], rtol=1e-3, atol=1e-7)
        # what stands after the last layer's keys and values reaches no cache, nor does
        # self-conditioning
        outside = (
            name.startswith("self_conditioning")
            or name == "norm.weight"
            or (
                name.startswith("layers.3.")
                and not any(part in name for part in ("k_proj", "k_norm", "input_layernorm"))
            )
        )
        assert reached != outside, name


@pytest.mark.parametrize("part", [0, 1])
def test_gradients_with_and_without_checkpointing_are_equal(part):
    """Pitfall 23, for every parameter."""
    model, batch = tiny(), batch_of(examples(4))
    plain = gradients(model, lambda: losses(model, batch)[part].mean())
    model.gradient_checkpointing = True
    saved = gradients(model, lambda: losses(model, batch)[part].mean())
    for name, expected in plain.items():
        scale = expected.abs().max().item()
        torch.testing.assert_close(
            saved[name], expected, atol=1e-5 * scale + 1e-9, rtol=1e-4, msg=name
        )
    touched = [name for name, g in plain.items() if g.abs().sum() > 0]
    assert (
        len(touched) > 60
        and any("router" in n for n in touched)
        and any("per_expert_scale" in n for n in touched)
    )


def test_gradient_checkpointing_is_at_work():
    """It must not be accepted and ignored: blocks run again on the way back."""
    model, batch, runs = tiny(), batch_of(examples(2)), []
    model.layers[0].register_forward_pre_hook(lambda *_: runs.append(1))
    total_loss(model, batch).backward()
    without = len(runs)
    runs.clear()
    model.gradient_checkpointing = True
    total_loss(model, batch).backward()
    assert len(runs) > without


def test_a_row_without_labels_gives_loss_0_and_gradient_0():
    """Pitfall 25: not NaN, alone and beside another row."""
    model = tiny()
    empty, full = Example([5, 6, 7], [], complete=False), Example([5, 6, 7], [8, 9])
    for data, n in (([empty], 1), ([empty, full], 2)):
        batch = batch_of(data)
        assert not batch.labelled[0].any()
        denoising, _ = losses(model, batch)
        assert denoising[0] == 0 and denoising.shape == (n,)
        got = gradients(model, lambda batch=batch: losses(model, batch)[0][0])
        assert all((g == 0).all() for g in got.values())
        assert all(
            g.isfinite().all()
            for g in gradients(model, lambda batch=batch: total_loss(model, batch)).values()
        )
    # a row of a single token has no next token either
    one = replace(batch_of([Example([5], [], complete=False)]))
    denoising, encoder = losses(model, one)
    assert denoising.item() == 0 and encoder.item() == 0


def test_batch_moves_as_a_whole():
    moved = batch_of(examples(2)).to("meta")
    assert {getattr(moved, f.name).device.type for f in fields(Batch)} == {"meta"}
