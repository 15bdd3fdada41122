"""Low-rank adapters (LoRA): fine-tune a frozen model by adding to each matrix W a product B A of
rank r. Notebook 09.

    W + alpha / rank * B A      A [r, in] starts random, B [out, r] starts at zero: at first the
                                model is the base, bit for bit

Against adapters on a plain transformer: experts are stacked tensors, so each expert has a pair of
its own, A [E, r, in] and B [E, out, r]; the router and the self-conditioning block can be adapted
too, as the public training code does; the embedding is tied, so an adapter on it moves the head as
well. The sum is put on the weights by torch.nn.utils.parametrize, so no other file knows of
adapters, and every code path (experts by loop or grouped, autocast, both sides of the model) reads
the sum. A rank above min(in, out) is allowed and buys nothing.

    add_lora(model, 8); train(model, ...)          # only the adapters get gradients
    save_lora(model, "adapter.safetensors")        # load_lora(base, file) puts them on again
    merge(model); model.save_pretrained(folder)    # an ordinary model; unmerge goes back
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

import torch
from jaxtyping import Float
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Generator, Tensor, nn
from torch.nn.utils import parametrize

from .checks import check_class, check_integer, check_path, file_to_write
from .model import DiffusionGemma
from .moe import Experts
from .parts import PARTS, matrices

# every linear, routers and experts included
LINEARS = tuple(part for part in PARTS if part != "embedding")


class LowRank(nn.Module):
    """weight [*E, out, in] -> weight + scale * B A, summed in float32 whatever autocast says and
    rounded to weight's dtype.
    """

    def __init__(self, weight: Tensor, rank: int, scale: float, generator: Generator | None):
        super().__init__()
        *stack, out, into = weight.shape
        a = torch.randn(*stack, rank, into, generator=generator) / math.sqrt(into)
        self.scale = scale
        self.a = nn.Parameter(a.to(weight.device))
        self.b = nn.Parameter(torch.zeros(*stack, out, rank, device=weight.device))

    def forward(self, weight: Float[Tensor, "*e out into"]) -> Float[Tensor, "*e out into"]:
        with torch.autocast(weight.device.type, enabled=False):
            return (weight.float() + self.scale * (self.b.float() @ self.a.float())).to(
                weight.dtype
            )


@dataclass
class Lora:
    """What `model.lora` says of a model's adapters. Keys are (module name, parameter name)."""

    rank: int
    alpha: float
    parts: tuple[str, ...]
    adapters: dict[tuple[str, str], LowRank]
    trained: set[str]  # base parameters that required gradients before
    originals: dict[tuple[str, str], Tensor] | None = None  # kept while merged
    hooks: list = field(default_factory=list)


def add_lora(
    model: DiffusionGemma,
    rank: int = 8,
    alpha: float | None = None,
    parts: str | Iterable[str] = LINEARS,
    *,
    generator: Generator | None = None,
) -> DiffusionGemma:
    """Adapters on all matrices of `parts`, in place; everything else of the model is frozen.

    Returns the model.

    parts: one or some of PARTS ("experts", "dense_mlp", "attention", "router", "self_conditioning",
    "embedding") or "everything"; the default is all but the embedding. alpha None means alpha =
    rank, a scale of 1. generator: of the A's. Errors: ValueError for arguments out of range, and
    for a model that has adapters already or is packed in four bits.
    """
    check_class("model", model, DiffusionGemma)
    check_integer("rank", rank, 1)
    alpha = rank if alpha is None else alpha
    if not isinstance(alpha, (int, float)) or isinstance(alpha, bool) or not 0 < alpha < math.inf:
        raise ValueError(f"alpha: got {alpha!r}, takes a number above 0, or None for the rank")
    if _of(model) is not None:
        raise ValueError(
            f"model: has adapters of rank {model.lora.rank} already, "
            "takes one without; see remove_lora"
        )
    if not isinstance(parts, (str, list, tuple, set, frozenset)):
        raise ValueError(
            f"parts: got {type(parts).__name__}, takes 'everything' or some of {', '.join(PARTS)}"
        )
    found = matrices(model, parts)
    asked = PARTS if parts == "everything" else (parts,) if isinstance(parts, str) else tuple(parts)
    lora = Lora(rank, float(alpha), tuple(p for p in PARTS if p in asked), {}, set())
    lora.trained = {name for name, p in model.named_parameters() if p.requires_grad}
    model.requires_grad_(False)
    for name, module in found.items():
        for leaf, weight in list(module.named_parameters(recurse=False)):
            lora.adapters[name, leaf] = LowRank(weight, rank, alpha / rank, generator)
    model.lora = lora
    _attach(model)
    return model


def lora_parameters(model: DiffusionGemma) -> dict[str, nn.Parameter]:
    """{"layers.0.mlp.gate_proj.weight.a": A, ...}.

    What is trained, the names of an adapter file.
    """
    return {
        f"{name}.{leaf}.{k}": p
        for (name, leaf), low in _need(model).adapters.items()
        for k, p in low.named_parameters()
    }


def merge(model: DiffusionGemma) -> DiffusionGemma:
    """Write the sums into the weights, in place.

    An ordinary model, with equal logits, that saves and loads as any other.

    The originals are kept beside it, so that `unmerge` gives back the base to the bit (a
    subtraction would not).
    """
    lora = _need(model, merged=False)
    lora.originals = _detach(model)
    for (name, leaf), low in lora.adapters.items():
        with torch.no_grad():
            merged = nn.Parameter(low(lora.originals[name, leaf]), requires_grad=False)
        model.get_submodule(name).register_parameter(leaf, merged)
    return model


def unmerge(model: DiffusionGemma) -> DiffusionGemma:
    """Undo `merge`: the base's weights as they were, adapters on top.

    Errors: ValueError if weights changed since the merge.
    """
    lora = _need(model, merged=True)
    for (name, leaf), low in lora.adapters.items():
        held, original = model.get_submodule(name).get_parameter(leaf), lora.originals[name, leaf]
        with torch.no_grad():
            same = (
                held.device == original.device
                and held.dtype == original.dtype
                and torch.equal(held, low(original))
            )
        if not same:
            raise ValueError(
                f"model: {name}.{leaf} was changed or moved since the merge, "
                "takes the merged weights as they were"
            )
    for name, leaf in lora.adapters:
        model.get_submodule(name).register_parameter(leaf, lora.originals[name, leaf])
    lora.originals = None
    _attach(model)
    return model


def remove_lora(model: DiffusionGemma) -> DiffusionGemma:
    """Take the adapters off: the base, bit for bit, and what could be trained before can be trained
    again.
    """
    lora = _need(model)
    if lora.originals is not None:
        unmerge(model)
    for (name, leaf), original in _detach(model).items():
        model.get_submodule(name).register_parameter(leaf, original)
    del model.lora
    for name, p in model.named_parameters():
        p.requires_grad_(name in lora.trained)
    return model


def save_lora(model: DiffusionGemma, path: str | Path) -> None:
    """The adapters alone in one safetensors file; rank, alpha and parts stand in its metadata."""
    lora, path = _need(model), file_to_write("path", path)
    tensors = {name: p.detach().contiguous() for name, p in lora_parameters(model).items()}
    broken = [name for name, t in tensors.items() if not bool(torch.isfinite(t).all())]
    if broken:
        raise ValueError(
            f"model: {', '.join(broken[:5])} hold NaN or infinity, takes adapters that are numbers"
        )
    partial = path.with_name(path.name + ".partial")
    about = {"rank": lora.rank, "alpha": lora.alpha, "parts": lora.parts}
    save_file(tensors, partial, metadata={"lora": json.dumps(about)})
    partial.chmod(0o644)  # the library makes it readable by its owner only
    partial.replace(path)


def load_lora(model: DiffusionGemma, path: str | Path) -> DiffusionGemma:
    """Put saved adapters on their base, in place.

    Errors: ValueError for another file, or adapters of another shape of model.
    """
    path = check_path("path", path)
    try:
        with safe_open(path, framework="pt") as file:
            about, stored = (
                (file.metadata() or {}).get("lora"),
                {k: file.get_tensor(k) for k in file.keys()},
            )
    except (OSError, SafetensorError) as error:
        raise ValueError(f"path: {path} is not a whole safetensors file ({error})") from error
    if about is None:
        raise ValueError(
            f"path: {path} says nothing of adapters, takes a file written by save_lora"
        )
    add_lora(model, **json.loads(about))
    wanted = lora_parameters(model)
    wrong = [
        name
        for name in wanted.keys() | stored.keys()
        if name not in wanted or name not in stored or wanted[name].shape != stored[name].shape
    ]
    if wrong:
        remove_lora(model)
        raise ValueError(
            f"path: {path} has other adapters than this model ({', '.join(sorted(wrong)[:3])}), "
            "takes those of its base"
        )
    with torch.no_grad():
        for name, p in wanted.items():
            p.copy_(stored[name])
    return model


def _of(model: DiffusionGemma) -> Lora | None:
    return getattr(model, "lora", None)


def _need(model: DiffusionGemma, merged: bool | None = None) -> Lora:
    check_class("model", model, DiffusionGemma)
    lora = _of(model)
    if lora is None:
        raise ValueError(
            "model: has no adapters, takes one that went through add_lora or load_lora"
        )
    if merged is not None and merged != (lora.originals is not None):
        raise ValueError(
            f"model: is {'not ' if merged else ''}merged, "
            f"takes one that {'is' if merged else 'is not'}"
        )
    return lora


def _refuse_to_save(folder) -> None:
    raise ValueError(
        "model: has adapters beside its weights, "
        "takes a merged one: merge(model), or save_lora(model, path)"
    )


def _attach(model: DiffusionGemma) -> None:
    """Put the sums on the weights.

    An expert stack is read many times in one call, so its sum is kept for that call.
    """
    lora = model.lora
    for (name, leaf), low in lora.adapters.items():
        parametrize.register_parametrization(model.get_submodule(name), leaf, low)
    for name in dict.fromkeys(name for name, _ in lora.adapters):
        module = model.get_submodule(name)
        if isinstance(module, Experts):
            lora.hooks += _kept_for_a_call(module)
    model.save_pretrained = _refuse_to_save


def _kept_for_a_call(module: nn.Module) -> list:
    open_calls = []

    def before(*_) -> None:
        open_calls.append(parametrize.cached())
        open_calls[-1].__enter__()

    def after(*_) -> None:
        if open_calls:
            open_calls.pop().__exit__(None, None, None)

    return [
        module.register_forward_pre_hook(before),
        module.register_forward_hook(after, always_call=True),
    ]


def _detach(model: DiffusionGemma) -> dict[tuple[str, str], nn.Parameter]:
    """Take the sums off all weights and return the originals, which the caller registers again."""
    originals = {}
    for name in dict.fromkeys(name for name, _ in model.lora.adapters):
        module = model.get_submodule(name)
        originals |= {(name, leaf): sums.original for leaf, sums in module.parametrizations.items()}
        # not by remove_parametrizations: that takes the weight off a class which copies of the
        # module share
        module.__class__ = parametrize.type_before_parametrizations(module)
        del module.parametrizations
    for hook in model.lora.hooks:
        hook.remove()
    model.lora.hooks = []
    del model.save_pretrained
    return originals
