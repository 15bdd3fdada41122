"""Views of a Trace: what the model did, shown; nothing of the model is computed here.

`player` makes a notebook output that replays anywhere, `player_html` a file that replays from disk,
`live_player` a widget with knobs that re-runs the real model. Importing this package imports no
widget library. See notebooks 00 and 07.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from ..checks import file_to_write
from ..trace import Trace
from .attention import attention_note, attention_payload, attention_table
from .host import OutputView, page, progressive_html
from .noise_view import noise_view
from .payload import reductions, trace_payload
from .race import race_view
from .roofline import Roofline, roofline
from .router import router_view
from .static import RAMP, static_part

__all__ = [
    "OutputView",
    "Roofline",
    "live_player",
    "noise_view",
    "player",
    "player_html",
    "race_view",
    "roofline",
    "router_view",
]

# bytes for one 256-token, 48-step canvas; larger traces get their share
OUTPUT_LIMIT, PAGE_LIMIT = 290_000, 390_000


def player(
    trace: Trace, *, row: int = 0, compare: Trace | None = None, title: str | None = None
) -> OutputView:
    """The canvas player for one row of a trace, or for two traces side by side, as a notebook
    output under 300 kB.

    `compare` is a second trace, shown beside the first; the same row of it is taken.
    """
    traces = [trace] if compare is None else [trace, compare]
    title = _checked(traces, row, title)
    return OutputView(_fitted(traces, row, title, OUTPUT_LIMIT), _words(traces, row, title))


def player_html(
    trace: Trace,
    path: str | Path,
    *,
    row: int = 0,
    compare: Trace | None = None,
    title: str | None = None,
) -> Path:
    """Write one self-contained file that replays the trace from disk, with the network off."""
    traces = [trace] if compare is None else [trace, compare]
    title = _checked(traces, row, title)
    path = file_to_write("path", path)
    path.write_text(page(_fitted(traces, row, title, PAGE_LIMIT), title), encoding="utf-8")
    return path


def payload_of(
    traces: list[Trace], row: int, title: str, level: int = 0, attention: list | None = None
) -> dict:
    """What the module gets as `data`; a higher level keeps less (see payload.reductions).

    attention: attention_payload of each trace; None keeps all there is.
    """
    attention = (
        [attention_payload(t, row, float("inf")) for t in traces]
        if attention is None
        else attention
    )
    packed = []
    for trace, name, part in zip(traces, _names(traces), attention, strict=True):
        levels = reductions(max(c.top_ids.shape[-1] for c in trace.canvases))
        packed.append(trace_payload(trace, row, levels[min(level, len(levels) - 1)], name, part))
        words = [packed[-1]["note"], attention_note(trace, row, part)]
        packed[-1]["note"] = "; ".join(filter(None, words))
    return {"title": title, "ramp": RAMP, "traces": packed}


def _names(traces: list[Trace]) -> list[str]:
    """The labels; two traces always have one each."""
    letters = ("",) if len(traces) == 1 else ("A", "B")
    return [str(t.meta.get("label", letter)) for t, letter in zip(traces, letters, strict=True)]


def _fitted(traces: list[Trace], row: int, title: str, limit: int) -> str:
    """The fullest form under the limit, which grows with the number of cells beyond 48 x 256."""
    cells = sum(int(c.steps[row]) * c.canvas.shape[2] for t in traces for c in t.canvases)
    limit = int(limit * max(1.0, cells / (48 * 256)))
    titles = [title] if len(traces) == 1 else [f"{title} ({name})" for name in _names(traces)]
    static = "<hr>".join(
        static_part(t, row, words) for t, words in zip(traces, titles, strict=True)
    )
    tables = "".join(attention_table(t, row) for t in traces)
    plans = [(0, range(9))]
    if tables:  # attention may take what the rest leaves, and a share of the page in any case
        rest = progressive_html(
            static + tables, payload_of(traces, row, title, 0, [None] * len(traces))
        )
        left = 0.97 * (limit - len(rest.encode()))
        plans = [(max(left, 0.3 * limit), range(5)), (0.1 * limit, range(3, 9)), (0, range(6, 9))]
    for room, levels in plans:
        attention = [
            attention_payload(t, row, room / len(traces)) if room else None for t in traces
        ]
        for level in levels:
            output = progressive_html(
                static + (tables if room else ""), payload_of(traces, row, title, level, attention)
            )
            if len(output.encode()) <= limit:
                return output
    return output


def _checked(traces: list[Trace], row: int, title: str | None) -> str:
    for name, trace in zip(("trace", "compare"), traces, strict=False):
        if not isinstance(trace, Trace):
            raise ValueError(
                f"{name}: got {type(trace).__name__}, "
                "takes a Trace (generate(..., trace=True).trace)"
            )
        if not isinstance(row, int) or not 0 <= row < len(trace.tokens):
            raise ValueError(f"row: got {row!r}, {name} has rows 0 to {len(trace.tokens) - 1}")
        if not any(c.steps[row] > 0 for c in trace.canvases):
            raise ValueError(
                f"{name}: row {row} has no denoising step, so there is nothing to play"
            )
    if title is not None and not isinstance(title, str):
        raise ValueError(f"title: got {type(title).__name__}, takes a string")
    return title or "Canvas player"


def _words(traces: list[Trace], row: int, title: str) -> str:
    def one(t: Trace) -> str:
        canvases = [c for c in t.canvases if c.steps[row] > 0]
        steps = ", ".join(f"{int(c.steps[row])} steps ({c.stop[row]})" for c in canvases)
        many = (
            f"{len(canvases)} canvas{'es' if len(canvases) > 1 else ''} of "
            f"{canvases[0].canvas.shape[2]} tokens"
        )
        return f"{many}, {steps}, {len(t.tokens[row])} tokens kept"

    return f"<{title}: {'; '.join(one(t) for t in traces)}>"


def live_player(
    run: Callable,
    *,
    knobs: dict | None = None,
    trace: Trace | None = None,
    decode: Callable | None = None,
    title: str | None = None,
    row: int = 0,
):
    """A widget whose knobs re-run the real model: `run(settings, on_step) -> Trace` is called in a
    thread by its Run button.

    settings has one entry per knob. `run` hands `on_step` to `generate`; it returns True once
    Cancel was pressed. knobs: {name: first value}; None takes prompt, seed, steps, bound, t_max,
    t_min, self_conditioning and stop. trace: what is shown before the first run. decode(id) -> str:
    shows the canvas while it converges.
    """
    from .live import DEFAULTS, LivePlayer

    if not callable(run):
        raise ValueError(
            f"run: got {type(run).__name__}, "
            "takes a function run(settings, on_step) that returns a Trace"
        )
    return LivePlayer(
        run, DEFAULTS if knobs is None else knobs, trace=trace, decode=decode, title=title, row=row
    )
