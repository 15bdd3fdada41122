"""Lines, imports, unused names and formatting: held by ruff, by the rules of pyproject.toml.

`python -m ruff check --fix` and `python -m ruff format` mend most of what these tests say.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
CHECKS = {"check": ["check", "--output-format=concise"], "format": ["format", "--check", "--diff"]}


def ruff(arguments: list[str], folder: Path) -> subprocess.CompletedProcess:
    command = [sys.executable, "-m", "ruff", *arguments, "--no-cache", "."]
    return subprocess.run(command, cwd=folder, capture_output=True, encoding="utf-8")


@pytest.mark.parametrize("what", CHECKS)
def test_ruff_finds_nothing(what):
    done = ruff(CHECKS[what], ROOT)
    assert done.returncode == 0, f"ruff {what}:\n{done.stdout}{done.stderr}"


@pytest.mark.parametrize(
    ("what", "line", "said"),
    [
        ("check", f'said = "{"long " * 20}"', "E501"),
        ("check", "import os", "F401"),
        ("check", "print(nowhere)", "F821"),
        ("format", "said = 'single'", '+said = "single"'),
    ],
)
def test_ruff_finds_what_is_planted(tmp_path, what, line, said):
    """With the rules of this project, which therefore are read and are on."""
    (tmp_path / "planted.py").write_text(line + "\n", encoding="utf-8")
    done = ruff([*CHECKS[what], f"--config={ROOT / 'pyproject.toml'}"], tmp_path)
    assert done.returncode == 1 and said in done.stdout, done.stdout + done.stderr


def test_every_python_file_but_the_notebooks_is_looked_at():
    found = ruff(["check", "--show-files"], ROOT).stdout.split()
    wanted = [
        p for top in ("diffgemma_lite", "tests", "benchmarks") for p in (ROOT / top).rglob("*.py")
    ]
    assert {str(path) for path in wanted} <= set(found)
    assert len(wanted) > 100


def lint_imports(folder: Path) -> subprocess.CompletedProcess:
    command = [sys.executable, "-c", "from importlinter.cli import lint_imports_command as l; l()"]
    environment = os.environ | {"PYTHONPATH": str(folder)}
    return subprocess.run(
        [*command, "--no-cache"], cwd=folder, capture_output=True, encoding="utf-8", env=environment
    )


def test_arrows_run_one_way():
    done = lint_imports(ROOT)
    assert done.returncode == 0, done.stdout + done.stderr


def test_an_arrow_against_the_rooms_is_found(tmp_path):
    """The contracts are read, and a copy of the package with one wrong import breaks one."""
    shutil.copytree(ROOT / "diffgemma_lite", tmp_path / "diffgemma_lite")
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    core = tmp_path / "diffgemma_lite" / "noise.py"
    core.write_text(core.read_text(encoding="utf-8") + "\nfrom .labs import scores  # noqa\n")
    done = lint_imports(tmp_path)
    assert done.returncode == 1 and "labs" in done.stdout, done.stdout + done.stderr
