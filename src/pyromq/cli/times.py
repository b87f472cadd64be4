"""Times as people type them: `2026-11-15 14:30`, `14:30`, or how long ago: `90s`, `10m`, `2h`, `3d`. Pure."""

from __future__ import annotations

import re
from datetime import datetime, timedelta

_AGO = re.compile(r"(?P<count>\d{1,6})\s*(?P<unit>s|m|min|h|d)(?:\s+ago)?")
_UNITS = {"s": "seconds", "m": "minutes", "min": "minutes", "h": "hours", "d": "days"}

HELP = "2026-11-15 14:30, 14:30 for today, or 10m, 2h, 3d before now"


def parse_moment(text: str, now: datetime) -> datetime:
    """Local time unless it says otherwise. Raises ValueError with what would work."""
    text = text.strip()
    if text == "now":
        return now
    if found := _AGO.fullmatch(text):
        return now - timedelta(**{_UNITS[found["unit"]]: int(found["count"])})
    try:
        if re.fullmatch(r"\d\d?:\d\d(?::\d\d)?", text):
            hour, minute, *second = map(int, text.split(":"))
            return now.replace(hour=hour, minute=minute, second=second[0] if second else 0, microsecond=0)
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise ValueError(f"{text!r} is no time: write {HELP}") from None
    return moment if moment.tzinfo is not None else moment.replace(tzinfo=now.tzinfo)
