"""What the notebooks teach with: one palette, figures made of tables, the code itself, predictions and exercises.

figures.py draws, tasks.py asks and checks, and each further file holds the exercises of one notebook, named after it.
"""

from .figures import PALETTE, Figure, Source, beside, grid, seen, source, table
from .tasks import Exercise, Mistake, check, feedback, reveal

__all__ = [
    "PALETTE", "Exercise", "Figure", "Mistake", "Source", "beside", "check", "feedback", "grid", "reveal", "seen", "source", "table",
]  # fmt: skip
