"""`generate` against Transformers': the same tokens from the same seed, canvas after canvas.

Tokens per forward is the one number not compared: ours is the report's (commit passes counted), the
reference's counts decoder passes only. The denoising steps behind both are compared instead.
"""

from __future__ import annotations

from dataclasses import asdict, replace

import pytest
import torch
from reference import FULL, SLIDING, left_padding, ours, read_by_transformers, tokens
from torch import Tensor, nn
from transformers.models.diffusion_gemma.generation_diffusion_gemma import EntropyBoundSamplerConfig

from diffgemma_lite import DiffusionGemma, Generation, SamplerConfig, generate
from diffgemma_lite.moe import Experts

# Few enough layers for random weights to agree with themselves: most canvases come to rest, not
# all, and not at once
TWO_LAYERS = {"num_hidden_layers": 2, "layer_types": [SLIDING, FULL]}
SAMPLER = SamplerConfig(max_denoising_steps=8, entropy_bound=0.3, confidence_threshold=0.3)
ENDS = [1, 9, 31, 77, 120, 200]  # several, so that random models end some rows
LENGTH = 20
SEEDS = range(10)


def prompt(model, rows: int, seed: int) -> tuple[Tensor, Tensor | None]:
    """Ids and mask; a batch is left-padded.

    The last id is the reference's image token, which a text does not hold.
    """
    ids = tokens((rows, LENGTH), model.config.vocab_size - 1, seed)
    return ids, None if rows == 1 else left_padding(LENGTH, [0, 4, 11][:rows])


def reference_generate(
    reference: nn.Module,
    ids: Tensor,
    mask: Tensor | None,
    sampler: SamplerConfig,
    seed: int,
    max_new_tokens: int,
    ends: list[int] | None = ENDS,
    **more: Tensor,
) -> tuple[Tensor, list[int]]:
    """(new tokens [B, whole canvases], denoising steps of each row).

    It draws from torch's global generator.
    """
    settings = {
        k: v
        for k, v in asdict(sampler).items()
        if k not in ("entropy_bound", "self_conditioning", "draw")
    }
    more |= {} if mask is None else {"attention_mask": mask}
    torch.manual_seed(seed)
    out = reference.generate(
        ids,
        sampler_config=EntropyBoundSamplerConfig(entropy_bound=sampler.entropy_bound),
        max_new_tokens=max_new_tokens,
        eos_token_id=ends,
        pad_token_id=0,
        **settings,
        **more,
    )
    new = out.sequences[:, ids.shape[1] :]
    return new, ((new != 0).sum(-1) / out.tokens_per_forward).round().int().tolist()


def assert_same_tokens(
    out: Generation, new: Tensor, max_new_tokens: int, ends: list[int] | None = ENDS
) -> None:
    """Ours leaves out columns that are padding in every row and is cut at max_new_tokens.

    The reference is neither.
    """
    new = new[:, :max_new_tokens]
    kept = out.tokens.shape[1]
    assert torch.equal(out.tokens, new[:, :kept])
    assert bool((new[:, kept:] == 0).all())
    for row, length, reason in zip(
        new.tolist(), out.lengths.tolist(), out.stop_reason, strict=True
    ):
        first = next((i for i, token in enumerate(row) if ends and token in ends), None)
        assert (length, reason) == (
            (len(row), "length") if first is None else (first + 1, "end_token")
        )


def compare(
    reference: nn.Module,
    model,
    rows: int,
    sampler: SamplerConfig,
    seed: int,
    max_new_tokens: int | None = None,
    ends: list[int] | None = ENDS,
    initial: Tensor | None = None,
) -> Generation:
    """Generate with both from one seed and ask for the same tokens and steps.

    Three canvases unless told.
    """
    wanted = 3 * model.config.canvas_length if max_new_tokens is None else max_new_tokens
    ids, mask = prompt(model, rows, seed)
    more = {} if initial is None else {"decoder_input_ids": initial}
    new, steps = reference_generate(reference, ids, mask, sampler, seed, wanted, ends, **more)
    out = generate(
        model,
        ids,
        sampler,
        attention_mask=mask,
        max_new_tokens=wanted,
        eos_token_id=ends,
        pad_token_id=0,
        generator=torch.Generator().manual_seed(seed),
        initial_canvas=initial,
    )
    assert_same_tokens(out, new, wanted, ends)
    assert [sum(canvas[row] for canvas in out.steps) for row in range(rows)] == steps
    return out


@pytest.mark.parametrize("rows", [1, 3])
def test_three_canvases_equal_the_reference_token_for_token(pair, rows: int) -> None:
    """One generator, ten seeds; end tokens, early stops and running out of steps all happen, or the
    test says so.
    """
    reference, model = pair(TWO_LAYERS)
    outs = [compare(reference, model, rows, SAMPLER, seed) for seed in SEEDS]
    canvas_stops = [stop for out in outs for canvas in out.canvas_stop for stop in canvas]
    reasons = [reason for out in outs for reason in out.stop_reason]
    print(
        {kind: canvas_stops.count(kind) for kind in sorted(set(canvas_stops))},
        {r: reasons.count(r) for r in sorted(set(reasons))},
    )
    assert {"stable", "steps"} <= set(canvas_stops)
    assert {"end_token", "length"} <= set(reasons)
    assert len({tuple(out.tokens.flatten().tolist()) for out in outs}) == len(outs)
    assert any(
        0 < count < SAMPLER.max_denoising_steps
        for out in outs
        for canvas in out.steps
        for count in canvas
    )
    if rows > 1:
        assert "ended" in canvas_stops, "no row had ended while another went on"


@pytest.mark.parametrize(
    "changes",
    [
        {"stability_threshold": 0},
        {"stability_threshold": 2},
        {"stability_threshold": 3, "confidence_threshold": 2.0},
        {"confidence_threshold": 1e-9},
        {"entropy_bound": 1e-3},
        {"entropy_bound": 50.0},
        {"t_max": 1.5, "t_min": 0.1},
        {"max_denoising_steps": 1},
        {"max_denoising_steps": 17},
    ],
    ids=str,
)
def test_every_knob_means_what_it_means_to_the_reference(pair, changes: dict) -> None:
    reference, model = pair(TWO_LAYERS)
    sampler = replace(SAMPLER, **changes)
    stops = [
        s
        for seed in (0, 1)
        for canvas in compare(reference, model, 3, sampler, seed).canvas_stop
        for s in canvas
    ]
    if sampler.stability_threshold == 0:
        assert "stable" in stops
    if sampler.confidence_threshold == 1e-9 or sampler.max_denoising_steps == 1:
        assert "stable" not in stops, "one step is never stable, and no model is that sure"


def test_the_default_kernels_write_the_same_tokens_but_for_near_ties(pair, monkeypatch) -> None:
    """Grouped experts add in another order, so the logits differ in the last bits, and a choice
    that hangs on those (an expert, a draw, a position at the bound) can fall the other way and lead
    to another text. It is rare: the share is printed, and it is the same tokens, steps and stops
    wherever nothing of the kind happened."""
    reference, model = pair(TWO_LAYERS)
    monkeypatch.setattr(Experts, "loop", lambda *_: pytest.fail("the loop was run"))
    model.set_kernels(experts="grouped")
    agreed, differed = 0, {}
    for seed in SEEDS:
        try:
            compare(reference, model, 3, SAMPLER, seed, 2 * model.config.canvas_length)
            agreed += 1
        except AssertionError as error:
            differed[seed] = str(error).splitlines()[:1]
    print(
        f"{agreed} of {len(SEEDS)} seeds, three rows each, "
        f"agree on every token with the default kernels; others: {differed}"
    )
    assert agreed >= 0.8 * len(SEEDS)


@pytest.mark.parametrize("shape", ["grouped_queries", "window_below_canvas", "all_experts_chosen"])
def test_other_shapes(pair, shape: str) -> None:
    compare(*pair(shape), 3, SAMPLER, 0)


@pytest.mark.parametrize("ends", [None, [9]], ids=["no end token", "one end token"])
@pytest.mark.parametrize("max_new_tokens", [1, 7, 8, 9, 19])
def test_lengths_that_are_no_whole_canvas(pair, max_new_tokens: int, ends) -> None:
    """The reference always writes whole canvases; ours are its tokens, cut."""
    reference, model = pair(TWO_LAYERS)
    out = compare(
        reference, model, 3, replace(SAMPLER, max_denoising_steps=4), 3, max_new_tokens, ends
    )
    assert out.tokens.shape[1] <= max_new_tokens


def test_a_given_canvas_is_where_both_start(pair) -> None:
    """The noise is drawn all the same, so the stream after it is the same too."""
    reference, model = pair(TWO_LAYERS)
    sampler = replace(SAMPLER, max_denoising_steps=3)
    for seed in (0, 1):
        given = tokens((3, model.config.canvas_length), model.config.vocab_size, 50 + seed)
        with_canvas = compare(reference, model, 3, sampler, seed, initial=given)
        assert not torch.equal(
            with_canvas.tokens[:, :8], compare(reference, model, 3, sampler, seed).tokens[:, :8]
        )


def test_without_a_generator_torchs_global_one_is_drawn_from(pair) -> None:
    reference, model = pair(TWO_LAYERS)
    ids, mask = prompt(model, 3, 5)
    new, _ = reference_generate(reference, ids, mask, SAMPLER, 5, 16)
    torch.manual_seed(5)
    out = generate(
        model,
        ids,
        SAMPLER,
        attention_mask=mask,
        max_new_tokens=16,
        eos_token_id=ENDS,
        pad_token_id=0,
    )
    assert_same_tokens(out, new, 16)


def test_the_defaults_are_the_references_defaults(pair) -> None:
    """No sampler, no generation config: 48 steps, published bound, temperatures and thresholds."""
    reference, model = pair(TWO_LAYERS)
    ids, _ = prompt(model, 1, 0)
    torch.manual_seed(0)
    new = reference.generate(ids, max_new_tokens=8).sequences[:, LENGTH:]
    out = generate(model, ids, max_new_tokens=8, generator=torch.Generator().manual_seed(0))
    assert torch.equal(out.tokens, new)


def test_without_self_conditioning(pair, monkeypatch) -> None:
    """The reference has no such knob, so its step is told to forget.

    One row, because its frozen rows need the logits.
    """
    reference, model = pair(TWO_LAYERS)
    step = reference._denoising_step
    monkeypatch.setattr(
        reference, "_denoising_step", lambda **kw: step(**kw | {"self_conditioning_logits": None})
    )
    forgetful = replace(SAMPLER, self_conditioning=False)
    for seed in (0, 1):
        ids, _ = prompt(model, 1, seed)
        new, _ = reference_generate(reference, ids, None, forgetful, seed, 24)
        settings = {"max_new_tokens": 24, "eos_token_id": ENDS, "pad_token_id": 0}
        out = generate(
            model, ids, forgetful, generator=torch.Generator().manual_seed(seed), **settings
        )
        assert_same_tokens(out, new, 24)
        remembering = generate(
            model, ids, SAMPLER, generator=torch.Generator().manual_seed(seed), **settings
        )
        assert out.tokens.tolist() != remembering.tokens.tolist()


def test_bfloat16_generates_the_same_tokens(pair, tmp_path) -> None:
    """The logits handed on for self-conditioning are rounded to the model's dtype, as the reference
    does.
    """
    ours(pair(TWO_LAYERS)[0], tmp_path)
    reference = read_by_transformers(tmp_path, dtype=torch.bfloat16)
    model = DiffusionGemma.from_pretrained(tmp_path, dtype=torch.bfloat16).set_kernels(
        experts="loop"
    )
    compare(reference, model, 3, replace(SAMPLER, max_denoising_steps=4), 0, 16)


def test_with_one_generator_per_row_a_row_does_not_know_its_batch(pair) -> None:
    """Row i alone equals row i in a batch, in any order; finished and ended rows stop drawing."""
    _, model = pair(TWO_LAYERS)
    ids, mask = prompt(model, 3, 2)
    settings = {"max_new_tokens": 24, "eos_token_id": ENDS, "pad_token_id": 0}

    def run(rows: list[int], seed: int) -> Generation:
        generators = [torch.Generator().manual_seed(100 * seed + row) for row in rows]
        return generate(
            model, ids[rows], SAMPLER, attention_mask=mask[rows], generator=generators, **settings
        )

    def row(out: Generation, i: int) -> tuple:
        return (
            out.tokens[i, : out.lengths[i]].tolist(),
            out.stop_reason[i],
            [c[i] for c in out.steps if c[i]],
        )

    unlike = 0
    for seed in range(4):
        together = run([0, 1, 2], seed)
        unlike += len({tuple(c) for c in zip(*together.steps, strict=True)}) > 1
        for order in ([0], [1], [2], [2, 0, 1], [1, 0]):
            out = run(order, seed)
            assert [row(out, i) for i in range(len(order))] == [row(together, b) for b in order], (
                f"order {order}, seed {seed}"
            )
    assert unlike, "all rows took the same steps in every batch, so none was ever frozen"
