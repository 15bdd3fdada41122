"""A small byte-level BPE for Python code.

The `tokenizers` library does the work, this file chooses the pieces.

How it differs from the usual: a newline and the indentation after it are one piece, so that a new
line of code at any depth costs one token; digits stand alone, so that ten tokens write every
number; and the task markers (`<body>`, `<doc>`, ...) are never read out of plain text, so that the
string "<body>" in HTML code stays text. Nothing is lost: `decode(encode(text)) == text` for every
text. Walked in notebook 06.

    tokenizer = train_tokenizer(texts, vocab_size=2048)
    tokenizer.save("folder")                   # tokenizer.json + tokenizer_config.json, which
                                               # AutoTokenizer reads too
    Tokenizer.load("folder").encode("def f():\n    return 1")
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

# Order is identity: the position in this tuple is the id. New markers go at the end only.
SPECIAL_TOKENS = (
    "<pad>",
    "<eos>",
    "<bos>",
    "<body>",  # signature and docstring -> body
    "<doc>",  # signature and body -> docstring
    "<prose>",  # the beginning of a text -> its continuation
    "<continue>",  # lines of source -> the next lines
    "<hole>",  # left side <gap> right side -> what is missing
    "<gap>",
    "<record>",  # structured outputs
    "<edit>",  # a text with a fault -> the text without it
    "<puzzle>",  # Sudoku
)
BYTES = 256
# stands for <gap> in the prompt of a hole: no source file that parses holds this character
GAP = "\0"

PIECES = "|".join(
    (
        r"\n+[ \t]*",  # line break(s) and the indentation after them
        # a word, with the space or the underscores before it: snake_case is snake, _case
        r" ?_*\p{L}+",
        r"\p{N}",  # one digit
        r" ?[^\s\p{L}\p{N}]+",  # punctuation
        r" +",
        r"\s",  # alignment spaces, then any other white space
    )
)


def train_tokenizer(texts: Iterable[str], vocab_size: int = 2048) -> Tokenizer:
    """Learn the merges on `texts`.

    The result has exactly `vocab_size` ids when the texts are rich enough.
    """
    from tokenizers import Regex, decoders, models, pre_tokenizers, trainers
    from tokenizers import Tokenizer as Backend

    # every byte and every special token has an id
    _at_least("vocab_size", vocab_size, BYTES + len(SPECIAL_TOKENS))
    if isinstance(texts, str):
        raise ValueError("texts: got one str, takes an iterable of str")
    texts = list(texts)
    if not texts or not all(isinstance(text, str) for text in texts):
        raise ValueError(f"texts: got {len(texts)} item(s), takes at least one, each a str")
    backend = Backend(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(PIECES), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    backend.decoder = decoders.ByteLevel()
    backend.train_from_iterator(
        texts,
        trainers.BpeTrainer(
            vocab_size=vocab_size,
            special_tokens=list(SPECIAL_TOKENS),
            show_progress=False,
            initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        ),
    )
    return Tokenizer(backend)


class Tokenizer:
    """A thin wrapper over `tokenizers.Tokenizer` (kept in `.backend`) with the ids the model relies
    on.
    """

    pad_id, eos_id, bos_id = 0, 1, 2

    def __init__(self, backend):
        found = tuple(backend.id_to_token(i) for i in range(len(SPECIAL_TOKENS)))
        if found != SPECIAL_TOKENS:
            raise ValueError(f"backend: its first ids are {found}, takes {SPECIAL_TOKENS}")
        backend.encode_special_tokens = True  # markers in plain text are text
        self.backend = backend
        self.vocab_size: int = backend.get_vocab_size()

    @classmethod
    def load(cls, folder: str | Path) -> Tokenizer:
        """Read `folder/tokenizer.json`."""
        from tokenizers import Tokenizer as Backend

        path = Path(folder) / "tokenizer.json"
        if not path.is_file():
            raise ValueError(
                f"folder: {str(folder)!r} has no tokenizer.json, "
                "takes a folder written by Tokenizer.save"
            )
        try:
            return cls(Backend.from_str(path.read_text(encoding="utf-8")))
        except Exception as error:  # the library raises a bare Exception
            raise ValueError(
                f"folder: {str(path)!r} is not a tokenizer of this package: {error}"
            ) from error

    def save(self, folder: str | Path) -> None:
        """Write `tokenizer.json`, and the `tokenizer_config.json` that lets Transformers load the
        same folder.
        """
        folder = Path(folder)
        folder.mkdir(parents=True, exist_ok=True)
        pad, eos, bos, *markers = SPECIAL_TOKENS
        config = {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "pad_token": pad,
            "eos_token": eos,
            "bos_token": bos,
            "extra_special_tokens": markers,
            "clean_up_tokenization_spaces": False,
            "padding_side": "left",
        }
        texts = {
            "tokenizer.json": self.backend.to_str(pretty=True),
            "tokenizer_config.json": json.dumps(config, indent=2),
        }
        for name, text in texts.items():
            (folder / name).write_text(text + "\n", encoding="utf-8", newline="\n")

    def encode(self, text: str, markers: bool = False) -> list[int]:
        """Ids of `text`, no `<bos>` added.

        With `markers=True`, "<bos><body>def" means the markers, not their letters.
        """
        if not isinstance(text, str):
            raise ValueError(f"text: got {type(text).__name__}, takes a str")
        if not markers:
            return self.backend.encode(text, add_special_tokens=False).ids
        parts = re.split("(" + "|".join(map(re.escape, SPECIAL_TOKENS)) + ")", text)
        return [
            i
            for part in parts
            for i in ([SPECIAL_TOKENS.index(part)] if part in SPECIAL_TOKENS else self.encode(part))
        ]

    def encode_batch(self, texts: Iterable[str]) -> list[list[int]]:
        """The ids of many texts, faster than one by one."""
        texts = list(texts)
        if not all(isinstance(text, str) for text in texts):
            raise ValueError(f"texts: got {texts[:3]!r}..., takes an iterable of str")
        return [
            encoding.ids
            for encoding in self.backend.encode_batch_fast(texts, add_special_tokens=False)
        ]

    def decode(self, ids: Iterable[int]) -> str:
        """The text of `ids` (a list or a one-dimensional tensor), special ids left out."""
        return self.backend.decode([self._known(i, "ids") for i in ids], skip_special_tokens=True)

    def token_text(self, token_id: int) -> str:
        """What one id alone shows: the name of a special id; U+FFFD for bytes that are only part of
        a character.
        """
        return self.backend.decode([self._known(token_id, "token_id")], skip_special_tokens=False)

    def marker_id(self, name: str) -> int:
        """The id of a special token: `marker_id("body")` and `marker_id("<body>")` are the same."""
        marker = f"<{str(name).strip('<>')}>"
        if marker not in SPECIAL_TOKENS:
            raise ValueError(f"name: got {name!r}, takes one of {', '.join(SPECIAL_TOKENS)}")
        return SPECIAL_TOKENS.index(marker)

    def _known(self, token_id: object, argument: str) -> int:
        try:
            number = int(token_id)
        except (TypeError, ValueError, RuntimeError):  # the last is torch's, for a row of ids
            raise ValueError(
                f"{argument}: got {token_id!r} as an id, "
                f"takes one row of ids from 0 to {self.vocab_size - 1}"
            ) from None
        if number != token_id or not 0 <= number < self.vocab_size:
            raise ValueError(
                f"{argument}: got {token_id!r}, takes ids from 0 to {self.vocab_size - 1}"
            )
        return number


@dataclass(frozen=True)
class EncodedExample:
    """Ids of one pair.

    `complete` says that the answer and at least one end token fit in the canvases.
    """

    prompt: list[int]
    response: list[int]
    complete: bool


def encode_prompt(tokenizer: Tokenizer, task: str, prompt: str, max_prompt: int) -> list[int]:
    """`<bos>`, the marker of the task, then the last ids of the prompt that fit.

    At most `max_prompt` in all.

    The prompt of a hole holds GAP once: what fits is then taken from around it, and <gap> stands
    between.
    """
    if task != "hole":
        return _prompt_ids(tokenizer, task, tokenizer.encode(prompt), max_prompt)
    if prompt.count(GAP) != 1:
        raise ValueError(f"prompt: a hole's has {prompt.count(GAP)} of {GAP!r}, takes exactly one")
    _at_least("max_prompt", max_prompt, 3)
    left, right = map(tokenizer.encode, prompt.split(GAP))
    room = max_prompt - 3
    right = right[: max(room // 2, room - len(left))]
    left = left[max(0, len(left) - room + len(right)) :]
    return _prompt_ids(tokenizer, task, [*left, tokenizer.marker_id("gap"), *right], max_prompt)


def encode_examples(
    examples: Iterable, tokenizer: Tokenizer, max_prompt: int, canvas_length: int, max_canvases: int
) -> list[EncodedExample]:
    """Ids for training, from anything with `task`, `prompt` and `target`.

    No end token is added here: an answer that leaves room for none is cut to the room
    (canvas_length * max_canvases) and marked incomplete.
    """
    for name, value, least in (
        ("max_prompt", max_prompt, 3),
        ("canvas_length", canvas_length, 1),
        ("max_canvases", max_canvases, 1),
    ):
        _at_least(name, value, least)
    examples, room = list(examples), canvas_length * max_canvases
    prompts = tokenizer.encode_batch(
        ["" if example.task == "hole" else example.prompt for example in examples]
    )
    prompts = [
        encode_prompt(tokenizer, "hole", example.prompt, max_prompt)
        if example.task == "hole"
        else _prompt_ids(tokenizer, example.task, prompt, max_prompt)
        for example, prompt in zip(examples, prompts, strict=True)
    ]
    targets = tokenizer.encode_batch([example.target for example in examples])
    return [
        EncodedExample(prompt, target[:room], len(target) < room)
        for prompt, target in zip(prompts, targets, strict=True)
    ]


def _prompt_ids(tokenizer: Tokenizer, task: str, ids: list[int], max_prompt: int) -> list[int]:
    _at_least("max_prompt", max_prompt, 3)
    return [tokenizer.bos_id, tokenizer.marker_id(task), *ids[-(max_prompt - 2) :]]


def _at_least(name: str, value: object, least: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise ValueError(f"{name}: got {value!r}, takes an int of at least {least}")
