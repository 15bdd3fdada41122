"""What four bits cost in quality.

Losses, agreement and steps of a model with parts of it rounded, against float.

Against a score per model: every number is paired. The rounded model sees the same noise, the same
canvases and the same seeds as the float one, so that a difference has a much narrower interval than
either score alone. Walked through in notebook 10. The table for a shipped model, some ten minutes
of two free cores; it resumes where it was interrupted:

    python -m diffgemma_lite.labs.four_bits.quality \\
        assets/checkpoints/python-small assets/recordings/nvfp4-quality-python-small.json
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ...generation import generate
from ...loss import collate, denoising_logits, mean_cross_entropy
from ...model import DiffusionGemma
from ...nvfp4.model import calibrate, quantize_model, round_model
from ...parts import PARTS
from ...sampler import SamplerConfig
from ..evaluate import mean_and_interval
from ..recipe import Recipe

SLICE = 32  # examples in one batch


@dataclass(frozen=True)
class Case:
    """What is rounded. inputs: the products' inputs go to NVFP4 too, with calibrated scales."""

    parts: str | tuple[str, ...]
    format: str = "nvfp4"
    inputs: bool = False

    @property
    def name(self) -> str:
        return self.parts if isinstance(self.parts, str) else " + ".join(self.parts)

    def apply(self, model: DiffusionGemma, scales: dict[str, Tensor] | None) -> DiffusionGemma:
        if self.inputs:
            return quantize_model(model, self.parts, input_scales=scales)
        return round_model(model, self.parts, self.format)


# what RedHatAI's checkpoint packs; nvidia's packs the experts alone
PUBLIC = ("experts", "dense_mlp")
CASES = (
    *(Case(part) for part in PARTS),
    Case(PUBLIC),
    Case("everything"),
    *(
        Case(parts, format)
        for parts in ("experts", "everything")
        for format in ("mxfp4", "int4", "fp8")
    ),
    Case("experts", inputs=True),
    Case(PUBLIC, inputs=True),
)


@torch.no_grad()
def canvas_scores(
    model: DiffusionGemma, examples: Sequence, *, seed: int = 0
) -> tuple[Tensor, Tensor, Tensor]:
    """(denoising loss [n] nats, best guess [n, C], which positions count [n, C]).

    Noise of (seed, epoch 0, example).
    """
    c, rows = model.config, []
    for first in range(0, len(examples), SLICE):
        some = list(range(first, min(first + SLICE, len(examples))))
        batch = collate(
            [examples[i] for i in some],
            some,
            canvas_length=c.canvas_length,
            vocab_size=c.vocab_size,
            eos=c.eos_token_id,
            pad=c.pad_token_id,
            seed=seed,
            epoch=0,
        ).to(model.device)
        logits = denoising_logits(model, model.encode(batch.ids), batch)
        rows.append(
            (
                mean_cross_entropy(logits, batch.clean, batch.labelled),
                logits.argmax(-1),
                batch.labelled,
            )
        )
    return tuple(torch.cat(column).cpu() for column in zip(*rows, strict=True))


def canvas_steps(
    model: DiffusionGemma, prompts: Sequence[list[int]], sampler: SamplerConfig, *, seed: int = 0
) -> Tensor:
    """[n]: denoising steps until the first canvas of each prompt is stable.

    Rows run together, each with its own seed.
    """
    width, c = max(len(p) for p in prompts), model.config
    ids = torch.tensor([[c.pad_token_id] * (width - len(p)) + p for p in prompts])
    mask = torch.tensor([[0] * (width - len(p)) + [1] * len(p) for p in prompts])
    seeds = [
        torch.Generator(device=model.device).manual_seed(seed + i) for i in range(len(prompts))
    ]
    out = generate(
        model,
        ids.to(model.device),
        sampler,
        attention_mask=mask.to(model.device),
        generator=seeds,
        max_new_tokens=c.canvas_length,
        eos_token_id=c.eos_token_id,
    )
    return torch.tensor([int(n) for n in out.steps[0]])


def quality(
    model: DiffusionGemma,
    examples: Sequence,
    *,
    prompts: Sequence[list[int]] = (),
    sampler: SamplerConfig | None = None,
    calibration: Sequence = (),
    cases: Sequence[Case] = CASES,
    exact: Callable[[DiffusionGemma], Tensor] | None = None,
    seed: int = 0,
    done: Sequence[dict[str, Any]] = (),
    save: Callable[[list[dict[str, Any]]], None] | None = None,
) -> list[dict[str, Any]]:
    """One row for the float model and one a case.

    Means with 95% intervals, changes paired with the float model.

    examples: held-out ones. prompts: of the canvases whose steps are counted. calibration: examples
    whose largest inputs give the input scales. exact(model) -> [n] zeros and ones, such as solved
    Sudokus. done: rows of an earlier, interrupted run with the same arguments, taken as they are;
    save(rows) is called after each case. Steps are not counted where inputs are rounded: the
    simulation is too slow for whole canvases.
    """
    needs = [case.name for case in cases if case.inputs]
    if needs and not calibration:
        raise ValueError(
            "calibration: is empty, takes examples, "
            f"since the inputs of {', '.join(needs)} are rounded too"
        )
    if not examples:
        raise ValueError("examples: is empty, takes at least one held-out example")

    def measure(one: DiffusionGemma, steps: bool = True) -> dict[str, Tensor]:
        loss, guess, counted = canvas_scores(one, examples, seed=seed)
        found = {"loss": loss, "guess": guess, "counted": counted}
        if prompts and steps:
            found["steps"] = canvas_steps(one, prompts, sampler, seed=seed)
        return found | ({"exact": exact(one).float()} if exact else {})

    sampler = sampler or SamplerConfig.from_defaults(model.generation_defaults)
    base = measure(model.eval())
    rows = [{"parts": "nothing", "format": "float32", "inputs": False} | _row(base, base)]
    for case in cases:
        said = {"parts": case.name, "format": case.format, "inputs": case.inputs}
        before = [row for row in done if said.items() <= row.items()]
        if not before:
            scales = None
            if case.inputs:
                scales = calibrate(
                    model, lambda m: canvas_scores(m, calibration, seed=seed + 1), case.parts
                )
            before = [said | _row(measure(case.apply(model, scales), not case.inputs), base)]
        rows.append(before[0])
        if save:
            save(rows)
    return rows


def _row(found: dict[str, Tensor], base: dict[str, Tensor]) -> dict[str, Any]:
    """Scores, their paired changes, and how often the best guess is the float model's, over counted
    positions.
    """
    counted = base["counted"]
    same = ((found["guess"] == base["guess"]) & counted).sum(-1) / counted.sum(-1).clamp(min=1)
    row = {"agreement": mean_and_interval(same[counted.any(-1)])}
    for key in ("loss", "steps", "exact"):
        if key in found:
            row[key] = mean_and_interval(found[key].double())
            row[f"{key}_change"] = mean_and_interval(found[key].double() - base[key].double())
    return row


def measure_folder(
    folder: str | Path, out: str | Path, *, n_examples: int, n_prompts: int
) -> dict[str, Any]:
    """The table of a checkpoint with a recipe.json beside it, and where it comes from.

    Written after each row.
    """
    from ...measure.provenance import describe, run_provenance

    device = torch.device("cpu")
    model = DiffusionGemma.from_pretrained(folder, dtype=torch.float32)
    held_out = Recipe(Path(folder) / "recipe.json").examples("validation")
    step = max(2, len(held_out) // n_examples)
    prompts = [e.prompt for e in held_out[:: max(1, len(held_out) // n_prompts)]][:n_prompts]
    chosen, others = held_out[::step][:n_examples], held_out[1::step][:64]
    command = (
        f"python -m diffgemma_lite.labs.four_bits.quality assets/checkpoints/{Path(folder).name}"
    )
    sizes = {
        "model": Path(folder).name,
        "examples": len(chosen),
        "prompts": len(prompts),
        "seed": 0,
    }
    found = json.loads(Path(out).read_text(encoding="utf-8")) if Path(out).exists() else {}
    if found and any(found.get(key) != value for key, value in sizes.items()):
        raise ValueError(
            f"out: {out} holds another run ({ {key: found.get(key) for key in sizes} }), "
            "takes a new file"
        )
    record = sizes | {"device": describe(device), "provenance": run_provenance(device, command)}
    # older than the provenance
    record["resumed_after_rows"] = max(0, len(found.get("rows", ())) - 1)

    def save(rows: list[dict[str, Any]]) -> None:
        record["rows"] = rows
        Path(out).write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
        print(json.dumps(rows[-1]), flush=True)

    quality(
        model, chosen, prompts=prompts, calibration=others, done=found.get("rows", ()), save=save
    )
    return record


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description="Losses, agreement and steps of a model with parts of it in four bits."
    )
    parser.add_argument("folder", help="a checkpoint with its recipe.json")
    parser.add_argument("out", help="a JSON file; if it holds rows of the same run, they are kept")
    parser.add_argument("--examples", type=int, default=256)
    parser.add_argument("--prompts", type=int, default=24)
    given = parser.parse_args(arguments)
    measure_folder(given.folder, given.out, n_examples=given.examples, n_prompts=given.prompts)


if __name__ == "__main__":
    main()
