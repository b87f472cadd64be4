"""A name server over real sockets: requests of brokers, clients and admin tools, and their answers."""

from __future__ import annotations

import asyncio
import json
import logging
import zlib
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from pyromq.clock import ManualClock
from pyromq.config import NameServerConfig
from pyromq.errors import ConfigError
from pyromq.model.data_version import DataVersion
from pyromq.model.topic import TopicConfig
from pyromq.nameserver.assembly import NameServer
from pyromq.net.client import Client
from pyromq.net.connection import Connection, Home
from pyromq.records.checksum import positive_crc32
from pyromq.wire.bodies.routes import (
    ClusterInfo,
    MemberGroup,
    QueueData,
    TopicConfigs,
    TopicList,
    TopicRoute,
    decode_data_version,
    decode_kv_table,
    encode_data_version,
    encode_registration,
)
from pyromq.wire.codes import ResponseCode
from pyromq.wire.command import Command
from pyromq.wire.frames import decode_frame, encode_frame
from pyromq.wire.requests import nameserver as ask
from pyromq.wire.requests.client import Request, encode_request

VERSION = DataVersion(1, 2, 0)
CONFIGS = TopicConfigs(VERSION, (TopicConfig("orders", 4, 4), TopicConfig("payments", 8, 8)))
WHO = {"broker_name": "broker-a", "address": "127.0.0.1:10911", "cluster": "DefaultCluster", "broker_id": 0}


def registration(configs: TopicConfigs = CONFIGS, *, compressed: bool = False, **changes: object) -> ask.RegisterBroker:
    body = encode_registration(configs, compressed=compressed)
    fields: dict[str, object] = {"body": body, "body_crc": positive_crc32(body), "compressed": compressed}
    return ask.RegisterBroker(**{**WHO, "acting_master": False, **fields, **changes})  # type: ignore[arg-type]


class Desk:
    """Asks one name server over one connection."""

    def __init__(self, server: NameServer, client: Client) -> None:
        self.server = server
        self.client = client

    async def ask(self, request: Request) -> Command:
        return await self.client.call(self.server.address, request)

    async def ok(self, request: Request) -> Command:
        answer = await self.ask(request)
        assert (answer.code, answer.reason) == (0, None)
        return answer

    async def route(self, topic: str) -> TopicRoute:
        return TopicRoute.decode((await self.ok(ask.GetRoute(topic=topic))).body)

    async def topics(self, request: Request) -> set[str]:
        return set(TopicList.decode((await self.ok(request)).body).topics)


@asynccontextmanager
async def desk(clock: ManualClock | None = None, **settings: object) -> AsyncIterator[Desk]:
    server = NameServer(NameServerConfig(listen_port=0, **settings), clock)  # type: ignore[arg-type]
    await server.start()
    client = Client()
    try:
        yield Desk(server, client)
    finally:
        await client.close()
        await server.stop()


def story(tell: Callable[[Desk], Awaitable[None]], **settings: object) -> None:
    async def run() -> None:
        async with desk(**settings) as here:  # type: ignore[arg-type]
            await tell(here)

    asyncio.run(run())


async def until(holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(5):
        while not holds():  # noqa: ASYNC110  nothing tells when the other end has seen a closed connection
            await asyncio.sleep(0.005)


# --- brokers and routes ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("compressed", [False, True])
def test_a_broker_registers_and_clients_find_its_topics(compressed: bool) -> None:
    async def tell(here: Desk) -> None:
        missing = await here.ask(ask.GetRoute(topic="orders"))
        assert missing.code == ResponseCode.TOPIC_NOT_EXIST
        assert "orders" in (missing.reason or "")

        answer = await here.ok(registration(compressed=compressed))
        assert answer.fields == {}
        assert answer.body == b""
        route = await here.route("orders")
        assert route.queues == (QueueData("broker-a", 4, 4, 6),)
        assert route.brokers[0].addresses == {0: "127.0.0.1:10911"}

        slave = await here.ok(registration(broker_id=1, address="127.0.0.1:10921", ha_address="127.0.0.1:10922"))
        assert slave.fields == {"masterAddr": "127.0.0.1:10911", "haServerAddr": ""}
        group = MemberGroup.decode((await here.ok(ask.GetMemberGroup(cluster="c", broker_name="broker-a"))).body)
        assert group.addresses == {0: "127.0.0.1:10911", 1: "127.0.0.1:10921"}
        info = ClusterInfo.decode((await here.ok(ask.GetClusterInfo())).body)
        assert info.clusters == {"DefaultCluster": ("broker-a",)}

        await here.ok(ask.UnregisterBroker(**WHO))  # type: ignore[arg-type]
        assert (await here.route("orders")).brokers[0].addresses == {1: "127.0.0.1:10921"}

    story(tell)


def test_old_clients_get_bare_keys_unless_they_ask_for_standard_json() -> None:
    async def tell(here: Desk) -> None:
        await here.ok(registration())
        for version, standard_only, quoted in ((317, False, False), (317, True, True), (493, False, True)):
            command = encode_request(ask.GetRoute(topic="orders", standard_json_only=standard_only), 7)
            command.version = version
            body = (await _exchange(here.server.port, command)).body
            assert (b'{"0":"127.0.0.1:10911"}' in body) is quoted
            assert (b'{0:"127.0.0.1:10911"}' in body) is not quoted

    story(tell)


async def _exchange(port: int, command: Command) -> Command:
    """As a client of any version would."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(encode_frame(command))
    size = await reader.readexactly(4)
    frame = size + await reader.readexactly(int.from_bytes(size, "big"))
    writer.close()
    await writer.wait_closed()
    return decode_frame(memoryview(frame), 0, len(frame))


def test_a_broker_asks_whether_its_topics_are_known() -> None:
    async def tell(here: Desk) -> None:
        question = ask.QueryDataVersion(**WHO, body=encode_data_version(VERSION))  # type: ignore[arg-type]
        unknown = await here.ok(question)
        assert (unknown.fields, unknown.body) == ({"changed": "true"}, b"")
        await here.ok(registration())
        assert (await here.ok(question)).fields == {"changed": "false"}
        question.body = encode_data_version(DataVersion(1, 3))
        changed = await here.ok(question)
        assert changed.fields == {"changed": "true"}
        assert decode_data_version(changed.body) == VERSION

    story(tell)


@pytest.mark.parametrize(
    "damaged",
    [
        registration(body_crc=17),
        registration(body=b"{", body_crc=0),
        registration(body=b"[]", body_crc=0),
        registration(body=zlib.compress(b"nonsense"), body_crc=0, compressed=True),
        registration(address="x" * 1000),
    ],
)
def test_a_damaged_registration_is_refused_with_a_reason(damaged: ask.RegisterBroker) -> None:
    async def tell(here: Desk) -> None:
        answer = await here.ask(damaged)
        assert answer.code == ResponseCode.INVALID_PARAMETER
        assert answer.reason
        assert here.server.table.members() == ()

    story(tell)


def test_a_broker_whose_connection_breaks_is_forgotten(caplog: pytest.LogCaptureFixture) -> None:
    async def tell(here: Desk) -> None:
        broker = Client()
        await broker.call(here.server.address, registration())
        assert await here.route("orders")
        await broker.close()
        await until(lambda: not here.server.table.members())
        assert (await here.ask(ask.GetRoute(topic="orders"))).code == ResponseCode.TOPIC_NOT_EXIST

    with caplog.at_level(logging.WARNING):
        story(tell)
    assert "broker-a (id 0) at 127.0.0.1:10911 is forgotten: its connection broke" in caplog.text


def test_a_silent_broker_is_forgotten_and_its_connection_closed() -> None:
    clock = ManualClock()

    async def tell(here: Desk) -> None:
        loop = asyncio.get_running_loop()
        _, broker = await loop.create_connection(lambda: Connection(Home(None)), "127.0.0.1", here.server.port)
        await broker.call(registration(timeout_ms=10_000), 3)
        clock.advance(9)
        await broker.call(ask.BrokerHeartbeat(**WHO), 3)  # type: ignore[arg-type]
        clock.advance(9)
        here.server._processors.expire()
        assert here.server.table.members()
        clock.advance(2)
        await until(lambda: not here.server.table.members())
        await until(lambda: not broker.is_open)

    story(tell, clock=clock, scan_interval_ms=10)


def test_several_name_servers_know_nothing_of_each_other() -> None:
    async def run() -> None:
        async with desk() as one, desk() as other:
            await one.ok(registration())
            await other.ok(registration())
            await one.ok(ask.DeleteTopicFromNameServer(topic="orders"))
            assert (await one.ask(ask.GetRoute(topic="orders"))).code == ResponseCode.TOPIC_NOT_EXIST
            assert await other.route("orders")

    asyncio.run(run())


# --- lists and admin -------------------------------------------------------------------------------------------------


def test_topic_lists() -> None:
    async def tell(here: Desk) -> None:
        flagged = TopicConfigs(VERSION, (TopicConfig("unit", system_flag=3), TopicConfig("sub", system_flag=2)))
        await here.ok(registration(flagged))
        assert await here.topics(ask.GetTopicList()) == {"unit", "sub"}
        assert await here.topics(ask.GetTopicsOfCluster(cluster="DefaultCluster")) == {"unit", "sub"}
        assert await here.topics(ask.GetSystemTopics()) == {"DefaultCluster", "broker-a"}
        assert await here.topics(ask.GetUnitTopics()) == {"unit"}
        assert await here.topics(ask.GetUnitSubscribedTopics()) == {"unit", "sub"}
        assert await here.topics(ask.GetUnitSubscribedCommonTopics()) == {"sub"}

    story(tell)


def test_topic_lists_can_be_switched_off() -> None:
    async def tell(here: Desk) -> None:
        answer = await here.ask(ask.GetTopicList())
        assert answer.code == ResponseCode.SERVICE_NOT_AVAILABLE
        assert "topic_lists_enabled" in (answer.reason or "")

    story(tell, topic_lists_enabled=False)


def test_topics_are_made_and_write_permission_is_taken_and_given() -> None:
    async def tell(here: Desk) -> None:
        await here.ok(registration())
        made = TopicRoute((QueueData("broker-a", 1, 1, 6),))
        await here.ok(ask.RegisterTopic(topic="made", body=made.encode(standard=True)))
        assert (await here.route("made")).queues == made.queues
        strange = TopicRoute((QueueData("unheard-of", 1, 1, 6),))
        await here.ok(ask.RegisterTopic(topic="strange", body=strange.encode(standard=True)))
        assert (await here.ask(ask.GetRoute(topic="strange"))).code == ResponseCode.TOPIC_NOT_EXIST

        wiped = await here.ok(ask.WipeWritePermission(broker_name="broker-a"))
        assert wiped.fields == {"wipeTopicCount": "3"}
        assert (await here.route("made")).queues[0].permission == 4
        added = await here.ok(ask.AddWritePermission(broker_name="broker-a"))
        assert added.fields == {"addTopicCount": "3"}
        await here.ok(ask.DeleteTopicFromNameServer(topic="made", cluster="DefaultCluster"))
        assert (await here.ask(ask.GetRoute(topic="made"))).code == ResponseCode.TOPIC_NOT_EXIST

    story(tell)


def test_order_settings_go_to_clients_and_brokers() -> None:
    async def tell(here: Desk) -> None:
        await here.ok(ask.PutKv(namespace="ORDER_TOPIC_CONFIG", key="orders", value="broker-a:4"))
        answer = await here.ok(registration())
        assert decode_kv_table(answer.body) == {"orders": "broker-a:4"}
        assert (await here.route("orders")).order_conf == "broker-a:4"
        assert (await here.route("payments")).order_conf is None

    story(tell, order_messages_enabled=True)


def test_order_settings_can_be_kept_back() -> None:
    async def tell(here: Desk) -> None:
        await here.ok(ask.PutKv(namespace="ORDER_TOPIC_CONFIG", key="orders", value="broker-a:4"))
        assert (await here.ok(registration())).body == b""
        assert (await here.route("orders")).order_conf is None

    story(tell, return_order_topics=False)


def test_key_value_settings_survive_a_restart(tmp_path: Path) -> None:
    path = tmp_path / "kvConfig.json"

    async def first(here: Desk) -> None:
        await here.ok(ask.PutKv(namespace="space", key="kept", value="1"))
        await here.ok(ask.PutKv(namespace="space", key="gone", value="2"))
        await here.ok(ask.DeleteKv(namespace="space", key="gone"))
        assert json.loads(path.read_bytes())["configTable"] == {"space": {"kept": "1"}}

    async def second(here: Desk) -> None:
        assert (await here.ok(ask.GetKv(namespace="space", key="kept"))).fields == {"value": "1"}
        assert (await here.ask(ask.GetKv(namespace="space", key="gone"))).code == ResponseCode.QUERY_NOT_FOUND
        assert decode_kv_table((await here.ok(ask.GetKvList(namespace="space"))).body) == {"kept": "1"}
        assert (await here.ask(ask.GetKvList(namespace="none"))).code == ResponseCode.QUERY_NOT_FOUND

    story(first, kv_config_path=path)
    story(second, kv_config_path=path)


def test_settings_are_told_in_rocketmq_s_words_and_not_changed_over_the_network() -> None:
    async def tell(here: Desk) -> None:
        told = (await here.ok(ask.GetNameServerConfig())).body.decode().splitlines()
        assert "listenPort=0" in told
        assert "orderMessageEnable=false" in told, "as RocketMQ has it: stale orders name queues that are gone"
        answer = await here.ask(ask.UpdateNameServerConfig(body=b"kvConfigPath=/etc/passwd\nlistenPort=1\n"))
        assert answer.code == ResponseCode.NO_PERMISSION
        assert "kvConfigPath, listenPort" in (answer.reason or "")
        assert (await here.ask(ask.UpdateNameServerConfig(body=b"\xff"))).code == ResponseCode.INVALID_PARAMETER

    story(tell)


def test_names_from_the_network_cannot_fake_log_lines(caplog: pytest.LogCaptureFixture) -> None:
    async def tell(here: Desk) -> None:
        await here.ok(ask.DeleteTopicFromNameServer(topic="x\nERROR all is lost" + "y" * 500))
        answer = await here.ask(ask.GetRoute(topic="z" * 5000))
        assert len(answer.reason or "") < 300

    with caplog.at_level(logging.INFO):
        story(tell)
    assert "x\\nERROR" in caplog.text
    assert "\nERROR" not in caplog.text


def test_a_port_that_is_taken_is_told() -> None:
    async def tell(here: Desk) -> None:
        twin = NameServer(NameServerConfig(listen_port=here.server.port))
        with pytest.raises(ConfigError, match="another program listens there"):
            await twin.start()
        await twin.stop()

    story(tell)
