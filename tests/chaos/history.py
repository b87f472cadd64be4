"""What a broker promised, written down as the answers come, and held against it afterwards.

An answer that says yes is a promise. No answer, or one that says no, promises nothing: the message may be there or not.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

from chaos.client import Wire, read_queue

Queue = tuple[str, int]


@dataclass
class Delayed:
    body: bytes
    queue: Queue
    #: Before it was sent: not due before this and its delay.
    sent_ms: int
    delay_ms: int


@dataclass
class History:
    """All that was tried and promised, over all lives of one broker."""

    #: What may be found, and where.
    attempted: dict[bytes, Queue] = field(default_factory=dict)
    acked: dict[Queue, dict[int, bytes]] = field(default_factory=dict)
    delayed: list[Delayed] = field(default_factory=list)
    committed: dict[bytes, Queue] = field(default_factory=dict)
    rolled_back: dict[bytes, Queue] = field(default_factory=dict)
    #: Messages that may come more than once after a crash, as the broker says they may.
    may_repeat: set[bytes] = field(default_factory=set)
    #: What was read, from offset 0 on.
    read: dict[Queue, list[bytes]] = field(default_factory=dict)
    stored_ms: dict[bytes, int] = field(default_factory=dict)

    def attempt(self, topic: str, queue: int, body: bytes) -> None:
        assert body not in self.attempted, "a test sends each body once"
        self.attempted[body] = (topic, queue)

    def ack(self, topic: str, queue: int, offset: int, body: bytes) -> None:
        acked = self.acked.setdefault((topic, queue), {})
        assert offset not in acked, f"offset {offset} of {topic}/{queue} was given out twice: also to {body!r}"
        acked[offset] = body

    @property
    def acks(self) -> int:
        return sum(map(len, self.acked.values()))

    def queues(self) -> set[Queue]:
        """Where a promise was made."""
        kept = {*self.acked, *self.committed.values(), *(one.queue for one in self.delayed)}
        return kept | {queue for queue in self.attempted.values() if queue[0] in {topic for topic, _ in kept}}

    # --- afterwards --------------------------------------------------------------------------------------------------

    async def read_all(self, wire: Wire, queues: Iterable[Queue] | None = None) -> None:
        """Go on reading each queue where the last reading ended."""
        for topic, number in self.queues() if queues is None else queues:
            known = self.read.setdefault((topic, number), [])
            for message in await read_queue(wire, topic, number, len(known)):
                assert message.queue_offset == len(known), f"{topic}/{number} has a gap before {message.queue_offset}"
                body = bytes(message.body)
                known.append(body)
                self.stored_ms.setdefault(body, message.store_timestamp_ms)
                assert self.attempted.get(body) == (topic, number), f"nobody sent {body[:60]!r} to {topic}/{number}"

    def check(self) -> None:
        """Nothing promised is lost or elsewhere; nothing comes twice that may not; what was rolled back never comes."""
        for queue, acked in self.acked.items():
            found = self.read.get(queue, [])
            lost = [offset for offset, body in acked.items() if offset >= len(found) or found[offset] != body]
            assert not lost, f"{queue}: {len(lost)} of {len(acked)} are lost or elsewhere, such as {sorted(lost)[:5]}"
        times = Counter(body for found in self.read.values() for body in found)
        twice = [body for body, seen in times.items() if seen > 1 and body not in self.may_repeat]
        assert not twice, f"{len(twice)} came more than once, such as {twice[:3]}"
        for body, queue in self.committed.items():
            assert body in times, f"{body!r} was committed, and is not in {queue}"
        for body in self.rolled_back:
            assert body not in times, f"{body!r} was rolled back, and is there"

    def check_delays(self) -> None:
        """Never lost, never early."""
        for one in self.delayed:
            assert one.body in self.read.get(one.queue, []), f"{one.body!r} was never delivered"
            waited = self.stored_ms[one.body] - one.sent_ms
            assert waited >= one.delay_ms, f"{one.body!r} came {one.delay_ms - waited} ms early"
