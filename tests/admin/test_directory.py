"""Which servers the directory asks, and its behaviour if they do not answer. A table replaces the network."""

from __future__ import annotations

import asyncio
from collections.abc import Collection

import pytest

from pyromq.admin.directory import BrokerAddress, Directory, of_each, of_reachable
from pyromq.errors import ConfigError, NoPermission, NotFound, PyroMQError, TopicNotFound, Unreachable
from pyromq.wire.bodies.routes import BrokerData, ClusterInfo, QueueData, TopicRoute
from pyromq.wire.command import Command
from pyromq.wire.requests.client import Request
from pyromq.wire.requests.nameserver import GetClusterInfo, GetRoute, PutKv

BROKERS = {
    "a": BrokerData("one", "a", {0: "a:1", 1: "a:2"}),
    "b": BrokerData("two", "b", {1: "b:2"}),
}
CLUSTERS = ClusterInfo(BROKERS, {"one": ("a",), "two": ("b",)})
ROUTE = TopicRoute((QueueData("a", 4, 4, 6), QueueData("b", 4, 4, 6)), tuple(BROKERS.values()))


class Net:
    """The answer of each address; an unknown address does not answer."""

    def __init__(self, **at: PyroMQError | None) -> None:
        self.at = at
        self.asked: list[str] = []

    async def ask(
        self, address: str, request: Request, timeout_s: float | None = None, *, ok: Collection[int] = ()
    ) -> Command:
        self.asked.append(address)
        if address not in self.at:
            raise Unreachable(f"nobody answers at {address}")
        error = self.at[address]
        if error is not None:
            raise error
        bodies = {GetClusterInfo: CLUSTERS.encode(standard=True), GetRoute: ROUTE.encode(standard=True)}
        return Command(0, body=bodies.get(type(request), b""))


def test_the_next_name_server_is_asked_when_one_is_away() -> None:
    net = Net(second=None)
    found = asyncio.run(Directory(net, ["first", "second"]).brokers())
    assert net.asked == ["first", "second"]
    assert [(one.cluster, one.name, one.broker_id, one.address) for one in found] == [
        ("one", "a", 0, "a:1"), ("one", "a", 1, "a:2"), ("two", "b", 1, "b:2"),
    ]  # fmt: skip


def test_when_no_name_server_answers_it_says_what_to_do() -> None:
    with pytest.raises(Unreachable, match="answers at first or second: start one with `pyromq nameserver`"):
        asyncio.run(Directory(Net(), ["first", "second"]).brokers())
    with pytest.raises(ConfigError):
        Directory(Net(), [])


def test_every_name_server_is_told() -> None:
    request = PutKv(namespace="n", key="k", value="v")
    net = Net(first=None, third=None)
    asyncio.run(Directory(net, ["first", "second", "third"]).tell_names(request))
    assert net.asked == ["first", "second", "third"]
    with pytest.raises(Unreachable):
        asyncio.run(Directory(Net(), ["first", "second"]).tell_names(request))
    with pytest.raises(NoPermission):
        asyncio.run(Directory(Net(first=None, second=NoPermission("no")), ["first", "second"]).tell_names(request))


def test_masters_hold_settings_and_a_slave_stands_in_for_reading() -> None:
    directory = Directory(Net(ns=None), ["ns"])
    assert [one.address for one in asyncio.run(directory.masters())] == ["a:1"]
    assert [one.address for one in asyncio.run(directory.masters_of("t"))] == ["a:1", "b:2"]
    assert asyncio.run(directory.broker("a")).address == "a:1"
    assert asyncio.run(directory.broker("a:2")).broker_id == 1


def test_who_is_not_there_is_named_with_those_who_are() -> None:
    directory = Directory(Net(ns=None), ["ns"])
    with pytest.raises(NotFound, match="no broker is called 'z': there are a, b"):
        asyncio.run(directory.broker("z"))
    with pytest.raises(NotFound, match="there is no cluster 'three': there are one"):
        asyncio.run(directory.masters("three"))
    with pytest.raises(TopicNotFound, match="no broker has a topic 'x'"):
        asyncio.run(Directory(Net(ns=TopicNotFound("17")), ["ns"]).route("x"))


def test_many_are_asked_a_few_at_a_time_and_answer_in_order() -> None:
    now = most = 0

    async def ask(number: int) -> int:
        nonlocal now, most
        now += 1
        most = max(most, now)
        await asyncio.sleep(0)
        now -= 1
        return number * 2

    assert asyncio.run(of_each(range(100), ask)) == [number * 2 for number in range(100)]
    assert most == 16


def test_those_who_answer_are_heard_although_one_is_away(caplog: pytest.LogCaptureFixture) -> None:
    brokers = [BrokerAddress("c", name, 0, f"{name}:1") for name in "abc"]

    async def ask(broker: BrokerAddress) -> str:
        if broker.name == "b":
            raise Unreachable("nobody answers at b:1")
        return broker.name * 2

    found = asyncio.run(of_reachable(brokers, ask))
    assert [(broker.name, told) for broker, told in found] == [("a", "aa"), ("c", "cc")]
    assert "left out of what is shown: nobody answers at b:1" in caplog.text
    with pytest.raises(Unreachable):
        asyncio.run(of_reachable(brokers[1:2], ask))
