"""The hardware table: every figure has a source, every peak is dense, and what is not known is said
to be so.
"""

from __future__ import annotations

import csv
from importlib.resources import files

import pytest
from tiny import refused

from diffgemma_lite.cost import facts
from diffgemma_lite.cost.hardware import DTYPES, HARDWARE, Hardware, Sourced, hardware

FIGURES = [
    (device.name, what, figure)
    for device in HARDWARE.values()
    for what, figure in [
        ("bandwidth", device.bandwidth),
        ("cache", device.cache),
        *device.peaks.items(),
    ]
]


@pytest.mark.parametrize(
    ("device", "what", "figure"), FIGURES, ids=lambda v: v if isinstance(v, str) else ""
)
def test_every_figure_has_a_source_and_a_sane_size(device, what, figure):
    assert len(figure.source) > 8
    low, high = {"bandwidth": (1e11, 1e13), "cache": (0, 1e9)}.get(what, (1e13, 1e16))
    assert low <= figure.value <= high
    assert (figure.value == 0) == (figure.source == "not found")


def test_peaks_are_dense_and_grow_with_narrower_numbers():
    """The sparse figures that advertisements print (TFLOPS): none may be in the table under the
    same dtype.
    """
    advertised = {
        ("H100", "bf16"): 1979,
        ("H100", "fp8"): 3958,
        ("H200", "fp8"): 3958,
        ("B200", "bf16"): 4500,
        ("B200", "fp4"): 18000,
        ("RTX 5090", "fp4"): 3352,
        ("RTX 4090", "bf16"): 330.3,
        ("RTX PRO 6000", "fp4"): 4030,
        ("DGX Spark", "fp4"): 1000,
        ("L4", "bf16"): 242,
        ("L4", "fp8"): 485,
    }
    for (name, dtype), sparse in advertised.items():
        assert hardware(name).peak(dtype) == pytest.approx(sparse * 1e12 / 2, rel=0.01), (
            name,
            dtype,
        )
    for device in HARDWARE.values():
        assert set(device.peaks) <= set(DTYPES)
        rates = [device.peaks[d].value for d in DTYPES if d in device.peaks]
        assert rates == sorted(rates), device.name


def test_what_is_not_in_the_table_is_an_error_that_says_what_is():
    with refused("name", "A100", "H100", "L4"):
        hardware("A100")
    with refused("dtype", "fp4", "bf16", "measure"):
        hardware("H100").peak("fp4")
    with refused("dtype", "bf16", "none"):
        hardware("Apple M4 Pro").peak("bf16")


def test_ridge_is_where_moving_and_computing_take_equally_long():
    device = Hardware("toy", Sourced(10.0, "made up"), {"bf16": Sourced(1000.0, "made up")})
    assert device.ridge("bf16") == 100
    assert HARDWARE["H100"].ridge("fp8") == pytest.approx(
        2 * HARDWARE["H100"].ridge("bf16"), rel=1e-3
    )


def test_published_rows_are_data_with_sources():
    rows = facts.published_throughput()
    assert len(rows) == 32
    assert all(
        r["source"] and float(r["tokens_per_second"]) > 0 and int(r["concurrency"]) > 0
        for r in rows
    )
    assert {r["mode"] for r in rows} == {"diffusion", "autoregressive", "autoregressive+MTP"}
    single = facts.rows("report_single_user.csv")
    assert all(r["source"].startswith("arXiv:2608.00146") and r["unit"] for r in single)
    assert len({r["quantity"] for r in single}) == len(single)
    assert facts.single_user("canvas experts") == 4.66
    # they travel inside the package
    for name in ("published_throughput.csv", "report_single_user.csv"):
        with (files("diffgemma_lite.cost.facts") / name).open(encoding="utf-8", newline="") as file:
            assert list(csv.DictReader(file))
