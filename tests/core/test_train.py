"""Training: exact resume after a real kill, what is refused, and the documented path from training
to text.
"""

import json
import math
import os
import signal
import subprocess
import sys
import textwrap

import pytest
import torch
import trained
from safetensors.torch import load_file
from tiny import C, Example, V, generator
from trained import PLAN, examples, fresh, run

from diffgemma_lite import Config, DiffusionGemma, SamplerConfig, generate, train_state
from diffgemma_lite.train import (
    STATE,
    BatchStream,
    TrainConfig,
    epoch_batches,
    learning_rate_at,
    make_optimizer,
    save_state,
    train,
)
from diffgemma_lite.train_state import data_identity


def assert_same_run(a, b):
    assert a[0].keys() == b[0].keys()
    assert all(torch.equal(a[0][k], b[0][k]) for k in a[0])
    assert a[1] == b[1]


@pytest.fixture(scope="module")
def whole():
    """The run that nothing interrupts."""
    return run()


# ---- resume --------------------------------------------------------------------------------------

SCRIPT = """
    import os, signal, sys
    import torch
    sys.path.insert(0, {helpers!r})
    torch.set_num_threads({threads})
    from trained import PLAN, examples, fresh, run
    from diffgemma_lite import train_state

    def die(*_):
        os.kill(os.getpid(), getattr(signal, "SIGKILL", signal.SIGTERM))

    {when}
    raise SystemExit("nothing killed this process")
"""
KILLED = {
    "between two checkpoints": "run({folder!r}, on_log=lambda entry: die() if entry['step'] == "
    "6 else None)",
    "while a checkpoint is written": """
    save_file = train_state.save_file

    def half(tensors, path, metadata):
        save_file(tensors, path, metadata)
        if metadata['step'] == '8':
            os.truncate(path, os.path.getsize(path) // 2)
            die()

    train_state.save_file = half
    run({folder!r})""",
}


@pytest.mark.parametrize("when", KILLED)
def test_resume_after_a_kill_is_bit_identical_to_no_kill(whole, tmp_path, when):
    """The process is killed, not asked to stop.

    Nothing it would do on the way out may be needed.
    """
    folder = str(tmp_path / "run")
    body = textwrap.dedent(KILLED[when]).format(folder=folder).replace("\n", "\n    ")
    script = SCRIPT.format(
        helpers=os.path.dirname(trained.__file__), threads=torch.get_num_threads(), when=body
    )
    child = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script)], capture_output=True, text=True
    )
    killed = -signal.SIGKILL if os.name != "nt" else signal.SIGTERM
    assert child.returncode == killed, child.stderr
    assert int(_meta(tmp_path / "run")["step"]) == 4  # the last whole checkpoint
    assert_same_run(run(folder), whole)


def _meta(folder) -> dict:
    header = (folder / STATE).read_bytes()
    size = int.from_bytes(header[:8], "little")
    return json.loads(header[8 : 8 + size])["__metadata__"]


@pytest.mark.parametrize("at", [3, 6])
def test_stop_and_resume_in_process(whole, tmp_path, at):
    weights, log = run(tmp_path, on_log=lambda entry: entry["step"] == at)
    assert log[-1]["step"] == at and int(_meta(tmp_path)["step"]) == at
    assert_same_run(run(tmp_path), whole)


@pytest.mark.parametrize("at", [1, 5, 8])
def test_an_interrupt_checkpoints_where_it_stands(whole, tmp_path, monkeypatch, at):
    """Ctrl-C between two log entries.

    The losses since the last one are kept too, so that the log comes out the same.
    """
    call = BatchStream.__call__

    def interrupted(self, step):
        if step == at:
            raise KeyboardInterrupt
        return call(self, step)

    with monkeypatch.context() as patch:
        patch.setattr(BatchStream, "__call__", interrupted)
        with pytest.raises(KeyboardInterrupt):
            run(tmp_path)
    assert int(_meta(tmp_path)["step"]) == at
    assert_same_run(run(tmp_path), whole)


def test_an_interrupt_inside_the_optimiser_saves_nothing_half_done(whole, tmp_path, monkeypatch):
    """Some weights moved, others not.

    Such a state is no step of the run, so the checkpoint before it is kept.
    """
    step, calls = torch.optim.AdamW.step, []

    def half(self, *more):
        calls.append(1)
        if len(calls) == 7:
            self.param_groups[0]["params"][0].data.add_(1.0)
            raise KeyboardInterrupt
        return step(self, *more)

    with monkeypatch.context() as patch:
        patch.setattr(torch.optim.AdamW, "step", half)
        with pytest.raises(KeyboardInterrupt):
            run(tmp_path)
    assert int(_meta(tmp_path)["step"]) == 4
    assert_same_run(run(tmp_path), whole)


def test_a_finished_run_is_returned_as_it_is(whole, tmp_path):
    run(tmp_path)
    before = (tmp_path / STATE).read_bytes()
    assert_same_run(run(tmp_path, on_log=lambda entry: pytest.fail("a step was taken")), whole)
    assert (tmp_path / STATE).read_bytes() == before


def test_the_folder_changes_nothing_but_keeps_the_log(whole, tmp_path):
    assert_same_run(run(tmp_path / "deep" / "folder"), whole)
    lines = (tmp_path / "deep" / "folder" / "log.jsonl").read_text().splitlines()
    assert [json.loads(line)["step"] for line in lines] == [3, 6, 9]
    assert sorted(p.name for p in (tmp_path / "deep" / "folder").iterdir()) == ["log.jsonl", STATE]


@pytest.mark.parametrize(
    "change", [dict(seed=1), dict(learning_rate=2e-3), dict(steps=10), dict(betas=(0.9, 0.95))]
)
def test_resume_with_another_train_config_is_refused(tmp_path, change):
    run(tmp_path, on_log=lambda entry: True)
    before = (tmp_path / STATE).read_bytes()
    with pytest.raises(
        ValueError,
        match="^folder: .* holds a run with another TrainConfig .*takes the same, "
        "or another folder",
    ):
        run(tmp_path, **change)
    assert (tmp_path / STATE).read_bytes() == before


@pytest.mark.parametrize(
    "change", [dict(sliding_window=16), dict(hidden_size=16), dict(num_experts=2)]
)
def test_resume_with_another_model_is_refused(tmp_path, change):
    run(tmp_path, on_log=lambda entry: True)
    with pytest.raises(ValueError, match="^folder: .* holds a run with another Config"):
        run(tmp_path, model=DiffusionGemma(Config.preset("tiny", **change)))


def changed(how: str) -> list[Example]:
    data = examples()
    if how == "a token":
        data[5].response[2] += 1
    elif how == "where the prompt ends":
        data[5].response.insert(0, data[5].prompt.pop())
    elif how == "complete":
        data[5].complete = not data[5].complete
    elif how == "order":
        data[0], data[1] = data[1], data[0]
    else:
        data.pop()
    return data


@pytest.mark.parametrize(
    "how", ["a token", "where the prompt ends", "complete", "order", "one less"]
)
def test_resume_on_other_data_is_refused(tmp_path, how):
    run(tmp_path, on_log=lambda entry: True)
    before = (tmp_path / STATE).read_bytes()
    with pytest.raises(
        ValueError,
        match="^examples: are .*but .* holds a run on .*takes the same data, or another folder",
    ):
        train(fresh(), changed(how), TrainConfig(**PLAN), folder=tmp_path, progress=False)
    assert (tmp_path / STATE).read_bytes() == before


def test_the_digest_of_the_data_is_that_of_its_ids_whatever_holds_them():
    plain = data_identity(examples())
    assert plain == data_identity(
        [Example(torch.tensor(e.prompt), tuple(e.response), e.complete) for e in examples()]
    )
    assert (
        plain["examples"] == 14
        and len({data_identity(changed(h))["blake2b"] for h in ("order", "complete", "a token")})
        == 3
    )


def test_each_start_is_in_the_state_with_its_machine(tmp_path, monkeypatch):
    """A run that is resumed elsewhere.

    The state says from which step on, and a finished run adds nothing.
    """
    run(tmp_path, on_log=lambda entry: entry["step"] == 3)
    first = json.loads(_meta(tmp_path)["starts"])
    assert [s["step"] for s in first] == [0] and first[0]["torch"] == torch.__version__
    assert first[0]["cores"] == os.cpu_count() and first[0]["threads"] == torch.get_num_threads()
    monkeypatch.setattr(os, "cpu_count", lambda: 64)
    run(tmp_path)
    run(tmp_path)
    starts = json.loads(_meta(tmp_path)["starts"])
    assert [(s["step"], s["cores"]) for s in starts] == [(0, first[0]["cores"]), (3, 64)]


@pytest.mark.parametrize("content", [b"", b"not a checkpoint", None])
def test_a_broken_checkpoint_is_refused_and_left_alone(tmp_path, content):
    if content is None:  # cut in the middle
        run(tmp_path, on_log=lambda entry: True)
        content = (tmp_path / STATE).read_bytes()[:-1000]
    (tmp_path / STATE).write_bytes(content)
    with pytest.raises(ValueError, match="^folder: .*not a whole checkpoint"):
        run(tmp_path)
    assert (tmp_path / STATE).read_bytes() == content


# ---- a run that diverges -------------------------------------------------------------------------


@pytest.mark.parametrize(
    "every", [dict(log_every=3, checkpoint_every=4), dict(log_every=9, checkpoint_every=2)]
)
def test_a_run_that_diverges_keeps_the_last_good_checkpoint(tmp_path, monkeypatch, every):
    clip, calls = torch.nn.utils.clip_grad_norm_, []

    def explode(parameters, norm):
        parameters = list(parameters)
        calls.append(1)
        if len(calls) == 6:
            parameters[0].grad.fill_(math.inf)
        return clip(parameters, norm)

    monkeypatch.setattr(torch.nn.utils, "clip_grad_norm_", explode)
    with pytest.raises(ValueError, match="^loss: got .* at step 6, takes finite ones"):
        run(tmp_path, **every)
    assert int(_meta(tmp_path)["step"]) == 4
    assert all(t.isfinite().all() for t in load_file(tmp_path / STATE).values())


def test_nan_weights_end_the_run(tmp_path):
    model = fresh()
    model.norm.weight.data[0] = math.nan
    with pytest.raises(ValueError, match="^loss: got .*nan.* at step 3"):
        run(tmp_path, model=model)
    assert not (tmp_path / STATE).exists()


# ---- bad input, before the first step ------------------------------------------------------------

BROKEN = [
    *[(name, v) for name in ("steps", "batch_size", "checkpoint_every", "log_every")
      for v in (0, -1, 1.5, True, "3", None)],
    *[(name, v) for name in ("warmup_steps", "seed") for v in (-1, 0.5, None, True)],
    ("seed", 2**32), *[(name, v) for name in ("learning_rate", "clip_norm")
                       for v in (0, -1e-3, math.nan, math.inf, "1", None, True)],
    *[(name, v) for name in ("final_learning_rate", "weight_decay")
      for v in (-1e-3, math.nan, math.inf, "1", None)],
    *[(name, v) for name in ("self_conditioning", "holes")
      for v in (-0.1, 1.1, math.nan, "half", None)],
    *[("betas", v) for v in ((0.9,), (0.9, 1.0), (-0.1, 0.9), 0.9, None, ("a", "b"))],
    *[("precision", v) for v in ("float16", None)], *[("compile", v) for v in (1, None, "yes")],
]  # fmt: skip


@pytest.mark.parametrize(("name", "value"), BROKEN, ids=[f"{n}-{v}" for n, v in BROKEN])
def test_each_field_of_the_train_config_broken_once(unchecked, name, value):
    with pytest.raises(ValueError, match=f"^{name}: got .*takes "):
        TrainConfig(**(PLAN | {name: value}))


def test_every_field_of_the_train_config_has_a_broken_case():
    assert set(TrainConfig.__dataclass_fields__) == {name for name, _ in BROKEN}


BAD_EXAMPLES = {
    "none": ([], "is empty"),
    "an empty prompt": ([*examples(), Example([], [5])], "number 14 has an empty prompt"),
    "an id outside the vocabulary": (
        [*examples(), Example([5], [V])],
        f"number 14 has ids from 1 to {V}",
    ),
    "a negative id": ([Example([5, -1], [7])], "number 0 has ids from -1 to 7"),
    "half a token": ([*examples(), Example([5], [6.5])], "number 14 has ids that are no integers"),
    "text": ([Example("def f", [7])], "number 0 has ids that are no integers"),
    "longer than the position limit": (
        [Example([5] * 500, [6] * C)],
        "number 0 takes 516 positions",
    ),
}


@pytest.mark.parametrize("case", BAD_EXAMPLES)
def test_bad_examples_are_named_before_the_first_step(unchecked, tmp_path, case):
    data, part = BAD_EXAMPLES[case]
    with pytest.raises(ValueError, match=f"^examples: {part}.*takes"):
        train(fresh(), data, TrainConfig(**PLAN), folder=tmp_path, progress=False)
    assert not list(tmp_path.iterdir())


# ---- the pieces ----------------------------------------------------------------------------------


def test_learning_rate_warms_up_and_falls_along_a_cosine():
    c = TrainConfig(steps=110, warmup_steps=10, learning_rate=1.0, final_learning_rate=0.2)
    rates = [learning_rate_at(s, c) for s in range(110)]
    assert rates[:10] == pytest.approx([(s + 1) / 10 for s in range(10)])
    assert rates[10] == pytest.approx(1.0) and rates[60] == pytest.approx(0.6)
    assert rates[-1] == pytest.approx(0.2, abs=1e-3) and learning_rate_at(200, c) == pytest.approx(
        0.2
    )
    assert all(a > b for a, b in zip(rates[10:], rates[11:], strict=False))
    assert learning_rate_at(0, TrainConfig(steps=1, warmup_steps=0)) == 1e-3


def test_an_epoch_holds_every_example_at_most_once_in_another_order_each_time():
    lengths = [3 + i % 7 for i in range(40)]
    epochs = [epoch_batches(lengths, 4, seed=0, epoch=e) for e in range(3)]
    for batches in epochs:
        assert {len(b) for b in batches} == {4} and sorted(n for b in batches for n in b) == list(
            range(40)
        )
    assert len({str(b) for b in epochs}) == 3 and epochs[0] == epoch_batches(
        lengths, 4, seed=0, epoch=0
    )
    assert epoch_batches(lengths, 4, seed=1, epoch=0) != epochs[0]
    spread = [max(lengths[n] for n in b) - min(lengths[n] for n in b) for b in epochs[0]]
    assert max(spread) <= 1  # rows of like length together
    # fewer than a batch: one small batch
    assert epoch_batches([5, 6], 4, seed=0, epoch=0) in ([[0, 1]], [[1, 0]])


def test_a_batch_depends_on_the_step_alone():
    """Pitfall 24: a stream that starts in the middle gives what one from the beginning would."""
    config = TrainConfig(**PLAN)
    through = BatchStream(fresh(), examples(), config)
    seen = [through(step) for step in range(9)]
    for step in (8, 2, 5):
        again = BatchStream(fresh(), examples(), config)(step)
        assert torch.equal(again.noisy, seen[step].noisy) and torch.equal(again.t, seen[step].t)
    assert not torch.equal(seen[0].t, seen[3].t)  # another epoch: another noise


def test_weight_decay_on_matrices_only():
    model = fresh()
    decays = {
        id(p): g["weight_decay"]
        for g in make_optimizer(model, TrainConfig(**PLAN)).param_groups
        for p in g["params"]
    }
    assert len(decays) == len(list(model.parameters()))
    assert all((decays[id(p)] > 0) == (p.dim() > 1) for p in model.parameters())


def test_frozen_parameters_stay():
    model = fresh()
    model.embed_tokens.weight.requires_grad_(False)
    before = model.embed_tokens.weight.clone()
    run(model=model)
    assert torch.equal(model.embed_tokens.weight, before)


def test_the_log_holds_means_and_the_learning_rate(whole):
    log = whole[1]
    assert [e["step"] for e in log] == [3, 6, 9]
    assert [e["lr"] for e in log] == [
        learning_rate_at(e["step"] - 1, TrainConfig(**PLAN)) for e in log
    ]
    assert all(e["denoising"] > 0 and e["encoder"] > 0 and e["grad_norm"] > 0 for e in log)
    each = run(log_every=1)[1]
    for entry, at in zip(log, (0, 3, 6), strict=True):
        for key in ("denoising", "encoder", "grad_norm"):
            assert entry[key] == pytest.approx(sum(e[key] for e in each[at : at + 3]) / 3, rel=1e-5)


def test_scalars_are_not_trained_and_modes_are_set():
    model, modes = fresh(), []
    train(
        model,
        examples(),
        TrainConfig(**PLAN),
        progress=False,
        on_log=lambda entry: modes.append(model.training),
    )
    assert modes == [True, True, True] and not model.training
    assert all((b == 1).all() for b in model.buffers())


def test_bfloat16_autocast_keeps_float32_weights(whole):
    weights, log = run(precision="bfloat16")
    assert {t.dtype for t in weights.values()} == {torch.float32}
    full = whole[1]
    assert log[-1]["denoising"] == pytest.approx(full[-1]["denoising"], rel=0.02)
    assert log[-1]["denoising"] != full[-1]["denoising"]


def test_the_progress_bar_is_optional_and_shows_the_losses(capfd):
    train(fresh(), examples(), TrainConfig(**PLAN))
    assert "9/9" in (shown := capfd.readouterr().err) and "denoising" in shown
    run()
    assert capfd.readouterr().err == ""


def test_a_full_disk_leaves_the_state_before(tmp_path, monkeypatch):
    """A full disk while the state is written: the state before it survives."""
    model = fresh()
    optimizer = make_optimizer(model, TrainConfig(**PLAN))
    save_state(tmp_path, model, optimizer, 1, [], TrainConfig(**PLAN))
    before = (tmp_path / STATE).read_bytes()

    def full(tensors, path, metadata):
        path.write_bytes(b"half")
        raise OSError("no space left")

    monkeypatch.setattr(train_state, "save_file", full)
    with pytest.raises(OSError, match="no space"):
        save_state(tmp_path, model, optimizer, 2, [], TrainConfig(**PLAN))
    assert (tmp_path / STATE).read_bytes() == before


# ---- it learns, and the documented path runs -----------------------------------------------------


def test_train_save_reload_generate(tmp_path):
    """Pitfall 28: the loss of a few examples falls to almost nothing, and the saved and reloaded
    model writes them.
    """
    data = [Example([3 + i, 40], [(10 + i * 7 + j) % 90 + 3 for j in range(6)]) for i in range(4)]
    model = fresh()
    plan = TrainConfig(
        steps=120,
        batch_size=4,
        learning_rate=1e-2,
        final_learning_rate=1e-3,
        warmup_steps=10,
        log_every=20,
    )
    log = train(model, data, plan, progress=False)
    assert log[0]["denoising"] > 2.5 and log[-1]["denoising"] < 0.4 * log[0]["denoising"]
    assert log[-1]["encoder"] < 0.5 * log[0]["encoder"]
    model.save_pretrained(tmp_path)
    again = DiffusionGemma.from_pretrained(tmp_path)
    prompts = torch.tensor([e.prompt for e in data])
    sampler = SamplerConfig(max_denoising_steps=12, entropy_bound=1.0)
    outs = [
        generate(m, prompts, sampler, max_new_tokens=C, eos_token_id=1, generator=generator())
        for m in (model, again)
    ]
    assert torch.equal(outs[0].tokens, outs[1].tokens)
    right = sum(
        row[: len(e.response)].tolist() == e.response
        for row, e in zip(outs[1].tokens, data, strict=True)
    )
    assert right >= 3 and outs[1].stop_reason.count("end_token") >= 3
