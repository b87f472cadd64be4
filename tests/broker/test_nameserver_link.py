"""A broker and its name servers: it is known to all that answer, and to the others as soon as they do."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import pytest

from late import in_time
from pyromq.broker import nameserver_link
from pyromq.broker.nameserver_link import Registrar
from pyromq.clock import SystemClock
from pyromq.config import BrokerConfig, NameServerConfig, StoreConfig
from pyromq.errors import ConfigError
from pyromq.model.data_version import DataVersion
from pyromq.model.topic import TopicConfig
from pyromq.nameserver.assembly import NameServer
from pyromq.nameserver.route_table import Registration
from pyromq.net.client import Client
from pyromq.net.peer import Peer
from pyromq.net.server import Server
from pyromq.wire.bodies.routes import TopicConfigs
from pyromq.wire.codes import ResponseCode
from pyromq.wire.command import Command
from pyromq.wire.requests import nameserver as ask
from pyromq.wire.responses import Response


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nameserver_link, "FIRST_RETRY_SECONDS", 0.02)
    monkeypatch.setattr(nameserver_link, "LONGEST_RETRY_SECONDS", 0.04)
    monkeypatch.setattr(nameserver_link, "CHECK_SECONDS", 0.05)
    monkeypatch.setattr(nameserver_link, "START_SECONDS", 0.5)


@asynccontextmanager
async def name_server(port: int = 0) -> AsyncIterator[NameServer]:
    server = NameServer(NameServerConfig(listen_port=port))
    await server.start()
    try:
        yield server
    finally:
        await server.stop()


class Broker:
    """As much of a broker as a name server sees."""

    def __init__(self, *name_servers: str, address: str = "127.0.0.1:10911", **settings: object) -> None:
        self.config = BrokerConfig(
            name_servers=name_servers, store=StoreConfig(root=Path("unused")), **settings  # type: ignore[arg-type]
        )  # fmt: skip
        self.topics = [TopicConfig("SELF_TEST_TOPIC", 1, 1), TopicConfig("TBW102", 8, 8, 7)]
        self.version = DataVersion(0, 1)
        self.asked = 0
        self.client = Client()
        self.registrar = Registrar(
            lambda: self.config, address, self._told, self.client, SystemClock(), ha_address="127.0.0.1:10912"
        )

    def _told(self) -> tuple[DataVersion, list[TopicConfig]]:
        self.asked += 1
        return self.version, self.topics

    def make(self, topic: TopicConfig) -> None:
        self.topics.append(topic)
        self.version = self.version.next(1)
        self.registrar.topics_changed()

    async def __aenter__(self) -> Broker:
        await self.registrar.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.registrar.stop()
        await self.client.close()


async def until(holds: Callable[[], object]) -> None:
    async with asyncio.timeout(5):
        while not holds():  # noqa: ASYNC110  nothing tells what another process of the story has seen
            await asyncio.sleep(0.005)


def topics_at(server: NameServer) -> set[str]:
    return set(server.table.topics().topics)


# --- registering -----------------------------------------------------------------------------------------------------


def test_a_broker_is_known_to_all_its_name_servers_when_it_has_started_and_to_none_when_it_stopped() -> None:
    async def run() -> None:
        async with name_server() as one, name_server() as other, Broker(one.address, other.address) as broker:
            for server in (one, other):
                [member] = server.table.members()
                assert (member.broker_name, member.address, member.cluster) == (
                    "broker-a", "127.0.0.1:10911", "DefaultCluster",
                )  # fmt: skip
                assert (member.ha_address, member.timeout_ms) == ("127.0.0.1:10912", 120_000)
                assert topics_at(server) == {"SELF_TEST_TOPIC", "TBW102"}
            assert broker.registrar.registered_with == (one.address, other.address)
            await broker.registrar.stop()  # while the connection is still there: it was goodbye, not a loss
            assert one.table.members() == other.table.members() == ()
            assert broker.client._by_address[one.address].is_open

    asyncio.run(run())


def test_a_new_topic_is_told_at_once_and_several_together() -> None:
    async def run() -> None:
        async with name_server() as server, Broker(server.address) as broker:
            before = broker.asked
            for number in range(100):
                broker.make(TopicConfig(f"topic-{number}"))
            await until(lambda: len(topics_at(server)) == 102)
            assert broker.asked - before <= 2

    asyncio.run(run())


def test_many_topics_go_in_several_requests(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nameserver_link, "TOPICS_PER_REQUEST", 10)

    async def run() -> None:
        async with name_server() as server:
            broker = Broker(server.address)
            broker.topics = [TopicConfig(f"topic-{number}") for number in range(31)]
            async with broker:
                assert len(topics_at(server)) == 31

    asyncio.run(run())


def test_a_broker_that_may_only_be_read_registers_topics_that_may_only_be_read() -> None:
    async def run() -> None:
        async with name_server() as server, Broker(server.address, permission=4):
            route = server.table.route("TBW102")
            assert route is not None
            assert route.queues[0].permission == 4

    asyncio.run(run())


def test_order_settings_are_kept() -> None:
    async def run() -> None:
        async with name_server() as server:
            server.kv.put("ORDER_TOPIC_CONFIG", "orders", "broker-a:4")
            async with Broker(server.address) as broker:
                assert broker.registrar.order_topics == {"orders": "broker-a:4"}

    asyncio.run(run())


def test_it_registers_again_now_and_then() -> None:
    async def run() -> None:
        async with name_server() as server, Broker(server.address, register_interval_ms=20):
            server.table.delete_topic("TBW102")
            await until(lambda: "TBW102" in topics_at(server))

    asyncio.run(run())


# --- name servers that do not answer ---------------------------------------------------------------------------------


def test_without_name_servers_there_is_nothing_to_do() -> None:
    async def run() -> None:
        async with Broker() as broker:
            broker.registrar.topics_changed()

    asyncio.run(run())


def test_a_name_server_that_comes_later_is_told_then_and_the_log_says_it_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def run() -> None:
        async with name_server() as reserved, name_server() as there:
            gone = reserved.address
            await reserved.stop()
            async with Broker(gone, there.address) as broker:
                assert broker.registrar.registered_with == (there.address,)
                await asyncio.sleep(0.2)  # several tries
                async with name_server(int(gone.rpartition(":")[2])) as late:
                    await until(lambda: late.table.members())
                    await until(lambda: broker.registrar.registered_with == (gone, there.address))
                # and it goes away again
                await until(lambda: broker.registrar.registered_with == (there.address,))
                await asyncio.sleep(0.1)
        lines = [one.getMessage() for one in caplog.records if one.name == "pyromq.broker" and gone in one.getMessage()]
        assert [line.split(" the name server")[0] for line in lines] == [
            "not registered with",
            "registered with",
            "not registered with",
        ]

    with caplog.at_level(logging.INFO):
        asyncio.run(run())


def test_a_name_server_that_forgot_us_is_told_again_soon() -> None:
    async def run() -> None:
        async with name_server() as server, Broker(server.address):
            server.table.forget("127.0.0.1:10911")
            await until(lambda: server.table.members())

    asyncio.run(run())


def test_a_name_server_that_never_answers_delays_neither_start_nor_stop_for_long(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(nameserver_link, "START_SECONDS", 0.05)
    monkeypatch.setattr(nameserver_link, "STOP_SECONDS", 0.05)

    async def never(command: Command, peer: Peer) -> Response | None:
        await asyncio.Event().wait()
        return None

    async def run() -> None:
        silent = Server(never)
        await silent.start("127.0.0.1", 0)
        began = time.monotonic()
        async with Broker(f"127.0.0.1:{silent.port}") as broker:
            broker.registrar._links[0].is_registered = True  # as if it had answered before
        in_time(time.monotonic() - began, 2)
        await silent.stop(0)

    asyncio.run(run())


def test_a_name_server_that_refuses_is_tried_on(caplog: pytest.LogCaptureFixture) -> None:
    def refuse(command: Command, peer: Peer) -> Response:
        return Response(code=ResponseCode.SYSTEM_ERROR, reason="not today")

    async def run() -> None:
        server = Server(refuse)
        await server.start("127.0.0.1", 0)
        async with Broker(f"127.0.0.1:{server.port}") as broker:
            assert broker.registrar.registered_with == ()
        await server.stop()

    with caplog.at_level(logging.WARNING):
        asyncio.run(run())
    assert "refused REGISTER_BROKER (1): not today" in caplog.text


# --- two brokers of one name -----------------------------------------------------------------------------------------


@asynccontextmanager
async def alive() -> AsyncIterator[str]:
    """A broker that answers, whatever it is asked."""
    server = Server(lambda command, peer: Response(code=ResponseCode.REQUEST_CODE_NOT_SUPPORTED))
    await server.start("127.0.0.1", 0)
    try:
        yield f"127.0.0.1:{server.port}"
    finally:
        await server.stop()


def test_a_broker_whose_name_was_taken_starts_and_says_so(caplog: pytest.LogCaptureFixture) -> None:
    async def run() -> None:
        async with (
            name_server() as server,
            alive() as first_at,
            Broker(server.address, address=first_at),
            Broker(server.address, address="127.0.0.1:10921") as second,
        ):
            await until(lambda: second.registrar.conflict)
            assert f"a broker with this name and id 0 runs at {first_at}" in second.registrar.conflict
            assert "empty" not in second.registrar.conflict
            assert second.registrar.registered_with == ()
            assert [member.address for member in server.table.members()] == [first_at]

    asyncio.run(run())
    assert "is taken" in caplog.text


def test_the_first_start_of_a_store_under_the_name_of_a_living_broker_is_refused() -> None:
    async def run() -> None:
        async with AsyncExitStack() as stack:
            server = await stack.enter_async_context(name_server())
            first_at = await stack.enter_async_context(alive())
            await stack.enter_async_context(Broker(server.address, address=first_at))
            second = Broker(server.address, address="127.0.0.1:10921")
            with pytest.raises(ConfigError, match=f"a broker with this name and id 0 runs at {first_at}"):
                await second.registrar.start(refuse_twins=True)
            await second.registrar.stop()
            await second.client.close()
            assert [member.address for member in server.table.members()] == [first_at]

    asyncio.run(run())


def test_a_broker_of_another_name_is_welcome() -> None:
    async def run() -> None:
        async with (
            name_server() as server,
            alive() as first_at,
            Broker(server.address, address=first_at),
            Broker(server.address, address="127.0.0.1:10921", name="broker-b"),
        ):
            assert len(server.table.members()) == 2

    asyncio.run(run())


def test_a_broker_that_comes_back_at_its_old_address_is_welcome() -> None:
    async def run() -> None:
        async with (
            name_server() as server,
            alive() as at,
            Broker(server.address, address=at),
            Broker(server.address, address=at) as again,
        ):
            assert again.registrar.registered_with

    asyncio.run(run())


def test_a_broker_that_moved_is_welcome_when_nobody_answers_at_the_old_address() -> None:
    async def run() -> None:
        async with name_server() as server:
            async with alive() as old:
                pass
            async with Broker(server.address, address=old), Broker(server.address, address="127.0.0.1:10921"):
                assert [member.address for member in server.table.members()] == ["127.0.0.1:10921"]

    asyncio.run(run())


def test_a_twin_that_is_found_later_is_not_displaced(caplog: pytest.LogCaptureFixture) -> None:
    async def run() -> None:
        async with alive() as first_at, name_server() as reserved:
            await reserved.stop()
            async with Broker(reserved.address, address="127.0.0.1:10921") as late:
                back = NameServer(NameServerConfig(listen_port=reserved.port))
                configs = TopicConfigs(DataVersion(0, 1), tuple(late.topics))
                first = Registration(
                    cluster="DefaultCluster", broker_name="broker-a", broker_id=0, address=first_at, configs=configs
                )
                back.table.register(first, "its connection", int(SystemClock().monotonic() * 1000))
                await back.start()
                await until(lambda: "is taken" in caplog.text)
                assert late.registrar.registered_with == ()
                assert [member.address for member in back.table.members()] == [first_at]
                back.table.disconnected("its connection")  # the first one ends, and the name is free
                await until(lambda: late.registrar.registered_with)
                await back.stop()

    with caplog.at_level(logging.WARNING):
        asyncio.run(run())


def test_a_name_server_from_before_5_0_is_not_asked_for_twins() -> None:
    async def run() -> None:
        def old(command: Command, peer: Peer) -> Response:
            known = command.code in (ask.RegisterBroker.CODE, ask.UnregisterBroker.CODE)
            return Response(code=0 if known else ResponseCode.REQUEST_CODE_NOT_SUPPORTED)

        server = Server(old)
        await server.start("127.0.0.1", 0)
        async with Broker(f"127.0.0.1:{server.port}") as broker:
            assert broker.registrar.registered_with
        await server.stop()

    asyncio.run(run())


# --- slaves ----------------------------------------------------------------------------------------------------------


def test_a_slave_is_told_where_its_master_is_as_soon_as_there_is_one() -> None:
    async def run() -> None:
        async with name_server() as server:
            told: list[tuple[str | None, str | None]] = []
            slave = Broker(server.address, address="127.0.0.1:10921", role="SLAVE", broker_id=1)
            slave.registrar.on_master = lambda *master: told.append(master)
            slave.registrar.seeks_master = lambda: not told or told[-1][0] is None
            async with slave:
                await until(lambda: told)
                async with Broker(server.address):
                    await until(lambda: told[-1] == ("127.0.0.1:10911", "127.0.0.1:10912"))
                    assert {member.broker_id for member in server.table.members()} == {0, 1}

    asyncio.run(run())


def test_who_has_its_master_does_not_register_more_often() -> None:
    async def run() -> None:
        async with name_server() as server, Broker(server.address) as master:
            slave = Broker(server.address, address="127.0.0.1:10921", role="SLAVE", broker_id=1)
            told: list[object] = []
            slave.registrar.on_master = lambda *at: told.append(at)
            async with slave:
                await until(lambda: told)
                await asyncio.sleep(4 * nameserver_link.CHECK_SECONDS)
                assert len(told) == 1
            assert master.registrar.registered_with

    asyncio.run(run())
