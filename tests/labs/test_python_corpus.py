"""The corpus: what the four tasks look like, what is left out, and that held-out modules are held
out.
"""

import ast
import hashlib
import os
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

from diffgemma_lite.labs.python_text import data as corpus
from diffgemma_lite.labs.python_text.data import TASKS, Example, load_corpus, split_of
from diffgemma_lite.tokenizer import Tokenizer

SOURCE = '''"""A module about shapes, long enough to be cut in its first half and go on.

A second paragraph of the docstring, with some more words in it."""


class Shape:
    @property
    def area(self):
        """Return the area of it.

        More about areas."""
        if self.width < 0:  # a comment
            raise ValueError("width")
        return self.width * self.height

    def todo(self):
        """Nothing here yet."""
        raise NotImplementedError("later")

    def nothing(self):
        """Only a pass."""
        pass

    async def wait(self, seconds=1):
        """Path is "C:\\\\temp"."""
        await sleep(seconds * FACTOR)

    def bare(self): return self.a_function_without_docstring
'''


def names(split, count=2):
    """The first made-up package names that fall into a split."""
    return [n for n in (f"package{i}" for i in range(500)) if split_of(n) == split][:count]


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    root = tmp_path_factory.mktemp("library")
    (train, copy), (held, _) = names("train"), names("test")

    def write(name, text, encoding="utf-8"):
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(text.encode(encoding))

    write(f"{train}/__init__.py", SOURCE)
    write(f"{copy}.py", SOURCE.replace("\n", "\r\n"))
    write(
        f"{held}/inner.py",
        SOURCE + '\n\ndef own(x):\n    """Double the number."""\n    return x + x + HELD_OUT\n',
    )
    write(
        f"{train}/latin.py",
        '# coding: latin-1\ndef café(a):\n    """Serve it."""\n    return a.serve(CUPS)\n',
        "latin-1",
    )
    write(
        f"{train}/accents.py",
        'def g(a):\n    """Say it in Greek."""\n    return "αβγδεζηθικλμνξοπρστυφχψω"\n',
    )
    write(f"{train}/broken.py", "def f(:\n")
    write(f"{train}/bytes.py", "x = 'é'\n", "latin-1")
    for folder in ("test", "site-packages", "encodings", f"{train}/tests"):
        write(
            f"{folder}/left_out.py",
            'def left_out():\n    """Left out."""\n    return LEFT_OUT_OF_THE_CORPUS\n',
        )
    topic = "The if statement\\n***\\n\\nIt is used for conditional execution of code.\\n"
    write("pydoc_data/topics.py", f'topics = {{"if": "{topic}"}}')
    return root


def everything(root):
    return [example for split in corpus.SPLITS for example in load_corpus(split, root=root)]


def test_body_and_docstring(root):
    found = load_corpus("train", ("body", "doc"), root)
    area = {e.task: e for e in found if "area" in e.prompt}
    assert (
        area["body"].prompt
        == '@property\ndef area(self):\n    """Return the area of it.\n\n    More about areas."""'
    )
    assert area["body"].target == (
        "\n    if self.width < 0:\n        raise ValueError('width')"
        "\n    return self.width * self.height"
    )
    assert area["doc"].prompt == "@property\ndef area(self):" + area["body"].target
    assert area["doc"].target == "Return the area of it."
    assert not any(name in e.prompt for e in found for name in ("todo", "nothing", "bare"))
    for example in found:
        tree = ast.parse(example.prompt + (example.target if example.task == "body" else ""))
        assert (ast.get_docstring(tree.body[0]) is not None) == (example.task == "body")


def test_prompt_and_target_are_the_text_itself(root):
    text = SOURCE.replace("\r\n", "\n")
    found = [
        e
        for e in load_corpus("train", "continue", root)
        if not e.module.endswith(("latin", "accents"))
    ]
    assert len(found) >= 4
    for example in found:
        assert example.prompt + example.target in text
        end = text.index(example.prompt + example.target) + len(example.prompt + example.target)
        # ends where the paragraph ends
        assert text[end:].strip() == "" or text[end:].startswith("\n\n")
    prose = [
        e for e in load_corpus("train", "prose", root) if not e.module.startswith("pydoc_data")
    ]
    assert len(prose) == 2 and all(e.prompt + e.target in SOURCE for e in prose)


def test_topics_are_prose_of_the_training_split(root):
    (topic,) = [
        e
        for e in load_corpus("train", "prose", root)
        if e.module == "pydoc_data.topics.if" and e.prompt.startswith("The if statement\n***")
    ]
    assert (topic.prompt + topic.target).endswith("It is used for conditional execution of code.")
    assert split_of("pydoc_data") == "train"


def test_what_is_left_out(root):
    found = everything(root)
    assert not any("LEFT_OUT_OF_THE_CORPUS" in e.prompt + e.target for e in found)
    assert not any("αβγδε" in e.target for e in found)
    assert any("café" in e.prompt for e in found)  # the coding line is honoured
    assert not any(e.module.endswith(("broken", "bytes")) for e in found)


def test_no_target_twice_and_none_of_a_held_out_module_in_training(root):
    def key(example):
        return " ".join(example.target.split())

    train, held = load_corpus("train", root=root), load_corpus("test", root=root)
    assert len({(e.task, key(e)) for e in train}) == len(train)
    assert not {key(e) for e in train} & {key(e) for e in held}
    assert {e.task for e in held} >= {"body", "doc"} and all(
        "own" in e.prompt for e in held if e.task == "body"
    )
    assert {e.module.split(".")[0] for e in train}.isdisjoint(e.module.split(".")[0] for e in held)


def test_the_split_is_fixed_and_by_family():
    # Recorded once; a change here moves modules that a shipped model was trained on into its test
    # set.
    fixed = {
        "random": "validation",
        "unittest": "validation",
        "threading": "test",
        "configparser": "test",
        "pathlib": "train",
        "argparse": "train",
        "json.decoder": "train",
    }
    assert {module: split_of(module) for module in fixed} == fixed
    for one, other in [
        ("unittest", "unittest.mock"),
        ("_py_abc", "abc"),
        ("ntpath", "posixpath"),
        ("_pyio", "io"),
        ("_pydecimal", "decimal"),
        ("_pydatetime", "datetime"),
    ]:
        assert split_of(one) == split_of(other)
    shares = [split_of(f"package{i}") for i in range(3000)]
    assert all(0.03 < shares.count(split) / 3000 < 0.05 for split in ("validation", "test"))


def test_the_same_in_another_process(root):
    code = (
        "import sys, hashlib; from diffgemma_lite.labs.python_text.data import *; "
        "print(hashlib.sha256(repr("
        "[load_corpus(s, root=sys.argv[1]) for s in SPLITS]).encode()).hexdigest())"
    )
    there = subprocess.run(
        [sys.executable, "-c", code, str(root)],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "PYTHONHASHSEED": "7"},
    ).stdout.strip()
    here = repr([load_corpus(split, root=root) for split in corpus.SPLITS])
    assert there == hashlib.sha256(here.encode()).hexdigest()


def test_shorten():
    text = "one\ntwo\nthree"
    assert corpus.shorten(text, 20) == text
    assert (
        corpus.shorten(text, 9) == "one\ntwo" and corpus.shorten(text, 9, last=True) == "two\nthree"
    )
    assert corpus.shorten("abcdef", 3) == "abc" and corpus.shorten("abcdef", 3, last=True) == "def"


def test_the_real_library():
    root = Path(sysconfig.get_path("stdlib"))
    for name in ("textwrap", "string", "heapq"):
        path = next(p for p in (root / f"{name}.py", root / name / "__init__.py") if p.is_file())
        found = [
            e
            for e in corpus.module_examples(name, path.read_text(encoding="utf-8"))
            if corpus.readable(e)
        ]
        assert {e.task for e in found} == set(TASKS)
        for example in found:
            assert (
                example.prompt
                and example.target.strip()
                and len(example.prompt) <= corpus.PROMPT_CHARS + 120
            )
            if example.task == "body":
                ast.parse(example.prompt + example.target)


def test_a_hole_has_both_sides_and_puts_the_source_together():
    source = Path(ast.__file__).read_text(encoding="utf-8")
    text = "\n".join(line.rstrip() for line in source.splitlines())
    holes = list(corpus.hole_examples("ast", source))
    assert len(holes) > 50
    for hole in holes:
        left, right = hole.prompt.split(corpus.GAP)
        assert (
            left.strip()
            and right.strip()
            and 1 <= hole.target.count("\n") <= 3
            and hole.target.startswith("\n")
        )
        assert left + hole.target + right in text


def test_holes_are_asked_for_by_name_and_change_nothing_else(root):
    for split in corpus.SPLITS:
        plain, holes = load_corpus(split, root=root), load_corpus(split, "hole", root)
        assert (
            load_corpus(split, ("body", "doc", "prose", "continue", "hole"), root) == plain + holes
        )
        assert {e.task for e in plain} <= set(TASKS) and {e.task for e in holes} <= {"hole"}
        assert {split_of(e.module) for e in holes} <= {split}
    assert load_corpus("train", "hole", root)


def test_a_hole_is_encoded_around_its_gap():
    tokenizer = Tokenizer.load(
        Path(__file__).parents[2] / "assets" / "checkpoints" / "python-small"
    )
    hole = Example(
        "m", "hole", "one two three four" + corpus.GAP + "five six seven eight", "\n    gone"
    )
    left, right = tokenizer.encode("one two three four"), tokenizer.encode("five six seven eight")
    gap = tokenizer.marker_id("gap")
    head = [tokenizer.bos_id, tokenizer.marker_id("hole")]
    assert corpus.encode_prompt(tokenizer, "hole", hole.prompt, 99) == [*head, *left, gap, *right]
    assert corpus.encode_prompt(tokenizer, "hole", hole.prompt, 7) == [
        *head,
        *left[-2:],
        gap,
        *right[:2],
    ]
    assert corpus.encode_prompt(
        tokenizer, "hole", "a" + corpus.GAP + "five six seven eight", 7
    ) == [*head, *tokenizer.encode("a"), gap, *right[:3]]
    assert corpus.encode_prompt(tokenizer, "hole", hole.prompt, 3) == [*head, gap]
    both = corpus.encode_examples(
        [hole, Example("m", "body", "def f():", "\n    pass")], tokenizer, 7, 16, 1
    )
    assert both[0].prompt == [*head, *left[-2:], gap, *right[:2]] and both[
        0
    ].response == tokenizer.encode("\n    gone")
    assert both[1].prompt == corpus.encode_prompt(tokenizer, "body", "def f():", 7)
    with pytest.raises(ValueError, match="^prompt: a hole's has 0"):
        corpus.encode_prompt(tokenizer, "hole", "no gap", 7)


def test_command_line(root, tmp_path, capsys):
    corpus.main(["--root", str(root), "--tokenizer", str(tmp_path / "out"), "--vocab-size", "300"])
    table = capsys.readouterr().out
    rows = {
        tuple(line.split()[:2]): line.split()
        for line in table.splitlines()[2:]
        if line.split()[0] in corpus.SPLITS
    }
    assert rows["train", "body"][3] == str(len(load_corpus("train", "body", root)))
    tokenizer = Tokenizer.load(tmp_path / "out")
    sizes = [len(tokenizer.encode(e.target)) for e in load_corpus("train", "body", root)]
    assert rows["train", "body"][4] == f"{sum(sizes):,}"
    assert rows["train", "body"][-2] == f"{sum(size < 64 for size in sizes) / len(sizes):.1%}"


def test_the_shipped_tokenizer_is_short_on_code():
    folder = Path(__file__).parents[2] / "assets" / "checkpoints" / "python-small"
    tokenizer, text = Tokenizer.load(folder), Path(ast.__file__).read_text(encoding="utf-8")
    ids = tokenizer.encode(text)
    assert (
        tokenizer.vocab_size == 2048
        and tokenizer.decode(ids) == text
        and len(ids) < 0.4 * len(text)
    )


@pytest.mark.parametrize(
    "arguments, name",
    [
        ({"split": "dev"}, "split"),
        ({"split": "train", "tasks": ()}, "tasks"),
        ({"split": "train", "tasks": "poem"}, "tasks"),
        ({"split": "train", "root": "no such folder"}, "root"),
    ],
)
def test_bad_input_names_the_argument(arguments, name):
    with pytest.raises(ValueError, match=f"^{name}: got"):
        load_corpus(**arguments)


def test_a_folder_without_sources(tmp_path):
    with pytest.raises(ValueError, match="^root: no usable"):
        load_corpus("train", root=tmp_path)


def test_unreadable_targets():
    fine = Example("m", "body", "p", "\n    return self.width")
    assert corpus.readable(fine)
    for target in (
        "\n    return",
        "\n    x = 123456789012345678901",
        "# ------------------------ a title",
        "a = b + " * 30,
    ):
        assert not corpus.readable(Example("m", "body", "p", target))
    assert not corpus.readable(Example("m", "continue", "p", "a line of words\n" * 100))
