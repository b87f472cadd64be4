"""The queues of a topic, and clients whose name servers do not answer."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from pyromq.client.routes import GONE_ROUNDS, Routes, writable_queues
from pyromq.errors import CallTimeout, TopicNotFound, Unreachable
from pyromq.model.names import DEFAULT_TOPIC
from pyromq.model.queue import MessageQueue
from pyromq.wire.bodies.routes import BrokerData, QueueData, TopicRoute
from pyromq.wire.command import Command
from pyromq.wire.requests.client import Request
from pyromq.wire.requests.nameserver import GetRoute

READ_WRITE, READ_ONLY = 6, 4


def route(*names: str, queues: int = 2, permission: int = READ_WRITE, **more: str) -> TopicRoute:
    return TopicRoute(
        tuple(QueueData(name, queues, queues, permission) for name in names),
        tuple(BrokerData("c", name, {0: f"{name}:10911", 1: f"{name}:10921"}) for name in names),
        **more,
    )


class NameServers:
    """Those that answer, by address, and what they know."""

    def __init__(self, **topics: TopicRoute) -> None:
        self.topics = topics
        self.dead: set[str] = set()
        self.asked: list[str] = []
        self.before_answer: Callable[[], None] = lambda: None

    async def ask(self, address: str, request: Request) -> Command:
        assert isinstance(request, GetRoute)
        self.asked.append(address)
        await asyncio.sleep(0)
        if address in self.dead:
            raise CallTimeout(f"{address} gave no answer")
        self.before_answer()
        found = self.topics.get(request.topic)
        if found is None:
            raise TopicNotFound("no such topic")
        return Command(code=0, body=found.encode(standard=True))


def test_queues_of_all_brokers_in_their_order() -> None:
    async def story() -> None:
        routes = Routes(["ns:1"], NameServers(orders=route("b", "a")).ask)
        found = await routes.writable("orders")
        assert found == tuple(MessageQueue("orders", name, number) for name in "ab" for number in (0, 1))
        assert await routes.readable("orders") == found
        assert routes.address("a") == "a:10911"
        assert routes.address("a", 1) == "a:10921"
        assert routes.address("nobody") is None

    asyncio.run(story())


def test_a_topic_that_may_only_be_read_has_no_queue_to_write_to() -> None:
    assert writable_queues("orders", route("a", permission=READ_ONLY)) == ()


def test_a_broker_without_a_master_takes_no_messages_and_gives_some() -> None:
    async def story() -> None:
        slave_only = TopicRoute((QueueData("a", 2, 2, READ_WRITE),), (BrokerData("c", "a", {1: "a:10921"}),))
        routes = Routes(["ns:1"], NameServers(orders=slave_only).ask)
        assert await routes.writable("orders") == ()
        assert len(await routes.readable("orders")) == 2

    asyncio.run(story())


def test_a_topic_with_an_order_has_the_queues_that_it_says() -> None:
    found = writable_queues("orders", route("a", "b", order_conf="b:1;a:2;junk;c:x"))
    assert found == (MessageQueue("orders", "b", 0), MessageQueue("orders", "a", 0), MessageQueue("orders", "a", 1))


def test_a_topic_that_is_not_there_yet_has_the_queues_that_it_would_get() -> None:
    async def story() -> None:
        routes = Routes(["ns:1"], NameServers(**{DEFAULT_TOPIC: route("a", queues=8)}).ask)
        assert await routes.writable("new") == tuple(MessageQueue("new", "a", number) for number in range(4))
        assert len(await routes.writable("new", new_queues=2)) == 2
        assert not routes.is_known("new")
        with pytest.raises(TopicNotFound, match="no broker has the topic 'new'"):
            await routes.readable("new")

    asyncio.run(story())


def test_where_no_broker_makes_topics_that_is_said() -> None:
    async def story() -> None:
        with pytest.raises(TopicNotFound, match="'new', and none makes it on its own: create it first"):
            await Routes(["ns:1"], NameServers().ask).writable("new")

    asyncio.run(story())


def test_when_one_name_server_is_down_the_next_one_is_asked_and_asked_first_from_then_on() -> None:
    async def story() -> None:
        servers = NameServers(orders=route("a"))
        servers.dead = {"ns:1"}
        routes = Routes(["ns:1", "ns:2"], servers.ask)
        await routes.of("orders")
        await routes.refresh("orders")
        assert servers.asked == ["ns:1", "ns:2", "ns:2"]

    asyncio.run(story())


def test_when_all_are_down_what_is_known_stays() -> None:
    async def story() -> None:
        servers = NameServers(orders=route("a"))
        routes = Routes(["ns:1", "ns:2"], servers.ask)
        await routes.of("orders")
        servers.dead = {"ns:1", "ns:2"}
        await routes.refresh_all()
        assert len(await routes.writable("orders")) == 2
        with pytest.raises(Unreachable, match=r"no name server answers: .*ns:1.*ns:2.*`pyromq up` starts one"):
            await routes.of("other")

    asyncio.run(story())


def test_those_who_ask_at_the_same_time_share_one_request() -> None:
    async def story() -> None:
        servers = NameServers(orders=route("a"))
        routes = Routes(["ns:1"], servers.ask)
        await asyncio.gather(*(routes.of("orders") for _ in range(10)))
        assert servers.asked == ["ns:1"]

    asyncio.run(story())


def test_one_who_stops_waiting_does_not_take_the_answer_from_the_others() -> None:
    async def story() -> None:
        routes = Routes(["ns:1"], NameServers(orders=route("a")).ask)
        first, second = asyncio.ensure_future(routes.of("orders")), asyncio.ensure_future(routes.of("orders"))
        await asyncio.sleep(0)
        first.cancel()
        assert (await second).queues

    asyncio.run(story())


def test_a_change_is_told_and_the_same_again_is_not() -> None:
    async def story() -> None:
        servers, changed = NameServers(orders=route("a")), list[str]()
        routes = Routes(["ns:1"], servers.ask)
        routes.on_change.append(changed.append)
        await routes.of("orders")
        await routes.refresh_all()
        assert changed == []
        servers.topics["orders"] = route("a", "b")
        await routes.refresh_all()
        assert changed == ["orders"]
        assert set(routes.brokers()) == {"a", "b"}

    asyncio.run(story())


def test_a_topic_that_was_deleted_is_forgotten() -> None:
    async def story() -> None:
        servers = NameServers(orders=route("a"))
        routes = Routes(["ns:1"], servers.ask)
        await routes.of("orders")
        changed: list[str] = []
        routes.on_change.append(changed.append)
        del servers.topics["orders"]
        await routes.refresh_all()
        assert routes.is_known("orders"), "a name server that was just started may not know it yet"
        for _ in range(GONE_ROUNDS - 1):
            await routes.refresh_all()
        assert not routes.is_known("orders")
        assert changed == ["orders"]

    asyncio.run(story())


def test_a_route_that_cannot_be_read_is_said() -> None:
    async def story() -> None:
        async def ask(_: str, __: Request) -> Command:
            return Command(code=0, body=b"[1, 2")

        with pytest.raises(Unreachable, match="a route of 'orders' that cannot be read"):
            await Routes(["ns:1"], ask).of("orders")

    asyncio.run(story())
