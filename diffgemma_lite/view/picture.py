"""A picture of the player, made from a real trace by one command (needs playwright and a browser,
as the browser tests do).

    python -m diffgemma_lite.view.picture assets/recordings/python-small.json player.png --step 12
"""

from __future__ import annotations

import argparse
import os
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path

from ..trace import Trace
from . import player
from .host import page

PATIENCE = 300_000  # milliseconds for a browser that hangs; a busy machine may need many of them


def find_browser() -> str:
    """The path of a Chromium or Chrome; DIFFGEMMA_BROWSER names another."""
    names = ("chromium", "chromium-browser", "google-chrome", "chrome")
    found = os.environ.get("DIFFGEMMA_BROWSER") or next(
        filter(None, map(shutil.which, names)), None
    )
    if found is None:
        raise ValueError(
            "browser: none found; install Chromium "
            "(Debian: apt-get install chromium) or set DIFFGEMMA_BROWSER"
        )
    return found


def shoot(
    markup: str, path: str | Path, act: Callable, *, dark: bool = False, width: int = 1000
) -> Path:
    """Open a page in a headless browser, let `act(tab)` bring its view where it should be, and save
    a PNG of all of it.
    """
    from playwright.sync_api import sync_playwright

    path = Path(path).resolve()
    path.parent.mkdir(parents=True, exist_ok=True)
    as_root = ["--no-sandbox"] if hasattr(os, "geteuid") and os.geteuid() == 0 else []
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as play:
        file = Path(folder) / "page.html"
        file.write_text(markup, encoding="utf-8")
        browser = play.chromium.launch(
            executable_path=find_browser(), args=as_root, timeout=PATIENCE
        )
        size, scheme = {"width": width, "height": 300}, "dark" if dark else "light"
        tab = browser.new_page(viewport=size, color_scheme=scheme, device_scale_factor=1.5)
        tab.set_default_timeout(PATIENCE)
        tab.goto(file.as_uri())
        tab.locator("[data-live=yes], [data-plotly=live]").wait_for()
        act(tab)
        tab.screenshot(path=str(path), full_page=True)
        browser.close()
    return path


def slide(tab, value: int) -> None:
    """Put the view's slider at a value."""
    # and no focus ring on it
    set_it = "(range, value) => { range.value = value; range.dispatchEvent(new Event('input')); }"
    tab.locator("input[type=range]").first.evaluate(set_it, value)


def picture(
    trace: Trace,
    path: str | Path,
    *,
    step: int = 1,
    dark: bool = False,
    width: int = 1000,
    title: str | None = None,
) -> Path:
    """The player at denoising step `step` (1 is the first)."""
    title = title or "Canvas player"
    return shoot(
        page(player(trace, title=title).html, title),
        path,
        lambda p: slide(p, step - 1),
        dark=dark,
        width=width,
    )


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description="A PNG of the canvas player at one step of a saved trace."
    )
    parser.add_argument("trace", help="a file written by Trace.save")
    parser.add_argument("png")
    parser.add_argument("--step", type=int, default=1, help="denoising step to show, from 1")
    parser.add_argument("--dark", action="store_true")
    parser.add_argument("--width", type=int, default=1000)
    parser.add_argument("--title")
    given = parser.parse_args(arguments)
    picture(
        Trace.load(given.trace),
        given.png,
        step=given.step,
        dark=given.dark,
        width=given.width,
        title=given.title,
    )


if __name__ == "__main__":
    main()
