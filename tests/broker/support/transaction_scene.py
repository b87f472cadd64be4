"""A broker's transactions on a disk in memory: send halves, end them, ask for them, stop and start again."""

from __future__ import annotations

import asyncio
import inspect
import random
from collections.abc import Awaitable, Callable
from typing import Any

from broker.support.fakes import STORE_HOST, FakePeer, Parts
from pyromq.broker.delivery.delays import Delays
from pyromq.broker.requests.send import SendProcessor
from pyromq.broker.requests.transaction import TransactionProcessor
from pyromq.broker.state.clients import Member, Producers
from pyromq.broker.transactions.check_back import CheckBack
from pyromq.broker.transactions.journal import Journal
from pyromq.clock import ManualClock
from pyromq.model import names
from pyromq.model.topic import TopicConfig
from pyromq.records.message_id import decode_message_id
from pyromq.wire.requests.client import CheckTransaction, EndTransaction, Request, ResumeCheck, SendMessage
from pyromq.wire.responses import Response, SendReceipt

UNKNOWN, COMMIT, ROLL_BACK = 0, 8, 12
HALVES, OPS, ASIDE = names.HALF_TOPIC, names.HALF_DONE_TOPIC, names.CHECKED_TOO_OFTEN_TOPIC


def now(answer: Any) -> Any:
    """An answer, also where it has to be waited for."""

    async def wait(awaitable: Awaitable[Any]) -> Any:
        return await awaitable

    return asyncio.run(wait(answer)) if inspect.isawaitable(answer) else answer


class ListeningPeer(FakePeer):
    """A peer that says when it is told something."""

    on_tell: Callable[[], None] = staticmethod(lambda: None)

    def tell(self, request: Request) -> None:
        super().tell(request)
        self.on_tell()


class Scene:
    """A broker with the topic `orders` of four queues."""

    def __init__(self, parts: Parts | None = None, **settings: Any) -> None:
        self.parts = parts or Parts(**settings)
        if parts is None:
            self.parts.topics.make(TopicConfig("orders", 4, 4))
            self.parts.save()
        parts = self.parts
        self.clock = parts.clock
        assert isinstance(self.clock, ManualClock)
        self.delays = Delays(parts.store, parts.writer, parts.delay_offsets, parts.topics, parts.clock)
        self.producers = Producers()
        self.journal = Journal(parts.store, parts.writer, parts.offsets, parts.clock, STORE_HOST)
        self.processor = TransactionProcessor(lambda: self.parts.config, self.journal, self.delays.divert)
        self.check_back = CheckBack(lambda: self.parts.config, self.journal, self.producers, parts.topics, parts.clock)
        self.send_processor = SendProcessor(
            lambda: self.parts.config, parts.topics, parts.groups, parts.writer, parts.overload, STORE_HOST,
            parts.statistics,
            transactions=self.processor.prepare, delay=self.delays.divert, rng=random.Random(1),
            numbered=parts.numbered,
        )  # fmt: skip
        self.peer = FakePeer()
        now(self.journal.load())

    def restarted(self) -> Scene:
        return Scene(self.parts.restarted())

    def killed(self) -> Scene:
        """As after `kill -9`: what was not saved is lost, what is in the page cache is not."""
        return Scene(self.parts.killed())

    # --- producers ---------------------------------------------------------------------------------------------------

    def connect(self, group: str = "bank", address: str = "10.0.0.7:12345") -> ListeningPeer:
        peer = ListeningPeer(address)
        self.producers.seen(group, Member(peer, address, "JAVA", 0, self.clock.now_ms()))
        return peer

    def send(self, body: bytes = b"paid", *, key: str = "K1", group: str = "bank", **more: Any) -> SendReceipt:
        fields = {"TRAN_MSG": "true", "PGROUP": group, "UNIQ_KEY": key, **more.pop("properties", {})}
        text = "".join(f"{name}\x01{value}\x02" for name, value in fields.items())
        request = SendMessage(
            producer_group=group, topic=more.pop("topic", "orders"), queue_id=2, properties=text, body=body,
            born_timestamp_ms=self.clock.now_ms(), **more,
        )  # fmt: skip
        answer = now(self.send_processor.send(request, self.peer))
        self.parts.store.dispatch()
        return answer

    def end(self, sent: SendReceipt | CheckTransaction, decision: int, group: str = "bank", **more: Any) -> Response:
        if isinstance(sent, CheckTransaction):
            offset, position = sent.half_offset, sent.half_position
        else:
            offset, position = sent.queue_offset, decode_message_id(sent.message_id)[1]
        fields: dict[str, Any] = {"half_offset": offset, "half_position": position, **more}
        request = EndTransaction(producer_group=group, decision=decision, message_id="K1", **fields)
        answer = now(self.processor.end(request, self.peer))
        self.parts.store.dispatch()
        return answer

    # --- the broker --------------------------------------------------------------------------------------------------

    def round(self, seconds: float = 30) -> None:
        self.clock.advance(seconds)
        now(self.check_back.round())
        self.parts.store.dispatch()

    def resume(self, message_id: str | None) -> Response:
        answer = now(self.processor.resume(ResumeCheck(topic="orders", message_id=message_id), self.peer))
        self.parts.store.dispatch()
        return answer

    def orders(self) -> list[bytes]:
        return self.parts.bodies("orders", 2)

    def ops(self) -> list[bytes]:
        return self.parts.bodies(OPS)

    def positions(self) -> tuple[int | None, int | None]:
        offset_of = self.parts.offsets.offset_of
        return offset_of(names.TRANSACTION_GROUP, HALVES, 0), offset_of(names.TRANSACTION_GROUP, OPS, 0)


def questions(peer: FakePeer) -> list[CheckTransaction]:
    return [one for one in peer.told if isinstance(one, CheckTransaction)]
