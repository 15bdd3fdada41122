"""The tree itself: one list of packages in two files, the README's commands, and nothing that does
not belong in it.
"""

from __future__ import annotations

import ast
import json
import os
import re
import shutil
import subprocess
import tomllib
import zipfile
from importlib.metadata import version
from io import BytesIO
from pathlib import Path

import pytest
import yaml
from packaging.requirements import Requirement

ROOT = Path(__file__).resolve().parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
README = (ROOT / "README.md").read_text(encoding="utf-8")
TESTED = {
    Requirement(line).name: Requirement(line).specifier
    for line in PROJECT["tool"]["uv"]["constraint-dependencies"]
}
MAX_BYTES = 25 * 2**20
# in pieces, so that this file does not hold what it looks for
HOSTS = ["pypi|org", "files|pythonhosted", "registry|npmjs", "anaconda|org", "download|pytorch"]
FOLDERS = [f"/{name}/" for name in ("work", "root", "tmp")]
LOCKS = re.compile(r"(\.lock|-lock\.(json|ya?ml)|\.lockb)$", re.IGNORECASE)
PICKLES = re.compile(r"\.(pt|pth|pkl|pickle|ckpt|bin|joblib|dill)$", re.IGNORECASE)


def tree() -> list[Path]:
    """What is, or would be, committed: git's own list.

    Without git every file outside hidden and generated folders.
    """
    if shutil.which("git") and (ROOT / ".git").exists():
        command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
        names = subprocess.run(
            command, cwd=ROOT, capture_output=True, text=True, check=True
        ).stdout.split("\0")
        return [ROOT / name for name in names if name and (ROOT / name).is_file()]
    hidden = re.compile(r"(^|/)(\.venv|\.git|__pycache__|\.[a-z]+_cache|uv\.lock)(/|$)|\.egg-info")
    return [
        path
        for path in ROOT.rglob("*")
        if path.is_file() and not hidden.search(path.relative_to(ROOT).as_posix())
    ]


def name(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def is_pickle(content: bytes) -> bool:
    """A pickle by its first and last bytes, alone or inside an archive (torch.save writes such
    archives).
    """
    if content[:4] == b"PK\x03\x04":
        with zipfile.ZipFile(BytesIO(content)) as archive:
            return any(
                PICKLES.search(member) or is_pickle(archive.read(member))
                for member in archive.namelist()
            )
    if content[:6] == b"\x93NUMPY":
        return b"'descr': '|O'" in content[:256]
    return content[:1] == b"\x80" and content[1:2] in b"\x02\x03\x04\x05" and content[-1:] == b"."


def code_lines(text: str, heading: str) -> list[list[str]]:
    """The commands of each fenced block of a section of the README."""
    section = text.split(f"\n## {heading}\n")[1].split("\n## ")[0]
    return [
        block.strip().splitlines() for block in re.findall(r"```\w*\n(.*?)```", section, re.DOTALL)
    ]


def test_a_package_is_declared_with_a_range_and_a_tested_version():
    declared = [
        Requirement(line)
        for line in PROJECT["project"]["dependencies"] + PROJECT["dependency-groups"]["dev"]
    ]
    assert sorted(package.name for package in declared) == sorted(TESTED)
    for package in declared:
        operators = {specifier.operator for specifier in package.specifier}
        assert operators == {">=", "<"}, f"{package}: a range has a lower and an upper end"
        assert package.specifier.contains(version(package.name)), (
            f"{package}: {version(package.name)} is installed"
        )


def test_the_installed_versions_are_the_tested_ones():
    assert {
        n: version(n) for n, specifier in TESTED.items() if not specifier.contains(version(n))
    } == {}


def test_environment_yml_lists_the_same_packages_and_versions():
    environment = yaml.safe_load((ROOT / "environment.yml").read_text(encoding="utf-8"))
    *conda, by_pip = environment["dependencies"]
    assert environment["name"] == PROJECT["project"]["name"] and environment["channels"] == [
        "conda-forge"
    ]
    assert conda == ["python" + PROJECT["project"]["requires-python"], "pip"]
    *packages, this = by_pip["pip"]
    assert this == "-e ."
    assert {Requirement(line).name: Requirement(line).specifier for line in packages} == TESTED
    assert len(packages) == len(TESTED)


def test_the_readme_opens_with_the_two_commands_and_ci_runs_the_second():
    (start, test), conda = code_lines(README, "Start")
    assert (start, test) == ("uv run jupyter lab notebooks/00_start_here.ipynb", "uv run pytest")
    assert README.index(start) < README.index("## What you will see")
    assert conda[-2:] == [start.removeprefix("uv run "), test.removeprefix("uv run ")]
    assert "--allow-root" in README
    assert (ROOT / ".ci" / "run").read_text().strip().splitlines()[-1] == test
    workflow = yaml.safe_load((ROOT / ".github" / "workflows" / "ci.yml").read_text())
    runs = [
        step["run"].splitlines()[-1] for step in workflow["jobs"]["tests"]["steps"] if "run" in step
    ]
    assert runs == ["bash .ci/run", test, test]


def test_the_readme_lists_every_notebook_once_and_nothing_else():
    """With the question that notebook 00 gives for it."""
    table = README.split("\n## The course\n")[1].split("\n## ")[0]
    rows = [
        [cell.strip() for cell in line.strip("|").split("|")]
        for line in table.splitlines()
        if line.startswith("|")
    ]
    assert rows[0] == ["notebook", "the question it answers"]
    notebooks = sorted(
        path.stem
        for path in tree()
        if path.parent == ROOT / "notebooks" and path.suffix == ".ipynb"
    )
    assert [link for link, _ in rows[2:]] == [
        f"[{stem}](notebooks/{stem}.ipynb)" for stem in notebooks
    ]
    cells = json.loads((ROOT / "notebooks" / "00_start_here.ipynb").read_text(encoding="utf-8"))[
        "cells"
    ]
    (course,) = [
        "".join(cell["source"])
        for cell in cells
        if "".join(cell["source"]).startswith("course = {")
    ]
    questions = ast.literal_eval(course.removeprefix("course = ").split("\n}")[0] + "\n}")
    assert [question for _, question in rows[2:]] == [questions[stem] for stem in notebooks]


@pytest.mark.skipif(shutil.which("bash") is None, reason="no bash")
def test_the_ci_script_is_a_script():
    script = ROOT / ".ci" / "run"
    assert subprocess.run(["bash", "-n", str(script)]).returncode == 0
    assert os.name == "nt" or os.access(script, os.X_OK)
    assert "set -euo pipefail" in script.read_text()


@pytest.mark.parametrize("document", ["README.md", "CONTRIBUTING.md"])
def test_files_named_in_the_documents_exist(document):
    text = (ROOT / document).read_text(encoding="utf-8")
    linked = [target for target in re.findall(r"\]\(([^)#\s]+)", text) if "://" not in target]
    is_file = re.compile(r"\.ci/run|[\w./-]+\.(py|md|toml|yml|ipynb|json)")
    quoted = [word for word in re.findall(r"`([^`\s]+)`", text) if is_file.fullmatch(word)]
    commands = re.findall(r"\bnotebooks/\S+\.ipynb", text)
    inside = [ROOT, ROOT / "diffgemma_lite", ROOT / "notebooks"]
    missing = [
        n
        for n in {*linked, *quoted, *commands}
        if not any((folder / n).exists() for folder in inside)
    ]
    assert linked or quoted
    assert not missing


def test_the_layout_in_contributing_names_every_part_of_the_package():
    layout = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8").split("```")[1]
    parts = [
        path
        for path in (ROOT / "diffgemma_lite").iterdir()
        if path.suffix == ".py" or (path / "__init__.py").exists()
    ]
    assert [
        path.name
        for path in parts
        if path.stem != "__init__" and not re.search(rf"\b{path.stem}\b", layout)
    ] == []


def test_no_test_module_imports_another():
    """What two of them share stands in tests/helpers."""
    modules = sorted((ROOT / "tests").rglob("*.py"))
    imported = {
        (path.name, word)
        for path in modules
        for word in re.findall(
            r"^\s*(?:from|import) (test_\w+)", path.read_text(encoding="utf-8"), re.MULTILINE
        )
    }
    assert len(modules) > 50 and imported == set()


def test_the_licence_is_apache_2():
    text = (ROOT / "LICENSE").read_text(encoding="utf-8")
    assert PROJECT["project"]["license"] == "Apache-2.0" and PROJECT["project"][
        "license-files"
    ] == ["LICENSE"]
    assert re.search(r"Apache License\s+Version 2\.0, January 2004", text)
    assert re.findall(r"^   (\d)\. [A-Z]", text, re.MULTILINE) == list("123456789")
    assert "END OF TERMS AND CONDITIONS" in text and "APPENDIX: How to apply" in text


def test_nothing_in_the_tree_names_a_registry_or_a_folder_of_a_machine():
    found = []
    for path in tree():
        content = path.read_bytes()
        found += [
            f"{name(path)}: {word}"
            for word in [*(host.replace("|", ".") for host in HOSTS), *FOLDERS]
            if word.encode() in content
        ]
    assert not found


def test_no_lock_file_and_no_pickle():
    files = tree()
    assert len(files) > 10
    assert [name(path) for path in files if LOCKS.search(path.name)] == []
    assert [
        name(path) for path in files if PICKLES.search(path.name) or is_pickle(path.read_bytes())
    ] == []


def test_no_file_is_larger_than_a_hosting_site_takes():
    assert {
        name(path): path.stat().st_size for path in tree() if path.stat().st_size > MAX_BYTES
    } == {}


def test_a_pickle_is_recognised(tmp_path):
    import pickle

    import numpy as np
    import torch

    torch.save({"w": torch.ones(2)}, tmp_path / "weights")
    np.save(tmp_path / "objects.npy", np.array([{}], dtype=object), allow_pickle=True)
    np.savez(tmp_path / "objects.npz", a=np.array([{}], dtype=object))
    np.savez(tmp_path / "numbers.npz", a=np.ones(3))
    assert is_pickle(pickle.dumps({"a": 1})) and is_pickle((tmp_path / "weights").read_bytes())
    assert is_pickle((tmp_path / "objects.npy").read_bytes()) and is_pickle(
        (tmp_path / "objects.npz").read_bytes()
    )
    assert not is_pickle((tmp_path / "numbers.npz").read_bytes()) and not is_pickle(b"plain text.")
