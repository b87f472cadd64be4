"""Heartbeats of clients, and the notifications of the members of a group."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterator
from itertools import count
from typing import Any

import orjson
import pytest

from broker.support.fakes import FakePeer, Parts
from pyromq.broker.requests.clients import MemberProcessor
from pyromq.broker.state.clients import Consumers, Producers
from pyromq.broker.state.locks import QueueLocks
from pyromq.clock import ManualClock
from pyromq.errors import BadRequest, FilterSyntaxError, GroupNotFound, ServiceError
from pyromq.model.group import GroupConfig
from pyromq.model.topic import TopicConfig
from pyromq.net.slices import SLICE_SECONDS, slices_of
from pyromq.wire.bodies.heartbeat import MAX_GROUPS
from pyromq.wire.command import Command
from pyromq.wire.requests.client import (
    CheckClientConfig,
    GetConsumerList,
    Heartbeat,
    LockQueues,
    NotifyMembersChanged,
    UnlockQueues,
    UnregisterClient,
)
from pyromq.wire.responses import HeartbeatAnswer, Response


def subscription(topic: str, expression: str = "*", kind: str = "TAG", version: int = 1) -> dict[str, Any]:
    return {
        "classFilterMode": False, "topic": topic, "subString": expression, "tagsSet": [], "codeSet": [],
        "subVersion": version, "expressionType": kind,
    }  # fmt: skip


def consumer(*subscriptions: dict[str, Any], group: str = "readers", **more: Any) -> dict[str, Any]:
    return {
        "groupName": group, "consumeType": "CONSUME_PASSIVELY", "messageModel": "CLUSTERING",
        "consumeFromWhere": "CONSUME_FROM_LAST_OFFSET", "subscriptionDataSet": list(subscriptions), "unitMode": False,
        **more,
    }  # fmt: skip


def finished(answer: Awaitable[Response] | Response) -> Response:
    async def wait(answer: Awaitable[Response]) -> Response:
        return await answer

    return answer if isinstance(answer, Response) else asyncio.run(wait(answer))


class World:
    def __init__(self, **settings: Any) -> None:
        self.clock = ManualClock()
        self.parts = Parts(clock=self.clock, **settings)
        self.parts.groups.make(GroupConfig("readers"))
        self.producers, self.consumers, self.locks = Producers(), Consumers(), QueueLocks()
        self.members = MemberProcessor(
            lambda: self.parts.config, self.parts.topics, self.parts.groups, self.producers, self.consumers,
            self.locks, self.clock,
        )  # fmt: skip

    def beat(self, peer: FakePeer, client_id: str, *consumers: dict[str, Any], **more: Any) -> HeartbeatAnswer:
        data = {"clientID": client_id, "producerDataSet": [], "consumerDataSet": list(consumers), **more}
        request = Heartbeat(body=orjson.dumps(data), command=Command(34, language="JAVA", version=453))
        answer = finished(self.members.heartbeat(request, peer))
        assert isinstance(answer, HeartbeatAnswer)
        return answer

    def ids(self, group: str = "readers") -> list[str]:
        answer = self.members.consumer_list(GetConsumerList(group=group), FakePeer())
        assert isinstance(answer.body, bytes)
        return sorted(orjson.loads(answer.body)["consumerIdList"]) if answer.code == 0 else []

    def topics_of(self, group: str = "readers") -> dict[str, str]:
        known = self.consumers.get(group)
        return {} if known is None else {name: one.expression for name, one in known.subscriptions.items()}


@pytest.fixture
def world() -> Iterator[World]:
    world = World()
    yield world
    world.parts.close()


def notices(peer: FakePeer) -> int:
    told = len(peer.told)
    assert all(isinstance(one, NotifyMembersChanged) and one.group == "readers" for one in peer.told)
    peer.told.clear()
    return told


# --- heartbeats ------------------------------------------------------------------------------------------------------


def test_a_consumer_joins_and_the_group_hears_of_it(world: World) -> None:
    first, second = FakePeer("a:1"), FakePeer("b:1")
    world.beat(first, "c1", consumer(subscription("orders"), subscription("%RETRY%readers")))
    assert world.ids() == ["c1"]
    assert world.topics_of() == {"orders": "*", "%RETRY%readers": "*"}
    assert world.parts.topics.get("%RETRY%readers") is not None, "the group may send messages back from now on"
    assert notices(first) == 1
    world.beat(second, "c2", consumer(subscription("orders"), subscription("%RETRY%readers")))
    assert world.ids() == ["c1", "c2"]
    assert (notices(first), notices(second)) == (1, 1)
    world.beat(second, "c2", consumer(subscription("orders"), subscription("%RETRY%readers")))
    assert (notices(first), notices(second)) == (0, 0), "nothing changed"


def test_one_goes_by_saying_so_by_its_connection_or_by_silence(world: World) -> None:
    peers = [FakePeer(f"a:{number}") for number in range(4)]
    for number, peer in enumerate(peers):
        world.beat(peer, f"c{number}", consumer(subscription("orders")))
    stays = peers[3]
    notices(stays)
    world.members.unregister(UnregisterClient(client_id="c0", consumer_group="readers"), peers[0])
    assert (world.ids(), notices(stays)) == (["c1", "c2", "c3"], 1)
    world.members.disconnected(peers[1])
    assert (world.ids(), notices(stays)) == (["c2", "c3"], 1)
    world.clock.advance(119)
    world.beat(stays, "c3", consumer(subscription("orders")))
    world.members.expire()
    assert world.ids() == ["c2", "c3"]
    world.clock.advance(2)
    world.members.expire()
    assert (world.ids(), notices(stays)) == (["c3"], 1)
    world.members.disconnected(stays)
    answer = world.members.consumer_list(GetConsumerList(group="readers"), FakePeer())
    assert (answer.code, answer.reason) == (1, "no consumer for this group, readers")


def test_a_client_that_connected_again_is_listed_once(world: World) -> None:
    old, new = FakePeer("a:1"), FakePeer("a:2")
    world.beat(old, "c1", consumer(subscription("orders")))
    world.beat(new, "c1", consumer(subscription("orders")))
    assert world.ids() == ["c1"]
    world.members.disconnected(old)
    assert world.ids() == ["c1"]


def test_a_large_group_hears_of_many_changes_in_one_notice(world: World) -> None:
    peers = [FakePeer(f"a:{number}") for number in range(200)]

    async def tell() -> None:
        for number, peer in enumerate(peers):
            world.beat(peer, f"c{number}", consumer(subscription("orders")))
        for peer in peers:
            peer.told.clear()
        heard = asyncio.Event()
        peers[-1].tell = lambda _: heard.set()  # type: ignore[method-assign]
        async with asyncio.timeout(20):
            await heard.wait()
        assert {notices(peer) for peer in peers[:-1]} == {1}

    asyncio.run(tell())
    assert len(world.ids()) == 200


def test_nobody_is_told_where_nobody_shares(world: World) -> None:
    peer = FakePeer()
    world.beat(peer, "c1", consumer(subscription("orders"), messageModel="BROADCASTING"))
    assert notices(peer) == 0
    world.parts.groups.make(GroupConfig("quiet", notify_members=False))
    world.beat(peer, "c1", consumer(subscription("orders"), group="quiet"))
    assert peer.told == []


def test_a_group_that_does_not_exist_is_left_out_and_the_others_are_served(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    peer = FakePeer()
    answer = world.beat(
        peer, "c1",
        consumer(subscription("orders"), group="unknown"), consumer(subscription("orders")),
        producerDataSet=[{"groupName": "writers"}],
    )  # fmt: skip
    assert answer.code == 0
    assert (world.ids("unknown"), world.ids("readers")) == ([], ["c1"])
    assert [one.client_id for one in world.producers.members("writers")] == ["c1"]
    assert "unknown" in caplog.text


def test_groups_are_made_where_that_is_allowed() -> None:
    world = World(auto_create_groups=True)
    world.beat(FakePeer(), "c1", consumer(subscription("orders"), group="new"))
    assert world.ids("new") == ["c1"]
    assert world.parts.groups.get("new") is not None
    world.parts.close()


def test_an_expression_that_cannot_be_understood_is_told_and_only_its_group_suffers(world: World) -> None:
    world.parts.groups.make(GroupConfig("others"))
    wrong = consumer(subscription("orders", "a >", "SQL92"))
    with pytest.raises(FilterSyntaxError):
        world.beat(FakePeer(), "c1", wrong, consumer(subscription("orders"), group="others"))
    assert (world.ids("readers"), world.ids("others")) == ([], ["c1"])


@pytest.mark.parametrize(
    "body",
    [
        b"", b"[]", b"{", b'{"clientID": 7}', b'{"clientID": "c", "consumerDataSet": [{"groupName": null}]}',
        b'{"clientID": "c", "consumerDataSet": 5}', b'{"clientID": "c", "producerDataSet": [{}]}',
        orjson.dumps({"clientID": "c", "producerDataSet": [{"groupName": "p"}] * (MAX_GROUPS + 1)}),
        orjson.dumps({"clientID": "c" * 5000}), b'{"clientID":"c"}' + b" " * (4 << 20),
    ],
)  # fmt: skip
def test_a_heartbeat_that_is_none_is_refused(world: World, body: bytes) -> None:
    with pytest.raises(BadRequest):
        world.members.heartbeat(Heartbeat(body=body, command=Command(34)), FakePeer())


def test_what_all_groups_of_a_heartbeat_want_together_is_limited(world: World) -> None:
    many = [consumer(*[subscription(f"t{number}") for number in range(60)], group=f"g{group}") for group in range(69)]
    with pytest.raises(BadRequest, match="4140 subscriptions, the limit is 4096"):
        world.beat(FakePeer(), "c1", *many)
    long = [consumer(subscription("orders", "x" * 60_000), group=f"g{group}") for group in range(5)]
    with pytest.raises(BadRequest, match="expressions of 300000 characters"):
        world.beat(FakePeer(), "c1", *long)
    with pytest.raises(BadRequest):
        world.beat(FakePeer(), "c1", consumer(subscriptionDataSet=5))


def test_a_client_is_in_so_many_groups_and_not_in_more(world: World) -> None:
    peer = FakePeer()
    world.beat(peer, "c1", producerDataSet=[{"groupName": f"p{number}"} for number in range(MAX_GROUPS)])
    with pytest.raises(BadRequest, match="is in 1024 groups"):
        world.beat(peer, "c1", consumer(subscription("orders")), producerDataSet=[{"groupName": "one more"}])
    assert world.ids() == ["c1"], "its consumers are served all the same"
    assert world.producers.members("one more") == []
    world.beat(peer, "c1", producerDataSet=[{"groupName": "p7"}])
    world.beat(FakePeer(), "c2", producerDataSet=[{"groupName": "one more"}])
    world.members.unregister(UnregisterClient(client_id="c1", producer_group="p7"), peer)
    world.beat(peer, "c1", producerDataSet=[{"groupName": "one more"}])
    assert len(world.producers.members("one more")) == 2


# --- the second form: subscriptions are sent once --------------------------------------------------------------------


def test_the_first_form_is_asked_to_tell_its_subscriptions_each_time(world: World) -> None:
    answer = world.beat(FakePeer(), "c1", consumer(subscription("orders")))
    assert (answer.supports_v2, answer.subscription_changed) == (True, True)


def test_the_second_form_tells_its_subscriptions_once(world: World) -> None:
    peer = FakePeer()
    answer = world.beat(peer, "c1", consumer(subscription("orders")), heartbeatFingerprint=77)
    assert (answer.supports_v2, answer.subscription_changed) == (True, False)
    answer = world.beat(peer, "c1", consumer(), heartbeatFingerprint=77, withoutSub=True)
    assert not answer.subscription_changed
    assert world.topics_of() == {"orders": "*"}, "those that are known stay"
    other = FakePeer("b:1")
    answer = world.beat(other, "c2", consumer(), heartbeatFingerprint=77, withoutSub=True)
    assert (answer.subscription_changed, world.ids()) == (False, ["c1", "c2"])


def test_a_broker_that_does_not_know_the_subscriptions_asks_for_them(world: World) -> None:
    peer = FakePeer()
    answer = world.beat(peer, "c1", consumer(), heartbeatFingerprint=77, withoutSub=True)
    assert answer.subscription_changed, "for instance after a restart"
    assert world.ids() == ["c1"], "it is a member all the same: others must not take its queues"
    assert world.topics_of() == {}
    answer = world.beat(peer, "c1", consumer(subscription("orders")), heartbeatFingerprint=77)
    assert not answer.subscription_changed
    assert world.topics_of() == {"orders": "*"}


def test_a_change_of_subscriptions_is_told_by_its_number(world: World) -> None:
    one, other = FakePeer("a:1"), FakePeer("b:1")
    world.beat(one, "c1", consumer(subscription("orders")), heartbeatFingerprint=1)
    answer = world.beat(other, "c2", consumer(subscription("bills", version=2)), heartbeatFingerprint=2)
    assert answer.subscription_changed
    assert world.topics_of() == {"bills": "*"}, "the last one to speak is believed"
    answer = world.beat(one, "c1", consumer(), heartbeatFingerprint=1, withoutSub=True)
    assert answer.subscription_changed, "what the group has now is not what this one told"
    assert world.topics_of() == {"bills": "*"}
    world.beat(one, "c1", consumer(subscription("orders")), heartbeatFingerprint=1)
    assert world.topics_of() == {"orders": "*"}


# --- members that disagree -------------------------------------------------------------------------------------------


def test_different_subscriptions_in_one_group_are_warned_of_once(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    one, other = FakePeer("a:1"), FakePeer("b:1")
    for _ in range(3):
        world.beat(one, "c1", consumer(subscription("orders", "paid")))
        world.beat(other, "c2", consumer(subscription("orders", "open", version=2)))
    assert len(caplog.messages) == 1
    assert "c2 wants orders (TAG 'open') where c1 wants orders (TAG 'paid')" in caplog.text
    caplog.clear()
    world.beat(one, "c1", consumer(subscription("orders", "open", version=3)))
    world.beat(other, "c2", consumer(subscription("bills", version=4)))
    assert len(caplog.messages) == 1, "they had agreed in between"


# --- subscriptions that are asked about ------------------------------------------------------------------------------


def check(world: World, **subscription_data: Any) -> int:
    body = orjson.dumps({"clientId": "c", "group": "g", "subscriptionData": subscription(**subscription_data)})
    return world.members.check_config(CheckClientConfig(body=body), FakePeer()).code


def test_a_client_asks_whether_its_expression_is_understood(world: World) -> None:
    assert check(world, topic="orders", expression="a > 1", kind="SQL92") == 0
    with pytest.raises(FilterSyntaxError):
        check(world, topic="orders", expression="a > ", kind="SQL92")
    assert world.members.check_config(CheckClientConfig(body=b"{}"), FakePeer()).code == 0
    for body in (b"", b'{"subscriptionData": 3}', b'{"subscriptionData": {}}'):
        with pytest.raises(BadRequest):
            world.members.check_config(CheckClientConfig(body=body), FakePeer())


def test_expressions_can_be_switched_off() -> None:
    world = World(sql_filters=False)
    with pytest.raises(ServiceError, match="does not support consumer to filter message by SQL92") as refused:
        check(world, topic="orders", expression="a > 1", kind="SQL92")
    assert refused.value.code == 1
    assert check(world, topic="orders", expression="a || b") == 0
    world.parts.close()


def test_a_line_of_the_log_does_not_repeat_thousands_of_subscriptions(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    world.beat(FakePeer("a:1"), "c1", consumer(subscription("orders")))
    world.beat(FakePeer("b:1"), "c2", consumer(*[subscription(f"t{number:04}") for number in range(3000)]))
    assert "t0009 (TAG '*'), and 2990 more where c1 wants orders (TAG '*')" in caplog.text
    assert "t0010" not in caplog.text


# --- locks -----------------------------------------------------------------------------------------------------------


def locking(client_id: str, *queues: int) -> bytes:
    wanted = [{"topic": "orders", "brokerName": "broker-a", "queueId": queue} for queue in queues]
    return orjson.dumps({"consumerGroup": "readers", "clientId": client_id, "mqSet": wanted})


def locked(world: World, client_id: str, *queues: int) -> list[int]:
    answer = world.members.lock(LockQueues(body=locking(client_id, *queues)), FakePeer())
    assert isinstance(answer.body, bytes)
    return [queue["queueId"] for queue in orjson.loads(answer.body)["lockOKMQSet"]]


def test_queues_are_shared_out_by_locks(world: World) -> None:
    world.parts.topics.make(TopicConfig("orders", 4, 4))
    assert locked(world, "c1", 0, 1) == [0, 1]
    assert locked(world, "c2", 1, 2) == [2]
    world.members.unlock(UnlockQueues(body=locking("c1", 1, 2)), FakePeer())
    assert locked(world, "c2", 0, 1, 2) == [1, 2]
    world.clock.advance(50)
    assert locked(world, "c2", 1) == [1], "renewed"
    world.clock.advance(20)
    assert locked(world, "c3", 0, 1, 2) == [0, 2], "those that were not renewed ran out"
    world.clock.advance(100)
    world.members.expire()
    assert len(world.locks) == 0
    for body in (
        b"",
        b"[]",
        b'{"consumerGroup": "g"}',
        b'{"consumerGroup":"g","clientId":"c","mqSet":[{"topic":"t"}]}',
    ):
        with pytest.raises(BadRequest):
            world.members.lock(LockQueues(body=body), FakePeer())


def test_only_queues_that_are_there_can_be_locked(world: World) -> None:
    assert locked(world, "c1", 0) == [], "there is no such topic"
    world.parts.topics.make(TopicConfig("orders", 2, 3))
    assert locked(world, "c1", -1, 0, 1, 2, 3, 100_000) == [0, 1, 2]
    assert len(world.locks) == 3
    with pytest.raises(BadRequest, match="16385 queues, the limit is 16384"):
        locked(world, "c1", *range(16_385))
    with pytest.raises(BadRequest, match="bytes, the limit is 4194304"):
        locked(world, "c1", *range(100_000))
    with pytest.raises(BadRequest, match="5000 characters"):
        locked(world, "c" * 5000, 0)
    with pytest.raises(GroupNotFound):
        world.members.lock(LockQueues(body=locking("c1", 0).replace(b"readers", b"nobody")), FakePeer())
    assert len(world.locks) == 3


# --- many at once ----------------------------------------------------------------------------------------------------


def slices_used(ask: Callable[[], Awaitable[Response] | Response]) -> tuple[Response, int]:
    """An answer, and in how many slices it was made if every look at the CPU clock took a hundredth of one."""

    async def story() -> tuple[Response, int]:
        queue = slices_of(asyncio.get_running_loop())
        looks = count()
        queue.cpu_time = lambda: next(looks) * SLICE_SECONDS / 100
        answer = ask()
        response = answer if isinstance(answer, Response) else await answer
        return response, next(looks) // 100

    return asyncio.run(story())


def test_a_heartbeat_with_many_subscriptions_is_taken_in_slices(world: World) -> None:
    many = consumer(*[subscription(f"t{number}", f"a = {number}", "SQL92") for number in range(2000)])
    body = orjson.dumps({"clientID": "c1", "consumerDataSet": [many]})
    request = Heartbeat(body=body, command=Command(34))
    answer, slices = slices_used(lambda: world.members.heartbeat(request, FakePeer()))
    assert answer.code == 0
    assert slices >= 10
    group = world.consumers.get("readers")
    assert group is not None
    assert len(group.subscriptions) == 2000


def test_a_client_that_left_while_its_heartbeat_was_read_does_not_come_back(world: World) -> None:
    peer = FakePeer()
    groups = [consumer(group=f"g{number}") for number in range(1000)]
    request = Heartbeat(body=orjson.dumps({"clientID": "c1", "consumerDataSet": groups}), command=Command(34))

    async def story() -> None:
        answer = world.members.heartbeat(request, peer)
        assert not isinstance(answer, Response)
        peer.is_open = False
        await answer

    asyncio.run(story())
    assert not any(world.consumers.get(f"g{number}") for number in range(1000))


@pytest.mark.parametrize("kind", [LockQueues, UnlockQueues])
def test_many_queues_are_locked_in_slices(world: World, kind: type[LockQueues | UnlockQueues]) -> None:
    world.parts.topics.make(TopicConfig("large", 4000, 4000))
    queues = [{"topic": "large", "brokerName": "b", "queueId": number} for number in range(4000)]
    body = orjson.dumps({"consumerGroup": "readers", "clientId": "c1", "mqSet": queues})
    handle = world.members.lock if kind is LockQueues else world.members.unlock
    answer, slices = slices_used(lambda: handle(kind(body=body), FakePeer()))  # type: ignore[arg-type]
    assert slices >= 10
    if kind is LockQueues:
        assert isinstance(answer.body, bytes)
        assert len(orjson.loads(answer.body)["lockOKMQSet"]) == 4000
