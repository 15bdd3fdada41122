"""What a device really does: how fast it moves bytes, how fast it multiplies, how long a piece of
work takes.

Against a stopwatch around one call: work is warmed up, waited for (a GPU returns before it is
done), repeated, and given as median and quartiles. The same code runs on CUDA and on a CPU, and on
Apple's MPS as far as torch goes there, where nobody has tested it yet. Walked through in notebook
01.
"""

from __future__ import annotations

import re
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

Work = Callable[[], Any]
MATRIX_DTYPES = {
    "cpu": ("float32", "bfloat16"),
    "cuda": ("float32", "tf32", "bfloat16", "float8_e4m3fn"),
    "mps": ("float32", "bfloat16"),
}


@dataclass(frozen=True)
class Timing:
    """Seconds of one call, over `repeats` calls. low and high are the quartiles, so half of the
    calls lie between them.
    """

    median: float
    low: float
    high: float
    least: float
    repeats: int

    def to_json(self) -> dict[str, float]:
        return asdict(self)


def synchronize(device: torch.device) -> None:
    """Wait until the device has done what it was given; a CPU always has."""
    if device.type in ("cuda", "mps"):
        getattr(torch, device.type).synchronize()


def timed(
    work: Work,
    device: torch.device,
    *,
    seconds: float = 0.5,
    least: int = 5,
    most: int = 200,
    warm: int = 2,
) -> Timing:
    """Call `work` for about `seconds` (but `least` to `most` times) after `warm` calls that do not
    count.
    """
    for name, value in (("least", least), ("most", most)):
        if not isinstance(value, int) or value < 2:
            raise ValueError(
                f"{name}: got {value!r}, takes an integer of at least 2, so that there is a spread"
            )
    for _ in range(warm):
        work()
    synchronize(device)
    taken: list[float] = []
    stop = time.perf_counter() + seconds
    while len(taken) < least or (len(taken) < most and time.perf_counter() < stop):
        start = time.perf_counter()
        work()
        synchronize(device)
        taken.append(time.perf_counter() - start)
    low, median, high = statistics.quantiles(taken, n=4, method="inclusive")
    return Timing(median, low, high, min(taken), len(taken))


# ---- moving bytes --------------------------------------------------------------------------------


def cache_bytes(device: torch.device) -> int:
    """The largest cache before memory, in bytes, as the system reports it; 0 where it does not."""
    if device.type == "cuda":
        return int(getattr(torch.cuda.get_device_properties(device), "L2_cache_size", 0))
    sizes = []
    for place in Path("/sys/devices/system/cpu/cpu0/cache").glob("index*/size"):
        number, unit = re.fullmatch(r"(\d+)([KM]?)", place.read_text().strip()).groups()
        sizes.append(int(number) * {"": 1, "K": 2**10, "M": 2**20}[unit])
    return max(sizes, default=0)


def beyond_cache(device: torch.device) -> int:
    """Bytes of a buffer that no cache holds.

    Eight times the largest one, at least 256 MB (2 GB on a GPU).
    """
    return max(8 * cache_bytes(device), 2**31 if device.type == "cuda" else 2**28)


def moving(what: str, nbytes: int, device: torch.device) -> tuple[Work, int]:
    """A piece of work that moves bytes, and how many: "copy" reads and writes a buffer of `nbytes`
    / 2, "read" multiplies a float32 matrix of `nbytes` by a vector, which is what a step for one
    token does with every weight.
    """
    if what == "copy":
        source = torch.ones(nbytes // 8, device=device)
        target = torch.empty_like(source)
        return lambda: target.copy_(source), 2 * source.nbytes
    if what == "read":
        columns = 4096
        matrix = torch.ones(max(1, nbytes // (4 * columns)), columns, device=device)
        vector = torch.ones(columns, device=device)
        return lambda: matrix @ vector, matrix.nbytes
    raise ValueError(f"what: got {what!r}, takes 'copy' or 'read'")


def bandwidth(
    what: str, nbytes: int, device: torch.device, *, seconds: float = 0.5
) -> dict[str, Any]:
    """Bytes per second of `moving`: {"rate", "bytes", "timing"}."""
    work, moved = moving(what, nbytes, device)
    with torch.inference_mode():
        timing = timed(work, device, seconds=seconds)
    return {"rate": moved / timing.median, "bytes": moved, "timing": timing.to_json()}


# ---- multiplying ---------------------------------------------------------------------------------


def matmul_peak(
    dtype: str, n: int, device: torch.device, *, seconds: float = 0.5
) -> dict[str, Any]:
    """FLOPs per second of a dense [n, n] x [n, n] product: {"rate", "timing"}.

    Dense, never the sparse figure.

    dtype: "float32" (true float32, no shorter products inside), "tf32", "bfloat16" or
    "float8_e4m3fn".
    """
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high" if dtype == "tf32" else "highest")
    try:
        with torch.inference_mode():
            timing = timed(_product(dtype, n, device), device, seconds=seconds, least=3)
    finally:
        torch.set_float32_matmul_precision(before)
    return {"rate": 2 * n**3 / timing.median, "timing": timing.to_json()}


def _product(dtype: str, n: int, device: torch.device) -> Work:
    generator = torch.Generator(device=device).manual_seed(0)
    a, b = (torch.randn(n, n, device=device, generator=generator) for _ in range(2))
    if dtype == "float8_e4m3fn":
        one = torch.ones((), device=device)
        a8, b8 = a.to(torch.float8_e4m3fn), b.to(torch.float8_e4m3fn).T.contiguous().T
        return lambda: torch._scaled_mm(a8, b8, scale_a=one, scale_b=one, out_dtype=torch.bfloat16)
    a, b = (t.to(torch.float32 if dtype == "tf32" else getattr(torch, dtype)) for t in (a, b))
    out = torch.empty_like(a)
    return lambda: torch.mm(a, b, out=out)


# ---- memory --------------------------------------------------------------------------------------


@contextmanager
def high_water(device: torch.device) -> Iterator[dict[str, int]]:
    """Fills in {"bytes": ...}: on a GPU the most that tensors took while the block ran, on Linux
    the most resident memory of the whole process; left empty where neither can be asked."""
    seen: dict[str, int] = {}
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
        yield seen
        seen["bytes"] = torch.cuda.max_memory_allocated(device)
        return
    try:
        Path("/proc/self/clear_refs").write_text("5")  # Linux: forget the high-water mark
        cleared = True
    except OSError:
        cleared = False
    yield seen
    if cleared:
        found = re.search(r"VmHWM:\s+(\d+) kB", Path("/proc/self/status").read_text())
        if found:
            seen["bytes"] = int(found[1]) * 1024
