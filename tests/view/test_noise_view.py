"""The noise view without a browser.

What the record says against `corrupt`, and the output that stands by itself.
"""

from __future__ import annotations

import hashlib
import json
import re
import subprocess
import sys

import numpy as np
import pytest
import torch
from markup import Reader
from simulated import HOSTILE

from diffgemma_lite.noise import corrupt
from diffgemma_lite.view import noise_view
from diffgemma_lite.view.host import BUNDLES, HERE, module_text
from diffgemma_lite.view.noise_record import (
    CHANGED,
    ITSELF,
    LEVELS,
    MASKED,
    UNCHANGED,
    noise_record,
    path_record,
)
from diffgemma_lite.view.noise_view import KEY, payload, picture
from diffgemma_lite.view.text import visible

V, C = 7, 90
TEXT = torch.randint(0, V, (C,), generator=torch.Generator().manual_seed(1)).tolist()
LETTERS = dict(enumerate("abcdefg"))


@pytest.fixture(scope="module")
def record():
    return noise_record(TEXT, LETTERS, V, seed=5)


def arrays(path):
    return np.array(path.ids), np.array(path.marks)


def test_each_level_is_what_corrupt_says(record):
    clean = torch.tensor([TEXT])
    for path, mask in zip(record.paths, (None, V), strict=True):
        for i, t in enumerate(LEVELS):
            x_t, changed = corrupt(
                clean, torch.tensor([t]), V, torch.Generator().manual_seed(5), mask_id=mask
            )
            assert list(path.ids[i]) == x_t[0].tolist()
            assert path.observed[i] == pytest.approx(changed.double().mean().item(), abs=0)
            assert [m in (CHANGED, MASKED) for m in path.marks[i]] == changed[0].tolist()


def test_one_seed_for_all_levels_makes_the_blur_grow(record):
    """A position hit at t is hit at every larger t, and holds the same noise there."""
    clean = np.array(TEXT)
    for path in record.paths:
        ids, marks = arrays(path)
        hit = marks != UNCHANGED
        assert (hit[1:] >= hit[:-1]).all()
        assert (ids[1:][hit[:-1]] == ids[:-1][hit[:-1]]).all()
        assert not hit[0].any() and hit[-1].all() and (ids[0] == clean).all()


def test_both_processes_hit_the_same_positions_and_only_one_tells(record):
    (uniform, marks), (absorbing, masked) = map(arrays, record.paths)
    assert ((marks != UNCHANGED) == (masked == MASKED)).all()
    assert (absorbing == V).sum() == (masked == MASKED).sum() and not (marks == MASKED).any()
    itself = marks == ITSELF
    assert itself.sum() > 0  # V = 7: a seventh of all noise
    assert (uniform[itself] == np.broadcast_to(TEXT, uniform.shape)[itself]).all()
    assert (
        uniform[marks == CHANGED] != np.broadcast_to(TEXT, uniform.shape)[marks == CHANGED]
    ).all()


def test_expected_shares_and_their_intervals(record):
    """The law of both processes, and a band that 95% of texts lie in: counted over 400 seeds."""
    uniform, absorbing = record.paths
    assert (
        uniform.expected == pytest.approx([t * (1 - 1 / V) for t in LEVELS])
        and absorbing.expected == LEVELS
    )
    levels, inside = (0.3, 0.5, 0.8), np.zeros((2, 3))
    for seed in range(400):
        for p, path in enumerate(noise_record(TEXT, LETTERS, V, levels=levels, seed=seed).paths):
            inside[p] += np.abs(np.array(path.observed) - path.expected) <= np.array(
                path.half_width
            )
    assert (inside / 400 > 0.90).all() and (inside / 400 < 0.985).all()


def test_a_path_made_elsewhere():
    ids = torch.tensor([[1, 2, 3], [1, 0, 3], [1, 2, 3]])
    record = path_record([1, 2, 3], {"one": ids, "two": ids.flip(0)}, (1.0, 0.5, 0.0), LETTERS, V)
    assert record.paths[0].observed == pytest.approx((0, 1 / 3, 0)) and record.levels == (
        1.0,
        0.5,
        0.0,
    )
    assert record.paths[0].marks == ((0, 0, 0), (0, 1, 0), (0, 0, 0)) == record.paths[1].marks
    assert "t = 1.00 to 0.00" in noise_view(record).html


def test_equal_arguments_give_equal_bytes_and_other_ids_do_not(record):
    html = noise_view(record, title="x").html
    assert html == noise_view(noise_record(TEXT, LETTERS, V, seed=5), title="x").html
    name = re.compile(r'data-dg="(\w+)"')
    other = noise_view(noise_record(TEXT, LETTERS, V, seed=6), title="x").html
    assert name.findall(html) != name.findall(other)
    code = (
        "from diffgemma_lite.view import noise_view; "
        "from diffgemma_lite.view.noise_record import noise_record;"
        f"import hashlib; r = noise_record({TEXT}, {LETTERS}, {V}, seed=5);"
        "print(hashlib.sha256(noise_view(r, title='x').html.encode()).hexdigest())"
    )
    # another process
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == hashlib.sha256(html.encode()).hexdigest()


def test_a_full_canvas_stays_far_under_the_limit():
    ids = torch.randint(0, 262_144, (256,), generator=torch.Generator().manual_seed(0)).tolist()
    record = noise_record(ids, lambda i: f" token{i}", 262_144)
    assert len(noise_view(record).html.encode()) < 200_000


def test_the_static_part_has_every_number(record):
    reader = Reader(noise_view(record, title="A <b>title</b>", note="a note").html)
    text = " ".join(reader.text)
    assert "A <b>title</b>" in text and "a note" in text and f"Marks: {KEY}" in text
    assert ("img", "alt") in [(tag, name) for tag, name, _ in reader.attributes]
    for path in record.paths:
        assert path.name in text
        for observed, expected, half in zip(
            path.observed, path.expected, path.half_width, strict=True
        ):
            assert f"{observed:.3f}" in text and f"{expected:.3f} ± {half:.3f}" in text
    middle = len(LEVELS) // 2
    uniform = record.paths[0]
    film = " ".join(
        {UNCHANGED: "", CHANGED: "≠", ITSELF: "≈"}[m] + LETTERS[i]
        for i, m in zip(uniform.ids[middle], uniform.marks[middle], strict=True)
    )
    assert film in text
    assert (
        not [t for t in reader.tags if t in ("style", "svg", "iframe", "link")]
        and reader.tags.count("script") == 1
    )


def test_hostile_text_is_text(record):
    texts = dict(enumerate(HOSTILE))
    record = noise_record(list(texts), texts, len(HOSTILE), seed=2)
    html = noise_view(
        record, title="<script>window.pwned=1</script>", note="</div><img src=x>"
    ).html
    reader = Reader(html)
    assert (
        reader.tags.count("script") == 1
        and reader.tags.count("img") == 1
        and reader.tags.count("b") == 1
    )
    assert not re.search("[\u202a-\u202e\u2066-\u2069\u200b-\u200f\x00-\x08]", html)
    first_row = " ".join(visible(t) or f"#{i}" for i, t in texts.items())
    assert first_row in " ".join(reader.text)
    json.dumps(payload(record, "x"))


def test_the_picture_is_a_png_of_the_marks(record):
    data = picture(record)
    width, height = (int.from_bytes(data[16 + 4 * i : 20 + 4 * i], "big") for i in (0, 1))
    assert data.startswith(b"\x89PNG") and width == C * 7 and height == 2 * 6 * len(LEVELS) + 8


BAD = {
    "no text": ("text_ids", lambda: noise_record([], LETTERS, V)),
    "a text too long": ("text_ids", lambda: noise_record([1] * 1025, LETTERS, V)),
    "an id outside the vocabulary": ("text_ids", lambda: noise_record([V], LETTERS, V)),
    "a mask that the text holds": ("mask_id", lambda: noise_record([3], LETTERS, V, mask_id=3)),
    "no levels": ("levels", lambda: noise_record([3], LETTERS, V, levels=[])),
    "a level above 1": ("levels", lambda: noise_record([3], LETTERS, V, levels=[0.5, 1.1])),
    "a level that is no number": (
        "levels",
        lambda: noise_record([3], LETTERS, V, levels=[float("nan")]),
    ),
    "no path": ("paths", lambda: path_record([3], {}, [0.5], LETTERS, V)),
    "a path of another shape": (
        "paths",
        lambda: path_record([3], {"a": torch.zeros(2, 1).long()}, [0.5], LETTERS, V),
    ),
    "a path with foreign ids": (
        "paths",
        lambda: path_record([3], {"a": torch.full((1, 1), V)}, [0.5], LETTERS, V),
    ),
    "no record": ("record", lambda: noise_view([1, 2])),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_input_is_named(unchecked, case):
    argument, call = BAD[case]
    with pytest.raises(ValueError, match=f"^{argument}: .*takes "):
        call()


def test_the_module_is_short_and_fetches_nothing():
    source = (HERE / "noise.js").read_text(encoding="utf-8")
    assert len(source.splitlines()) < 400 and BUNDLES["noise"][-1] == "noise.js"
    assert not re.search(
        r"https?://|fetch\(|XMLHttpRequest|innerHTML|insertAdjacentHTML|document\.write", source
    )
    assert ".noise .cell.masked" in module_text(
        "noise"
    ) and ".noise .cell.masked" not in module_text("player")
