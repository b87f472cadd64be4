"""A queue in memory that answers pulls as brokers do, with their moods: for tests of what executors do about them."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field

from pyromq.clock import ManualClock
from pyromq.errors import PyroMQError
from pyromq.model.message import Draft
from pyromq.model.queue import MessageQueue
from pyromq.records import record
from pyromq.records.java_hash import java_hash
from pyromq.wire.codes import ResponseCode
from pyromq.wire.command import Command
from pyromq.wire.requests.client import PullMessage, Request

QUEUE = MessageQueue("orders", "broker-a", 0)


def record_of(offset: int, size: int) -> bytes:
    draft = Draft(
        b"orders",
        0,
        str(offset).encode().ljust(size),
        b"TAGS\x01%c\x02" % b"abc"[offset % 3],
        born_timestamp_ms=1_700_000_000_000,
        born_host=b"\x7f\x00\x00\x01\x00\x00\x1f\x90",
        store_host=b"\x7f\x00\x00\x01\x00\x00\x2a\x9f",
    )
    return record.encode(draft, offset * 1000, offset, 1_700_000_000_000, True)


@dataclass
class SmallQueue:
    """One broker's part of the queue."""

    first: int = 0
    end: int = 1000
    size: int = 100
    #: Offsets that hold no message.
    holes: Collection[int] = ()
    #: Most messages of an answer.
    gives: int = 1024
    suggests: int = 0
    #: Raised or answered, one after the other, before anything else.
    moods: list[PyroMQError | Command] = field(default_factory=list)
    asked: list[int] = field(default_factory=list)

    def answer(self, request: PullMessage) -> Command:
        self.asked.append(request.offset)
        if self.moods:
            mood = self.moods.pop(0)
            if isinstance(mood, PyroMQError):
                raise mood
            return mood
        if not self.first <= request.offset <= self.end:
            following = self.first if request.offset < self.first else self.end
            return self.said(ResponseCode.PULL_OFFSET_MOVED, following)
        if request.offset == self.end:
            return self.said(ResponseCode.PULL_NOT_FOUND, self.end)
        return self._found(request)

    def _found(self, request: PullMessage) -> Command:
        wanted = (
            None
            if request.subscription in (None, "*")
            else {java_hash(one) for one in request.subscription.split("||")}
        )
        at, body, count = request.offset, b"", 0
        while (
            at < self.end
            and count < min(request.max_messages, self.gives)
            and len(body) < (request.max_bytes or 1 << 18)
        ):
            if at not in self.holes and (wanted is None or java_hash("abc"[at % 3]) in wanted):
                body += record_of(at, self.size)
                count += 1
            at += 1
        return self.said(ResponseCode.SUCCESS if body else ResponseCode.PULL_RETRY_IMMEDIATELY, at, body)

    def said(self, code: int, following: int, body: bytes = b"") -> Command:
        fields = {"nextBeginOffset": following, "minOffset": self.first, "maxOffset": self.end}
        fields["suggestWhichBrokerId"] = self.suggests
        return Command(code, {name: str(value) for name, value in fields.items()}, body)


class SmallCluster:
    """A session and its routes, as far as pulls need them. Brokers are at the address `at-<id>`."""

    def __init__(self, brokers: Mapping[int, SmallQueue]) -> None:
        self.queues = dict(brokers)
        self.clock = ManualClock()
        self.routes = self
        self.refreshed = 0
        #: A new session knows no address.
        self._has_asked = False
        #: Called at each refresh of routes: a broker may be available again.
        self.on_refresh: Callable[[], None] = lambda: None

    async def ask(
        self, address: str, request: Request, timeout_s: float | None = None, *, ok: Collection[int] = ()
    ) -> Command:
        assert isinstance(request, PullMessage)
        return self.queues[int(address.removeprefix("at-"))].answer(request)

    def addresses(self, broker_name: str) -> dict[int, str]:
        return {number: f"at-{number}" for number in self.queues} if self._has_asked else {}

    async def of(self, topic: str) -> None:
        self._has_asked = True

    async def refresh(self, topic: str) -> None:
        self.refreshed += 1
        self.clock.advance(1)
        self.on_refresh()
