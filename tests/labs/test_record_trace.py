"""The command that records a trace: what it makes of the prompt, and that its file is a trace."""

from pathlib import Path

import pytest

from diffgemma_lite import Trace
from diffgemma_lite.labs import record_trace

SHIPPED = Path(__file__).parents[2] / "assets" / "recordings" / "python-small.json"


@pytest.mark.parametrize(
    ("typed", "prompt"),
    [
        (r"def f():\n    pass", "def f():\n    pass"),
        ("def f():\n    pass", "def f():\n    pass"),
        (r"print('\n')", "print('\n')"),
    ],
)
def test_a_typed_backslash_n_is_a_new_line_and_the_help_says_so(
    monkeypatch, tmp_path, capsys, typed, prompt
):
    given = []

    def recorded(folder, task, prompt, seed):
        given.append((folder, task, prompt, seed))
        return Trace.load(SHIPPED)

    monkeypatch.setattr(record_trace, "record_trace", recorded)
    record_trace.main(["folder", str(tmp_path / "run.json"), "--prompt", typed, "--seed", "3"])
    assert given == [("folder", "body", prompt, 3)]
    shipped, written = Trace.load(SHIPPED), Trace.load(tmp_path / "run.json")
    told = f"{shipped.canvases[0].steps[0]} steps, {len(shipped.tokens[0])} tokens kept"
    assert told in capsys.readouterr().out and written.tokens == shipped.tokens
    with pytest.raises(SystemExit):
        record_trace.main(["--help"])
    assert r"every \n typed in it" in " ".join(capsys.readouterr().out.split())
