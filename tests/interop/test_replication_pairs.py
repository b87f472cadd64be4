"""Mixed pairs: our slave follows Apache's master, and Apache's slave follows ours; each is killed and restarted.

Both are sync pairs of two copies: every acknowledged message is in both logs, byte for byte, in either direction.
"""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from interop.support.java_client import JavaClient, bodies, everything, message
from interop.support.pairs import Pair, acknowledged, asked_until, killed, until
from interop.support.python_client import tell
from pyromq import Admin, ConsumeFrom, Message, Producer, PullConsumer
from pyromq.errors import SendUnknown
from pyromq.wire.requests.admin import GetTopic
from pyromq.wire.requests.client import QueryConsumerOffset

pytestmark = pytest.mark.interop

TOPIC, GROUP = "orders", "shop"


def numbered(first: int, last: int) -> list[str]:
    return [f"order-{number} " + "x" * 200 for number in range(first, last)]


@pytest.fixture(params=["ours-follows", "ours-leads"])
def pair(request: pytest.FixtureRequest, tmp_path: Path) -> Pair:
    return Pair(tmp_path, ours_leads=request.param == "ours-leads")


async def read(consumer: PullConsumer, bodies: set[str]) -> None:
    """Until all of them have come."""
    missing = set(bodies)
    while missing:
        missing -= {message.text for message in await consumer.poll(timeout_s=30.0)}


async def master_is_known(admin: Admin) -> None:
    """Apache's broker says that it serves before name servers know of it."""
    async with asyncio.timeout(60.0):
        while not any(broker.is_master for broker in await admin.brokers.list()):  # noqa: ASYNC110
            await asyncio.sleep(0.2)


def consumer_of(pair: Pair) -> PullConsumer:
    return PullConsumer(pair.name_server, group=GROUP, consume_from=ConsumeFrom.FIRST, commit_every_s=0.5)


def test_a_mixed_pair_has_every_acknowledged_message_twice_whoever_is_killed(pair: Pair) -> None:
    async def levels(what: str) -> None:
        def are_equal() -> bool:
            master, slave = pair.logs()
            return bool(master) and master == slave

        await until(are_equal, f"{what}: the logs are equal")

    async def progress_on(address: str, least: int) -> None:
        for queue in range(2):
            question = QueryConsumerOffset(group=GROUP, topic=TOPIC, queue_id=queue, zero_if_not_found=False)
            await asked_until(address, question, lambda answer: int(answer.fields["offset"]) >= least)

    async def story() -> None:
        servers = pair.name_server
        async with Admin(servers) as admin:
            await master_is_known(admin)
            await admin.topics.create(TOPIC, queues=2)
        sent = numbered(0, 400)
        async with Producer(servers, group="producers") as producer:
            await acknowledged(producer, TOPIC, sent)
            await levels("after the first messages")
            async with consumer_of(pair) as consumer:
                await consumer.subscribe(TOPIC)
                await read(consumer, set(sent))
                await consumer.commit()
            await progress_on(pair.slave.broker_address, 200)

            killed(pair.slave)
            with pytest.raises(SendUnknown):
                await producer.send(Message(TOPIC, b"the slave is away"))
            pair.slave.start_broker()
            more = numbered(400, 1600)
            await acknowledged(producer, TOPIC, more)
            await levels("after the slave came back")

        killed(pair.master)
        async with consumer_of(pair) as consumer:
            await consumer.subscribe(TOPIC)
            await read(consumer, set(more))
            await consumer.commit()
        await progress_on(pair.slave.broker_address, 800)

        pair.master.start_broker()
        last = numbered(1600, 1700)
        async with Producer(servers, group="producers") as producer, consumer_of(pair) as consumer:
            await acknowledged(producer, TOPIC, last)
            await consumer.subscribe(TOPIC)
            await read(consumer, set(last))
        await levels("after the master came back")

    with pair.running():
        tell(story, patience_s=240.0)


def test_a_java_client_sends_to_apaches_master_and_reads_from_our_slave(tmp_path: Path) -> None:
    pair = Pair(tmp_path, ours_leads=False)
    wanted = {f"order-{number}" for number in range(100)}

    async def until_the_slave_knows_the_topic() -> None:
        await asked_until(pair.slave.broker_address, GetTopic(topic=TOPIC), lambda answer: True)

    with pair.running(), JavaClient(pair.master) as java:
        java.await_broker()
        java.create_topic(TOPIC, 2)
        with java.producer() as producer, java.push("early", everything(TOPIC)) as consumer:
            told = producer.send(*(message(TOPIC, body) for body in sorted(wanted)))
            assert {one["status"] for one in told[20:]} == {"SEND_OK"}
            assert set(bodies(consumer.received(100))) == wanted
        tell(until_the_slave_knows_the_topic)
        killed(pair.master)
        first = {"consumeFromWhere": "CONSUME_FROM_FIRST_OFFSET"}
        with java.push("late", everything(TOPIC), set=first) as consumer:
            assert set(bodies(consumer.received(100))) == wanted
