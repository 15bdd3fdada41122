"""The environment check names what is missing and the one command that mends it."""

import os
import subprocess
import sys
import venv
from contextlib import contextmanager
from pathlib import Path

import pytest

from diffgemma_lite.measure import environment


def test_all_is_well_here(capsys):
    assert environment.check() is True
    out = capsys.readouterr().out
    assert "All is well" in out and "PROBLEM" not in out
    assert all(package in out for package in environment.NEEDED)


def test_a_missing_package_is_named_with_the_command(monkeypatch, capsys):
    real = environment.version
    monkeypatch.setattr(
        environment, "version", lambda package: None if package == "anywidget" else real(package)
    )
    assert environment.check() is False
    out = capsys.readouterr().out
    assert "lacks anywidget" in out and environment.FIX in out


def test_a_missing_front_end_part_is_named(monkeypatch, tmp_path):
    monkeypatch.setattr(sys, "prefix", str(tmp_path))
    found = environment.problems()
    assert any("anywidget" in f and "JupyterLab part" in f for f in found)
    assert any("ipywidgets" in f and "JupyterLab part" in f for f in found)


IN_PROC = pytest.mark.skipif(
    not os.path.exists("/proc/1"),
    reason="the server's Python is looked up in /proc, which is Linux's",
)


@IN_PROC
def test_another_python_for_the_server_is_seen(monkeypatch):
    monkeypatch.setenv("JPY_PARENT_PID", str(os.getpid()))
    assert not any("another Python" in f for f in environment.problems())
    monkeypatch.setattr(
        environment, "server_python", lambda: "/usr/bin/python-of-another-environment"
    )
    assert any("another Python" in f for f in environment.problems())


@contextmanager
def serving(command, **how):
    """A Python that is up and waits, as the server of this notebook."""
    wait = "import sys; print('up', flush=True); sys.stdin.read()"
    with subprocess.Popen(
        [command, "-c", wait], stdin=subprocess.PIPE, stdout=subprocess.PIPE, **how
    ) as server:
        assert server.stdout.readline() == b"up\n"
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("JPY_PARENT_PID", str(server.pid))
            yield
        server.stdin.close()


@IN_PROC
@pytest.mark.parametrize("called", ["by its path", "by its name", "by a relative path"])
def test_two_environments_with_one_base_python_are_told_apart(tmp_path, called):
    """Their programs are links to the same file, so the program alone says nothing."""
    venv.create(tmp_path / "other", symlinks=True, with_pip=False)
    folder = tmp_path / "other" / "bin"
    command = {
        "by its path": str(folder / "python"),
        "by its name": "python",
        "by a relative path": "bin/python",
    }[called]
    variables = os.environ | {"PATH": f"{folder}{os.pathsep}{os.environ['PATH']}"}
    with serving(command, env=variables, cwd=folder.parent):
        seen, found = environment.server_python(), environment.problems()
    assert Path(seen).resolve() == Path(sys.executable).resolve() and Path(seen).parent == folder
    assert any("another Python" in f and str(folder) in f for f in found)


@IN_PROC
def test_another_name_of_the_same_python_is_the_same_environment():
    with serving(Path(sys.executable).with_name("python3")):
        assert not any("another Python" in f for f in environment.problems())


@pytest.mark.parametrize("parent", ["0", "999999999", "x", ""])
def test_a_server_that_cannot_be_seen_is_no_problem(monkeypatch, parent):
    monkeypatch.setenv("JPY_PARENT_PID", parent)
    assert environment.server_python() is None and not any(
        "another Python" in f for f in environment.problems()
    )
