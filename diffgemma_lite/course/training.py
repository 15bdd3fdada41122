"""What notebook 06 trains live, and how it looks at it.

A tiny language of Python lines, the training mask, loss by noise level.

The language: the prompt names an operation and a list, the canvas holds the line of Python that
does it, with a variable of the writer's choice. So what is right is known (the choice must be the
same everywhere in the line), and so is how many bits a perfect model needs: those of the choice,
and nothing else. Pairs of operation and list are held out.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ..attention import KVCache, decoder_masks, encoder_masks
from ..config import FULL, Config
from ..generation import generate
from ..labs.evaluate import mean_and_interval
from ..labs.scores import share
from ..loss import lay_out, mean_cross_entropy
from ..model import DiffusionGemma
from ..noise import corrupt
from ..sampler import SamplerConfig
from .figures import Figure, grid, seen

LINES = {
    "squares": "[ $ * $ for $ in # ]", "halves": "[ $ / 2 for $ in # ]",
    "positive": "[ $ for $ in # if $ > 0 ]", "total": "sum ( $ for $ in # )",
    "count": "sum ( 1 for $ in # if $ )", "table": "{ $ : $ + 1 for $ in # }",
}  # fmt: skip
LISTS = ("rows", "prices", "sizes", "ages", "marks", "days", "steps", "words", "counts", "scores")
NAMES = ("a", "b", "i", "k", "n", "v", "x", "y")
SPECIAL = ("<pad>", "<eos>", "<bos>")
WORDS = (
    *SPECIAL,
    *LINES,
    *LISTS,
    *NAMES,
    *sorted({w for line in LINES.values() for w in line.split()} - {"$", "#"}),
)
CANVAS, PAD, EOS, BOS = 16, 0, 1, 2
BITS = math.log2(len(NAMES))  # of a line: the choice of the name


@dataclass(frozen=True)
class Line:
    """An example as `train` takes it."""

    prompt: list[int]
    response: list[int]
    complete: bool = True


def ids(text: str) -> list[int]:
    return [WORDS.index(word) for word in text.split()]


def text(tokens: Sequence[int]) -> str:
    """Words up to the first end token."""
    tokens = list(tokens)
    return " ".join(WORDS[i] for i in (tokens[: tokens.index(EOS)] if EOS in tokens else tokens))


def prompts(held_out: bool) -> list[tuple[str, str]]:
    """(operation, list): every fifth pair is held out, so that each operation and each list is also
    learnt.
    """
    pairs = [
        (op, name)
        for i, op in enumerate(LINES)
        for j, name in enumerate(LISTS)
        if ((i + j) % 5 == 0) == held_out
    ]
    return pairs


def line(op: str, source: str, name: str) -> Line:
    return Line(
        [BOS, *ids(f"{op} {source}")], ids(LINES[op].replace("$", name).replace("#", source))
    )


def lines(held_out: bool) -> list[Line]:
    """Every pair with every name."""
    return [line(op, source, name) for op, source in prompts(held_out) for name in NAMES]


def right(op: str, source: str, tokens: Sequence[int]) -> bool:
    """Is it the line that was asked for, with one name throughout, and nothing but end tokens after
    it?
    """
    answers = [line(op, source, name).response for name in NAMES]
    return list(tokens) in [[*answer, *[EOS] * (CANVAS - len(answer))] for answer in answers]


def small_config() -> Config:
    """The real architecture, about 250,000 weights.

    Experts, sliding and full layers, self-conditioning.
    """
    return Config.preset(
        "tiny",
        vocab_size=len(WORDS),
        canvas_length=CANVAS,
        pad_token_id=PAD,
        eos_token_id=EOS,
        hidden_size=64,
        intermediate_size=128,
        moe_intermediate_size=32,
    )


SAMPLER = SamplerConfig(max_denoising_steps=16, draw="cdf")


@torch.no_grad()
def attempt(
    model: DiffusionGemma,
    pairs: Sequence[tuple[str, str]],
    sampler: SamplerConfig = SAMPLER,
    *,
    seed: int = 0,
) -> tuple[dict[str, float], list[tuple[str, str, str, bool]]]:
    """One canvas for each pair: the share that is right, and (operation, list, what was written,
    right) of each.
    """
    was, model = model.training, model.eval()
    given = torch.tensor([[BOS, *ids(f"{op} {source}")] for op, source in pairs])
    generators = [torch.Generator().manual_seed(seed + i) for i in range(len(pairs))]
    out = generate(model, given, sampler, max_new_tokens=CANVAS, generator=generators)
    model.train(was)
    rows = [
        (op, source, text(row), right(op, source, row))
        for (op, source), row in zip(pairs, out.tokens.tolist(), strict=True)
    ]
    return share(sum(row[-1] for row in rows), len(rows)), rows


def watch(
    model: DiffusionGemma,
    pairs: Sequence[tuple[str, str]],
    each: int,
    show: Callable[[], object],
    stop_at: int | None = None,
) -> tuple[list[dict], Callable[[dict], bool]]:
    """(points, on_log for `train`).

    Every `each` steps the log entry with the share right is added, and show() is called.

    stop_at: the step at which training is told to stop, as Ctrl-C would.
    """
    points: list[dict] = []

    def on_log(entry: dict) -> bool:
        if entry["step"] % each == 0:
            points.append(entry | {"right": attempt(model, pairs)[0]})
            show()
        return stop_at is not None and entry["step"] >= stop_at

    return points, on_log


@torch.no_grad()
def loss_by_level(
    model: DiffusionGemma,
    examples: Sequence,
    levels: Sequence[float],
    *,
    told: bool = False,
    seed: int = 0,
) -> list[dict]:
    """Denoising loss (nats) of the first canvas at each noise level.

    All, changed and unchanged positions, over examples.

    told: with self-conditioning, from a first look at the same canvas. The noise is the same for
    every model and call.
    """
    config = model.eval().config
    laid = [
        lay_out(e, config.canvas_length, config.eos_token_id)[0][
            : len(e.prompt) + config.canvas_length
        ]
        for e in examples
    ]
    if len({(len(row), len(e.prompt)) for row, e in zip(laid, examples, strict=True)}) != 1:
        raise ValueError("examples: takes prompts of one length, each with a whole first canvas")
    row = torch.tensor(laid)
    clean, cache = (
        row[:, len(examples[0].prompt) :],
        model.encode(row[:, : len(examples[0].prompt)]),
    )
    found = []
    for t in levels:
        noisy, changed = corrupt(
            clean,
            torch.full((len(clean),), t),
            config.vocab_size,
            torch.Generator().manual_seed(seed),
        )
        logits = model.decode(noisy, cache)
        logits = model.decode(noisy, cache, logits) if told else logits
        entry = {"t": t}
        for name, counted in (
            ("all", torch.ones_like(changed)),
            ("changed", changed),
            ("unchanged", ~changed),
        ):
            some = counted.any(-1)
            if some.any():
                entry[name] = mean_and_interval(mean_cross_entropy(logits, clean, counted)[some])
        found.append(entry)
    return found


def layout_mask(prompt: int, canvas: int, canvases: int) -> Tensor:
    """[K * C, P + K * C + C] bool: what the decoder sees on a full layer when canvas k of one row
    is drawn, k = 0 .. K - 1.

    Read from the model's own mask: all columns but the last C are the clean row in the cache, the
    last C the noisy canvas.
    """
    length = prompt + canvases * canvas
    keys = (torch.zeros(canvases, 1, length, 2),)
    cache = KVCache(keys, keys).upto(torch.tensor([prompt + k * canvas for k in range(canvases)]))
    mask = decoder_masks(Config.preset("tiny"), cache, canvas)[FULL]
    return torch.cat([row[0] for row in mask.allowed])


def layout_figure(prompt: int, canvas: int, canvases: int, title: str = "") -> Figure:
    """`layout_mask` drawn: a group of rows for each canvas that may be drawn."""
    marks = layout_mask(prompt, canvas, canvases)
    names = [f"canvas {k + 1}" for k in range(canvases) for _ in range(canvas)]
    columns = ["prefix"] * prompt + ["encoder"] * (canvases * canvas) + ["canvas"] * canvas
    note = (
        "prefix: the prompt; encoder: the clean answer in the cache; "
        "canvas: the noisy canvas itself. ■ is seen."
    )
    return grid(
        marks, rows=["canvas"] * len(names), columns=columns, names=names, title=title, note=note
    )


def encoder_figure(length: int, prompt: int, title: str = "") -> Figure:
    """What the encoder's pass over prompt and clean answer sees on a full layer.

    From its own mask.
    """
    mask = encoder_masks(Config.preset("tiny"), None, length, None, torch.device("cpu"))[FULL]
    roles = ["prefix"] * prompt + ["encoder"] * (length - prompt)
    return grid(seen(mask, length, length), rows=roles, columns=roles, title=title)
