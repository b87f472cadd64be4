"""Admin tools' requests to a consumer through its broker: they are answered as by a Java consumer."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any

import orjson
import pytest

import pyromq.testing
from client.support.consumer_scene import Heard, bodies, eventually, new_group, new_topic, send
from pyromq.client.group.questions import Questions
from pyromq.client.push_consumer import PushConsumer
from pyromq.client.session import Session
from pyromq.errors import BadRequest
from pyromq.testing import EmbeddedBroker
from pyromq.wire import fastjson
from pyromq.wire.bodies.locks import MessageQueue as WireQueue
from pyromq.wire.bodies.offsets import decode_reset, encode_reset
from pyromq.wire.requests import admin as ask


class Scene:
    """A consumer at work that has heard five messages, and an admin tool."""

    def __init__(self, mq: EmbeddedBroker, admin: Session, consumer: PushConsumer, heard: Heard, topic: str) -> None:
        self.mq, self.admin, self.consumer, self.heard, self.topic = mq, admin, consumer, heard, topic

    async def ask(self, request: Any) -> bytes:
        return (await self.admin.ask(self.mq.broker_address, request)).body


@asynccontextmanager
async def scene(mq: EmbeddedBroker) -> AsyncIterator[Scene]:
    topic, heard = new_topic(mq, queues=1), Heard()
    consumer = PushConsumer(mq.name_servers, group=new_group())
    consumer.subscribe(topic, heard, tags="paid || sent")
    async with consumer, Session(mq.name_servers) as admin:
        await send(mq, topic, bodies(5), tags="paid")
        await heard.until(5)
        yield Scene(mq, admin, consumer, heard, topic)


def play(story: Callable[[Scene], Coroutine[Any, Any, None]]) -> None:
    async def with_scene(mq: EmbeddedBroker) -> None:
        async with scene(mq) as the_scene:
            await story(the_scene)

    with pyromq.testing.broker() as mq:
        asyncio.run(with_scene(mq))


def test_a_consumer_tells_how_it_is_doing() -> None:
    async def story(on: Scene) -> None:
        question = ask.GetRunningInfo(group=on.consumer.group, client_id=on.consumer.client_id, with_stacks=True)
        info: Any = fastjson.loads(await on.ask(question))
        assert info["properties"]["PROP_CONSUME_TYPE"] == "CONSUME_PASSIVELY"
        assert info["properties"]["PROP_CONSUMEORDERLY"] == "false"
        assert int(info["properties"]["PROP_CONSUMER_START_TIMESTAMP"]) > 0
        by_topic = {key["topic"]: state for key, state in info["mqTable"].pairs}
        assert set(by_topic) == {on.topic, f"%RETRY%{on.consumer.group}"}
        assert by_topic[on.topic]["commitOffset"] == 5
        wanted = {one["topic"]: one for one in info["subscriptionSet"]}[on.topic]
        assert (wanted["subString"], wanted["tagsSet"]) == ("paid || sent", ["paid", "sent"])
        assert "thread" in info["jstack"]

    play(story)


def test_a_consumer_tells_how_far_it_is() -> None:
    async def story(on: Scene) -> None:
        question = ask.GetConsumerStatus(topic=on.topic, group=on.consumer.group)
        status: Any = fastjson.loads(await on.ask(question))
        ((queue, offset),) = status["consumerTable"][on.consumer.client_id].pairs
        assert (queue["topic"], offset) == (on.topic, 5)

    play(story)


def test_a_message_can_be_handed_to_a_consumer_again() -> None:
    async def story(on: Scene) -> None:
        message = on.heard.messages[2]

        def question() -> ask.ConsumeDirectly:
            return ask.ConsumeDirectly(
                group=on.consumer.group, client_id=on.consumer.client_id, message_id=message.offset_message_id,
                topic=on.topic,
            )  # fmt: skip

        good = orjson.loads(await on.ask(question()))
        assert (good["consumeResult"], good["order"]) == ("CR_SUCCESS", False)
        assert on.heard.texts == [*bodies(5), "2"]
        on.heard.failures = {"2": 1}
        bad = orjson.loads(await on.ask(question()))
        assert (bad["consumeResult"], bad["remark"]) == ("CR_THROW_EXCEPTION", "ValueError: not today")

    play(story)


def test_a_reset_of_the_group_moves_a_consumer_at_work() -> None:
    async def story(on: Scene) -> None:
        await on.consumer.commit()
        await on.ask(ask.ResetOffset(group=on.consumer.group, topic=on.topic, timestamp_ms=0, force=True))
        await send(on.mq, on.topic, ["wakes it up"], tags="paid")
        await on.heard.until(10)
        await eventually(lambda: on.heard.texts.count("wakes it up") >= 1)
        assert on.heard.texts[5:10] == bodies(5)

    play(story)


def test_a_broker_may_also_tell_the_consumer_itself_where_to_go_on() -> None:
    """Apache's brokers do, unless a setting makes them behave as ours."""

    async def story(on: Scene) -> None:
        questions = Questions(on.consumer._running(), ["localhost:9876"])
        queue = WireQueue(on.topic, "broker-a", 0)
        foreign = WireQueue(on.topic, "elsewhere", 0)
        body = encode_reset([(queue, 3), (foreign, 7)])
        request = ask.ResetClientOffsets(topic=on.topic, group=on.consumer.group, body=body)
        await questions.reset(request, None)  # type: ignore[arg-type]
        await on.heard.until(7)
        assert on.heard.texts[5:] == ["3", "4"]

    play(story)


def test_offsets_that_cannot_be_read_are_refused() -> None:
    assert decode_reset(b'{"offsetTable":{}}') == {}
    for body in (b"", b"[", b'{"offsetTable":{{"topic":5}:1}}', b'{"offsetTable":{{"topic":"t"}:"x"}}'):
        with pytest.raises(BadRequest):
            decode_reset(body)
