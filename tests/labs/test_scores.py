"""Shares with their intervals, in numbers and in words.

Records that stay with the weights they are about.
"""

from __future__ import annotations

import json

import pytest
from tiny import refused

from diffgemma_lite.labs.scores import begun_scores, named_weights, percent, share


def test_share_is_wilsons_interval():
    assert share(0, 20)["low"] == 0 and share(20, 20)["high"] == pytest.approx(1)
    assert share(8, 10)["low"] == pytest.approx(0.490, abs=1e-3) and share(8, 10)[
        "high"
    ] == pytest.approx(0.943, abs=1e-3)


def test_percent():
    assert percent(share(1, 2)) == "50.0% [9.5%, 90.5%]"
    assert percent(share(1, 3), 2) == "33.33% [6.15%, 79.23%]"
    assert percent({"mean": 0.25, "half_width": 0.125}) == "25.0% ± 12.5%"


def test_scores_of_other_weights_are_not_gone_on_with(tmp_path):
    base, path = tmp_path / "base", tmp_path / "scores.json"
    base.mkdir()
    (base / "model.safetensors").write_bytes(b"one")
    begun = begun_scores(path, base)
    assert begun == {"base": named_weights(base)} and begun["base"]["name"] == "base"
    path.write_text(json.dumps(begun | {"points": {"full": 1}}))
    assert begun_scores(path, base)["points"] == {"full": 1}
    (base / "model.safetensors").write_bytes(b"two")
    with refused("base", "other weights of base", "remove that file"):
        begun_scores(path, base)


@pytest.mark.parametrize("hits, n", [(3, 2), (-1, 2), (0, 0)])
def test_refused(hits, n):
    with refused("hits, n", f"{hits}, {n}", "0 <= hits <= n"):
        share(hits, n)
