"""What data sheets promise: memory bandwidth and dense matrix peaks of the devices DiffusionGemma
was timed on.

Against the number in an advertisement: data sheets like to print the peak for 2:4 sparse weights,
which is twice the dense one, or that of another dtype. Every peak here is dense and belongs to its
dtype, and every figure says where it is from. A figure that was not found is left out, and asking
for it is an error: measure it (measure/). Walked through in notebook 01.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from ..checks import check_class
from .ops import OpCost

DTYPES = ("fp32", "tf32", "bf16", "fp8", "fp4")


class Sourced(NamedTuple):
    """A figure and where it is from."""

    value: float
    source: str


@dataclass(frozen=True)
class Hardware:
    """A device: bandwidth in bytes/s, peaks in FLOP/s by dtype (dense; fp16 equals bf16 on all of
    these), cache in bytes.
    """

    name: str
    bandwidth: Sourced
    peaks: dict[str, Sourced] = field(default_factory=dict)
    cache: Sourced = Sourced(0.0, "not found")  # the last one before memory

    def peak(self, dtype: str) -> float:
        """FLOP/s in `dtype`. Errors: ValueError if the figure is not in the table."""
        if dtype not in self.peaks:
            have = ", ".join(self.peaks) or "none"
            raise ValueError(
                f"dtype: got {dtype!r}, {self.name} has a peak for {have}; measure the others"
            )
        return self.peaks[dtype].value

    def ridge(self, dtype: str) -> float:
        """FLOPs per byte above which a product is bound by compute."""
        return self.peak(dtype) / self.bandwidth.value


def _peaks(source: str, **tera: float) -> dict[str, Sourced]:
    return {dtype: Sourced(value * 1e12, source) for dtype, value in tera.items()}


def _data_sheets() -> list[Hardware]:
    hopper = (
        "NVIDIA H100 data sheet, SXM: 1,979 (bf16), 3,958 (fp8) and 989 (tf32) "
        "TFLOPS are with sparsity, dense is half "
        "(as listed at glennklockwood.com/garden/processors/h100)"
    )
    hbm3e = "NVIDIA H200 data sheet: 4.8 TB/s (as quoted at aiwiki.ai/wiki/nvidia_h200)"
    l2 = "NVIDIA Hopper architecture paper: 50 MB of L2 (as quoted at chipsandcheese.com, H100)"
    hgx = (
        "NVIDIA HGX B200 at 1,000 W, dense column "
        "(as listed at glennklockwood.com/garden/processors/B200)"
    )
    gb202 = "NVIDIA: AI TOPS {} are fp4 with sparsity, dense is half"
    ada = (
        "NVIDIA Ada architecture paper, dense, fp32 accumulation "
        "(as listed at waredb.com/processor/nvidia-geforce-rtx-4090)"
    )
    pro = (
        "dense, as listed at hmc-tech.com (RTX PRO 6000 Blackwell); "
        "NVIDIA's 4,000 AI TOPS are fp4 with sparsity"
    )
    l4 = (
        "NVIDIA L4 data sheet: 485 (fp8), 242 (bf16) and 120 (tf32) "
        "TFLOPS are with sparsity, dense is half "
        "(as quoted at grokipedia.com, L4 vs L40S)"
    )
    b200 = (
        "8 TB/s (glennklockwood.com/garden/processors/B200); a newer HGX table of NVIDIA's says 7.7"
    )
    fp16_sums = "{} TFLOPS are with sparsity and fp16 accumulation (spheron.network), dense is half"
    return [
        Hardware(
            "H100",
            Sourced(3.35e12, "NVIDIA H100 data sheet, SXM: 3.35 TB/s (codesota.com/hardware/h100)"),
            _peaks(hopper, tf32=494.7, bf16=989.4, fp8=1978.9)
            | _peaks("NVIDIA H100 data sheet, SXM: vector units (glennklockwood.com)", fp32=66.9),
            Sourced(50e6, l2),
        ),
        Hardware(
            "H200",
            Sourced(4.8e12, hbm3e),
            _peaks(
                "same chip as the H100 SXM, equal peaks "
                "(NVIDIA H200 data sheet: 3,958 fp8 TFLOPS with sparsity, dense is half)",
                fp32=66.9,
                tf32=494.7,
                bf16=989.4,
                fp8=1978.9,
            ),
            Sourced(50e6, l2),
        ),
        Hardware(
            "B200",
            Sourced(8.0e12, b200),
            _peaks(hgx, fp32=80, tf32=1100, bf16=2250, fp8=4500, fp4=9000),
        ),
        Hardware(
            "RTX 5090",
            Sourced(1.792e12, "NVIDIA: 1,792 GB/s (spheron.network/blog/nvidia-rtx-5090-specs)"),
            _peaks(gb202.format("3,352"), fp4=1676)
            | _peaks(fp16_sums.format("1,676.8"), fp8=838.4)
            | _peaks(fp16_sums.format("838.4") + ", and fp32 accumulation half of that", bf16=209.6)
            | _peaks("NVIDIA: vector units (spheron.network)", fp32=105.2),
            Sourced(96e6, "96 MB of L2 (topcpu.net)"),
        ),
        Hardware(
            "RTX 4090",
            Sourced(1.008e12, "NVIDIA: 1,008 GB/s (waredb.com/processor/nvidia-geforce-rtx-4090)"),
            _peaks(ada, fp32=82.6, tf32=82.6, bf16=165.2, fp8=330.3),
            Sourced(72e6, "72 MB of L2 (waredb.com)"),
        ),
        Hardware(
            "RTX PRO 6000",
            Sourced(1.792e12, "NVIDIA RTX PRO 6000 Blackwell data sheet: 1,792 GB/s (gpu.name)"),
            _peaks(pro, fp32=125, tf32=251.9, bf16=503.8, fp8=1007, fp4=2015),
            Sourced(128e6, "128 MB of L2 (topcpu.net)"),
        ),
        Hardware(
            "DGX Spark",
            Sourced(
                2.73e11, "NVIDIA: 273 GB/s (huggingface.co/blog/exolabs/the-dgx-spark-handbook)"
            ),
            _peaks(
                "NVIDIA: 1 PFLOP is fp4 with sparsity, dense is half (dgx-spark.warehack.ing)",
                fp4=500,
            )
            | _peaks("vector units of the GB10 (huggingface.co/hardware/gb10)", fp32=29.7),
        ),
        Hardware(
            "L4",
            Sourced(3.0e11, "NVIDIA L4 data sheet: 300 GB/s (grokipedia.com, L4 vs L40S)"),
            _peaks(l4, tf32=60, bf16=121, fp8=242.5)
            | _peaks("NVIDIA L4 data sheet: vector units (fpsbench.com)", fp32=30.3),
            Sourced(48e6, "48 MB of L2 (fpsbench.com)"),
        ),
        Hardware(
            "Apple M1 Ultra",
            Sourced(8.0e11, "Apple, March 2022: 800 GB/s"),
            _peaks(
                "64 GPU cores at the M1 Max's 7.96 fp32 TFLOPS per 24 cores (hmc-tech.com); "
                "fp16 runs at the same rate",
                fp32=21.2,
                bf16=21.2,
            ),
        ),
        # Apple prints no FLOPs for it
        Hardware("Apple M4 Pro", Sourced(2.73e11, "Apple, October 2024: 273 GB/s")),
        # nor for it
        Hardware(
            "Apple M5 Max", Sourced(6.14e11, "Apple, March 2026: 614 GB/s with the 40-core GPU")
        ),
    ]


HARDWARE: dict[str, Hardware] = {device.name: device for device in _data_sheets()}


def hardware(name: str) -> Hardware:
    """A device of the table by name. Errors: ValueError that lists the names."""
    if name not in HARDWARE:
        raise ValueError(
            f"name: got {name!r}, takes one of {', '.join(HARDWARE)}; "
            "for another device make a Hardware from measurements"
        )
    return HARDWARE[name]


def floor(
    ops: Iterable[OpCost],
    hardware: Hardware,
    dtype: str | Mapping[str, str] = "bf16",
    *,
    activations: bool = False,
) -> float:
    """The least time these ops can take, in seconds.

    The longer of moving bytes and computing FLOPs, op by op, summed.

    dtype: what the products are computed in, one name or one per part (parts left out take "bf16").
    The peaks are the data sheet's dense ones. Bytes are weights and cache. Activations are left
    out, since they may stay on the chip between two ops: with them the bound is no bound (the
    report's 4.66 ms for the experts of a canvas step would beat it); `activations=True` is the
    estimate for kernels that write every result to memory.
    """
    check_class("hardware", hardware, Hardware, ", such as hardware('H100')")
    total = 0.0
    for op in ops:
        moved = op.bytes if activations else op.bytes_weights + op.bytes_kv
        name = dtype if isinstance(dtype, str) else dtype.get(op.part, "bf16")
        total += max(moved / hardware.bandwidth.value, op.flops / hardware.peak(name))
    return total
