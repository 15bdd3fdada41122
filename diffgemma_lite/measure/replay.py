"""What a recording says, in words and tables.

From the file alone, without the device, a model or a drawing library.

The times are the recording's; the floors beside them are cost.py's, taken with the bandwidth and
the peaks measured in the same recording. Notebooks 01 and 11 draw from the same rows.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from ..config import Config
from ..cost import floor, step_cost
from ..cost.hardware import Hardware
from .large import against_floor, derived_rates
from .recording import Recording

FLOAT32 = dict(weight_bytes=4.0, kv_bytes=4.0, activation_bytes=4.0)


def step_rows(
    recording: Recording, config: Config, model: str, device: Hardware, **chosen: Any
) -> list[dict[str, Any]]:
    """The measured steps of one small model, each beside its floor on `device` in float32.

    chosen: values of the key, such as mode="canvas" or batch=1. Each row: mode, queries, batch,
    timing (see TIMING), floor and ratio = median / floor, distinct, intensity (FLOPs per byte of
    weights and cache), flops, positions_rate (positions per second, all rows).
    """
    rows = []
    for key, result in recording.points("steps", model=model, **chosen):
        size = {name: key[name] for name in ("mode", "queries", "batch", "prefix")}
        experts = min(result["distinct"], config.num_experts)
        ops = step_cost(config, **size, experts=experts, **FLOAT32)
        least, median = floor(ops, device, "fp32"), result["timing"]["median"]
        flops, moved = (
            sum(op.flops for op in ops),
            sum(op.bytes_weights + op.bytes_kv for op in ops),
        )
        rows.append(
            size
            | {
                "timing": result["timing"],
                "floor": least,
                "ratio": median / least,
                "distinct": result["distinct"],
                "flops": flops,
                "intensity": flops / moved,
                "positions_rate": key["queries"] * key["batch"] / median,
                "memory": result.get("memory"),
            }
        )
    return rows


def report(recording: Recording, models: Mapping[str, Config]) -> str:
    """Everything a recording holds, as text."""
    parts = [provenance(recording), roofs(recording)]
    device = recording.hardware() if any(recording.points("bandwidth", where="memory")) else None
    if device is not None and "fp32" in device.peaks:
        parts += [steps(recording, config, name, device) for name, config in models.items()]
    parts += [
        parts_of_a_step(recording),
        answers(recording),
        published(recording, device),
        failures(recording),
    ]
    return "\n\n".join(part for part in parts if part)


def provenance(recording: Recording) -> str:
    d = recording.device
    lines = [
        f"{d['name']}: {d['kind']}, {d['cores']} cores, "
        f"{d['memory_bytes'] / 1e9:.1f} GB of memory, {d['cache_bytes'] / 1e6:.0f} MB of cache, "
        f"{d['system']}"
    ]
    for i, run in enumerate(recording.runs):
        versions = ", ".join(f"{name} {number}" for name, number in run["versions"].items())
        changed = f" with changes in {', '.join(run['changed'])}" if run["changed"] else ""
        clocks = ", ".join(f"{name} {value}" for name, value in run["clocks"].items()) or "not told"
        load = " to ".join(map(str, run["load"])) or "unknown"
        lines += [
            f"run {i}, {run['date']}: {run['command']}",
            f"  {versions}; driver {run['driver']}; {run['threads']} threads",
            f"  code {run['revision'][:12]}{changed}; clocks: {clocks}; load {load}",
        ]
    return "\n".join(lines)


def roofs(recording: Recording) -> str:
    rows = [
        [f"{key['what']} from {key['where']}", f"{r['rate'] / 1e9:.1f} GB/s", *_spread(r["timing"])]
        for key, r in recording.points("bandwidth")
    ]
    rows += [
        [
            f"{key['dtype']} product of {key['n']}",
            f"{r['rate'] / 1e9:,.1f} GFLOP/s",
            *_spread(r["timing"]),
        ]
        for key, r in recording.points("peak")
    ]
    return table(["what", "rate", "median", "quartiles", "n"], rows) if rows else ""


def steps(recording: Recording, config: Config, name: str, device: Hardware) -> str:
    rows, found = [], step_rows(recording, config, name, device)
    one = next(
        (r["timing"]["median"] for r in found if r["mode"] == "autoregressive" and r["batch"] == 1),
        None,
    )
    for r in found:
        times_one = f"{r['timing']['median'] / one:.2f}" if one else ""
        rows.append(
            [
                r["mode"],
                r["queries"],
                r["batch"],
                *_spread(r["timing"]),
                times_one,
                f"{1e3 * r['floor']:.3f} ms",
                f"{r['ratio']:.1f}",
                f"{r['distinct']:.1f}",
                f"{r['positions_rate']:,.0f}",
                f"{r['memory'] / 1e6:,.0f} MB" if r["memory"] else "",
            ]
        )
    head = [
        "mode",
        "queries",
        "batch",
        "median",
        "quartiles",
        "n",
        "x one token",
        "floor",
        "median / floor",
        "experts",
        "positions/s",
        "high water",
    ]
    return f"steps of the model {name!r}, float32\n{table(head, rows)}" if rows else ""


def parts_of_a_step(recording: Recording) -> str:
    columns = list(recording.points("breakdown"))
    columns += list(recording.points("published_shape", how="profiled"))
    if not columns:
        return ""
    names = dict.fromkeys(name for _, result in columns for name in result["parts"])
    head = [
        "part",
        *(
            f"{key.get('model', '26B')} {key['mode'][:6]} {key['queries']}x{key['batch']}"
            for key, _ in columns
        ),
    ]
    rows = [
        [name, *(f"{1e3 * result['parts'].get(name, 0.0):.3f}" for _, result in columns)]
        for name in names
    ]
    return f"milliseconds of one profiled step, by part\n{table(head, rows)}"


def answers(recording: Recording) -> str:
    rows = [
        [
            key["mode"],
            key["batch"],
            r["tokens_kept"],
            f"{r['seconds']:.2f} s",
            f"{1e3 * r['first_seconds']:.1f} ms",
            f"{r['total_rate']:.1f}",
            f"{r['user_rate']:.1f}",
            f"{r['tokens_per_forward']:.2f}",
            f"{r['positions_rate']:,.0f}",
        ]
        for key, r in recording.points("answers")
    ]
    head = [
        "mode",
        "users",
        "tokens kept",
        "time",
        "first tokens after",
        "tokens/s",
        "a user",
        "tokens per forward",
        "positions/s",
    ]
    return f"answers of the shipped model\n{table(head, rows)}" if rows else ""


def published(recording: Recording, device: Hardware | None) -> str:
    """The 26B shape: step against floor, and the rates that follow."""
    config = Config.preset("26b_a4b")
    if device is None or "bf16" not in device.peaks or not any(recording.points("published_shape")):
        return ""
    rows = [
        [
            r["key"]["who"],
            r["key"]["how"],
            r["key"]["mode"],
            r["key"]["batch"],
            f"{1e3 * r['seconds']:.2f} ms",
            f"{1e3 * r['floor']:.2f} ms",
            f"{r['ratio']:.2f}",
        ]
        for r in against_floor(recording, config, device)
    ]
    head = ["implementation", "how", "mode", "batch", "median", "floor", "median / floor"]
    rates = [
        [
            r["who"],
            r["how"],
            r["batch"],
            *(f"{rate:,.0f}" for rate in r["canvas"].values()),
            f"{r['autoregressive']:,.0f}" if r["autoregressive"] else "",
        ]
        for r in derived_rates(recording, config.canvas_length)
    ]
    names = [
        "implementation",
        "how",
        "batch",
        *(f"tokens/s at {n} steps" for n in (12, 16, 48)),
        "one by one",
    ]
    return f"the published 26B shape, bf16\n{table(head, rows)}\n\n{table(names, rates)}"


def failures(recording: Recording) -> str:
    points = [(name, p) for name, section in recording.sections.items() for p in section["points"]]
    return "\n".join(
        f"failed: {name} {p['key']}: {p['result']['failed']}"
        for name, p in points
        if "failed" in p["result"]
    )


def table(head: Sequence[Any], rows: Iterable[Sequence[Any]]) -> str:
    """Columns of equal width."""
    lines = [[str(cell) for cell in line] for line in [head, *rows]]
    widths = [max(len(line[i]) for line in lines) for i in range(len(head))]
    return "\n".join(
        "  ".join(cell.rjust(w) for cell, w in zip(line, widths, strict=True)) for line in lines
    )


def _spread(timing: Mapping[str, float]) -> list[str]:
    low, median, high = (f"{1e3 * timing[name]:.3f}" for name in ("low", "median", "high"))
    return [f"{median} ms", f"{low} to {high}", str(timing["repeats"])]
