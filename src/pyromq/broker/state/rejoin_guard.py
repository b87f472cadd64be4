"""Positions that consumers bring from before a start: checked against the queue as the start found it.

A consumer at work keeps its position while the broker restarts. The start may have lost the tail of a queue: by a power
cut under async flush, by a truncation, or because the promoted replica lacked it. A position beyond the end is set back
by the answer to the next pull. But if the queue has grown past it by then, the consumer would go on there and commit
it: its group would never receive the messages that were given the lost offsets.

So for `GUARD_SECONDS` after a start, a group with progress in a queue rejoins it at or below the end that the start
found. A pull beyond that end is answered with the group's progress, and a commit beyond it is refused. One pull at
or below it, of any consumer of the group, ends this for the queue. A consumer that seeks to the end in this time, as
its first pull after the start, is set back as well: that cannot be told from a lost tail. Not covered: a consumer that
does not pull between two starts that both lost a tail, and a group that never committed. Its positions cannot be told
from those of readers that keep their own offsets and may begin anywhere (tools, batch jobs).
"""

from __future__ import annotations

from collections.abc import Callable

from pyromq.clock import Clock
from pyromq.store.tables.offset_files import ConsumerOffsets

#: RocketMQ's consumers commit every 5 s, send heartbeats every 30 s, and set a position back 10 s after the request.
GUARD_SECONDS = 60.0


class RejoinGuard:
    """The queues in which groups had progress at the start, and the groups that have not rejoined them."""

    def __init__(self, offsets: ConsumerOffsets, queue_end: Callable[[str, int], int], clock: Clock) -> None:
        self._offsets = offsets
        self._clock = clock
        self._until = clock.monotonic() + GUARD_SECONDS
        #: By topic and queue id. Empty when the time is over.
        self._ends = {
            (topic, queue_id): queue_end(topic, queue_id)
            for (topic, _), by_queue in offsets.all().items()
            for queue_id in by_queue
        }
        self._rejoined: set[tuple[str, str, int]] = set()

    def must_check(self, group: str, topic: str, queue_id: int) -> bool:
        """Return False once no position of the group in the queue can be set back."""
        if not self._ends:
            return False
        if self._clock.monotonic() >= self._until:
            self._ends.clear()
            self._rejoined.clear()
            return False
        return (topic, queue_id) in self._ends and (group, topic, queue_id) not in self._rejoined

    def rejoin(self, group: str, topic: str, queue_id: int, pulled: int) -> int | None:
        """Return the offset at which a pull must go on; None if it may go on where it asks."""
        if not self.must_check(group, topic, queue_id):
            return None
        if pulled <= self._ends[topic, queue_id]:
            self._rejoined.add((group, topic, queue_id))
            return None
        return self._progress_before(group, topic, queue_id)

    def refuses(self, group: str, topic: str, queue_id: int, offset: int) -> bool:
        """Return True for a commit that may count lost messages."""
        if not self.must_check(group, topic, queue_id) or offset <= self._ends[topic, queue_id]:
            return False
        return self._progress_before(group, topic, queue_id) is not None

    def _progress_before(self, group: str, topic: str, queue_id: int) -> int | None:
        """The group's progress, unless it has none or it was moved beyond the end since the start."""
        offset = self._offsets.offset_of(group, topic, queue_id)
        return None if offset is None or offset > self._ends[topic, queue_id] else offset
