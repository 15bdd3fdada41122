"""The noise view: a text at noise level t, processes side by side, observed against expected
changed share.

It shows what a NoiseRecord says and computes nothing: the noise is `noise.corrupt`'s, the numbers
the record's. Like the player it is a progressive output: the static part below is complete by
itself, then noise.js takes its place. Walked through in notebook 02.
"""

from __future__ import annotations

import base64
import html

import numpy as np

from .host import OutputView, progressive_html
from .noise_record import CHANGED, ITSELF, MASKED, UNCHANGED, NoisePath, NoiseRecord
from .static import png, visible_title
from .text import token_text

SYMBOLS = {UNCHANGED: "", CHANGED: "≠", MASKED: "▒", ITSELF: "≈"}
LEFT = 'style="text-align:left"'  # JupyterLab sets tables flush right
KEY = "≠ changed, ▒ masked, ≈ noised to itself (nobody can see it), no mark: unchanged"
# one a mark, then paper
SHADES = np.array([[247, 245, 240], [58, 24, 74], [210, 102, 60], [240, 174, 85], [255, 255, 255]])


def noise_view(record: NoiseRecord, *, title: str | None = None, note: str = "") -> OutputView:
    """A record as a notebook output: slider, play, marks, curves; a table where scripts are off."""
    if not isinstance(record, NoiseRecord):
        raise ValueError(
            f"record: got {type(record).__name__}, "
            "takes a NoiseRecord (noise_record(...) makes one)"
        )
    title = title or "Noise view"
    html_text = progressive_html(
        static_part(record, title, note), payload(record, title, note), "noise"
    )
    names = " and ".join(path.name for path in record.paths)
    words = f"<{title}: {len(record.clean)} tokens at {len(record.levels)} noise levels, {names}>"
    return OutputView(html_text, words)


def payload(record: NoiseRecord, title: str, note: str = "") -> dict:
    """What the module gets as `data`; ids are places in `texts`."""
    place = {i: n for n, i in enumerate(record.texts)}
    paths = [
        {
            "name": path.name,
            "law": path.law,
            "ids": [[place[i] for i in row] for row in path.ids],
            "marks": path.marks,
            "observed": _short(path.observed),
            "expected": _short(path.expected),
            "half": _short(path.half_width),
        }
        for path in record.paths
    ]
    return {
        "title": title,
        "note": note,
        "levels": _short(record.levels),
        "clean": [place[i] for i in record.clean],
        "texts": [text or f"#{i}" for i, text in record.texts.items()],
        "vocab": record.vocab_size,
        "paths": paths,
    }


def _short(values) -> list[float]:
    return [float(f"{v:.6g}") for v in values]


def picture(record: NoiseRecord) -> bytes:
    """Levels down, positions across, one band a process; light is unchanged, dark is changed."""
    wide, high = max(2, min(8, 640 // len(record.clean))), 6
    bands = []
    for path in record.paths:
        band = np.array(path.marks, np.uint8).repeat(high, 0).repeat(wide, 1)
        bands.append(np.pad(band, ((0, 8), (0, 0)), constant_values=len(SHADES) - 1))
    return png(np.concatenate(bands)[:-8], SHADES)


def static_part(record: NoiseRecord, title: str, note: str) -> str:
    """The complete view without a script.

    A picture, the text at several levels, every level in numbers.
    """
    n, count = len(record.levels), len(record.clean)
    shown = sorted({0, n // 4, n // 2, (3 * n) // 4, n - 1})
    names = ", then ".join(path.name for path in record.paths)
    words = (
        f"{count} positions (across) at {n} noise levels (down, from t = {record.levels[0]:.2f} to "
    )
    words += f"{record.levels[-1]:.2f}): {names}. Light: unchanged; dark: changed or masked."
    image = base64.b64encode(picture(record)).decode("ascii")
    heads = "".join(f"<th {LEFT}>{html.escape(path.name)}</th>" for path in record.paths)
    film = "".join(f"<tr><td>{record.levels[i]:.2f}</td>{_texts(record, i)}</tr>" for i in shown)
    numbers = "".join(
        f"<th>{html.escape(p.name)}: {_verb(p)} of {count}</th><th>share</th>"
        f"<th>expected {html.escape(p.law)}</th>"
        for p in record.paths
    )
    rows = "".join(
        f"<tr><td>{record.levels[i]:.2f}</td>"
        f"{''.join(_numbers(p, i, count) for p in record.paths)}</tr>"
        for i in range(n)
    )
    return (
        f"<p><b>{html.escape(visible_title(title))}</b></p><p>{html.escape(words)}</p>"
        f'<p><img alt="{html.escape(words, quote=True)}" src="data:image/png;base64,{image}"></p>'
        f"<p>Marks: {html.escape(KEY)}.</p><table><tr><th>t</th>{heads}</tr>{film}</table>"
        f"<p>Changed share at every level, V = {record.vocab_size:,}:</p><table><tr><th>t</th>"
        f"{numbers}</tr>{rows}</table>"
        f"{f'<p>{html.escape(visible_title(note))}</p>' if note else ''}"
    )


def _verb(path: NoisePath) -> str:
    return "masked" if any(MASKED in row for row in path.marks) else "changed"


def _texts(record: NoiseRecord, level: int) -> str:
    return "".join(
        f"<td {LEFT}><code>{_film(record, path, level)}</code></td>" for path in record.paths
    )


def _film(record: NoiseRecord, path: NoisePath, level: int) -> str:
    """The text at one level as a line of marked tokens; a mask is its mark alone."""
    pairs = zip(path.ids[level], path.marks[level], strict=True)
    shown = [
        SYMBOLS[mark] + ("" if mark == MASKED else token_text(record.texts, token))
        for token, mark in pairs
    ]
    return html.escape(" ".join(shown))


def _numbers(path: NoisePath, level: int, count: int) -> str:
    observed, expected = path.observed[level], path.expected[level]
    values = (
        f"{round(observed * count)}",
        f"{observed:.3f}",
        f"{expected:.3f} ± {path.half_width[level]:.3f}",
    )
    return "".join(f"<td>{value}</td>" for value in values)
