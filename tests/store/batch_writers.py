"""Writers of an append batch: the definition, in a few lines, and the compiled one."""

from __future__ import annotations

from typing import Any, Protocol

from pyromq import accelerated
from pyromq.model.message import Draft
from pyromq.records import layout, record
from pyromq.store.log.commit_log import BatchWriter
from pyromq.store.queues.queue_cursor import queue_key

ACCELERATED = accelerated.load("append_batch")


class DraftWriter(BatchWriter, Protocol):
    @property
    def is_open(self) -> bool: ...

    def append_draft(self, draft: Draft, /) -> tuple[int, int] | None: ...


class DefinitionWriter:
    """Appends what `record.encode` makes of a message."""

    def __init__(self) -> None:
        self.is_open = self.is_awaited = False
        self.base = self.offset = self.count = self.now_ms = 0

    def open(
        self,
        view: memoryview,
        base: int,
        offset: int,
        now_ms: int,
        with_crc: bool,
        max_body: int,
        cursors: dict[bytes, Any],
    ) -> None:
        if not 0 <= offset <= len(view):
            raise IndexError("append outside of the buffer")
        self._view, self._room, self._cursors = view, len(view), cursors
        self._with_crc, self._max_body = with_crc, max_body
        self.base, self.offset, self.count, self.now_ms = base, offset, 0, now_ms
        self.is_open, self.is_awaited = True, False

    def renew(self, now_ms: int) -> None:
        self.now_ms = now_ms

    def go_on(self, room: int) -> None:
        self.base, self.offset = self.base + self.offset, 0
        self._room = min(room, len(self._view))

    def close(self) -> None:
        self.is_open = False

    def append_draft(self, draft: Draft) -> tuple[int, int] | None:
        cursor = self._cursors.get(queue_key(draft.topic, draft.queue_id))
        most = layout.MAX_PROPERTIES - layout.CRC_PROPERTY_SIZE - 1
        if cursor is None or len(draft.body) > self._max_body or len(draft.properties) > most:
            return None
        position, queue_offset = self.base + self.offset, cursor.next_append
        data = record.encode(draft, position, queue_offset, self.now_ms, self._with_crc)
        if self.offset + len(data) + layout.BLANK_RESERVE > self._room:
            return None
        self._view[self.offset : self.offset + len(data)] = data
        self.offset += len(data)
        self.count += 1
        cursor.next_append += 1
        self.is_awaited = self.is_awaited or cursor.awaited is not None
        return position, queue_offset


#: Names and classes; the compiled writer counts with compiled cursors only.
WRITERS: dict[str, type[Any]] = {"definition": DefinitionWriter}
if ACCELERATED is not None:
    WRITERS["compiled"] = ACCELERATED.BatchWriter
