"""The log as a copy of another one: it begins where the other one does, and grows by its bytes."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyromq.store.message_store import MessageStore


class LogCopy:
    """Writes the bytes of another log. A new leader continues with messages: `end`."""

    def __init__(self, store: MessageStore, grew: Callable[[int], None]) -> None:
        self._store = store
        self._grew = grew

    def start_at(self, position: int) -> None:
        """Let an empty log begin where the other one does. Raises OSError."""
        store = self._store
        assert position % store.config.segment_bytes == 0, f"no segment begins at {position}"
        store.log.begin_copy_at(position)
        for queue in list(store.queues):
            store.queues.discard(queue)  # it has no messages, and begins where its first one does
        for mark in store.marks.all():
            if position < mark.value:
                mark.value = position  # no byte below it was ever visible
            mark.advance(position)  # resumes the coroutines of a running store that wait for it

    def append(self, data: memoryview, records: int, last_timestamp_ms: int) -> None:
        """Append whole records, checked before, for the position where this log ends.

        Raises DiskFull (the bytes written before it count), StoreFenced.
        """
        store = self._store
        before = store.log.end
        try:
            store.log.append_copy(data, last_timestamp_ms)
        except OSError as error:
            raise store.fence(error) from error
        finally:
            if store.log.end > before:
                self._grew(max(records, 1))

    def end(self) -> None:
        """Let the log grow by messages: each goes after the last of its queue. Raises DiskFull, StoreFenced."""
        store = self._store
        if store.config.flush.sync:
            store.flush()  # only synced messages are dispatched
        store.dispatch()
        store.log.end_copying()
        store.dispatcher.recovering = False
        for queue in store.queues:
            queue.cursor.next_append = queue.max_offset
