"""Hooks see every send and can add properties; message traces are written as RocketMQ's tools read them."""

from __future__ import annotations

import asyncio
import logging

import pytest

from client.support.fake_cluster import cluster
from client.support.real_broker import eventually, messages_of, real_broker, run
from pyromq.client.hooks import Handling, Hook, Hooks, Sending
from pyromq.client.message import Message
from pyromq.client.producer import Producer
from pyromq.client.push_consumer import PushConsumer
from pyromq.client.received import ReceivedMessage
from pyromq.client.trace import MAX_WAITING, TRACE_TOPIC, Line, MessageTrace, joined
from pyromq.clock import ManualClock
from pyromq.errors import SendFailed, SendUnknown
from pyromq.wire.codes import ResponseCode


class Watching(Hook):
    def __init__(self, name: str, journal: list[str]) -> None:
        self.name, self.journal = name, journal
        self.seen: list[Sending] = []

    def before_send(self, sending: Sending) -> None:
        sending.properties["traceparent"] = f"00-{self.name}"
        sending.notes[self] = "remembered"
        self.journal.append(f"{self.name} before")

    def after_send(self, sending: Sending) -> None:
        assert sending.notes[self] == "remembered"
        self.journal.append(f"{self.name} after")
        self.seen.append(sending)


class Broken(Hook):
    def before_send(self, sending: Sending) -> None:
        raise KeyError("a fault of the hook")

    def after_send(self, sending: Sending) -> None:
        raise KeyError("another")


@pytest.mark.parametrize("auto_batch", [False, True])
def test_hooks_stand_around_a_send_and_put_properties_into_the_message(auto_batch: bool) -> None:
    async def story() -> None:
        journal: list[str] = []
        outer, inner = Watching("outer", journal), Watching("inner", journal)
        async with (
            real_broker() as mq,
            Producer(mq.name_servers, group="g", hooks=[outer, inner], auto_batch=auto_batch) as producer,
        ):
            receipt = await producer.send("orders", b"x")
            (found,) = await messages_of(mq, "orders")
            assert found.properties == {"traceparent": "00-inner"}
            assert journal == ["outer before", "inner before", "inner after", "outer after"]
            (sending,) = outer.seen
            assert sending.receipt == receipt
            assert sending.message_id == receipt.message_id == found.message_id
            assert (sending.group, sending.error) == ("g", None)
            assert sending.duration_s > 0

    run(story())


def test_a_hook_hears_what_went_wrong() -> None:
    async def story() -> None:
        hook = Watching("only", [])
        async with cluster("a") as world, Producer(world.name_servers, group="g", hooks=[hook]) as producer:
            world["a"].refuse(ResponseCode.SYSTEM_BUSY)
            with pytest.raises(SendFailed):
                await producer.send("orders", b"x")
            world["a"].decide = lambda request: world["a"].stored(request, ResponseCode.FLUSH_DISK_TIMEOUT)
            with pytest.raises(SendUnknown):
                await producer.send("orders", b"x")
            failed, unknown = hook.seen
            assert isinstance(failed.error, SendFailed)
            assert failed.receipt is None
            assert unknown.receipt is not None

    run(story())


def test_a_hook_that_fails_harms_nothing_and_is_reported_once(caplog: pytest.LogCaptureFixture) -> None:
    async def story() -> None:
        async with real_broker() as mq, Producer(mq.name_servers, group="g", hooks=[Broken()]) as producer:
            with caplog.at_level(logging.ERROR, "pyromq.client"):
                for _ in range(3):
                    await producer.send("orders", b"x")
            assert len(await messages_of(mq, "orders")) == 3

    run(story())
    assert [record.getMessage() for record in caplog.records if record.name == "pyromq.client"] == [
        "the hook Broken failed; it is not reported again"
    ]


def test_no_hooks_cost_nothing() -> None:
    assert not Hooks()
    assert Hooks([Hook()])


# --- traces ----------------------------------------------------------------------------------------------------------


def test_a_trace_of_a_send_is_found_by_the_message_and_its_keys() -> None:
    async def story() -> None:
        async with real_broker() as mq:
            async with Producer(mq.name_servers, group="g", trace=True) as producer:
                receipt = await producer.send("orders", b"12345", tags="paid", keys=["o-17", "u-3"])
            (trace,) = await eventually(mq, TRACE_TOPIC, 1)
            assert trace.keys == (receipt.message_id, "o-17", "u-3")
            (line,) = trace.text.removesuffix("\x02").split("\x02")
            fields = line.split("\x01")
            assert len(fields) == 14
            assert (fields[0], fields[2:9]) == (
                "Pub",
                ["DefaultRegion", "g", "orders", receipt.message_id, "paid", "o-17 u-3", mq.broker_address],
            )
            assert fields[9] == "5"
            assert fields[11:] == ["0", receipt.offset_message_id, "true"]
            assert trace.get_property("traceparent") is None

    run(story())


def test_what_a_consumer_does_is_traced_before_and_after() -> None:
    async def story() -> None:
        async with real_broker() as mq, Producer(mq.name_servers, group="g") as producer:
            receipt = await producer.send("orders", b"x", keys="k")
            (found,) = await messages_of(mq, "orders")
            sent: list[Message] = []

            async def keep(message: Message) -> None:
                sent.append(message)

            clock = ManualClock()
            trace = MessageTrace(keep, clock, lambda _: "REQUEST", lambda _: None)
            for error in (None, KeyError()):
                handling = Handling([found], "mailer")
                trace.before_handle(handling)
                handling.error, handling.duration_s = error, 0.25
                trace.after_handle(handling)
            await trace.flush()
            (message,) = sent
            lines = [line.split("\x01") for line in message.text.split("\x02")[:-1]]
            now = str(clock.now_ms())
            before = ["SubBefore", now, "DefaultRegion", "mailer", "REQUEST", receipt.message_id, "0", "k"]
            assert lines[0] == lines[2] == before
            assert lines[1] == ["SubAfter", "REQUEST", receipt.message_id, "250", "true", "k", "0", now, "mailer"]
            assert lines[3] == ["SubAfter", "REQUEST", receipt.message_id, "250", "false", "k", "2", now, "mailer"]
            assert message.keys == (receipt.message_id, "k")

    run(story())


def test_a_field_is_never_empty_and_never_holds_a_separator() -> None:
    line = Line(["id"], "Pub", "", True, "a\x01b\x02c")
    assert line.text == "Pub\x01null\x01true\x01a b c\x02"


def test_lines_of_one_message_are_kept_together_and_keys_stand_once() -> None:
    message = joined([Line(["a", "b"], "one"), Line(["a"], "two")])
    assert (message.topic, message.body, message.keys) == (TRACE_TOPIC, b"one\x02two\x02", ("a", "b"))


def test_traces_are_dropped_rather_than_waited_for(caplog: pytest.LogCaptureFixture) -> None:
    async def story() -> None:
        async def refuse(_: Message) -> None:
            raise SendFailed("no trace topic")

        trace = MessageTrace(refuse, ManualClock(), lambda _: "", lambda _: None)
        for _ in range(MAX_WAITING + 5):
            trace._put(Line(["k"], "x"))
        assert trace.dropped == 5
        await trace.flush()
        assert trace.dropped == MAX_WAITING + 5

    run(story())


def test_a_producer_whose_traces_cannot_be_sent_goes_on() -> None:
    async def story() -> None:
        async with cluster("a") as world:
            broker = world["a"]

            def decide(request: object) -> object:
                if getattr(request, "topic", "") == TRACE_TOPIC:
                    broker.refuse(ResponseCode.MESSAGE_ILLEGAL)
                    refused = broker.decide(request)  # type: ignore[arg-type]
                    broker.decide = decide  # type: ignore[assignment]
                    return refused
                return broker.stored(request)  # type: ignore[arg-type]

            broker.decide = decide  # type: ignore[assignment]
            async with asyncio.timeout(5), Producer(world.name_servers, group="g", trace=True) as producer:
                await producer.send("orders", b"x")

    run(story())


def test_a_consumer_sends_its_traces_by_itself_and_the_last_ones_when_it_stops() -> None:
    async def story() -> None:
        async with real_broker() as mq:
            consumer, handled = PushConsumer(mq.name_servers, group="mailer", trace=True), asyncio.Event()

            @consumer.on("orders")
            async def handle(_: ReceivedMessage) -> None:
                handled.set()

            async with consumer, Producer(mq.name_servers, group="g") as producer:
                receipt = await producer.send(Message("orders", b"hello", keys="k"))
                await handled.wait()
            lines = "".join([message.text for message in await messages_of(mq, TRACE_TOPIC)]).split("\x02")[:-1]
            after, before = sorted(line.split("\x01") for line in lines)
            assert (before[0], before[3], before[5]) == ("SubBefore", "mailer", receipt.message_id)
            assert (after[0], after[2], after[4], after[8]) == ("SubAfter", receipt.message_id, "true", "mailer")
            assert before[4] == after[1], "both are about one handling"

    run(story())
