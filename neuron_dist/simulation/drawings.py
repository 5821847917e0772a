"""Pictures of simulated time as SVG: the ranks' lanes of a step, and HBM over the run.

Colours are classes that the page's style sheet fills in for light and dark. Pictures have a fixed number of pixels,
so their size does not grow with the trace: what is narrower than a pixel is drawn by its share of it.
"""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

import numpy as np

from neuron_dist.simulation import units
from neuron_dist.simulation.busy import Busy, within

__all__ = ["hbm_svg", "lanes_svg", "ticks"]

WIDTH = 1000
"""Pixels of a time axis."""
GUTTER = 74
"""Pixels for the labels left of it."""
EXACT = 150
"""Intervals of a lane up to which each is drawn where it is; more are drawn pixel by pixel."""
LEVELS = 4
"""Shades of a pixel that is busy in part."""
LANES = (("compute", "c"), ("exposed", "e"), ("overlapped", "o"))


def ticks(span: float, most: int = 8) -> list[float]:
    """Round values from 0 to ``span``."""
    raw = span / most
    power = 10.0 ** np.floor(np.log10(raw)) if raw > 0 else 1.0
    step = next(power * m for m in (1, 2, 5, 10) if power * m >= raw)
    return [float(step * i) for i in range(int(span / step + 1e-9) + 1)]


def lanes_svg(
    ranks: Sequence[int], busy: Sequence[Busy], start: int, end: int, marked: int | None, title: str
) -> str:
    """Two lanes a rank from ``start`` to ``end``: compute above, communication below."""
    lane = 9 if len(ranks) <= 16 else 5
    row, top = 2 * lane + 5, 24
    height = top + row * len(ranks) + 6
    parts = [_open(GUTTER + WIDTH + 30, height, "lanes", title)]
    parts.append(_time_axis(end - start, top, height))
    for index, (rank, intervals) in enumerate(zip(ranks, busy, strict=True)):
        y = top + row * index
        name = f"rank {rank}" + (" *" if rank == marked else "")
        parts.append(f'<text x="{GUTTER - 8}" y="{y + lane + 4}" class="end">{name}</text>')
        parts.append(f'<g stroke-width="{lane}">')
        for attribute, css in LANES:
            middle = y + (lane / 2 if css == "c" else 1.5 * lane + 1)
            inside = within(getattr(intervals, attribute), start, end)
            parts += _lane(inside, start, end, middle, css)
        parts.append("</g>")
    return "".join([*parts, "</svg>"])


def hbm_svg(
    times_ns: np.ndarray, allocated: np.ndarray, capacity: int, edges: Sequence[int], title: str
) -> str:
    """Bytes in use over the run as a line, steps' ends as thin lines, and the capacity where it is in sight."""
    end = max([*edges, int(times_ns[-1]) if len(times_ns) else 1, 1])
    most = int(allocated.max(initial=1))
    scale = capacity if most > capacity / 5 else most * 1.15
    top, bottom = 24, 204
    parts = [_open(GUTTER + WIDTH + 30, bottom + 8, "hbm", title), _time_axis(end, top, bottom)]

    def y(nbytes: float) -> float:
        return bottom - (bottom - top) * nbytes / scale

    unit = 1024 ** min(int(np.log(max(scale, 1)) / np.log(1024)), 4)
    for tick in ticks(scale / unit, 4):
        at = y(tick * unit)
        parts.append(f'<path class="grid" d="M{GUTTER} {at:.1f}h{WIDTH}"/>')
        label = units.memory(tick * unit)
        parts.append(f'<text x="{GUTTER - 6}" y="{at + 4:.1f}" class="end">{label}</text>')
    for edge in edges if len(edges) <= 100 else ():
        parts.append(f'<path class="step" d="M{GUTTER + WIDTH * edge / end:.1f} {top}V{bottom}"/>')
    if len(times_ns):
        column = np.minimum(times_ns * WIDTH // end, WIDTH - 1)
        first = np.flatnonzero(np.diff(column, prepend=-1))
        highest = np.maximum.reduceat(allocated, first)
        line = "".join(
            f"H{GUTTER + x}V{y(v):.0f}" for x, v in zip(column[first], highest, strict=True)
        )
        parts.append(
            f'<path class="area" d="M{GUTTER} {bottom}{line}H{GUTTER + WIDTH}V{bottom}z"/>'
        )
    if scale == capacity:
        parts.append(f'<path class="capacity" d="M{GUTTER} {y(capacity):.1f}h{WIDTH}"/>')
    return "".join([*parts, "</svg>"])


def _open(width: float, height: float, css: str, title: str) -> str:
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:.0f} {height:.0f}" class="{css}" role="img">'
        f"<title>{escape(title)}</title>"
    )


def _time_axis(span: int, top: float, bottom: float) -> str:
    parts = []
    for tick in ticks(span):
        x = GUTTER + WIDTH * tick / max(span, 1)
        parts.append(f'<path class="grid" d="M{x:.1f} {top - 4}V{bottom}"/>')
        parts.append(f'<text x="{x:.1f}" y="{top - 9}" class="mid">{_tick(tick)}</text>')
    return "".join(parts)


def _tick(ns: float) -> str:
    scale, unit = next(
        (f, u) for f, u in ((1e9, "s"), (1e6, "ms"), (1e3, "us"), (1, "ns")) if ns >= f or f == 1
    )
    return f"{ns / scale:g} {unit}" if ns else "0"


def _lane(intervals: np.ndarray, start: int, end: int, y: float, css: str) -> list[str]:
    scale = WIDTH / max(end - start, 1)
    if len(intervals) <= EXACT:
        spans = [
            f"M{GUTTER + (a - start) * scale:.1f} {y:g}h{(b - a) * scale:.2f}"
            for a, b in intervals.tolist()
        ]
        return [f'<path class="{css}" d="{"".join(spans)}"/>'] if spans else []
    edges = start + np.arange(WIDTH + 1) / scale
    ends = intervals.ravel().astype(np.float64)
    covered = np.repeat(np.cumsum(intervals[:, 1] - intervals[:, 0]), 2).astype(np.float64)
    covered[::2] -= intervals[:, 1] - intervals[:, 0]
    part = np.diff(np.interp(edges, ends, covered)) * scale
    level = np.minimum(np.ceil(part * LEVELS - 1e-6), LEVELS).astype(int)
    begins = np.flatnonzero(np.diff(level, prepend=-1))
    lengths = np.diff(np.append(begins, WIDTH))
    found = []
    for shade in range(1, LEVELS + 1):
        runs = np.flatnonzero(level[begins] == shade)
        if len(runs):
            spans = [f"M{GUTTER + begins[i]} {y:g}h{lengths[i]}" for i in runs]
            found.append(f'<path class="{css} l{shade}" d="{"".join(spans)}"/>')
    return found
