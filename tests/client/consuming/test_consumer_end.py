"""Consumers end: closed by a handler, twice at the same time, with handlers that ignore the cancellation."""

from __future__ import annotations

import asyncio
import logging

import pytest

from client.support.consumer_scene import eventually
from client.support.fake_broker import TOPIC, FakeBroker
from pyromq import ConsumeFrom, Producer, PushConsumer, ReceivedMessage
from pyromq.client import session
from pyromq.client.answers import error_of
from pyromq.client.consuming import ending
from pyromq.errors import IllegalName
from pyromq.wire.bodies.locks import decode_lock_request
from pyromq.wire.command import Command
from pyromq.wire.requests.client import UnlockQueues


def consumer_of(broker: FakeBroker, **settings: object) -> PushConsumer:
    return PushConsumer(broker.address, group="mailer", consume_from=ConsumeFrom.FIRST, **settings)  # type: ignore[arg-type]


def test_run_ends_when_a_handler_has_the_consumer_stopped() -> None:
    async def story() -> None:
        broker, ends = FakeBroker(), []
        broker.store("the last one")
        async with broker.running():
            consumer = consumer_of(broker, hold_s=0.1)

            @consumer.on(TOPIC)
            async def handle(message: ReceivedMessage) -> None:
                ends.append(asyncio.create_task(consumer.close()))

            async with asyncio.timeout(5):
                await consumer.run()
            assert broker.committed == 1
            await asyncio.gather(*ends)

    asyncio.run(story())


def test_whoever_stops_a_consumer_that_is_being_stopped_waits_for_the_same_end() -> None:
    async def story() -> None:
        broker, begun, gate = FakeBroker(), asyncio.Event(), asyncio.Event()
        broker.store("slow")
        async with broker.running():
            consumer = consumer_of(broker, hold_s=0.1)

            @consumer.on(TOPIC)
            async def handle(message: ReceivedMessage) -> None:
                begun.set()
                await gate.wait()

            await consumer.start()
            await begun.wait()
            first = asyncio.create_task(consumer.close())
            await asyncio.sleep(0.02)
            second = asyncio.create_task(consumer.close())
            await asyncio.sleep(0.05)
            assert not second.done()
            gate.set()
            await second
            assert broker.committed == 1
            await first

    asyncio.run(story())


def test_a_stop_that_is_cut_short_gives_back_the_locks_all_the_same() -> None:
    """Else an ordered queue would stand still until the broker takes the lock away."""

    async def story() -> None:
        broker, begun = FakeBroker(), asyncio.Event()
        broker.store("slow")
        async with broker.running():
            consumer = consumer_of(broker, hold_s=0.1, ordered=True)

            @consumer.on(TOPIC)
            async def handle(message: ReceivedMessage) -> None:
                begun.set()
                await asyncio.Event().wait()

            await consumer.start()
            await begun.wait()
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.05):
                    await consumer.close()
            unlocked = [decode_lock_request(ask.body).queues for ask in broker.all_of(UnlockQueues)]
            assert TOPIC in {queue.topic for queues in unlocked for queue in queues}
            assert broker.committed in (None, 0)

    asyncio.run(story())


def test_a_handler_that_will_not_be_cancelled_does_not_hold_up_the_end_for_ever(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(ending, "CANCEL_SECONDS", 0.1)
    monkeypatch.setattr(session, "END_SECONDS", 0.1)

    async def story() -> None:
        broker, begun, gate = FakeBroker(), asyncio.Event(), asyncio.Event()
        broker.store("stubborn")
        async with broker.running():
            consumer = consumer_of(broker, hold_s=0.1, stop_grace_s=0.1)

            @consumer.on(TOPIC)
            async def handle(message: ReceivedMessage) -> None:
                begun.set()
                while not gate.is_set():
                    try:
                        await gate.wait()
                    except asyncio.CancelledError:
                        continue

            await consumer.start()
            await begun.wait()
            async with asyncio.timeout(3):
                await consumer.close()
            assert broker.committed in (None, 0)
            gate.set()
            await asyncio.sleep(0.05)
            assert broker.committed in (None, 0)

    with caplog.at_level(logging.WARNING, "pyromq.client"):
        asyncio.run(story())
    assert "did not end" in caplog.text


@pytest.mark.parametrize("group", ["../../etc/cron", "two words", "line\nbreak", "x" * 300])
def test_a_group_has_a_name_that_brokers_and_files_can_have(group: str) -> None:
    with pytest.raises(IllegalName):
        PushConsumer("127.0.0.1:1", group=group)
    with pytest.raises(IllegalName):
        Producer("127.0.0.1:1", group=group)


def test_what_a_broker_gives_as_its_reason_cannot_forge_lines_of_the_log() -> None:
    reason = "no such queue\n2026-01-01 INFO all is well \x1b[2J"
    said = str(error_of(Command(code=1, reason=reason), "127.0.0.1:1"))
    assert said.isprintable()
    assert "no such queue" in said
    assert len(str(error_of(Command(code=1, reason="x" * 100_000), "127.0.0.1:1"))) < 3000


def test_an_identifier_that_somebody_made_up_cannot_forge_lines_of_the_log(caplog: pytest.LogCaptureFixture) -> None:
    async def story() -> None:
        broker = FakeBroker()
        broker.store("bad", properties=b"UNIQ_KEY\x01id\nINFO all is well\x1b[2J\x02")
        async with broker.running():
            consumer = consumer_of(broker, hold_s=0.1)

            @consumer.on(TOPIC)
            async def handle(message: ReceivedMessage) -> None:
                raise ValueError("not today")

            async with consumer:
                await eventually(lambda: "could not be handled" in caplog.text)

    asyncio.run(story())
    (told,) = [one for one in caplog.records if "could not be handled" in one.message]
    assert told.message.isprintable()
