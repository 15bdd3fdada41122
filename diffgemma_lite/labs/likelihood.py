"""How likely is a text?

A bound in bits for uniform-state diffusion, beside the exact number of the autoregressive mode.

Going back from pure noise in N steps, each a draw from `noise.posterior` with the model's belief,
is a chain of draws whose probability of ending in a given text can be bounded: for a path x_1 ..
x_0 noised from the text (the evidence lower bound),

    - log p(x_0)  <=  sum over the N steps from t to s of
                      E [ KL( q(x_s | x_t, x_0)  ||  p(x_s | x_t) ) ]

where q is the step that knows the text and p the one that averages over what the model believes.
There is no other term: at t = 1 the canvas is noise and nothing else, and the last step goes to s =
0, where the KL is the cross-entropy of the text. What the model does not know costs there; so does
drawing positions independently in one step, which fades with more steps. With the exact belief and
many steps the bound is the truth (tests, and notebook 06, in a world that can be enumerated).

Two ways to plug a belief into the step are in use. Averaging the step over it, as here, is exact
for the true P(x_0 | x_t); putting the average into the formula of the step is not (Gourevitch et
al., arXiv:2605.22765). Walked through in notebook 06.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor

from ..checks import check_integer
from ..loss import example_generator, lay_out
from ..noise import Generators, corrupt, posterior, rand_rows

STEPS, DRAWS = 256, 4
# canvas [B, C], its noise level [B] -> p(x_0 | x_t) [B, C, V]
Denoiser = Callable[[Tensor, Tensor], Tensor]


def step_cost(
    x_t: Int[Tensor, "b c"],
    x_0: Int[Tensor, "b c"],
    p_x0: Float[Tensor, "b c v"],
    t: Float[Tensor, "b"],
    s: Float[Tensor, "b"],
) -> Float[Tensor, "b c"]:
    """KL of the step that believes p_x0 from the one that knows x_0, nats, each position."""
    true = posterior(x_t, F.one_hot(x_0, p_x0.shape[-1]).to(p_x0.dtype), t, s)
    believed = posterior(x_t, p_x0, t, s)
    return (torch.xlogy(true, true) - torch.xlogy(true, believed)).sum(-1)


@torch.no_grad()
def bound(
    denoiser: Denoiser,
    x_0: Int[Tensor, "b c"],
    vocab_size: int,
    *,
    steps: int = STEPS,
    draws: int = DRAWS,
    generator: Generators = None,
) -> tuple[Float[Tensor, "b"], Float[Tensor, "b"]]:
    """(bound, denoising loss), [B] nats of a whole canvas: unbiased estimates from `draws` of the
    `steps` steps.

    The steps are drawn one from each of `draws` equal parts. The loss is that of training, summed
    over the positions: the same belief, asked how likely the clean tokens are, without any weight.
    """
    check_integer("steps", steps, 1)
    check_integer("draws", draws, 1)
    cost, loss = (
        torch.zeros(len(x_0), dtype=torch.float64),
        torch.zeros(len(x_0), dtype=torch.float64),
    )
    for k in range(draws):
        u = rand_rows(lambda shape, g: torch.rand(shape, generator=g), (len(x_0), 1), generator)[
            :, 0
        ].double()
        # step n goes from (n + 1) / N to n / N
        n = ((k + u) * steps / draws).long().clamp(max=steps - 1)
        t = (n + 1) / steps
        x_t, _ = corrupt(x_0.cpu(), t, vocab_size, generator)
        x_t = x_t.to(x_0.device)
        p_x0 = denoiser(x_t, t.to(x_0.device)).double()
        cost += (
            step_cost(x_t, x_0, p_x0, t.to(x_0.device), (n / steps).to(x_0.device)).sum(-1).cpu()
            * steps
            / draws
        )
        loss -= p_x0.gather(-1, x_0[..., None]).log().sum((-2, -1)).cpu() / draws
    return cost, loss


def model_denoiser(model, cache, self_conditioning: bool = True) -> Denoiser:
    """The decoder as a denoiser.

    It is not told the noise level. With self-conditioning it looks twice, as in training.
    """

    def believe(x_t: Tensor, t: Tensor) -> Tensor:
        logits = model.decode(x_t, cache)
        return (
            (model.decode(x_t, cache, logits) if self_conditioning else logits).double().softmax(-1)
        )

    return believe


@torch.no_grad()
def text_likelihood(
    model,
    examples: Sequence,
    *,
    steps: int = STEPS,
    draws: int = DRAWS,
    self_conditioning: bool = True,
    batch_size: int = 32,
    seed: int = 0,
) -> dict[str, dict[str, float]]:
    """Bits per token of each answer's first canvas.

    The bound, the autoregressive mode's exact number, their difference.

    Both are asked for the same tokens: the answer and its end token, or its first C tokens. A
    canvas is longer: the bound pays for the fill of end tokens too and is divided by the tokens
    that were asked for, so it stays a bound. The denoising loss beside them is per position of the
    canvas, fill included. 95% intervals over examples.
    """
    if not examples:
        raise ValueError("examples: is empty, takes at least one example")
    config, rows = model.config, []
    c, eos, pad = config.canvas_length, config.eos_token_id, config.pad_token_id
    for i in range(0, len(examples), batch_size):
        some = examples[i : i + batch_size]
        laid = [lay_out(e, c, eos)[0][: len(e.prompt) + c] for e in some]  # prompt and first canvas
        if any(len(row) < len(e.prompt) + c for row, e in zip(laid, some, strict=True)):
            raise ValueError(
                "examples: one is cut inside its first canvas, takes complete ones or longer ones"
            )
        width = max(map(len, laid))
        ids = torch.tensor([row + [pad] * (width - len(row)) for row in laid], device=model.device)
        start = torch.tensor([len(e.prompt) for e in some], device=model.device)
        asked = torch.tensor([min(c, len(e.response) + 1) for e in some])
        hidden, cache = model.encode_hidden(ids)
        x_0 = ids.gather(1, start[:, None] + torch.arange(c, device=ids.device))
        generators = [example_generator(seed, 0, i + j) for j in range(len(some))]
        nats, loss = bound(
            model_denoiser(model, cache.upto(start), self_conditioning),
            x_0,
            config.vocab_size,
            steps=steps,
            draws=draws,
            generator=generators,
        )
        each = F.cross_entropy(
            model.logits(hidden[:, :-1]).transpose(1, 2), ids[:, 1:], reduction="none"
        ).double()
        after = torch.arange(1, width, device=ids.device) - start[:, None]  # place in the answer
        exact = (each * ((after >= 0) & (after < asked.to(ids.device)[:, None]))).sum(-1).cpu()
        rows.append(
            torch.stack([nats, exact, nats - exact, loss, asked.double(), torch.full_like(nats, c)])
        )
    nats, exact, difference, loss, asked, positions = torch.cat(rows, 1) / torch.tensor(
        [[math.log(2)]] * 4 + [[1.0]] * 2
    )
    return {
        "bound": ratio(nats, asked),
        "autoregressive": ratio(exact, asked),
        "difference": ratio(difference, asked),
        "denoising_loss": ratio(loss, positions),
    }


def ratio(amounts: Tensor, counts: Tensor) -> dict[str, float]:
    """{"n", "mean", "half_width"}: all amounts over all counts, with a 95% interval over the n rows
    (linearised).
    """
    n, mean = len(amounts), float(amounts.sum() / counts.sum())
    half = (
        1.96 * float((amounts - mean * counts).std()) * math.sqrt(n) / float(counts.sum())
        if n > 1
        else float("nan")
    )
    return {"n": n, "mean": mean, "half_width": half}
