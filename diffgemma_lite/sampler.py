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
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Generator, Tensor

from .checks import check_class, check_generators, check_tensor, is_integer, shown
from .noise import Generators, uniform_tokens


@dataclass(frozen=True, kw_only=True)
class SamplerConfig:
    """The knobs of denoising, with the published defaults (generation_config.json of the
    checkpoint).
    """

    max_denoising_steps: int = 48
    entropy_bound: float = 0.1  # nats
    t_max: float = 0.8  # temperature of the first step
    t_min: float = 0.4  # what the temperature moves towards (it is not reached)
    stability_threshold: int = 1  # equal argmax canvases before this one
    confidence_threshold: float | None = 0.005  # nats of mean entropy; None: never stop early
    self_conditioning: bool = True
    # "race": the reference's stream; "cdf": one uniform number per position, faster
    draw: str = "race"

    def __post_init__(self):
        def need(ok: bool, name: str, takes: str) -> None:
            if not ok:
                raise ValueError(f"{name}: got {getattr(self, name)!r}, takes {takes}")

        def number(value) -> bool:
            return (
                isinstance(value, (int, float)) and not isinstance(value, bool) and value == value
            )

        need(is_integer(self.max_denoising_steps, 1), "max_denoising_steps", "an integer above 0")
        need(
            number(self.entropy_bound) and self.entropy_bound >= 0,
            "entropy_bound",
            "nats, a number of at least 0",
        )
        need(
            number(self.t_max) and 1e-6 <= self.t_max < float("inf"),
            "t_max",
            "a temperature of at least 1e-6",
        )
        need(
            number(self.t_min) and 0 <= self.t_min <= self.t_max,
            "t_min",
            f"a temperature from 0 to t_max = {self.t_max}",
        )
        need(
            is_integer(self.stability_threshold, 0),
            "stability_threshold",
            "an integer of at least 0",
        )
        threshold = self.confidence_threshold
        need(
            threshold is None or (number(threshold) and threshold > 0),
            "confidence_threshold",
            "nats above 0, or None",
        )
        need(isinstance(self.self_conditioning, bool), "self_conditioning", "True or False")
        need(self.draw in ("race", "cdf"), "draw", "'race' or 'cdf'")

    @classmethod
    def from_defaults(cls, defaults: dict, **changes) -> SamplerConfig:
        """From `model.generation_defaults`, with changes."""
        check_class("defaults", defaults, dict)
        names = (
            "max_denoising_steps",
            "entropy_bound",
            "t_max",
            "t_min",
            "stability_threshold",
            "confidence_threshold",
        )
        return cls(**({k: defaults[k] for k in names if k in defaults} | changes))


@dataclass(frozen=True)
class Step:
    """One denoising step. Shapes [B, C] unless noted; `next_canvas` is what the following step
    reads.
    """

    index: int  # 0 .. N - 1
    temperature: float
    canvas: Int[Tensor, "b c"]  # what the decoder read
    # [B, C, V] logits / temperature: the next self-conditioning
    scaled_logits: Float[Tensor, "b c v"]
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


def temperature_at(step: int, sampler: SamplerConfig) -> float:
    """Temperature of step 0 .. N-1: t_max first, then down in a straight line; the last is t_min +
    (t_max - t_min) / N.
    """
    check_class("sampler", sampler, SamplerConfig)
    n = sampler.max_denoising_steps
    if not is_integer(step, 0, n - 1):
        raise ValueError(f"step: got {step!r}, takes 0 to {n - 1}")
    # in float32 like the reference: one unit in the last place here becomes another canvas ten
    # steps later
    share = torch.tensor(n - step, dtype=torch.float32) / n
    return float(sampler.t_min + (sampler.t_max - sampler.t_min) * share)


def token_entropy(scaled_logits: Float[Tensor, "b c v"]) -> Float[Tensor, "b c"]:
    """Entropy of softmax(scaled_logits) at each position, nats. A logit of -inf contributes
    nothing; NaN stays NaN.
    """
    if (
        not isinstance(scaled_logits, Tensor)
        or not scaled_logits.is_floating_point()
        or not scaled_logits.numel()
    ):
        raise ValueError(
            f"scaled_logits: got {shown(scaled_logits)}, takes floating-point numbers [B, C, V]"
        )
    log_p = scaled_logits - scaled_logits.logsumexp(dim=-1, keepdim=True)
    return -(log_p.clamp(min=torch.finfo(log_p.dtype).min) * log_p.softmax(dim=-1)).sum(-1)


def accept(
    entropy: Float[Tensor, "b c"], bound: float, pinned: Bool[Tensor, "b c"] | None = None
) -> Bool[Tensor, "b c"]:
    """Accept positions from the surest on, while the entropies *before* each one sum to at most
    `bound`.

    The sum without the largest bounds the mutual information of the accepted draws, so that drawing
    them independently in one step is nearly drawing them jointly. The surest position is always
    accepted.
    """
    check_tensor("entropy", entropy, "floating-point numbers", ("B", "C"))
    if not isinstance(bound, (int, float)) or not bound >= 0:
        raise ValueError(f"bound: got {bound!r}, takes nats of at least 0")
    if pinned is not None:
        check_tensor("pinned", pinned, "torch.bool", tuple(entropy.shape), entropy.device)
    candidates = entropy if pinned is None else entropy.masked_fill(pinned, torch.inf)
    ordered, position = candidates.sort(dim=-1)
    taken = ordered.cumsum(dim=-1) - ordered <= bound
    accepted = torch.zeros_like(taken).scatter(-1, position, taken)
    return accepted if pinned is None else accepted & ~pinned


def renoise(
    sampled: Int[Tensor, "b c"],
    accepted: Bool[Tensor, "b c"],
    vocab_size: int,
    generator: Generators = None,
) -> Int[Tensor, "b c"]:
    """Keep the accepted draws, put uniform noise everywhere else. The noise is drawn for all
    positions.
    """
    check_tensor("sampled", sampled, "token ids", ("B", "C"))
    check_tensor("accepted", accepted, "torch.bool", tuple(sampled.shape), sampled.device)
    return torch.where(
        accepted,
        sampled,
        uniform_tokens(tuple(sampled.shape), vocab_size, generator, sampled.device),
    )


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
    check_class("sampler", sampler, SamplerConfig)
    check_tensor("argmax", argmax, "token ids", ("B", "C"))
    check_tensor("entropy", entropy, "floating-point numbers", tuple(argmax.shape), argmax.device)
    check_tensor("previous", previous, "token ids", ("k", *argmax.shape), argmax.device)
    if sampler.confidence_threshold is None:
        return torch.zeros(len(argmax), dtype=torch.bool, device=argmax.device)
    k = sampler.stability_threshold
    if len(previous) < k:
        stable = torch.zeros(len(argmax), dtype=torch.bool, device=argmax.device)
    else:
        stable = (previous[len(previous) - k :] == argmax).all(-1).all(0)
    return stable & (_mean_entropy(entropy, pinned) < sampler.confidence_threshold)


def draw_tokens(
    scaled_logits: Float[Tensor, "b c v"], generator: Generators = None, draw: str = "race"
) -> Int[Tensor, "b c"]:
    """One token per position from softmax(scaled_logits).

    "race": each token's exponential clock runs at the speed of its probability and the first to
    ring wins; this is what torch.multinomial does for one draw, and so the reference's stream.
    "cdf": where a uniform number falls in the cumulative sum; same distribution, another stream,
    far fewer random numbers. NaN is not looked for here, which would make a GPU wait: it travels in
    the entropies of the Step, where `generate` sees it.
    """
    if draw not in ("race", "cdf"):
        raise ValueError(f"draw: got {draw!r}, takes 'race' or 'cdf'")
    check_tensor("scaled_logits", scaled_logits, "floating-point numbers", ("B", "C", "V"))
    check_generators(generator, len(scaled_logits))
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
    return (
        torch.searchsorted(total, point[..., None], right=True)
        .squeeze(-1)
        .clamp(max=probs.shape[-1] - 1)
    )


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
    """One step: logits [B, C, V] of the canvas [B, C] -> Step. Pure but for the generator.

    previous: the steps of this canvas so far (the last `stability_threshold` are enough). Rows that
    had finished are frozen: canvas, argmax and scaled logits stay. With one shared generator they
    keep drawing, so that shapes, and with them the stream, never depend on who is finished; with
    one generator per row they stop. `ended` [B] marks rows that have nothing to do in this canvas
    at all.
    """
    _check_step(logits, canvas, pinned, pinned_ids, ended)
    last = previous[-1] if previous else None
    ended = (
        torch.zeros(len(canvas), dtype=torch.bool, device=canvas.device) if ended is None else ended
    )
    done = ended if last is None else last.finished
    fixed = torch.zeros_like(canvas, dtype=torch.bool) if pinned is None else pinned
    generator = running(generator, done)
    tau = temperature_at(index, sampler)
    # a GPU divides by a number in another way than by a tensor
    scaled = logits / torch.tensor(tau, device=logits.device)
    sampled, argmax = draw_tokens(scaled, generator, sampler.draw), scaled.argmax(-1)
    entropy = token_entropy(scaled)
    accepted = accept(entropy, sampler.entropy_bound, pinned)
    next_canvas = renoise(sampled, accepted, logits.shape[-1], generator)
    if pinned_ids is not None:
        argmax, next_canvas = (
            torch.where(fixed, pinned_ids, argmax),
            torch.where(fixed, pinned_ids, next_canvas),
        )
    next_canvas = torch.where(done[:, None], canvas, next_canvas)
    if last is not None:
        argmax = torch.where(done[:, None], last.argmax, argmax)
        scaled = torch.where(done[:, None, None], last.scaled_logits, scaled)
        entropy = torch.where(done[:, None], last.entropy, entropy)
        accepted = torch.where(done[:, None], last.accepted, accepted)
    history = (
        torch.stack([s.argmax for s in previous])
        if previous
        else argmax.new_empty(0, *argmax.shape)
    )
    stop = should_stop(argmax, history, entropy, sampler, pinned)
    revised = torch.zeros_like(fixed) if last is None else argmax != last.argmax
    return Step(
        index,
        tau,
        canvas,
        scaled,
        sampled,
        argmax,
        entropy,
        accepted,
        revised,
        fixed,
        done | stop,
        next_canvas,
    )


def _check_step(
    logits: Tensor,
    canvas: Tensor,
    pinned: Tensor | None,
    pinned_ids: Tensor | None,
    ended: Tensor | None,
) -> None:
    if (pinned is None) != (pinned_ids is None):
        raise ValueError(
            "pinned: was given without pinned_ids, or they without it; takes both or neither"
        )
    check_tensor("logits", logits, "floating-point numbers", ("B", "C", "V"))
    shape, device = tuple(logits.shape[:2]), logits.device
    check_tensor("canvas", canvas, "token ids", shape, device)
    if pinned is not None:
        check_tensor("pinned", pinned, "torch.bool", shape, device)
        check_tensor("pinned_ids", pinned_ids, "token ids", shape, device)
    if ended is not None:
        check_tensor("ended", ended, "torch.bool", shape[:1], device)


def _mean_entropy(entropy: Tensor, pinned: Tensor | None) -> Tensor:
    if pinned is None:
        return entropy.mean(-1)
    return entropy.masked_fill(pinned, 0.0).sum(-1) / (~pinned).sum(-1).clamp(min=1)


def running(generator: Generators, done: Tensor) -> Generators:
    """With one generator per row, finished rows get a throw-away one, so that their own stream
    stands still.
    """
    if generator is None or isinstance(generator, Generator) or not bool(done.any()):
        return generator
    spare = torch.Generator(device=done.device)
    return [spare if finished else g for g, finished in zip(generator, done.tolist(), strict=True)]
