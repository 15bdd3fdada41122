"""What the notebooks teach with.

One palette, figures made of tables, the code itself, predictions and exercises.

figures.py draws, tasks.py asks and checks, and each further file holds the exercises of one
notebook, named after it.

For the authors of the course, notebooks executed, tidied, checked and exported:

    uv run python -m diffgemma_lite.course run [NAME ...]     execute in order, tidy, write back
    uv run python -m diffgemma_lite.course tidy [NAME ...]    tidy only (after a change of prose)
    uv run python -m diffgemma_lite.course check [NAME ...]    say what may not be committed
    uv run python -m diffgemma_lite.course export FOLDER [NAME ...]    pages that work offline
    uv run python -m diffgemma_lite.course slides FOLDER [NAME ...]    a slide for each heading

A NAME is a path or the beginning of a file name ("07"); none means all. Outputs are committed, so
what differs between two runs on two machines should be timings and last digits only. Unlike with
`jupyter execute`, no widget state is stored: reopened, it would show an error where the static twin
of the output belongs.

Run and tidy put a picture beside each plotly figure, drawn by kaleido in a Chrome or Chromium of
this machine.

execute.py runs and tidies, pictures.py draws, gate.py says what may not be committed, pages.py
exports, __main__.py is the command.
"""

from .figures import PALETTE, Figure, Source, beside, grid, seen, source, table
from .tasks import Exercise, Mistake, check, feedback, reveal

__all__ = [
    "PALETTE",
    "Exercise",
    "Figure",
    "Mistake",
    "Source",
    "beside",
    "check",
    "feedback",
    "grid",
    "reveal",
    "seen",
    "source",
    "table",
]
