"""Retention: the removed segments, and refused messages, as a decision from the input."""

from __future__ import annotations

from datetime import datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyromq.config import RetentionConfig
from pyromq.store.retention import HOUR_MS, Decision, SegmentAge, decide

NOW = 1_700_000_000_000
TOTAL = 1000
DEFAULT = RetentionConfig(max_age_hours=72)
FORCED = RetentionConfig(max_age_hours=72, delete_unexpired=True)


def aged(*hours: float, size: int = 100) -> list[SegmentAge]:
    return [SegmentAge(size, int(NOW - hour * HOUR_MS)) for hour in hours]


@pytest.mark.parametrize(
    ("config", "ages", "share", "refusing", "decision"),
    [
        (DEFAULT, [], 0.5, False, Decision(0, 0, False)),
        (DEFAULT, [71, 1], 0.5, False, Decision(0, 0, False)),
        (DEFAULT, [72, 71], 0.5, False, Decision(1, 0, False)),
        (DEFAULT, [100, 90, 80, 1], 0.5, False, Decision(3, 0, False)),
        (DEFAULT, [1, 100], 0.5, False, Decision(0, 0, False)),  # only from the beginning: the log has no holes
        (DEFAULT, [1, 1], 0.9, False, Decision(0, 0, True)),
        (DEFAULT, [1, 1], 0.8999, False, Decision(0, 0, False)),
        (DEFAULT, [1, 1], 0.86, True, Decision(0, 0, True)),  # refused once, it stays so down to 85 %
        (DEFAULT, [1, 1], 0.849, True, Decision(0, 0, False)),
        (DEFAULT, [80, 1], 0.95, False, Decision(1, 0, False)),  # the removal makes room
        (DEFAULT, [80, 1], 0.95, True, Decision(1, 0, True)),
        (DEFAULT, [80, 80, 1], 1.0, True, Decision(2, 0, False)),
        (FORCED, [1, 1, 1], 0.95, False, Decision(1, 1, False)),
        (FORCED, [80, 1, 1], 1.15, False, Decision(3, 2, False)),
        (FORCED, [1, 1], 0.5, False, Decision(0, 0, False)),
        (FORCED, [1], 1.5, False, Decision(1, 1, True)),
    ],
)
def test_table(config: RetentionConfig, ages: list[float], share: float, refusing: bool, decision: Decision) -> None:
    assert decide(config, aged(*ages), share, TOTAL, refusing, NOW) == decision


segments = st.lists(st.builds(SegmentAge, st.integers(1, 400), st.integers(NOW - 200 * HOUR_MS, NOW + HOUR_MS)))
shares = st.floats(0, 1)


@given(segments, shares, st.booleans())
def test_unexpired_data_is_never_given_up_by_default(ages: list[SegmentAge], share: float, refusing: bool) -> None:
    decision = decide(DEFAULT, ages, share, TOTAL, refusing, NOW)
    assert decision.remove_unexpired == 0
    assert all(NOW - segment.newest_ms >= 72 * HOUR_MS for segment in ages[: decision.remove])
    assert decision.remove == len(ages) or NOW - ages[decision.remove].newest_ms < 72 * HOUR_MS


@given(segments, shares, st.booleans())
def test_when_it_may_be_given_up_no_more_goes_than_must(ages: list[SegmentAge], share: float, refusing: bool) -> None:
    expired = decide(DEFAULT, ages, share, TOTAL, refusing, NOW).remove
    decision = decide(FORCED, ages, share, TOTAL, refusing, NOW)
    assert decision.remove == expired + decision.remove_unexpired
    if decision.remove_unexpired:
        kept = share - sum(segment.size for segment in ages[: decision.remove - 1]) / TOTAL
        assert kept >= FORCED.refuse_at - 1e-9, "without the last one it would not have been enough"


@given(st.lists(shares, max_size=30))
def test_between_the_marks_nothing_changes(history: list[float]) -> None:
    refusing = False
    for share in history:
        before = refusing
        refusing = decide(DEFAULT, [], share, TOTAL, refusing, NOW).refuse_appends
        if DEFAULT.resume_below <= share < DEFAULT.refuse_at:
            assert refusing is before
        else:
            assert refusing is (share >= DEFAULT.refuse_at)


def test_a_disk_of_no_size_refuses_without_dividing_by_it() -> None:
    assert decide(DEFAULT, aged(1), 1.0, 0, False, NOW) == Decision(0, 0, True)


@pytest.mark.parametrize(
    ("hours_off", "share", "removed"),
    [
        (0, 0.5, 1),  # it is the hour
        (1, 0.5, 0),  # it is not
        (1, 0.75, 1),  # it is not, and the room is needed
    ],
)
def test_expired_segments_wait_for_their_hour_unless_room_is_needed(hours_off: int, share: float, removed: int) -> None:
    now_hour = datetime.fromtimestamp(NOW / 1000).astimezone().hour
    config = RetentionConfig(max_age_hours=72, delete_hours=((now_hour + hours_off) % 24,))
    assert decide(config, aged(80, 1), share, TOTAL, False, NOW).remove == removed
