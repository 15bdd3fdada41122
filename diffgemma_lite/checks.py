"""The door: what an argument may be is said once, beside its name, and checked before any work.

    @door
    def accept(entropy: Float[Tensor, "b c"], bound: Annotated[float, number("nats", least=0)]): ...

`door` reads the signature: dtype and shape of a tensor from its jaxtyping annotation (equal letters
are equal sizes, all tensors are on one device), the range of a number from `Annotated`.
`check_fields` reads the fields of a dataclass in the same way. Whatever is refused is refused in
one form, a ValueError that names the argument, what it got and what it takes. Types, shapes and
paths are looked at, never the values of a tensor, so on a GPU a check costs no waiting.
"""

from __future__ import annotations

import functools
import inspect
import json
import os
import types
import typing
from collections.abc import Callable, Collection
from dataclasses import MISSING, dataclass, fields
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


# the names jaxtyping gives its annotations -> the kinds above
_SAID = {
    "Int": "token ids",
    "Bool": "torch.bool",
    "Float": "floating-point numbers",
    "Real": "numbers",
}
MAY_BE_EMPTY = {"k"}  # the letter of an axis that may have no entry: the steps so far


@dataclass(frozen=True)
class Takes:
    """What a plain value may be, in words and as a test. Stands in `Annotated`."""

    words: str
    fits: Callable[[Any], bool]

    def check(self, name: str, value: Any) -> None:
        if not self.fits(value):
            raise ValueError(f"{name}: got {value!r}, takes {self.words}")


def number(
    words: str, *, least: float = -float("inf"), most: float = float("inf"), finite: bool = False
) -> Takes:
    """A real number from `least` to `most`, both included; never NaN."""

    def fits(value: Any) -> bool:
        plain = isinstance(value, (int, float)) and not isinstance(value, bool)
        return plain and least <= value <= most and not (finite and abs(value) == float("inf"))

    return Takes(words, fits)


def integer(words: str, least: int, most: float = float("inf")) -> Takes:
    return Takes(words, lambda value: is_integer(value, least, most))


def one_of(*values: Any) -> Takes:
    return Takes(
        " or ".join(map(repr, values)),
        lambda value: any(type(value) is type(v) and value == v for v in values),
    )


SWITCH = Takes("True or False", lambda value: isinstance(value, bool))
PER_ROW = Takes("a torch.Generator or a list with one per row", lambda value: True)
SMALLEST = 5e-324  # the smallest number above 0


def door(function: Callable) -> Callable:
    """The function, with its arguments checked by what its signature says of them.

    A letter of a shape is bound by the first tensor that has it. Generators marked PER_ROW are one,
    or a list with one for each row b. About ten microseconds a call.
    """
    signature = inspect.signature(function)
    rules: dict[str, tuple[bool, Any]] = {}

    @functools.wraps(function)
    def checked(*args, **kwargs):
        if not rules:  # at the first call, when every name in the annotations exists
            hints = typing.get_type_hints(function, include_extras=True)
            rules.update(
                {name: _rule(hints[name]) for name in signature.parameters if name in hints}
            )
        given, sizes, device = signature.bind(*args, **kwargs).arguments, {}, None
        for name, value in given.items():
            may_be_none, rule = rules.get(name, (True, None))
            if rule is None or (value is None and may_be_none):
                continue
            if rule is PER_ROW:
                check_generators(value, sizes["b"])
            elif isinstance(rule, Takes):
                rule.check(name, value)
            elif isinstance(rule, tuple):
                kind, letters = rule
                shape = tuple(sizes.get(x, x if x in MAY_BE_EMPTY else x.upper()) for x in letters)
                check_tensor(name, value, kind, shape, device)
                sizes |= zip(letters, value.shape, strict=True)
                device = value.device
            else:
                check_class(name, value, rule)
        return function(*args, **kwargs)

    return checked


def _rule(hint: Any) -> tuple[bool, Any]:
    """(may it be None, what to check) of one annotation: a Takes, (kind, letters), a class, "
    "None."""
    for extra in getattr(hint, "__metadata__", ()):
        if isinstance(extra, Takes):
            return False, extra
    if typing.get_origin(hint) in (typing.Union, types.UnionType):
        parts = [part for part in typing.get_args(hint) if part is not type(None)]
        found = [rule for rule in (_rule(part)[1] for part in parts) if rule is not None]
        return len(parts) < len(typing.get_args(hint)), found[0] if len(found) == 1 else None
    if hasattr(hint, "dim_str") and hint.array_type is Tensor:
        kind = _SAID.get(hint.__name__.partition("[")[0])
        return False, None if kind is None or "." in hint.dim_str else (kind, hint.dim_str.split())
    declared = isinstance(hint, type) and hasattr(hint, "__dataclass_fields__")
    return False, hint if declared else None


@functools.cache
def _field_rules(kind: type) -> dict[str, tuple[bool, Any]]:
    hints = typing.get_type_hints(kind, include_extras=True)
    return {f.name: _rule(hints[f.name]) for f in fields(kind)}


def check_fields(it: Any) -> None:
    """The fields of a dataclass, by the ranges that their annotations carry."""
    for name, (may_be_none, rule) in _field_rules(type(it)).items():
        value = getattr(it, name)
        if isinstance(rule, Takes) and not (value is None and may_be_none):
            rule.check(name, value)


def need(it: Any, name: str, fits: bool, takes: str) -> None:
    """What one field may be, given another."""
    if not fits:
        raise ValueError(f"{name}: got {getattr(it, name)!r}, takes {takes}")


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
            f"{name}: got {value if isinstance(value, type) else type(value).__name__}, "
            f"takes a {wanted.__name__}{hint}"
        )


def check_generators(generator, rows: int) -> None:
    """None, one torch.Generator, or a list with one per row."""
    several = isinstance(generator, (list, tuple))
    if several and len(generator) != rows:
        raise ValueError(f"generator: got a list of {len(generator)}, takes one per row, {rows}")
    for g in generator if several else [generator]:
        if (several or g is not None) and not isinstance(g, torch.Generator):
            raise ValueError(
                f"generator: got {type(g).__name__}, "
                "takes a torch.Generator or a list with one per row"
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
            f"{name}: got {dtype!r}, "
            "takes a floating-point torch.dtype such as torch.float32, or None"
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
