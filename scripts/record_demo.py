"""Record `pyromq demo` as an animated SVG file without scripts, which browsers play as an image.

    python scripts/record_demo.py docs/demo.svg [--seconds 12]

The frames are one strip that is pulled through the window. Equal lines of all frames are in the file once, which keeps
it small. Blocks and borders are drawn as paths, so that they meet in every font.
"""

from __future__ import annotations

import argparse
import asyncio
import io
import itertools
import random
import secrets
from collections.abc import Iterable, Iterator, Sequence
from html import escape
from pathlib import Path

from rich.console import Console, RenderableType
from rich.segment import Segment
from rich.style import Style
from rich.terminal_theme import SVG_EXPORT_THEME

from pyromq.cli.demo.screen import screen
from pyromq.cli.demo.summary import summary
from pyromq.cli.running import beside
from pyromq.demo.frame import Frame
from pyromq.demo.outcome import Outcome
from pyromq.demo.script import USUAL_SECONDS, script_for
from pyromq.demo.stage import Stage, cluster_for
from pyromq.demo.story import Story
from pyromq.demo.traffic import Visitors

#: Frames of the picture at most, how long each is shown, and how often one is kept.
PICTURE_FRAMES, PICTURE_SECONDS, SUMMARY_SECONDS = 40, 0.6, 8.0
KEEP_SECONDS = 0.25
COLUMNS, LINES = 80, 24
#: One character, and the frame of the window around them, in pixels.
CELL_WIDTH, CELL_HEIGHT, FONT_SIZE = 9, 18, 15
EDGE, TITLE_BAR = 14, 36
BACKGROUND, FOREGROUND = (0x16, 0x18, 0x1D), (0xD5, 0xD8, 0xDE)
#: Brightness of dim text.
DIM = 0.55
BLOCKS = {character: number for number, character in enumerate("▁▂▃▄▅▆▇█", 1)}
#: Borders as paths in a cell of 9 by 18, through its middle.
BORDERS = {
    "─": "M{x} {y}h9", "│": "M{c} {t}v18", "╭": "M{c} {b}v-5q0-4 4.5-4", "╮": "M{c} {b}v-5q0-4-4.5-4",
    "╰": "M{c} {t}v5q0 4 4.5 4", "╯": "M{c} {t}v5q0 4-4.5 4", "━": "M{x} {y}h9",
}  # fmt: skip

Colour = tuple[int, int, int]


def film(moments: Sequence[tuple[RenderableType, float]], title: str) -> str:
    """One frame and its duration in seconds."""
    strip = _Strip()
    frames = [strip.frame(_lines(what)) for what, _ in moments]
    seconds = [each for _, each in moments]
    return _document(strip, frames, seconds, title)


def _lines(what: RenderableType) -> list[list[Segment]]:
    console = Console(
        width=COLUMNS, height=LINES, force_terminal=True, color_system="truecolor", file=io.StringIO(), highlight=False,
        legacy_windows=False,
    )  # fmt: skip
    return console.render_lines(what, console.options.update(width=COLUMNS), pad=False)[:LINES]


class _Strip:
    """Lines and styles, each once."""

    def __init__(self) -> None:
        self.lines: dict[str, str] = {}
        self.styles: dict[str, str] = {}

    def frame(self, lines: Iterable[Sequence[Segment]]) -> str:
        """A frame as references to its lines."""
        uses = []
        for row, line in enumerate(lines):
            drawn = "".join(self._draw(line))
            if drawn:
                name = self.lines.setdefault(drawn, f"l{len(self.lines)}")
                uses.append(f'<use href="#{name}" y="{row * CELL_HEIGHT}"/>')
        return "".join(uses)

    def _draw(self, line: Sequence[Segment]) -> Iterator[str]:
        column = 0
        for text, style, control in line:
            if control:
                continue
            for kind, run in itertools.groupby(text, _kind):
                piece = "".join(run)
                if kind == "text" and piece.strip():
                    yield self._text(piece, column, style or Style.null())
                elif kind == "block":
                    yield f'<path class="{self._style(style, "fill")}" d="{_blocks(piece, column)}"/>'
                elif kind == "border":
                    yield f'<path class="{self._style(style, "stroke")}" d="{_borders(piece, column)}"/>'
                column += len(piece)

    def _text(self, text: str, column: int, style: Style) -> str:
        bare = text.strip()
        x = (column + len(text) - len(text.lstrip())) * CELL_WIDTH
        shown = escape(bare, quote=False)
        return (
            f'<text class="{self._style(style, "text")}" x="{x}" textLength="{len(bare) * CELL_WIDTH}">{shown}</text>'
        )

    def _style(self, style: Style | None, use: str) -> str:
        colour = _hex(_colour(style or Style.null()))
        if use == "stroke":
            rule = f"stroke:{colour};fill:none"
        else:
            rule = f"fill:{colour}" + (";font-weight:700" if use == "text" and style and style.bold else "")
        return self.styles.setdefault(rule, f"s{len(self.styles)}")


def _kind(character: str) -> str:
    return "block" if character in BLOCKS else "border" if character in BORDERS else "text"


def _blocks(text: str, column: int) -> str:
    """Columns of the same height are one rectangle."""
    path = ""
    for character, run in itertools.groupby(text):
        cells = len(list(run))
        height = BLOCKS[character] * CELL_HEIGHT / 8
        path += (
            f"M{column * CELL_WIDTH} {CELL_HEIGHT - height:g}h{cells * CELL_WIDTH}v{height:g}h-{cells * CELL_WIDTH}z"
        )
        column += cells
    return path


def _borders(text: str, column: int) -> str:
    path, middle = "", CELL_HEIGHT // 2
    for character, run in itertools.groupby(text):
        cells, x = len(list(run)), column * CELL_WIDTH
        if character in "─━":
            path += f"M{x} {middle}h{cells * CELL_WIDTH}"
        else:
            path += BORDERS[character].format(x=x, y=middle, c=x + CELL_WIDTH / 2, t=0, b=CELL_HEIGHT)
        column += cells
    return path


def _colour(style: Style) -> Colour:
    found = style.color.get_truecolor(SVG_EXPORT_THEME) if style.color and not style.color.is_default else FOREGROUND
    if not style.dim:
        return (found[0], found[1], found[2])
    red, green, blue = (round(there * DIM + under * (1 - DIM)) for there, under in zip(found, BACKGROUND, strict=True))
    return (red, green, blue)


def _hex(colour: Colour) -> str:
    return "#{:02x}{:02x}{:02x}".format(*colour)


def _document(strip: _Strip, frames: Sequence[str], seconds: Sequence[float], title: str) -> str:
    wide, high = COLUMNS * CELL_WIDTH, LINES * CELL_HEIGHT
    width, height = wide + 2 * EDGE, high + TITLE_BAR + EDGE
    rules = "".join(f".{name}{{{rule}}}" for rule, name in strip.styles.items())
    lines = "".join(f'<g id="{name}">{drawn}</g>' for drawn, name in strip.lines.items())
    pulled = "".join(f'<g transform="translate(0 {index * high})">{each}</g>' for index, each in enumerate(frames))
    lights = "".join(
        f'<circle cx="{22 + 20 * index}" cy="18" r="6" fill="{colour}"/>'
        for index, colour in enumerate(("#ff5f57", "#febc2e", "#28c840"))
    )
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" '
        f'role="img" aria-label="{escape(title)}"><style>'
        f"text{{font:{FONT_SIZE}px ui-monospace,SFMono-Regular,Menlo,Consolas,'DejaVu Sans Mono',monospace;"
        f"white-space:pre;dominant-baseline:central;transform:translateY({CELL_HEIGHT / 2:g}px)}}"
        f"{rules}{_motion(seconds, high)}</style><defs>{lines}</defs>"
        f'<rect width="{width}" height="{height}" rx="10" fill="{_hex(BACKGROUND)}"/>{lights}'
        f'<text x="{width // 2}" y="9" text-anchor="middle" fill="#8a8f98">{escape(title)}</text>'
        f'<svg x="{EDGE}" y="{TITLE_BAR}" width="{wide}" height="{high}"><g id="film">{pulled}</g></svg></svg>\n'
    )


def _motion(seconds: Sequence[float], high: int) -> str:
    """Each frame for its time, again and again; the last one where people want nothing to move."""
    whole, last = sum(seconds), -high * (len(seconds) - 1)
    begins = [0.0, *itertools.accumulate(seconds)][: len(seconds)]
    steps = "".join(
        f"{begin / whole * 100:.3f}%{{transform:translateY({-high * index}px)}}" for index, begin in enumerate(begins)
    )
    return (
        f"#film{{animation:film {whole:g}s step-end infinite}}"
        f"@keyframes film{{{steps}100%{{transform:translateY({last}px)}}}}"
        f"@media(prefers-reduced-motion:reduce){{#film{{animation:none;transform:translateY({last}px)}}}}"
    )


# --- the demo --------------------------------------------------------------------------------------------------------


async def perform(seconds: float, frames: list[Frame]) -> Outcome:
    """Run the demo on a broker of its own, and keep a frame every `KEEP_SECONDS`."""
    run, rng = secrets.token_hex(3), random.Random()  # noqa: S311  it spreads the visitors
    script, topic = script_for(seconds), f"demo-signups-{run}"
    async with cluster_for(None, topic) as cluster, Stage(cluster, topic, script.patience_s, rng).open() as stage:
        story = Story(stage, script, Visitors(run, rng))
        async with beside(_keep_frames(story, frames)):
            return await story.tell()


async def _keep_frames(story: Story, frames: list[Frame]) -> None:
    while True:
        await asyncio.sleep(KEEP_SECONDS)
        frames.append(story.frame)


def picture(frames: list[Frame], outcome: Outcome) -> str:
    """The frames one after the other, then the summary."""
    every = max(1, -(-len(frames) // PICTURE_FRAMES))
    moments = [(screen(frame, COLUMNS, LINES), PICTURE_SECONDS) for frame in frames[::every]]
    return film([*moments, (summary(outcome, "pyromq"), SUMMARY_SECONDS)], title="pyromq demo")


def main() -> None:
    parser = argparse.ArgumentParser(description="Record `pyromq demo` as an animated SVG file.")
    parser.add_argument("file", type=Path)
    parser.add_argument("--seconds", type=float, default=USUAL_SECONDS)
    given = parser.parse_args()
    frames: list[Frame] = []
    outcome = asyncio.run(perform(given.seconds, frames))
    given.file.write_text(picture(frames, outcome), encoding="utf-8")


if __name__ == "__main__":
    main()
