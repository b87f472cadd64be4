"""Clamps tables to the log: after a start no table holds a position beyond the end of its queue or of the log.

A power cut, a truncation, a promotion or a restored file can leave a table ahead of the log. The positions beyond the
end are given to other messages later, and a group that is "past" them would never receive those. Every start clamps
all tables, and the clamped tables are on the disk before the broker serves or writes a new epoch: a kill right after
the start brings no old position back.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Protocol

from pyromq.store.message_store import MessageStore
from pyromq.store.tables.offset_files import ConsumerOffsets, DelayOffsets

log = logging.getLogger("pyromq.broker")

#: A table is a file and its previous copy: both are written, since a start may load either.
COPIES_OF_A_TABLE = 2


@dataclass(frozen=True, slots=True)
class LogEnds:
    """The ends of a log and of its queues, including messages that are not visible yet."""

    log_end: int
    #: By topic and queue id; 0 for a queue without messages.
    queue_end: Callable[[str, int], int]

    @classmethod
    def of(cls, store: MessageStore) -> LogEnds:
        return cls(store.positions().appended, store.given_out)


class LogTable(Protocol):
    """A saved table with positions in queues or in the log."""

    def clamp(self, ends: LogEnds) -> bool:
        """Lower every position beyond its end; True if any was lowered."""

    def save_clamped(self) -> None:
        """Write the table to the disk, so that no copy of it holds an old position. Raises OSError."""


def _write(write: Callable[[], None]) -> None:
    write()


def clamp_tables(
    ends: LogEnds, tables: Iterable[LogTable], save: Callable[[Callable[[], None]], None] = _write
) -> None:
    """Clamp all tables. Returns when they are durable. `save` writes each one, and may try again. Raises OSError."""
    for table in tables:
        if table.clamp(ends):
            save(table.save_clamped)


class GroupOffsets:
    """`consumerOffset.json` as a `LogTable`; it also holds the positions of transactions."""

    def __init__(self, offsets: ConsumerOffsets) -> None:
        self._offsets = offsets

    def clamp(self, ends: LogEnds) -> bool:
        is_changed = self._offsets.cut_transactions(ends.log_end)
        if is_changed:
            log.warning("the log was truncated to %d: transactions that ended after it are open again", ends.log_end)
        for (topic, group), by_queue in self._offsets.all().items():
            for queue_id, offset in by_queue.items():
                end = ends.queue_end(topic, queue_id)
                if offset > end:
                    log.warning(
                        "%s is at %d of %s/%d, which ends at %d here: it goes on there",
                        group, offset, topic, queue_id, end,
                    )  # fmt: skip
                    self._offsets.reset(group, topic, queue_id, end)
                    is_changed = True
        return is_changed

    def save_clamped(self) -> None:
        for _ in range(COPIES_OF_A_TABLE):
            self._offsets.renew()
            self._offsets.save()


class DelayLevels:
    """`delayOffset.json` as a `LogTable`: an offset counts only with the delivered copies before it."""

    def __init__(self, delays: DelayOffsets) -> None:
        self._delays = delays

    def clamp(self, ends: LogEnds) -> bool:
        is_changed = self._delays.cut_to(ends.log_end)
        if is_changed:
            log.warning("the log was truncated to %d: delayed messages delivered after it come again", ends.log_end)
        return is_changed

    def save_clamped(self) -> None:
        for _ in range(COPIES_OF_A_TABLE):
            self._delays.renew()
            self._delays.save()
