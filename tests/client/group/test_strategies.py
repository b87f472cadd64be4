"""Sharing out queues: as the Java client does it, every queue to one member, and sticky ones stay where they are."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyromq.client.group import strategies
from pyromq.client.group.strategies import Strategy, java_order
from pyromq.errors import ConfigError
from pyromq.model.queue import MessageQueue

#: The results of RocketMQ 5.5.0's own classes for each member, for randomly generated groups and topics.
JAVA = json.loads((Path(__file__).parent / "java_strategies.json").read_text())


def zone_of_queue(queue: MessageQueue) -> str:
    return queue.broker_name.split("@")[0]


def zone_of_member(member: str) -> str:
    return member.split("-")[0]


ALL: dict[str, Strategy] = {
    "average": strategies.average,
    "circle": strategies.circle,
    "consistent_hash": strategies.consistent_hash,
    "sticky": strategies.sticky,
    "machine_room": strategies.machine_room({"r1", "r2"}),
    "nearby": strategies.nearby(zone_of_queue, zone_of_member),
}
EVERY_QUEUE = {name: strategy for name, strategy in ALL.items() if name != "machine_room"}
BALANCED = [strategies.average, strategies.circle, strategies.sticky]

members_st = st.sets(st.from_regex(r"r[0-3]-10\.0\.0\.[0-9]{1,3}@[0-9]{1,5}", fullmatch=True), min_size=1, max_size=8)
queues_st = st.sets(
    st.builds(MessageQueue, st.just("orders"), st.sampled_from(["r0@a", "r1@b", "r3@a", "r9@c"]), st.integers(0, 15)),
    min_size=1,
    max_size=40,
)


def shares(strategy: Strategy, members: Sequence[str], queues: Sequence[MessageQueue]) -> list[list[MessageQueue]]:
    return [strategy(member, members, queues) for member in members]


@pytest.mark.parametrize("name", ["average", "circle", "consistent_hash", "machine_room", "nearby"])
@pytest.mark.parametrize("case", JAVA, ids=range(len(JAVA)))
def test_each_member_gets_what_the_java_client_gives_it(name: str, case: dict[str, list[object]]) -> None:
    members = [str(one) for one in case["members"]]
    queues = [MessageQueue(*one) for one in case["queues"]]  # type: ignore[misc]
    assert members == java_order(members)
    assert queues == sorted(queues)
    given_out = [[queues.index(queue) for queue in share] for share in shares(ALL[name], members, queues)]
    assert given_out == case[name]


@pytest.mark.parametrize("name", EVERY_QUEUE)
@given(members=members_st, queues=queues_st)
def test_every_queue_has_exactly_one_owner(name: str, members: set[str], queues: set[MessageQueue]) -> None:
    given_out = shares(ALL[name], java_order(members), sorted(queues))
    assert sorted(queue for share in given_out for queue in share) == sorted(queues)


@pytest.mark.parametrize("strategy", BALANCED)
@given(members=members_st, queues=queues_st)
def test_parts_differ_by_one_at_most(strategy: Strategy, members: set[str], queues: set[MessageQueue]) -> None:
    sizes = [len(share) for share in shares(strategy, java_order(members), sorted(queues))]
    assert max(sizes) - min(sizes) <= 1


@pytest.mark.parametrize("name", ALL)
def test_who_is_not_a_member_gets_nothing(name: str) -> None:
    assert ALL[name]("r1-stranger", ["r1-a", "r2-b"], [MessageQueue("orders", "r1@a", 0)]) == []


@given(members=members_st, queues=queues_st, who=st.integers(0, 7))
def test_on_the_ring_only_the_queues_of_who_left_move(members: set[str], queues: set[MessageQueue], who: int) -> None:
    before = java_order(members)
    gone = before[who % len(before)]
    after = [member for member in before if member != gone]
    for member in after:
        kept = set(strategies.consistent_hash(member, before, sorted(queues)))
        assert kept <= set(strategies.consistent_hash(member, after, sorted(queues)))


def moved(strategy: Strategy, before: Sequence[str], after: Sequence[str], queues: Sequence[MessageQueue]) -> int:
    """Queues that change hands though their owner is still there."""
    stay = set(before) & set(after)
    return sum(
        len(set(strategy(member, before, queues)) - set(strategy(member, after, queues))) for member in sorted(stay)
    )


def test_sticky_moves_far_fewer_queues_than_average_does() -> None:
    queues = [MessageQueue("orders", f"broker-{name}", number) for name in "abcd" for number in range(16)]
    moves = dict.fromkeys(("average", "sticky", "least"), 0)
    for count in range(2, 12):
        members = java_order(f"10.0.0.{number}@{number * 7919}" for number in range(count))
        joined = java_order([*members, "10.0.0.77@4711"])
        moves["average"] += moved(strategies.average, members, joined, queues)
        moves["sticky"] += moved(strategies.sticky, members, joined, queues)
        moves["least"] += len(queues) // len(joined)
    assert moves["sticky"] < 2 * moves["least"] < moves["average"]


def test_a_zone_without_members_is_shared_by_all_and_an_unknown_zone_is_refused() -> None:
    queues = [MessageQueue("orders", "r1@a", number) for number in range(2)]
    queues += [MessageQueue("orders", "r9@b", number) for number in range(2)]
    members = ["r1-x", "r2-y"]
    assert shares(ALL["nearby"], members, queues) == [[queues[0], queues[1], queues[2]], [queues[3]]]
    nowhere = strategies.nearby(lambda queue: "", zone_of_member)
    with pytest.raises(ConfigError, match="no zone is known for"):
        nowhere("r1-x", members, queues)


def test_text_sorts_as_java_sorts_it() -> None:
    assert java_order(["\uffee", "\U0001f600", "b", "B"]) == ["B", "b", "\U0001f600", "\uffee"]
