"""The environment check names what is missing and the one command that mends it."""

import os
import sys

import pytest

from diffgemma_lite import environment


def test_all_is_well_here(capsys):
    assert environment.check() is True
    out = capsys.readouterr().out
    assert "All is well" in out and "PROBLEM" not in out
    assert all(package in out for package in environment.NEEDED)


def test_a_missing_package_is_named_with_the_command(monkeypatch, capsys):
    real = environment.version
    monkeypatch.setattr(environment, "version", lambda package: None if package == "anywidget" else real(package))
    assert environment.check() is False
    out = capsys.readouterr().out
    assert "lacks anywidget" in out and environment.FIX in out


def test_a_missing_front_end_part_is_named(monkeypatch, tmp_path):
    monkeypatch.setattr(sys, "prefix", str(tmp_path))
    found = environment.problems()
    assert any("anywidget" in f and "JupyterLab part" in f for f in found)
    assert any("ipywidgets" in f and "JupyterLab part" in f for f in found)


@pytest.mark.skipif(not os.path.exists("/proc/1"), reason="the server's Python is looked up in /proc, which is Linux's")
def test_another_python_for_the_server_is_seen(monkeypatch):
    monkeypatch.setenv("JPY_PARENT_PID", str(os.getpid()))
    assert not any("another Python" in f for f in environment.problems())
    monkeypatch.setattr(environment, "server_python", lambda: "/usr/bin/python-of-another-environment")
    assert any("another Python" in f for f in environment.problems())
