"""Checks of arguments that are shared: each raises a ValueError that names the argument, what it
got and what it takes.

They look at types, shapes and paths, never at the values of a tensor, so on a GPU they cost no
waiting.
"""

from __future__ import annotations

import json
import os
from collections.abc import Collection
from dataclasses import MISSING, fields
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

KINDS = {
    "token ids": lambda t: t.dtype in (torch.int64, torch.int32),
    "torch.bool": lambda t: t.dtype == torch.bool,
    "floating-point numbers": lambda t: t.is_floating_point(),
    "numbers": lambda t: not t.is_complex() and t.dtype != torch.bool,
}


def kind_of(value) -> str:
    """The dtype of a tensor, the class of anything else."""
    return str(value.dtype) if isinstance(value, Tensor) else type(value).__name__


def shown(value) -> str:
    return f"{kind_of(value)} {tuple(value.shape)}" if isinstance(value, Tensor) else kind_of(value)


def check_tensor(
    name: str, value, kind: str, shape: tuple[int | str, ...], device: torch.device | None = None
) -> None:
    """A tensor of one of KINDS. shape: sizes, or letters where any will do (a capital is above 0, a
    small one may be 0).
    """
    fits = isinstance(value, Tensor) and KINDS[kind](value) and value.dim() == len(shape)
    if fits:
        pairs = zip(value.shape, shape, strict=True)
        fits = all(
            size == want if isinstance(want, int) else size > 0 or want.islower()
            for size, want in pairs
        )
    if not fits:
        raise ValueError(f"{name}: got {shown(value)}, takes {kind} [{', '.join(map(str, shape))}]")
    if device is not None and value.device != device:
        raise ValueError(f"{name}: is on {value.device}, takes one on {device}")


def is_integer(value, least: int, most: float = float("inf")) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and least <= value <= most


def check_integer(name: str, value, least: int, most: float = float("inf")) -> None:
    if not is_integer(value, least, most):
        above = "" if most == float("inf") else f" and at most {most}"
        raise ValueError(f"{name}: got {value!r}, takes an integer of at least {least}{above}")


def check_class(name: str, value, wanted: type, hint: str = "") -> None:
    if not isinstance(value, wanted):
        raise ValueError(
            f"{name}: got {value if isinstance(value, type) else type(value).__name__}, takes a {wanted.__name__}{hint}"
        )


def check_generators(generator, rows: int) -> None:
    """None, one torch.Generator, or a list with one per row."""
    several = isinstance(generator, (list, tuple))
    if several and len(generator) != rows:
        raise ValueError(f"generator: got a list of {len(generator)}, takes one per row, {rows}")
    for g in generator if several else [generator]:
        if (several or g is not None) and not isinstance(g, torch.Generator):
            raise ValueError(
                f"generator: got {type(g).__name__}, takes a torch.Generator or a list with one per row"
            )


def check_device(name: str, device) -> torch.device:
    """Anything torch.device takes, if such a device is here."""
    try:
        found = torch.device(device)
        torch.empty(0, device=found)
    except (RuntimeError, TypeError, ValueError, AssertionError) as error:
        here = ["cpu", *(f"cuda:{i}" for i in range(torch.cuda.device_count()))]
        reason = str(error).splitlines()[0]
        raise ValueError(
            f"{name}: got {device!r}, takes a device that is here, {' or '.join(here)} ({reason})"
        ) from error
    return found


def check_float_dtype(name: str, dtype) -> None:
    if not (isinstance(dtype, torch.dtype) and dtype.is_floating_point):
        raise ValueError(
            f"{name}: got {dtype!r}, takes a floating-point torch.dtype such as torch.float32, or None"
        )


def check_path(name: str, path) -> Path:
    try:
        return Path(path)
    except TypeError:
        raise ValueError(f"{name}: got {type(path).__name__}, takes a path") from None


def folder_to_write(name: str, folder) -> Path:
    """The folder, made if need be. Errors: ValueError if it is a file, cannot be made or may not be
    written to.
    """
    folder = check_path(name, folder)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        what = "is a file" if folder.is_file() else f"cannot be made ({error.strerror})"
        raise ValueError(f"{name}: {folder} {what}, takes a folder") from error
    if not os.access(folder, os.W_OK | os.X_OK):
        raise ValueError(f"{name}: {folder} may not be written to, takes a folder that may")
    return folder


def file_to_write(name: str, path) -> Path:
    """The path of a file that will be written; its folder is made if need be. Errors as
    `folder_to_write`.
    """
    path = check_path(name, path)
    if path.is_dir():
        raise ValueError(f"{name}: {path} is a folder, takes a file")
    folder_to_write(name, path.parent)
    return path


def check_keys(name: str, value, needed: Collection[str], optional: Collection[str] = ()) -> None:
    """An object of a JSON file, with all keys of `needed` and none but these and `optional`."""
    takes = f"an object with {', '.join(needed)}" + (
        f", and perhaps {', '.join(optional)}" if optional else ""
    )
    if not isinstance(value, dict):
        raise ValueError(f"{name}: got {type(value).__name__}, takes {takes}")
    missing, unknown = (
        [key for key in needed if key not in value],
        [key for key in value if key not in {*needed, *optional}],
    )
    if missing or unknown:
        told = [
            f"{what} {', '.join(keys)}"
            for what, keys in (("lacks", missing), ("has", unknown))
            if keys
        ]
        raise ValueError(f"{name}: {' and '.join(told)}, takes {takes}")


def read_object(
    name: str, path, needed: Collection[str], optional: Collection[str] = ()
) -> dict[str, Any]:
    """The object of a JSON file; its keys as `check_keys`."""
    try:
        found = json.loads(check_path(name, path).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ValueError(f"{name}: {path} cannot be read as JSON ({error})") from error
    check_keys(f"{name}: {path}", found, needed, optional)
    return found


def from_object(name: str, wanted: type, value) -> Any:
    """A dataclass made of the keys of a JSON object. Errors: ValueError for a key it has not, or
    one that it needs.
    """
    known = fields(wanted)
    needed = [f.name for f in known if f.default is MISSING and f.default_factory is MISSING]
    check_keys(name, value, needed, [f.name for f in known if f.name not in needed])
    return wanted(**value)
