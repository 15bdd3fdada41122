"""The roofline: FLOPs per byte against FLOPs per second, log-log, for one-token and canvas steps on
chosen hardware.

Everything shown is what cost.py says. Like the player it is a progressive output: picture and
tables first, complete without script (roofline_static.py), then roofline.js takes their place, with
sliders that the keyboard works. `figure()` is the same as a plotly figure, to change or to export.
See notebooks 01 and 11.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from ..config import Config
from ..cost import PRECISIONS, Precision, by_part, floor
from ..cost.hardware import Hardware
from ..cost.hardware import hardware as device_named
from ..cost.ops import OpCost
from .host import OutputView, progressive_html

CANVASES, BATCHES = (4, 16, 64, 128, 256, 512), (1, 2, 4, 8, 16, 32, 64)
SPAN = (0.3, 30_000.0)  # FLOPs per byte on the horizontal axis
COLOURS = {
    "canvas": "#e69f00",
    "one token": "#009e73",
    "roofs": ("#0072b2", "#882255", "#444444", "#56b4e9"),
}


def si(value: float, unit: str, digits: int = 3) -> str:
    """1.5e9, "B" -> "1.5 GB"."""
    power = 0 if value == 0 else max(-4, min(5, math.floor(math.log10(value) / 3)))
    prefix = {-4: "p", -3: "n", -2: "µ", -1: "m", 0: "", 1: "k", 2: "M", 3: "G", 4: "T", 5: "P"}[
        power
    ]
    return f"{value / 1000.0**power:.{digits}g} {prefix}{unit}"


def step_name(queries: int) -> str:
    return "one token" if queries == 1 else f"canvas of {queries}"


@dataclass(frozen=True)
class Point:
    """One step on the roofline.

    Bytes are weights and cache; activations are kept apart, since the floor leaves them out.
    """

    kind: str  # "canvas" or "one token"
    queries: int
    batch: int
    flops: float
    bytes: float
    bytes_activations: float
    seconds: float  # the floor
    parts: tuple[tuple[str, float, float, float], ...]  # name, bytes, FLOPs, seconds

    @property
    def intensity(self) -> float:
        return self.flops / self.bytes

    @property
    def rate(self) -> float:
        """FLOP/s if the step took exactly its floor."""
        return self.flops / self.seconds


@dataclass(frozen=True)
class Roofline:
    """Points by precision and kind, and the roofs they are drawn under.

    The first device sets the points' height.
    """

    devices: tuple[Hardware, ...]
    measured: tuple[Hardware, ...]
    precisions: tuple[str, ...]
    canvases: tuple[int, ...]
    batches: tuple[int, ...]
    # (precision, queries, batch); queries 1 is the one-token step
    points: dict[tuple[str, int, int], Point]
    first: tuple[int, int]  # the canvas and batch shown first
    prefix: int

    def roofs(self, device: Hardware) -> dict[str, float]:
        """Peaks of the dtypes that the shown precisions compute in.

        All the device has, if it has none of those.
        """
        wanted = {dtype for name in self.precisions for dtype in PRECISIONS[name].dtype.values()}
        return {
            d: p.value
            for d, p in device.peaks.items()
            if d in wanted or not wanted & set(device.peaks)
        }

    def figure(self):
        """The plotly figure."""
        from .roofline_plotly import figure

        return figure(self)

    def tables(self) -> OutputView:
        """Picture and tables alone, everywhere."""
        from .roofline_static import static_html

        return OutputView(static_html(self), self.words)

    def view(self) -> OutputView:
        """The output with its script: sliders, and words for what is under the pointer."""
        from .roofline_payload import payload

        return OutputView(
            progressive_html(self.tables().html, payload(self), "roofline"), self.words
        )

    @property
    def words(self) -> str:
        canvas, batch = self.first
        one, many = (self.points[self.precisions[0], q, batch] for q in (1, canvas))
        return (
            f"<Roofline on {self.devices[0].name}, {self.precisions[0]}, batch {batch}, "
            f"prefix {self.prefix}: one token {one.intensity:.3g} FLOPs a byte, "
            f"canvas of {canvas} {many.intensity:.3g}>"
        )

    def __repr__(self) -> str:
        return self.words

    def _repr_mimebundle_(self, include=None, exclude=None) -> dict:
        return self.view()._repr_mimebundle_()


def roofline(
    config: Config,
    *,
    hardware: str | Hardware | Sequence[str | Hardware] = "H100",
    measured: Sequence[Hardware] = (),
    prefix: int = 4096,
    canvases: Sequence[int] = CANVASES,
    batches: Sequence[int] = BATCHES,
    precisions: Sequence[str] | None = None,
    canvas: int = 256,
    batch: int = 1,
    skew: float | None = None,
) -> Roofline:
    """Roofs of `hardware` (names of the table, or Hardware), and where one-token and canvas steps
    of `config` sit.

    measured: devices whose bandwidth and peaks were measured, drawn with broken lines. precisions:
    of cost.PRECISIONS; None takes those the first device has peaks for. canvas, batch: what the
    sliders start at. skew: of `distinct_experts`; None is uniform routing. A point's height is what
    its floor on the first device would reach; it can lie under the roof, because the ops of a step
    are bound by different things.
    """
    chosen = (hardware,) if isinstance(hardware, (str, Hardware)) else hardware
    devices = tuple(device_named(d) if isinstance(d, str) else d for d in chosen)
    if not devices:
        raise ValueError("hardware: got none, takes at least one device")
    for name, value, among in (("canvas", canvas, canvases), ("batch", batch, batches)):
        if value not in among:
            raise ValueError(
                f"{name}: got {value!r}, takes one of the slider's values {tuple(among)}"
            )
    named = tuple(precisions) if precisions is not None else _computable(devices[0])
    if not named or set(named) - set(PRECISIONS):
        raise ValueError(
            f"precisions: got {named!r} on {devices[0].name}, "
            f"takes some of {', '.join(PRECISIONS)} that it has peaks for"
        )
    points = {
        (p, q, b): _point(
            config,
            devices[0],
            PRECISIONS[p],
            "one token" if q == 1 else "canvas",
            prefix,
            q,
            b,
            skew,
        )
        for p in named
        for q in (1, *canvases)
        for b in batches
    }
    return Roofline(
        devices,
        tuple(measured),
        named,
        tuple(canvases),
        tuple(batches),
        points,
        (canvas, batch),
        prefix,
    )


def _computable(device: Hardware) -> tuple[str, ...]:
    return tuple(
        name for name, p in PRECISIONS.items() if set(p.dtype.values()) <= set(device.peaks)
    )


def _point(
    config: Config,
    device: Hardware,
    precision: Precision,
    kind: str,
    prefix: int,
    queries: int,
    batch: int,
    skew: float | None,
) -> Point:
    mode = "autoregressive" if kind == "one token" else "canvas"
    ops = precision.step(config, prefix=prefix, queries=queries, batch=batch, mode=mode, skew=skew)
    total = by_part(ops)

    def seconds(some: list[OpCost]) -> float:
        return floor(some, device, precision.dtype)

    parts = tuple(
        (
            part,
            sums.bytes_weights + sums.bytes_kv,
            sums.flops,
            seconds([op for op in ops if op.part == part]),
        )
        for part, sums in total.items()
    )
    activations = sum(s.bytes_activations for s in total.values())
    flops, moved = sum(p[2] for p in parts), sum(p[1] for p in parts)
    return Point(kind, queries, batch, flops, moved, activations, seconds(ops), parts)
