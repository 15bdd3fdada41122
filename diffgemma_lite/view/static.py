"""The part of a view that needs no script.

A table of steps, a filmstrip of the canvas, one picture.

It is what a reader sees on a code-hosting page, in a notebook that is not trusted, or with scripts
off, so it is complete by itself and says everything in words and symbols: ✓ accepted, × renoised, Δ
after a token whose best guess changed, ■ pinned, = final. Only tags and styles that JupyterLab's
sanitizer keeps. See notebooks 00 and 07.
"""

from __future__ import annotations

import base64
import html
import struct
import zlib

import numpy as np

from ..trace import Trace
from .payload import row_arrays
from .text import readable, token_text, visible

# surest to least sure; lightness goes one way only, so the order is seen without hue
RAMP = {
    "light": ["#f7f5f0", "#f8e3a6", "#f0ae55", "#d2663c", "#8b2e4e", "#3a184a"],
    "dark": ["#1a1c22", "#3b1f4c", "#842b52", "#cc593f", "#f0a04c", "#fbe8a9"],
}
SYMBOLS = {"accepted": "✓", "renoised": "×", "pinned": "■", "final": "=", "cut": "–"}
KEY = (
    "✓ accepted, × renoised, Δ its best guess changed in this step, ■ pinned, = final, "
    "– after the end token (not kept)"
)


SHADES = 16  # of the picture; its palette holds them and, last, white and the ink of the ticks


def png(indices: np.ndarray, palette: np.ndarray) -> bytes:
    """Palette indices uint8 [height, width] and colours uint8 [n, 3] -> the bytes of a PNG."""
    height, width = indices.shape

    def chunk(kind: bytes, body: bytes) -> bytes:
        return (
            struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))
        )

    # 0: this row is not filtered
    rows = np.concatenate([np.zeros((height, 1), np.uint8), indices], axis=1)
    parts = [
        chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 3, 0, 0, 0)),
        chunk(b"PLTE", palette.astype(np.uint8).tobytes()),
        chunk(b"IDAT", zlib.compress(rows.tobytes(), 9)),
        chunk(b"IEND", b""),
    ]
    return b"\x89PNG\r\n\x1a\n" + b"".join(parts)


def palette() -> np.ndarray:
    stops = np.array([[int(c[i : i + 2], 16) for i in (1, 3, 5)] for c in RAMP["light"]], float)
    x, at = np.linspace(0, 1, SHADES), np.linspace(0, 1, len(stops))
    shades = np.stack([np.interp(x, at, stops[:, i]) for i in range(3)], -1)
    return np.rint(np.concatenate([shades, [[255, 255, 255], [30, 30, 34]]]))


def picture(rows: list[dict]) -> bytes:
    """Steps down, positions across, colour the entropy.

    An accepted position has a dark tick below.
    """
    most = max(float(r["entropy"].max()) for r in rows) or 1.0
    widest = max(r["entropy"].shape[1] for r in rows)
    wide, high = (4, 8) if widest <= 256 else (2, 6)
    bands = []
    for r in rows:
        shade = np.rint(np.sqrt(np.clip(r["entropy"] / most, 0, 1)) * (SHADES - 1)).astype(np.uint8)
        band = shade.repeat(high, 0).repeat(wide, 1)
        tick = (
            np.where(r["accepted"] & ~r["pinned"], SHADES + 1, SHADES)
            .astype(np.uint8)
            .repeat(wide, 1)
        )
        band[high - 1 :: high] = tick
        bands.append(
            np.pad(band, ((0, 6), (0, wide * widest - band.shape[1])), constant_values=SHADES)
        )
    return png(np.concatenate(bands)[:-6], palette())


def _film(trace: Trace, r: dict, n: int, kept: int) -> str:
    """The canvas of step n as one line of marked tokens; n = N is the commit."""
    final, marks = n == len(r["temperature"]), []
    ids = np.where(r["pinned"], r["canvas"][-1], r["argmax"][-1] if final else r["sampled"][n])
    for p, token in enumerate(ids.tolist()):
        if r["pinned"][p]:
            state = "pinned"
        elif final:
            state = "final" if p < kept else "cut"
        else:
            state = "accepted" if r["accepted"][n, p] else "renoised"
        revised = "Δ" if not final and r["revised"][n, p] else ""
        marks.append(f"{SYMBOLS[state]}{token_text(trace.texts, token)}{revised}")
    return html.escape(" ".join(marks))


def _step_cells(r: dict, n: int) -> str:
    changed = int(r["revised"][n].sum())
    values = (
        f"{r['temperature'][n]:.3f}",
        f"{r['mean_entropy'][n]:.4f}",
        f"{int(r['accepted'][n].sum())}",
        f"{changed}",
    )
    return "".join(f"<td>{v}</td>" for v in values)


HEAD = (
    "<th>step</th><th>temperature</th><th>mean entropy (nats)</th><th>accepted</th><th>revised</th>"
)


def _canvas_tables(trace: Trace, r: dict, stop: str, kept: int, name: str) -> str:
    n_steps = len(r["temperature"])
    shown = sorted({0, n_steps // 4, n_steps // 2, (3 * n_steps) // 4, n_steps - 1})
    film = "".join(
        f"<tr><td>{n + 1}</td>{_step_cells(r, n)}<td style='text-align:left'><code>"
        f"{_film(trace, r, n, kept)}</code></td></tr>"
        for n in shown
    )
    film += (
        f"<tr><td>committed</td>{'<td></td>' * 4}<td style='text-align:left'><code>"
        f"{_film(trace, r, n_steps, kept)}</code></td></tr>"
    )
    every = "".join(f"<tr><td>{n + 1}</td>{_step_cells(r, n)}</tr>" for n in range(n_steps))
    return (
        f"<p>{html.escape(name)}: {n_steps} denoising steps, stopped because: "
        f"{html.escape(stop)}.</p>"
        f"<table><tr>{HEAD}<th style='text-align:left'>canvas (sampled tokens)</th></tr>"
        f"{film}</table>"
        f"<details><summary>All {n_steps} steps in numbers</summary><table><tr>{HEAD}</tr>"
        f"{every}</table></details>"
    )


def final_text(trace: Trace, row: int) -> str:
    """The kept tokens' text joined, hidden characters written out."""
    return readable("".join(trace.texts.get(int(i), f"#{i}") for i in trace.tokens[row]))


def static_part(trace: Trace, row: int, title: str) -> str:
    """The complete view of one row of a trace without a script."""
    indices = [i for i, c in enumerate(trace.canvases) if c.steps[row] > 0]
    rows = [row_arrays(trace.canvases[i], row) for i in indices]
    image = base64.b64encode(picture(rows)).decode("ascii")
    words = (
        "Entropy of every position (across) at every denoising step (down): "
        "light is sure, dark is unsure; "
    )
    words += "a dark tick under a position: accepted."
    parts, kept = [], len(trace.tokens[row])
    for order, (i, r) in enumerate(zip(indices, rows, strict=True)):
        size = r["entropy"].shape[1]
        name = f"Canvas {order + 1} of {len(rows)}, {size} positions"
        parts.append(
            _canvas_tables(trace, r, trace.canvases[i].stop[row], max(0, min(size, kept)), name)
        )
        kept -= size
    return (
        f"<p><b>{html.escape(visible_title(title))}</b></p><p>{html.escape(words)}</p>"
        f'<p><img alt="{html.escape(words, quote=True)}" src="data:image/png;base64,{image}"></p>'
        f"<p>Marks: {html.escape(KEY)}.</p>{''.join(parts)}"
        f"<p>Text that was kept ({len(trace.tokens[row])} tokens):</p><pre>"
        f"{html.escape(final_text(trace, row))}</pre>"
    )


def visible_title(title: str) -> str:
    """A title is running text: its spaces stay."""
    return visible(title).replace("·", " ")
