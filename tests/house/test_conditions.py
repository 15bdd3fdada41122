"""The conditions conftest.py promises hold: shapes are checked, the thread is one, a callback's
exception is not lost.
"""

from __future__ import annotations

import importlib
import os
import re
import subprocess
import sys
from pathlib import Path

import jaxtyping
import pytest
import torch

import diffgemma_lite

PROBE = """
from __future__ import annotations
from dataclasses import dataclass
import anywidget, traitlets
from jaxtyping import Float
from torch import Tensor

@dataclass(frozen=True, kw_only=True)
class Size:
    width: int
    scale: float = 1

def pair(x: Float[Tensor, "B C"], y: Float[Tensor, "B C"]) -> Float[Tensor, "B"]:
    return (x * y).sum(-1)

class View(anywidget.AnyWidget):
    _esm = "export default {}"
    step = traitlets.Int(0).tag(sync=True)

    def advance(self, by: int) -> int:
        self.step += by
        return self.step
"""
CALLBACKS = """
import ipywidgets, traitlets

def fails(*_):
    raise ValueError("lost?")

def test_button_fails():
    button = ipywidgets.Button()
    button.on_click(fails)
    button.click()

def test_interactive_fails():
    slider = ipywidgets.interactive(fails, x=(0, 3))
    slider.update()

def test_message_of_the_page_fails():
    slider = ipywidgets.IntSlider()
    slider.observe(fails, "value")
    slider._handle_msg({"content": {"data": {"method": "update", "state": {"value": 3}}}})

def test_thread_fails():
    import threading
    thread = threading.Thread(target=fails)
    thread.start()
    thread.join()

def test_quiet_passes():
    button = ipywidgets.Button()
    button.on_click(lambda _: None)
    button.click()
"""


@pytest.fixture
def probe(tmp_path, monkeypatch):
    """A module made for the occasion, imported as a part of the package."""
    (tmp_path / "made_up_probe.py").write_text(PROBE)
    monkeypatch.setattr(diffgemma_lite, "__path__", [*diffgemma_lite.__path__, str(tmp_path)])
    yield importlib.import_module("diffgemma_lite.made_up_probe")
    del sys.modules["diffgemma_lite.made_up_probe"]


def test_shapes_and_types_of_the_package_are_checked(probe):
    assert probe.pair(torch.ones(2, 3), torch.ones(2, 3)).tolist() == [3, 3]
    with pytest.raises(jaxtyping.TypeCheckError):
        probe.pair(torch.ones(2, 3), torch.ones(3, 3))
    with pytest.raises(jaxtyping.TypeCheckError):
        probe.pair(torch.ones(2, 3), torch.ones(2, 3, dtype=torch.long))
    assert probe.Size(width=3, scale=2).scale == 2  # an int may stand for a float
    with pytest.raises(jaxtyping.TypeCheckError):
        probe.Size(width="3")
    assert probe.View().advance(2) == 2
    with pytest.raises(jaxtyping.TypeCheckError):
        probe.View().advance("2")


def test_a_test_can_ask_for_the_package_as_readers_run_it(probe, unchecked):
    assert probe.pair(torch.ones(2, 3), torch.ones(1, 3)).tolist() == [3, 3]
    assert probe.Size(width="3").width == "3"


def test_every_module_of_the_package_came_through_the_hook():
    loaders = {
        name: type(module.__spec__.loader).__name__
        for name, module in list(sys.modules.items())
        if name.split(".")[0] == "diffgemma_lite"
    }
    assert loaders and set(loaders.values()) == {"_JaxtypingLoader"}, loaders


def test_one_thread():
    assert torch.get_num_threads() == 1
    torch.set_num_threads(2)  # the next test, below, finds one again


def test_one_thread_again():
    assert torch.get_num_threads() == 1


def test_an_exception_in_a_callback_fails_its_test(tmp_path):
    """Without the fixture of conftest.py the first three pass.

    The library catches what they raise, and logs it.
    """
    (tmp_path / "test_made_up.py").write_text(CALLBACKS)
    here = Path(__file__).resolve().parents[1]
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "pytest",
            "-q",
            "-rA",
            "-n0",
            "-p",
            "conftest",
            "-p",
            "no:cacheprovider",
            "-c",
            str(here.parent / "pyproject.toml"),
            "--rootdir",
            str(tmp_path),
            str(tmp_path / "test_made_up.py"),
        ],
        env=os.environ | {"PYTHONPATH": str(here)},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=120,
    )
    lines = re.findall(r"^(PASSED|FAILED|ERROR) \S+::(\w+)", done.stdout, re.MULTILINE)
    # PASSED, then ERROR while tearing down, is ERROR
    outcome = {name: word for word, name in sorted(lines, reverse=True)}
    for name in ("button", "interactive", "message_of_the_page", "thread"):
        assert outcome[f"test_{name}_fails"] in ("FAILED", "ERROR"), done.stdout
    assert outcome["test_quiet_passes"] == "PASSED", done.stdout
    assert done.stdout.count("an exception was swallowed in a widget callback") >= 3
