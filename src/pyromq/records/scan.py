"""Walk over records that lie one behind the other, checking each, until something ends the walk.

Any bytes are fine as input: the answer is how far they are records and why the walk ended, in time and memory
bounded by the length of the input.
"""

from __future__ import annotations

from enum import IntEnum
from typing import TYPE_CHECKING, NamedTuple

from pyromq import accelerated
from pyromq.records import layout, record

ACCELERATED = accelerated.load("records")


class Stop(IntEnum):
    """Why a scan ended."""

    LIMIT = 0  #: it reached the end of what it was given, between two records
    BLANK = 1  #: a blank says that the segment ends here
    EMPTY = 2  #: zeroes where a record would begin: nothing was written here yet
    BAD = 3  #: no record, or a damaged one


class Scan(NamedTuple):
    end: int  #: offset behind the last good record
    records: int  #: good records
    last_timestamp_ms: int  #: store time of the last good record; 0 when there is none
    stop: Stop


def scan_readable(buffer: memoryview, start: int, limit: int, base: int, check_crc: bool) -> Scan:
    """Records from `start` on, where offset 0 of the buffer is position `base` of the log."""
    at = start
    count = last_timestamp_ms = 0
    while True:
        stop = before_record(buffer, at, limit)
        if stop is not None:
            return Scan(at, count, last_timestamp_ms, stop)
        spans = record.verify(buffer, at, limit, base + at) if check_crc else record.spans_of(buffer, at, limit)
        if isinstance(spans, str) or layout.position_of(buffer, at) != base + at:
            return Scan(at, count, last_timestamp_ms, Stop.BAD)
        count += 1
        last_timestamp_ms = layout.STORED_AT.unpack_from(buffer, spans.store_timestamp_at)[0]
        at += spans.total_size


def before_record(buffer: memoryview, at: int, limit: int) -> Stop | None:
    """Why a walk ends here; None when a record may begin."""
    if at == limit:
        return Stop.LIMIT
    if at + layout.BLANK.size > limit:
        return Stop.BAD if any(buffer[at:limit]) else Stop.EMPTY
    size, magic = layout.BLANK.unpack_from(buffer, at)
    if magic == layout.MAGIC_BLANK:
        return Stop.BLANK
    return Stop.EMPTY if size == 0 and magic == 0 else None


def why_bad(buffer: memoryview, start: int, limit: int, position: int) -> str:
    """Return the fault of the record at `start`, for people."""
    found = record.verify(buffer, start, limit, position)
    return found if isinstance(found, str) else "nothing is wrong with the record"


if TYPE_CHECKING or ACCELERATED is None:
    scan = scan_readable
else:

    def scan(buffer, start, limit, base, check_crc):
        end, count, last_timestamp_ms, stop = ACCELERATED.scan(buffer, start, limit, base, check_crc)
        return Scan(end, count, last_timestamp_ms, Stop(stop))


COMPILED = ACCELERATED is not None
