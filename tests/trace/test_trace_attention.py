"""What a trace says about attention is what the pass did.

Recomputed from `observe`, and from nothing when not asked for.
"""

import json

import numpy as np
import pytest
import torch
from tiny import C, V, W, generator, random_ids, refused, sampler, tiny

from diffgemma_lite import Trace, generate
from diffgemma_lite.trace.observe import Observation, most_attended, observe
from diffgemma_lite.trace.recorder import ATTENDED


@pytest.fixture(scope="module")
def model():
    return tiny()


def left_padded():
    ids, mask = random_ids(2, 13, seed=1), torch.ones(2, 13, dtype=torch.long)
    mask[1, :9] = 0
    return ids, mask


def seen_by(attention, first_key) -> Observation:
    seen = Observation()
    seen.attention.extend(attention)
    seen.first_key.extend(first_key)
    return seen


def test_the_largest_weights_of_each_layer_by_the_rows_own_positions():
    weights = torch.rand(2, 3, 5, 9, generator=generator()).softmax(-1)
    weights[1, :, :, :2] = 0  # row 1 has two tokens of padding
    seen = seen_by([weights, weights[..., 4:]], [0, 4])
    positions, values = most_attended(seen, 3, torch.tensor([0, 2]))
    assert positions.shape == values.shape == (2, 5, 2, 3)
    for b, padding in ((0, 0), (1, 2)):
        for q in range(5):
            for layer, first in ((0, 0), (1, 4)):
                mean = seen.attention[layer][b, :, q].mean(0)
                order = sorted(range(len(mean)), key=lambda j: -mean[j])[:3]
                assert positions[b, q, layer].tolist() == [j + first - padding for j in order]
                torch.testing.assert_close(values[b, q, layer], mean[order])


def test_no_more_positions_than_the_smallest_layer_and_row_sees():
    seen = seen_by([torch.rand(2, 1, 2, 6), torch.rand(2, 1, 2, 3)], [0, 3])
    assert most_attended(seen, 4)[0].shape[-1] == 3
    # row 1 sees keys 4 and 5 only
    assert most_attended(seen, 4, torch.tensor([0, 4]))[0].shape[-1] == 2


def test_every_step_and_canvas_of_a_trace_equals_what_observe_sees(model):
    """Two rows, one padded, two canvases.

    The recorded passes are run again from the trace and watched.
    """
    (ids, mask), settings = left_padded(), sampler()
    steps = []
    out = generate(
        model,
        ids,
        settings,
        attention_mask=mask,
        max_new_tokens=2 * C,
        generator=generator(),
        trace="attention",
        on_step=lambda step: steps.append(step),
    )
    layers, padding, n = len(model.layers), torch.tensor([0, 9]), settings.max_denoising_steps
    cache, fresh = None, ids
    for k, canvas in enumerate(out.trace.canvases):
        assert canvas.attended.shape == canvas.attended_weight.shape == (n, 2, C, layers, ATTENDED)
        with torch.no_grad():
            cache = model.encode(fresh, mask if k == 0 else None, cache)
            for i, step in enumerate(steps[k * n : (k + 1) * n]):
                before = steps[k * n + i - 1].scaled_logits if i else None
                with observe(model) as seen:
                    model.decode(step.canvas, cache, before)
                positions, weights = most_attended(seen, ATTENDED, padding)
                assert np.array_equal(canvas.attended[i], positions.numpy())
                assert np.array_equal(canvas.attended_weight[i], weights.numpy())
        fresh = torch.from_numpy(canvas.committed)
    length = np.array([13, 4])[None, :, None, None, None]  # of the prompts
    last = out.trace.canvases[1].attended
    assert last.min() >= 0 and (last < length + 2 * C).all()
    for layer in range(layers):
        # prompt, canvas, and of both only the last W - 1 before this canvas
        if model.config.is_sliding(layer):
            assert (last[:, :, :, layer] >= (length[..., 0] + C - (W - 1))).all()


def test_recording_attention_changes_nothing_else(model):
    ids = random_ids(1, 6)
    runs = [
        generate(model, ids, sampler(), max_new_tokens=C, generator=generator(), trace=t)
        for t in (False, True, "attention")
    ]
    assert runs[0].trace is None and all(torch.equal(r.tokens, runs[0].tokens) for r in runs)
    plain, watched = runs[1].trace.canvases[0], runs[2].trace.canvases[0]
    assert plain.attended is None and plain.attended_weight is None
    for name in ("canvas", "sampled", "argmax", "entropy", "accepted", "top_probs"):
        assert np.array_equal(getattr(plain, name), getattr(watched, name)), name


def test_json_keeps_attention_and_older_files_have_none(model, tmp_path):
    trace = generate(
        model,
        random_ids(1, 6),
        sampler(),
        max_new_tokens=C,
        generator=generator(),
        trace="attention",
    ).trace
    back = Trace.load(trace.save(tmp_path / "trace.json")).canvases[0]
    canvas = trace.canvases[0]
    assert np.array_equal(back.attended, canvas.attended) and back.attended.dtype == np.int64
    assert np.abs(back.attended_weight - canvas.attended_weight).max() <= 0.5 / 65535 + 1e-9
    older = json.loads(json.dumps(trace.to_json()))
    for name in ("attended", "attended_weight"):
        del older["canvases"][0][name]
    read = Trace.from_json(older).canvases[0]
    assert read.attended is None and np.array_equal(read.argmax, canvas.argmax)
    assert Trace.from_json(read_again(read, trace)).canvases[0].attended is None


def read_again(canvas, trace) -> dict:
    plain = Trace(trace.prompt, [canvas], trace.tokens, V).to_json()
    assert "attended" not in plain["canvases"][0]
    return plain


@pytest.mark.parametrize("given", ["all", 2, None])
def test_another_word_is_refused(model, unchecked, given):
    with refused("trace", repr(given)):
        generate(model, random_ids(1, 4), sampler(), max_new_tokens=C, trace=given)
