"""Consumers that let the broker share out queues: together they get every queue, each queue once."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.support.admin_parts import AdminParts
from pyromq.broker import cluster_queues
from pyromq.broker.cluster_queues import FRESH_SECONDS, ClusterQueues
from pyromq.broker.requests import assignment as processor
from pyromq.broker.requests.assignment import AssignmentProcessor
from pyromq.broker.state.assignment import STRATEGIES, share_of
from pyromq.broker.state.request_modes import FILE, RequestModeTable
from pyromq.config import LimitsConfig
from pyromq.errors import BadRequest, CorruptFile, GroupNotFound, NoPermission, NotSupported, TopicNotFound
from pyromq.model.topic import TopicConfig
from pyromq.net.client import Client
from pyromq.net.peer import Peer
from pyromq.net.server import Server
from pyromq.net.service import Answer, Service
from pyromq.wire.bodies.routes import QueueData, TopicRoute
from pyromq.wire.codes import ResponseCode
from pyromq.wire.requests import admin as ask
from pyromq.wire.requests.nameserver import GetRoute
from pyromq.wire.responses import Response

# --- sharing out -----------------------------------------------------------------------------------------------------


def shares(strategy: str, queues: int, members: int) -> list[tuple[int, ...]]:
    clients = [f"c{number:03}" for number in range(members)]
    return [share_of(one, reversed(clients), range(queues), STRATEGIES[strategy]) for one in clients]


def test_blocks_and_turns() -> None:
    assert shares("AVG", 8, 3) == [(0, 1, 2), (3, 4, 5), (6, 7)]
    assert shares("AVG_BY_CIRCLE", 8, 3) == [(0, 3, 6), (1, 4, 7), (2, 5)]
    assert shares("AVG", 2, 3) == shares("AVG_BY_CIRCLE", 2, 3) == [(0,), (1,), ()]
    assert share_of("stranger", ["c1"], [1, 2], STRATEGIES["AVG"]) == ()


@given(st.sampled_from(sorted(STRATEGIES)), st.integers(0, 60), st.integers(1, 20))
def test_every_queue_has_one_owner_and_nobody_has_two_more_than_another(name: str, queues: int, members: int) -> None:
    given = shares(name, queues, members)
    assert sorted(queue for share in given for queue in share) == list(range(queues))
    assert max(map(len, given)) - min(map(len, given)) <= 1


# --- asking a broker -------------------------------------------------------------------------------------------------


class Desk(AdminParts):
    """A broker that is asked for queues."""

    def __init__(self, *arguments: Any, **settings: Any) -> None:
        super().__init__(*arguments, **settings)
        self.modes = RequestModeTable(self.disk, self.store.paths.config)
        self.modes.load()
        self.client = Client()
        self.queues = ClusterQueues(self.settings.current, self.topics, self.client, self.clock)
        self.assignment = AssignmentProcessor(
            self.topics, self.groups, self.consumers, self.queues, self.modes, self._changed
        )
        self.service = Service(self.assignment.handlers())

    async def given(self, client_id: str = "c1", **changes: str) -> list[tuple[str, int]] | None:
        """The queues of a client; None: it keeps what it has."""
        question = {
            "topic": "orders", "consumerGroup": "shop", "clientId": client_id, "strategyName": "AVG",
            "messageModel": "CLUSTERING", **changes,
        }  # fmt: skip
        answer = await self.answer(ask.QueryAssignment(body=orjson.dumps(question)))
        assert answer.code == 0, answer.reason
        assert isinstance(answer.body, bytes)
        body = orjson.loads(answer.body)
        if "messageQueueAssignments" not in body:
            return None
        assert all(one["mode"] == "PULL" for one in body["messageQueueAssignments"])
        queues = [one["messageQueue"] for one in body["messageQueueAssignments"]]
        assert all(queue["topic"] == question["topic"] for queue in queues)
        return [(queue["brokerName"], queue["queueId"]) for queue in queues]

    def set_mode(self, mode: str = "PULL", topic: str = "orders", group: str = "shop") -> Response:
        body = {"topic": topic, "consumerGroup": group, "mode": mode, "popShareQueueNum": 0}
        return self.ask(ask.SetRequestMode(body=orjson.dumps(body)))


def test_the_members_of_a_group_share_the_queues() -> None:
    async def story() -> None:
        desk = Desk()
        desk.make_topic(queues=4)
        assert await desk.given() is None, "a group that nobody is in"
        desk.consumer("c2")
        assert await desk.given("c1") == [], "it is no member: whatever it had is another's"
        desk.consumer("c-1")
        assert await desk.given("c-1") == [("broker-a", 0), ("broker-a", 1)]
        assert await desk.given("c2") == [("broker-a", 2), ("broker-a", 3)]
        assert await desk.given("c2", strategyName="AVG_BY_CIRCLE") == [("broker-a", 1), ("broker-a", 3)]
        assert await desk.given("c2", messageModel="BROADCASTING") == [("broker-a", number) for number in range(4)]

    asyncio.run(story())


def test_what_cannot_be_shared_out_leaves_the_client_as_it_is(caplog: pytest.LogCaptureFixture) -> None:
    async def story() -> None:
        desk = Desk()
        desk.consumer("c1")
        assert await desk.given() is None, "no such topic"
        assert await desk.given(messageModel="BROADCASTING") is None
        desk.topics.make(TopicConfig("orders", 4, 4, 2))
        assert await desk.given() is None, "it cannot be read"
        desk.make_topic()
        for _ in range(3):
            assert await desk.given(strategyName="MACHINE_ROOM") is None
        assert (await desk.answer(ask.QueryAssignment(body=b"{}"))).code == BadRequest.code

    with caplog.at_level(logging.WARNING):
        asyncio.run(story())
    assert [record.message for record in caplog.records if "MACHINE_ROOM" in record.message][1:] == []
    assert "brokers know AVG and AVG_BY_CIRCLE" in caplog.text


# --- a topic on several brokers --------------------------------------------------------------------------------------

SEVERAL = TopicRoute((QueueData("broker-b", 2, 2, 6), QueueData("broker-a", 2, 1, 4), QueueData("broker-c", 9, 9, 2)))


class NameServerFake:
    """Answers as scripted."""

    def __init__(self) -> None:
        self.asked = 0
        self.answer: Callable[[], Answer] = lambda: Response(body=SEVERAL.encode(standard=True))

    def route(self, request: GetRoute, peer: Peer) -> Answer:
        self.asked += 1
        return self.answer()


@asynccontextmanager
async def name_server() -> AsyncIterator[tuple[NameServerFake, str]]:
    fake = NameServerFake()
    server = Server(Service({GetRoute: fake.route}).handle, LimitsConfig())
    await server.start("127.0.0.1", 0)
    try:
        yield fake, f"127.0.0.1:{server.port}"
    finally:
        await server.stop(grace_s=0.1)


def with_name_server(tell: Callable[[Desk, NameServerFake], Awaitable[None]], *others: str) -> None:
    async def story() -> None:
        async with name_server() as (fake, address):
            desk = Desk(name_servers=(*others, address))
            desk.make_topic()
            desk.consumer("c1")
            desk.consumer("c2")
            await tell(desk, fake)
            await desk.client.close()

    asyncio.run(story())


def test_the_queues_of_all_brokers_are_shared_out() -> None:
    async def tell(desk: Desk, fake: NameServerFake) -> None:
        assert await desk.given("c1") == [("broker-a", 0), ("broker-a", 1)]
        assert await desk.given("c2") == [("broker-b", 0), ("broker-b", 1)], "broker-c cannot be read"

    with_name_server(tell, "127.0.0.1:1")


def test_members_that_ask_together_cost_one_question_and_a_while_later_another() -> None:
    async def tell(desk: Desk, fake: NameServerFake) -> None:
        await asyncio.gather(*(desk.given("c1") for _ in range(50)))
        assert fake.asked == 1
        desk.time.advance(FRESH_SECONDS)
        await desk.given("c1")
        assert fake.asked == 2
        assert desk.queues._asking == {}

    with_name_server(tell)


def test_a_topic_that_no_name_server_has_heard_of_is_the_broker_s_own() -> None:
    async def tell(desk: Desk, fake: NameServerFake) -> None:
        fake.answer = lambda: Response(code=TopicNotFound.code)
        assert await desk.given("c2") == [("broker-a", 1)]
        desk.topics.remove("orders")
        desk.time.advance(FRESH_SECONDS)
        assert await desk.given("c2") is None

    with_name_server(tell)


def test_while_no_name_server_answers_the_last_answer_holds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cluster_queues, "ASK_SECONDS", 0.05)

    async def never() -> Response:
        await asyncio.Event().wait()
        return Response()

    async def tell(desk: Desk, fake: NameServerFake) -> None:
        before = await desk.given("c2")
        for answer in (never, lambda: Response(code=1), lambda: Response(body=b"no JSON")):
            fake.answer = answer
            desk.time.advance(FRESH_SECONDS)
            assert await desk.given("c2") == before
        desk.make_topic("new")
        assert await desk.given("c1", topic="new") is None, "some of its queues may be elsewhere: better none than few"

    with_name_server(tell)


# --- pulling and popping ---------------------------------------------------------------------------------------------


def test_modes_are_bounded_and_a_known_one_may_be_set_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processor, "MAX_REQUEST_MODES", 2)
    desk = Desk()
    desk.make_topic()
    for group in ("shop", "lab", "third"):
        desk.make_group(group)
    codes = [desk.set_mode(group=group).code for group in ("shop", "lab", "third", "shop")]
    assert codes == [0, 0, ResponseCode.SYSTEM_BUSY, 0]
    assert desk.modes.get("orders", "third") is None


def test_a_mode_is_remembered_and_told() -> None:
    desk = Desk()
    desk.make_topic()
    desk.make_group()
    assert desk.told(ask.GetRequestModes()) == {"messageRequestModeMap": {}}
    changes = desk.changes
    assert desk.set_mode().code == 0
    assert desk.changes == changes + 1, "somebody saves it"
    mode = {"topic": "orders", "consumerGroup": "shop", "mode": "PULL", "popShareQueueNum": 0}
    assert desk.told(ask.GetRequestModes()) == {"messageRequestModeMap": {"orders": {"shop": mode}}}
    assert desk.modes.save()
    assert not desk.modes.save(), "nothing changed since"
    again = RequestModeTable(desk.disk.kill(), desk.store.paths.config)
    again.load()
    assert again.get("orders", "shop") == desk.modes.get("orders", "shop") is not None


def test_modes_that_cannot_be() -> None:
    desk = Desk()
    desk.make_topic()
    desk.make_group()
    popped = desk.set_mode("POP")
    assert (popped.code, "does not let consumers pop" in (popped.reason or "")) == (NotSupported.code, True)
    assert desk.set_mode("SHOUT").code == BadRequest.code
    assert desk.set_mode(topic="%RETRY%shop").code == NoPermission.code
    assert desk.set_mode(topic="unheard-of").code == TopicNotFound.code
    assert desk.set_mode(group="unheard-of").code == GroupNotFound.code
    assert desk.ask(ask.SetRequestMode(body=b"[]")).code == BadRequest.code
    assert desk.modes.all() == {}


def test_a_file_of_rocketmq_is_read_and_damage_is_noticed() -> None:
    desk = Desk()
    path = desk.store.paths.config / FILE
    theirs = (
        b'{"messageRequestModeMap":{"orders":{"shop":{"consumerGroup":"shop","mode":"POP","popShareQueueNum":2,'
        b'"topic":"orders"}}}}'
    )
    desk.disk.replace_bytes(path, theirs)
    table = RequestModeTable(desk.disk, desk.store.paths.config)
    table.load()
    found = table.get("orders", "shop")
    assert found is not None
    assert (found.mode, found.pop_share_queues) == ("POP", 2)
    desk.disk.replace_bytes(path, b"{}")
    with pytest.raises(CorruptFile, match="messageRequestModeMap is missing"):
        RequestModeTable(desk.disk, desk.store.paths.config).load()
