"""Words for reports: numbers with what they count, times as people read them."""

from __future__ import annotations

from datetime import datetime


def counted(number: int, one: str) -> str:
    """1 message, 2 messages."""
    return f"{number} {one}" if number == 1 else f"{number} {one}s"


def tables(number: int) -> str:
    """Describe the small files for people who do not know them."""
    return f"{counted(number, 'small file')} (topics, groups, progress)"


def moment(time_ms: int) -> str:
    """Of this machine's clock, with its zone."""
    try:
        return f"{datetime.fromtimestamp(time_ms / 1000).astimezone():%Y-%m-%d %H:%M:%S %z}"
    except (OverflowError, ValueError, OSError):
        return f"{time_ms} ms"
