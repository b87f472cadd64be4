"""What Java takes for the blanks around a text."""

from __future__ import annotations

_BLANKS = "".join(map(chr, range(0x21)))


def java_trim(text: str) -> str:
    """As `String.trim`: every character up to the space goes, and no other, not even a wide space."""
    return text.strip(_BLANKS)
