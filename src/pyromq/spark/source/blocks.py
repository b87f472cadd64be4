"""Record batches from brokers' answers: small answers joined, unwanted rows dropped, large answers split."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pyarrow as pa
import pyarrow.compute as pc

from pyromq.errors import BadRecord, IllegalMessage
from pyromq.spark.decode.decoder import Starts, batches, numbers, verify, walk
from pyromq.spark.source.loss import shown
from pyromq.spark.source.offsets import Span

#: Each call of the decoder has a price, which the messages of a large block share.
LEAST_BYTES = 1 << 20


def batches_of(
    bodies: Sequence[bytes],
    span: Span,
    names: Sequence[str],
    *,
    tags: frozenset[str] | None = None,
    verify_crc: bool = False,
) -> Iterator[pa.RecordBatch]:
    """The messages in some answers that are in the span and, where `tags` are given, have one of these.

    Raises IllegalMessage for bytes that are no records.
    """
    try:
        for block in joined(bodies):
            starts = within(block, records_in(block), span)
            if verify_crc:
                verify(block, starts)
            yield from _decoded(block, starts, span, names, tags)
    except BadRecord as bad:
        raise IllegalMessage(f"what a broker sent of {shown(span.queue)} cannot be read: {bad}") from None


def _decoded(
    block: bytes, starts: Starts, span: Span, names: Sequence[str], tags: frozenset[str] | None
) -> Iterator[pa.RecordBatch]:
    wanted = list(names) if tags is None or "tags" in names else [*names, "tags"]
    for batch in batches(block, starts, wanted, broker=span.queue.broker_name):
        if tags is None:
            yield batch
            continue
        # A broker compares hashes of tags, and another tag may have the same.
        kept = batch.filter(pc.is_in(batch.column("tags"), pa.array(sorted(tags), pa.string())))
        if kept.num_rows:
            yield kept if len(wanted) == len(names) else kept.select(list(names))


def joined(bodies: Sequence[bytes]) -> Iterator[bytes]:
    """The same bytes in blocks of a size that is worth decoding."""
    small: list[bytes] = []
    size = 0
    for body in bodies:
        small.append(body)
        size += len(body)
        if size >= LEAST_BYTES:
            yield small[0] if len(small) == 1 else b"".join(small)
            small, size = [], 0
    if small:
        yield small[0] if len(small) == 1 else b"".join(small)


def records_in(block: bytes) -> Starts:
    """A broker sends nothing but records: blanks and zeroes, which end a log, are not among them."""
    found = walk(block, 0, len(block))
    if found.end != len(block):
        raise BadRecord(found.end, "something else than a record is there")
    return found.starts


def within(block: bytes, starts: Starts, span: Span) -> Starts:
    """Those records whose queue offset is in the span; they are in the order of their offsets."""
    if len(starts) == 0:
        return starts
    first, last = numbers(block, starts[[0, -1]], "queue_offset").tolist()
    if span.start <= first and last < span.end:
        return starts
    offsets = numbers(block, starts, "queue_offset")
    return starts[(offsets >= span.start) & (offsets < span.end)]


def before(block: bytes, end: int) -> bytes:
    """The records whose queue offset is before `end`. Raises BadRecord."""
    starts = records_in(block)
    behind = numbers(block, starts, "queue_offset") >= end
    return block[: int(starts[behind.argmax()])] if behind.any() else block
