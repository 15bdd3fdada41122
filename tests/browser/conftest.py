"""A real browser, and a real JupyterLab to point it at.

`open_page` opens a file with the network off and fails the test on any console error, page error or
failed request. `lab` is one JupyterLab for the whole session, with its own settings and its own
store of trusted notebooks; nothing of the user's is read or written. The browser is a module's, not
the session's: playwright keeps an event loop running while it is open, and the tests that come
after need their own.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from harness import PATIENCE, Complaints, Lab, browser_path


@pytest.fixture(scope="module")
def chromium():
    """A headless browser; without its sandbox only where it would refuse to start, as root."""
    path = browser_path()
    from playwright.sync_api import sync_playwright

    as_root = hasattr(os, "geteuid") and os.geteuid() == 0
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=path, args=["--no-sandbox"] if as_root else [], timeout=PATIENCE
        )
        yield browser
        browser.close()


@pytest.fixture
def open_page(chromium) -> Iterator[Callable]:
    """open_page(path, width=1200, scheme="light", motion="no-preference", script=True) -> page,
    network off.
    """
    opened = []

    def open_it(
        path: Path, *, width=1200, scheme="light", motion="no-preference", script=True, ignore=()
    ):
        context = chromium.new_context(
            viewport={"width": width, "height": 900},
            color_scheme=scheme,
            reduced_motion=motion,
            offline=True,
            java_script_enabled=script,
        )
        context.set_default_timeout(PATIENCE)
        page = context.new_page()
        opened.append((context, Complaints(page, ignore)))
        page.goto(Path(path).as_uri())
        return page

    yield open_it
    for context, _ in opened:
        context.close()
    found = [words for _, complaints in opened for words in complaints.found]
    assert not found, found


@pytest.fixture(scope="session")
def lab(tmp_path_factory) -> Iterator[Lab]:
    browser_path()
    server = Lab(tmp_path_factory.mktemp("lab"))
    yield server
    server.close()
