"""The environment check of notebook 00.

Is this the right Python, are the packages there, will widgets show?

Its output is what belongs in a bug report. It needs nothing but the standard library to say what is
missing.
"""

from __future__ import annotations

import os
import platform
import shutil
import sys
from importlib import metadata
from pathlib import Path

NEEDED = (
    "torch",
    "transformers",
    "tokenizers",
    "safetensors",
    "einops",
    "jaxtyping",
    "jupyterlab",
    "ipywidgets",
    "anywidget",
    "plotly",
    "numpy",
    "tqdm",
)
FIX = "uv run jupyter lab notebooks/00_start_here.ipynb"
EXTENSIONS = {"anywidget": "anywidget", "@jupyter-widgets/jupyterlab-manager": "ipywidgets"}


def version(package: str) -> str | None:
    """The installed version, or None."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def environment_of(executable: str | Path) -> Path:
    """The virtual environment a Python was started from, else the program itself.

    Two environments may share one program.
    """
    folder = Path(executable).parent
    found = [place for place in (folder.parent, folder) if (place / "pyvenv.cfg").exists()]
    return (found[0] if found else Path(executable)).resolve()


def server_python() -> str | None:
    """The Python that serves this notebook as it was called, where the system lets us see it
    (Linux); None elsewhere.
    """
    parent = os.environ.get("JPY_PARENT_PID")
    try:
        process = Path(f"/proc/{int(parent or '')}")
        called = os.fsdecode((process / "cmdline").read_bytes().split(b"\0")[0])
        if os.sep not in called:  # found in the server's own PATH
            variables = dict(
                v.split(b"=", 1)
                for v in (process / "environ").read_bytes().split(b"\0")
                if b"=" in v
            )
            called = shutil.which(called, path=os.fsdecode(variables.get(b"PATH", b""))) or ""
        elif not os.path.isabs(called):
            called = str((process / "cwd").resolve(strict=True) / called)
        program = (process / "exe").resolve(strict=True)
        return called if called and Path(called).resolve() == program else str(program)
    except (OSError, ValueError):
        return None


def problems() -> list[str]:
    """What would go wrong, in words, each with what mends it; empty when all is well."""
    found = []
    if sys.version_info < (3, 11):  # noqa: UP036 (the check is what this file is for)
        found.append(f"Python is {platform.python_version()}, takes 3.11 or newer")
    missing = [package for package in NEEDED if version(package) is None]
    if missing:
        found.append(f"this kernel's Python lacks {', '.join(missing)}")
    for extension, package in EXTENSIONS.items():
        places = [Path(sys.prefix) / "share" / "jupyter" / "labextensions" / extension]
        if package not in missing and not any(p.exists() for p in places):
            found.append(
                f"{package} is installed without its JupyterLab part ({extension}); "
                "widgets would stay blank"
            )
    server = server_python()
    if server is not None and environment_of(server) != environment_of(sys.executable):
        found.append(
            f"JupyterLab runs in another Python ({server}) than this kernel; "
            "widgets need their packages in both"
        )
    return found


def check() -> bool:
    """Print versions, device and what is wrong, if anything. Returns True when all is well."""
    print(
        f"Python {platform.python_version()} on {platform.system()} {platform.machine()}, "
        f"{os.cpu_count()} cores"
    )
    print(", ".join(f"{package} {version(package) or 'MISSING'}" for package in NEEDED))
    if version("torch"):
        import torch

        gpu = torch.cuda.get_device_name(0) if torch.cuda.is_available() else "none (not needed)"
        print(f"torch uses {torch.get_num_threads()} threads; GPU: {gpu}")
    found = problems()
    for problem in found:
        print(f"PROBLEM: {problem}. Close this and start from the project's folder with: {FIX}")
    if not found:
        print("All is well.")
    return not found
