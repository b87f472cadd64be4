"""The animated picture of the demo: `scripts/record_demo.py`."""

from __future__ import annotations

import asyncio
import runpy
import xml.etree.ElementTree as ElementTree

from rich.text import Text

from pages import ROOT
from pyromq.demo.frame import Frame
from pyromq.demo.script import LEAST_SECONDS

RECORDER = runpy.run_path(str(ROOT / "scripts" / "record_demo.py"))
COLUMNS, film = RECORDER["COLUMNS"], RECORDER["film"]
SVG = "{http://www.w3.org/2000/svg}"


def test_a_film_shows_each_frame_for_its_time_and_each_line_once() -> None:
    same, other = Text("the same & <always>", "bold red"), Text("│▄█─╯ other", "dim")
    root = ElementTree.fromstring(film([(same, 1.0), (same, 1.0), (other, 2.0)], "a title"))
    style, lines = root.find(f"{SVG}style"), root.findall(f"{SVG}defs/{SVG}g")
    assert style is not None
    assert style.text is not None
    assert "animation:film 4s step-end infinite" in style.text
    assert "50.000%{transform:translateY(-864px)}" in style.text
    assert "prefers-reduced-motion" in style.text
    assert ["".join(one.itertext()) for one in lines] == ["the same & <always>", "other"]
    assert len(root.findall(f".//{SVG}use")) == 3


def test_blocks_and_borders_of_a_film_are_drawn() -> None:
    root = ElementTree.fromstring(film([(Text("██▄ │"), 1.0)], "a title"))
    paths = [one.get("d", "") for one in root.findall(f"{SVG}defs//{SVG}path")]
    assert paths == ["M0 0h18v18h-18zM18 9h9v9h-9z", "M40.5 0v18"]


def test_a_film_has_the_size_of_a_terminal() -> None:
    root = ElementTree.fromstring(film([(Text("x" * 200), 1.0)], "a title"))
    assert all(len("".join(one.itertext())) <= COLUMNS for one in root.findall(f"{SVG}defs/{SVG}g"))


def test_the_picture_shows_all_acts_and_is_small() -> None:
    frames: list[Frame] = []
    outcome = asyncio.run(RECORDER["perform"](LEAST_SECONDS, frames))
    text = RECORDER["picture"](frames, outcome)
    assert ElementTree.fromstring(text).tag == "{http://www.w3.org/2000/svg}svg"
    assert len(text) < 200_000
    assert all(f"act {act} of 4" in text for act in (1, 2, 3, 4))
    assert "nothing lost" in text
    assert "<script" not in text
