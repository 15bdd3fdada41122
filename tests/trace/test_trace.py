"""Trace: what generate recorded is what happened, survives the file, and is small.

Damaged files are named.
"""

import json
from dataclasses import fields
from pathlib import Path

import numpy as np
import pytest
import torch
from tiny import C, V, generator, random_ids, refused, sampler, tiny

from diffgemma_lite import Trace, generate
from diffgemma_lite.sampler import accept, denoise_step
from diffgemma_lite.trace import FORMAT, PROBABILITY_UNIT, CanvasTrace, pack, unpack
from diffgemma_lite.trace.recorder import CANDIDATES, Recorder

IDS = random_ids(2, 11)
RECORDINGS = Path(__file__).parents[2] / "assets" / "recordings"
PINNED = torch.zeros(2, C, dtype=torch.bool)
PINNED[0, :3] = True


@pytest.fixture(scope="module")
def recorded():
    """(out, its steps): two canvases, the first with an initial canvas and pins.

    Row 0 is padded on the left.
    """
    steps = []
    out = generate(
        tiny(),
        IDS,
        sampler(confidence_threshold=2.2, stability_threshold=0),
        max_new_tokens=2 * C,
        generator=generator(1),
        trace=True,
        on_step=lambda s: steps.append(s),
        initial_canvas=random_ids(2, C, seed=3),
        pinned=PINNED,
        attention_mask=torch.tensor([[0] * 4 + [1] * 7, [1] * 11]),
        eos_token_id=list(range(3, 9)),
    )
    return out, steps


def test_the_trace_is_what_happened(recorded):
    out, steps = recorded
    trace, at = out.trace, 0
    assert trace.prompt == [IDS[0, 4:].tolist(), IDS[1].tolist()]
    assert trace.tokens == [
        row[:n].tolist() for row, n in zip(out.tokens, out.lengths.tolist(), strict=True)
    ]
    assert (
        trace.vocab_size == V
        and trace.sampler["entropy_bound"] == 4.0
        and len(trace.canvases) == len(out.steps)
    )
    for k, canvas in enumerate(trace.canvases):
        n = len(canvas.canvas)
        mine, at = steps[at : at + n], at + n
        for name in (
            "canvas",
            "sampled",
            "argmax",
            "entropy",
            "accepted",
            "revised",
            "finished",
            "mean_entropy",
        ):
            assert np.array_equal(
                getattr(canvas, name), np.stack([getattr(s, name).numpy() for s in mine])
            ), name
        assert canvas.temperature.tolist() == [s.temperature for s in mine]
        assert np.array_equal(canvas.next_canvas, np.stack([s.next_canvas.numpy() for s in mine]))
        assert np.array_equal(canvas.last_canvas, mine[-1].next_canvas.numpy())
        assert np.array_equal(
            canvas.pinned, (PINNED if k == 0 else torch.zeros_like(PINNED)).numpy()
        )
        assert (
            canvas.steps.tolist() == out.steps[k]
            and canvas.stop == out.canvas_stop[k]
            and canvas.entropy_bound == 4.0
        )
        for step, ids, probs in zip(mine, canvas.top_ids, canvas.top_probs, strict=True):
            p, i = step.scaled_logits.softmax(-1).sort(-1, descending=True)
            assert np.array_equal(ids, i[..., :CANDIDATES].numpy())
            np.testing.assert_allclose(probs, p[..., :CANDIDATES].numpy(), rtol=1e-6)
    assert at == len(steps)


def test_a_trace_in_a_cell_is_a_line_and_not_its_arrays(recorded):
    shown = repr(recorded[0].trace)
    assert len(shown) < 300 and f"of {C} positions" in shown and "2 rows" in shown


def test_committed_is_the_argmax_of_each_rows_last_step(recorded):
    out, _ = recorded
    first = out.trace.canvases[0]
    for row in range(2):
        expected = first.argmax[out.steps[0][row] - 1, row]
        assert np.array_equal(first.committed[row], expected)
        kept = min(C, int(out.lengths[row]))
        assert expected[:kept].tolist() == out.tokens[row, :kept].tolist()


def assert_equal_within_units(a: Trace, b: Trace):
    assert (a.prompt, a.tokens, a.vocab_size, a.sampler, a.meta, a.texts) == (
        b.prompt,
        b.tokens,
        b.vocab_size,
        b.sampler,
        b.meta,
        b.texts,
    )
    units = {"top_probs": PROBABILITY_UNIT}
    for x, y in zip(a.canvases, b.canvases, strict=True):
        assert (x.stop, x.entropy_bound) == (y.stop, y.entropy_bound)
        for f in fields(CanvasTrace):
            old, new = getattr(x, f.name), getattr(y, f.name)
            if not isinstance(old, np.ndarray):
                assert old == new, f.name
            elif f.name in units:
                assert np.abs(old - new).max() <= units[f.name] / 2 + 1e-9, f.name
            else:
                assert np.array_equal(old, new) and old.dtype.kind == new.dtype.kind, f.name


def test_save_and_load(recorded, tmp_path):
    trace = recorded[0].trace.with_texts(lambda i: f'<{i}>\n"é')
    trace.meta["seed"] = 1
    path = trace.save(tmp_path / "new" / "run.json")
    again = Trace.load(path)
    assert_equal_within_units(trace, again)
    assert [p.name for p in path.parent.iterdir()] == ["run.json"]
    # a second trip loses nothing more
    assert_equal_within_units(again, Trace.load(again.save(tmp_path / "twice.json")))


def random_trace(
    seed: int, rows: int = 2, length: int = 24, steps: int = 6, dtype=torch.float32
) -> Trace:
    """Steps over logits from nearly flat to nearly certain, some positions pinned, bounds of every
    size.
    """
    g = generator(seed)
    s = sampler(
        max_denoising_steps=steps, entropy_bound=float(10 ** (torch.rand((), generator=g) * 5 - 4))
    )
    canvas, pinned = (
        random_ids(rows, length, seed=seed),
        torch.rand(rows, length, generator=g) < 0.1,
    )
    recorder, previous, at = Recorder(s, V), [], canvas
    for n in range(steps):
        spread = 10 ** (torch.rand(rows, length, 1, generator=g) * 2.6 - 1)
        logits = (torch.randn(rows, length, V, generator=g) * spread).to(dtype)
        step = denoise_step(
            logits, at, n, s, previous=previous, generator=g, pinned=pinned, pinned_ids=canvas
        )
        recorder.add(step)
        at, previous = step.next_canvas, [step]
    recorder.commit([steps] * rows, ["steps"] * rows, step)
    return Trace([[3]] * rows, recorder.canvases, [[3]] * rows, V)


def accepted_again(canvas: CanvasTrace, entropy: np.ndarray) -> np.ndarray:
    """What the sampler would accept, given these entropies."""
    pinned = torch.from_numpy(canvas.pinned)
    return np.stack(
        [accept(torch.from_numpy(h), canvas.entropy_bound, pinned).numpy() for h in entropy]
    )


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_stored_trace_never_contradicts_itself(tmp_path, dtype):
    """What was accepted follows from the entropies in the file, to the last position of many random
    traces. With entropies in steps of 1/4096 nat it would not: the same comparison finds that."""
    coarse = 0
    for seed in range(40):
        trace = Trace.load(random_trace(seed, dtype=dtype).save(tmp_path / "run.json"))
        (canvas,) = trace.canvases
        assert canvas.entropy.dtype == np.dtype(str(dtype).removeprefix("torch."))
        assert np.array_equal(accepted_again(canvas, canvas.entropy), canvas.accepted)
        assert canvas.accepted.any(-1).all() and not canvas.accepted.all()
        rounded = (np.rint(canvas.entropy * 4096) / 4096).astype(canvas.entropy.dtype)
        coarse += not np.array_equal(accepted_again(canvas, rounded), canvas.accepted)
    assert coarse > 2


def test_the_shipped_traces_do_not_contradict_themselves():
    paths = [
        p
        for p in RECORDINGS.glob("*.json")
        if json.loads(p.read_text(encoding="utf-8")).get("format") == FORMAT
    ]
    assert paths
    for canvas in (c for path in paths for c in Trace.load(path).canvases):
        assert np.array_equal(accepted_again(canvas, canvas.entropy), canvas.accepted)


def test_a_trace_with_entropies_in_steps_is_still_read(recorded, tmp_path):
    """As recordings were written before."""
    data = recorded[0].trace.to_json()
    for packed, canvas in zip(data["canvases"], recorded[0].trace.canvases, strict=True):
        packed["entropy"] = pack(canvas.entropy, "uint16", 1 / 4096)
    again = Trace.from_json(json.loads(json.dumps(data)))
    assert (
        np.abs(again.canvases[0].entropy - recorded[0].trace.canvases[0].entropy).max() <= 1 / 8192
    )


def test_every_array_survives_with_its_kind(recorded, tmp_path):
    again = Trace.load(recorded[0].trace.save(tmp_path / "run.json")).canvases[0]
    for name in ("accepted", "revised", "finished", "pinned"):
        assert getattr(again, name).dtype == bool
    for name in ("canvas", "argmax", "sampled", "top_ids", "steps", "last_canvas"):
        assert getattr(again, name).dtype == np.int64
    again.canvas[0, 0, 0] = 1  # and can be written to


def test_the_file_is_small(tmp_path):
    """Per position and step: three ids, five candidates with two bytes each for id and probability,
    four for the entropy and three flags are 33 bytes, and base64 adds a third. Plain JSON takes far
    more, the logits 4 V bytes.
    """
    traces = [
        generate(
            tiny(),
            IDS,
            sampler(max_denoising_steps=n),
            max_new_tokens=C,
            generator=generator(1),
            trace=True,
        ).trace
        for n in (4, 24)
    ]
    sizes = [t.save(tmp_path / "run.json").stat().st_size for t in traces]
    cells = [sum(c.canvas.size for c in t.canvases) for t in traces]
    each = (sizes[1] - sizes[0]) / (cells[1] - cells[0])
    assert each < 33 * 4 / 3 + 2
    plain = json.dumps(
        [
            getattr(c, f.name).tolist()
            for c in traces[1].canvases
            for f in fields(CanvasTrace)
            if isinstance(getattr(c, f.name), np.ndarray)
        ]
    )
    assert sizes[1] < len(plain) / 3 and sizes[1] < 4 * V * cells[1] / 5


def test_texts_cover_every_id_that_occurs(recorded):
    trace = recorded[0].trace.with_texts(str)
    used = {i for row in trace.prompt + trace.tokens for i in row}
    for c in trace.canvases:
        for array in (c.canvas, c.sampled, c.argmax, c.last_canvas, c.top_ids):
            used |= set(array.flatten().tolist())
    assert set(trace.texts) == used and all(trace.texts[i] == str(i) for i in used)


def test_recording_changes_nothing(recorded):
    runs = [
        generate(tiny(), IDS, sampler(), max_new_tokens=C, generator=generator(), trace=t)
        for t in (False, True)
    ]
    assert torch.equal(runs[0].tokens, runs[1].tokens) and runs[0].trace is None


def test_the_trace_is_json_for_a_browser(recorded):
    text = json.dumps(recorded[0].trace.to_json(), allow_nan=False)
    assert_equal_within_units(Trace.from_json(json.loads(text)), recorded[0].trace)


@pytest.mark.parametrize(
    ("values", "dtype", "unit"),
    [
        (np.arange(24).reshape(2, 3, 4), "uint32", None),
        (np.array([0, 65535, 70000]), "uint32", None),
        (np.zeros((0, 3)), "uint16", None),
        (np.array([True, False]), "uint8", None),
        (np.linspace(0, 12.4, 50), "uint16", 1 / 4096),
        (np.array([0.0, 1.0]), "uint16", PROBABILITY_UNIT),
        (np.linspace(0, 12.4, 50, dtype=np.float32), "float32", None),
    ],
)
def test_pack_and_unpack(values, dtype, unit):
    again = unpack(json.loads(json.dumps(pack(values, dtype, unit))))
    assert again.shape == values.shape
    np.testing.assert_allclose(again, values, atol=(unit or 0) / 2)


def test_what_does_not_fit_is_clipped_not_wrapped():
    assert unpack(pack(np.array([-1.0, 99.0]), "uint16", 1 / 4096)).tolist() == [0.0, 65535 / 4096]


def _changed(data: dict, how) -> dict:
    copy = json.loads(json.dumps(data))
    how(copy)
    return copy


DAMAGE = {
    "no canvases": lambda d: d.pop("canvases"),
    "a canvas is a list": lambda d: d.__setitem__("canvases", [[]]),
    "an array is missing": lambda d: d["canvases"][0].pop("argmax"),
    "an array is cut": lambda d: d["canvases"][0]["argmax"].__setitem__(
        "data", d["canvases"][0]["argmax"]["data"][:20]
    ),
    "another shape": lambda d: d["canvases"][0]["argmax"].__setitem__("shape", [3]),
    "no base64": lambda d: d["canvases"][0]["argmax"].__setitem__("data", "%%%"),
    "texts are a list": lambda d: d.__setitem__("texts", ["a"]),
}


@pytest.mark.parametrize("case", DAMAGE)
def test_a_damaged_trace_is_refused(recorded, tmp_path, case):
    path = tmp_path / "run.json"
    path.write_text(json.dumps(_changed(recorded[0].trace.to_json(), DAMAGE[case])))
    with refused("trace", "damaged or not whole"):
        Trace.load(path)


@pytest.mark.parametrize(
    "content",
    [
        "",
        "not json",
        '{"format": "diffgemma_lite.trace", "version"',
        "[1, 2]",
        '"text"',
        None,
        "binary",
    ],
)
def test_a_file_that_is_no_trace_is_refused(tmp_path, content):
    path = tmp_path / "run.json"
    if content is not None:
        path.write_bytes(b"\x80\x04\xff" if content == "binary" else content.encode())
    with refused("path", "run.json"):
        Trace.load(path)
    with refused("path"):
        Trace.load(tmp_path)  # a folder


@pytest.mark.parametrize("change", [dict(format="other"), dict(version=2), dict(version=None)])
def test_another_format_or_version_is_refused(recorded, tmp_path, change):
    path = tmp_path / "run.json"
    path.write_text(json.dumps(recorded[0].trace.to_json() | change))
    with refused("path", "format and version"):
        Trace.load(path)
    with refused("trace", "format and version"):
        Trace.from_json(recorded[0].trace.to_json() | change)


def test_a_failed_save_leaves_the_old_file(recorded, tmp_path):
    path = recorded[0].trace.save(tmp_path / "run.json")
    before = path.read_bytes()
    bad = Trace([], [], [], V, meta={"what": object()})
    with pytest.raises(TypeError):
        bad.save(path)
    assert path.read_bytes() == before
