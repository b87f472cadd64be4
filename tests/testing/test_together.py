"""Broker, proxy and checker together, with real clients: the network fails, and no promise is broken."""

from __future__ import annotations

import asyncio
import random

import pyromq.testing
from pyromq import ConsumeFrom, Message, Producer, PushConsumer, ReceivedMessage
from pyromq.errors import PyroMQError, SendUnknown
from pyromq.testing import Direction, FaultProxy, History, check
from pyromq.testing.history.events import Handled, SendCalled, SendOk

SECONDS = 60
KEYS = 4
TOPIC, GROUP = "orders", "kitchen"


async def produce(name_servers: str, history: History, key: str, stop: asyncio.Event) -> None:
    """One after the other, each when the one before has its outcome."""
    async with Producer(name_servers, group=f"shop-{key}") as producer:
        sequence = 0
        while not stop.is_set():
            sequence += 1
            name = f"{key}-{sequence}"
            op = history.send_called(f"shop-{key}", TOPIC, name, key=key, sequence=sequence)
            try:
                receipt = await producer.send(Message(TOPIC, name, sharding_key=key), timeout_s=2)
            except SendUnknown as unknown:
                history.send_unknown(op, str(unknown))
            except PyroMQError as failed:
                history.send_failed(op, str(failed))
            else:
                history.send_ok(op, receipt.queue, receipt.queue_offset)
            await asyncio.sleep(0.001)


def consumer_of(name_servers: str, history: History) -> PushConsumer:
    consumer = PushConsumer(name_servers, group=GROUP, ordered=True, consume_from=ConsumeFrom.FIRST, commit_every_s=0.2)
    history.subscribed(GROUP, TOPIC, ordered=True)

    @consumer.on(TOPIC)
    async def cook(message: ReceivedMessage) -> None:
        name, place = message.body.decode(), (message.queue, message.queue_offset)
        history.delivered("cook", GROUP, *place, name, attempt=message.delivery_attempt)
        await asyncio.sleep(0)
        history.handled("cook", GROUP, *place, name)

    return consumer


async def trouble(proxy: FaultProxy, history: History, rng: random.Random) -> None:
    """Each kind of fault, with quiet in between."""
    kinds = ["cut", "stall", "no answers", "refuse", "slow", "cut"]
    rng.shuffle(kinds)
    for kind in kinds:
        history.fault(kind)
        match kind:
            case "cut":
                proxy.cut()
            case "stall":
                proxy.stall()
            case "no answers":
                proxy.stall(Direction.TO_CLIENT)
            case "refuse":
                await proxy.refuse()
                proxy.cut()
            case "slow":
                proxy.delay(0.05)
        await asyncio.sleep(0.3)
        proxy.heal()
        await proxy.accept()
        await asyncio.sleep(0.3)


async def caught_up(history: History) -> None:
    names = {event.op: event.message_id for event in history if isinstance(event, SendCalled)}
    acked = {names[event.op] for event in history if isinstance(event, SendOk)}
    for _ in range(10 * SECONDS):
        if acked <= {event.message_id for event in history if isinstance(event, Handled)}:
            return
        await asyncio.sleep(0.1)


def test_a_bad_network_breaks_no_promise() -> None:
    async def story() -> None:
        history, stop = History(), asyncio.Event()
        async with (
            asyncio.timeout(SECONDS),
            FaultProxy() as proxy,
            pyromq.testing.broker(topics={TOPIC: KEYS}, advertise=proxy.address) as mq,
        ):
            proxy.target = mq.broker_address
            async with consumer_of(mq.name_servers, history):
                names = [f"k{number}" for number in range(KEYS)]
                shops = [asyncio.create_task(produce(mq.name_servers, history, name, stop)) for name in names]
                await trouble(proxy, history, random.Random(5))
                stop.set()
                await asyncio.gather(*shops)
                await caught_up(history)
        report = check(history)
        report.raise_if_bad()
        assert report.counts.acknowledged > 100
        assert report.counts.faults == 6
        print(report)

    asyncio.run(story())
