"""Checks the log: every record (lengths, magic, position, CRC) and the blank that ends each segment.

A segment is walked on its own, on any thread. After a damaged record the walk continues at the next one; after the
synced mark, the first bytes that are no record end the log. Bad ranges are remembered: entries of a queue or
the index that point there cannot be checked. Nothing is reported here, a `Walk` has the findings.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass, field

from pyromq.records import layout, record
from pyromq.records.java_hash import key_hash
from pyromq.records.scan import Scan, Stop, scan, why_bad
from pyromq.store.key_index import keys_of
from pyromq.store.log.segmented_file import Segment
from pyromq.store.log.zeroes import last_nonzero
from pyromq.store.offline.inspect import stored_ms

#: A scan tells how far it is after this much. More than the largest record.
SCAN_SLICE = 96 << 20
#: A position behind every log's end.
EVERYWHERE = 1 << 62


@dataclass(slots=True)
class Walk:
    """One segment, checked. Offsets are in the segment."""

    segment: Segment
    start: int = 0
    #: Stretches of good records.
    good: list[tuple[int, int]] = field(default_factory=list)
    bad: list[tuple[int, int, str]] = field(default_factory=list)
    records: int = 0
    #: The position of the scan, for the progress.
    reached: int = 0
    #: The log ends in this segment, here …
    end: int | None = None
    #: … and this is wrong with what follows.
    torn: str | None = None


class LogWalker:
    """Checks segments on threads. `sure_to`: below this everything must be good."""

    def __init__(self, sure_to: int) -> None:
        self._sure_to = sure_to

    def walk(self, walk: Walk) -> Walk:
        segment = walk.segment
        at = walk.start
        while at < segment.size and walk.end is None:
            found = self._scan(walk, at)
            if found.end > at:
                walk.good.append((at, found.end))
            at = found.end
            what = self._what_stopped(segment, found)
            if what is None:
                break
            if segment.base + at >= self._sure_to:
                self._finish(walk, at, found.stop, what)
            else:
                after = _next_record(segment, at)
                walk.bad.append((at, after, what))
                at = after
        walk.reached = segment.size
        return walk

    @staticmethod
    def _scan(walk: Walk, start: int) -> Scan:
        """Scan in slices, so that the progress is visible. Ranges that were never written are skipped."""
        segment, at, limit, timestamp_ms = walk.segment, start, 0, 0
        data_end = segment.data_end(start)
        while at < data_end:
            # A record that a slice cuts off may be whole in the segment.
            limit = segment.size if limit > at else min(at + SCAN_SLICE, data_end)
            found = scan(segment.buffer, at, limit, segment.base, True)
            walk.records += found.records
            walk.reached = found.end
            timestamp_ms = found.last_timestamp_ms or timestamp_ms
            if limit == segment.size:
                return Scan(found.end, walk.records, timestamp_ms, found.stop)
            if found.end > at:
                at, limit = found.end, 0
        return Scan(at, walk.records, timestamp_ms, Stop.EMPTY if at < segment.size else Stop.LIMIT)

    @staticmethod
    def _what_stopped(segment: Segment, found: Scan) -> str | None:
        if found.stop is Stop.LIMIT:
            return None
        if found.stop is Stop.EMPTY:
            return "zeroes where a record must be"
        if found.stop is Stop.BAD:
            return why_bad(segment.buffer, found.end, segment.size, segment.base + found.end)
        size, _ = layout.BLANK.unpack_from(segment.buffer, found.end)
        left = segment.size - found.end
        return None if size == left else f"the blank that ends the segment has size {size} where {left} bytes are left"

    @staticmethod
    def _finish(walk: Walk, at: int, stop: Stop, what: str) -> None:
        walk.end = at
        behind = last_nonzero(walk.segment.buffer, at, walk.segment.data_end(at))
        if behind > at:
            what = "zeroes, and something behind them" if stop is Stop.EMPTY else what
            walk.torn = f"{behind - at} bytes are no whole record ({what})"


def _next_record(segment: Segment, at: int) -> int:
    """Return the position of the next record after a damaged one; the segment's end when nothing more is found."""
    data_end = segment.data_end(at)
    if at >= data_end:
        return segment.size
    spans = record.spans_of(segment.buffer, at, segment.size)
    if not isinstance(spans, str) and _may_begin(segment, at + spans.total_size):
        return at + spans.total_size
    magics = [magic.to_bytes(4, "big") for magic in (layout.MAGIC_V1, layout.MAGIC_V2, layout.MAGIC_BLANK)]
    step, overlap = 1 << 20, layout.BLANK.size
    for block in range(at + 1, data_end, step):
        data = bytes(segment.buffer[block : min(block + step + overlap, data_end)])
        found = sorted(start for magic in magics for start in _occurrences(data, magic) if start >= 4)
        for start in found:
            if _may_begin(segment, block + start - 4):
                return block + start - 4
    return segment.size


def _occurrences(data: bytes, wanted: bytes) -> Iterator[int]:
    at = data.find(wanted)
    while at >= 0:
        yield at
        at = data.find(wanted, at + 1)


def _may_begin(segment: Segment, at: int) -> bool:
    """Does a record begin here, or the blank at the end?"""
    if at + layout.BLANK.size > segment.size:
        return at == segment.size
    size, magic = layout.BLANK.unpack_from(segment.buffer, at)
    if magic == layout.MAGIC_BLANK:
        return bool(at + size == segment.size)
    if isinstance(record.spans_of(segment.buffer, at, segment.size), str):
        return False
    return bool(layout.position_of(segment.buffer, at) == segment.base + at)


class Log:
    """The segments by position, and their known bad ranges."""

    def __init__(self, segments: list[Segment], file_bytes: int) -> None:
        self._file_bytes = file_bytes
        self._by_base = {segment.base: segment for segment in segments}
        self._bad_starts: list[int] = []
        self._bad_ends: list[int] = []
        self.start = segments[0].base if segments else 0
        #: Until the end of the log is known: the end of its last file.
        self.end = segments[-1].end if segments else 0

    def find(self, position: int) -> Segment | None:
        return self._by_base.get(position - position % self._file_bytes)

    def add_bad(self, start: int, end: int) -> None:
        self._bad_starts.append(start)
        self._bad_ends.append(end)

    def is_lost(self, position: int) -> bool:
        """No longer there, or damaged: what points there cannot be checked."""
        if 0 <= position < self.start or (0 <= position < self.end and self.find(position) is None):
            return True
        at = bisect_right(self._bad_starts, position) - 1
        return at >= 0 and position < self._bad_ends[at]

    def stored_ms(self, position: int) -> int | None:
        segment = self.find(position)
        return stored_ms(segment, position) if segment is not None and self.start <= position < self.end else None

    def hashes_at(self, position: int) -> set[int]:
        """The hashes of all keys of the record at a position."""
        segment = self.find(position)
        if segment is None or not self.start <= position < self.end or self.is_lost(position):
            return set()
        at = position - segment.base
        spans = record.spans_of(segment.buffer, at, segment.size)
        if isinstance(spans, str) or layout.position_of(segment.buffer, at) != position:
            return set()
        topic = bytes(segment.buffer[spans.topic : spans.topic_end])
        properties = bytes(segment.buffer[spans.properties : spans.properties_end])
        return {key_hash(topic, key) for key in keys_of(properties)}
