"""A consumer at one moment, for people and for monitoring."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from pyromq.client.consuming.queue_worker import Lane, LockState
from pyromq.model.queue import MessageQueue


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueStatistics:
    queue: MessageQueue
    #: The lowest offset that is not handled, and the one that the next fetch asks for.
    progress: int
    position: int
    #: The progress that was told last; None: none yet.
    committed: int | None
    #: The end of the queue when it was fetched from last, and how many messages are not handled up to there.
    end: int
    lag: int
    buffered_messages: int
    buffered_bytes: int
    fetched: int
    is_paused: bool
    is_locked: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerStatistics:
    """Does not change: ask again for newer figures."""

    group: str
    client_id: str
    queues: tuple[QueueStatistics, ...]
    #: Messages since the start: fetched, and handlings that raised.
    fetched: int
    failed: int

    @property
    def lag(self) -> int:
        return sum(queue.lag for queue in self.queues)

    @property
    def buffered_messages(self) -> int:
        return sum(queue.buffered_messages for queue in self.queues)


def queue_statistics(lanes: Iterable[Lane]) -> tuple[QueueStatistics, ...]:
    return tuple(_of(lane) for lane in sorted(lanes, key=lambda lane: lane.queue))


def _of(lane: Lane) -> QueueStatistics:
    queue = lane.process_queue
    return QueueStatistics(
        queue=lane.queue,
        progress=queue.committable,
        position=queue.next_offset,
        committed=lane.committed,
        end=lane.end,
        lag=max(lane.end - queue.committable, 0),
        buffered_messages=queue.buffered_messages,
        buffered_bytes=queue.buffered_bytes,
        fetched=lane.fetched,
        is_paused=lane.is_paused,
        is_locked=lane.lock_state is LockState.HELD,
    )
