"""The measure of plain language (`scripts/prose.py`), and the ceilings of the project, which only fall."""

from __future__ import annotations

import runpy
from pathlib import Path
from typing import Any

import pytest

from pages import ROOT

PROSE = runpy.run_path(str(ROOT / "scripts" / "prose.py"))

#: Per 1,000 words of the whole project. Lower both to the measured figures after mending lines; raise neither.
VAGUE_CEILING = 1.1
OPENERS_CEILING = 0.8
#: A failure names at most this many lines.
LINES_SHOWN = 40


@pytest.fixture(scope="module")
def lines() -> list[Any]:
    return list(PROSE["project"]())


@pytest.mark.parametrize(
    ("figure", "rate", "ceiling"), [("vague", "vague_rate", VAGUE_CEILING), ("opener", "opener_rate", OPENERS_CEILING)]
)
def test_the_project_gets_no_vaguer(lines: list[Any], figure: str, rate: str, ceiling: float) -> None:
    measured = round(getattr(PROSE["measure"](lines)["total"], rate), 1)
    assert measured <= ceiling, "\n".join(
        [
            f"{figure}: {measured} per 1,000 words, the ceiling is {ceiling}. Mend lines that you added, or others:",
            *[str(line) for line in lines if getattr(line, figure)][:LINES_SHOWN],
            "`python scripts/prose.py --lines PATH` prints the lines of one file or folder.",
        ]
    )


def texts(tmp_path: Path, name: str, text: str) -> list[tuple[int, str]]:
    path = tmp_path / name
    path.write_text(text, encoding="utf-8")
    return sorted((line.number, line.text) for line in PROSE["lines_of"](path))


def test_prose_of_python_is_its_comments_and_docstrings(tmp_path: Path) -> None:
    text = '"""A module."""\n\nx = "not prose"  #: A unit.\n\n\ndef f():\n    """One.\n\n    Two.\n    """\n'
    assert texts(tmp_path, "a.py", text) == [(1, "A module."), (3, "A unit."), (7, "One."), (9, "Two.")]


def test_prose_of_cython_is_its_comments(tmp_path: Path) -> None:
    assert texts(tmp_path, "a.pyx", "cdef int n = 1  # a count\n#: bytes\n") == [(1, "a count"), (2, "bytes")]


def test_prose_of_markdown_leaves_out_code_blocks(tmp_path: Path) -> None:
    assert texts(tmp_path, "a.md", "# A page\n\n```\nnobody\n```\nText.\n") == [(1, "# A page"), (6, "Text.")]


@pytest.mark.parametrize(
    ("text", "vague", "opener"),
    [
        ("The flusher syncs the log.", 0, False),
        ("Somebody waits for what is appended.", 2, False),
        ("How long a read window stays valid.", 0, True),
        ("How long does a read window stay valid?", 0, False),
    ],
)
def test_a_line_is_counted(text: str, vague: int, opener: bool) -> None:
    line = PROSE["Line"](ROOT / "README.md", 1, text)
    assert (line.vague, line.opener) == (vague, opener)


@pytest.mark.parametrize(
    ("path", "area"),
    [
        ("README.md", "README.md"),
        ("docs/guides/store.md", "docs/guides"),
        ("src/pyromq/store/log/reader.py", "src/pyromq/store"),
        ("tests/store/test_log.py", "tests/store"),
        ("tests/test_prose.py", "tests"),
    ],
)
def test_the_area_of_a_file(path: str, area: str) -> None:
    assert PROSE["area_of"](ROOT / path) == area


def test_figures_are_per_thousand_words() -> None:
    line = PROSE["Line"](ROOT / "README.md", 1, "nobody " + "word " * 499)
    figures = PROSE["measure"]([line])
    assert figures["README.md"].vague_rate == figures["total"].vague_rate == 2.0
    assert figures["total"].opener_rate == 0.0
