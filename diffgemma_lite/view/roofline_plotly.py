"""The roofline as a plotly figure. Imported only when a roofline is shown or asked for its figure.

The three sliders never undo each other: canvas sets `visible`, batch sets `selectedpoints`,
precision sets x, y and the text shown on hover.
"""

from __future__ import annotations

import math

import plotly.graph_objects as go

from ..cost.hardware import Hardware
from .roofline import COLOURS, SPAN, Point, Roofline, si, step_name

HOVER = "%{text}<extra></extra>"


def figure(r: Roofline) -> go.Figure:
    """Roofs first, then one trace for the one-token steps and one for each canvas."""
    fig = go.Figure()
    for i, device in enumerate((*r.devices, *r.measured)):
        for trace in _roofs(r, device, COLOURS["roofs"][i % 4], broken=i >= len(r.devices)):
            fig.add_trace(trace)
    roofs, groups = len(fig.data), (1, *r.canvases)
    selected = r.batches.index(r.first[1])
    for queries in groups:
        kind = "one token" if queries == 1 else "canvas"
        fig.add_trace(
            go.Scatter(
                **_coordinates(r, r.precisions[0], queries),
                name=step_name(queries),
                mode="lines+markers",
                hovertemplate=HOVER,
                marker=dict(
                    size=13, symbol="circle" if queries == 1 else "square", color=COLOURS[kind]
                ),
                line=dict(color=COLOURS[kind], width=1, dash="dot"),
                visible=queries in (1, r.first[0]),
                selectedpoints=[selected],
                selected=dict(marker=dict(opacity=1)),
                unselected=dict(marker=dict(opacity=0.5, size=7)),
            )
        )
    moving = list(range(roofs, roofs + len(groups)))
    sliders = [
        _slider(
            "canvas",
            0,
            r.canvases,
            r.canvases.index(r.first[0]),
            [[{"visible": [q in (1, c) for q in groups]}, moving] for c in r.canvases],
        ),
        _slider(
            "batch",
            1,
            r.batches,
            selected,
            [[{"selectedpoints": [[i]] * len(groups)}, moving] for i in range(len(r.batches))],
        ),
        _slider(
            "precision",
            2,
            r.precisions,
            0,
            [[_all_coordinates(r, p, groups), moving] for p in r.precisions],
        ),
    ]
    fig.update_layout(
        template="none",
        height=620,
        margin=dict(l=75, r=20, t=60, b=230),
        sliders=sliders,
        paper_bgcolor="#fff",
        plot_bgcolor="#fff",
        title=dict(
            text=f"Roofline: steps of the model under {', '.join(d.name for d in r.devices)}",
            font=dict(size=15),
        ),
        legend=dict(x=0.01, y=0.99, bgcolor="rgba(255,255,255,0.8)"),
        hoverlabel=dict(align="left"),
    )
    fig.update_xaxes(
        type="log",
        title="FLOPs per byte of weights and cache",
        range=[math.log10(v) for v in SPAN],
        showgrid=True,
        gridcolor="#ddd",
        dtick=1,
    )
    heights = [10.0**power for power in range(6, 19)]
    fig.update_yaxes(
        type="log",
        title="FLOP/s",
        showgrid=True,
        gridcolor="#ddd",
        tickvals=heights,
        ticktext=[si(v, "") for v in heights],
    )
    return fig


def _roofs(r: Roofline, device: Hardware, colour: str, broken: bool):
    """One line a dtype, its name at its end.

    A device whose peaks are not known has only the slope.
    """
    bandwidth = f"{device.name}: {si(device.bandwidth.value, 'B/s')}<br>{device.bandwidth.source}"

    def line(name: str, x: list[float], y: list[float], text: list[str]) -> go.Scatter:
        return go.Scatter(
            x=x,
            y=y,
            text=text,
            hovertemplate=HOVER,
            name=name,
            mode="lines+text",
            showlegend=False,
            texttemplate=[""] * (len(x) - 1) + [name],
            textposition="top left",
            textfont=dict(color=colour, size=11),
            line=dict(color=colour, width=2, dash="dash" if broken else "solid"),
        )

    if not r.roofs(device):
        x = [SPAN[0], 100.0]
        yield line(
            f"{device.name} bandwidth", x, [device.bandwidth.value * v for v in x], [bandwidth] * 2
        )
    for dtype in r.roofs(device):
        peak = device.peaks[dtype]
        ridge = device.ridge(dtype)
        text = [
            bandwidth,
            f"{device.name}, {dtype}: memory-bound left of {ridge:.3g} FLOPs a byte",
            f"{device.name}, {dtype}: {si(peak.value, 'FLOP/s', 4)}<br>{peak.source}",
        ]
        heights = [device.bandwidth.value * SPAN[0], peak.value, peak.value]
        yield line(
            f"{device.name} {dtype}" + (" measured" if broken else ""),
            [SPAN[0], ridge, SPAN[1]],
            heights,
            text,
        )


def _coordinates(r: Roofline, precision: str, queries: int) -> dict[str, list]:
    points = [r.points[precision, queries, b] for b in r.batches]
    return {
        "x": [p.intensity for p in points],
        "y": [p.rate for p in points],
        "text": [words(p, precision) for p in points],
    }


def _all_coordinates(r: Roofline, precision: str, groups: tuple[int, ...]) -> dict[str, list]:
    each = [_coordinates(r, precision, q) for q in groups]
    return {key: [c[key] for c in each] for key in ("x", "y", "text")}


def words(p: Point, precision: str) -> str:
    """What a point says on hover: totals, then the parts from the longest floor down."""
    head = (
        f"<b>{step_name(p.queries)}, batch {p.batch}, {precision}</b><br>"
        f"{si(p.bytes, 'B')}, {si(p.flops, 'FLOP')}, "
        f"{p.intensity:.3g} FLOPs a byte<br>floor {si(p.seconds, 's')} "
        f"(activations, not in it: {si(p.bytes_activations, 'B')})"
    )
    longest = sorted(p.parts, key=lambda part: -part[3])[:5]
    rest = [
        f"{part}: {si(moved, 'B')}, {si(flops, 'FLOP')}, {si(s, 's')}"
        for part, moved, flops, s in longest
    ]
    return "<br>".join([head, *rest])


def _slider(name: str, row: int, values, active: int, arguments: list) -> dict:
    steps = [
        dict(method="restyle", label=str(v), args=a) for v, a in zip(values, arguments, strict=True)
    ]
    return dict(
        active=active,
        steps=steps,
        currentvalue=dict(prefix=f"{name}: ", font=dict(size=12)),
        len=0.9,
        x=0.05,
        y=-0.18 - 0.2 * row,
        yanchor="top",
        pad=dict(t=0, b=0),
        ticklen=3,
        font=dict(size=10),
    )
