"""A made-up race for the tests of its view.

Two canvases against single tokens, no model and no clock behind it.
"""

from __future__ import annotations

import numpy as np

from diffgemma_lite.measure.race import KINDS, Lane, RaceRecord


def raced(C=16, steps=(5, 4), tokens=27, *, seed=0, V=40, texts=None, slow=1.0) -> RaceRecord:
    rng = np.random.default_rng(seed)
    answer = rng.integers(0, V, (2, tokens)).tolist()
    one_at, many_at = (
        np.cumsum(rng.uniform(0.01, 0.03, tokens)),
        slow * np.cumsum(rng.uniform(0.03, 0.06, sum(steps))),
    )
    which = [k for k, n in enumerate(steps) for _ in range(n)]
    last = [n + 1 == len(which) or which[n + 1] > k for n, k in enumerate(which)]
    canvases = rng.integers(0, V, (len(which), C))
    for n, k in enumerate(which):  # a canvas settles position by position, on what is kept from it
        part = answer[1][k * C : (k + 1) * C]
        settled = len(part) if last[n] else int(len(part) * 0.2 * (n % steps[0]))
        canvases[n, :settled] = part[:settled]
    one = Lane(
        name="one token at a time",
        seconds=one_at.tolist(),
        ids=[[i] for i in answer[0]],
        accepted=[[]] * tokens,
        canvas=[0] * tokens,
        kept=list(range(1, tokens + 1)),
        passes=list(range(1, tokens + 1)),
        bytes=moved(tokens, 4e6),
        tokens=answer[0],
        runs=[float(one_at[-1]), float(one_at[-1]) * 1.1, float(one_at[-1]) * 0.9],
        stop="length",
    )
    two = Lane(
        name="by canvas",
        seconds=many_at.tolist(),
        ids=canvases.tolist(),
        accepted=(rng.random((len(which), C)) < 0.5).tolist(),
        canvas=which,
        kept=[min(tokens, C * (k + end)) for k, end in zip(which, last, strict=True)],
        passes=[n + 2 + k for n, k in enumerate(which)],
        bytes=moved(len(which), 9e6),
        tokens=answer[1],
        runs=[float(many_at[-1])],
        stop="end_token",
    )
    text_of = texts or (lambda i: f" w{i}")
    meta = {
        "model": "made up",
        "device": "a device",
        "threads": 2,
        "dtype": "float32",
        "torch": "2",
        "date": "2026-01-01",
    }
    return RaceRecord(one, two, [1, 2, 3], {i: text_of(i) for i in range(V)}, meta)


def moved(events: int, each: float) -> list[dict[str, float]]:
    return [
        dict(zip(KINDS, (each * n, each * n / 50, each * n / 3), strict=True))
        for n in range(1, events + 1)
    ]
