"""Trace: what every denoising step of every canvas did, small enough to commit and exact enough to
replay.

A `Step` (sampler.py) holds everything, logits included; 48 steps of a 256-token canvas over 262,144
tokens would be 12 GB of them. A `Trace` keeps all the rest plus the few most likely candidates of
each position, as numpy arrays, and writes them as compact JSON (each array deflated, then base64,
so that a browser can unpack it without a library). Walked through in notebooks 00 and 07; drawn by
`diffgemma_lite.view`.

Letters: N denoising steps, B batch, C canvas, K candidates kept, L layers, A attended positions
kept.
"""

from __future__ import annotations

import base64
import json
import zlib
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from ..checks import check_path, file_to_write

FORMAT, VERSION = "diffgemma_lite.trace", 1
PROBABILITY_UNIT = 1 / 65535


@dataclass
class CanvasTrace:
    """One canvas.

    Integers are token ids, entropies are nats, `revised` marks an argmax that changed since the
    last step.
    """

    canvas: np.ndarray  # [N, B, C] the ids the decoder read
    sampled: np.ndarray  # [N, B, C] one draw from the scaled logits
    argmax: np.ndarray  # [N, B, C]
    entropy: np.ndarray  # [N, B, C] of the scaled logits
    accepted: np.ndarray  # [N, B, C] bool
    revised: np.ndarray  # [N, B, C] bool
    finished: np.ndarray  # [N, B] bool: this row had stopped after that step
    pinned: np.ndarray  # [B, C] bool
    temperature: np.ndarray  # [N]
    mean_entropy: np.ndarray  # [N, B] over the positions that are not pinned
    top_ids: np.ndarray  # [N, B, C, K] most likely first
    top_probs: np.ndarray  # [N, B, C, K]
    last_canvas: np.ndarray  # [B, C] what a further step would have read
    steps: np.ndarray  # [B] denoising steps each row took
    stop: list[str]  # per row: "stable", "steps", "ended" (in an earlier canvas) or "cancelled"
    entropy_bound: float
    # only with generate(..., trace="attention"); a position counts the row's own tokens: prompt,
    # earlier canvases, this one [N, B, C, L, A] the positions each one attends to most, the largest
    # weight first
    attended: np.ndarray | None = None
    attended_weight: np.ndarray | None = None  # [N, B, C, L, A] mean over the heads

    def __repr__(self) -> str:
        """Sizes and how it ended; the arrays themselves would fill screens."""
        n, b, c = self.canvas.shape
        return (
            f"CanvasTrace({n} steps, {b} row{'s' if b > 1 else ''} of {c} positions, "
            f"stop={self.stop})"
        )

    @property
    def next_canvas(self) -> np.ndarray:
        """[N, B, C]: what each step handed to the next one."""
        return np.concatenate([self.canvas[1:], self.last_canvas[None]])

    @property
    def committed(self) -> np.ndarray:
        """[B, C]: the argmax canvas of each row's last step.

        What enters the cache is this, with pad after an end token.
        """
        rows = np.arange(len(self.steps))
        return self.argmax[self.steps - 1, rows]


# How each array is stored: (dtype, unit); unit None keeps the values as they are. Entropies are
# kept to the last bit, since whether a position was accepted can hang on it: sampler.accept on the
# stored ones gives `accepted` again.
_STORED = {
    "canvas": ("uint32", None), "sampled": ("uint32", None), "argmax": ("uint32", None),
    "last_canvas": ("uint32", None), "entropy": ("float32", None), "accepted": ("uint8", None),
    "revised": ("uint8", None), "finished": ("uint8", None), "pinned": ("uint8", None),
    "temperature": ("float64", None), "mean_entropy": ("float64", None),
    "top_ids": ("uint32", None), "top_probs": ("uint16", PROBABILITY_UNIT),
    "steps": ("uint16", None),
}  # fmt: skip
_OPTIONAL = {"attended": ("uint32", None), "attended_weight": ("uint16", PROBABILITY_UNIT)}
_BOOLEAN = {"accepted", "revised", "finished", "pinned"}


@dataclass
class Trace:
    """Canvases of one `generate` call, the prompt they continue, and the text of every id that
    occurs.
    """

    prompt: list[list[int]]  # per row, without padding
    canvases: list[CanvasTrace]
    tokens: list[list[int]]  # per row, what was kept
    vocab_size: int
    sampler: dict = field(default_factory=dict)
    # model, seed, device, versions: whatever says where it came from
    meta: dict = field(default_factory=dict)
    texts: dict[int, str] = field(default_factory=dict)  # id -> text; filled by `with_texts`

    def __repr__(self) -> str:
        kept = sum(len(row) for row in self.tokens)
        return (
            f"Trace({len(self.prompt)} row{'s' if len(self.prompt) > 1 else ''}, "
            f"{kept} tokens kept, canvases={self.canvases})"
        )

    def with_texts(self, decode) -> Trace:
        """Fill `texts` for every id in the trace.

        `decode(id) -> str`; a byte token that splits a character gives U+FFFD.
        """
        if not callable(decode):
            raise ValueError(
                f"decode: got {type(decode).__name__}, "
                "takes a function from an id to its text: tokenizer.token_text"
            )
        ids: set[int] = {i for row in self.prompt + self.tokens for i in row}
        for c in self.canvases:
            for array in (c.canvas, c.sampled, c.argmax, c.last_canvas, c.top_ids):
                ids.update(np.unique(array).tolist())
        self.texts = {int(i): decode(int(i)) for i in sorted(ids)}
        return self

    def to_json(self) -> dict:
        return {
            "format": FORMAT,
            "version": VERSION,
            "vocab_size": self.vocab_size,
            "sampler": self.sampler,
            "meta": self.meta,
            "prompt": self.prompt,
            "tokens": self.tokens,
            "texts": {str(i): t for i, t in self.texts.items()},
            "canvases": [_canvas_to_json(c) for c in self.canvases],
        }

    @classmethod
    def from_json(cls, data: dict) -> Trace:
        if not isinstance(data, dict):
            raise ValueError(f"trace: got {type(data).__name__}, takes what to_json() gave, a dict")
        if data.get("format") != FORMAT or data.get("version") != VERSION:
            got = (data.get("format"), data.get("version"))
            raise ValueError(
                f"trace: format and version are {got}, this code reads {(FORMAT, VERSION)}"
            )
        try:
            return cls(
                prompt=data["prompt"],
                tokens=data["tokens"],
                vocab_size=data["vocab_size"],
                sampler=data["sampler"],
                meta=data["meta"],
                texts={int(i): t for i, t in data["texts"].items()},
                canvases=[_canvas_from_json(c) for c in data["canvases"]],
            )
        except (KeyError, TypeError, AttributeError, ValueError, zlib.error) as error:
            raise ValueError(f"trace: is damaged or not whole ({error!r})") from error

    def save(self, path: str | Path) -> Path:
        """Write compact JSON; the file appears whole or not at all."""
        return write_json(path, self.to_json())

    @classmethod
    def load(cls, path: str | Path) -> Trace:
        return cls.from_json(read_json(path, FORMAT, VERSION))


def write_json(path: str | Path, data: dict) -> Path:
    """Compact JSON; the file appears whole or not at all."""
    path = file_to_write("path", path)
    partial = path.with_name(path.name + ".partial")
    partial.write_text(json.dumps(data, separators=(",", ":"), ensure_ascii=True), encoding="utf-8")
    partial.replace(path)
    return path


def read_json(path: str | Path, form: str, version: int) -> dict:
    """What `write_json` wrote, of the named format and version.

    A ValueError that names the path for anything else.
    """
    path = check_path("path", path)
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ValueError(f"path: {path} is no {form} file ({error})") from error
    if not isinstance(data, dict):
        raise ValueError(
            f"path: {path} holds {type(data).__name__}, a {form} file holds a JSON object"
        )
    if data.get("format") != form or data.get("version") != version:
        got = (data.get("format"), data.get("version"))
        raise ValueError(
            f"path: {path} has format and version {got}, this code reads {(form, version)}"
        )
    return data


def pack(array: np.ndarray, dtype: str, unit: float | None = None) -> dict:
    """numpy -> {"shape", "dtype", "unit", "data"}.

    The data is base64 of the deflated little-endian bytes.
    """
    values = array if unit is None else np.clip(np.rint(array / unit), 0, np.iinfo(dtype).max)
    raw = np.ascontiguousarray(values).astype(np.dtype(dtype).newbyteorder("<")).tobytes()
    data = base64.b64encode(zlib.compress(raw, 9)).decode("ascii")
    return {"shape": list(array.shape), "dtype": dtype, "unit": unit, "data": data}


def unpack(packed: dict) -> np.ndarray:
    """The inverse of `pack`, up to the unit."""
    raw = zlib.decompress(base64.b64decode(packed["data"]))
    array = np.frombuffer(raw, np.dtype(packed["dtype"]).newbyteorder("<")).reshape(packed["shape"])
    return array.copy() if packed["unit"] is None else array * packed["unit"]


def _fitting(array: np.ndarray, dtype: str) -> str:
    """Ids below 65,536 take two bytes, which every small vocabulary's do.

    What a float64 model computed keeps eight.
    """
    if dtype == "float32" and array.dtype == np.float64:
        return "float64"
    return (
        "uint16" if dtype == "uint32" and (array.size == 0 or int(array.max()) < 65536) else dtype
    )


def _canvas_to_json(c: CanvasTrace) -> dict:
    present = _STORED | {
        name: how for name, how in _OPTIONAL.items() if getattr(c, name) is not None
    }
    packed = {
        name: pack(getattr(c, name), _fitting(getattr(c, name), dtype), unit)
        for name, (dtype, unit) in present.items()
    }
    return packed | {"stop": c.stop, "entropy_bound": c.entropy_bound}


def _canvas_from_json(data: dict) -> CanvasTrace:
    present = _STORED | {name: how for name, how in _OPTIONAL.items() if name in data}
    arrays = {name: unpack(data[name]) for name in present}
    for name, (dtype, unit) in present.items():
        if name in _BOOLEAN:
            arrays[name] = arrays[name].astype(bool)
        elif dtype.startswith("uint") and unit is None:
            arrays[name] = arrays[name].astype(np.int64)
    return CanvasTrace(**arrays, stop=data["stop"], entropy_bound=data["entropy_bound"])
