"""The possible loss by a promotion, decided from the answers of the brokers of a name."""

from __future__ import annotations

import pytest

from pyromq.broker.failover.leadership import Member
from pyromq.broker.failover.members import Answered
from pyromq.broker.failover.promotion_check import Candidate, why_not_to_promote
from pyromq.replication.log_matching import Epoch, LogExtent
from pyromq.wire.bodies.epochs import BrokerEpochs, EpochEntry

LED = (Epoch(1, 0, "a.x"),)
SINCE = (*LED, Epoch(1, 500, "a.y"))
KNOWN = (Member("a:1", 0, "", "a"), Member("c:1", 2, "", "c"))


def answer(
    member: str = "c", *, end: int = 1000, broker_id: int = 2, epochs: tuple[Epoch, ...] = LED, at: str = ""
) -> Answered:
    entries = tuple(EpochEntry(one.number, one.start, 0, one.by) for one in epochs)
    return Answered(at or f"{member}:1", BrokerEpochs(broker_id=broker_id, entries=entries, end=end, member=member))


def why(
    *answers: Answered,
    copies: int = 2,
    end: int = 1000,
    epochs: tuple[Epoch, ...] = LED,
    known: tuple[Member, ...] = KNOWN,
    is_whole: bool = True,
    unknown_leader: bool = False,
) -> str | None:
    return why_not_to_promote(Candidate(LogExtent(0, end, epochs), copies, is_whole), known, answers, unknown_leader)


def test_one_of_two_copies_is_here_or_with_one_that_answered() -> None:
    assert why(answer()) is None
    assert why(answer(end=900)) is None


def test_messages_with_all_copies_on_silent_brokers_would_be_lost() -> None:
    told = why()
    assert told is not None
    assert "no answer from a:1 (the master) and c:1 (id 2)" in told
    assert "--force" in told
    assert why(answer(), copies=1) is not None, "an async master alone has what it acknowledged last"
    assert why(copies=3) is None


def test_a_broker_with_more_is_to_be_promoted_instead() -> None:
    told = why(answer(end=1200))
    assert told is not None
    assert "promote c:1" in told


@pytest.mark.parametrize(
    ("ours", "theirs", "has_more"),
    [
        (LED, SINCE, True),  # it followed a later life of the leader
        (SINCE, LED, False),
        (LED, (*LED, Epoch(2, 400, "c.z")), True),
        (LED, (Epoch(1, 0, "other.q"),), False),  # a log that has nothing to do with ours
    ],
)
def test_a_later_life_counts_for_more_than_a_longer_log(
    ours: tuple[Epoch, ...], theirs: tuple[Epoch, ...], has_more: bool
) -> None:
    end = 900 if has_more else 1100
    told = why(answer(end=end, epochs=theirs), epochs=ours)
    assert (told is not None) is has_more


def test_a_leader_that_answers_is_asked_to_hand_over() -> None:
    told = why(answer("a", broker_id=0), answer())
    assert told is not None
    assert "hand over" in told


def test_another_store_at_a_known_address_does_not_have_its_log() -> None:
    assert why(answer("new", end=0, epochs=(), at="a:1", broker_id=1), answer(), copies=1) is not None


def test_a_leader_that_may_have_lost_its_end_does_not_count_itself() -> None:
    slaves = (Member("b:1", 1, "", "b"), Member("c:1", 2, "", "c"))
    assert why(answer(), known=slaves, is_whole=False) is not None
    assert why(answer("b", broker_id=1), answer(), known=slaves, is_whole=False) is None


def test_a_leader_that_is_not_known_is_a_silent_one() -> None:
    assert why(known=(), copies=1, unknown_leader=True) is not None
    assert why(known=(), copies=2, unknown_leader=True) is None
