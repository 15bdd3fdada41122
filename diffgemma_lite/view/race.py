"""The race view: two lanes that replay, in recorded wall-clock time, one answer written a token at
a time and by canvas.

It shows what a RaceRecord says and computes nothing of the model. Like the player it is a
progressive output: the static part below is complete by itself, then race.js takes its place.
Walked through in notebooks 01, 08 and 11.
"""

from __future__ import annotations

import base64
import html

import numpy as np

from ..measure.race import KINDS, Lane, RaceRecord
from .host import OutputView, progressive_html
from .payload import code, pack_planes, shifted
from .static import png, visible_title
from .text import readable, token_text

LIMIT = 290_000  # bytes of a notebook output
MOMENTS = (0.1, 0.25, 0.5, 0.75, 1.0)  # of the longer lane, shown without a script


def race_view(record: RaceRecord, *, title: str | None = None, note: str = "") -> OutputView:
    """A record as a notebook output: play, speed, scrub, counters; tables where scripts are off."""
    if not isinstance(record, RaceRecord):
        raise ValueError(
            f"record: got {type(record).__name__}, takes a RaceRecord (race_record(...) makes one)"
        )
    if title is not None and not isinstance(title, str):
        raise ValueError(f"title: got {type(title).__name__}, takes a string")
    title = title or "Race"
    html_text = progressive_html(
        static_part(record, title, note), payload(record, title, note), "race"
    )
    if len(html_text.encode()) > LIMIT:
        size = len(html_text.encode())
        raise ValueError(
            f"record: makes {size:,} bytes, an output takes at most {LIMIT:,}; "
            "race a shorter answer"
        )
    seconds = " against ".join(f"{lane.total_seconds:.3g} s {lane.name}" for lane in record.lanes)
    return OutputView(html_text, f"<{title}: {seconds}>")


def payload(record: RaceRecord, title: str, note: str = "") -> dict:
    """What the module gets as `data`; ids are places in `texts`."""
    used = {i for lane in record.lanes for row in (*lane.ids, lane.tokens) for i in row} | set(
        record.prompt
    )
    place = {i: n for n, i in enumerate(sorted(used))}
    return {
        "title": title,
        "note": note,
        "machine": machine_words(record.meta),
        "prompt": [place[i] for i in record.prompt],
        "texts": [record.texts.get(i) or f"#{i}" for i in place],
        "lanes": [_lane(lane, place) for lane in record.lanes],
    }


def _lane(lane: Lane, place: dict[int, int]) -> dict:
    ids = np.array([[place[i] for i in row] for row in lane.ids])
    moved = [[float(f"{event[kind]:.6g}") for kind in KINDS] for event in lane.bytes]
    return {
        "name": lane.name,
        "seconds": [round(s, 6) for s in lane.seconds],
        "kept": lane.kept,
        "passes": lane.passes,
        "moved": moved,
        "canvas": lane.canvas,
        "tokens": [place[i] for i in lane.tokens],
        "stop": lane.stop,
        "runs": lane.runs,
        "ids": pack_planes(code(ids, [shifted(np.full_like(ids[0], -1), ids)])),
        "accepted": pack_planes(np.array(lane.accepted, bool)) if lane.accepted[0] else None,
    }


def machine_words(meta: dict) -> str:
    """Device, threads, precision, versions and day, as far as the record has them."""
    threads = meta.get("threads")
    threads = threads and f"{threads} thread{'s' if threads > 1 else ''}"
    parts = [meta.get("model"), meta.get("device"), threads, meta.get("dtype")]
    parts += [f"{name} {meta[name]}" for name in ("torch", "python") if name in meta] + [
        meta.get("date")
    ]
    return ", ".join(str(part) for part in parts if part)


def event_at(lane: Lane, seconds: float) -> int:
    """The last event that stood by then; -1 before the first."""
    return int(np.searchsorted(lane.seconds, seconds, side="right")) - 1


def picture(record: RaceRecord) -> bytes:
    """One band a lane: time across, tokens kept as height, a tick below for every token or step."""
    wide, high = 640, 72
    longest, most = (
        max(lane.total_seconds for lane in record.lanes),
        max(len(lane.tokens) for lane in record.lanes),
    )
    bands = []
    for lane in record.lanes:
        band = np.zeros((high, wide), np.uint8)
        for x in range(wide):
            event = event_at(lane, longest * (x + 1) / wide)
            top = round((high - 10) * (lane.kept[event] / most if event >= 0 else 0))
            band[high - 8 - top : high - 8, x] = 1
        band[-6:, [min(wide - 1, int(wide * s / longest)) for s in lane.seconds]] = 2
        bands.append(np.pad(band, ((0, 10), (0, 0)), constant_values=3))
    return png(
        np.concatenate(bands)[:-10],
        np.array([[240, 240, 238], [74, 110, 132], [30, 30, 34], [255, 255, 255]]),
    )


def _table(head: list[str], rows: list[list[str]]) -> str:
    def line(tag: str, cells: list[str]) -> str:
        return f"<tr>{''.join(f'<{tag}>{c}</{tag}>' for c in cells)}</tr>"

    first = line("th", [html.escape(c) for c in head])
    return f"<table>{first}{''.join(line('td', row) for row in rows)}</table>"


def size_words(count: float) -> str:
    """Bytes in the unit that leaves one to three digits before the point."""
    for unit in ("B", "kB", "MB", "GB"):  # noqa: B007 (used after the loop)
        if count < 1000:
            break
        count /= 1000
    else:
        unit = "TB"
    return f"{count:.3g} {unit}"


TOTALS = [
    "",
    "tokens kept",
    "seconds",
    "tokens per second",
    "passes",
    "tokens per pass",
    "weights and cache read per token",
    "activations moved per token",
    "stopped because",
    "seconds of every run",
]


def _totals(lane: Lane) -> list[str]:
    per_token = lane.bytes_per_token
    return [
        html.escape(lane.name),
        f"{len(lane.tokens)}",
        f"{lane.total_seconds:.4g}",
        f"{lane.tokens_per_second:.4g}",
        f"{lane.passes[-1]}",
        f"{len(lane.tokens) / lane.passes[-1]:.3g}",
        size_words(per_token["weights"] + per_token["cache"]),
        size_words(per_token["activations"]),
        html.escape(lane.stop.replace("_", " ")),
        ", ".join(f"{s:.4g}" for s in sorted(lane.runs)),
    ]


def static_part(record: RaceRecord, title: str, note: str) -> str:
    """The complete view without a script.

    Totals, the lanes at five moments, every event in numbers.
    """
    longest = max(lane.total_seconds for lane in record.lanes)
    words = (
        f"Tokens kept (height) over {longest:.3g} s (across), "
        f"first {record.autoregressive.name}, then {record.canvas.name}; "
    )
    words += "a tick below for every token or denoising step."
    image = base64.b64encode(picture(record)).decode("ascii")
    moments = [m * longest for m in MOMENTS]
    rows = [
        [f"{t:.3g}", *(cell for lane in record.lanes for cell in _moment(record, lane, t))]
        for t in moments
    ]
    heads = [f"{lane.name}: {what}" for lane in record.lanes for what in ("tokens kept", "text")]
    return (
        f"<p><b>{html.escape(visible_title(title))}</b></p><p>"
        f"{html.escape(machine_words(record.meta))}</p>"
        f"{_table(TOTALS, [_totals(lane) for lane in record.lanes])}"
        "<p>A pass runs the model once; "
        "the prompt's pass and those that commit a canvas are counted. Seconds are wall time, "
        "the run in the middle of those timed. Bytes are computed for every pass, not measured.</p>"
        f'<p><img alt="{html.escape(words, quote=True)}" src="data:image/png;base64,{image}"></p>'
        f"<p>{html.escape(words)}</p>"
        f"<p>Prompt:</p>{_text(record, record.prompt)}"
        f"{_table(['seconds', *heads], rows)}"
        "<p>[n of C accepted]: a canvas under way, its most likely tokens; "
        "they are kept with its last step.</p>"
        f"{''.join(_answer(record, lane) for lane in record.lanes)}"
        f"{f'<p>{html.escape(visible_title(note))}</p>' if note else ''}"
    )


def _answer(record: RaceRecord, lane: Lane) -> str:
    said = f"<p>{html.escape(lane.name)}, the answer:</p>"
    return f"{said}{_text(record, lane.tokens)}{_events(lane)}"


def _text(record: RaceRecord, ids: list[int]) -> str:
    return (
        f"<pre>{html.escape(readable(''.join(record.texts.get(i) or f'#{i}' for i in ids)))}</pre>"
    )


def _moment(record: RaceRecord, lane: Lane, seconds: float) -> list[str]:
    """Tokens kept and the text of a lane at a time, escaped."""
    event = event_at(lane, seconds)
    if event < 0:
        return ["0", ""]
    kept = lane.kept[event]
    ids, words = lane.tokens[:kept], ""
    if (
        lane.accepted[0]
        and kept < len(lane.tokens)
        and lane.canvas[event] * len(lane.ids[0]) == kept
    ):
        ids, words = (
            [*ids, *lane.ids[event]],
            f" [{sum(lane.accepted[event])} of {len(lane.ids[0])} accepted]",
        )
    film = " ".join(token_text(record.texts, i) for i in ids)
    return [f"{kept}", f"<code>{html.escape(film)}</code>{words}"]


def _events(lane: Lane) -> str:
    head = ["no.", "seconds", "tokens kept", "passes", "weights and cache read so far"]
    rows = []
    for n, moved in enumerate(lane.bytes):
        read = size_words(moved["weights"] + moved["cache"])
        rows.append(
            [f"{n + 1}", f"{lane.seconds[n]:.4f}", f"{lane.kept[n]}", f"{lane.passes[n]}", read]
        )
    what = "steps" if lane.accepted[0] else "tokens"
    return (
        f"<details><summary>{html.escape(lane.name)}: all {len(rows)} {what} in numbers</summary>"
        f"{_table(head, rows)}</details>"
    )
