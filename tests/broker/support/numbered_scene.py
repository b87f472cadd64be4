"""A broker that writers send numbered messages to, on a disk in memory: sent, sent again, stopped and started."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable
from typing import Any

from broker.support.fakes import STORE_HOST, FakePeer, Parts
from pyromq.broker.delivery.delays import Delays
from pyromq.broker.requests.send import SendProcessor
from pyromq.client.sending.writer_identity import writer_identity
from pyromq.model.message import StoredMessage
from pyromq.model.topic import TopicConfig
from pyromq.records.batch import encode_batch
from pyromq.wire.requests.client import IssueWriter, SendMessage
from pyromq.wire.responses import Response

NAME = "query-7"
WRITER = f"{writer_identity(NAME).writer}/3"


def writer_named(name: str) -> str:
    return f"{writer_identity(name).writer}/0"


def number(batch: int, index: int, writer: str = WRITER) -> dict[str, str]:
    return {"PYROMQ_WRITER": writer, "PYROMQ_SEQUENCE": f"{batch}:{index}"}


def as_text(properties: dict[str, str]) -> str:
    return "".join(f"{name}\x01{value}\x02" for name, value in properties.items())


class Scene:
    """The topic `orders` with four queues."""

    def __init__(self, parts: Parts | None = None, **settings: Any) -> None:
        self.parts = parts or Parts(**settings)
        if parts is None:
            self.parts.topics.make(TopicConfig("orders", 4, 4))
            self.parts.save()
        parts = self.parts
        self.delays = Delays(parts.store, parts.writer, parts.delay_offsets, parts.topics, parts.clock)
        self.processor = SendProcessor(
            lambda: parts.config, parts.topics, parts.groups, parts.writer, parts.overload, STORE_HOST,
            parts.statistics, transactions=lambda _: None, delay=self.delays.divert, rng=random.Random(1),
            numbered=parts.numbered,
        )  # fmt: skip

    def restarted(self) -> Scene:
        asyncio.run(self.parts.writers.save())
        return Scene(self.parts.restarted())

    def killed(self) -> Scene:
        return Scene(self.parts.killed())

    # --- writers -----------------------------------------------------------------------------------------------------

    def token(self, name: str = NAME) -> str:
        """As a writer gets it from the broker."""
        return self.parts.numbered.issue(IssueWriter(seed=writer_identity(name).seed), FakePeer()).token

    def request(
        self,
        properties: list[dict[str, str]],
        *,
        topic: str = "orders",
        queue: int = 0,
        batch: bool = True,
        token: str | None = None,
    ) -> SendMessage:
        entries = [(0, as_text(one).encode(), as_text(one).encode()) for one in properties]
        return SendMessage(
            producer_group="spark",
            topic=topic,
            queue_id=queue,
            body=encode_batch(entries) if batch else b"body",
            properties="" if batch else as_text(properties[0]),
            batch=batch,
            writer_token=token or self.token(),
        )

    def start(self, request: SendMessage) -> Awaitable[Response] | Response:
        return self.processor.send(request, FakePeer())

    def ask(self, request: SendMessage) -> Response:
        async def wait() -> Response:
            answer = self.start(request)
            return answer if isinstance(answer, Response) else await answer

        return asyncio.run(wait())

    def send(self, batch: int, first: int, count: int = 1, *, name: str = NAME, queue: int = 0) -> Response:
        """Some messages of a batch, one behind the other, in one request."""
        writer = WRITER if name == NAME else writer_named(name)
        numbers = [number(batch, first + place, writer) for place in range(count)]
        return self.ask(self.request(numbers, queue=queue, token=self.token(name)))

    def send_one(self, batch: int, index: int, *, topic: str = "orders", queue: int = 0, **more: str) -> Response:
        request = self.request([{**number(batch, index), **more}], topic=topic, queue=queue, batch=False)
        return self.ask(request)

    # --- the log -----------------------------------------------------------------------------------------------------

    def stored(self, queue: int = 0, topic: str = "orders") -> list[str]:
        """The numbers of the messages in a queue."""
        return [sequence_of(message) for message in self.parts.messages(topic, queue)]


def sequence_of(message: StoredMessage) -> str:
    return message.properties.get("PYROMQ_SEQUENCE", "")


def numbers(batch: int, first: int, count: int) -> list[str]:
    return [f"{batch}:{index}" for index in range(first, first + count)]
