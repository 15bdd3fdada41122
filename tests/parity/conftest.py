"""Pairs of (reference, ours) with equal weights, built once a module."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
import transformers
from reference import build, ours


@pytest.fixture(scope="session", autouse=True)
def _quiet_transformers() -> None:
    transformers.utils.logging.disable_progress_bar()


@pytest.fixture(autouse=True)
def _one_thread(_fixed_threads: None) -> Iterator[None]:
    """These models are so small that a second thread costs more than it brings.

    Taken back at once: what the next file makes once for all its tests would else be computed on
    another number of threads.
    """
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


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
