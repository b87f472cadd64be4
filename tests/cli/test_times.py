"""Times as people type them."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone

import pytest

from pyromq.cli.times import parse_moment

NOW = datetime(2026, 11, 15, 14, 30, 5, 6, tzinfo=timezone(timedelta(hours=1)))


@pytest.mark.parametrize(
    ("text", "moment"),
    [
        ("now", NOW),
        ("90s", NOW - timedelta(seconds=90)),
        ("10m", NOW - timedelta(minutes=10)),
        ("10 min ago", NOW - timedelta(minutes=10)),
        (" 2h ", NOW - timedelta(hours=2)),
        ("3d", NOW - timedelta(days=3)),
        ("9:05", NOW.replace(hour=9, minute=5, second=0, microsecond=0)),
        ("09:05:07", NOW.replace(hour=9, minute=5, second=7, microsecond=0)),
        ("2026-11-14", datetime(2026, 11, 14, tzinfo=NOW.tzinfo)),
        ("2026-11-14 08:00", datetime(2026, 11, 14, 8, tzinfo=NOW.tzinfo)),
        ("2026-11-14T08:00:01.5Z", datetime(2026, 11, 14, 8, 0, 1, 500_000, tzinfo=UTC)),
    ],
)
def test_a_time(text: str, moment: datetime) -> None:
    assert parse_moment(text, NOW) == moment


@pytest.mark.parametrize("text", ["", "soon", "25:00", "10 weeks", "-5m", "2026-13-01", "99:99"])
def test_what_is_no_time_says_what_would_be(text: str) -> None:
    with pytest.raises(ValueError, match="is no time: write"):
        parse_moment(text, NOW)
