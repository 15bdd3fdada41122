"""Figures that stand without colour, code shown as it runs, predictions, and an exercise whose
check names the mistake.
"""

from __future__ import annotations

import html
import re
from pathlib import Path

import nbformat
import pytest
import torch

from diffgemma_lite import Config
from diffgemma_lite import course as teach
from diffgemma_lite.attention import KVCache, decoder_masks, encoder_masks
from diffgemma_lite.config import FULL, SLIDING
from diffgemma_lite.course import encoder_decoder, figures

NOTEBOOK = Path(__file__).parents[2] / "notebooks" / "05_encoder_decoder.ipynb"


def rgb(colour: str) -> torch.Tensor:
    """Linear-light red, green, blue."""
    v = torch.tensor([int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)])
    return torch.where(v <= 0.04045, v / 12.92, ((v + 0.055) / 1.055) ** 2.4)


def luminance(colour: str) -> float:
    return float(rgb(colour) @ torch.tensor([0.2126, 0.7152, 0.0722]))


# ---- palette and figures -------------------------------------------------------------------------


@pytest.mark.parametrize("role", teach.PALETTE)
def test_text_on_a_colour_of_the_palette_is_readable(role):
    back = luminance(teach.PALETTE[role])
    text = {"#000": 0.0, "#fff": 1.0}[figures.ink(teach.PALETTE[role])]
    light, dark = max(back, text), min(back, text)
    assert (light + 0.05) / (dark + 0.05) > 4.5


# what dichromats see: Viénot, Brettel and Mollon 1999, projections of linear red and green on each
# other
SIGHT = {
    "all cones": torch.eye(3),
    "no red cone": torch.tensor([[0.112, 0.888, 0], [0.112, 0.888, 0], [0.004, -0.004, 1]]),
    "no green cone": torch.tensor([[0.293, 0.707, 0], [0.293, 0.707, 0], [-0.021, 0.021, 1]]),
}


@pytest.mark.parametrize("sight", SIGHT)
def test_the_colours_stay_apart_without_a_kind_of_cone(sight):
    shown = {
        role: (SIGHT[sight] @ rgb(colour)).clamp(0, 1) ** (1 / 2.2)
        for role, colour in teach.PALETTE.items()
    }
    pairs = [
        (float((a - b).norm()), x, y) for x, a in shown.items() for y, b in shown.items() if x < y
    ]
    assert len(pairs) == 10 and min(pairs)[0] > 0.25, min(pairs)


def test_a_grid_says_the_same_without_colour_and_without_html():
    figure = teach.grid(
        torch.tensor([[True, False], [True, True]]),
        rows=["encoder", "decoder"],
        columns=["prefix", "canvas"],
        title="T",
    )
    plain = re.sub(r"<[^>]*>", " ", figure.html).split()
    assert [m for m in plain if m in "■·"] == ["■", "·", "■", "■"]
    assert [line.split() for line in repr(figure).splitlines()] == [
        ["T"],
        ["p", "c"],
        ["0", "■", "·"],
        ["1", "■", "■"],
    ]
    assert teach.PALETTE["prefix"] in figure.html and "encoder" not in plain
    assert not re.search(r"<(script|style|svg|iframe)|aria-|https?:", figure.html)


def test_marks_and_names_are_text_and_never_markup():
    figure = teach.grid(
        [["<b>"]], rows=["prefix"], columns=["canvas"], names=["<i>"], title="a<b", note="c&d"
    )
    assert "<b>&lt;b&gt;" not in figure.html  # the title is bold, the mark is not
    assert (
        figure.html.count("&lt;b&gt;") == 1
        and "&lt;i&gt;" in figure.html
        and "a&lt;b" in figure.html
        and "c&amp;d" in figure.html
    )
    assert "&lt;script&gt;" in teach.table(["<script>"], [["x"]]).html


@pytest.mark.parametrize(
    "wrong, words",
    [
        (dict(rows=["prefix"]), "takes 1 rows x 2 columns"),
        (dict(columns=["prefix"] * 3), "takes 2 rows x 3 columns"),
        (dict(columns=["prefix", "sky"]), "'sky', takes one of prefix"),
    ],
)
def test_a_grid_that_does_not_fit_is_refused(wrong, words):
    with pytest.raises(ValueError, match=words):
        teach.grid(
            torch.ones(2, 2, dtype=torch.bool),
            **(dict(rows=["prefix"] * 2, columns=["prefix"] * 2) | wrong),
        )


def test_a_table_lines_up_as_text_and_wears_its_roles():
    figure = teach.table(
        ["pass", "n"],
        [("encoder", 5), ("decoder pass", 12)],
        roles={"encoder": "encoder"},
        title="T",
        note="N",
    )
    assert repr(figure).splitlines() == [
        "T",
        "pass          n",
        "encoder       5",
        "decoder pass  12",
        "N",
    ]
    assert figure.html.count(teach.PALETTE["encoder"]) == 1


def test_figures_beside_each_other_are_both_there():
    one, two = teach.table(["a"], [["1"]]), teach.table(["b"], [["2"]])
    both = teach.beside(one, two)
    assert (
        one.html in both.html and two.html in both.html and both.text == f"{one.text}\n\n{two.text}"
    )


# ---- what a mask lets through --------------------------------------------------------------------


@pytest.mark.parametrize("old, new", [(0, 1), (0, 5), (0, 12), (3, 4), (12, 1), (12, 6)])
def test_seen_writes_out_the_encoders_masks(old, new):
    config = Config.preset("tiny", sliding_window=5)
    keys = (torch.zeros(1, 1, old, 2),)
    masks = encoder_masks(config, KVCache(keys, keys) if old else None, new, None, "cpu")
    for kind, window in ((FULL, 10**6), (SLIDING, 5)):
        want = [[0 <= i - j < window for j in range(old + new)] for i in range(old, old + new)]
        assert teach.seen(masks[kind], new, old + new).tolist() == want


@pytest.mark.parametrize("prefix", [1, 4, 5, 12])
def test_seen_writes_out_the_decoders_masks(prefix):
    config = Config.preset("tiny", sliding_window=5)
    keys = (torch.zeros(1, 1, prefix, 2),)
    masks = decoder_masks(config, KVCache(keys, keys), 3)
    assert teach.seen(masks[FULL], 3, prefix + 3).all()
    want = [j >= prefix - 4 for j in range(prefix + 3)]
    assert teach.seen(masks[SLIDING], 3, prefix + 3).tolist() == [want] * 3


def test_seen_leaves_out_padding():
    keys, mask = (torch.zeros(1, 1, 4, 2),), torch.tensor([[False, True, True, True]])
    masks = decoder_masks(Config.preset("tiny", sliding_window=3), KVCache(keys, keys, mask), 2)
    assert teach.seen(masks[FULL], 2, 6).tolist() == [[False, True, True, True, True, True]] * 2


# ---- code ----------------------------------------------------------------------------------------


def test_source_shows_a_piece_of_the_code_that_runs():
    piece = teach.source(figures.beside, "style =", "style =")
    assert (
        piece.code.startswith('style = "display:inline-block') and len(piece.code.splitlines()) == 1
    )
    assert piece.where == "course/figures.py: beside"
    plain = html.unescape(re.sub(r"<[^>]*>", "", piece._repr_html_()))
    assert plain == piece.where + piece.code and repr(piece) == f"# {piece.where}\n{piece.code}"
    assert 'string-color)">&quot;' in piece._repr_html_()
    assert teach.source(figures.beside).code.startswith("def beside(")


@pytest.mark.parametrize(
    "first, last", [("no such line", ""), ("style =", "no such line"), ("return", "style =")]
)
def test_source_refuses_lines_that_are_not_there(first, last):
    with pytest.raises(ValueError, match="holds"):
        teach.source(figures.beside, first, last)


# ---- predictions and the exercise ----------------------------------------------------------------


def test_a_prediction_is_answered():
    ask = dict(because="Because.", instead={3: "Three is a band.", 0: "Zero is blind."})
    assert repr(teach.reveal(None, 8, **ask)).startswith("… Not done yet.") and "8" not in repr(
        teach.reveal(None, 8, **ask)
    )
    folded = teach.reveal(None, "<8>", **ask)._repr_html_()
    assert "<details><summary>" in folded and folded.endswith(
        "Measured: &lt;8&gt;. Because.</details>"
    )
    assert repr(teach.reveal(8, 8, **ask)).startswith("✓ Right.") and "Because." in repr(
        teach.reveal(8, 8, **ask)
    )
    assert (
        repr(teach.reveal(0, 8, **ask))
        == "✗ Not right. You said 0, measured: 8. Zero is blind. Because."
    )
    assert repr(teach.reveal(5, 8, **ask)) == "✗ Not right. You said 5, measured: 8. Because."
    assert repr(teach.reveal("8.0", 8, **ask)).startswith("✓ Right.") and repr(
        teach.reveal(" End", "end", because="")
    ).startswith("✓")
    assert "Three is a band." in repr(teach.reveal("3", 8, **ask)) and repr(
        teach.reveal([8], 8, **ask)
    ).startswith("✗ Not right.")


def notebook() -> str:
    return "\n".join(cell.source for cell in nbformat.read(NOTEBOOK, 4).cells)


def function(code: str):
    names = {"torch": torch}
    exec(code, names)
    return names["canvas_sees"]


def answer(body: str):
    return function(f"def canvas_sees(prefix, canvas, window):\n    {body}")


def test_the_notebooks_solution_is_right_and_its_stub_is_not_done():
    (stub,) = re.findall(
        r"^def canvas_sees.*?\n    \.\.\.[^\n]*$", notebook(), re.DOTALL | re.MULTILINE
    )
    (solution,) = re.findall(
        r"<summary>Solution</summary>\s*<pre><code>(def canvas_sees.*?)</code>",
        notebook(),
        re.DOTALL,
    )
    assert repr(teach.check(function(stub), encoder_decoder.CANVAS_WINDOW)).startswith(
        "… Not done yet."
    )
    assert repr(
        teach.check(function(html.unescape(solution)), encoder_decoder.CANVAS_WINDOW)
    ).startswith("✓ Right.")


ONES = "seen = torch.ones(canvas, prefix + canvas, dtype=torch.bool)"
WRONG = {
    "a list": ("return [[True] * (prefix + canvas)] * canvas", "bool tensor"),
    "numbers": (f"{ONES}; return seen.int()", "bool tensor"),
    "turned": (f"{ONES}; return seen.T", "[canvas, prefix + canvas]"),
    "the prefix alone": (
        "return torch.ones(canvas, prefix, dtype=torch.bool)",
        "[canvas, prefix + canvas]",
    ),
    "a causal canvas": (
        f"{ONES}; seen[:, :prefix - window + 1] = False; return seen.tril(prefix)",
        "bidirectional",
    ),
    "a band": (
        f"{ONES}; seen = seen.triu(prefix - window + 1); seen[:, prefix:] = True; return seen",
        "rectangle",
    ),
    "everything": (f"{ONES}; return seen", "full layer"),
    "W tokens": (f"{ONES}; seen[:, :prefix - window] = False; return seen", "One token too many"),
    "the start": (f"{ONES}; seen[:, window - 1 : prefix] = False; return seen", "wrong end"),
    "nothing": (f"{ONES}; seen[:, :prefix] = False; return seen", "not the model's mask"),
    "a negative start": (
        f"{ONES}; seen[:, :prefix - window + 1] = False; return seen",
        "becomes negative",
    ),
    "numbers of its own": (
        f"{ONES}; seen[:, :max(0, prefix - 7)] = False; return seen",
        "no number of your own",
    ),
}


@pytest.mark.parametrize("name", WRONG)
def test_each_wrong_answer_hears_what_is_wrong_with_it(name):
    body, words = WRONG[name]
    said = repr(teach.check(answer(body), encoder_decoder.CANVAS_WINDOW))
    assert said.startswith("✗ Not right.") and words in said


def test_every_message_of_the_check_is_heard_by_some_wrong_answer():
    said = [
        repr(teach.check(answer(body), encoder_decoder.CANVAS_WINDOW)) for body, _ in WRONG.values()
    ]
    assert [
        m.says
        for m in encoder_decoder.CANVAS_WINDOW.mistakes
        if not any(m.says in words for words in said)
    ] == []


def test_the_check_draws_where_the_answer_differs():
    said = repr(teach.check(answer(WRONG["W tokens"][0]), encoder_decoder.CANVAS_WINDOW))
    rows = [line.split()[1:] for line in said.splitlines() if re.match(r" *\d ", line)]
    assert rows == [["·"] * 4 + ["+"] + ["■"] * 15] * 8
    said = repr(teach.check(answer(WRONG["a negative start"][0]), encoder_decoder.CANVAS_WINDOW))
    assert "+" not in said  # right for the sizes that would be drawn


def test_an_answer_that_raises_is_told_so():
    said = repr(teach.check(answer("return 1 / 0"), encoder_decoder.CANVAS_WINDOW))
    assert said == "✗ Not right. Your function raised ZeroDivisionError: division by zero"
