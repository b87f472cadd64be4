"""The committed messages in a part of the log: each says where the half is that it was."""

from __future__ import annotations

from collections.abc import Iterator

from pyromq.broker.transactions import forms
from pyromq.records import layout, record
from pyromq.store.log.segmented_file import Segment, SegmentedFile


def committed_halves(files: SegmentedFile, start: int, end: int) -> Iterator[int | None]:
    """Of each record between two positions, which are where records begin, the position of the half that it was; None
    for other records, and for those that have the record of an end right behind them, as all have but the last."""
    half: int | None = None
    for segment, spans in _records(files, start, end):
        is_end = bytes(segment.buffer[spans.topic : spans.topic_end]) == forms.OP_TOPIC
        yield None if is_end else half
        is_committed = spans.storage_flags & layout.FLAG_TRANSACTION_MASK == layout.FLAG_COMMITTED
        half = layout.TAIL.unpack_from(segment.buffer, spans.tail_at)[1] if is_committed else None
    yield half


def _records(files: SegmentedFile, start: int, end: int) -> Iterator[tuple[Segment, record.Spans]]:
    for segment in list(files.segments):
        at, limit = max(start - segment.base, 0), min(end - segment.base, segment.size)
        # Bytes that are no record are a blank: the segment ends there.
        while at < limit and not isinstance(spans := record.spans_of(segment.buffer, at, limit), str):
            yield segment, spans
            at += spans.total_size
