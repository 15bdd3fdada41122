"""The live host: the same ES module in an anywidget, with knobs that re-run the real model.

The model runs in a thread, so that the kernel stays free to hear Cancel; every trait is set on the
kernel's own event loop. State lives in traits only. What `run` raises is shown in the view and kept
in `exception`, for `raise_error`: a callback's exception is otherwise lost. See notebooks 00 and
07.
"""

from __future__ import annotations

import asyncio
import html
import threading
import time
import traceback
from collections.abc import Callable

import anywidget
import traitlets

from ..trace import Trace
from .host import module_text
from .static import RAMP
from .text import visible

# name -> (label, kind, least, most, step)
KNOBS = {
    "prompt": ("Prompt", "text", None, None, None),
    "seed": ("Seed", "int", 0, 2**31 - 1, 1),
    "steps": ("Denoising steps, at most", "int", 1, 256, 1),
    "bound": ("Entropy bound (nats)", "float", 0, 100, "any"),
    "t_max": ("First temperature", "float", 0.01, 5, "any"),
    "t_min": ("Last temperature", "float", 0, 5, "any"),
    "self_conditioning": ("Self-conditioning", "bool", None, None, None),
    "stop": ("Stop when stable", "bool", None, None, None),
}
DEFAULTS = {
    "prompt": "", "seed": 0, "steps": 48, "bound": 0.1, "t_max": 0.8, "t_min": 0.4,
    "self_conditioning": True, "stop": True,
}  # fmt: skip
OWN_TRAITS = (
    "data",
    "knobs",
    "settings",
    "run_count",
    "cancel_count",
    "progress",
    "ramp",
    "partial",
    "error",
)
PREVIEW_SECONDS = 0.12  # at most one preview of the canvas in this time


def knob_list(knobs: dict) -> list[dict]:
    """{name: first value} -> what the panel draws.

    A name that is not in KNOBS takes its kind from its value.
    """
    listed = []
    for name, value in knobs.items():
        kinds = {bool: "bool", int: "int", float: "float", str: "text"}
        if not isinstance(name, str) or type(value) not in kinds:
            raise ValueError(
                f"knobs: got {name!r}: {value!r}, takes names with a str, int, float or bool"
            )
        label, kind, least, most, step = KNOBS.get(
            name, (name.replace("_", " "), kinds[type(value)], None, None, None)
        )
        listed.append(
            {
                "name": name,
                "label": label,
                "kind": kind,
                "value": value,
                "min": least,
                "max": most,
                "step": step,
            }
        )
    return listed


def checked_settings(settings: dict, knobs: list[dict]) -> dict:
    """The settings as the panel sent them, each of its knob's kind and inside its limits."""
    result = {}
    for knob in knobs:
        value, kind = settings.get(knob["name"], knob["value"]), knob["kind"]
        kinds = {"bool": (bool,), "int": (int,), "float": (int, float), "text": (str,)}[kind]
        if not isinstance(value, kinds) or (isinstance(value, bool) and kind != "bool"):
            raise ValueError(f"{knob['name']}: got {value!r}, takes {kind}")
        low, high = knob["min"], knob["max"]
        if (low is not None and value < low) or (high is not None and value > high):
            raise ValueError(f"{knob['name']}: got {value!r}, takes {low} to {high}")
        result[knob["name"]] = value
    return result


class LivePlayer(anywidget.AnyWidget):
    """Knobs, Run, progress, Cancel, and the player of the last trace (`trace`)."""

    _esm = module_text()
    data = traitlets.Dict().tag(sync=True)
    knobs = traitlets.List().tag(sync=True)
    settings = traitlets.Dict().tag(sync=True)
    run_count = traitlets.Int(0).tag(sync=True)
    cancel_count = traitlets.Int(0).tag(sync=True)
    progress = traitlets.Dict({"state": "idle", "step": 0, "total": 1, "words": ""}).tag(sync=True)
    ramp = traitlets.Dict(RAMP).tag(sync=True)
    partial = traitlets.Dict().tag(sync=True)
    error = traitlets.Unicode("").tag(sync=True)

    def __init__(self, run: Callable, knobs: dict, *, trace, decode, title: str | None, row: int):
        listed = knob_list(knobs)
        super().__init__(knobs=listed, settings={k["name"]: k["value"] for k in listed})
        self.trace, self.exception = None, None
        self._run, self._decode, self._title, self._row = run, decode, title, row
        self._thread, self._cancel, self._loop = None, threading.Event(), None
        if trace is not None:
            self._show(trace)

    # -- what the page asks for

    @traitlets.observe("run_count")
    def _start(self, change) -> None:
        if self._thread is not None and self._thread.is_alive():
            return
        self._loop = _running_loop()
        self._cancel.clear()
        self.error, self.exception = "", None
        try:
            settings = checked_settings(self.settings, self.knobs)
        except ValueError as error:
            self._failed(error)
            return
        total = int(settings.get("steps", 1))
        self.progress = {"state": "running", "step": 0, "total": total, "words": "starting"}
        self._thread = threading.Thread(
            target=self._work, args=(settings, total), daemon=True, name="live player"
        )
        self._thread.start()

    @traitlets.observe("cancel_count")
    def _stop(self, change) -> None:
        if self.progress["state"] == "running":
            self._cancel.set()
            self.progress = self.progress | {
                "state": "cancelling",
                "words": "cancelling after this step",
            }

    # -- the thread: it computes, and hands every change of a trait to the kernel's loop

    def _work(self, settings: dict, total: int) -> None:
        started, counts, shown = time.monotonic(), {"steps": 0, "canvases": 1}, [0.0]

        def on_step(step=None) -> bool:
            counts["steps"] += 1
            index = getattr(step, "index", counts["steps"] - 1)
            counts["canvases"] += index == 0 and counts["steps"] > 1
            now = time.monotonic()
            if now - shown[0] > PREVIEW_SECONDS or index + 1 == total:
                shown[0] = now
                which = f"canvas {counts['canvases']}, " if counts["canvases"] > 1 else ""
                words = f"{which}step {index + 1} of at most {total}, {now - started:.1f} s"
                self._post(self._advance, index + 1, words, self._preview(step))
            return self._cancel.is_set()

        try:
            trace = self._run(settings, on_step)
            if not isinstance(trace, Trace):
                raise ValueError(
                    f"run: returned {type(trace).__name__}, takes a function that returns a Trace"
                )
            done = f"{counts['steps']} steps in {time.monotonic() - started:.1f} s"
            self._post(self._finished, trace, done)
        # shown and kept, whatever it is: nobody else hears what a thread raises
        except BaseException as error:
            self._post(self._failed, error)

    def _post(self, function: Callable, *arguments) -> None:
        if self._loop is not None and self._loop.is_running():
            self._loop.call_soon_threadsafe(function, *arguments)
        else:
            function(*arguments)

    def _preview(self, step) -> dict:
        """The canvas of a running step as the page draws it, for the row that is shown.

        Empty without `decode`.
        """
        if self._decode is None or step is None:
            return {}
        row, pinned = self._row, step.pinned[self._row].tolist()
        pairs = zip(step.canvas[row].tolist(), step.sampled[row].tolist(), pinned, strict=True)
        ids = [held if is_pinned else drawn for held, drawn, is_pinned in pairs]
        return {
            "texts": [self._decode(i) or f"#{i}" for i in ids],
            "entropy": step.entropy[row].tolist(),
            "accepted": step.accepted[row].tolist(),
            "vocab": int(step.scaled_logits.shape[-1]),
        }

    # -- on the loop

    def _advance(self, step: int, words: str, partial: dict) -> None:
        if self.progress["state"] in ("running", "cancelling"):
            self.progress = self.progress | {
                "step": step,
                "words": words if self.progress["state"] == "running" else "cancelling",
            }
            self.partial = partial

    def _finished(self, trace: Trace, words: str) -> None:
        try:
            self._show(trace)
        except Exception as error:
            self._failed(error)
            return
        state = "cancelled" if self._cancel.is_set() else "done"
        self.partial = {}
        self.progress = {
            "state": state,
            "step": self.progress["total"],
            "total": self.progress["total"],
            "words": f"{state}: {words}",
        }

    def _failed(self, error: BaseException) -> None:
        self.exception = error
        self.error = "".join(traceback.format_exception(error)[-3:])
        self.partial = {}
        self.progress = self.progress | {"state": "failed", "words": "failed"}

    def _show(self, trace: Trace) -> None:
        from . import _checked, payload_of

        title = _checked([trace], self._row, self._title)
        if not trace.texts and self._decode is not None:
            trace.with_texts(self._decode)
        # the number of the run makes a trace equal to the last one news too: the page goes to its
        # end
        self.trace, self.data = (
            trace,
            payload_of([trace], self._row, title) | {"run": self.run_count},
        )

    # -- for tests and for the notebook

    def still(self) -> dict:
        """What the page is shown now: every trait that it shares, by name (for `host.stage`)."""
        return {name: getattr(self, name) for name in OWN_TRAITS}

    def join(self, timeout: float | None = None) -> None:
        """Wait for a run that was started outside an event loop, as in a test."""
        if self._thread is not None:
            self._thread.join(timeout)

    def raise_error(self) -> None:
        """Raise what the last run raised, if it did."""
        if self.exception is not None:
            raise self.exception

    def _repr_mimebundle_(self, **kwargs):
        """The widget, and for every place without a kernel the recorded player or the list of
        knobs.
        """
        from . import player

        made = super()._repr_mimebundle_(**kwargs)
        bundle, metadata = made if isinstance(made, tuple) else (made or {}, {})
        still = _knob_table(self.knobs)
        if self.trace is not None:
            still += player(self.trace, row=self._row, title=self._title).html
        return bundle | {"text/html": still, "text/plain": repr(self)}, metadata

    def __repr__(self) -> str:
        return f"<live player with knobs {', '.join(k['name'] for k in self.knobs)}>"


def _knob_table(knobs: list[dict]) -> str:
    rows = "".join(
        f"<tr><td>{html.escape(k['label'])}</td><td>"
        f"{html.escape(visible(str(k['value'])))}</td></tr>"
        for k in knobs
    )
    words = (
        "Knobs of the live player, with their first values. "
        "Run this cell in JupyterLab to turn them and re-run the model."
    )
    return f"<p>{words}</p><table><tr><th>knob</th><th>value</th></tr>{rows}</table>"


def _running_loop():
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None
