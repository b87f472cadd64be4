"""Replies: handed to the producer that waits, stored where the broker is set to, and an answer in any case."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterator
from typing import Any

import pytest

from broker.support.fakes import STORE_HOST, FakePeer, Parts
from pyromq.broker.requests.reply import ReplyProcessor
from pyromq.broker.requests.send import SendProcessor
from pyromq.broker.state.clients import Member, Producers
from pyromq.clock import ManualClock
from pyromq.errors import DiskFull, TopicNotFound
from pyromq.model import names
from pyromq.model.topic import TopicConfig
from pyromq.records.properties import decode_properties
from pyromq.wire.codes import ResponseCode
from pyromq.wire.command import Command
from pyromq.wire.requests.client import PushReply, SendReply
from pyromq.wire.responses import SendReceipt

TOPIC = names.reply_topic("DefaultCluster")
PROPERTIES = "CORRELATION_ID\x01c-1\x02REPLY_TO_CLIENT\x01asker@1\x02MSG_TYPE\x01reply"


class World:
    def __init__(self, **settings: Any) -> None:
        self.clock = ManualClock(1_700_000_000_000)
        self.parts = Parts(clock=self.clock, **settings)
        self.parts.topics.make(TopicConfig(TOPIC, 1, 1))
        self.asker, self.replier = FakePeer("10.0.0.1:1"), FakePeer("10.0.0.2:2")
        self.producers = Producers()
        self.producers.seen("askers", Member(self.asker, "asker@1", "JAVA", 513, 0))
        config = lambda: self.parts.config  # noqa: E731
        send = SendProcessor(
            config, self.parts.topics, self.parts.groups, self.parts.writer, self.parts.overload, STORE_HOST,
            self.parts.statistics, transactions=lambda _: None, delay=lambda draft: draft, rng=random.Random(1),
            numbered=self.parts.numbered,
        )  # fmt: skip
        self.replies = ReplyProcessor(config, send, self.producers, self.parts.writer, "10.0.0.9:10911", self.clock)

    def reply(self, *, properties: str = PROPERTIES, topic: str = TOPIC) -> SendReceipt:
        request = SendReply(
            producer_group="repliers", topic=topic, queue_id=0, born_timestamp_ms=123, user_flag=9, storage_flags=0,
            properties=properties, body=b"the answer",
        )  # fmt: skip

        async def ask() -> SendReceipt:
            answer = await self.replies.reply(request, self.replier)
            assert isinstance(answer, SendReceipt)
            return answer

        return asyncio.run(ask())


@pytest.fixture
def world() -> Iterator[World]:
    world = World()
    yield world
    world.parts.close()


def test_the_one_who_asked_gets_the_reply(world: World) -> None:
    world.asker.answers = [Command(ResponseCode.SUCCESS)]
    answer = world.reply()
    (pushed,) = world.asker.called
    assert isinstance(pushed, PushReply)
    assert (pushed.topic, pushed.producer_group, pushed.queue_id) == (TOPIC, "repliers", 0)
    assert (pushed.body, pushed.user_flag, pushed.born_timestamp_ms) == (b"the answer", 9, 123)
    assert (pushed.born_host, pushed.store_host) == ("10.0.0.2:2", "10.0.0.9:10911")
    assert pushed.store_timestamp_ms == world.clock.now_ms()
    assert decode_properties(pushed.properties.encode()) == {
        "CORRELATION_ID": "c-1", "REPLY_TO_CLIENT": "asker@1", "MSG_TYPE": "reply",
        "PUSH_REPLY_TIME": str(world.clock.now_ms()),
    }  # fmt: skip
    assert (answer.code, answer.queue_id, answer.queue_offset) == (0, 0, 0)
    assert answer.message_id
    assert answer.more["MSG_REGION"] == "DefaultRegion"
    (stored,) = world.parts.messages(TOPIC)
    assert stored.body == b"the answer"
    assert stored.properties["CORRELATION_ID"] == "c-1"


def test_a_broker_that_keeps_no_replies_answers_with_an_empty_receipt() -> None:
    world = World(store_replies=False)
    world.asker.answers = [Command(ResponseCode.SUCCESS)]
    answer = world.reply()
    assert (answer.code, answer.message_id, answer.queue_id, answer.queue_offset) == (0, "0", 0, 0)
    assert world.parts.bodies(TOPIC) == []
    world.parts.close()


def test_nobody_waits_for_it(world: World) -> None:
    world.producers.disconnected(world.asker)
    answer = world.reply()
    assert (answer.code, answer.reason) == (1, "push reply message fail, channel of <asker@1> not found.")
    assert world.parts.bodies(TOPIC) == [b"the answer"], "it is kept all the same"


@pytest.mark.parametrize("properties", ["", "CORRELATION_ID\x01c-1\x02"])
def test_a_reply_that_does_not_say_to_whom_reaches_nobody(world: World, properties: str) -> None:
    answer = world.reply(properties=properties)
    assert answer.code == 1
    assert answer.reason is not None
    assert answer.reason.startswith("reply message properties[REPLY_TO_CLIENT] is null")
    assert world.asker.called == []


def test_a_producer_that_does_not_take_it_or_does_not_answer(world: World) -> None:
    world.asker.answers = [Command(ResponseCode.SYSTEM_ERROR, reason="too late")]
    answer = world.reply()
    assert answer.code == 1
    assert "too late" in (answer.reason or "")
    answer = world.reply()
    assert answer.code == 1
    assert "does not answer" in (answer.reason or "")


def test_a_reply_that_cannot_be_stored_is_handed_on(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(drafts: object) -> None:
        raise DiskFull("no room")

    monkeypatch.setattr(world.parts.writer, "append", full)
    world.asker.answers = [Command(ResponseCode.SUCCESS)]
    answer = world.reply()
    assert (answer.code, answer.message_id) == (0, "0")


def test_a_topic_that_is_not_there_is_refused_like_any_send(world: World) -> None:
    with pytest.raises(TopicNotFound):
        world.reply(topic="nothing")
    assert world.asker.called == []
