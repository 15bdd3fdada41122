"""What every test runs under: shapes checked, one thread, and no exception lost in a widget
callback.

Loaded before any test module, so the import hook is in place before anything imports
`diffgemma_lite`. The kernels that nbval starts for the notebooks are other processes and run
without it, as a reader's do.
"""

from __future__ import annotations

import logging
import os
import traceback
from collections.abc import Iterator
from contextlib import contextmanager

import jaxtyping
import pytest

os.environ.setdefault("HF_HUB_OFFLINE", "1")  # nothing here may need a network
os.environ.setdefault("PYTHONHASHSEED", "0")  # inherited by the kernels
os.environ.setdefault("OMP_NUM_THREADS", "1")  # and so is this: two processes share the machine
# Threads that spin long while they wait for each other cost 3 s a step of the tiny model where
# something else takes a core; with this many turns it is 0.2 s, and 0.04 s as before where nothing
# does. Read once, when torch is loaded.
os.environ.setdefault("GOMP_SPINCOUNT", "20000")
# Every annotation of the package (shapes, dtypes and plain types) is checked at each call, in the
# tests only, by tests/helpers/typechecker.py.
_hook = jaxtyping.install_import_hook("diffgemma_lite", "typechecker.check")

import torch  # noqa: E402

THREADS = 1  # one a process; sums split over another number of threads differ in the last bit


def pytest_configure(config: pytest.Config) -> None:
    torch.set_num_threads(THREADS)


@pytest.fixture(autouse=True)
def _fixed_threads() -> None:
    """A test that changes the thread count changes it for itself alone."""
    torch.set_num_threads(THREADS)


class _Swallowed(logging.Handler):
    """Keeps the exceptions that ipywidgets and traitlets log instead of raising."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.found: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        if record.exc_info and record.exc_info[0] is not None:
            self.found.append(
                record.getMessage() + "\n" + "".join(traceback.format_exception(*record.exc_info))
            )


@contextmanager
def widget_exceptions() -> Iterator[list[str]]:
    """The exceptions swallowed in widget callbacks while the block ran, each as text with its
    traceback.

    Outside a notebook ipywidgets catches what a button, slider or `interactive` callback raises and
    only logs it, to the logger traitlets hands it: the application's if one runs, else the one
    named "traitlets".
    """
    from traitlets.log import get_logger

    logger, handler = get_logger(), _Swallowed()
    level, disabled = logger.level, logger.disabled
    logger.addHandler(handler)
    logger.setLevel(min(level, logging.WARNING) if level else logging.WARNING)
    logger.disabled = False
    try:
        yield handler.found
    finally:
        logger.removeHandler(handler)
        logger.setLevel(level)
        logger.disabled = disabled


@pytest.fixture
def unchecked() -> Iterator[None]:
    """The package as a reader runs it, annotations not checked.

    For tests of what the package itself says to bad input.
    """
    before = jaxtyping.config.jaxtyping_disable
    jaxtyping.config.update("jaxtyping_disable", True)
    yield
    jaxtyping.config.update("jaxtyping_disable", before)


@pytest.fixture(autouse=True)
def no_swallowed_exception() -> Iterator[None]:
    """A callback that raises fails the test it ran in, although the widget library hides it
    (on_click, interactive).
    """
    with widget_exceptions() as found:
        yield
    if found:
        pytest.fail(
            "an exception was swallowed in a widget callback:\n" + "\n".join(found), pytrace=False
        )
