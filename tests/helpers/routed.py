"""Made-up routing records for the tests of the router view: skewed choices, no model behind."""

from __future__ import annotations

import numpy as np

from diffgemma_lite.trace.router import RoutingRecord


def routed(L=4, C=24, E=8, k=2, *, seed=0, texts=None) -> RoutingRecord:
    rng = np.random.default_rng(seed)
    scores = rng.normal(0, 1, (L, C, E)) + rng.normal(0, 1.2, (L, 1, E))
    probs = np.exp(scores) / np.exp(scores).sum(-1, keepdims=True)
    index = np.argsort(-probs, -1)[..., :k]
    chosen = np.take_along_axis(probs, index, -1)
    weights = chosen / chosen.sum(-1, keepdims=True) * rng.uniform(0.7, 1.2, E)[index]
    ids = rng.permutation(C) if texts else rng.integers(0, 50, C)
    text_of = texts or (lambda i: f" w{i}")
    return RoutingRecord(
        ids=ids,
        index=index,
        weights=weights,
        probs=chosen,
        uniform=E * (1 - (1 - k / E) ** np.arange(1, C + 1)),
        num_experts=E,
        texts={int(i): text_of(int(i)) for i in ids},
    )
