"""The part of its log that a returning replica may keep."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from pyromq.replication.log_matching import (
    CutBack,
    Epoch,
    GoOn,
    LogExtent,
    StartOver,
    are_related,
    begin_epoch,
    common_end,
    first_position,
    has_our_tail,
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
    leader = LogExtent(0, 50, begin_epoch(behind, 3, "b.1"))
    assert leader.epochs == (Epoch(1, 0), Epoch(3, 50, "b.1"))
    old = LogExtent(0, 150, (Epoch(1, 0), Epoch(2, 100)))
    assert way_back(leader, old) == CutBack(50, 150)


def test_who_begins_to_lead_without_a_byte_still_knows_whom_it_followed() -> None:
    master = (Epoch(1, 0, "a.1"),)
    promoted = LogExtent(0, 0, begin_epoch(LogExtent(0, 0, master), 2, "b.1"))
    assert promoted.epochs == (Epoch(1, 0, "a.1"), Epoch(2, 0, "b.1"))
    old = LogExtent(0, 300, master)
    assert are_related(promoted, old)
    assert isinstance(way_back(LogExtent(0, 500, promoted.epochs), old), StartOver)
    again = begin_epoch(promoted, 2, "b.2")
    assert again == (Epoch(1, 0, "a.1"), Epoch(2, 0, "b.2")), "the list does not grow with every start"


def test_an_epoch_that_was_lost_in_a_crash_does_not_make_a_leader() -> None:
    lost = LogExtent(0, 2036, (Epoch(2, 0), Epoch(3, 2750)))
    whole = LogExtent(0, 2750, (Epoch(2, 0),))
    assert whole.standing > lost.standing


def test_a_primary_that_was_restarted_is_somebody_else() -> None:
    """It lost its end in a crash and leads on from there: a replica that has more has bytes that will be other ones."""
    before = LogExtent(0, 300, (Epoch(1, 0, "a.1"),))
    after = LogExtent(0, 450, begin_epoch(LogExtent(0, 200, before.epochs), 1, "a.2"))
    assert way_back(after, before) == CutBack(200, 300)
    assert way_back(after, LogExtent(0, 150, before.epochs)) == GoOn(150)


def test_equal_numbers_and_places_are_not_enough() -> None:
    one = LogExtent(0, 300, (Epoch(1, 0, "a.1"), Epoch(2, 100, "a.2")))
    other = LogExtent(0, 200, (Epoch(1, 0, "a.1"), Epoch(2, 100, "b.1")))
    assert way_back(one, other) == CutBack(100, 200)


def test_who_copied_our_last_life_has_our_tail() -> None:
    ours = LogExtent(0, 200, (Epoch(1, 0, "a.1"),))
    assert has_our_tail(ours, LogExtent(0, 300, ours.epochs))
    assert not has_our_tail(ours, LogExtent(0, 200, ours.epochs))
    assert not has_our_tail(ours, LogExtent(4096, 4096, ours.epochs))
    assert not has_our_tail(LogExtent(0, 0), LogExtent(0, 300, ours.epochs))
    assert not has_our_tail(LogExtent(0, 200, (*ours.epochs, Epoch(1, 150, "a.2"))), LogExtent(0, 300, ours.epochs))


@given(st.lists(st.tuples(st.integers(0, 1), st.integers(0, 40), st.integers(0, 40)), min_size=1, max_size=12))
def test_lives_of_one_primary_are_always_in_order(lives: list[tuple[int, int, int]]) -> None:
    """Each raises the number or not, loses something of the end, and writes something."""
    log, number = LogExtent(0, 0), 1
    for life, (raised, lost, written) in enumerate(lives):
        number += raised
        shorter = LogExtent(0, max(log.end - lost, 0), log.epochs)
        begun = begin_epoch(shorter, number, f"a.{life}")
        log = LogExtent(0, shorter.end + written, begun)
        assert begun[-1] == Epoch(number, shorter.end, f"a.{life}")
        assert way_back(log, log) == GoOn(log.end if not log.is_empty else 0)


def test_very_many_lives_leave_a_list_that_ends() -> None:
    log = LogExtent(0, 0)
    for life in range(2000):
        start = max(0, log.end - 10)
        log = LogExtent(start, log.end + 1, begin_epoch(LogExtent(start, log.end, log.epochs), 1, f"a.{life}"))
    assert len(log.epochs) <= 502
