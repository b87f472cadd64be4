"""The members of groups: by heartbeats, goodbyes, lost connections and silence."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.support.fakes import FakePeer
from pyromq.broker.state.clients import Consumers, ConsumerSeen, Member, Producers
from pyromq.errors import BadRequest
from pyromq.filters.subscription import build


def member(client_id: str = "c1", peer: FakePeer | None = None, seen_ms: int = 0) -> Member:
    return Member(peer or FakePeer(), client_id, "JAVA", 513, seen_ms)


def heartbeat(
    *topics: str, group: str = "g", expression: str = "*", version: int = 1, fingerprint: int = 0
) -> ConsumerSeen:
    wanted = {topic: build(topic, expression, "TAG", version) for topic in topics}
    return ConsumerSeen(group, "CONSUME_PASSIVELY", "CLUSTERING", "CONSUME_FROM_LAST_OFFSET", wanted, fingerprint)


def test_what_a_connection_wants_is_limited_over_all_its_groups() -> None:
    consumers, peer = Consumers(), FakePeer()
    expression = "x" * 60_000
    for number in range(17):
        consumers.seen(heartbeat("orders", group=f"g{number}", expression=expression), member(peer=peer), 0)
    consumers.seen(heartbeat("orders", group="g3", expression=expression, version=2), member(peer=peer), 0)
    with pytest.raises(BadRequest, match="subscribes to more than"):
        consumers.seen(heartbeat("orders", group="g17", expression=expression), member(peer=peer), 0)
    assert consumers.get("g17") is None
    consumers.seen(heartbeat("orders", group="g17", expression=expression), member("c2", FakePeer()), 0)
    consumers.left("g3", peer)
    consumers.seen(heartbeat("orders", group="g17", expression=expression), member(peer=peer), 0)
    assert sorted(consumers.disconnected(peer)) == sorted(f"g{number}" for number in range(18) if number != 3)


# --- consumers -------------------------------------------------------------------------------------------------------


def test_a_group_learns_of_a_new_client_once() -> None:
    consumers, first = Consumers(), member("c1")
    assert consumers.seen(heartbeat("orders"), first, 10)
    assert not consumers.seen(heartbeat("orders"), first, 20), "nothing is new"
    assert consumers.seen(heartbeat("orders"), member("c2"), 30)
    group = consumers.get("g")
    assert group is not None
    assert sorted(group.client_ids()) == ["c1", "c2"]
    assert group.changed_ms == 30


def test_a_client_that_connected_again_counts_once() -> None:
    consumers, old, new = Consumers(), FakePeer("a:1"), FakePeer("a:2")
    consumers.seen(heartbeat("orders"), member("c1", old), 10)
    assert not consumers.seen(heartbeat("orders"), member("c1", new, seen_ms=5), 20), "the same clients as before"
    group = consumers.get("g")
    assert group is not None
    assert group.client_ids() == ["c1"]
    found = group.find("c1")
    assert found is not None
    assert found.peer is new, "the connection that was heard last"
    assert consumers.disconnected(old) == [], "the client is still there"
    assert consumers.disconnected(new) == ["g"]
    assert consumers.get("g") is None


def test_an_open_connection_is_found_before_a_closed_one_that_was_heard_later() -> None:
    consumers, alive, dead = Consumers(), FakePeer("a:1"), FakePeer("a:2")
    consumers.seen(heartbeat("orders"), member("c1", alive, seen_ms=1), 1)
    consumers.seen(heartbeat("orders"), member("c1", dead, seen_ms=2), 2)
    dead.close("gone")
    group = consumers.get("g")
    assert group is not None
    found = group.find("c1")
    assert found is not None
    assert found.peer is alive


def test_a_connection_that_calls_itself_otherwise_changes_the_group() -> None:
    consumers, peer = Consumers(), FakePeer()
    consumers.seen(heartbeat("orders"), member("c1", peer), 1)
    assert consumers.seen(heartbeat("orders"), member("c2", peer), 2)
    group = consumers.get("g")
    assert group is not None
    assert group.client_ids() == ["c2"]


def test_the_newer_subscription_counts_and_a_topic_that_is_not_named_any_more_goes() -> None:
    consumers, one = Consumers(), member()
    consumers.seen(heartbeat("orders", "bills", version=2), one, 1)
    assert not consumers.seen(heartbeat("orders", "bills", expression="paid", version=1), one, 2)
    group = consumers.get("g")
    assert group is not None
    assert group.subscriptions["orders"].expression == "*", "an older one is not taken over"
    assert consumers.seen(heartbeat("orders", expression="paid", version=3), one, 3)
    assert {topic: each.expression for topic, each in group.subscriptions.items()} == {"orders": "paid"}
    assert consumers.groups_of_topic("orders") == {"g"}
    assert consumers.groups_of_topic("bills") == set()


def test_members_that_want_different_things_are_noticed_until_they_agree_or_leave() -> None:
    consumers, one, other = Consumers(), member("c1"), member("c2")
    consumers.seen(heartbeat("orders"), one, 1)
    group = consumers.get("g")
    assert group is not None
    assert not group.disagrees
    consumers.seen(heartbeat("orders", expression="paid", version=2), other, 2)
    assert group.disagrees
    consumers.seen(heartbeat("orders", expression="paid", version=2), one, 3)
    assert not group.disagrees
    consumers.seen(heartbeat("orders", "bills"), one, 4)
    assert group.disagrees
    consumers.left("g", one.peer)
    assert not group.disagrees


def test_who_was_not_heard_for_too_long_is_forgotten() -> None:
    consumers, silent, loud = Consumers(), member("c1", seen_ms=100), member("c2", seen_ms=200)
    consumers.seen(heartbeat("orders"), silent, 100)
    consumers.seen(heartbeat("orders"), loud, 200)
    assert [(group, one.client_id) for group, one in consumers.expire(150)] == [("g", "c1")]
    assert consumers.expire(150) == []


# --- producers -------------------------------------------------------------------------------------------------------


def test_a_producer_is_found_by_its_client_id_in_whichever_group() -> None:
    producers, old, new = Producers(), FakePeer("a:1"), FakePeer("a:2")
    producers.seen("p1", member("c1", old, seen_ms=1))
    producers.seen("p2", member("c1", new, seen_ms=2))
    found = producers.find_client("c1")
    assert found is not None
    assert found.peer is new
    producers.disconnected(new)
    found = producers.find_client("c1")
    assert found is not None
    assert found.peer is old
    producers.left("p1", old)
    assert producers.find_client("c1") is None
    assert dict(producers.groups()) == {}


def test_a_producer_that_left_one_of_its_groups_is_still_found() -> None:
    producers, peer = Producers(), FakePeer()
    producers.seen("p1", member("c1", peer))
    producers.seen("p2", member("c1", peer))
    producers.left("p1", peer)
    assert producers.find_client("c1") is not None
    assert [one.client_id for one in producers.members("p2")] == ["c1"]
    producers.seen("p2", member("c9", peer))
    assert producers.find_client("c1") is None


PEERS = [FakePeer(f"a:{number}") for number in range(4)]
STEPS = st.lists(
    st.tuples(
        st.sampled_from(["seen", "left", "disconnected", "expire"]),
        st.sampled_from(PEERS),
        st.sampled_from(["g1", "g2"]),
        st.sampled_from(["c1", "c2"]),
    ),
    max_size=40,
)


@given(STEPS)
def test_both_tables_know_exactly_who_is_there(steps: list[tuple[str, FakePeer, str, str]]) -> None:
    consumers, producers = Consumers(), Producers()
    there: dict[tuple[str, FakePeer], tuple[str, int]] = {}
    for now_ms, (step, peer, group, client_id) in enumerate(steps):
        if step == "seen":
            there[group, peer] = (client_id, now_ms)
            consumers.seen(heartbeat("orders", group=group), member(client_id, peer, now_ms), now_ms)
            producers.seen(group, member(client_id, peer, now_ms))
        elif step == "left":
            there.pop((group, peer), None)
            consumers.left(group, peer)
            producers.left(group, peer)
        elif step == "disconnected":
            there = {key: value for key, value in there.items() if key[1] is not peer}
            consumers.disconnected(peer)
            producers.disconnected(peer)
        else:
            there = {key: value for key, value in there.items() if value[1] >= now_ms - 3}
            consumers.expire(now_ms - 3)
            producers.expire(now_ms - 3)
    wanted = {group: {one[0] for key, one in there.items() if key[0] == group} for group, _ in there}
    assert {group.name: set(group.client_ids()) for group in consumers} == wanted
    assert {name: {one.client_id for one in group.values()} for name, group in producers.groups().items()} == wanted
    for group in consumers:
        assert len(group.wishes) == len(group.members)
        assert not group.disagrees
