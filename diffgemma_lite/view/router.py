"""The router view: which experts the positions of a canvas go to, the load of each, and how many
are touched in all.

It shows what a RoutingRecord says and computes nothing of the model. Like the player it is a
progressive output: the static part below is complete by itself, then router.js takes its place.
Walked through in notebook 04.
"""

from __future__ import annotations

import base64
import html

import numpy as np

from ..trace.router import RoutingRecord
from .attention import kept_steps
from .host import OutputView, progressive_html
from .payload import PROBABILITY_STEPS, pack_planes
from .static import SHADES, palette, png, visible_title
from .text import token_text

LIMIT = 290_000  # bytes of a notebook output
PICTURED = 4  # layers in the picture and in the table of positions


def router_view(record: RoutingRecord, *, title: str | None = None, note: str = "") -> OutputView:
    """A record as a notebook output under 300 kB: layers, positions and experts to choose.

    Tables where scripts are off.
    """
    if not isinstance(record, RoutingRecord):
        raise ValueError(
            f"record: got {type(record).__name__}, "
            "takes a RoutingRecord (routing_record(...) makes one)"
        )
    if title is not None and not isinstance(title, str):
        raise ValueError(f"title: got {type(title).__name__}, takes a string")
    title = title or "Router"
    layers, size, k = record.index.shape
    static = static_part(record, title, note)
    for count in dict.fromkeys((layers, *(n for n in (24, 16, 12, 8, 5, 3, 2, 1) if n < layers))):
        html_text = progressive_html(
            static, payload(record, title, note, kept_steps(layers, count)), "router"
        )
        if len(html_text.encode()) <= LIMIT:
            break
    return OutputView(
        html_text,
        f"<{title}: {layers} layers, {size} positions, {k} of {record.num_experts} experts each>",
    )


def payload(record: RoutingRecord, title: str, note: str, kept: list[int]) -> dict:
    """What the module gets as `data`: positions of the kept layers, loads and counts of all.

    Ids are places in `texts`.
    """
    table, ids = np.unique(record.ids, return_inverse=True)
    left_out = (
        "To keep the page small: positions are kept for layers "
        f"{', '.join(str(n + 1) for n in kept)}."
    )
    words = [note, left_out if len(kept) < len(record.index) else ""]
    return {
        "title": title,
        "note": " ".join(filter(None, words)),
        "kept": kept,
        "ids": ids.tolist(),
        "texts": [record.texts.get(int(i)) or f"#{i}" for i in table],
        "index": pack_planes(record.index[kept].astype(np.uint16)),
        "weights": pack_planes(record.weights[kept].astype(np.float16)),
        "probs": pack_planes(np.rint(record.probs[kept] * PROBABILITY_STEPS).astype(np.uint16)),
        "load": pack_planes(record.expert_load.astype(np.uint16)),
        "distinct": pack_planes(record.distinct.astype(np.uint16)),
        "uniform": [float(f"{u:.6g}") for u in record.uniform],
    }


def picture(record: RoutingRecord, layers: list[int]) -> bytes:
    """For each layer a band: experts down, positions across, dark where a position goes, the darker
    the larger its weight.
    """
    size, experts = record.index.shape[1], record.num_experts
    wide, high = max(2, min(10, 640 // size)), max(2, min(8, 200 // experts))
    most, bands = float(record.weights[layers].max()) or 1.0, []
    for layer in layers:
        shade = np.zeros((experts, size), np.uint8)
        level = np.sqrt(np.clip(record.weights[layer] / most, 0, 1))
        shade[record.index[layer], np.arange(size)[:, None]] = 2 + np.rint(
            level * (SHADES - 3)
        ).astype(np.uint8)
        band = shade.repeat(high, 0).repeat(wide, 1)
        bands.append(np.pad(band, ((0, 8), (0, 0)), constant_values=SHADES))
    return png(np.concatenate(bands)[:-8], palette())


def _table(head: list[str], rows: list[list]) -> str:
    def line(tag: str, cells: list) -> str:
        return f"<tr>{''.join(f'<{tag}>{html.escape(str(c))}</{tag}>' for c in cells)}</tr>"

    return f"<table>{line('th', head)}{''.join(line('td', row) for row in rows)}</table>"


def static_part(record: RoutingRecord, title: str, note: str) -> str:
    """The complete view without a script.

    A picture, the load of every expert in every layer, and the growing counts.
    """
    layers, size, k = record.index.shape
    shown = kept_steps(layers, min(PICTURED, layers))
    names = ", ".join(str(n + 1) for n in shown)
    words = (
        f"{record.num_experts} experts (down) by {size} positions (across), "
        f"layers {names} one below the other: dark "
    )
    words += (
        "where the position goes to that expert, the darker the larger its weight. "
        f"Each position goes to {k}."
    )
    image = base64.b64encode(picture(record, shown)).decode("ascii")
    heads = [
        "layer",
        f"of {record.num_experts} experts touched",
        "equal chances",
        "busiest expert",
        "its positions",
        "of the even share",
        "least busy",
        "never used",
    ]
    every, some = [f"layer {n + 1}" for n in range(layers)], [f"layer {n + 1}" for n in shown]
    loads = [[n + 1, *record.expert_load[n].tolist()] for n in range(layers)]
    return (
        f"<p><b>{html.escape(visible_title(title))}</b></p><p>{html.escape(words)}</p>"
        f'<p><img alt="{html.escape(words, quote=True)}" src="data:image/png;base64,{image}"></p>'
        f"<p>Load of the experts over {size} positions; "
        f"the even share is {record.even_share:.1f} positions an expert.</p>"
        f"{_table(heads, [_layer_row(record, layer) for layer in range(layers)])}"
        "<p>Different experts touched by the first n positions; "
        "equal chances give E × (1 − (1 − k/E)ⁿ).</p>"
        f"{_table(['n', 'equal chances', *every], _growth_rows(record))}"
        f"<details><summary>Positions of every expert</summary>"
        f"{_table(['layer', *map(str, range(record.num_experts))], loads)}</details>"
        f"<details><summary>Experts of every position, with their weights: layers {names}</summary>"
        f"{_table(['position', 'token', *some], _position_rows(record, shown))}</details>"
        f"{f'<p>{html.escape(visible_title(note))}</p>' if note else ''}"
    )


def _layer_row(record: RoutingRecord, layer: int) -> list[str]:
    load, touched = record.expert_load[layer], int(record.distinct[layer, -1])
    busiest = int(load.argmax())
    return [
        f"{layer + 1}",
        f"{touched}",
        f"{record.uniform[-1]:.1f}",
        f"{busiest}",
        f"{load[busiest]}",
        f"{load[busiest] / record.even_share:.1f} times",
        f"{load.argmin()}: {load.min()}",
        f"{record.num_experts - touched}",
    ]


def _growth_rows(record: RoutingRecord) -> list[list[str]]:
    size = record.index.shape[1]
    counts = sorted({*(2**i for i in range(size.bit_length()) if 2**i <= size), size})
    return [
        [f"{n}", f"{record.uniform[n - 1]:.1f}", *(f"{c}" for c in record.distinct[:, n - 1])]
        for n in counts
    ]


def _position_rows(record: RoutingRecord, layers: list[int]) -> list[list[str]]:
    def experts(layer: int, p: int) -> str:
        return ", ".join(
            f"{e} ({w:.2f})"
            for e, w in zip(record.index[layer, p], record.weights[layer, p], strict=True)
        )

    named = [token_text(dict(record.texts), int(i)) for i in record.ids]
    return [[f"{p}", named[p], *(experts(layer, p) for layer in layers)] for p in range(len(named))]
