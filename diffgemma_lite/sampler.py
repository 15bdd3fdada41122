"""The entropy-bound sampler: one denoising step as a pure function that returns everything it
thought of.

From the decoder's logits, a step draws one token for every position, accepts the draws it is surest
of until their summed entropy would pass a bound, and puts fresh noise everywhere else. Nothing is
frozen: what is accepted is decided anew in every step, so an accepted token can still be revised.
Walked through in notebook 07.

Source: DiffusionGemma Technical Report, arXiv:2608.00146, Algorithm 1; the accept rule is
arXiv:2505.24857's. Draws come in the reference implementation's order, so equal seeds give equal
tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Annotated

import torch
from jaxtyping import Bool, Float, Int
from torch import Generator, Tensor

from .checks import SMALLEST, SWITCH, check_class, check_fields, door, integer, need, number, one_of
from .noise import Generators, uniform_tokens


@dataclass(frozen=True, kw_only=True)
class SamplerConfig:
    """The knobs of denoising, with the published defaults (the checkpoint's generation_config)."""

    max_denoising_steps: Annotated[int, integer("an integer above 0", 1)] = 48
    entropy_bound: Annotated[float, number("nats, a number of at least 0", least=0)] = 0.1
    # temperature of the first step, and what it moves towards (without reaching it)
    t_max: Annotated[float, number("a temperature of at least 1e-6", least=1e-6, finite=True)] = 0.8
    t_min: Annotated[float, number("a temperature from 0 to t_max", least=0)] = 0.4
    # how many argmax canvases before this one must be equal to it
    stability_threshold: Annotated[int, integer("an integer of at least 0", 0)] = 1
    # of the mean entropy; None: never stop early
    confidence_threshold: (
        Annotated[float, number("nats above 0, or None", least=SMALLEST)] | None
    ) = 0.005
    self_conditioning: Annotated[bool, SWITCH] = True
    # "race": the reference's stream; "cdf": one uniform number per position, faster
    draw: Annotated[str, one_of("race", "cdf")] = "race"

    def __post_init__(self):
        check_fields(self)
        need(
            self, "t_min", self.t_min <= self.t_max, f"a temperature from 0 to t_max = {self.t_max}"
        )

    @classmethod
    def from_defaults(cls, defaults: dict, **changes) -> SamplerConfig:
        """From `model.generation_defaults`, with changes."""
        check_class("defaults", defaults, dict)
        published = ("max_denoising_steps", "entropy_bound", "t_max", "t_min")
        names = (*published, "stability_threshold", "confidence_threshold")
        return cls(**({k: defaults[k] for k in names if k in defaults} | changes))


@dataclass(frozen=True)
class Step:
    """One denoising step. Shapes [B, C] unless noted; the next step reads `next_canvas`."""

    index: int  # 0 .. N - 1
    temperature: float
    canvas: Int[Tensor, "b c"]  # what the decoder read
    scaled_logits: Float[Tensor, "b c v"]  # logits / temperature: the next self-conditioning
    sampled: Int[Tensor, "b c"]  # one draw per position
    argmax: Int[Tensor, "b c"]  # what would be committed now
    entropy: Float[Tensor, "b c"]  # nats, of the scaled logits
    accepted: Bool[Tensor, "b c"]
    revised: Bool[Tensor, "b c"]  # the argmax differs from the previous step's
    pinned: Bool[Tensor, "b c"]
    finished: Bool[Tensor, "b"]  # [B] stable and confident, now or earlier
    next_canvas: Int[Tensor, "b c"]

    @property
    def mean_entropy(self) -> Float[Tensor, "b"]:
        """[B] nats, over the positions that are not pinned: what the stop rule looks at."""
        return _mean_entropy(self.entropy, self.pinned)


@door
def temperature_at(step: int, sampler: SamplerConfig) -> float:
    """Temperature of step 0 .. N-1: t_max first, then down in a straight line; the last is
    t_min + (t_max - t_min) / N.
    """
    n = sampler.max_denoising_steps
    integer(f"0 to {n - 1}", 0, n - 1).check("step", step)
    # in float32 like the reference: one unit in the last place here becomes another canvas ten
    # steps later
    share = torch.tensor(n - step, dtype=torch.float32) / n
    return float(sampler.t_min + (sampler.t_max - sampler.t_min) * share)


@door
def token_entropy(scaled_logits: Float[Tensor, "b c v"]) -> Float[Tensor, "b c"]:
    """Entropy of softmax(scaled_logits) at each position, nats. A logit of -inf contributes
    nothing; NaN stays NaN.
    """
    log_p = scaled_logits - scaled_logits.logsumexp(dim=-1, keepdim=True)
    return -(log_p.clamp(min=torch.finfo(log_p.dtype).min) * log_p.softmax(dim=-1)).sum(-1)


@door
def accept(
    entropy: Float[Tensor, "b c"],
    bound: Annotated[float, number("nats of at least 0", least=0)],
    pinned: Bool[Tensor, "b c"] | None = None,
) -> Bool[Tensor, "b c"]:
    """Accept positions from the surest on, while the entropies *before* each one sum to at most
    `bound`.

    The sum without the largest bounds the mutual information of the accepted draws, so that drawing
    them independently in one step is nearly drawing them jointly. The surest position is always
    accepted.
    """
    candidates = entropy if pinned is None else entropy.masked_fill(pinned, torch.inf)
    ordered, position = candidates.sort(dim=-1)
    taken = ordered.cumsum(dim=-1) - ordered <= bound
    accepted = torch.zeros_like(taken).scatter(-1, position, taken)
    return accepted if pinned is None else accepted & ~pinned


@door
def renoise(
    sampled: Int[Tensor, "b c"],
    accepted: Bool[Tensor, "b c"],
    vocab_size: int,
    generator: Generators = None,
) -> Int[Tensor, "b c"]:
    """Keep the accepted draws, put uniform noise everywhere else. The noise is drawn for all
    positions.
    """
    noise = uniform_tokens(tuple(sampled.shape), vocab_size, generator, sampled.device)
    return torch.where(accepted, sampled, noise)


@door
def should_stop(
    argmax: Int[Tensor, "b c"],
    previous: Int[Tensor, "k b c"],
    entropy: Float[Tensor, "b c"],
    sampler: SamplerConfig,
    pinned: Bool[Tensor, "b c"] | None = None,
) -> Bool[Tensor, "b"]:
    """[B]: the argmax canvas equals the `stability_threshold` before it, and the mean entropy is
    under the threshold.

    previous [k, B, C]: the last argmax canvases of this canvas, k up to the threshold; fewer than
    that is not stable.
    """
    k = sampler.stability_threshold
    if sampler.confidence_threshold is None or len(previous) < k:
        return torch.zeros(len(argmax), dtype=torch.bool, device=argmax.device)
    stable = (previous[len(previous) - k :] == argmax).all(-1).all(0)
    return stable & (_mean_entropy(entropy, pinned) < sampler.confidence_threshold)


def _mean_entropy(entropy: Tensor, pinned: Tensor | None) -> Tensor:
    if pinned is None:
        return entropy.mean(-1)
    return entropy.masked_fill(pinned, 0.0).sum(-1) / (~pinned).sum(-1).clamp(min=1)


@door
def draw_tokens(
    scaled_logits: Float[Tensor, "b c v"],
    generator: Generators = None,
    draw: Annotated[str, one_of("race", "cdf")] = "race",
) -> Int[Tensor, "b c"]:
    """One token per position from softmax(scaled_logits).

    "race": each token's exponential clock runs at the speed of its probability and the first to
    ring wins; this is what torch.multinomial does for one draw, and so the reference's stream.
    "cdf": where a uniform number falls in the cumulative sum; same distribution, another stream,
    far fewer random numbers. NaN is not looked for here, which would make a GPU wait: it travels in
    the entropies of the Step, where `generate` sees it.
    """
    probs = scaled_logits.softmax(dim=-1, dtype=torch.float32)
    if generator is None or isinstance(generator, Generator):
        return _draw(probs, generator, draw)
    return torch.cat([_draw(probs[b : b + 1], g, draw) for b, g in enumerate(generator)])


def _draw(probs: Tensor, generator: Generator | None, draw: str) -> Tensor:
    if draw == "race":
        clocks = torch.empty_like(probs).exponential_(1, generator=generator)
        return (probs / clocks).argmax(-1)
    total = probs.cumsum(-1)
    point = torch.rand(probs.shape[:-1], generator=generator, device=probs.device) * total[..., -1]
    found = torch.searchsorted(total, point[..., None], right=True).squeeze(-1)
    return found.clamp(max=probs.shape[-1] - 1)


@door
def denoise_step(
    logits: Float[Tensor, "b c v"],
    canvas: Int[Tensor, "b c"],
    index: int,
    sampler: SamplerConfig,
    *,
    previous: Sequence[Step] = (),
    generator: Generators = None,
    pinned: Bool[Tensor, "b c"] | None = None,
    pinned_ids: Int[Tensor, "b c"] | None = None,
    ended: Bool[Tensor, "b"] | None = None,
) -> Step:
    """One step, Algorithm 1: logits [B, C, V] of the canvas [B, C] -> Step. Pure but for the
    generator.

    previous: the steps of this canvas so far (the last `stability_threshold` are enough). `ended`
    [B] marks rows that have nothing to do in this canvas at all; what happens to them and to rows
    that have finished is `hold`'s.
    """
    done = rows_done(canvas, previous, ended)
    generator = running(generator, done)
    tau = temperature_at(index, sampler)
    # a GPU divides by a number in another way than by a tensor
    scaled = logits / torch.tensor(tau, device=logits.device)
    sampled, argmax = draw_tokens(scaled, generator, sampler.draw), scaled.argmax(-1)
    entropy = token_entropy(scaled)
    accepted = accept(entropy, sampler.entropy_bound, pinned)
    next_canvas = renoise(sampled, accepted, logits.shape[-1], generator)
    argmax, next_canvas = (
        put_pinned_back(ids, pinned, pinned_ids) for ids in (argmax, next_canvas)
    )
    stop = should_stop(argmax, history(previous, argmax), entropy, sampler, pinned)
    no = torch.zeros_like(accepted)
    fixed = no if pinned is None else pinned
    step = Step(
        index, tau, canvas, scaled, sampled, argmax, entropy, accepted, no, fixed, stop, next_canvas
    )
    return hold(step, previous, done)


def put_pinned_back(ids: Tensor, pinned: Tensor | None, pinned_ids: Tensor | None) -> Tensor:
    """ids [B, C] with the pinned ones as they were given."""
    if (pinned is None) != (pinned_ids is None):
        raise ValueError(
            "pinned: was given without pinned_ids, or they without it; takes both or neither"
        )
    return ids if pinned is None else torch.where(pinned, pinned_ids, ids)


def history(previous: Sequence[Step], argmax: Tensor) -> Int[Tensor, "k b c"]:
    if not previous:
        return argmax.new_empty(0, *argmax.shape)
    return torch.stack([step.argmax for step in previous])


# ---- rows that have nothing left to do


def rows_done(canvas: Tensor, previous: Sequence[Step], ended: Tensor | None) -> Bool[Tensor, "b"]:
    """[B]: rows that had finished before this step, or ended before this canvas."""
    if previous:
        return previous[-1].finished
    no = torch.zeros(len(canvas), dtype=torch.bool, device=canvas.device)
    return no if ended is None else ended


def running(generator: Generators, done: Tensor) -> Generators:
    """With one generator per row, finished rows get a throw-away one, so that their own stream
    stands still. A shared one keeps drawing for them: shapes, and with them the stream, never
    depend on who is finished.
    """
    if generator is None or isinstance(generator, Generator) or not bool(done.any()):
        return generator
    spare = torch.Generator(device=done.device)
    return [spare if over else g for g, over in zip(generator, done.tolist(), strict=True)]


def hold(step: Step, previous: Sequence[Step], done: Bool[Tensor, "b"]) -> Step:
    """The step with rows that were done left as they stood: canvas, argmax, scaled logits, entropy
    and what was accepted. Then it is known what was revised.
    """
    rows, finished = done[:, None], done | step.finished
    next_canvas = torch.where(rows, step.canvas, step.next_canvas)
    if not previous:
        return replace(step, next_canvas=next_canvas, finished=finished)
    last = previous[-1]
    argmax = torch.where(rows, last.argmax, step.argmax)
    return replace(
        step,
        next_canvas=next_canvas,
        finished=finished,
        argmax=argmax,
        revised=argmax != last.argmax,
        scaled_logits=torch.where(rows[..., None], last.scaled_logits, step.scaled_logits),
        entropy=torch.where(rows, last.entropy, step.entropy),
        accepted=torch.where(rows, last.accepted, step.accepted),
    )
