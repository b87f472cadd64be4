"""Delivery at a given time, message traces and trace contexts of our client, against both referees."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

import pytest

from interop.support.apache import ApacheCluster, ApacheFailed
from interop.support.cluster import Cluster
from interop.support.java_client import CONF, JavaClient, eventually
from interop.support.java_client import message as java_message
from interop.support.python_client import push, tell, until_owned
from interop.support.referees import REFEREES, referee
from late import in_time
from pyromq import Admin, ConsumeFrom, Handling, Hook, Message, Producer, PushConsumer, ReceivedMessage, Sending
from pyromq.errors import IllegalMessage, SendFailed

pytestmark = pytest.mark.interop

#: Apache's timer wheel has slots of one second, and is looked at ten times a second; the rest is for a busy machine.
LATE_S = 4.0


@contextlib.contextmanager
def running(cluster: Cluster) -> Iterator[Cluster]:
    """Started, and known to its name server, which Apache's broker does not wait for."""

    async def known() -> None:
        async with Admin(cluster.namesrv_address) as admin:
            while not await admin.brokers.list():  # noqa: ASYNC110  a name server sends no event
                await asyncio.sleep(0.05)

    cluster.start()
    try:
        tell(known, patience_s=30)
        yield cluster
    finally:
        cluster.kill()


@pytest.fixture(scope="module")
def apache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Ended without the 13 s that a clean end takes."""
    with running(referee("apache", tmp_path_factory.mktemp("times-apache") / "store")) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def pyromq(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with referee("pyromq", tmp_path_factory.mktemp("times-pyromq") / "store") as running:
        yield running


@pytest.fixture(scope="module", params=REFEREES)
def cluster(request: pytest.FixtureRequest) -> Cluster:
    running: Cluster = request.getfixturevalue(request.param)
    return running


@pytest.fixture(scope="module")
def pyromq_java(pyromq: Cluster) -> Iterator[JavaClient]:
    with JavaClient(pyromq) as client:
        yield client


@pytest.fixture(scope="module")
def apache_java(apache: Cluster) -> Iterator[JavaClient]:
    with JavaClient(apache) as client:
        yield client


@pytest.fixture
def java(cluster: Cluster, request: pytest.FixtureRequest) -> JavaClient:
    """The official Java client against `cluster`."""
    name = "apache_java" if isinstance(cluster, ApacheCluster) else "pyromq_java"
    client: JavaClient = request.getfixturevalue(name)
    return client


async def make(topic: str, name_server: str) -> None:
    async with Admin(name_server) as admin:
        await admin.topics.create(topic, queues=4)


# --- at a given time -------------------------------------------------------------------------------------------------


def test_a_message_for_a_given_time_is_never_early(apache: Cluster, topic: str, group: str) -> None:
    servers = apache.namesrv_address

    async def story() -> None:
        await make(topic, servers)
        arrived = dict[str, float]()
        consumer = PushConsumer(servers, group=group, consume_from=ConsumeFrom.FIRST)

        @consumer.on(topic)
        async def note(message: ReceivedMessage) -> None:
            arrived[message.text] = time.time()

        async with Producer(servers, group="producers", auto_batch=True) as producer, consumer:
            await until_owned(consumer, 4, topic)
            now = time.time()
            wanted = {f"at {number}": now + 1.2 + number * 0.37 for number in range(8)}
            sends = [producer.send(topic, text, deliver_at=at) for text, at in wanted.items()]
            wanted["a datetime"] = now + 2
            sends.append(producer.send(topic, "a datetime", deliver_at=datetime.fromtimestamp(now + 2, UTC)))
            for text, after in (("after seconds", 1.5), ("after a timedelta", timedelta(seconds=2.5))):
                seconds = after.total_seconds() if isinstance(after, timedelta) else after
                wanted[text] = now + seconds
                sends.append(producer.send(topic, text, deliver_after=after))
            wanted["long past"] = now
            sends.append(producer.send(topic, "long past", deliver_at=now - 3600))
            await asyncio.gather(*sends)
            async with asyncio.timeout(30):
                while len(arrived) < len(wanted):  # noqa: ASYNC110  the handler sets no event
                    await asyncio.sleep(0.05)
        late = {text: arrived[text] - at for text, at in wanted.items()}
        assert min(late.values()) >= 0, late
        in_time(max(late.values()), LATE_S)

    tell(story)


def test_what_is_further_away_than_the_broker_allows_is_refused_for_certain(apache: Cluster, topic: str) -> None:
    servers = apache.namesrv_address

    async def story() -> None:
        await make(topic, servers)
        async with Producer(servers, group="producers") as producer:
            with pytest.raises(IllegalMessage, match="delay time should not be bigger than the max delay"):
                await producer.send(topic, b"in a month", deliver_after=timedelta(days=30))

    tell(story)


def test_an_apache_broker_without_a_timer_refuses_for_certain(
    tmp_path_factory: pytest.TempPathFactory, topic: str
) -> None:
    conf = {**CONF, "timerWheelEnable": "false"}
    cluster = ApacheCluster(tmp_path_factory.mktemp("no-timer") / "store", broker_conf=conf)

    async def story() -> None:
        servers = cluster.namesrv_address
        await make(topic, servers)
        async with Producer(servers, group="producers") as producer:
            with pytest.raises(SendFailed, match=r"is not stored.*use a delay_level instead"):
                await producer.send(topic, b"later", deliver_after=1)

    with running(cluster):
        tell(story)


@pytest.mark.parametrize("auto_batch", [False, True])
def test_pyromq_refuses_a_given_time_for_certain_and_says_what_to_use(
    pyromq: Cluster, topic: str, group: str, auto_batch: bool
) -> None:
    servers = pyromq.namesrv_address

    async def story() -> None:
        await make(topic, servers)
        consumer, inbox = push(servers, group, topic)
        async with Producer(servers, group="producers", auto_batch=auto_batch) as producer, consumer:
            for when in ({"deliver_at": time.time() + 1}, {"deliver_after": 1}, {"deliver_after": 0}):
                with pytest.raises(IllegalMessage, match="use one of the delay levels instead"):
                    await producer.send(Message(topic, b"never", **when))  # type: ignore[arg-type]
            began = time.time()
            await producer.send(Message(topic, b"later", delay_level=1))
            await inbox.nothing_more(1)
            assert inbox.bodies == ["later"]
            assert round(inbox.messages[0].stored_at * 1000) >= int(began * 1000) + 1000

    tell(story)


def test_a_java_producer_is_told_the_same_and_tries_once(pyromq_java: JavaClient, topic: str) -> None:
    pyromq_java.create_topic(topic)
    with pyromq_java.producer() as producer, pytest.raises(ApacheFailed, match=r"CODE: 13 .*in Java setDelayTimeLevel"):
        producer.send(java_message(topic, "later", delayMs=1000))


# --- traces ----------------------------------------------------------------------------------------------------------


def test_mqadmin_reads_what_a_producer_and_two_consumers_did(
    java: JavaClient, cluster: Cluster, topic: str, group: str
) -> None:
    """One consumer takes the message, the other fails once and gets it again."""
    servers = cluster.namesrv_address

    async def story() -> None:
        await make(topic, servers)
        good, inbox = push(servers, f"{group}-good", topic, trace=True)
        poor = PushConsumer(servers, group=f"{group}-poor", consume_from=ConsumeFrom.FIRST, retry_delay=1, trace=True)
        done = asyncio.Event()

        @poor.on(topic)
        async def stumble(message: ReceivedMessage) -> None:
            if message.delivery_attempt == 1:
                raise ValueError("not yet")
            done.set()

        async with good, poor, Producer(servers, group=f"{group}-sent", trace=True) as producer:
            receipt = await producer.send(Message(topic, b"traced", keys="k"))
            await inbox.received(1)
            async with asyncio.timeout(30):
                await done.wait()

        def said() -> list[list[str]]:
            text = java.mqadmin("queryMsgTraceById", "-n", servers, "-i", receipt.message_id)
            return [line.split() for line in text.splitlines()]

        def rows(lines: list[list[str]]) -> list[tuple[str, str, str]]:
            kinds = ("Pub", "Sub")
            return sorted((line[0], line[1], line[-1]) for line in lines if line and line[0] in kinds)

        wanted = sorted(
            [
                ("Pub", f"{group}-sent", "success"),
                ("Sub", f"{group}-good", "success"),
                ("Sub", f"{group}-poor", "failed"),
                ("Sub", f"{group}-poor", "success"),
            ]
        )
        found = await asyncio.to_thread(eventually, lambda: rows(said()), lambda rows: len(rows) >= len(wanted))
        assert found == wanted

    tell(story)


PARENT = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"


class Tracing(Hook):
    """A program's tracing: writes the span's context into a message, and finds it in the handler."""

    def __init__(self) -> None:
        self.sent = list[str]()
        self.handled = list[tuple[str | None, bool]]()

    def before_send(self, sending: Sending) -> None:
        sending.properties["traceparent"] = PARENT

    def after_send(self, sending: Sending) -> None:
        assert sending.receipt is not None
        self.sent.append(sending.receipt.message_id)

    def after_handle(self, handling: Handling) -> None:
        for message in handling.messages:
            self.handled.append((message.properties.get("traceparent"), handling.error is None))


@pytest.mark.parametrize("auto_batch", [False, True])
def test_a_trace_context_goes_from_the_producer_to_the_handler_and_through_a_retry(
    cluster: Cluster, topic: str, group: str, auto_batch: bool
) -> None:
    servers = cluster.namesrv_address

    async def story() -> None:
        await make(topic, servers)
        hook, done = Tracing(), asyncio.Event()
        consumer = PushConsumer(servers, group=group, consume_from=ConsumeFrom.FIRST, retry_delay=1, hooks=[hook])

        @consumer.on(topic)
        async def stumble(message: ReceivedMessage) -> None:
            if message.delivery_attempt == 1:
                raise ValueError("not yet")
            done.set()

        async with Producer(servers, group="producers", hooks=[hook], auto_batch=auto_batch) as producer, consumer:
            receipt = await producer.send(topic, b"hello")
            async with asyncio.timeout(30):
                await done.wait()
        assert hook.sent == [receipt.message_id]
        assert hook.handled == [(PARENT, False), (PARENT, True)]

    tell(story)
