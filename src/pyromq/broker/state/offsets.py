"""The offset of each group in each queue. Set back only on an explicit request, and never set to zero implicitly."""

from __future__ import annotations

import logging
import os

from pyromq.broker.bounds import OffsetCount
from pyromq.broker.state.rejoin_guard import RejoinGuard
from pyromq.errors import IllegalOffset
from pyromq.store.message_store import MessageStore
from pyromq.store.tables.offset_files import ConsumerOffsets

log = logging.getLogger("pyromq.broker")


def machine_memory() -> int:
    """In bytes."""
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def near_bytes() -> int:
    """Return the part of the log that a new group may have to read: RocketMQ's share of the machine's memory."""
    return machine_memory() * 40 // 100


class Progress:
    """Reads and moves the offsets of groups."""

    def __init__(
        self,
        offsets: ConsumerOffsets,
        store: MessageStore,
        near: int | None = None,
        guard: RejoinGuard | None = None,
    ) -> None:
        """`guard`: None on a slave, which sets no position back."""
        self.offsets = offsets
        self._guard = guard
        self._store = store
        self._near = near_bytes() if near is None else near
        self._count = OffsetCount(offsets)

    def commit(self, group: str, topic: str, queue_id: int, offset: int) -> None:
        """A consumer tells how far it is. Telling less than before is its right: it went back on purpose.

        Raises IllegalOffset for a negative offset, and for one behind the end of the queue: messages that are still to
        come would be taken for consumed. Raises SystemBusy if there is no room for one more.
        """
        known = self.offsets.offset_of(group, topic, queue_id)
        if known == offset:
            return
        end = self._store.max_offset(topic, queue_id)
        if offset > end:
            raise IllegalOffset(
                f"offset {offset} of {topic}/{queue_id} is behind the end of the queue, which is {end}: the progress "
                f"of {group} stays {'unset' if known is None else known}"
            )
        if self._guard is not None and self._guard.refuses(group, topic, queue_id, offset):
            raise IllegalOffset(
                f"offset {offset} of {topic}/{queue_id} is behind the end that this broker found at its last start: "
                f"the progress of {group} stays {known} until it pulls there, or for a minute; commit again then"
            )
        if known is not None and 0 <= offset < known:
            log.warning("%s goes back in %s/%d: from %d to %d", group, topic, queue_id, known, offset)
            self.offsets.reset(group, topic, queue_id, offset)
        else:
            if known is None:
                self._count.add()
            self.offsets.commit(group, topic, queue_id, offset)

    def advance(self, group: str, topic: str, queue_id: int, offset: int) -> None:
        """Apply the offset that a consumer sends with a pull, or that a slave forwards, if it advances.

        It is from a moment ago, and the queue may have another reader by now. Who goes back on purpose says so in a
        request of its own. Raises IllegalOffset as `commit` does.
        """
        known = self.offsets.offset_of(group, topic, queue_id)
        if known is None or offset > known or offset < 0:
            self.commit(group, topic, queue_id, offset)

    def set(self, group: str, topic: str, queue_id: int, offset: int) -> None:
        """Set an offset because an operator says so. Raises SystemBusy if there is no room for one more."""
        known = self.offsets.offset_of(group, topic, queue_id)
        if known is None:
            self._count.add()
        if known != offset:
            self.offsets.reset(group, topic, queue_id, offset)

    def rejoin(self, group: str, topic: str, queue_id: int, pulled: int) -> int | None:
        """Return the offset at which a pull must go on after a start; None if it may go on where it asks."""
        return None if self._guard is None else self._guard.rejoin(group, topic, queue_id, pulled)

    def must_rejoin(self, group: str, topic: str, queue_id: int) -> bool:
        """Return True while pulls of the group have to ask `rejoin`."""
        return self._guard is not None and self._guard.must_check(group, topic, queue_id)

    def offset_of(self, group: str, topic: str, queue_id: int) -> int | None:
        return self.offsets.offset_of(group, topic, queue_id)

    def start_of(self, topic: str, queue_id: int) -> int | None:
        """Return the start of a group without progress: 0 while the queue's first message is there, and not too far
        back in the log; else None, and the consumer decides."""
        queue = self._store.queue(topic, queue_id)
        if queue is None or queue.min_offset != 0 or queue.max_offset == 0:
            return None
        first = queue.entry(0)
        is_near = first is not None and self._store.positions().written - first.position <= self._near
        return 0 if is_near else None
