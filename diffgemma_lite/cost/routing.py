"""How many different experts the tokens of one step touch, which is how much of a mixture of
experts has to be read.

Against the count for one token (k of E): a batch or a canvas asks for more experts the more tokens
it has, but tokens of one text choose alike. Equal chances give a closed form, one number (the skew)
makes some experts more popular within a text, and the measured count of a trained router
(observe.py) is what both are held against. Walked through in notebooks 04 and 11.
"""

from __future__ import annotations

import functools
import math

from ..config import Config


@functools.lru_cache(maxsize=256)
def inclusion(config: Config, skew: float) -> tuple[float, ...]:
    """Chance of each expert, from most to least popular, to be among a token's top k.

    They sum to k.

    Popularity falls as rank ** -skew. A token's k experts are the k first to arrive when expert e
    arrives at rate popularity(e) (top-k of noisy scores is the same race), so an expert is in by
    time a with chance 1 - exp(-a * rate).
    """
    experts, k = config.num_experts, config.top_k_experts
    if k == experts or skew == 0:
        return (k / experts,) * experts
    rates = [rank**-skew for rank in range(1, experts + 1)]
    low, high = 0.0, 1.0
    while sum(1 - math.exp(-high * r) for r in rates) < k:
        high *= 2
    for _ in range(80):
        middle = (low + high) / 2
        low, high = (
            (middle, high) if sum(1 - math.exp(-middle * r) for r in rates) < k else (low, middle)
        )
    return tuple(1 - math.exp(-high * r) for r in rates)


def distinct_experts(
    config: Config, tokens: int, skew: float | None = None, texts: int = 1
) -> float:
    """Expected number of different experts that a step's `tokens` touch in one layer, each token
    choosing k of E.

    skew None or 0: every expert equally likely, E * (1 - (1 - k/E) ** tokens). Above 0: within one
    text some are more popular than others (see `inclusion`), as in the published 84 of 128 for a
    canvas of 256 tokens, where equal chances give 128. texts: how many unrelated texts share the
    tokens evenly (the batch). Each has its own favourites: a router is trained to balance its load
    over many texts, so what is popular can only differ from text to text.
    """
    for name, value, least in (("tokens", tokens, 0), ("texts", texts, 1)):
        if not isinstance(value, int) or value < least:
            raise ValueError(f"{name}: got {value!r}, takes an integer of at least {least}")
    if skew is not None and not 0 <= skew < math.inf:
        raise ValueError(f"skew: got {skew!r}, takes a number of at least 0, or None")
    one_text = sum(1 - (1 - p) ** (tokens / texts) for p in inclusion(config, skew or 0.0))
    return config.num_experts * (1 - (1 - one_text / config.num_experts) ** texts)


def fit_skew(config: Config, tokens: int, distinct: float) -> float:
    """The skew under which `tokens` tokens touch `distinct` experts.

    Published: 84 of 128 for a canvas of 256 (arXiv:2608.00146, section 6, on PG-19).
    """
    most = distinct_experts(config, tokens)
    if not config.top_k_experts < distinct <= most:
        raise ValueError(
            f"distinct: got {distinct!r}, "
            f"takes more than top_k_experts = {config.top_k_experts}, at most {most:.4g}"
        )
    low, high = 0.0, 8.0
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (
            (middle, high) if distinct_experts(config, tokens, middle) > distinct else (low, middle)
        )
    return low
