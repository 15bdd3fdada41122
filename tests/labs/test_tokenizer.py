"""The tokenizer: nothing is lost, code is short, markers stay out of plain text, and Transformers
reads the folder.
"""

import json
import subprocess
import sys
from inspect import unwrap
from types import SimpleNamespace

import pytest

from diffgemma_lite.tokenizer import (
    BYTES,
    SPECIAL_TOKENS,
    Tokenizer,
    encode_examples,
    encode_prompt,
    train_tokenizer,
)

CODE = (
    "def area(width, height):\n    if width < 0:\n        raise ValueError('width')\n"
    "    return width * height\n"
)
TEXTS = [
    CODE,
    CODE.replace("area", "volume"),
    "class Shape:\n\n    def area(self):\n        return self._width\n",
] * 5
AWKWARD = [
    "",
    " ",
    "\n",
    "\t\n\n  x",
    "naïve 日本 🙂",
    "a\r\nb",
    "x  =  12345",
    "<body><eos>",
    "trailing  \n",
    "\x00\x7f",
]


@pytest.fixture(scope="module")
def tokenizer():
    return train_tokenizer(TEXTS, vocab_size=BYTES + len(SPECIAL_TOKENS) + 60)


def test_ids_the_model_relies_on(tokenizer):
    assert (tokenizer.pad_id, tokenizer.eos_id, tokenizer.bos_id) == (0, 1, 2)
    assert [tokenizer.token_text(i) for i in range(3)] == ["<pad>", "<eos>", "<bos>"]
    assert [tokenizer.marker_id(name) for name in SPECIAL_TOKENS] == list(
        range(len(SPECIAL_TOKENS))
    )
    assert tokenizer.marker_id("body") == tokenizer.marker_id("<body>") == 3
    assert tokenizer.vocab_size == BYTES + len(SPECIAL_TOKENS) + 60


@pytest.mark.parametrize("text", [CODE, *AWKWARD])
def test_round_trip(tokenizer, text):
    ids = tokenizer.encode(text)
    assert tokenizer.decode(ids) == text
    assert all(len(SPECIAL_TOKENS) <= i < tokenizer.vocab_size for i in ids)
    assert tokenizer.decode([2, 3, *ids, 1, 0, 0]) == text


def test_pieces_of_code(tokenizer):
    pieces = [tokenizer.token_text(i) for i in tokenizer.encode(CODE)]
    # a new line and its indentation: one token
    assert "\n    " in pieces and "\n        " in pieces
    assert [tokenizer.token_text(i) for i in tokenizer.encode("2024")] == list("2024")
    assert len(pieces) < len(CODE) / 2


def test_digits_stay_single_however_often_they_occur():
    tokenizer = train_tokenizer(
        ["1234 1234 1234 1234"] * 50, vocab_size=BYTES + len(SPECIAL_TOKENS) + 8
    )
    assert [tokenizer.token_text(i) for i in tokenizer.encode("1234")] == list("1234")


def test_markers_are_text_unless_asked_for(tokenizer):
    text = "<bos><body>def area"
    assert tokenizer.encode(text, markers=True) == [2, 3, *tokenizer.encode("def area")]
    assert not set(tokenizer.encode(text)) & set(range(len(SPECIAL_TOKENS)))


def test_a_part_of_a_character_shows_the_replacement_character(tokenizer):
    ids = tokenizer.encode("🙂")
    assert len(ids) > 1 and all(tokenizer.token_text(i) == "\N{REPLACEMENT CHARACTER}" for i in ids)


def test_training_is_deterministic(tokenizer):
    assert (
        train_tokenizer(TEXTS, tokenizer.vocab_size).backend.to_str() == tokenizer.backend.to_str()
    )


def test_save_load_and_transformers(tokenizer, tmp_path, monkeypatch):
    transformers = pytest.importorskip("transformers")
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    tokenizer.save(tmp_path / "folder")
    again = Tokenizer.load(tmp_path / "folder")
    assert again.backend.to_str() == tokenizer.backend.to_str()
    for config in (None, {"model_type": "diffusion_gemma"}):  # alone, and beside a model
        if config:
            (tmp_path / "folder" / "config.json").write_text(json.dumps(config), encoding="utf-8")
        for loader in (transformers.AutoTokenizer, transformers.PreTrainedTokenizerFast):
            theirs = loader.from_pretrained(tmp_path / "folder")
            assert (theirs.pad_token_id, theirs.eos_token_id, theirs.bos_token_id) == (0, 1, 2)
            assert len(theirs) == tokenizer.vocab_size
            for text in [CODE, "naïve 日本 🙂", "x  =  12345", "<bos><body>" + CODE]:
                ids = tokenizer.encode(text, markers=True)
                assert theirs(text)["input_ids"] == ids
                assert theirs.decode([*ids, 1, 0], skip_special_tokens=True) == tokenizer.decode(
                    ids
                )


def examples(*targets, prompt="def f():"):
    return [SimpleNamespace(task="body", prompt=prompt, target=target) for target in targets]


def test_complete_needs_room_for_one_end_token(tokenizer):
    digits = "12345678"  # one id each
    for length, complete in [(1, True), (7, True), (8, False)]:
        (row,) = encode_examples(
            examples(digits[:length]), tokenizer, 16, canvas_length=4, max_canvases=2
        )
        assert row.response == tokenizer.encode(digits[:length]) and row.complete is complete
    (row,) = encode_examples(examples(digits * 2), tokenizer, 16, canvas_length=4, max_canvases=2)
    assert row.response == tokenizer.encode(digits) and row.complete is False
    assert tokenizer.eos_id not in row.response


@pytest.mark.parametrize("max_prompt", [3, 5, 200])
def test_a_long_prompt_keeps_its_end_and_its_marker(tokenizer, max_prompt):
    ids = tokenizer.encode(CODE)
    (row,) = encode_examples(examples("1", prompt=CODE), tokenizer, max_prompt, 4, 1)
    assert (
        row.prompt
        == [2, 3, *ids[-(max_prompt - 2) :]]
        == encode_prompt(tokenizer, "body", CODE, max_prompt)
    )
    assert len(row.prompt) <= max_prompt


@pytest.mark.parametrize(
    "call, name",
    [
        (lambda t: train_tokenizer([], 400), "texts"),
        (lambda t: train_tokenizer("one string", 400), "texts"),
        (lambda t: train_tokenizer([CODE], BYTES), "vocab_size"),
        (lambda t: unwrap(train_tokenizer)([CODE, 3], 400), "texts"),
        (lambda t: unwrap(train_tokenizer)([CODE], 400.0), "vocab_size"),
        (lambda t: unwrap(Tokenizer.encode)(t, b"bytes"), "text"),
        (lambda t: unwrap(Tokenizer.encode_batch)(t, ["fine", None]), "texts"),
        (lambda t: unwrap(Tokenizer.decode)(t, ["a"]), "ids"),
        (lambda t: unwrap(Tokenizer.token_text)(t, 1.5), "token_id"),
        (lambda t: t.decode([t.vocab_size]), "ids"),
        (lambda t: t.decode([-1]), "ids"),
        (lambda t: t.marker_id("nothing"), "name"),
        (lambda t: Tokenizer.load("no such folder"), "folder"),
        (lambda t: encode_examples(examples("1"), t, 2, 4, 1), "max_prompt"),
        (lambda t: encode_examples(examples("1"), t, 8, 0, 1), "canvas_length"),
        (lambda t: encode_examples(examples("1"), t, 8, 4, True), "max_canvases"),
        (lambda t: encode_prompt(t, "cook", "x", 8), "name"),
    ],
)
def test_bad_input_names_the_argument(tokenizer, call, name):
    # `unwrap` takes off the tests' own check of the annotations, so that the function itself must
    # refuse the value.
    with pytest.raises(ValueError, match=f"^{name}: (got|'no such folder' has)"):
        call(tokenizer)


@pytest.mark.parametrize("content", ["not json", "{}", None])
def test_a_foreign_file_is_refused(tmp_path, content):
    if content is None:  # a real tokenizer, with other ids
        from tokenizers import Tokenizer as Backend
        from tokenizers.models import BPE

        content = Backend(BPE({"a": 0}, [])).to_str()
    (tmp_path / "tokenizer.json").write_text(content, encoding="utf-8")
    with pytest.raises(ValueError, match="^folder: "):
        Tokenizer.load(tmp_path)


def test_importing_the_package_does_not_import_tokenizers():
    code = (
        "import sys, diffgemma_lite.tokenizer, diffgemma_lite.labs.python_text.data; "
        "print('tokenizers' in sys.modules)"
    )
    assert (
        subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, check=True
        ).stdout.strip()
        == "False"
    )
