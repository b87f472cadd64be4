"""A master and its slave, whole brokers in one process: what a slave serves, what it refuses, and how consumers go on
when the master is gone and when it returns."""

from __future__ import annotations

import asyncio
import re
import socket
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import orjson
import pytest

from broker.support.leading_scene import until
from pyromq import Admin, ConsumeFrom, Message, Producer, PullConsumer, ReceivedMessage, accelerated
from pyromq.broker import nameserver_link
from pyromq.broker.broker import Broker
from pyromq.broker.delivery import delays as delays_module
from pyromq.config import BrokerConfig, NameServerConfig, ReplicationConfig, RetentionConfig, StoreConfig
from pyromq.errors import ConfigError, SendError, SendUnknown
from pyromq.nameserver.assembly import NameServer
from pyromq.net.client import Client
from pyromq.records.message_id import decode_message_id
from pyromq.store.log import append_batch
from pyromq.testing.brokers.ports import free_broker_port
from pyromq.wire.codes import ResponseCode
from pyromq.wire.command import Command
from pyromq.wire.requests import admin as ask
from pyromq.wire.requests import client as requests
from pyromq.wire.requests.client import Request

ACCELERATED = accelerated.load("accelerator")

SECONDS = 60
TOPIC, GROUP = "orders", "shop"
CLUSTERED: dict[str, Any] = {"group": GROUP, "topic": TOPIC, "queue_id": 0}


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nameserver_link, "CHECK_SECONDS", 0.1)
    monkeypatch.setattr(nameserver_link, "FIRST_RETRY_SECONDS", 0.05)


class Pair:
    """Both may be stopped and started again; their ports stay the same."""

    def __init__(self, root: Path, name_server: NameServer, role: str) -> None:
        self._root = root
        self.name_server = name_server.address
        self._role = role
        self._ports: defaultdict[str, int] = defaultdict(free_broker_port)
        self._running: dict[str, AsyncExitStack] = {}
        self.brokers: dict[str, Broker] = {}

    def _config(self, name: str, *, leads: bool) -> BrokerConfig:
        is_slave = not leads
        return BrokerConfig(
            name="pair",
            role="SLAVE" if is_slave else self._role,
            broker_id=int(is_slave),
            listen_port=self._ports[name],
            vip_channel=False,
            name_servers=(self.name_server,),
            auto_create_topics=True,
            default_topic_queues=1,
            auto_create_groups=True,
            replication=ReplicationConfig(metadata_interval_ms=100, timeout_ms=1000, heartbeat_ms=200),
            store=StoreConfig(
                root=self._root / name,
                segment_bytes=1 << 20,
                delay_levels="1s 5s",
                retention=RetentionConfig(refuse_at=1.0, resume_below=0.99),
            ),
        )

    @property
    def master(self) -> Broker:
        return self.brokers["master"]

    @property
    def slave(self) -> Broker:
        return self.brokers["slave"]

    async def start(self, name: str, *, leads: bool | None = None) -> None:
        config = self._config(name, leads=name == "master" if leads is None else leads)
        stack = AsyncExitStack()
        self.brokers[name] = await stack.enter_async_context(Broker(config).running())
        self._running[name] = stack

    async def stop(self, name: str) -> None:
        await self._running.pop(name).aclose()

    async def stop_all(self) -> None:
        for name in list(self._running):
            await self.stop(name)

    async def level(self) -> None:
        await until(lambda: self.slave.store.log.end == self.master.store.log.end > 0)


@asynccontextmanager
async def pair_in(root: Path, role: str) -> AsyncIterator[Pair]:
    server = NameServer(NameServerConfig(listen_port=0))
    await server.start()
    pair = Pair(root, server, role)
    try:
        await pair.start("master")
        await pair.start("slave")
        await until(lambda: pair.slave.copies is not None and not pair.slave.copies.seeks_master)
        yield pair
    finally:
        await pair.stop_all()
        await server.stop()


def told(root: Path, story: Callable[[Pair], Coroutine[Any, Any, None]], role: str = "SYNC_MASTER") -> None:
    async def run() -> None:
        async with asyncio.timeout(2 * SECONDS), pair_in(root, role) as pair:
            await story(pair)

    asyncio.run(run())


async def send(pair: Pair, first: int, last: int, **more: Any) -> list[str]:
    bodies = [f"order {number}" for number in range(first, last)]
    async with Producer(pair.name_server, group="producers", attempts=1, timeout_s=20.0) as producer:
        for body in bodies:
            await producer.send(Message(TOPIC, body.encode(), **more))
    return bodies


async def asked(broker: Broker, request: Request) -> Command:
    client = Client()
    try:
        return await client.call(broker.address, request, 5.0)
    finally:
        await client.close()


def consumer_of(pair: Pair) -> PullConsumer:
    return PullConsumer(pair.name_server, group=GROUP, consume_from=ConsumeFrom.FIRST, commit_every_s=0.1)


async def read(consumer: PullConsumer, count: int) -> list[str]:
    found: list[ReceivedMessage] = []
    async with asyncio.timeout(SECONDS):
        while len(found) < count:
            found += await consumer.poll(timeout_s=1.0)
    return [message.text for message in found]


def test_a_slave_has_the_log_the_queues_and_the_tables_of_its_master(tmp_path: Path) -> None:
    async def story(pair: Pair) -> None:
        await send(pair, 0, 50)
        await pair.level()
        ends = [
            (broker.store.min_offset(TOPIC, 0), broker.store.max_offset(TOPIC, 0))
            for broker in (pair.master, pair.slave)
        ]
        assert ends == [(0, 50), (0, 50)]
        assert pair.slave.parts is not None
        tables = pair.slave.parts._tables
        await until(lambda: TOPIC in tables.topics)
        message = bytes(pair.master.store.message_at(0))
        assert bytes(pair.slave.store.message_at(0)) == message

    told(tmp_path, story)


@pytest.mark.skipif(ACCELERATED is None, reason="without the kernel the log is closed in each turn")
@pytest.mark.parametrize("role", ["ASYNC_MASTER", "SYNC_MASTER"])
def test_a_slave_gets_what_a_turn_wrote_while_the_log_of_its_master_stays_open_for_more(
    role: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(append_batch, "MIN_OPEN_SECONDS", 3600.0)

    async def story(pair: Pair) -> None:
        master, was_open = pair.master.store, []
        pair.slave.store.marks.appended.listen(lambda _: was_open.append(master.marks.written.value < master.log.end))
        for number in range(20):
            await send(pair, number, number + 1)
            await pair.level()
        assert any(was_open), "others ask for something now and then, which closes it, but not each time"

    told(tmp_path, story, role)


def test_a_slave_answers_questions_and_refuses_what_would_change_anything(tmp_path: Path) -> None:
    async def story(pair: Pair) -> None:
        await send(pair, 0, 3, keys="k")
        await pair.level()
        slave = pair.slave
        await until(lambda: slave.parts is not None and TOPIC in slave.parts._tables.topics)
        assert (await asked(slave, requests.GetMaxOffset(topic=TOPIC, queue_id=0))).fields["offset"] == "3"
        found = await asked(
            slave, requests.QueryMessage(topic=TOPIC, key="k", max_messages=9, begin_ms=0, end_ms=1 << 60)
        )
        assert found.code == ResponseCode.SUCCESS
        topics = len(list(slave.parts._tables.topics)) if slave.parts is not None else 0
        refused = [
            requests.SendMessage(producer_group="p", topic=TOPIC, queue_id=0, body=b"no"),
            requests.SendMessage(producer_group="p", topic="new", queue_id=0, body=b"no"),
            requests.SendBack(position=0, group=GROUP, delay_level=0),
            requests.EndTransaction(
                producer_group="p", decision=8, half_offset=0, half_position=0, message_id="A"
            ),
            ask.UpdateTopic(topic="new", default_topic="TBW102", read_queues=1, write_queues=1, permission=6,
                            filter_type="SINGLE_TAG"),
            ask.DeleteTopic(topic=TOPIC),
        ]  # fmt: skip
        codes = [(await asked(slave, request)).code for request in refused]
        assert codes == [14, 14, 14, 11, 1, 1]
        assert slave.parts is not None
        assert len(list(slave.parts._tables.topics)) == topics
        assert slave.store.log.end == pair.master.store.log.end

    told(tmp_path, story)


def test_a_slave_delivers_no_delayed_message_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(delays_module, "RETRY_SECONDS", 0.1)

    async def story(pair: Pair) -> None:
        await send(pair, 0, 1)
        await send(pair, 1, 3, delay_level=1)
        await until(lambda: pair.master.store.max_offset(TOPIC, 0) == 3)
        await pair.level()
        await until(lambda: pair.slave.store.max_offset(TOPIC, 0) == 3)
        assert pair.slave.parts is not None
        delays = pair.slave.parts._tables.delays
        await until(lambda: delays.offset_of(1) == 2)

    told(tmp_path, story)


def test_a_slave_that_takes_over_delivers_what_its_master_had_not_and_nothing_twice(tmp_path: Path) -> None:
    async def story(pair: Pair) -> None:
        await send(pair, 0, 1)
        await send(pair, 1, 3, delay_level=1)
        await until(lambda: pair.master.store.max_offset(TOPIC, 0) == 3)
        assert pair.slave.parts is not None
        delays = pair.slave.parts._tables.delays
        await until(lambda: delays.offset_of(1) == 2)
        await send(pair, 3, 6, delay_level=1)
        await pair.level()
        await pair.stop("master")
        await pair.stop("slave")
        await pair.start("slave", leads=True)
        await until(lambda: pair.slave.store.max_offset(TOPIC, 0) >= 6)
        async with consumer_of(pair) as consumer:
            await consumer.subscribe(TOPIC)
            found: dict[int, str] = {}
            async with asyncio.timeout(SECONDS):
                while len(found) < 6:  # a consumer may get a message twice, but each is there once
                    found |= {message.queue_offset: message.text for message in await consumer.poll(timeout_s=1.0)}
            assert found == {number: f"order {number}" for number in range(6)}
            more = await consumer.poll(timeout_s=0.5)
            assert {message.queue_offset for message in more} <= set(found)
        assert pair.slave.store.max_offset(TOPIC, 0) == 6

    told(tmp_path, story, "ASYNC_MASTER")


def test_a_slave_without_name_servers_copies_the_tables_of_the_master_in_its_settings(tmp_path: Path) -> None:
    async def story(pair: Pair) -> None:
        await send(pair, 0, 3)
        assert pair.master.parts is not None
        pair.master.parts._tables.offsets.commit(GROUP, TOPIC, 0, 2)
        assert pair.master.copies is not None
        usual = pair._config("lone", leads=False)
        config = replace(
            usual, name_servers=(), broker_id=2,
            replication=replace(usual.replication, primary=pair.master.copies.address),
        )  # fmt: skip
        async with Broker(config).running() as slave:
            assert slave.parts is not None
            parts, tables = slave.parts, slave.parts._tables
            assert parts.copy_figures.figures()["pyromq.tablesProblem"]
            await until(lambda: parts.metadata_copy.is_complete)
            assert TOPIC in tables.topics
            await until(lambda: tables.offsets.offset_of(GROUP, TOPIC, 0) == 2)
            assert parts.copy_figures.figures()["pyromq.tablesProblem"] == ""

    told(tmp_path, story, "ASYNC_MASTER")


@contextmanager
def replication_port(port: int) -> Iterator[None]:
    """Masters of this test have a replication port that is not the one above their own."""
    with pytest.MonkeyPatch.context() as patch:
        usual = Pair._config

        def config(pair: Pair, name: str, *, leads: bool) -> BrokerConfig:
            given = usual(pair, name, leads=leads)
            return replace(given, replication=replace(given.replication, listen_port=port)) if leads else given

        patch.setattr(Pair, "_config", config)
        yield


def test_a_slave_that_knows_the_replication_address_alone_copies_the_tables_and_counts(tmp_path: Path) -> None:
    """The replication port is not the one above the master's, and neither name servers nor settings name the master."""

    async def story(pair: Pair) -> None:
        await pair.stop("slave")
        assert pair.master.parts is not None
        assert pair.master.copies is not None
        assert pair.master.copies.address != f"127.0.0.1:{pair.master.server.port + 1}"
        usual = pair._config("lone", leads=False)
        config = replace(
            usual, name_servers=(), replication=replace(usual.replication, primary=pair.master.copies.address),
        )  # fmt: skip
        for life in (1, 2):
            async with Broker(config).running() as slave:
                assert slave.parts is not None
                parts, tables = slave.parts, slave.parts._tables
                await send(pair, life - 1, life)  # it is acknowledged with this slave
                pair.master.parts._tables.offsets.commit(GROUP, TOPIC, 0, life)
                await until(lambda: parts.metadata_copy.is_complete)  # noqa: B023
                assert TOPIC in tables.topics
                await until(lambda: tables.offsets.offset_of(GROUP, TOPIC, 0) == life)  # noqa: B023
                assert parts.copy_figures.figures()["pyromq.tablesProblem"] == ""
                assert pair.master.parts.copy_figures.figures()["pyromq.slavesInSync"] == 1

    with replication_port(free_broker_port()):
        told(tmp_path, story, "SYNC_MASTER")


def test_progress_that_changed_is_copied_soon_however_rarely_everything_is(tmp_path: Path) -> None:
    async def story(pair: Pair) -> None:
        await send(pair, 0, 3)
        assert pair.master.copies is not None
        assert pair.master.parts is not None
        usual = pair._config("other", leads=False)
        rarely = replace(usual.replication, metadata_interval_ms=3_600_000, progress_interval_ms=20)
        async with Broker(replace(usual, broker_id=2, replication=rarely)).running() as slave:
            assert slave.parts is not None
            parts, tables = slave.parts, slave.parts._tables
            await until(lambda: parts.metadata_copy.is_complete)
            for offset in (1, 3, 2):
                pair.master.parts._tables.offsets.reset(GROUP, TOPIC, 0, offset)
                await until(lambda: tables.offsets.offset_of(GROUP, TOPIC, 0) == offset)  # noqa: B023

    told(tmp_path, story, "ASYNC_MASTER")


def test_a_transaction_whose_end_only_the_master_has_is_open_on_the_slave_that_takes_over(tmp_path: Path) -> None:
    async def story(pair: Pair) -> None:
        await send(pair, 0, 1)
        half = requests.SendMessage(
            producer_group="bank", topic=TOPIC, queue_id=0, body=b"paid",
            properties="TRAN_MSG\x01true\x02PGROUP\x01bank\x02UNIQ_KEY\x01K1\x02",
        )  # fmt: skip
        sent = await asked(pair.master, half)
        assert sent.code == ResponseCode.SUCCESS
        await pair.level()
        master, slave = pair.master.parts, pair.slave.parts
        assert master is not None
        assert slave is not None
        assert pair.slave.copies is not None
        await pair.slave.copies.stop_following()  # the end of the transaction does not get there
        end = requests.EndTransaction(
            producer_group="bank", half_offset=0, message_id="K1", decision=12,
            half_position=decode_message_id(sent.fields["msgId"])[1],
        )  # fmt: skip
        assert (await asked(pair.master, end)).code == ResponseCode.SUCCESS
        await master.check_back.round()
        assert master.journal.ledger.half_next == 1
        await slave.metadata_copy._copy_from(pair.master.address)
        await pair.stop("master")
        await pair.stop("slave")
        await pair.start("slave", leads=True)
        assert pair.slave.parts is not None
        journal = pair.slave.parts.journal
        await journal.wait_loaded()
        assert journal.ledger.is_open(0)

    told(tmp_path, story, "ASYNC_MASTER")


def test_sends_without_a_slave_are_stored_and_unknown_and_with_it_they_are_acknowledged(tmp_path: Path) -> None:
    async def story(pair: Pair) -> None:
        await send(pair, 0, 5)
        await pair.stop("slave")
        async with Producer(pair.name_server, group="producers", attempts=1, timeout_s=20.0) as producer:
            with pytest.raises(SendUnknown):
                await producer.send(Message(TOPIC, b"alone"))
        assert pair.master.store.max_offset(TOPIC, 0) == 5, "an unacknowledged message is not visible"
        await pair.start("slave")
        await until(lambda: pair.master.store.max_offset(TOPIC, 0) == 6)
        await until(lambda: pair.master.copies is not None and pair.master.copies.primary is not None
                    and len(pair.master.copies.primary.followers) == 1)  # fmt: skip
        await send(pair, 5, 10)
        await pair.level()

    told(tmp_path, story)


def test_a_slave_whose_id_another_slave_has_takes_a_free_one(tmp_path: Path) -> None:
    async def story(pair: Pair) -> None:
        await send(pair, 0, 5)
        await until(lambda: pair.slave.parts is not None and bool(pair.slave.parts.registrar.registered_with))
        await pair.start("third", leads=False)
        assert (pair.slave.config.broker_id, pair.brokers["third"].config.broker_id) == (1, 2)
        await until(lambda: pair.brokers["third"].store.log.end == pair.master.store.log.end)
        await pair.stop("third")
        await pair.stop("slave")
        await pair.start("third", leads=False)
        assert pair.brokers["third"].config.broker_id == 2, "it is written down"

    told(tmp_path, story)


def test_consumers_go_on_from_the_slave_without_a_hole_and_their_progress_flows_back(tmp_path: Path) -> None:
    async def story(pair: Pair) -> None:
        sent = await send(pair, 0, 40)
        await pair.level()
        async with consumer_of(pair) as consumer:
            await consumer.subscribe(TOPIC)
            assert await read(consumer, 40) == sent
            sent += await send(pair, 40, 60)
            await pair.level()
            slave = pair.slave.parts
            assert slave is not None
            await until(lambda: TOPIC in slave._tables.topics and GROUP in slave._tables.groups)
            await pair.stop("master")
            assert await read(consumer, 20) == sent[40:]
            await consumer.commit()
            assert pair.slave.parts is not None
            offsets = pair.slave.parts._tables.offsets
            await until(lambda: offsets.offset_of(GROUP, TOPIC, 0) == 60)
            with pytest.raises(SendError):
                await send(pair, 60, 61)

        await pair.start("master")
        assert pair.master.parts is not None
        master_offsets = pair.master.parts._tables.offsets
        await until(lambda: master_offsets.offset_of(GROUP, TOPIC, 0) == 60)
        await until(lambda: pair.slave.copies is not None and not pair.slave.copies.seeks_master)
        more = await send(pair, 60, 70)
        async with consumer_of(pair) as consumer:
            await consumer.subscribe(TOPIC)
            assert await read(consumer, 10) == more
        await pair.level()

    told(tmp_path, story)


def test_a_pull_that_waits_at_the_slave_gets_what_is_sent_to_the_master(tmp_path: Path) -> None:
    async def story(pair: Pair) -> None:
        await send(pair, 0, 1)
        await pair.level()
        await until(lambda: pair.slave.parts is not None and TOPIC in pair.slave.parts._tables.topics)
        await until(lambda: pair.slave.store.max_offset(TOPIC, 0) == 1)
        pull = requests.PullMessage(
            **CLUSTERED, offset=1, max_messages=32, flags=2 | 4, suspend_ms=20_000, subscription="*"
        )
        waiting = asyncio.ensure_future(asked_for_long(pair.slave, pull))
        await asyncio.sleep(0.1)
        await send(pair, 1, 2)
        answer = await waiting
        assert answer.code == ResponseCode.SUCCESS
        assert answer.fields["suggestWhichBrokerId"] == "0"

    told(tmp_path, story, "ASYNC_MASTER")


def test_both_say_how_the_copy_is_doing(tmp_path: Path) -> None:
    async def story(pair: Pair) -> None:
        await send(pair, 0, 10)
        await pair.level()
        end = pair.master.store.log.end
        async with Admin(pair.name_server) as admin:
            master, slave = sorted(await admin.brokers.statuses(), key=lambda one: one.broker_id)
        assert master.copying is not None
        (copy,) = master.copying.in_sync
        assert (master.copying.role, master.copying.end, master.copying.lag_bytes) == ("SYNC_MASTER", end, 0)
        assert (copy.has, copy.broker_id, copy.address) == (end, 1, pair.slave.address)
        assert master.figures["pyromq.replicatedTo"] == str(end)
        assert pair.slave.copies is not None
        assert slave.copying is not None
        assert (slave.copying.role, slave.copying.is_connected, slave.copying.lag_bytes) == ("SLAVE", True, 0)

        status = orjson.loads((await asked(pair.master, ask.GetReplication())).body)
        assert (status["master"], status["masterCommitLogMaxOffset"], status["inSyncSlaveNums"]) == (True, end, 1)
        (connection,) = status["haConnectionInfo"]
        assert (connection["slaveAckOffset"], connection["diff"], connection["inSync"]) == (end, 0, True)
        status = orjson.loads((await asked(pair.slave, ask.GetReplication())).body)
        assert (status["master"], status["haClientRuntimeInfo"]["maxOffset"]) == (False, end)
        assert status["haClientRuntimeInfo"]["masterAddr"] == pair.master.copies.address  # type: ignore[union-attr]
        figures = pair.master.telemetry.snapshot()
        assert all(re.match(r"(pyromq|rocketmq)_[a-z_]+(\.|$)", name) for name in figures)
        assert (figures["pyromq_replication_slaves_in_sync"], figures["pyromq_replication_lag_bytes"]) == (1, 0)

        await pair.stop("master")
        assert pair.slave.parts is not None
        await until(lambda: pair.slave.copies is not None and pair.slave.copies.seeks_master)
        told = pair.slave.parts.copy_figures.figures()
        assert (told["pyromq.masterConnected"], bool(told["pyromq.copyProblem"])) == ("false", True)

    told(tmp_path, story)


async def asked_for_long(broker: Broker, request: Request) -> Command:
    client = Client()
    try:
        return await client.call(broker.address, request, 20.0)
    finally:
        await client.close()


# --- the replication port --------------------------------------------------------------------------------------------


def test_a_port_that_nobody_asked_for_is_another_one_when_it_is_taken(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def main() -> None:
        with two_ports_in_a_row() as (port, above):
            config = BrokerConfig(listen_port=port, vip_channel=False, store=StoreConfig(root=tmp_path / "store"))
            async with Broker(config).running() as broker:
                assert broker.copies is not None
                told = broker.copies.address
        assert told not in (f"127.0.0.1:{above}", "127.0.0.1:0")
        assert f"127.0.0.1:{above} cannot be had: another program has it" in caplog.text

    asyncio.run(main())


def test_a_replication_port_that_was_asked_for_is_needed(tmp_path: Path) -> None:
    async def main() -> None:
        with two_ports_in_a_row() as (_, taken):
            config = BrokerConfig(
                listen_port=0, store=StoreConfig(root=tmp_path / "store"),
                replication=ReplicationConfig(listen_port=taken),
            )  # fmt: skip
            with pytest.raises(ConfigError, match=f"{taken} cannot be had: another program has it; give another one"):
                async with Broker(config).running():
                    pass

    asyncio.run(main())


@contextmanager
def two_ports_in_a_row() -> Iterator[tuple[int, int]]:
    """The lower one is free, the upper one is taken."""
    while True:
        with socket.socket() as lower, socket.socket() as upper:
            lower.bind(("127.0.0.1", 0))
            port = lower.getsockname()[1]
            try:
                upper.bind(("127.0.0.1", port + 1))
            except (OSError, OverflowError):
                continue
            upper.listen()
            lower.close()
            yield port, port + 1
            return
