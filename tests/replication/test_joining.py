"""What a replica that comes back may keep."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from pyromq.replication.joining import (
    CutBack,
    Epoch,
    GoOn,
    LogExtent,
    StartOver,
    begin_epoch,
    common_end,
    first_position,
    way_back,
)


def test_a_replica_that_was_only_away_goes_on() -> None:
    assert way_back(LogExtent(0, 900), LogExtent(0, 500)) == GoOn(500)


def test_an_empty_replica_gets_everything() -> None:
    assert way_back(LogExtent(300, 900), LogExtent(0, 0)) == GoOn(300)


def test_an_old_primary_loses_what_nobody_else_has() -> None:
    now = LogExtent(0, 900, (Epoch(1, 0), Epoch(2, 600)))
    old = LogExtent(0, 700, (Epoch(1, 0),))
    assert way_back(now, old) == CutBack(600, 700)


def test_one_that_was_away_too_long_starts_over_and_says_why() -> None:
    way = way_back(LogExtent(500, 900), LogExtent(0, 400))
    assert isinstance(way, StartOver)
    assert way.position == 500
    assert "400" in way.reason


def test_logs_that_share_no_epoch_share_nothing() -> None:
    way = way_back(LogExtent(0, 900, (Epoch(3, 0),)), LogExtent(0, 400, (Epoch(2, 0),)))
    assert isinstance(way, StartOver)


def test_rocketmqs_primary_begins_with_its_last_file() -> None:
    assert first_position(0, 0, 5000, 4096, whole_log=False) == 4096
    assert first_position(0, 1024, 5000, 4096, whole_log=True) == 1024
    assert first_position(3000, 1024, 5000, 4096, whole_log=False) == 3000
    assert first_position(100, 1024, 5000, 4096, whole_log=False) == 1024
    assert first_position(5001, 1024, 5000, 4096, whole_log=False) is None


@st.composite
def histories(draw: st.DrawFn) -> tuple[list[int], list[int]]:
    """Two logs of one group, byte for byte: each byte is the epoch it was written in."""
    shared: list[int] = []
    for epoch in range(1, draw(st.integers(1, 4)) + 1):
        shared += [epoch] * draw(st.integers(1, 5))
    last = shared[-1]
    one = shared + [last + 1] * draw(st.integers(0, 5))
    other = shared[: draw(st.integers(1, len(shared)))]
    other = other + ([last + 2] * draw(st.integers(0, 3)) if draw(st.booleans()) else [])
    return one, other


def extent(log: list[int]) -> LogExtent:
    starts: dict[int, int] = {}
    for position, epoch in enumerate(log):
        starts.setdefault(epoch, position)
    return LogExtent(0, len(log), tuple(Epoch(number, start) for number, start in starts.items()))


@given(histories())
def test_what_is_kept_is_the_primarys_and_as_long_as_it_can_be(logs: tuple[list[int], list[int]]) -> None:
    one, other = logs
    end = common_end(extent(one), extent(other))
    same = next((at for at, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other)))
    assert end == same


def test_a_log_that_lost_its_end_in_a_crash_goes_on_where_it_ends() -> None:
    """It knows of an epoch of which it has no byte any more."""
    replica = LogExtent(0, 50, (Epoch(1, 0), Epoch(2, 100)))
    assert way_back(LogExtent(0, 300, (Epoch(1, 0), Epoch(3, 200))), replica) == GoOn(50)


def test_who_begins_to_lead_forgets_epochs_of_which_it_has_no_byte() -> None:
    behind = LogExtent(0, 50, (Epoch(1, 0), Epoch(2, 100)))
    leader = LogExtent(0, 50, begin_epoch(behind, 3))
    assert leader.epochs == (Epoch(1, 0), Epoch(3, 50))
    old = LogExtent(0, 150, (Epoch(1, 0), Epoch(2, 100)))
    assert way_back(leader, old) == CutBack(50, 150)


def test_an_epoch_that_was_lost_in_a_crash_does_not_make_a_leader() -> None:
    lost = LogExtent(0, 2036, (Epoch(2, 0), Epoch(3, 2750)))
    whole = LogExtent(0, 2750, (Epoch(2, 0),))
    assert whole.standing > lost.standing
