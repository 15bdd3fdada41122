"""Generation: canvas after canvas, stops and cuts, infill, streaming, metrics by hand, and the
autoregressive mode.
"""

import itertools
import math
import time
from dataclasses import replace

import pytest
import torch
from tiny import C, V, confident, exact, generator, random_ids, sampler, tiny

from diffgemma_lite import SamplerConfig, generate, generate_autoregressive
from diffgemma_lite.answer import Generation, metrics
from diffgemma_lite.generation import next_tokens
from diffgemma_lite.sampler import denoise_step

IDS = random_ids(2, 11)
END = 5


@pytest.fixture(scope="module")
def model():
    return tiny()


@pytest.fixture(scope="module")
def in_any_batch():
    """For equality to the token between batches of other sizes."""
    return exact()


class Script:
    """A logits_filter that makes the model say what the test wants: answer(canvas k, step n,
    logits) -> logits or None.
    """

    def __init__(self, answer):
        self.answer, self.canvas, self.step = answer, 0, 0

    def __call__(self, logits, canvas):
        out = self.answer(self.canvas, self.step, logits)
        self.step += 1
        return logits if out is None else out

    def on_step(self, step):
        """Given to `generate` as on_step.

        A finished canvas or the last step moves on to the next canvas.
        """
        if bool(step.finished.all()) or step.index + 1 == self.steps:
            self.canvas, self.step = self.canvas + 1, 0
        return False


def scripted(model, answer, *, ids=IDS, steps=6, settings=None, **more):
    script = Script(answer)
    script.steps = steps
    settings = SamplerConfig(max_denoising_steps=steps, **(settings or {}))
    return generate(
        model,
        ids,
        settings,
        logits_filter=script,
        on_step=script.on_step,
        generator=more.pop("generator", generator()),
        **more,
    )


def written_by_hand(model, ids, s, canvases, g):
    """The algorithm as a flat loop: encode, noise, denoise, commit the argmax, encode that."""
    cache, fresh, out = None, ids, []
    with torch.no_grad():
        for _ in range(canvases):
            cache = model.encode(fresh, cache=cache)
            canvas, previous = torch.randint(0, V, (len(ids), C), generator=g), []
            for n in range(s.max_denoising_steps):
                logits = model.decode(
                    canvas,
                    cache,
                    previous[-1].scaled_logits if previous and s.self_conditioning else None,
                )
                previous.append(denoise_step(logits, canvas, n, s, previous=previous, generator=g))
                canvas = previous[-1].next_canvas
                if previous[-1].finished.all():
                    break
            fresh = previous[-1].argmax
            out.append(fresh)
    return torch.cat(out, 1)


@pytest.mark.parametrize(
    "changes",
    [
        {},
        dict(self_conditioning=False),
        dict(stability_threshold=3),
        dict(stability_threshold=0, confidence_threshold=2.5),
    ],
)
def test_generate_is_the_written_out_loop(model, changes):
    """Pitfalls 15 and 17: temperature-scaled logits feed the next step, and what is committed and
    re-encoded is the argmax.
    """
    s = sampler(**changes)
    out = generate(model, IDS, s, max_new_tokens=3 * C, generator=generator(4))
    assert torch.equal(out.tokens, written_by_hand(model, IDS, s, 3, generator(4)))


def test_what_is_committed_is_the_argmax_and_it_is_read_causally(model):
    """Pitfall 17."""
    seen, encode = [], model.encode
    model.encode = lambda ids, mask=None, cache=None: seen.append(ids) or encode(ids, mask, cache)
    last, lasts = [], []

    def watch(step):
        last.append(step)
        if step.index == 5:
            lasts.append(step)

    try:
        out = generate(
            model, IDS, sampler(), max_new_tokens=3 * C, generator=generator(), on_step=watch
        )
    finally:
        del model.encode
    assert len(seen) == 3 and torch.equal(seen[0], IDS)  # the last canvas is never read again
    for fresh, step in zip(seen[1:], lasts, strict=False):
        assert torch.equal(fresh, step.argmax) and not torch.equal(step.argmax, step.next_canvas)
    assert torch.equal(out.tokens, torch.cat([s.argmax for s in lasts], 1))


def test_self_conditioning_is_what_the_step_before_believed(model):
    """Pitfall 15: nothing at the first step of a canvas, scaled logits after it."""
    seen, steps, decode = [], [], model.decode
    model.decode = lambda canvas, cache, sc=None: seen.append(sc) or decode(canvas, cache, sc)
    try:
        generate(
            model,
            IDS,
            sampler(),
            max_new_tokens=2 * C,
            generator=generator(),
            on_step=lambda s: steps.append(s),
        )
    finally:
        del model.decode
    assert len(seen) == 12
    for n, (belief, step) in enumerate(zip(seen, [None, *steps], strict=False)):
        assert (belief is None) if n % 6 == 0 else torch.equal(belief, step.scaled_logits)


def test_what_is_handed_on_is_in_the_precision_of_the_model():
    """As the reference does; the sampler itself works in float32."""
    model, beliefs, steps = tiny().bfloat16(), [], []
    decode = model.decode
    model.decode = lambda canvas, cache, sc=None: beliefs.append(sc) or decode(canvas, cache, sc)
    generate(
        model,
        IDS,
        sampler(),
        max_new_tokens=C,
        generator=generator(),
        on_step=lambda s: steps.append(s),
    )
    assert {b.dtype for b in beliefs[1:]} == {torch.bfloat16} and {
        s.scaled_logits.dtype for s in steps
    } == {torch.float32}


# ---- how much ------------------------------------------------------------------------------------


@pytest.mark.parametrize("wanted", [1, C - 1, C, C + 1, 2 * C + 3])
def test_max_new_tokens_is_an_upper_bound(model, wanted):
    """Pitfall 18: whole canvases are denoised, the caller gets what was asked for, and it is the
    beginning of the longer one.
    """
    out = generate(model, IDS, sampler(), max_new_tokens=wanted, generator=generator())
    whole = generate(model, IDS, sampler(), max_new_tokens=3 * C, generator=generator())
    assert out.tokens.shape == (2, wanted) and out.lengths.tolist() == [wanted] * 2
    assert torch.equal(out.tokens, whole.tokens[:, :wanted])
    assert out.stop_reason == ["length"] * 2
    assert len(out.steps) == len(out.canvas_stop) == math.ceil(wanted / C)
    assert out.canvas_stop == [["steps"] * 2] * len(out.steps) and out.steps == [[6, 6]] * len(
        out.steps
    )


def says(*rows: list[int]):
    """The same confident canvases whatever the step.

    One list of C ids per row and canvas, [K][B][C].
    """
    tokens = torch.tensor(rows)
    return lambda k, n, logits: confident(tokens[k])


LONG, ENDS_AT_2, ENDS_AT_0 = [10] * C, [11, 12, END, 13, END, 14, 15, 16], [END] * C


def test_everything_after_the_first_end_token_is_cut(model):
    """Pitfall 18."""
    answer = says([ENDS_AT_2, LONG], [LONG, ENDS_AT_0], [LONG, LONG])
    out = scripted(model, answer, max_new_tokens=3 * C, eos_token_id=END)
    assert out.stop_reason == ["end_token", "end_token"] and out.lengths.tolist() == [3, C + 1]
    assert out.tokens.tolist() == [[11, 12, END] + [0] * (C - 2), LONG + [END]]
    assert out.canvas_stop == [["stable", "stable"], ["ended", "stable"]]  # and no third canvas
    assert out.steps == [[2, 2], [0, 2]]


def test_without_an_end_token_nothing_is_cut(model):
    out = scripted(model, says([ENDS_AT_2, LONG], [LONG, LONG]), max_new_tokens=2 * C)
    assert out.tokens.tolist() == [ENDS_AT_2 + LONG, LONG + LONG] and out.stop_reason == [
        "length",
        "length",
    ]


@pytest.mark.parametrize(
    ("ends", "kept"), [(END, 3), ([END], 3), ((9, END), 3), ([END, 12], 2), ([14, 13], 4)]
)
def test_the_first_of_several_end_tokens(model, ends, kept):
    out = scripted(
        model, says([ENDS_AT_2, LONG], [LONG, LONG]), max_new_tokens=2 * C, eos_token_id=ends
    )
    assert out.lengths.tolist() == [kept, 2 * C]
    assert out.stop_reason == ["end_token", "length"]
    assert out.tokens[0, kept:].tolist() == [0] * (2 * C - kept) and out.canvas_stop[1] == [
        "ended",
        "stable",
    ]


def test_an_end_token_beyond_max_new_tokens_is_not_kept(model):
    """The canvas holds one, the caller asked for less.

    The row stopped for length, and no pad token stands in for it.
    """
    out = scripted(model, says([ENDS_AT_2, LONG]), max_new_tokens=2, eos_token_id=END)
    assert out.tokens.tolist() == [[11, 12], [10, 10]] and out.lengths.tolist() == [2, 2]
    assert out.stop_reason == ["length", "length"]
    out = scripted(model, says([ENDS_AT_2, LONG]), max_new_tokens=3, eos_token_id=END)
    assert out.lengths.tolist() == [3, 3] and out.stop_reason == ["end_token", "length"]


def test_the_pad_token_can_be_chosen(model):
    out = scripted(
        model, says([ENDS_AT_2, LONG]), max_new_tokens=C, eos_token_id=END, pad_token_id=42
    )
    assert out.tokens[0].tolist() == [11, 12, END] + [42] * (C - 3)


def test_the_pad_token_may_be_the_end_token(model):
    """As many tokenizers have it: the first one ends the row, the others are padding."""
    answer = says([ENDS_AT_2, LONG], [LONG, LONG])
    out = scripted(model, answer, max_new_tokens=2 * C, eos_token_id=END, pad_token_id=END)
    assert out.lengths.tolist() == [3, 2 * C] and out.stop_reason == ["end_token", "length"]
    assert out.tokens.tolist() == [[11, 12] + [END] * (2 * C - 2), LONG + LONG]


def test_an_ended_row_is_encoded_as_padding_tokens_and_the_other_row_goes_on(model):
    seen, encode = [], model.encode
    model.encode = lambda ids, mask=None, cache=None: seen.append(ids) or encode(ids, mask, cache)
    try:
        scripted(
            model,
            says([ENDS_AT_2, LONG], [LONG, LONG], [LONG, LONG]),
            max_new_tokens=3 * C,
            eos_token_id=END,
        )
    finally:
        del model.encode
    assert [s.tolist() for s in seen[1:]] == [[[11, 12, END] + [0] * 5, LONG], [[0] * C, LONG]]


# ---- when a canvas stops -------------------------------------------------------------------------


def test_stability_is_counted_anew_in_every_canvas(model):
    """Pitfall 13: the second canvas says the same as the first, and still needs two equal canvases
    of its own.
    """
    out = scripted(model, says([LONG, LONG], [LONG, LONG]), max_new_tokens=2 * C)
    assert out.steps == [[2, 2], [2, 2]] and out.canvas_stop == [["stable"] * 2] * 2


@pytest.mark.parametrize("k", [0, 1, 2, 4])
def test_stability_threshold_through_generate(model, k):
    """Pitfall 13: k + 1 equal canvases, also where only the last few steps are remembered."""
    out = scripted(
        model, says([LONG, LONG]), max_new_tokens=C, settings=dict(stability_threshold=k)
    )
    assert out.steps == [[k + 1, k + 1]]


def test_rows_of_a_canvas_stop_on_their_own(model):
    # row 0 is sure from the beginning, row 1 changes its mind until step 3
    def answer(k, n, logits):
        return confident(torch.tensor([LONG, [20 + min(n, 3)] * C]))

    out = scripted(model, answer, max_new_tokens=C)
    assert out.steps == [[2, 5]] and out.canvas_stop == [["stable", "stable"]]
    assert out.tokens.tolist() == [LONG, [23] * C]
    short = scripted(model, answer, max_new_tokens=C, steps=4)
    assert short.steps == [[2, 4]] and short.canvas_stop == [["stable", "steps"]]


def test_a_finished_row_keeps_its_answer_whatever_comes_later(model):
    """Pitfall 14, through generate: row 0 is stable at step 1.

    What is said for it afterwards does not count.
    """

    def answer(k, n, logits):
        return confident(torch.tensor([LONG if n < 2 else [77] * C, [20 + n] * C]))

    out = scripted(model, answer, max_new_tokens=C)
    assert (
        out.tokens[0].tolist() == LONG
        and out.tokens[1].tolist() == [25] * C
        and out.steps == [[2, 6]]
    )


def test_no_confidence_threshold_runs_every_step(model):
    settings = dict(confidence_threshold=None)
    out = scripted(model, says([LONG, LONG]), max_new_tokens=C, settings=settings)
    assert out.steps == [[6, 6]] and out.canvas_stop == [["steps", "steps"]]


def test_cancelling_keeps_what_stands(model):
    steps = []

    def cancel(step):
        steps.append(step)
        return len(steps) == 6 + 3

    out = generate(
        model, IDS, sampler(), max_new_tokens=4 * C, generator=generator(), on_step=cancel
    )
    assert out.tokens.shape == (2, 2 * C) and torch.equal(out.tokens[:, C:], steps[-1].argmax)
    assert out.stop_reason == ["cancelled"] * 2 and out.steps == [[6, 6], [3, 3]]
    assert out.canvas_stop == [["steps"] * 2, ["cancelled"] * 2]
    whole = generate(model, IDS, sampler(), max_new_tokens=4 * C, generator=generator())
    assert torch.equal(out.tokens[:, :C], whole.tokens[:, :C])


def test_a_row_that_ended_before_the_cancel_still_says_so(model):
    script, calls = Script(says([ENDS_AT_2, LONG], [LONG, LONG])), []
    script.steps = 6

    def cancel(step):
        script.on_step(step)
        calls.append(step)
        return len(calls) == 3

    out = generate(
        model,
        IDS,
        SamplerConfig(max_denoising_steps=6),
        logits_filter=script,
        on_step=cancel,
        generator=generator(),
        max_new_tokens=3 * C,
        eos_token_id=END,
    )
    assert out.stop_reason == ["end_token", "cancelled"] and out.canvas_stop[1] == [
        "ended",
        "cancelled",
    ]
    assert out.lengths.tolist() == [3, 2 * C]


def test_on_step_that_returns_nothing_does_not_cancel(model):
    a = generate(
        model, IDS, sampler(), max_new_tokens=C, generator=generator(), on_step=lambda step: None
    )
    assert a.stop_reason == ["length", "length"]


# ---- streams of random numbers -------------------------------------------------------------------


@pytest.mark.parametrize("draw", ["race", "cdf"])
def test_a_row_with_its_own_generator_is_independent_of_its_batch(in_any_batch, draw):
    """Pitfall 19: row i in a batch equals row i alone, in any order, with early stops and end
    tokens in play.
    """
    ids, s = random_ids(3, 11), sampler(draw=draw, confidence_threshold=2.0, stability_threshold=0)
    ends = list(range(3, 15))

    def run(order):
        return generate(
            in_any_batch,
            ids[order],
            s,
            max_new_tokens=4 * C,
            eos_token_id=ends,
            generator=[generator(i) for i in order],
        )

    together = run([0, 1, 2])
    assert len(set(together.lengths.tolist())) > 1  # rows end at different places
    for order in ([0], [1], [2], [2, 0], [1, 2, 0]):
        out = run(order)
        for row, i in enumerate(order):
            n = int(together.lengths[i])
            assert int(out.lengths[row]) == n and torch.equal(
                out.tokens[row, :n], together.tokens[i, :n]
            )
            assert out.stop_reason[row] == together.stop_reason[i]
            mine, batch = ([k[r] for k in o.steps if k[r]] for o, r in ((out, row), (together, i)))
            assert mine == batch


def test_equal_seeds_give_equal_tokens_and_the_global_stream_works_too(model):
    run = [
        generate(model, IDS, sampler(), max_new_tokens=C, generator=generator(s)).tokens
        for s in (1, 1, 2)
    ]
    assert torch.equal(run[0], run[1]) and not torch.equal(run[0], run[2])
    torch.manual_seed(1)
    assert torch.equal(generate(model, IDS, sampler(), max_new_tokens=C).tokens, run[0])


def test_the_model_and_its_inputs_are_left_alone(model):
    before = {k: v.clone() for k, v in model.state_dict().items()}
    ids, canvas = IDS.clone(), random_ids(2, C)
    kept = canvas.clone()
    generate(
        model,
        ids,
        sampler(),
        max_new_tokens=2 * C,
        generator=generator(),
        initial_canvas=canvas,
        pinned=kept > 50,
    )
    assert torch.equal(ids, IDS) and torch.equal(canvas, kept)
    assert all(torch.equal(v, before[k]) for k, v in model.state_dict().items())


@pytest.mark.parametrize(
    "change",
    [
        dict(entropy_bound=0.5),
        dict(t_max=2.0),
        dict(self_conditioning=False),
        dict(draw="cdf"),
        dict(max_denoising_steps=3),
        dict(confidence_threshold=3.0, stability_threshold=0),
    ],
)
def test_changing_a_knob_between_two_calls_equals_a_fresh_model(model, change):
    """Pitfall 20."""
    generate(model, IDS, sampler(), max_new_tokens=C, generator=generator())
    after = generate(
        model, IDS, replace(sampler(), **change), max_new_tokens=C, generator=generator()
    )
    fresh = generate(tiny(), IDS, sampler(**change), max_new_tokens=C, generator=generator())
    assert torch.equal(after.tokens, fresh.tokens) and after.steps == fresh.steps
    plain = generate(model, IDS, sampler(), max_new_tokens=C, generator=generator())
    assert not (torch.equal(after.tokens, plain.tokens) and after.steps == plain.steps)


def test_the_number_of_steps_can_be_swept(model):
    """Pitfall 22: more steps are another answer, not a better prefix of the same.

    The curve has to be measured.
    """
    outs = {
        n: generate(
            model, IDS, sampler(max_denoising_steps=n), max_new_tokens=C, generator=generator()
        )
        for n in (1, 2, 4, 8)
    }
    assert {n: out.steps for n, out in outs.items()} == {n: [[n, n]] for n in outs}
    assert {n: out.metrics["effective_denoising_steps"] for n, out in outs.items()} == {
        n: n for n in outs
    }
    assert {n: out.metrics["tokens_per_forward"] for n, out in outs.items()} == {
        n: C / n for n in outs
    }
    assert len({tuple(out.tokens.flatten().tolist()) for out in outs.values()}) > 1


# ---- infill --------------------------------------------------------------------------------------


def test_pinned_ids_never_change_in_any_step(model):
    canvas, pinned, steps = (
        random_ids(2, C, seed=3),
        torch.rand(2, C, generator=generator()) < 0.5,
        [],
    )
    out = generate(
        model,
        IDS,
        sampler(),
        max_new_tokens=2 * C,
        generator=generator(4),
        initial_canvas=canvas,
        pinned=pinned,
        on_step=lambda s: steps.append(s),
    )
    assert 0 < pinned.sum() < 2 * C and len(steps) == 12
    for step in steps[:6]:
        for ids in (step.canvas, step.argmax, step.next_canvas):
            assert torch.equal(ids[pinned], canvas[pinned])
        assert not step.accepted[pinned].any() and torch.equal(step.pinned, pinned)
    assert torch.equal(out.tokens[:, :C][pinned], canvas[pinned])
    assert not torch.equal(out.tokens[:, :C][~pinned], canvas[~pinned])
    assert not any(step.pinned.any() for step in steps[6:])  # the first canvas only


def test_infill_leaves_the_stream_where_it_was(model):
    """The draws are made all the same.

    Noise for the whole first canvas, a token and noise for every position and step.
    """
    streams = []
    for given in (
        {},
        {"initial_canvas": random_ids(2, C)},
        {"initial_canvas": random_ids(2, C), "pinned": torch.ones(2, C, dtype=torch.bool)},
    ):
        g = generator(4)
        generate(model, IDS, sampler(), max_new_tokens=C, generator=g, **given)
        streams.append(g.get_state())
    assert torch.equal(streams[0], streams[1]) and torch.equal(streams[0], streams[2])


def test_a_canvas_that_is_all_pinned_comes_back_and_stops_at_once(model):
    canvas = random_ids(2, C, seed=3)
    out = generate(
        model,
        IDS,
        SamplerConfig(max_denoising_steps=6),
        max_new_tokens=C,
        generator=generator(),
        initial_canvas=canvas,
        pinned=torch.ones(2, C, dtype=torch.bool),
    )
    assert (
        torch.equal(out.tokens, canvas)
        and out.steps == [[2, 2]]
        and out.canvas_stop == [["stable"] * 2]
    )


def test_an_initial_canvas_is_where_denoising_starts(model):
    canvas, steps = random_ids(2, C, seed=3), []
    generate(
        model,
        IDS,
        sampler(),
        max_new_tokens=2 * C,
        generator=generator(),
        initial_canvas=canvas,
        on_step=lambda s: steps.append(s),
    )
    assert torch.equal(steps[0].canvas, canvas) and not torch.equal(steps[6].canvas, canvas)
    assert not any(step.pinned.any() for step in steps)


# ---- filters, streams, end -----------------------------------------------------------------------


def test_a_logits_filter_comes_before_the_temperature_and_sees_the_canvas(model):
    allowed = torch.arange(V) % 2 == 0
    seen, steps = [], []

    def even_only(logits, canvas):
        seen.append((logits, canvas))
        return logits.masked_fill(~allowed, -math.inf)

    out = generate(
        model,
        IDS,
        sampler(),
        max_new_tokens=C,
        generator=generator(),
        logits_filter=even_only,
        on_step=lambda s: steps.append(s),
    )
    assert allowed[out.tokens].all()
    for (logits, canvas), step in zip(seen, steps, strict=True):
        assert torch.equal(canvas, step.canvas) and allowed[step.sampled].all()
        assert torch.equal(
            step.scaled_logits[..., allowed], (logits / step.temperature)[..., allowed]
        )


@pytest.mark.parametrize("step", [0, 2])
@pytest.mark.parametrize("row", [0, 1])
def test_nan_logits_raise(model, step, row):
    """Pitfall 21: at the step where they appear, in any row.

    They must not become a page of a valid-looking token.
    """

    def broken(k, n, logits):
        return (
            logits.index_fill(0, torch.tensor([row]), math.nan) if (k, n) == (1, step) else logits
        )

    with pytest.raises(
        ValueError,
        match=f"^model: the logits of step {step} hold NaN, .* after {IDS.shape[1] + C} ",
    ):
        scripted(model, broken, max_new_tokens=2 * C)


def test_nan_weights_raise():
    """Pitfall 21."""
    model = tiny()
    model.layers[1].mlp.up_proj.weight.data[0, 0] = math.nan
    with pytest.raises(
        ValueError, match=f"^model: the logits of step 0 hold NaN, .* after {IDS.shape[1]} "
    ):
        generate(model, IDS, sampler(), max_new_tokens=C)
    with pytest.raises(ValueError, match="^model: the logits of token 0 hold NaN"):
        generate_autoregressive(model, IDS, max_new_tokens=4)


@pytest.mark.parametrize("row", [0, 1])
def test_nan_for_one_row_and_one_token_is_enough(model, row):
    """Pitfall 21, token after token."""
    logits, calls = model.logits, []

    def broken(hidden):
        out = logits(hidden)
        calls.append(1)
        if len(calls) == 3:
            out[row, 0, 50] = math.nan
        return out

    model.logits = broken
    try:
        with pytest.raises(ValueError, match="^model: the logits of token 2 hold NaN"):
            generate_autoregressive(model, IDS, max_new_tokens=6)
    finally:
        del model.logits


class Streamer:
    def __init__(self):
        self.calls = []

    def put(self, value):
        self.calls.append(("put", value.tolist()))

    def put_draft(self, value):
        self.calls.append(("draft", value.tolist()))

    def end(self):
        self.calls.append(("end", None))


def test_streamer_protocol(model):
    """Prompt, a draft after each step, each canvas as committed, end.

    As Transformers' streamers are called.
    """
    streamer, steps = Streamer(), []
    out = generate(
        model,
        IDS,
        sampler(max_denoising_steps=3),
        max_new_tokens=2 * C,
        generator=generator(),
        streamer=streamer,
        on_step=lambda s: steps.append(s),
    )
    assert [name for name, _ in streamer.calls] == ["put", *(["draft"] * 3 + ["put"]) * 2, "end"]
    assert streamer.calls[0][1] == IDS.tolist()
    assert [value for name, value in streamer.calls if name == "draft"] == [
        s.argmax.tolist() for s in steps
    ]
    assert (
        streamer.calls[4][1] == out.tokens[:, :C].tolist()
        and streamer.calls[8][1] == out.tokens[:, C:].tolist()
    )


def test_a_streamer_without_drafts_gets_the_canvases(model):
    class Plain(Streamer):
        put_draft = property()  # hasattr says no

    streamer = Plain()
    generate(model, IDS, sampler(), max_new_tokens=2 * C, generator=generator(), streamer=streamer)
    assert [name for name, _ in streamer.calls] == ["put", "put", "put", "end"]


def test_a_streamer_that_takes_logits_gets_logits(model):
    class Logits(Streamer):
        _takes_logits = True

        def put_draft(self, logits):
            self.calls.append(("draft", tuple(logits.shape)))

    streamer = Logits()
    generate(
        model,
        IDS,
        sampler(max_denoising_steps=2),
        max_new_tokens=C,
        generator=generator(),
        streamer=streamer,
    )
    assert streamer.calls[1] == ("draft", (2, C, V))


@pytest.mark.parametrize("wanted", [3, C + 3])
def test_a_streamer_never_gets_more_than_was_asked_for(model, wanted):
    streamer = Streamer()
    out = generate(
        model, IDS, sampler(), max_new_tokens=wanted, generator=generator(), streamer=streamer
    )
    pieces = [torch.tensor(value) for name, value in streamer.calls if name == "put"][1:]
    assert torch.equal(torch.cat(pieces, 1), out.tokens)


def test_a_streamer_gets_canvases_as_they_are_committed(model):
    """Cut at the end token, with padding after it."""
    streamer = Streamer()
    answer = says([ENDS_AT_2, LONG], [LONG, LONG])
    out = scripted(
        model, answer, max_new_tokens=2 * C, eos_token_id=END, pad_token_id=42, streamer=streamer
    )
    puts = [value for name, value in streamer.calls if name == "put"][1:]
    assert puts[0] == [[11, 12, END] + [42] * (C - 3), LONG] and puts[1] == [[42] * C, LONG]
    assert torch.equal(torch.cat([torch.tensor(p) for p in puts], 1), out.tokens)


def test_another_step_function(model):
    """Masked and posterior samplers are step functions with the same signature."""
    calls = []

    def mine(logits, canvas, index, s, **more):
        calls.append(index)
        return denoise_step(logits, canvas, index, s, **more)

    a = generate(model, IDS, sampler(), max_new_tokens=C, generator=generator(), step_function=mine)
    assert calls == list(range(6))
    assert torch.equal(
        a.tokens, generate(model, IDS, sampler(), max_new_tokens=C, generator=generator()).tokens
    )


def test_padding_on_the_left_is_kept_out(in_any_batch):
    """The ids under it change nothing, in the first canvas or after a commit.

    In float64: in float32 other ids go to other experts, whose sums then round in another way, also
    for the other row.
    """
    model = in_any_batch
    mask = torch.tensor([[0] * 4 + [1] * 7, [1] * 11])
    other = IDS.clone()
    other[0, :4] = random_ids(4, seed=9)
    outs = [
        generate(
            model, i, sampler(), max_new_tokens=2 * C, attention_mask=mask, generator=generator()
        )
        for i in (IDS, other)
    ]
    assert torch.equal(outs[0].tokens, outs[1].tokens)
    bare = generate(model, IDS, sampler(), max_new_tokens=2 * C, generator=generator())
    assert not torch.equal(outs[0].tokens[0], bare.tokens[0])


# ---- metrics -------------------------------------------------------------------------------------


def test_metrics_by_hand():
    """Row 0 keeps 8 + 3 tokens of two canvases that took 6 and 2 steps.

    Row 1 keeps 4 of one canvas of 7 steps.

    effective steps = (8*6 + 3*2 + 4*7) / 15; forwards of row 0 are 6 + 2 + one commit, of row 1
    seven (a third canvas that row 0 no longer needed does not count against it).
    """
    out = Generation(
        torch.zeros(2, 11, dtype=torch.int64),
        torch.tensor([11, 4]),
        ["end_token"] * 2,
        [["stable"] * 2] * 3,
        [[6, 7], [2, 0], [9, 0]],
    )
    got = metrics(out, 8, 0.5)
    assert got["effective_denoising_steps"] == pytest.approx((8 * 6 + 3 * 2 + 4 * 7) / 15)
    assert got["tokens_per_forward"] == pytest.approx(15 / ((6 + 2 + 2 - 1) + (7 + 1 - 1)))
    assert got["tokens_per_second"] == pytest.approx(30.0)


def test_metrics_of_a_run_whose_steps_are_known(model):
    """Two canvases, tokens cut at the end token; tokens per second count the tokens kept."""
    out = scripted(
        model, says([ENDS_AT_2, LONG], [LONG, ENDS_AT_0]), max_new_tokens=2 * C, eos_token_id=END
    )
    assert out.steps == [[2, 2], [0, 2]]
    assert out.metrics["effective_denoising_steps"] == pytest.approx(2.0)
    assert out.metrics["tokens_per_forward"] == pytest.approx((3 + 9) / (2 + (2 + 2 + 1)))
    assert out.metrics["tokens_per_second"] > 0


@pytest.mark.parametrize("own", [False, True])
def test_forwards_are_the_passes_really_run(model, own):
    """Of the whole batch: the prompt's, the decoder's and the commits."""
    passes, decode, encode = [], model.decode, model.encode
    model.decode = lambda *a: passes.append("decode") or decode(*a)
    model.encode = lambda *a: passes.append("encode") or encode(*a)

    def answer(k, n, logits):  # row 0 ends in canvas 0 and is never sure of anything afterwards
        return confident(torch.tensor([ENDS_AT_2 if k == 0 else [20 + n] * C, LONG]))

    try:
        out = scripted(
            model,
            answer,
            max_new_tokens=2 * C,
            eos_token_id=END,
            generator=[generator(0), generator(1)] if own else generator(),
        )
    finally:
        del model.decode, model.encode
    assert out.metrics["forwards"] == len(passes) == passes.count("decode") + len(out.steps)
    assert out.steps == [[2, 2], [0, 2]] and passes.count("decode") == (4 if own else 8)


# ---- autoregressive ------------------------------------------------------------------------------


def test_greedy_equals_encoding_everything_again_for_every_token(in_any_batch):
    out = generate_autoregressive(in_any_batch, IDS, max_new_tokens=20)
    ids = IDS
    with torch.no_grad():
        for _ in range(20):
            ids = torch.cat(
                [ids, in_any_batch.next_token_logits(ids)[0][:, -1].argmax(-1, keepdim=True)], 1
            )
    assert torch.equal(out.tokens, ids[:, 11:])
    assert out.stop_reason == ["length"] * 2 and out.lengths.tolist() == [20, 20]
    assert out.metrics["forwards"] == 20 and out.metrics["tokens_per_forward"] == 1.0


def test_autoregressive_forwards_are_the_passes_run_and_logits_are_those_of_the_last_token(model):
    """Of a prompt of S tokens only one row of [S, V] is wanted.

    At S = 1000 and the published V all of it is a gigabyte.
    """
    shapes, passes, logits, encode_hidden = [], [], model.logits, model.encode_hidden
    model.logits = lambda hidden: shapes.append(tuple(hidden.shape[:2])) or logits(hidden)
    model.encode_hidden = lambda *a: passes.append(1) or encode_hidden(*a)
    try:
        out = generate_autoregressive(model, IDS, max_new_tokens=5)
    finally:
        del model.logits, model.encode_hidden
    assert shapes == [(2, 1)] * 5 and out.metrics["forwards"] == len(passes) == 5


def test_autoregressive_sampling_is_row_independent(in_any_batch):
    """Pitfall 19."""
    ids, ends = random_ids(3, 11), list(range(3, 20))

    def run(order):
        return generate_autoregressive(
            in_any_batch,
            ids[order],
            max_new_tokens=20,
            temperature=1.0,
            eos_token_id=ends,
            generator=[generator(i) for i in order],
        )

    together = run([0, 1, 2])
    assert len(set(together.lengths.tolist())) > 1
    for order in ([0], [1], [2], [2, 0]):
        out = run(order)
        for row, i in enumerate(order):
            n = int(together.lengths[i])
            assert int(out.lengths[row]) == n and torch.equal(
                out.tokens[row, :n], together.tokens[i, :n]
            )
            assert out.stop_reason[row] == together.stop_reason[i]


def test_autoregressive_end_tokens_padding_and_cancel(in_any_batch):
    greedy = generate_autoregressive(in_any_batch, IDS, max_new_tokens=12)
    end = int(greedy.tokens[0, 3])
    first = [row.tolist().index(end) if end in row.tolist() else 11 for row in greedy.tokens]
    out = generate_autoregressive(
        in_any_batch, IDS, max_new_tokens=12, eos_token_id=end, pad_token_id=42
    )
    assert out.lengths.tolist() == [n + 1 for n in first] and out.stop_reason[0] == "end_token"
    for row, n in enumerate(first):
        assert out.tokens[row, : n + 1].tolist() == greedy.tokens[row, : n + 1].tolist()
        assert set(out.tokens[row, n + 1 :].tolist()) <= {42}
    seen = []
    out = generate_autoregressive(
        in_any_batch, IDS, max_new_tokens=12, on_token=lambda t: seen.append(t) or len(seen) == 4
    )
    assert out.tokens.shape == (2, 4) and out.stop_reason == ["cancelled"] * 2
    assert torch.equal(torch.stack(seen, 1), out.tokens)
    masked = generate_autoregressive(
        in_any_batch,
        IDS,
        max_new_tokens=4,
        attention_mask=torch.tensor([[0] * 4 + [1] * 7, [1] * 11]),
    )
    alone = generate_autoregressive(in_any_batch, IDS[:1, 4:], max_new_tokens=4)
    assert masked.tokens[0].tolist() == alone.tokens[0].tolist()


@pytest.mark.parametrize("extra", [[], [90, 91]])
def test_autoregressive_stops_at_any_of_several_end_tokens(in_any_batch, extra):
    """When the last row has ended nothing more is run."""
    greedy = generate_autoregressive(in_any_batch, IDS, max_new_tokens=12).tokens.tolist()
    ends = [*extra, greedy[0][2], greedy[1][4]]
    first = [next(n for n, t in enumerate(row) if t in ends) for row in greedy]
    out = generate_autoregressive(
        in_any_batch, IDS, max_new_tokens=12, eos_token_id=ends, pad_token_id=42
    )
    longest = max(first) + 1
    assert out.tokens.tolist() == [
        row[: n + 1] + [42] * (longest - n - 1) for row, n in zip(greedy, first, strict=True)
    ]
    assert out.stop_reason == ["end_token"] * 2 and out.metrics["forwards"] == longest


def test_tokens_per_second_are_kept_tokens_over_the_time_of_the_whole_call(model, monkeypatch):
    """The clock is read when the call begins and when it ends, and goes on by 4 seconds between."""
    monkeypatch.setattr(time, "perf_counter", itertools.count(0, 4).__next__)
    out = scripted(model, says([ENDS_AT_2, LONG]), max_new_tokens=C, eos_token_id=END)
    assert out.metrics["tokens_per_second"] == (3 + C) / 4
    monkeypatch.setattr(time, "perf_counter", itertools.count(0, 4).__next__)
    assert (
        generate_autoregressive(model, IDS, max_new_tokens=6).metrics["tokens_per_second"]
        == 2 * 6 / 4
    )


def test_next_tokens():
    x = torch.randn(200, V, generator=generator())
    assert torch.equal(next_tokens(x, 0, None), x.argmax(-1))
    expected = torch.multinomial((x / 0.3).softmax(-1), 1, generator=generator(1))[:, 0]
    assert torch.equal(next_tokens(x, 0.3, generator(1)), expected)


def states(own) -> list[torch.Tensor]:
    return [g.get_state() for g in own]


def test_the_generator_of_a_row_stands_where_it_would_stand_alone(model):
    """A row that has ended draws nothing for the canvases that the others still need."""
    tokens = torch.tensor([[ENDS_AT_2, LONG], [LONG, LONG]])

    def after(order):
        own = [generator(i) for i in order]
        scripted(
            model,
            lambda k, n, logits: confident(tokens[k, order]),
            ids=IDS[order],
            max_new_tokens=2 * C,
            eos_token_id=END,
            generator=own,
        )
        return states(own)

    together = after([0, 1])
    assert all(torch.equal(after([i])[0], together[i]) for i in (0, 1))


def test_autoregressive_generators_stand_where_they_would_stand_alone(in_any_batch):
    def after(order, **more):
        own = [generator(i) for i in order]
        out = generate_autoregressive(
            in_any_batch, IDS[order], max_new_tokens=9, temperature=1.0, generator=own, **more
        )
        return out, states(own)

    free = after([0, 1])[0].tokens.tolist()
    end = next(t for t in free[0][:8] if t not in free[1])  # row 0 ends at it, row 1 goes on
    together = after([0, 1], eos_token_id=end)[1]
    assert all(torch.equal(after([i], eos_token_id=end)[1][0], together[i]) for i in (0, 1))


def test_the_stream_ends_whatever_happens(model):
    """A reader of the stream waits for end(): it comes also when a step raises."""

    class Stream:
        ended = 0

        def put(self, value):
            pass

        def end(self):
            self.ended += 1

    def broken(step):
        raise RuntimeError("on purpose")

    stream = Stream()
    with pytest.raises(RuntimeError, match="on purpose"):
        generate(model, IDS, sampler(), max_new_tokens=C, on_step=broken, streamer=stream)
    assert stream.ended == 1

    class Endless:
        put = print

    for thing, kind in ((3, "int"), (Endless(), "Endless")):
        with pytest.raises(ValueError, match=f"streamer: got {kind}, takes an object with put"):
            generate(model, IDS, sampler(), max_new_tokens=C, streamer=thing)


def test_kernels_are_chosen_one_by_one():
    model = tiny().set_kernels(experts="loop")
    model.set_kernels(fused_norm=True)
    assert model.layers[0].experts.path == "loop" and model.layers[0].input_layernorm.fused
    model.set_kernels(experts="grouped")
    assert model.layers[0].experts.path == "grouped" and model.layers[0].input_layernorm.fused
