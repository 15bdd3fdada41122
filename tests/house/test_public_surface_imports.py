"""The core runs on a bare GPU box.

It imports with torch, einops, jaxtyping, safetensors and numpy and nothing else.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import diffgemma_lite

PACKAGE = Path(diffgemma_lite.__file__).parent
NEEDS_MORE = ("view", "course")  # these draw, or run notebooks
BLOCKED = (
    "tqdm",
    "tokenizers",
    "transformers",
    "plotly",
    "anywidget",
    "ipywidgets",
    "IPython",
    "ipykernel",
    "traitlets",
    "matplotlib",
    "pandas",
    "nbformat",
    "nbclient",
    "nbconvert",
    "beartype",
    "pytest",
    "playwright",
)
IMPORT_ALONE = """
import importlib, sys
class Missing:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {blocked!r}:
            raise ModuleNotFoundError(f"No module named {{name!r}} (blocked)", name=name)
sys.meta_path.insert(0, Missing())
for name in {names!r}:
    importlib.import_module(name)
    print(name)
"""


def core_modules() -> list[str]:
    """Every module of the package that is not in one of the parts that may need more."""
    names = []
    for file in sorted(PACKAGE.rglob("*.py")):
        parts = file.relative_to(PACKAGE).with_suffix("").parts
        if parts[0] not in NEEDS_MORE:
            names.append(
                ".".join(["diffgemma_lite", *[part for part in parts if part != "__init__"]])
            )
    return names


def import_alone(names: list[str]) -> subprocess.CompletedProcess[str]:
    code = IMPORT_ALONE.format(blocked=set(BLOCKED), names=names)
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)


def test_the_core_imports_without_notebook_and_plotting_packages():
    names = core_modules()
    assert {"diffgemma_lite", "diffgemma_lite.trace"} <= set(names)
    done = import_alone(names)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == names


@pytest.mark.parametrize("name", ["tqdm.auto", "transformers", "IPython.display"])
def test_the_block_of_the_test_above_blocks(name):
    done = import_alone([name])
    assert done.returncode != 0 and "(blocked)" in done.stderr


def test_the_package_exports_what_it_lists():
    missing = [
        name for name in getattr(diffgemma_lite, "__all__", []) if not hasattr(diffgemma_lite, name)
    ]
    assert not missing
