"""A Trace as the browser gets it: one row, every array packed small, exact where it is kept at all.

Unlike `Trace.to_json`, which keeps everything, this form is made for a page with a size limit. Ids
become numbers of a local table that also holds their text; what one array predicts of another is
not written twice (a sampled token is mostly one of the candidates, a canvas position mostly what
the step before handed on); entropies are half floats, whose relative precision keeps the running
budget right where all entropies are tiny; probabilities are multiples of 0.1 %. When it still does
not fit, `reductions` drops candidates and then the ids of noise, and the page says so. Read back by
data.js. Used by notebooks 00 and 07.
"""

from __future__ import annotations

import base64
import json
import zlib
from dataclasses import dataclass

import numpy as np

from ..trace import CanvasTrace, Trace

PROBABILITY_STEPS = 1000
# a canvas position that is what the step before handed on; one whose noise id is left out
CARRIED, LOST = -1, -2


@dataclass(frozen=True)
class Reduction:
    """How much of a trace to keep: candidates of each position, ids of renoised positions, draws
    that were not accepted.
    """

    candidates: int
    noise: bool = True
    draws: bool = True

    def note(self, available: int) -> str:
        parts = []
        if self.candidates < available:
            parts.append(
                f"{self.candidates} of {available} recorded candidates are kept on this page"
            )
        if not self.noise:
            parts.append("the random ids that renoising put in are left out (shown as ░)")
        if not self.draws:
            parts.append("so are draws that were neither accepted nor a kept candidate")
        return "; ".join(parts)


def reductions(available: int, most: int = 5) -> list[Reduction]:
    """From everything to the least, in the order in which too large a page gives things up."""
    top = min(most, available)
    kept = [Reduction(k) for k in range(top, 2, -1)] or [Reduction(top)]
    return (
        kept
        + [Reduction(k, noise=False) for k in range(min(top, 3), 0, -1)]
        + [Reduction(1, noise=False, draws=False)]
    )


def pack_planes(values: np.ndarray) -> dict:
    """Array -> {"t": type, "s": shape, "d": base64}.

    The low bytes of all values first, then the next, deflated.
    """
    values = np.ascontiguousarray(values)
    kind, shape = {"f": "f", "u": "u", "b": "b"}[values.dtype.kind], list(values.shape)
    if kind == "b":
        raw = np.packbits(values.reshape(-1), bitorder="little").tobytes()
    else:
        size = values.dtype.itemsize
        raw = (
            values.astype(values.dtype.newbyteorder("<"))
            .reshape(-1)
            .view(np.uint8)
            .reshape(-1, size)
            .T.tobytes()
        )
    width = 1 if kind == "b" else 8 * values.dtype.itemsize
    return {
        "t": f"{kind}{width}",
        "s": shape,
        "d": base64.b64encode(zlib.compress(raw, 9)).decode("ascii"),
    }


def pack_text(value) -> str:
    """Anything JSON can say, deflated and in base64."""
    raw = json.dumps(value, separators=(",", ":"), ensure_ascii=True).encode("ascii")
    return base64.b64encode(zlib.compress(raw, 9)).decode("ascii")


def code(values: np.ndarray, predictions: list[np.ndarray]) -> np.ndarray:
    """Write i where the i-th prediction is right (the first that is), and value + len(predictions)
    elsewhere.
    """
    coded = values + len(predictions)
    for i in reversed(range(len(predictions))):
        coded = np.where(values == predictions[i], i, coded)
    return coded.astype(np.uint16 if coded.size == 0 or coded.max() < 65536 else np.uint32)


def row_arrays(canvas: CanvasTrace, row: int) -> dict[str, np.ndarray]:
    """One row of a canvas, cut to the steps it took: arrays [N, C], [N, C, K], [C] and [N]."""
    n = int(canvas.steps[row])
    names = (
        "canvas",
        "sampled",
        "argmax",
        "entropy",
        "accepted",
        "revised",
        "top_ids",
        "top_probs",
        "mean_entropy",
    )
    arrays = {name: getattr(canvas, name)[:n, row] for name in names}
    return arrays | {"pinned": canvas.pinned[row], "temperature": canvas.temperature[:n]}


def shifted(first: np.ndarray, rest: np.ndarray) -> np.ndarray:
    return np.concatenate([first[None], rest[:-1]])


def _canvas_payload(arrays: dict, table: np.ndarray, keep: Reduction) -> dict:
    """`table` holds the ids in order; positions in it are the local numbers."""
    k = keep.candidates
    local = {name: np.searchsorted(table, arrays[name]) for name in ("sampled", "argmax")}
    top = np.searchsorted(table, arrays["top_ids"][..., :k])
    nothing = np.full_like(top[0], -1)
    handed = np.where(arrays["accepted"], arrays["sampled"], arrays["canvas"])
    carried = shifted(np.full_like(handed[0], -1), handed) == arrays["canvas"]
    written = np.searchsorted(table, arrays["canvas"])
    if not keep.noise:  # pinned ids stay
        written = np.where(arrays["pinned"], written, LOST)
    canvas = np.where(carried, CARRIED, written)
    sampled = (
        local["sampled"] if keep.draws else np.where(_drawn(arrays, keep), local["sampled"], LOST)
    )
    return {
        "top_ids": pack_planes(code(top, [shifted(nothing, top)])),
        "top_probs": pack_planes(
            np.rint(arrays["top_probs"][..., :k] * PROBABILITY_STEPS).astype(np.uint16)
        ),
        "argmax": pack_planes(code(local["argmax"], [top[..., 0]])),
        "sampled": pack_planes(
            code(sampled, [top[..., i] for i in range(k)] + [np.full_like(sampled, LOST)])
        ),
        "canvas": pack_planes(
            code(canvas, [np.full_like(canvas, CARRIED), np.full_like(canvas, LOST)])
        ),
        "entropy": pack_planes(arrays["entropy"].astype(np.float16)),
        "accepted": pack_planes(arrays["accepted"]),
        "revised": pack_planes(
            arrays["revised"]
            != (shifted(arrays["argmax"][0], arrays["argmax"]) != arrays["argmax"])
        ),
        "pinned": pack_planes(arrays["pinned"]),
        "temperature": [float(f"{t:.6g}") for t in arrays["temperature"]],
        "mean_entropy": [float(f"{h:.6g}") for h in arrays["mean_entropy"]],
    }


def _drawn(arrays: dict, keep: Reduction) -> np.ndarray:
    """Which draws stay when the others go.

    The accepted, the pinned, and those that are a kept candidate anyway.
    """
    candidate = (arrays["sampled"][..., None] == arrays["top_ids"][..., : keep.candidates]).any(-1)
    return arrays["accepted"] | arrays["pinned"] | candidate


def _used_ids(rows: list[dict], keep: Reduction, more: np.ndarray) -> np.ndarray:
    used = [a["argmax"] for a in rows]
    used += [a["sampled"] if keep.draws else a["sampled"][_drawn(a, keep)] for a in rows]
    used += [a["canvas"] if keep.noise else a["canvas"][:, a["pinned"]] for a in rows]
    used += [a["top_ids"][..., : keep.candidates] for a in rows]
    return np.unique(np.concatenate([u.reshape(-1) for u in used] + [more]))


def trace_payload(
    trace: Trace, row: int, keep: Reduction, name: str, attention: dict | None = None
) -> dict:
    """Everything the page shows of one row of a trace, ready for JSON; `attention` is
    attention.py's part.
    """
    indices = [i for i, c in enumerate(trace.canvases) if c.steps[row] > 0]
    rows = [row_arrays(trace.canvases[i], row) for i in indices]
    prompt = np.asarray([] if attention is None else attention["prompt"], dtype=np.int64)
    table = _used_ids(rows, keep, prompt[prompt >= 0])
    canvases = []
    for i, arrays in zip(indices, rows, strict=True):
        packed = _canvas_payload(arrays, table, keep)
        canvases.append(
            packed
            | {"stop": trace.canvases[i].stop[row], "bound": float(trace.canvases[i].entropy_bound)}
        )
    available = max(a["top_ids"].shape[-1] for a in rows)
    if attention is not None:
        named = np.where(prompt < 0, 0, 1 + np.searchsorted(table, prompt))
        attention = attention | {"prompt": pack_planes(named.astype(np.uint32))}
    return {
        "name": name,
        "canvases": canvases,
        "attention": attention,
        "kept": len(trace.tokens[row]),
        "vocab": int(trace.vocab_size),
        "threshold": trace.sampler.get("confidence_threshold"),
        "note": keep.note(available),
        "prompt": "".join(trace.texts.get(int(i), "") for i in trace.prompt[row]),
        # the id where there is no text
        "texts": pack_text([trace.texts.get(int(i)) or int(i) for i in table]),
    }
