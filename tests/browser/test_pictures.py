"""The pictures in assets/figures come from a command; here it draws a made-up trace, light and dark."""

from __future__ import annotations

import subprocess
import sys

from harness import ROOT, browser_path
from simulated import simulate


def test_the_command_draws_the_player_at_a_step(tmp_path):
    browser_path()  # without a browser this skips
    trace = simulate(24, 5).save(tmp_path / "trace.json")
    made = {}
    for name, more in (("light", ["--step", "1"]), ("dark", ["--step", "1", "--dark"]), ("later", ["--step", "5"])):
        png = tmp_path / f"{name}.png"
        command = [sys.executable, "-m", "diffgemma_lite.view.picture", str(trace), str(png), "--width", "600", *more]
        subprocess.run(command, cwd=ROOT, check=True, timeout=120)
        data = made[name] = png.read_bytes()
        assert data[:8] == b"\x89PNG\r\n\x1a\n" and int.from_bytes(data[16:20]) == 900  # one and a half times the width
        assert int.from_bytes(data[20:24]) > 600  # the whole page, not only what a window shows
    assert len(set(made.values())) == 3
