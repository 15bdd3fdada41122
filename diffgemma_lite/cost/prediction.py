"""A prediction of measured speed.

The floor, plus four numbers, each fitted on one published single-user figure.

Against a fit: the four numbers have seen none of the rows they predict. `calibrate` reads four
figures of one report (arXiv:2608.00146, section 6: one user on an H100, fp8 weights), `predict`
then says what that model means for other numbers of users, for autoregressive decoding and for
other devices, and sets the published figure beside it. The *form* of the model has seen some of
those rows, so it is not a blind prediction: see the last lines. Walked through in notebook 11.

The time of a step is the sum over its ops of the longest of: its bytes at the achieved share of the
bandwidth, its FLOPs at the data sheet's peak, and the least time any op takes; sampling is one
measured cost per canvas position. What is left out: kernels that reach less than the peak (in the
report attention and its projections take nearly twice what comes out here), work on the host
between steps, the commit pass (a denoising step here, as in the report's formula), and requests
that wait for each other.

Chosen after a first comparison with the published rows: an op's activations count only where they
are larger than the cache of the chip (without that rule 8 and 16 users came out a third too fast
and the crossover at 75 users), and every text has its own favourite experts (routing.py), which
decides how many weights a batch reads.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from ..config import Config
from . import facts
from .hardware import HARDWARE, Hardware, floor
from .ops import WEIGHT_PARTS, OpCost, step_cost
from .routing import distinct_experts, fit_skew


@dataclass(frozen=True)
class Precision:
    """How a checkpoint is stored and run.

    Bytes a weight (2 if not named) and dtype of the products (`base`) by part.
    """

    source: str
    weight_bytes: Mapping[str, float] = field(default_factory=dict)
    dtypes: Mapping[str, str] = field(default_factory=dict)
    kv_bytes: float = 2.0
    activation_bytes: float = 2.0
    base: str = "bf16"

    @property
    def dtype(self) -> dict[str, str]:
        """The dtype of every part, as `floor` takes it."""
        return dict.fromkeys((*WEIGHT_PARTS, "head", "sampling"), self.base) | dict(self.dtypes)

    def dtype_of(self, op: OpCost) -> str:
        """Products without weights (attention itself) run in `base` whatever the weights are."""
        return self.dtypes.get(op.part, self.base) if op.bytes_weights else self.base

    def step(
        self,
        config: Config,
        *,
        prefix: int,
        queries: int,
        batch: int,
        mode: str,
        skew: float | None,
    ) -> list[OpCost]:
        """`step_cost` of `batch` unrelated texts, with the distinct experts they touch under
        `skew`.
        """
        experts = distinct_experts(config, batch * queries, skew, texts=batch)
        return step_cost(
            config,
            prefix=prefix,
            queries=queries,
            batch=batch,
            mode=mode,
            weight_bytes=self.weight_bytes,
            kv_bytes=self.kv_bytes,
            activation_bytes=self.activation_bytes,
            experts=experts,
        )


_LINEAR = ("attention", "dense_mlp", "experts")
PRECISIONS = {
    "BF16": Precision("google/diffusiongemma-26B-A4B-it: everything in bf16"),
    "FP8": Precision("RedHatAI FP8-dynamic card: all linears but head, embedding, router and "
                     "self-conditioning",
                     dict.fromkeys(_LINEAR, 1.0), dict.fromkeys(_LINEAR, "fp8")),
    "NVFP4": Precision("nvidia NVFP4 card: only the routed experts, at 4.5 bits with their scales; "
                       "cache in fp8",
                       {"experts": 4.5 / 8}, {"experts": "fp4"}, kv_bytes=1.0),
    "4-bit": Precision("everything at 4 bits and a 16-bit scale and offset per 64, "
                       "computed in 16 bits",
                       dict.fromkeys((*_LINEAR, "embedding", "router", "self_conditioning"),
                                     4.5 / 8)),
    "FP32": Precision("float32 throughout, as the small models of this package run on a CPU",
                      dict.fromkeys(WEIGHT_PARTS, 4.0), kv_bytes=4.0, activation_bytes=4.0,
                      base="fp32"),
}  # fmt: skip


@dataclass(frozen=True)
class Calibration:
    """The four numbers."""

    bandwidth_fraction: float  # from "canvas experts": the weights of 84 experts a layer in 4.66 ms
    launch_seconds: float  # from "autoregressive rate": 204 tokens/s, end to end; no op takes less
    # from "canvas sampling": 3.06 ms, less its products over the vocabulary; per canvas position
    sampling_seconds: float
    skew: float  # from "canvas distinct experts per layer": 84


MODES = {"diffusion": "canvas", "autoregressive": "autoregressive"}
REPORT_PREFIX = 4096 + 512  # 4,096 in, 1,024 out: the mean prefix while the answer is written
OTHER_PREFIX = (
    1024 + 512
    # where a source does not say: as in the public vLLM benchmark (1,024 in, 1,024 out; vllm
    # PR 46212)
)


def step_ops(
    config: Config, mode: str, precision: Precision, *, prefix: int, batch: int, skew: float | None
) -> list[OpCost]:
    """One step of `batch` users; mode "canvas" (a whole one) or "autoregressive" (one token)."""
    queries = config.canvas_length if mode == "canvas" else 1
    return precision.step(config, prefix=prefix, queries=queries, batch=batch, mode=mode, skew=skew)


def step_seconds(
    ops: Iterable[OpCost], hardware: Hardware, precision: Precision, c: Calibration, positions: int
) -> float:
    """The predicted time of a step that samples at `positions` positions."""
    work = (_work(op, hardware, precision, c.bandwidth_fraction) for op in _timed(ops))
    return c.sampling_seconds * positions + sum(max(c.launch_seconds, seconds) for seconds in work)


def _timed(ops: Iterable[OpCost]) -> list[OpCost]:
    """All but what goes element by element over the vocabulary, which is inside the calibrated cost
    per position.
    """
    return [op for op in ops if op.name not in ("sampling", "soft_cap", "softmax")]


def _work(op: OpCost, hardware: Hardware, precision: Precision, fraction: float) -> float:
    spilled = op.bytes_activations if op.bytes_activations > hardware.cache.value else 0.0
    moved = op.bytes_weights + op.bytes_kv + spilled
    return max(
        moved / (fraction * hardware.bandwidth.value),
        op.flops / hardware.peak(precision.dtype_of(op)),
    )


def calibrate(config: Config, figures: Mapping[str, float] | None = None) -> Calibration:
    """The four numbers from four figures of facts/report_single_user.csv; `figures` replaces some
    by name.
    """
    figure = {
        row["quantity"]: float(row["value"]) for row in facts.rows("report_single_user.csv")
    } | dict(figures or {})
    device, precision = HARDWARE["H100"], PRECISIONS["FP8"]
    skew = fit_skew(config, config.canvas_length, figure["canvas distinct experts per layer"])
    canvas = step_ops(config, "canvas", precision, prefix=REPORT_PREFIX, batch=1, skew=skew)
    token = step_ops(config, "autoregressive", precision, prefix=REPORT_PREFIX, batch=1, skew=skew)
    weights = sum(op.bytes_weights for op in canvas if op.part == "experts")
    fraction = weights / device.bandwidth.value / (figure["canvas experts"] * 1e-3)
    # The head must be inside the report's "sampling": what its parts leave of the total is less
    # than the head's floor.
    over_vocabulary = [op for op in _timed(canvas) if op.part in ("head", "self_conditioning")]

    products, others = (
        [_work(op, device, precision, fraction) for op in ops]
        for ops in (over_vocabulary, _timed(token))
    )

    def sampling(launch: float) -> float:
        return (
            figure["canvas sampling"] * 1e-3 - sum(max(launch, work) for work in products)
        ) / config.canvas_length

    low, high = 0.0, 1e-3
    for _ in range(50):
        launch = (low + high) / 2
        slow = (
            sampling(launch) + sum(max(launch, work) for work in others)
            > 1 / figure["autoregressive rate"]
        )
        low, high = (low, launch) if slow else (launch, high)
    return Calibration(fraction, low, sampling(low), skew)


@dataclass(frozen=True)
class Prediction:
    """One published row beside what the model says.

    Rates are tokens kept per second, all users together.
    """

    row: Mapping[str, str]
    users: int
    published: float
    predicted: float
    bound: float  # the rate no device of this data sheet can beat, from the floor
    fitted: bool  # this row is one of the four figures, so its ratio says nothing

    @property
    def ratio(self) -> float:
        return self.predicted / self.published


def predict(
    config: Config,
    rows: Iterable[Mapping[str, str]] | None = None,
    calibration: Calibration | None = None,
) -> list[Prediction]:
    """Predicted beside published rate, for rows that state their tokens per forward on a known
    device and precision.

    rows: as facts.published_throughput() gives them, which is the default; tokens_per_second is
    only copied, never used. calibration: None fits it (`calibrate`). Rate = users * tokens per
    forward / step time.
    """
    calibration = calibrate(config) if calibration is None else calibration
    out = []
    for row in facts.published_throughput() if rows is None else rows:
        known = (
            row["mode"] in MODES and row["hardware"] in HARDWARE and row["precision"] in PRECISIONS
        )
        if not (known and row["tokens_per_forward"]):
            continue
        device, precision, users = (
            HARDWARE[row["hardware"]],
            PRECISIONS[row["precision"]],
            int(row["concurrency"]),
        )
        mode, report = MODES[row["mode"]], row["source"].startswith("arXiv:2608.00146")
        prefix = REPORT_PREFIX if report else OTHER_PREFIX
        ops = step_ops(config, mode, precision, prefix=prefix, batch=users, skew=calibration.skew)
        positions = users * (config.canvas_length if mode == "canvas" else 1)
        kept = users * float(row["tokens_per_forward"])
        seconds = step_seconds(ops, device, precision, calibration, positions)
        fitted = report and mode == "autoregressive" and row["source"].endswith("sec.6")
        out.append(
            Prediction(
                row,
                users,
                float(row["tokens_per_second"]),
                kept / seconds,
                kept / floor(ops, device, precision.dtype),
                fitted,
            )
        )
    return out


def crossover(
    config: Config,
    calibration: Calibration,
    *,
    hardware: str = "H100",
    precision: str = "FP8",
    tokens_per_forward: float = 16.0,
    most: int = 512,
) -> int | None:
    """The smallest number of users at which autoregressive decoding gives more tokens per second
    than denoising, or None.

    Published for the H100 with fp8 weights: around 32 (arXiv:2608.00146, figure 12, at 16 tokens
    per forward).
    """
    device, kind = HARDWARE[hardware], PRECISIONS[precision]

    def rate(mode: str, users: int, per_forward: float, positions: int) -> float:
        ops = step_ops(config, mode, kind, prefix=REPORT_PREFIX, batch=users, skew=calibration.skew)
        return users * per_forward / step_seconds(ops, device, kind, calibration, positions)

    def overtaken(users: int) -> bool:
        canvas = rate("canvas", users, tokens_per_forward, users * config.canvas_length)
        return rate("autoregressive", users, 1, users) > canvas

    # the lead of denoising shrinks with every user: doubling, then halving finds where it ends
    low, high = 0, 1
    while not overtaken(high):
        if high == most:
            return None
        low, high = high, min(2 * high, most)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if overtaken(middle) else (middle, high)
    return high
