"""Records what this device does, and prints a recording of any device without it.

    python -m diffgemma_lite.measure record --out assets/recordings/my-laptop.json
    python -m diffgemma_lite.measure replay assets/recordings/my-laptop.json

Against a benchmark script: work is cut into small points that are saved one by one, so that a run that ends early (time,
interrupt, no memory) loses nothing; the same command goes on where it ended. A section takes at most `--limit` seconds a
run (8 minutes if not said). What is measured is in measure_device.py, measure_steps.py, measure_answers.py and, for a large
GPU, measure_large.py; the file itself is recording.py's. Walked through in notebooks 01 and 11.
"""

from __future__ import annotations

import argparse
import functools
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch

from .config import Config
from .measure_answers import answer
from .measure_device import MATRIX_DTYPES, bandwidth, beyond_cache, cache_bytes, matmul_peak
from .measure_large import enough_memory
from .measure_large import points as large_points
from .measure_provenance import ROOT, default_device, describe, file_name, load_now, run_provenance
from .measure_replay import report
from .measure_steps import LAPTOP, breakdown, dense_twin, measure_step, random_model, step_work
from .model import DiffusionGemma
from .recording import Recording
from .sampler import SamplerConfig

Points = Iterator[tuple[dict[str, Any], Callable[[], dict[str, Any]]]]
MODELS = {"small": Config.preset("python_small"), "experts": LAPTOP, "dense": dense_twin(LAPTOP)}
CANVASES, BATCHES, PREFIX = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512), (1, 2, 4, 8, 16, 32, 64), 128
MOST_POSITIONS = {"cpu": 2048, "mps": 8192, "cuda": 64 * 512}  # of one step; more takes a CPU seconds a step
CHECKPOINT = ROOT / "assets" / "checkpoints" / "python-small"


# ---- the sections --------------------------------------------------------------------------------------------------------


def bandwidth_points(device: torch.device, seconds: float) -> Points:
    for what in ("copy", "read"):
        key = {"what": what, "where": "memory"}
        yield key, lambda what=what: bandwidth(what, beyond_cache(device), device, seconds=seconds)
    inside = cache_bytes(device) // 4
    if inside >= 2**20:
        yield {"what": "read", "where": "cache"}, lambda: bandwidth("read", inside, device, seconds=seconds)


def peak_points(device: torch.device, seconds: float) -> Points:
    sizes = (8192, 16384) if device.type == "cuda" else (1024, 2048)
    for dtype in MATRIX_DTYPES[device.type]:
        for n in sizes:
            key = {"dtype": dtype, "n": n}
            yield key, lambda key=key: matmul_peak(device=device, seconds=seconds, **key)


def step_points(device: torch.device, seconds: float, models: Sequence[str] = tuple(MODELS), canvases=CANVASES,
                batches=BATCHES, least: int = 5) -> Points:  # fmt: skip
    """Every canvas length at batch 1, and every batch of one-token steps and of canvases of 64."""
    model = functools.lru_cache(maxsize=1)(lambda name: random_model(MODELS[name], device))
    for name in models:
        sizes = [("canvas", q, 1) for q in canvases] + [("autoregressive", 1, b) for b in batches]
        sizes += [("canvas", 64, b) for b in batches if b > 1] + [("encode", 64, 1)] * (len(batches) > 1)
        for mode, queries, batch in sizes:
            if queries * batch <= MOST_POSITIONS[device.type]:
                key = {"model": name, "mode": mode, "queries": queries, "batch": batch, "prefix": PREFIX}

                def measured(name=name, mode=mode, queries=queries, batch=batch):
                    size = dict(queries=queries, batch=batch, prefix=PREFIX)
                    return measure_step(model(name), mode, seconds=seconds, least=least, **size)

                yield key, measured


def breakdown_points(device: torch.device, seconds: float) -> Points:
    model = functools.lru_cache(maxsize=1)(lambda name: random_model(MODELS[name], device))
    for name in MODELS:
        for mode, queries in (("autoregressive", 1), ("canvas", 64), ("canvas", 256)):
            key = {"model": name, "mode": mode, "queries": queries, "batch": 1, "prefix": PREFIX}

            def measured(name=name, mode=mode, queries=queries):
                with torch.inference_mode():
                    work = step_work(model(name), mode, queries=queries, batch=1, prefix=PREFIX)
                return breakdown(model(name), work)

            yield key, measured


def answer_points(device: torch.device, seconds: float) -> Points:
    """The shipped model writes: tokens kept per second, time to the first, for one user and for eight."""
    del seconds  # an answer takes what it takes

    @functools.cache
    def shipped() -> DiffusionGemma:
        return DiffusionGemma.from_pretrained(CHECKPOINT, dtype=torch.float32, device=device)

    def measured(mode: str, batch: int) -> dict[str, Any]:
        from .data.tokenizer import Tokenizer, encode_prompt

        tokenizer = Tokenizer.load(CHECKPOINT)
        prompt = 'def load(path):\n    """Read the file and return its lines."""'
        ids = torch.tensor([encode_prompt(tokenizer, "body", prompt, max_prompt=48)] * batch, device=device)
        sampler = SamplerConfig.from_defaults(shipped().generation_defaults)
        answer(shipped(), ids, "autoregressive", sampler, tokens=2, end=None)  # warm
        return answer(shipped(), ids, mode, sampler, tokens=shipped().config.canvas_length, end=tokenizer.eos_id)

    for mode in ("canvas", "autoregressive"):
        for batch in (1, 8):
            yield {"model": CHECKPOINT.name, "mode": mode, "batch": batch}, functools.partial(measured, mode, batch)


def published_points(device: torch.device, seconds: float) -> Points:
    """The 26B shape, where a GPU has the memory for it; elsewhere no point at all."""
    config = Config.preset("26b_a4b")
    if enough_memory(config, device):
        yield from large_points(config, device, seconds=seconds)


SECTIONS: dict[str, tuple[str, Callable[[torch.device, float], Points]]] = {
    "bandwidth": ("bytes per second, from memory and from the cache", bandwidth_points),
    "peak": ("FLOPs per second of a dense product, by dtype", peak_points),
    "steps": ("seconds of one step of three small models in float32, by mode, canvas and batch", step_points),
    "breakdown": ("seconds of one step, part by part (torch.profiler)", breakdown_points),
    "answers": ("whole answers of the shipped model: rates and time to first token", answer_points),
    "published_shape": ("the published 26B shape, random weights in bf16: ours and Transformers'", published_points),
}


# ---- recording -----------------------------------------------------------------------------------------------------------


def record(
    out: str | Path | None = None, *, sections: Iterable[str] | None = None, device: torch.device | str | None = None,
    seconds: float = 0.5, limit: float = 480, retry: bool = False, command: str = "measure.record(...)",
    say: Callable[[str], Any] = print, points: dict[str, Points] | None = None,
) -> Recording:  # fmt: skip
    """Measure what is not yet in `out` (None: in memory only) and return the recording.

    sections: names of SECTIONS, None for all. seconds: about how long a point is repeated. limit: seconds a section may
    take in this run; what is left over is done by the next. retry: also the points that failed before. points: other points
    for some sections (a shorter list, say).
    Errors: ValueError for an unknown section, or when `out` holds another device; a point that fails is recorded as failed.
    """
    chosen, target = list(SECTIONS) if sections is None else list(sections), torch.device(device or default_device())
    unknown = set(chosen) - set(SECTIONS)
    if unknown:
        raise ValueError(f"sections: got {', '.join(sorted(unknown))}, takes some of {', '.join(SECTIONS)}")
    recording = _opened(out, describe(target))
    recording.runs.append(run_provenance(target, command))
    before = len(recording.runs[-1]["load"])
    for name in chosen:
        about, make = SECTIONS[name]
        start = time.perf_counter()
        for key, measure in (points or {}).get(name) or make(target, seconds):
            if recording.has(name, key, failed=not retry):
                continue
            if time.perf_counter() - start > limit:
                say(f"{name}: {limit:.0f} s are over; run the same command again to go on")
                break
            result = _tried(measure)
            recording.add(name, about, key, result)
            recording.runs[-1]["load"] = recording.runs[-1]["load"][:before] + load_now()
            failure = f": failed, {result['failed']}" if "failed" in result else ""
            say(f"{name}: {' '.join(f'{k} {v}' for k, v in key.items())}{failure}")
            if out is not None:
                recording.save(out)
    return recording


def _opened(out: str | Path | None, device: dict[str, Any]) -> Recording:
    if out is None or not Path(out).exists():
        return Recording(device)
    recording = Recording.load(out)
    for name in ("name", "kind", "cores"):
        if recording.device[name] != device[name]:
            was = recording.device[name]
            raise ValueError(f"out: {out} was measured on {was}, this is {device[name]}; takes another file")
    return recording


def _tried(measure: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """The result, or why there is none: no memory, no compiler, a kernel that the device lacks."""
    try:
        return measure()
    except Exception as error:
        if torch.cuda.is_available():
            torch.cuda.empty_cache()
        return {"failed": f"{type(error).__name__}: {str(error).splitlines()[0][:200] if str(error) else ''}"}


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m diffgemma_lite.measure", description=__doc__.splitlines()[0])
    commands = parser.add_subparsers(dest="command", required=True)
    make = commands.add_parser("record", help="measure this device; goes on where an earlier run of the same file ended")
    make.add_argument("--out", help="the JSON file; if not said, assets/recordings/ and the device's name")
    make.add_argument("--section", action="append", choices=list(SECTIONS), help="only this one (may be given again)")
    make.add_argument("--device", help="cuda, mps or cpu; if not said, the first of them that is there")
    make.add_argument("--seconds", type=float, default=0.5, help="about how long each point is repeated")
    make.add_argument("--limit", type=float, default=480, help="seconds a section may take in this run")
    make.add_argument("--retry", action="store_true", help="try the points that failed once more")
    show = commands.add_parser("replay", help="print a recording; needs neither the device nor the model")
    show.add_argument("file")
    given = parser.parse_args(arguments)
    if given.command == "replay":
        print(report(Recording.load(given.file), MODELS))
        return 0
    device = torch.device(given.device) if given.device else default_device()
    out = Path(given.out) if given.out else ROOT / "assets" / "recordings" / f"{file_name(describe(device))}.json"
    options = {name: getattr(given, name) for name in ("device", "seconds", "limit")}
    said = [f"--{name} {value}" for name, value in options.items() if value != make.get_default(name)]
    said += ["--retry"] * given.retry + [f"--section {name}" for name in given.section or ()]
    command = " ".join(["python -m diffgemma_lite.measure record --out", f"assets/recordings/{out.name}", *said])
    settings = dict(seconds=given.seconds, limit=given.limit, retry=given.retry)
    record(out, sections=given.section, device=device, command=command, **settings)
    print(f"{out.name}: done; show it with: python -m diffgemma_lite.measure replay {given.out or out.name}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
