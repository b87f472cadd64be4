"""A pair of real brokers changes hands, again and again, under producers and consumers with ordinary settings."""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter, defaultdict
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from broker.support.leading_scene import TOPIC, Scene, copy_with, told, until
from pyromq import ConsumeFrom, Message, Producer, PushConsumer, ReceivedMessage
from pyromq.client.transaction_producer import Decision, TransactionProducer
from pyromq.errors import PyroMQError
from pyromq.wire.codes import ResponseCode

#: The number of concurrent senders, and the pause of each between two messages.
SENDERS = 6
PAUSE_SECONDS = 0.01
#: Routes are refreshed every half minute: a client that continues sooner has not waited for that.
SOON_SECONDS = 8.0


class Load:
    """Sends without a break, and records the outcome of each message."""

    def __init__(self, producer: Producer, *, keyed: bool = False) -> None:
        self._producer = producer
        self._keyed = keyed
        self.acknowledged: list[str] = []
        self.failures: list[PyroMQError] = []

    async def _send_on(self, sender: int) -> None:
        number, is_over = 0, self._is_over
        while not is_over.is_set():
            number += 1
            body = f"{sender}-{number}"
            key = str(sender) if self._keyed else None
            try:
                await self._producer.send(Message(TOPIC, body.encode(), sharding_key=key))
            except PyroMQError as error:
                self.failures.append(error)
            else:
                self.acknowledged.append(body)
            await asyncio.sleep(PAUSE_SECONDS)

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        self._is_over = asyncio.Event()
        async with asyncio.TaskGroup() as senders:
            for sender in range(SENDERS):
                senders.create_task(self._send_on(sender))
            try:
                yield
            finally:
                self._is_over.set()

    async def goes_on(self, count: int = 30) -> None:
        goal = len(self.acknowledged) + count
        await until(lambda: len(self.acknowledged) >= goal or self.failures)


async def hand_over(scene: Scene, old: str, new: str) -> None:
    assert (await scene.step_down(old, new)).code == ResponseCode.SUCCESS
    await scene.leads(new)
    await until(lambda: scene.of(old).config.is_slave and not scene.seeks(old))


def in_order(bodies: list[str]) -> bool:
    """Return whether each sender's messages are in the order in which it sent them."""
    numbers: dict[str, list[int]] = defaultdict(list)
    for body in bodies:
        sender, _, number = body.partition("-")
        numbers[sender].append(int(number))
    return all(some == sorted(some) for some in numbers.values())


@pytest.mark.parametrize(
    ("settings", "keyed", "role"),
    [
        pytest.param({}, False, "ASYNC_MASTER", id="one by one, free"),
        pytest.param({}, True, "ASYNC_MASTER", id="one by one, keyed"),
        pytest.param({"auto_batch": True}, False, "ASYNC_MASTER", id="in batches, free"),
        pytest.param({"auto_batch": True}, True, "ASYNC_MASTER", id="in batches, keyed"),
        pytest.param({"timeout_s": 25.0}, True, "SYNC_MASTER", id="copied, keyed"),
    ],
)
def test_no_send_fails_while_a_pair_changes_hands_three_times(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, settings: dict[str, Any], keyed: bool, role: str
) -> None:
    # Acknowledgements of a sync master wait until the old one follows, on a busy machine for long.
    copy_with(monkeypatch, timeout_ms=20_000)

    async def story(scene: Scene) -> None:
        async with Producer(scene.name_server, group="g", **settings) as producer:
            load = Load(producer, keyed=keyed)
            async with load.running():
                await load.goes_on()
                for old, new in (("a", "b"), ("b", "a"), ("a", "b")):
                    await hand_over(scene, old, new)
                    await load.goes_on()
        stored = scene.bodies("b")
        assert not load.failures
        assert set(load.acknowledged) <= set(stored), "what was acknowledged is there"
        assert Counter(stored).most_common(1)[0][1] == 1, "and nothing twice"
        assert in_order(stored)

    told(tmp_path, story, role)


def test_no_send_fails_while_a_master_without_slaves_starts_again(tmp_path: Path) -> None:
    async def story(scene: Scene) -> None:
        await scene.stop("b")
        async with Producer(scene.name_server, group="g") as producer:
            load = Load(producer)
            async with load.running():
                for _ in range(2):
                    await load.goes_on()
                    await scene.stop("a")
                    await scene.start("a")
                await load.goes_on()
        stored = scene.bodies("a")
        assert not load.failures
        assert Counter(stored) == Counter(load.acknowledged)

    told(tmp_path, story, "ASYNC_MASTER")


@pytest.mark.parametrize("ordered", [False, True], ids=["concurrent", "ordered"])
def test_consumers_go_on_with_the_new_master_without_waiting_for_the_next_round_of_routes(
    tmp_path: Path, ordered: bool
) -> None:
    async def story(scene: Scene) -> None:
        await scene.send("first")
        consumer = PushConsumer(scene.name_server, group="readers", consume_from=ConsumeFrom.FIRST, ordered=ordered)
        seen: list[str] = []

        @consumer.on(TOPIC)
        async def handle(message: ReceivedMessage) -> None:
            seen.append(message.text)

        async with consumer, Producer(scene.name_server, group="g") as producer:
            for old, new in (("a", "b"), ("b", "a"), ("a", "b")):
                await hand_over(scene, old, new)
                await producer.send(TOPIC, f"for {new}")
                async with asyncio.timeout(SOON_SECONDS):
                    await until(lambda new=new: seen[-1:] == [f"for {new}"])
            await consumer.commit()
            await until(lambda: scene.of("b").parts.progress.offset_of("readers", TOPIC, 0) == 4)
        assert sorted(set(seen)) == ["first", "for a", "for b"]

    told(tmp_path, story, "ASYNC_MASTER")


def test_a_consumer_reads_from_the_slave_while_there_is_no_master_and_comes_back(tmp_path: Path) -> None:
    async def story(scene: Scene) -> None:
        await scene.send("first")
        consumer = PushConsumer(scene.name_server, group="readers", consume_from=ConsumeFrom.FIRST)
        seen: list[str] = []

        @consumer.on(TOPIC)
        async def handle(message: ReceivedMessage) -> None:
            seen.append(message.text)

        async with consumer:
            await until(lambda: seen == ["first"])
            consumer.pause()
            await scene.send("second", "third")
            await scene.follows("b", "a")
            await until(lambda: scene.of("b").parts.topics.get(TOPIC))
            await scene.stop("a")
            consumer.resume()
            async with asyncio.timeout(SOON_SECONDS):
                await until(lambda: set(seen) == {"first", "second", "third"})
            await scene.start("a")
            await scene.send("fourth")
            async with asyncio.timeout(SOON_SECONDS):
                await until(lambda: "fourth" in seen)

    told(tmp_path, story, "ASYNC_MASTER")


def test_a_request_and_a_transaction_survive_a_hand_over(tmp_path: Path) -> None:
    async def story(scene: Scene) -> None:
        await scene.send("first")
        consumer = PushConsumer(scene.name_server, group="readers", consume_from=ConsumeFrom.FIRST)
        replier = Producer(scene.name_server, group="repliers")
        seen: list[str] = []

        @consumer.on(TOPIC)
        async def handle(message: ReceivedMessage) -> None:
            seen.append(message.text)
            if message.text.endswith("?"):
                await replier.reply(message, f"{message.text}!")

        async with (
            replier,
            consumer,
            TransactionProducer(scene.name_server, group="buyers", check=lambda _: Decision.UNKNOWN) as producer,
        ):
            for old, new in (("a", "b"), ("b", "a")):
                moving = asyncio.create_task(hand_over(scene, old, new))
                reply = await producer.request(Message(TOPIC, f"{new}?"), timeout_s=SOON_SECONDS)
                assert reply.text == f"{new}?!"
                await moving
            moving = asyncio.create_task(hand_over(scene, "a", "b"))
            await producer.send_in_transaction(Message(TOPIC, "paid"), lambda _: Decision.COMMIT)
            await moving
            async with asyncio.timeout(SOON_SECONDS):
                await until(lambda: "paid" in seen)

    told(tmp_path, story, "ASYNC_MASTER")
