"""Pairs of (reference, ours) with equal weights, built once a module."""

from __future__ import annotations

from typing import Any

import pytest
import transformers
from reference import build, ours


@pytest.fixture(scope="session", autouse=True)
def _quiet_transformers() -> None:
    transformers.utils.logging.disable_progress_bar()


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory):
    """pair(shape, ...) -> (reference, ours), with the kernels that add in the same order.

    Arguments as `reference.build`.
    """
    made: dict[str, Any] = {}

    def get(shape: str | dict[str, Any] = "grouped_queries", **kwargs: Any):
        key = repr((shape, sorted(kwargs.items())))
        if key not in made:
            reference = build(shape, **kwargs)
            made[key] = reference, ours(reference, tmp_path_factory.mktemp("reference"))
        reference, model = made[key]
        reference.set_experts_implementation("eager")
        return reference, model.set_kernels(experts="loop", fused_norm=False)

    return get
