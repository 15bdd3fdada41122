"""Simulated traces for the tests of the views.

A numpy imitation of the entropy-bound rule, with no model behind it.

A test fixture only. Probabilities are made up and sharpen as steps pass; everything after them
(draw, entropy, order, budget, accept, renoise, revise) follows the published rule, so the views can
be checked against it.
"""

from __future__ import annotations

import hashlib
import string

import numpy as np

from diffgemma_lite.trace import CanvasTrace, Trace

SENTENCE = (
    "the model reads every position at once and keeps those it is sure of while others are drawn "
    "again from noise so a "
    "sentence settles from its easy words to hard ones def return self if not in None import for "
    "open close ( ) : = , . \n"
)
WORDS = SENTENCE.split(" ")

HOSTILE = [
    "<script>window.pwned=1</script>", "<img src=x onerror=window.pwned=1>", "</script><b>bold",
    "</pre></td><h1>x", '"', "'", "&amp;", "&", "\u202eabc", "\u202dxy\u202c", "\u200b", "a\u200db",
    "\u0301", "e\u0301", "\u0345\u0301z", "\x00", "\x07\x1b[31m", "\n", "\r\n", "\t", "\u00a0",
    "\u3164", "\ufeff", "\ufffd", "\u2028", "\U000e0041", "שלום", "مرحبا", "👩\u200d👩\u200d👧", "",
    " ", "  two", "`${1}`", "\\u202e", "{{x}}", "$x$", "-->", "<!--", "]]>", "javascript:alert(1)",
    "\u00ad", "\u2066iso\u2069", "漢字", "ﷺ", "x" * 60,
]  # fmt: skip


def simulate(
    C=64,
    N=12,
    V=512,
    K=5,
    B=1,
    *,
    seed=0,
    canvases=1,
    pinned=(),
    bound=0.1,
    texts=None,
    label=None,
    layers=0,
) -> Trace:
    """A Trace of `canvases` canvases [B, C], N steps each.

    With `layers` it has the attention of so many.
    """
    rng = np.random.default_rng(seed)
    made = [_canvas(rng, C, N, V, K, B, pinned if i == 0 else (), bound) for i in range(canvases)]
    for i, canvas in enumerate(made if layers else []):
        add_attention(canvas, 3 + C * i, layers, seed)
    final = [np.where(c.pinned, c.canvas[-1], c.committed) for c in made]
    tokens = [np.concatenate([f[b] for f in final]).tolist() for b in range(B)]
    meta = {"source": "simulated"} | ({"label": label} if label else {})
    sampler = {"confidence_threshold": 0.005, "entropy_bound": bound, "t_max": 0.8, "t_min": 0.4}
    trace = Trace(
        prompt=[[1, 2, 3]] * B,
        canvases=made,
        tokens=tokens,
        vocab_size=V,
        sampler=sampler,
        meta=meta,
    )
    return trace.with_texts(texts or (lambda i: (" " if i % 3 else "") + WORDS[i % len(WORDS)]))


def _canvas(rng, C, N, V, K, B, pinned, bound) -> CanvasTrace:
    target = rng.integers(0, V, (B, C, K))
    hard = rng.uniform(0.1, 0.75, (B, C)) * N
    pins = np.zeros((B, C), bool)
    pins[:, list(pinned)] = True
    canvas = rng.integers(0, V, (B, C))
    held, previous, record = canvas.copy(), None, []
    for n in range(N):
        sure = 1 / (1 + np.exp(-(n + rng.normal(0, 0.7, (B, C)) - hard) * 1.6))
        logits = (
            rng.normal(0, 1.2, (B, C, K)) * (1 - sure[..., None])
            + np.where(np.arange(K) == 0, 14.0, 0.0) * sure[..., None] ** 2
        )
        weights = np.exp(logits)
        tail = (1 - sure) ** 2 * 6 + 1e-6  # mass outside the candidates, spread over the vocabulary
        probs = weights / (weights.sum(-1) + tail)[..., None]
        rest = np.clip(1 - probs.sum(-1), 1e-12, 1)
        entropy = -(probs * np.log(np.clip(probs, 1e-12, 1))).sum(-1) - rest * np.log(rest / V)
        order = np.argsort(-probs, -1, kind="stable")
        top_ids, top_probs = (
            np.take_along_axis(target, order, -1),
            np.take_along_axis(probs, order, -1),
        )
        pick = (rng.random((B, C, 1)) > np.cumsum(probs, -1)).sum(-1)
        choices = np.concatenate([target, rng.integers(0, V, (B, C, 1))], -1)
        drawn = np.take_along_axis(choices, pick[..., None], -1)[..., 0]
        accepted = accept(entropy, bound, pins)
        argmax = top_ids[..., 0]
        revised = np.zeros_like(pins) if previous is None else argmax != previous
        record.append(
            (canvas, drawn, argmax, entropy, accepted, revised & ~pins, top_ids, top_probs)
        )
        previous = argmax
        canvas = np.where(pins, held, np.where(accepted, drawn, rng.integers(0, V, (B, C))))
    stacked = [np.stack([step[i] for step in record]) for i in range(8)]
    mean = np.where(pins, np.nan, stacked[3])
    return CanvasTrace(
        canvas=stacked[0],
        sampled=stacked[1],
        argmax=stacked[2],
        entropy=stacked[3],
        accepted=stacked[4],
        revised=stacked[5],
        top_ids=stacked[6],
        top_probs=stacked[7],
        finished=np.repeat(np.arange(N)[:, None] == N - 1, B, 1),
        pinned=pins,
        temperature=0.4 + 0.4 * np.arange(N, 0, -1) / N,
        mean_entropy=np.nanmean(mean, -1),
        last_canvas=canvas,
        steps=np.full(B, N),
        stop=["steps"] * B,
        entropy_bound=bound,
    )


def add_attention(canvas: CanvasTrace, prefix: int, layers: int, seed=0, kept=4) -> None:
    """Four targets of every position in a row of `prefix` + C positions.

    A few of them move from step to step.
    """
    rng = np.random.default_rng(seed + 99)
    N, B, C = canvas.canvas.shape
    first = rng.random((1, B, C, layers, 1, prefix + C)).argpartition(-kept, -1)[..., 0, -kept:]
    other = rng.random((N, B, C, layers, 1, prefix + C)).argpartition(-kept, -1)[..., 0, -kept:]
    canvas.attended = np.where(rng.random((N, B, C, layers, 1)) < 0.7, first, other)
    weight = rng.dirichlet(np.full(kept + 3, 0.6), (N, B, C, layers))[..., :kept]
    canvas.attended_weight = -np.sort(-weight, -1)


def accept(entropy, bound, pinned):
    """cumsum(sorted) - sorted <= bound, pinned positions outside."""
    entropy = np.where(pinned, np.inf, entropy)
    order = np.argsort(entropy, -1, kind="stable")
    ranked = np.take_along_axis(entropy, order, -1)
    before = np.concatenate([np.zeros_like(ranked[..., :1]), np.cumsum(ranked, -1)[..., :-1]], -1)
    accepted = np.zeros_like(pinned)
    np.put_along_axis(accepted, order, (before <= bound) & np.isfinite(ranked), -1)
    return accepted


def worst_case(V: int, C=256, N=48, K=5) -> Trace:
    """Nothing compresses: ids, candidates, probabilities and entropies are random at every step,
    every text differs.
    """
    rng = np.random.default_rng(V)
    probs = np.sort(rng.dirichlet(np.ones(K + 1), (N, 1, C))[..., :K], -1)[..., ::-1]

    def ids(*shape):
        return rng.integers(0, V, shape)

    top = ids(N, 1, C, K)
    canvas = CanvasTrace(
        canvas=ids(N, 1, C),
        sampled=ids(N, 1, C),
        argmax=top[..., 0],
        entropy=rng.uniform(0, np.log(V), (N, 1, C)),
        accepted=rng.random((N, 1, C)) < 0.5,
        revised=rng.random((N, 1, C)) < 0.5,
        finished=np.zeros((N, 1), bool),
        pinned=np.zeros((1, C), bool),
        temperature=np.linspace(0.8, 0.4, N),
        mean_entropy=rng.uniform(1, 5, (N, 1)),
        top_ids=top,
        top_probs=probs,
        last_canvas=ids(1, C),
        steps=np.full(1, N),
        stop=["steps"],
        entropy_bound=0.1,
    )
    trace = Trace(
        [[1, 2]], [canvas], [canvas.committed[0].tolist()], V, {"confidence_threshold": 0.005}, {}
    )
    return trace.with_texts(_random_text)


def _random_text(i: int) -> str:
    """A space and two to eight letters that depend on the id alone."""
    return " " + "".join(
        string.ascii_letters[b % 52]
        for b in hashlib.blake2b(b"%d" % i, digest_size=2 + i % 7).digest()
    )
