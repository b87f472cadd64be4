"""Measure how plainly the project is written: comments, docstrings and Markdown.

    python scripts/prose.py                       figures of each area and of the whole project
    python scripts/prose.py --lines docs src/pyromq/cli    every line to mend below these paths

Two figures per 1,000 words: vague words (persons instead of components, relative clauses instead of nouns) and lines
that open with What, Where, How, Who, Whether or When and are not a question. Libraries that read well (h11, httpx,
starlette, aiokafka, trio, uvicorn) have 0 to 0.7 and 0 to 1.1. `tests/test_prose.py` lets neither figure rise.
"""

from __future__ import annotations

import argparse
import ast
import io
import re
import sys
import tokenize
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
FOLDERS = ("benchmarks", "docs", "examples", "scripts", "src", "tests")
SUFFIXES = {".md", ".py", ".pyx", ".pxd"}

VAGUE = re.compile(
    r"\b(somebody|nobody|someone|whoever|whom|whomever|anew|no sooner|so many|so much|so long|as it were|the others?'s|"
    r"by itself|meanwhile|beside|is told|are told|is let go|comes? back|goes on|"
    r"what (?:is|was|has|came|comes|gathers|may|must|waits))\b",
    re.IGNORECASE,
)
OPENER = re.compile(r"^(?:what|where|how|who|whoever|whom|whether|when) (?!.*\?$)", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Line:
    """One line of prose: a comment, a line of a docstring, or a line of Markdown outside code blocks."""

    path: Path
    number: int
    text: str

    @property
    def words(self) -> int:
        return len(self.text.split())

    @property
    def vague(self) -> int:
        return len(VAGUE.findall(self.text))

    @property
    def opener(self) -> bool:
        return OPENER.match(self.text) is not None

    def __str__(self) -> str:
        return f"{self.path.relative_to(ROOT)}:{self.number}: {self.text}"


@dataclass(slots=True)
class Figures:
    """Counts of one area."""

    words: int = 0
    vague: int = 0
    openers: int = 0

    def add(self, line: Line) -> None:
        self.words += line.words
        self.vague += line.vague
        self.openers += line.opener

    @property
    def vague_rate(self) -> float:
        """Vague words per 1,000 words."""
        return self.vague * 1000 / max(self.words, 1)

    @property
    def opener_rate(self) -> float:
        """Openers per 1,000 words."""
        return self.openers * 1000 / max(self.words, 1)


def files() -> list[Path]:
    """Every file of the project that holds prose, except what a build made."""
    below = (path for folder in FOLDERS for path in (ROOT / folder).rglob("*"))
    found = (path for path in (*ROOT.glob("*"), *below) if path.suffix in SUFFIXES and path.is_file())
    return sorted(path for path in found if "__pycache__" not in path.parts)


def lines_of(path: Path) -> Iterator[Line]:
    """The prose of one file."""
    text = path.read_text(encoding="utf-8")
    read = {".md": _markdown, ".py": _python}.get(path.suffix, _cython)
    return (Line(path, number, line) for number, line in read(text))


def _markdown(text: str) -> Iterator[tuple[int, str]]:
    in_code = False
    for number, line in enumerate(text.splitlines(), 1):
        fence = line.startswith("```")
        in_code ^= fence
        if not in_code and not fence and line.strip():
            yield number, line.strip()


def _cython(text: str) -> Iterator[tuple[int, str]]:
    for number, line in enumerate(text.splitlines(), 1):
        _, mark, comment = line.partition("#")
        if mark:
            yield number, comment.strip(" :")


def _python(text: str) -> Iterator[tuple[int, str]]:
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT:
            yield token.start[0], token.string.lstrip("#: ")
    for node in ast.walk(ast.parse(text)):
        if not isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        docstring = ast.get_docstring(node, clean=False)
        if docstring is not None:
            first = node.body[0].lineno
            yield from ((first + i, line.strip()) for i, line in enumerate(docstring.splitlines()) if line.strip())


def area_of(path: Path) -> str:
    """`docs/guides`, `src/pyromq/store`, `tests/store`, or the file itself at the top of the project."""
    folders = path.relative_to(ROOT).parts[:-1]
    return "/".join(folders[: 3 if folders[:1] == ("src",) else 2]) or path.name


def measure(lines: Iterable[Line]) -> dict[str, Figures]:
    """The figures of each area, and of the whole as `total`."""
    areas: dict[str, Figures] = {}
    total = Figures()
    for line in lines:
        areas.setdefault(area_of(line.path), Figures()).add(line)
        total.add(line)
    return {**dict(sorted(areas.items())), "total": total}


def project() -> list[Line]:
    """Every line of prose of the project."""
    return [line for path in files() for line in lines_of(path)]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--lines", action="store_true", help="print every line to mend")
    parser.add_argument("paths", nargs="*", type=Path, help="only below these files and folders")
    options = parser.parse_args()
    chosen = [path.resolve() for path in options.paths] or [ROOT]
    lines = [line for line in project() if any(line.path.is_relative_to(path) for path in chosen)]
    if options.lines:
        for line in lines:
            if line.vague or line.opener:
                print(line)
        return 0
    print(f"{'':40} {'words':>7} {'vague':>7} {'openers':>8}   (per 1,000 words)")
    for area, figures in measure(lines).items():
        print(f"{area:40} {figures.words:7} {figures.vague_rate:7.1f} {figures.opener_rate:8.1f}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
