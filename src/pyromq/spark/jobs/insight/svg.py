"""Plots as text: SVG for the shapes and HTML for the words, so that words keep their size on every screen.

The shapes of a plot are stretched to the room there is, in units of 1000 by 100; lines keep their width. Each window
of time has a column that tells its values when it is pointed at. Nothing is loaded, nothing runs. All text that comes
from outside goes through `text`.
"""

from __future__ import annotations

import html
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import groupby, pairwise
from typing import NamedTuple

from pyromq.spark.jobs.insight.scales import clock_time, log_ticks, ticks, time_ticks

WIDTH = 1000.0
HEIGHT = 100.0
#: Colours of series; the sum of the remaining series has its own.
COLOURS = 7
REST = "rest"


def text(value: object) -> str:
    """Escaped, and without the characters that no document may have or that turn the direction of what follows."""
    kept = "".join(one if one.isprintable() or one == "\n" else "\ufffd" for one in str(value))
    return html.escape(kept, quote=True)


def number(value: float) -> str:
    return f"{value:.1f}".rstrip("0").rstrip(".")


@dataclass(frozen=True, slots=True)
class Series:
    name: str
    #: One for each window; None where there is nothing to show.
    values: Sequence[float | None]
    colour: str = "c0"


def coloured(index: int) -> str:
    return f"c{index % COLOURS}"


class Scale(NamedTuple):
    """From values to heights: 0 is the bottom, 100 the top."""

    ticks: Sequence[float]
    is_log: bool = False

    def height(self, value: float) -> float:
        low, high = self.ticks[0], self.ticks[-1]
        if self.is_log:
            value, low, high = (math.log10(max(one, 1e-9)) for one in (value, low, high))
        return min(max((value - low) / (high - low), 0.0), 1.0) * HEIGHT


def linear_scale(values: Sequence[float]) -> Scale:
    return Scale(ticks(max(values, default=0.0)))


def log_scale(values: Sequence[float]) -> Scale:
    positive = [max(value, 1.0) for value in values]
    return Scale(log_ticks(min(positive, default=1.0), max(positive, default=10.0)), is_log=True)


# --- plots over time -------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class TimeAxis:
    starts: Sequence[int]
    window_ms: int

    @property
    def end(self) -> int:
        return self.starts[-1] + self.window_ms

    def x(self, at_ms: float) -> float:
        return (at_ms - self.starts[0]) / (self.end - self.starts[0]) * WIDTH


def stacked_areas(series: Sequence[Series], axis: TimeAxis, show: Callable[[float], str], about: str) -> str:
    """One above the other: the uppermost edge is the sum of all."""
    sums = [0.0] * len(axis.starts)
    edges = [tuple(sums)]
    for one in series:
        sums = [base + (value or 0) for base, value in zip(sums, one.values, strict=True)]
        edges.append(tuple(sums))
    scale = linear_scale(sums)
    shapes = [
        f'<path class="area {one.colour}" d="{_band(below, above, axis, scale)}"/>'
        for one, (below, above) in zip(series, pairwise(edges), strict=True)
    ]
    return _plot(series, axis, scale, show, about, shapes)


def _band(below: Sequence[float], above: Sequence[float], axis: TimeAxis, scale: Scale) -> str:
    upper = _steps(above, axis, scale)
    lower = _steps(below, axis, scale)[::-1]
    return "M" + "L".join(f"{number(x)} {number(y)}" for x, y in (*upper, *lower)) + "Z"


def _steps(values: Sequence[float], axis: TimeAxis, scale: Scale) -> list[tuple[float, float]]:
    """A value holds for its whole window."""
    points = []
    for start, value in zip(axis.starts, values, strict=True):
        y = HEIGHT - scale.height(value)
        points += [(axis.x(start), y), (axis.x(start + axis.window_ms), y)]
    return points


def lines(
    series: Sequence[Series],
    axis: TimeAxis,
    show: Callable[[float], str],
    about: str,
    *,
    is_log: bool = False,
    over_holes: bool = False,
) -> str:
    """`over_holes`: draw the line across windows without a value, because they have no sample."""
    values = [value for one in series for value in one.values if value is not None]
    scale = log_scale(values) if is_log else linear_scale(values)
    shapes = [f'<path class="line {one.colour}" d="{_line(one.values, axis, scale, over_holes)}"/>' for one in series]
    return _plot(series, axis, scale, show, about, shapes)


def _line(values: Sequence[float | None], axis: TimeAxis, scale: Scale, over_holes: bool) -> str:
    """Through the middle of each window. A hole stays one, and a value between two holes is a dash."""
    points = [
        None if value is None else (axis.x(start + axis.window_ms / 2), HEIGHT - scale.height(value))
        for start, value in zip(axis.starts, values, strict=True)
    ]
    if over_holes:
        points = [one for one in points if one is not None]
    window = axis.x(axis.starts[0] + axis.window_ms)
    runs = groupby(points, key=lambda one: one is not None)
    return "".join(_stroke([one for one in run if one is not None], window) for is_there, run in runs if is_there)


def _stroke(points: Sequence[tuple[float, float]], window: float) -> str:
    if len(points) == 1:
        return f"M{number(points[0][0] - window / 2)} {number(points[0][1])}h{number(window)}"
    return "M" + "L".join(f"{number(x)} {number(y)}" for x, y in points)


def _plot(
    series: Sequence[Series],
    axis: TimeAxis,
    scale: Scale,
    show: Callable[[float], str],
    about: str,
    shapes: Sequence[str],
) -> str:
    return (
        f'<div class="plot"><div class="y">{_y_labels(scale, show)}</div>'
        f'<svg viewBox="0 0 1000 100" preserveAspectRatio="none" role="img" aria-label="{text(about)}">'
        f"{_grid(scale)}{''.join(shapes)}{_columns(series, axis, show)}</svg>"
        f'<div class="x">{_x_labels(axis)}</div></div>{legend(series) if len(series) > 1 else ""}'
    )


def _y_labels(scale: Scale, show: Callable[[float], str]) -> str:
    return "".join(
        f'<span style="bottom:{number(scale.height(tick))}%">{text(show(tick))}</span>' for tick in scale.ticks
    )


def _x_labels(axis: TimeAxis) -> str:
    found = time_ticks(axis.starts[0], axis.end)
    return "".join(
        f'<span style="left:{number(axis.x(at) / WIDTH * 100)}%"{_edge(axis.x(at))}>{text(label)}</span>'
        for at, label in found
    )


def _edge(x: float) -> str:
    """Words at the edges stay inside."""
    return ' class="first"' if x < 0.04 * WIDTH else ' class="last"' if x > 0.96 * WIDTH else ""


def _grid(scale: Scale) -> str:
    heights = (number(HEIGHT - scale.height(tick)) for tick in scale.ticks)
    return f'<path class="grid" d="{"".join(f"M0 {y}H1000" for y in heights)}"/>'


def _columns(series: Sequence[Series], axis: TimeAxis, show: Callable[[float], str]) -> str:
    width = number(axis.x(axis.starts[0] + axis.window_ms))
    return "".join(
        f'<rect class="hit" x="{number(axis.x(start))}" width="{width}" height="100">'
        f"<title>{text(_tip(series, index, clock_time(start, axis.window_ms), show))}</title></rect>"
        for index, start in enumerate(axis.starts)
    )


def _tip(series: Sequence[Series], index: int, when: str, show: Callable[[float], str]) -> str:
    told = [
        f"{one.name}: {show(value)}" for one in reversed(series) if (value := one.values[index]) is not None and value
    ]
    return "\n".join([when, *told])


def legend(series: Sequence[Series]) -> str:
    return (
        '<ul class="legend">' + "".join(f'<li class="{one.colour}">{text(one.name)}</li>' for one in series) + "</ul>"
    )


# --- small ones ------------------------------------------------------------------------------------------------------


def bar(share: float, colour: str = "c0", tip: str = "") -> str:
    """A part of the whole, as long as the room is wide."""
    width = number(min(max(share, 0.0), 1.0) * WIDTH)
    return (
        '<svg class="bar" viewBox="0 0 1000 1" preserveAspectRatio="none" aria-hidden="true">'
        f'<rect class="track" width="1000" height="1"/><rect class="area {colour}" width="{width}" height="1"/>'
        f"<title>{text(tip)}</title></svg>"
    )


def sparkline(values: Sequence[float], colour: str) -> str:
    """The shape of a row of values, without axes."""
    top = max(values, default=0) or 1
    width = WIDTH / max(len(values), 1)
    points = [
        f"{number(width * (index + side))} {number(HEIGHT - value / top * HEIGHT)}"
        for index, value in enumerate(values)
        for side in (0, 1)
    ]
    return (
        '<svg class="spark" viewBox="0 0 1000 100" preserveAspectRatio="none" aria-hidden="true">'
        f'<path class="area {colour}" d="M0 100L{"L".join(points)}L1000 100Z"/></svg>'
    )


class Range(NamedTuple):
    """From usual to rare, for one line of `ranges`."""

    usual: float
    rare: float
    most: float
    colour: str
    tip: str


def ranges(rows: Sequence[tuple[str, Range]], show: Callable[[float], str]) -> str:
    """One line for each name on one logarithmic scale: median as a dot, then the high percentiles and the maximum."""
    scale = log_scale([value for _, one in rows for value in (one.usual, one.rare, one.most)])
    body = "".join(f"<dt>{text(name)}</dt><dd>{_range(one, scale)}</dd>" for name, one in rows)
    labels = "".join(
        f'<span style="left:{number(scale.height(tick))}%"{_edge(scale.height(tick) * 10)}>{text(show(tick))}</span>'
        for tick in scale.ticks
    )
    return f'<dl class="ranges">{body}<dt></dt><dd class="x">{labels}</dd></dl>'


def _range(one: Range, scale: Scale) -> str:
    usual, rare, most = (number(scale.height(value) * 10) for value in (one.usual, one.rare, one.most))
    grid = "".join(f"M{number(scale.height(tick) * 10)} 0V100" for tick in scale.ticks)
    return (
        '<svg viewBox="0 0 1000 100" preserveAspectRatio="none">'
        f'<path class="grid" d="{grid}"/><path class="faint {one.colour}" d="M{usual} 50H{most}"/>'
        f'<path class="thick {one.colour}" d="M{usual} 50H{rare}"/><path class="dot {one.colour}" d="M{usual} 50h0"/>'
        f'<rect class="hit" width="1000" height="100"><title>{text(one.tip)}</title></rect></svg>'
    )


class Cell(NamedTuple):
    #: 1 is as it should be; half and double are equally far from it.
    factor: float
    words: str
    tip: str


def heat(rows: Sequence[tuple[str, Sequence[Cell]]]) -> str:
    """A row of cells for each name: below 1 in cold colours, above 1 in warm ones."""
    widest = max((len(cells) for _, cells in rows), default=0)
    return '<div class="scroll"><table class="heat"><tbody>' + "".join(
        f"<tr><th scope=row>{text(name)}</th>{''.join(map(_cell, cells))}{_padding(widest - len(cells))}</tr>"
        for name, cells in rows
    ) + "</tbody></table></div>"  # fmt: skip


def _padding(cells: int) -> str:
    return f'<td colspan="{cells}"></td>' if cells > 0 else ""


def _cell(cell: Cell) -> str:
    how = "hot" if cell.factor > 1 else "cold"
    far = min(abs(math.log2(max(cell.factor, 1e-9))) / 2, 1.0)
    return (
        f'<td title="{text(cell.tip)}"><svg viewBox="0 0 40 30" aria-hidden="true">'
        f'<rect class="{how}" width="40" height="30" rx="4" fill-opacity="{far * 0.85:.2f}"/>'
        f'<text x="20" y="19.5">{text(cell.words)}</text></svg></td>'
    )
