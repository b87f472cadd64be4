"""Write `stores.tar.xz` next to this file: stores in the format of the commit that runs it, and their content.

    python tests/stored/make_stores.py

It is run once for a format. Later commits open the stores as they are; they are never made again to please a change.
"""

from __future__ import annotations

import asyncio
import json
import shutil
import sys
import tarfile
import tempfile
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent))

from pyromq import ConsumeFrom, Message  # noqa: E402
from pyromq.broker.broker import Broker  # noqa: E402
from pyromq.client.sending.writer_identity import writer_identity  # noqa: E402
from pyromq.client.transaction_producer import Decision  # noqa: E402
from pyromq.clock import SystemClock  # noqa: E402
from pyromq.config import BrokerConfig, NameServerConfig, ReplicationConfig  # noqa: E402
from pyromq.nameserver.assembly import NameServer  # noqa: E402
from pyromq.net.client import Client  # noqa: E402
from pyromq.sync import Admin, Producer, PullConsumer, PushConsumer, TransactionProducer  # noqa: E402
from pyromq.testing import BrokerProcess, broker  # noqa: E402
from pyromq.testing.brokers.ports import free_broker_port  # noqa: E402
from pyromq.wire.requests.admin import SetRequestMode  # noqa: E402
from pyromq.wire.requests.client import IssueWriter, Request, SendMessage  # noqa: E402
from stored.describe import SIZES, config_of, describe  # noqa: E402

ARCHIVE, MANIFEST = HERE / "stores.tar.xz", "manifest.json"
#: Room that a start on a full disk needs, and a pid: neither is content.
NOT_KEPT = {"reserve", "lock", "staging"}
SECONDS = 30


# --- one broker, stopped and killed ----------------------------------------------------------------------------------


def make_single(home: Path) -> None:
    settings = {f"store.{name}": value for name, value in SIZES.items()} | {"transaction.timeout_ms": 3_600_000}
    with broker(topics={"orders": 4, "letters": 1}, data_dir=home, config=settings, process=True) as mq:
        first_life(mq)
        mq.stop()
        keep(home / "store", "stopped")
        mq.start()
        second_life(mq)
        mq.kill()
        keep(home / "store", "killed")


def first_life(mq: BrokerProcess) -> None:
    with Admin(mq.name_servers) as admin:
        admin.topics.create("fifo", queues=2, order=True, attributes={"message.type": "FIFO"})
        admin.groups.create("shop", retry_queues=2, max_retries=3)
    with Producer(mq.name_servers, group="makers") as producer:
        for number in range(120):
            producer.send(order(number))
        producer.send_batch([Message("letters", b"batch %d" % number, keys="batched") for number in range(5)])
        producer.send(Message("letters", b"large " * 3000, tags="large"))
        producer.send(Message("letters", "grüße".encode(), properties={"Länge": "ä ö"}))
        producer.send(Message("letters", b"soon", delay_level=1))
        producer.send(Message("letters", b"later", delay_level=3))
    commit_transactions(mq)
    with PullConsumer(mq.name_servers, group="readers") as consumer:
        consumer.assign(consumer.queues("orders"))
        for queue in consumer.queues("orders"):
            consumer.seek_to_begin(queue)
        assert consumer.poll(50, timeout_s=5.0)
        consumer.commit()
    retry_one(mq)
    asyncio.run(numbered(mq.broker_address, 0, 3))
    mode = {"topic": "orders", "consumerGroup": "shop", "mode": "PULL", "popShareQueueNum": 1}
    asyncio.run(call(mq.broker_address, SetRequestMode(body=json.dumps(mode).encode())))


def second_life(mq: BrokerProcess) -> None:
    with Producer(mq.name_servers, group="makers") as producer:
        for number in range(120, 150):
            producer.send(order(number))
        producer.send(Message("letters", b"delayed again", delay_level=3))
    asyncio.run(numbered(mq.broker_address, 1, 2))


def order(number: int) -> Message:
    return Message(
        "orders", f"order {number}".encode() * (1 + number % 9), tags=("red", "green", "blue")[number % 3],
        keys=[f"order-{number}", f"customer-{number % 7}"], properties={"number": str(number)},
    )  # fmt: skip


def commit_transactions(mq: BrokerProcess) -> None:
    decisions = [Decision.COMMIT, Decision.ROLLBACK, Decision.UNKNOWN]
    with TransactionProducer(mq.name_servers, group="banks", check=lambda _: Decision.UNKNOWN) as producer:
        for decision in decisions:
            message = Message("letters", decision.name.encode(), keys=decision.name)
            producer.send_in_transaction(message, lambda _, decision=decision: decision)


def retry_one(mq: BrokerProcess) -> None:
    seen: list[int] = []

    def handle(message: Any) -> None:
        seen.append(message.reconsume_times)
        if message.reconsume_times == 0 and message.tags == "large":
            raise ValueError("once more")

    consumer = PushConsumer(
        mq.name_servers, group="shop", consume_from=ConsumeFrom.FIRST, retry_delay=1, commit_every_s=0.2
    )
    consumer.subscribe("letters", handle)
    with consumer:
        wait_until(lambda: 1 in seen)


async def numbered(address: str, batch: int, count: int) -> None:
    identity = writer_identity("a stream")
    client = Client()
    try:
        token = (await client.call(address, IssueWriter(seed=identity.seed))).fields["writerToken"]
        for index in range(count):
            number = f"PYROMQ_WRITER\x01{identity.writer}/0\x02PYROMQ_SEQUENCE\x01{batch}:{index}\x02"
            request = SendMessage(producer_group="spark", topic="fifo", queue_id=1, properties=number, body=b"n")
            request.writer_token = token
            assert (await client.call(address, request)).code == 0
    finally:
        await client.close()


# --- a pair ----------------------------------------------------------------------------------------------------------


async def make_pair(home: Path) -> None:
    """A sync master and its slave; the master is killed, in that its directory is kept while it runs."""
    async with name_server() as names:
        master = await started(pair_config(home, names, "master"))
        slave = await started(pair_config(home, names, "slave"))
        async with master[1], slave[1]:
            await until(lambda: slave[0].copies is not None and not slave[0].copies.seeks_master)
            await asyncio.to_thread(fill_pair, names)
            await until(lambda: slave[0].store.log.end == master[0].store.log.end)
            await until(lambda: (home / "slave/config/topics.json").exists())
            keep(home / "master", "pair-master-killed")
        keep(home / "master", "pair-master")
        keep(home / "slave", "pair-slave")


def fill_pair(names: str) -> None:
    with Producer(names, group="makers") as producer:
        for number in range(20):
            producer.send(order(number))


def pair_config(home: Path, names: str, name: str) -> BrokerConfig:
    is_slave = name == "slave"
    return BrokerConfig(
        name="pair", role="SLAVE" if is_slave else "SYNC_MASTER", broker_id=int(is_slave),
        listen_port=free_broker_port(), vip_channel=False, name_servers=(names,), auto_create_topics=True,
        default_topic_queues=2, replication=ReplicationConfig(metadata_interval_ms=100, timeout_ms=3000),
        store=config_of(home / name),
    )  # fmt: skip


async def started(config: BrokerConfig) -> tuple[Broker, AsyncExitStack]:
    stack = AsyncExitStack()
    return await stack.enter_async_context(Broker(config).running()), stack


@asynccontextmanager
async def name_server() -> AsyncIterator[str]:
    server = NameServer(NameServerConfig(listen_port=0))
    await server.start()
    try:
        yield server.address
    finally:
        await server.stop()


# --- keeping ---------------------------------------------------------------------------------------------------------


async def call(address: str, request: Request) -> None:
    client = Client()
    try:
        answer = await client.call(address, request)
        assert answer.code == 0, answer
    finally:
        await client.close()


async def until(holds: Callable[[], bool]) -> None:
    await asyncio.to_thread(wait_until, holds)


def wait_until(holds: Callable[[], bool]) -> None:
    clock = SystemClock()
    deadline = clock.monotonic() + SECONDS
    while not holds():
        assert clock.monotonic() < deadline, "it takes too long"


kept = Path(tempfile.mkdtemp(prefix="pyromq-stores-"))


def keep(store: Path, name: str) -> None:
    shutil.copytree(store, kept / name, ignore=shutil.ignore_patterns(*NOT_KEPT))


def main() -> None:
    with tempfile.TemporaryDirectory() as home:
        make_single(Path(home) / "single")
        asyncio.run(make_pair(Path(home) / "pair"))
    now_ms = SystemClock().now_ms()
    names = sorted(store.name for store in kept.iterdir())
    for name in names:  # a start changes a store: the content is read from a copy
        shutil.copytree(kept / name, kept / "read" / name)
    stores = {name: describe(kept / "read" / name, now_ms) for name in names}
    (kept / MANIFEST).write_text(json.dumps({"now_ms": now_ms, "stores": stores}, indent=1, ensure_ascii=False) + "\n")
    with tarfile.open(ARCHIVE, "w:xz", preset=9) as archive:
        for name in (*names, MANIFEST):
            archive.add(kept / name, name)
    shutil.rmtree(kept)
    print(f"{ARCHIVE}: {ARCHIVE.stat().st_size} bytes")


if __name__ == "__main__":
    main()
