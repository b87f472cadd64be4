"""Standard output and error that take every character: an ASCII terminal (`LC_ALL=C`), or a pipe of another encoding,
gets an approximation or an escape instead of a traceback."""

from __future__ import annotations

import codecs
import io
import sys

#: The name of the error handler.
APPROXIMATE = "pyromq.approximate"
#: Characters beyond ASCII that the command line prints.
_ALIKE = {
    "✓": "ok", "✗": "x", "…": "...", "µ": "u", "–": "-", "—": "-", "−": "-", "·": "-", "•": "*", "→": "->", "←": "<-",
    "×": "x", "≤": "<=", "≥": ">=", "≈": "~", "\u00a0": " ", "“": '"', "”": '"', "‘": "'", "’": "'", "●": "*", "○": "o",
}  # fmt: skip


def _approximate(error: UnicodeError) -> tuple[str | bytes, int]:
    if not isinstance(error, UnicodeEncodeError):
        raise error
    return "".join(_ascii(each) for each in error.object[error.start : error.end]), error.end


def _ascii(character: str) -> str:
    alike = _ALIKE.get(character)
    if alike is not None:
        return alike
    if "─" <= character <= "╿":  # lines and corners of tables
        return "|" if character in "│┃║" else "-" if character in "─━═╌┄" else "+"
    if "▀" <= character <= "▟" or "⠀" <= character <= "⣿":  # blocks of bars, dots of charts
        return "#"
    return character.encode("ascii", "backslashreplace").decode("ascii")


def take_all_characters() -> None:
    """Make both standard streams print whatever they are given."""
    codecs.register_error(APPROXIMATE, _approximate)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors=APPROXIMATE)
