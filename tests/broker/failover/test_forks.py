"""Which logs are forks of each other, and which of two brokers continues, decided from their answers."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.support.fakes import store_config
from pyromq.broker.failover.forks import (
    fork_that_holds,
    fork_to_decide,
    fork_with,
    lives_given_up,
    may_have_acknowledged,
    own_bytes,
)
from pyromq.broker.failover.leadership import Fork, Leadership, LeadershipFile, Member
from pyromq.broker.failover.members import Answered
from pyromq.broker.failover.role import Leading, why_it_is_held
from pyromq.clock import ManualClock
from pyromq.config import BrokerConfig
from pyromq.replication.log_matching import Epoch, LogExtent
from pyromq.testing import SimDisk
from pyromq.wire.bodies.epochs import BrokerEpochs, EpochEntry

#: `a` led both logs up to 100; then `b` was promoted.
FIRST = Epoch(1, 0, "a.x")
PROMOTED = (FIRST, Epoch(2, 100, "b.y"))
#: `a` went on, in the life that `b` copied, or in one that `b` does not know.
SAME_LIFE, NEW_LIFE = (FIRST,), (FIRST, Epoch(1, 100, "a.z"))


def answer(epochs: tuple[Epoch, ...], end: int, *, member: str = "a", broker_id: int = 0, start: int = 0) -> Answered:
    entries = tuple(EpochEntry(one.number, one.start, 0, one.by) for one in epochs)
    told = BrokerEpochs(
        broker_id=broker_id, entries=entries, start=start, end=end, member=member, address=f"{member}:1"
    )
    return Answered(told.address, told)


# --- a broker that is about to lead ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("epochs", "end", "expected"),
    [
        (SAME_LIFE, 80, None),  # the old master has less than both had
        (SAME_LIFE, 100, None),
        (SAME_LIFE, 120, (100, 50, 20)),  # it went on, and has less than the promoted one
        (SAME_LIFE, 300, (100, 50, 200)),  # and more
        (NEW_LIFE, 100, None),  # it began a life and wrote nothing
        (NEW_LIFE, 120, (100, 50, 20)),
        (NEW_LIFE, 300, (100, 50, 200)),
        (PROMOTED, 150, None),  # it copied the promoted one
        (PROMOTED, 180, (150, 0, 30)),  # the promoted one has lost its end
        ((Epoch(1, 0, "z.q"),), 300, None),  # another log under the same name
        ((), 300, None),  # a broker of Apache RocketMQ's
    ],
)
def test_a_broker_does_not_begin_if_a_leader_has_bytes_that_it_lacks(
    epochs: tuple[Epoch, ...], end: int, expected: tuple[int, int, int] | None
) -> None:
    ours, other = LogExtent(0, 150, PROMOTED), answer(epochs, end)
    fork = fork_that_holds(ours, [other])
    assert (fork and (fork.position, fork.ours, fork.theirs)) == expected
    slave = other._replace(told=replace(other.told, broker_id=1))
    assert fork_that_holds(ours, [slave]) is None, "it does not lead: it is cut, or says that it is not"


def test_a_promotion_decides_about_the_fork_that_was_known_and_about_no_other() -> None:
    ours, known = LogExtent(0, 150, PROMOTED), answer(NEW_LIFE, 300)
    decided = fork_that_holds(ours, [known])
    assert decided is not None
    assert fork_that_holds(ours, [known], decided) is None
    other = answer((FIRST, Epoch(1, 100, "c.z")), 300, member="c")
    assert fork_that_holds(ours, [known, other], decided) == fork_with(ours, other)


def test_bytes_that_retention_removed_are_no_fork() -> None:
    assert fork_with(LogExtent(0, 150, PROMOTED), answer(NEW_LIFE, 300, start=300)) is None


lives = st.lists(st.tuples(st.integers(0, 1), st.integers(0, 60), st.sampled_from("ab")), max_size=3)


def led(steps: list[tuple[int, int, str]], name: str) -> tuple[Epoch, ...]:
    found, number, start = [FIRST], 1, 100
    for more, size, member in steps:
        number, start = number + more, start + size
        found.append(Epoch(number, start, f"{member}.{name}{len(found)}"))
    return tuple(found)


@given(lives, lives, st.integers(0, 60), st.integers(0, 60))
def test_both_sides_see_the_same_fork(
    one: list[tuple[int, int, str]], other: list[tuple[int, int, str]], one_more: int, other_more: int
) -> None:
    logs = [led(one, "p"), led(other, "q")]
    ends = [logs[0][-1].start + one_more, logs[1][-1].start + other_more]
    extents = [LogExtent(0, end, log) for log, end in zip(logs, ends, strict=True)]
    seen = [
        fork_with(extents[0], answer(logs[1], ends[1])),
        fork_with(extents[1], answer(logs[0], ends[0])),
    ]
    if seen[0] is not None and seen[1] is not None:
        assert (seen[0].position, seen[0].ours, seen[0].theirs) == (seen[1].position, seen[1].theirs, seen[1].ours)
    else:
        assert not any(fork and fork.ours for fork in seen), "one of the logs is all in the other"


# --- a broker that follows -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("epochs", "end", "gave_up", "expected"),
    [
        (SAME_LIFE, 300, (), 0),  # the forced promotion decided about this life
        (NEW_LIFE, 100, (), 0),
        (NEW_LIFE, 300, (), 200),
        (NEW_LIFE, 300, ("a.z",), 0),
        (NEW_LIFE, 300, ("c.z",), 200),
        ((*NEW_LIFE, Epoch(1, 250, "a.later")), 300, ("a.z",), 50),  # it led once more after the decision
        ((FIRST, Epoch(1, 100, "c.z")), 300, (), 0),  # it copied these bytes and did not acknowledge them itself
    ],
)
def test_a_follower_keeps_what_it_wrote_in_lives_that_the_leader_does_not_know(
    epochs: tuple[Epoch, ...], end: int, gave_up: tuple[str, ...], expected: int
) -> None:
    leader = replace(answer(PROMOTED, 150, member="b").told, gave_up=gave_up)
    assert own_bytes(LogExtent(0, end, epochs), "a", leader) == expected


def test_a_promotion_gives_up_the_lives_of_brokers_that_answered() -> None:
    ours = LogExtent(0, 150, PROMOTED)
    assert lives_given_up(ours, [answer(NEW_LIFE, 300), answer(SAME_LIFE, 300)]) == ("a.z",)
    assert lives_given_up(ours, [answer(NEW_LIFE, 100), answer((Epoch(1, 0, "z.q"),), 300)]) == ()


@pytest.mark.parametrize(
    ("copies", "others", "expected"),
    [(1, 0, True), (2, 0, False), (2, 1, True), (3, 1, False)],
)
def test_a_leader_without_enough_members_has_acknowledged_nothing(copies: int, others: int, expected: bool) -> None:
    leader = answer(PROMOTED, 150, member="b").told
    known = [Member("b:1", 0, "", "b"), *(Member(f"c{number}:1", 2, "", f"c{number}") for number in range(others))]
    assert may_have_acknowledged(copies, known, leader, "b:1") is expected


@pytest.mark.parametrize(("role", "expected"), [("ASYNC_MASTER", (100, 200, 50)), ("SYNC_MASTER", None)])
def test_a_follower_decides_by_what_it_acknowledged_as_a_leader(
    role: str, expected: tuple[int, int, int] | None
) -> None:
    disk, place = SimDisk(ManualClock()), Path("/store/config")
    file = LeadershipFile(disk, place, lambda: "a")
    file.save(Leadership("a", number=1, epochs=NEW_LIFE).stood_down(2, 1).heard_of([Member("b:1", 0, "", "b")]))
    leading = Leading(file, BrokerConfig(role=role, store=store_config(root=Path("/store"))))
    fork = fork_to_decide(leading, LogExtent(0, 300, NEW_LIFE), answer(PROMOTED, 150, member="b"))
    assert (fork and (fork.position, fork.ours, fork.theirs)) == expected


# --- the file --------------------------------------------------------------------------------------------------------


def test_a_held_broker_stays_held_until_it_is_promoted_or_the_other_one_is_forgotten() -> None:
    disk, place = SimDisk(ManualClock()), Path("/store/config")

    def leading() -> Leading:
        return Leading(LeadershipFile(disk, place, lambda: "b"), BrokerConfig(store=store_config(root=Path("/store"))))

    fork = Fork("a:1", "a", 100, 50, 200)
    leading().heard_of([Member("a:1", 1, "", "a")])
    leading().hold(fork, 2)
    held = leading()
    assert (held.waits, held.config.role, held.why_it_waits) == (True, "SLAVE", why_it_is_held(fork))
    assert held.describe(0, 150, "b:1", "").held_for == "a"
    held.forget(held.known.members[0])
    assert (held.known.fork, held.waits) == (None, True)
    held.hold(fork, 2)
    held.promote(3, "ASYNC_MASTER")
    promoted = leading()
    assert (promoted.waits, promoted.known.fork) == (False, fork)
    promoted.gives_up = ("a.z",)
    promoted.begin(0, 150)
    told = leading().describe(0, 150, "b:1", "")
    assert (told.held_for, told.gave_up, told.for_strangers().gave_up) == ("", ("a.z",), ("a.z",))
    assert BrokerEpochs.decode(told.encode()) == told
    follower = Leading(
        LeadershipFile(SimDisk(ManualClock()), place, lambda: "c"),
        BrokerConfig(store=store_config(root=Path("/store"))),
    )
    follower.note_fork(fork)
    follower.adopt(told)
    assert (follower.known.fork, follower.known.gave_up) == (None, ("a.z",))
