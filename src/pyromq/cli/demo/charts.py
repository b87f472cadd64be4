"""Small charts out of characters: columns of eighths, bars of parts."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from rich.text import Text

EIGHTHS = " ▁▂▃▄▅▆▇█"
FULL = "█"


def resampled(values: Sequence[float], width: int) -> list[float]:
    """As many columns as there is room for; each shows the largest of the values that it stands for."""
    count = len(values)
    if count <= width:
        return list(values)
    edges = [index * count // width for index in range(width + 1)]
    return [max(values[start:end]) for start, end in pairwise(edges)]


def columns(values: Sequence[float], width: int, top: float, style: str, height: int = 1) -> list[Text]:
    """Return the rows of a chart, top row first. Values above zero are always visible."""
    eighths = [
        0 if value <= 0 else max(1, min(height * 8, round(value / (top or 1) * height * 8)))
        for value in resampled(values, width)
    ]
    rows = []
    for row in range(height - 1, -1, -1):
        line = "".join(EIGHTHS[max(0, min(8, each - row * 8))] for each in eighths)
        rows.append(Text(line.ljust(width), style, no_wrap=True))
    return rows


def parts(values: Sequence[tuple[str, float, str]], width: int, whole: float) -> tuple[Text, Text]:
    """A bar of coloured parts, and what fits of their names and milliseconds below.

    Each part is (name, seconds, style); a bar of `whole` seconds is as wide as there is room.
    """
    bar, labels = Text(no_wrap=True), Text(no_wrap=True)
    end = 0.0
    for index, (name, seconds, style) in enumerate(values):
        begin = round(end)
        end += seconds / (whole or 1) * width
        cells = max(1, round(end) - begin)
        room = cells - 1 if index < len(values) - 1 else width - begin
        bar.append(FULL * cells, style)
        labels.append(_fitting(name, seconds * 1000, room).ljust(cells), style)
    return bar, labels


def _fitting(name: str, milliseconds: float, room: int) -> str:
    full = f"{name} {milliseconds:.0f}" if milliseconds >= 9.5 else f"{name} {milliseconds:.1f}"
    return full if len(full) <= room else name[: max(room, 0)]
