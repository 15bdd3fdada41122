"""The race: one set of weights writes the answer to one prompt twice, a token at a time and by
canvas, and both are timed.

Against two benchmarks put side by side: the model, the prompt, the machine and the session are the
same, every token and every denoising step carries its own time stamp, and what counts is tokens
that are kept (PITFALLS: not canvas work). Bytes are not measured but computed by `step_cost` for
each pass, with the number of experts the pass really touched. Drawn by `view.race_view`. Walked
through in notebooks 01, 08 and 11.
"""

from __future__ import annotations

import platform
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from datetime import date
from pathlib import Path

import torch
from jaxtyping import Int
from torch import Tensor

from ..cost.ops import step_cost
from ..generation import generate, generate_autoregressive
from ..sampler import SamplerConfig
from ..trace import read_json, write_json

FORMAT, VERSION = "diffgemma_lite.measure.race", 1
KINDS = ("weights", "cache", "activations")


@dataclass(frozen=True)
class Lane:
    """One way of writing.

    An event is a token, or a denoising step; lists have one entry an event unless noted.

    Passes and bytes count everything that had run by then: the prompt's pass, and the passes that
    commit a canvas.
    """

    name: str
    seconds: list[float]  # since the start of the run
    ids: list[list[int]]  # the token, or the argmax canvas [C] of the step
    accepted: list[list[bool]]  # of a step, [C]; empty for a token
    canvas: list[int]  # which canvas the step belongs to; 0 for a token
    kept: list[int]  # tokens of the answer that stood by then; a canvas counts with its last step
    passes: list[int]
    bytes: list[dict[str, float]]  # moved by then, by KINDS
    tokens: list[int]  # the answer, up to and with its end token
    runs: list[float]  # seconds of every timed run; the lane is the one in the middle
    stop: str  # "end_token" or "length"

    @property
    def total_seconds(self) -> float:
        return self.seconds[-1]

    @property
    def tokens_per_second(self) -> float:
        """Tokens kept / wall time."""
        return len(self.tokens) / self.total_seconds

    @property
    def bytes_per_token(self) -> dict[str, float]:
        return {kind: n / len(self.tokens) for kind, n in self.bytes[-1].items()}


@dataclass(frozen=True)
class RaceRecord:
    """Two lanes, the prompt they continue, and where it was run."""

    autoregressive: Lane
    canvas: Lane
    prompt: list[int]
    texts: dict[int, str] = field(default_factory=dict)
    meta: dict = field(default_factory=dict)

    @property
    def lanes(self) -> tuple[Lane, Lane]:
        return self.autoregressive, self.canvas

    def save(self, path: str | Path) -> Path:
        data = asdict(self) | {"texts": {str(i): text for i, text in self.texts.items()}}
        return write_json(path, {"format": FORMAT, "version": VERSION} | data)

    @classmethod
    def load(cls, path: str | Path) -> RaceRecord:
        data = read_json(path, FORMAT, VERSION)
        texts = {int(i): text for i, text in data["texts"].items()}
        return cls(
            Lane(**data["autoregressive"]),
            Lane(**data["canvas"]),
            data["prompt"],
            texts,
            data["meta"],
        )


def race_record(
    model,
    ids: Int[Tensor, "1 s"],
    sampler: SamplerConfig = SamplerConfig(),
    *,
    max_new_tokens: int = 256,
    eos_token_id: int | list[int] | None = None,
    temperature: float = 0.0,
    seed: int = 0,
    repeats: int = 3,
    texts: Callable[[int], str] | Mapping[int, str] | None = None,
    meta: dict | None = None,
    clock: Callable[[], float] = time.perf_counter,
) -> RaceRecord:
    """Write the answer to ids [1, S] both ways, `repeats` times each, in turn, after one run that
    warms up and counts experts.

    sampler: of the canvas; temperature: of the tokens, 0 is greedy. Every run of a lane starts from
    the same seed, so it writes the same tokens. clock gives seconds. Bytes: the weights', cache's
    and activations' precision is the model's. Errors: ValueError for more than one row or repeats
    below 1, and what `generate` refuses.
    """
    if len(ids) != 1:
        raise ValueError(f"ids: got {len(ids)} rows, takes one prompt [1, S]")
    if not isinstance(repeats, int) or repeats < 1:
        raise ValueError(f"repeats: got {repeats!r}, takes an integer of at least 1")
    common = dict(max_new_tokens=max_new_tokens, eos_token_id=eos_token_id)

    def run(canvas: bool):
        events, generator = [], torch.Generator(device=model.device).manual_seed(seed)
        start = clock()
        # the callback runs after the step's own synchronisation, so the stamp is the step's end
        if canvas:
            out = generate(
                model,
                ids,
                sampler,
                generator=generator,
                **common,
                on_step=lambda s: events.append((clock() - start, s.argmax, s.accepted)),
            )
        else:
            out = generate_autoregressive(
                model,
                ids,
                temperature=temperature,
                generator=generator,
                **common,
                on_token=lambda t: events.append((clock() - start, t)),
            )
        return out, events

    touched, timed = {}, {False: [], True: []}
    for canvas in (False, True):
        with experts_touched(model) as touched[canvas]:
            run(canvas)
    for _ in range(repeats):
        for canvas in (False, True):
            timed[canvas].append(run(canvas))
    one, many = (
        _lane(model, ids.shape[1], timed[canvas], touched[canvas], canvas)
        for canvas in (False, True)
    )
    meta = machine(model) | {"seed": seed, "sampler": asdict(sampler)} | (meta or {})
    record = RaceRecord(one, many, ids[0].tolist(), {}, meta)
    if texts is not None:
        record.texts.update(_texts(record, texts))
    return record


@contextmanager
def experts_touched(model) -> Iterator[list[float]]:
    """One number for every pass that runs inside.

    How many different experts it touched, the mean over the layers.
    """
    counts: list[int] = []
    passes: list[float] = []

    def on_router(_module, _inputs, output) -> None:
        counts.append(output[1].unique().numel())
        if len(counts) == len(model.layers):
            passes.append(sum(counts) / len(counts))
            counts.clear()

    handles = [block.router.register_forward_hook(on_router) for block in model.layers]
    try:
        yield passes
    finally:
        for handle in handles:
            handle.remove()


def _passes(model, prompt: int, out, canvas: bool) -> tuple[list[dict], list[bool]]:
    """What `step_cost` is asked for each pass of the run, in order, and whether an event follows
    that pass.
    """
    if not canvas:
        first = dict(prefix=0, queries=prompt, mode="autoregressive")
        rest = [
            dict(prefix=prompt + n, queries=1, mode="autoregressive")
            for n in range(out.metrics["forwards"] - 1)
        ]
        return [first, *rest], [True] * (len(rest) + 1)
    passes, events, c = [], [], model.config.canvas_length
    for k, (steps,) in enumerate(out.steps):
        prefix = prompt + k * c
        before, new = (prefix - c, c) if k else (0, prompt)
        passes.append(dict(prefix=before, queries=new, mode="encode"))  # the prompt, or a commit
        passes += [dict(prefix=prefix, queries=c, mode="canvas")] * steps
        events += [False] + [True] * steps
    return passes, events


def _lane(model, prompt: int, timed: list, touched: list[float], canvas: bool) -> Lane:
    """The run in the middle by its time, with its passes and bytes."""
    out, events = sorted(timed, key=lambda run: run[1][-1][0])[(len(timed) - 1) // 2]
    passes, is_event = _passes(model, prompt, out, canvas)
    if len(passes) != len(touched) or sum(is_event) != len(events):
        raise RuntimeError(f"runs from one seed differ: {len(touched)} passes, then {len(passes)}")
    size, moved, so_far, counts = model.dtype.itemsize, dict.fromkeys(KINDS, 0.0), [], []
    for n, (asked, experts) in enumerate(zip(passes, touched, strict=True)):
        ops = step_cost(
            model.config,
            **asked,
            experts=experts,
            weight_bytes=size,
            kv_bytes=size,
            activation_bytes=size,
        )
        for kind, name in zip(
            KINDS, ("bytes_weights", "bytes_kv", "bytes_activations"), strict=True
        ):
            moved[kind] += sum(getattr(op, name) for op in ops)
        if is_event[n]:
            so_far.append(dict(moved))
            counts.append(n + 1)
    tokens, c = out.tokens[0, : int(out.lengths[0])].tolist(), model.config.canvas_length
    which = (
        [k for k, (steps,) in enumerate(out.steps) for _ in range(steps)]
        if canvas
        else [0] * len(events)
    )
    ends = [n + 1 == len(which) or which[n + 1] > k for n, k in enumerate(which)]
    kept = [min(len(tokens), c * (k + end)) for k, end in zip(which, ends, strict=True)]
    return Lane(
        name="by canvas" if canvas else "one token at a time",
        seconds=[e[0] for e in events],
        ids=[e[1].flatten().tolist() for e in events],
        accepted=[e[2][0].tolist() if canvas else [] for e in events],
        canvas=which,
        kept=kept if canvas else list(range(1, len(events) + 1)),
        passes=counts,
        bytes=so_far,
        tokens=tokens,
        runs=[events[-1][0] for _, events in timed],
        stop=out.stop_reason[0],
    )


def _texts(record: RaceRecord, texts: Callable[[int], str] | Mapping[int, str]) -> dict[int, str]:
    ids = {i for lane in record.lanes for row in (*lane.ids, lane.tokens) for i in row} | set(
        record.prompt
    )
    text_of = texts.get if isinstance(texts, Mapping) else texts
    return {i: text_of(i) or "" for i in sorted(ids)}


def machine(model) -> dict:
    """Where a measurement was made: device, threads, precision, versions and day."""
    cuda = model.device.type == "cuda"
    device = torch.cuda.get_device_name(model.device) if cuda else _processor()
    return {
        "device": device,
        "threads": torch.get_num_threads(),
        "dtype": str(model.dtype).removeprefix("torch."),
        "torch": torch.__version__,
        "python": platform.python_version(),
        "date": date.today().isoformat(),
    }


def _processor() -> str:
    """The processor's name where the system tells it, else its kind."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    named = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return named[0] if named else platform.processor() or platform.machine()
