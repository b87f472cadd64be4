"""Writes a history from raw requests: a message is named by its body, and time is that of the broker's records.

An answer that says yes is a promise. No answer, or one that says no, promises nothing: the message may be there or not.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable

from chaos.support.client import Wire, read_queue
from pyromq.model.queue import MessageQueue
from pyromq.testing import History, Report, check
from pyromq.testing.history.events import Decided

Queue = tuple[str, int]


class _WallClock:
    """Records say when they were stored by this clock; delays are held against it."""

    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000

    def monotonic(self) -> float:
        return self.now_ms() / 1000


def _named(body: bytes) -> str:
    return body.decode("latin-1")


class Recorder:
    """All that was tried and promised, over all lives of one broker."""

    def __init__(self) -> None:
        self.history = History(clock=_WallClock())
        self._ops: dict[bytes, int] = {}
        #: Delayed and half messages: a broker that dies in the middle may bring them twice.
        self._may_repeat: set[bytes] = set()
        self._queues: set[Queue] = set()
        self._read: Counter[bytes] = Counter()
        self._ends: dict[Queue, int] = {}
        self.acks = 0

    # --- what is tried and promised ----------------------------------------------------------------------------------

    def attempt(
        self, topic: str, queue: int, body: bytes, *, delay_ms: int | None = None, transaction: bool = False
    ) -> None:
        due = None if delay_ms is None else self.history.now() + delay_ms / 1000
        if due is not None or transaction:
            self._may_repeat.add(body)
        self._queues.add((topic, queue))
        place = MessageQueue(topic, "broker-a", queue)
        self._ops[body] = self.history.send_called(
            "producer", topic, _named(body), due=due, transaction=transaction, queue=place
        )

    def ack(self, topic: str, queue: int, offset: int, body: bytes) -> None:
        self.acks += 1
        self.history.send_ok(self._ops[body], MessageQueue(topic, "broker-a", queue), offset)

    def decided(self, body: bytes, *, commit: bool) -> None:
        self.history.decided(self._ops[body], commit=commit)

    def progress(self, group: str, topic: str, queue: int, offset: int) -> None:
        self.history.committed("consumer", group, MessageQueue(topic, "broker-a", queue), offset)

    def killed(self) -> None:
        self.history.fault("kill -9", forgets_progress=True)

    def decisions(self, *, commit: bool) -> int:
        return sum(isinstance(event, Decided) and event.commit is commit for event in self.history)

    # --- afterwards --------------------------------------------------------------------------------------------------

    async def read_all(self, wire: Wire, queues: Iterable[Queue] | None = None) -> None:
        """Go on reading each queue where the last reading ended."""
        for topic, number in sorted(self._queues) if queues is None else queues:
            queue = MessageQueue(topic, "broker-a", number)
            for message in await read_queue(wire, topic, number, self._ends.get((topic, number), 0)):
                body = bytes(message.body)
                self._read[body] += 1
                self._ends[topic, number] = message.queue_offset + 1
                self.history.read(
                    "reader", queue, message.queue_offset, _named(body), position=message.position,
                    stored_at=message.store_timestamp_ms / 1000,
                )  # fmt: skip

    def check(self, *, drained: bool = True) -> Report:
        """Nothing promised is lost or elsewhere, and nothing comes twice but what a dying broker may bring twice."""
        report = check(self.history, drained=drained)
        report.raise_if_bad()
        twice = [body for body, times in self._read.items() if times > 1 and body not in self._may_repeat]
        assert not twice, f"{len(twice)} came more than once, such as {twice[:3]}"
        return report
