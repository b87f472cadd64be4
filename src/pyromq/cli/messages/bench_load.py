"""The load that `pyromq bench` puts on a cluster, and what it measures: rates, latencies, errors, losses.

Every message carries its number and the moment it was sent, so that the same process can tell how long it was under
way, whether it came twice, and whether it came at all. Keeping the books costs well under a microsecond a message.
"""

from __future__ import annotations

import asyncio
import struct
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from pyromq.client.message import Message
from pyromq.client.producer import Producer
from pyromq.client.received import ReceivedMessage
from pyromq.clock import SystemClock
from pyromq.errors import PyroMQError
from pyromq.metrics import FINE_BOUNDS, Histogram

#: A word of ours, the number of the message, the moment it was sent.
MARK = struct.Struct(">8sqd")
WORD = b"pyrobnch"
#: Growth step of the table of received message numbers.
TABLE_STEP = 1 << 16

clock = SystemClock()
monotonic = clock.monotonic


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """Parameters of a load."""

    topic: str
    #: Whichever comes first; None: no such limit.
    messages: int | None
    seconds: float | None
    size: int
    #: Concurrent sends.
    concurrency: int
    #: Messages in one request.
    batch: int
    #: Messages a second; None: as fast as it goes.
    rate: float | None


class Span:
    """From the first to the last event, and how many there were."""

    __slots__ = ("began", "count", "ended")

    def __init__(self) -> None:
        self.count = 0
        self.began = self.ended = 0.0

    def add(self, amount: int, began: float, ended: float) -> None:
        if not self.count:
            self.began = began
        self.count += amount
        self.ended = ended

    @property
    def seconds(self) -> float:
        return max(self.ended - self.began, 1e-9) if self.count else 0.0

    @property
    def per_second(self) -> float:
        return self.count / self.seconds if self.count else 0.0


class Sending:
    """Keeps a window of sends under way until the load is sent."""

    def __init__(self, producer: Producer, load: Load) -> None:
        self.acknowledged = Span()
        self.latencies = Histogram(FINE_BOUNDS)
        self.errors: Counter[str] = Counter()
        self._producer = producer
        self._load = load
        self._filling = bytes(load.size - MARK.size)
        self._next = 0
        self._began = 0.0

    async def run(self) -> None:
        self._began = monotonic()
        async with asyncio.TaskGroup() as window:
            for _ in range(self._load.concurrency):
                window.create_task(self._work())

    async def _work(self) -> None:
        send = self._send_one if self._load.batch == 1 else self._send_batch
        while (first := self._take()) is not None:
            began = await self._turn(first) if self._load.rate else monotonic()
            try:
                amount = await send(first, began)
            except PyroMQError as error:
                self.errors[type(error).__name__] += 1
            else:
                ended = monotonic()
                self.latencies.record(ended - began)
                self.acknowledged.add(amount, began, ended)

    def _take(self) -> int | None:
        """The number of the next message; None when it is enough."""
        load, number = self._load, self._next
        if load.messages is not None and number >= load.messages:
            return None
        if load.seconds is not None and max(monotonic() - self._began, self._due(number)) >= load.seconds:
            return None
        self._next = number + load.batch
        return number

    def _due(self, number: int) -> float:
        """Seconds from the beginning; 0 where no rate is asked for."""
        return number / self._load.rate if self._load.rate else 0.0

    async def _turn(self, number: int) -> float:
        """Wait until this message is due. One that is late, because all were busy, has waited since then."""
        due = self._began + self._due(number)
        late = monotonic() - due
        if late >= 0:
            return due
        await asyncio.sleep(-late)
        return monotonic()

    async def _send_one(self, number: int, began: float) -> int:
        await self._producer.send(self._message(number, began))
        return 1

    async def _send_batch(self, first: int, began: float) -> int:
        load = self._load
        end = first + load.batch if load.messages is None else min(first + load.batch, load.messages)
        await self._producer.send_batch([self._message(number, began) for number in range(first, end)])
        return end - first

    def _message(self, number: int, began: float) -> Message:
        return Message(self._load.topic, MARK.pack(WORD, number, began) + self._filling)


class Receiving:
    """Counts what arrives; a handler for lists of messages."""

    def __init__(self, *, is_own_load: bool) -> None:
        self.received = Span()
        self.bytes = 0
        #: From send to handler. For messages of others: from when they were born, by the clocks of both machines.
        self.latencies = Histogram(FINE_BOUNDS)
        self.twice = 0
        self._is_own = is_own_load
        self._seen = bytearray(TABLE_STEP)
        self.arrived = asyncio.Event()

    async def __call__(self, messages: Sequence[ReceivedMessage]) -> None:
        now = monotonic()
        counted = self._count_own(messages, now) if self._is_own else self._count_foreign(messages)
        if counted:
            self.received.add(counted, now, monotonic())
            self.arrived.set()

    def _count_own(self, messages: Sequence[ReceivedMessage], now: float) -> int:
        record, unpack, counted = self.latencies.record, MARK.unpack_from, 0
        for message in messages:
            body = message.body
            if len(body) < MARK.size or not body.startswith(WORD):
                continue
            _, number, began = unpack(body)
            self.bytes += len(body)
            if self._is_new(number):
                counted += 1
                record(now - began)
        return counted

    def _is_new(self, number: int) -> bool:
        seen = self._seen
        if number >= len(seen):
            seen.extend(bytes(number - len(seen) + TABLE_STEP))
        if seen[number]:
            self.twice += 1
            return False
        seen[number] = 1
        return True

    def _count_foreign(self, messages: Sequence[ReceivedMessage]) -> int:
        now_s, record = clock.now_ms() / 1000, self.latencies.record
        for message in messages:
            self.bytes += len(message.body)
            record(max(0.0, now_s - message.born_at))
        return len(messages)

    async def until(self, enough: Callable[[], bool], idle_s: float) -> None:
        """Wait until all messages have arrived, or until none arrived for this long."""
        while not enough():
            self.arrived.clear()
            try:
                async with asyncio.timeout(idle_s):
                    await self.arrived.wait()
            except TimeoutError:
                return
