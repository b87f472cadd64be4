"""The numbered messages of the log from a position on, for a table of writers that was saved before them.

Segments without such a message are only searched for the name of the property, at the speed of memory; records are
followed one by one only up to those that have it.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator

from pyromq.broker.idempotence.sequences import WRITER, Numbered, numbered_record
from pyromq.records import layout, record
from pyromq.store.log.segmented_file import Segment, SegmentedFile

log = logging.getLogger("pyromq.broker")

#: Works on any buffer, where `bytes.find` would need a copy.
_NAME = re.compile(re.escape(WRITER + b"\x01"))


def numbered_records(files: SegmentedFile, start: int, end: int) -> Iterator[tuple[Numbered, int, int]]:
    """Yield the numbered messages between two positions, where records begin: each with store time and position."""
    for segment in list(files.segments):
        if segment.end > start and segment.base < end:
            yield from _in_segment(segment, max(start - segment.base, 0), min(end - segment.base, segment.size))


def numbered_at(files: SegmentedFile, position: int) -> Numbered | None:
    """Return the numbered message whose record begins at a position; None if there is none."""
    segment = files.find(position)
    if segment is None:
        return None
    spans = record.spans_of(segment.buffer, position - segment.base, segment.size)
    return None if isinstance(spans, str) else _message(segment, position - segment.base, spans)


def _in_segment(segment: Segment, at: int, limit: int) -> Iterator[tuple[Numbered, int, int]]:
    buffer = segment.buffer
    while (found := _NAME.search(buffer, at, limit)) is not None:
        holder = _record_around(segment, at, found.start(), limit)
        if holder is None:
            return
        at, spans = holder
        message = _message(segment, at, spans)
        if message is not None:
            yield message, layout.STORED_AT.unpack_from(buffer, spans.store_timestamp_at)[0], segment.base + at
        at += spans.total_size


def _message(segment: Segment, at: int, spans: record.Spans) -> Numbered | None:
    buffer = segment.buffer
    queue_id = layout.queue_id_of(buffer, at)
    topic = bytes(buffer[spans.topic : spans.topic_end])
    return numbered_record(topic, queue_id, bytes(buffer[spans.properties : spans.properties_end]))


def _record_around(segment: Segment, at: int, wanted: int, limit: int) -> tuple[int, record.Spans] | None:
    """The record that holds a byte, looked for from a record before it on; None when records end before."""
    buffer = segment.buffer
    while True:
        size, magic = layout.BLANK.unpack_from(buffer, at) if at + layout.BLANK.size <= limit else (0, 0)
        if magic == layout.MAGIC_BLANK or (size == 0 and magic == 0):
            return None  # bytes after the end are no message
        if at + size > wanted or size < layout.SMALLEST_RECORD:
            spans = record.spans_of(buffer, at, limit)
            if not isinstance(spans, str):
                return at, spans
            log.error("writers are not known from position %d of the log on: %s", segment.base + at, spans)
            return None
        at += size
