"""Outputs with plotly figures, as a kernel makes them, for the tests of their pictures."""

from __future__ import annotations

import nbformat
import plotly.graph_objects as go
from nbformat.v4 import new_code_cell, new_notebook, new_output

from diffgemma_lite.course.gate import PLOTLY

SVG = (
    '<p>before</p><img alt="x" src="data:image/svg+xml;base64,PHN2Zy8+"><table><tr>'
    "<td>7</td></tr></table>"
)


def shown(sliders: bool = False, page: str | None = None):
    """A red line on a blue ground; `sliders` with the room that plotly needs for them, `page` as
    its html.
    """
    figure = go.Figure(
        go.Scatter(x=[0, 1, 2], y=[1, 1, 1], mode="lines", line=dict(color="#ff0000", width=9))
    )
    figure.update_layout(width=400, height=300, title="A <b>red</b> line", paper_bgcolor="#0000ff")
    if sliders:
        figure.update_layout(
            height=420, margin=dict(b=200), sliders=[dict(steps=[dict(method="skip", label="a")])]
        )
    data = {PLOTLY: figure.to_plotly_json(), "text/plain": "Figure"} | (
        {"text/html": page} if page else {}
    )
    return new_output("display_data", nbformat.from_dict(data))


def notebook_of(*outputs):
    return new_notebook(
        cells=[new_code_cell(f"show({n})", outputs=[output]) for n, output in enumerate(outputs)]
    )
