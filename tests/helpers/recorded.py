"""A recording of a toy device, made without measuring."""

from __future__ import annotations

from diffgemma_lite.measure.recording import Recording

TIME = dict(median=2.0, low=1.5, high=2.5, least=1.0, repeats=7)


def run(**changes):
    said = dict(
        date="2026-11-30 20:00 UTC",
        command="python -m a record",
        revision="0" * 40,
        changed=[],
        driver="none",
    )
    return (
        said
        | dict(versions={"python": "3", "torch": "2"}, clocks={}, load=[0.5, 0.6], threads=2)
        | changes
    )


def made() -> Recording:
    device = dict(name="toy", kind="cpu", cores=2, memory_bytes=8, cache_bytes=4, system="Linux")
    recording = Recording(device, [run()])
    for rate, what, where in (
        (10.0, "copy", "memory"),
        (12.0, "read", "memory"),
        (90.0, "read", "cache"),
    ):
        recording.add(
            "bandwidth",
            "moving",
            {"what": what, "where": where},
            {"rate": rate, "bytes": 10**6, "timing": TIME},
        )
    for rate, n in ((100.0, 8), (120.0, 16)):
        recording.add(
            "peak", "multiplying", {"dtype": "float32", "n": n}, {"rate": rate, "timing": TIME}
        )
    recording.add(
        "peak",
        "multiplying",
        {"dtype": "bfloat16", "n": 8},
        {"failed": "RuntimeError: no such product"},
    )
    return recording
