"""From the bytes that a broker sends of its log to chunks of a backup: checked as a replica checks them.

Bytes come in pieces that end anywhere. First comes what the backup ends with: it must be what the backup has, else this
is another log, or one that was cut. Then every record is checked (length, position, CRC), and whole records are
gathered until it is worth a chunk, or its segment ends. No input or output.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from pyromq.backup.manifest import TAIL_BYTES, Chunk, Manifest, sha256_of
from pyromq.errors import BackupError
from pyromq.records import layout, record
from pyromq.records.scan import Stop, scan
from pyromq.replication.arrival import StreamDamaged, check_arrived


class AnotherLog(BackupError):
    """The broker's log differs from the backup before the end of the backup."""


class Known(NamedTuple):
    """Bytes that the backup has, to be compared: `[start, end)` of the log, and their digest."""

    start: int
    end: int
    sha256: str


def end_of(last: Manifest, log_start: int) -> tuple[Known, ...]:
    """The last bytes of a backup, oldest first; none where the log begins behind them."""
    found: list[Known] = []
    for chunk in reversed(last.chunks):
        known = _tail(chunk)
        if known.start < log_start or sum(each.end - each.start for each in found) >= TAIL_BYTES:
            break
        found.append(known)  # a chunk may be as short as the blank that ends a segment
    return tuple(reversed(found))


def _tail(chunk: Chunk) -> Known:
    return Known(chunk.written_end - min(chunk.bytes, TAIL_BYTES), chunk.written_end, chunk.tail_sha256)


@dataclass(frozen=True, slots=True)
class Gathered:
    """Records that become a chunk: `[start, end)` of the log, without the room behind a blank."""

    start: int
    end: int
    data: bytearray
    records: int
    first_ms: int
    last_ms: int


class Arriving:
    """Takes the log from `begin` on. `known`: the bytes before it, which come first."""

    def __init__(self, begin: int, segment_bytes: int, chunk_bytes: int, known: tuple[Known, ...] = ()) -> None:
        self._segment_bytes = segment_bytes
        self._chunk_bytes = chunk_bytes
        self._known = known
        self._begin = begin
        #: The position of the next byte.
        self.position = known[0].start if known else begin
        self._first = self.position
        #: The bytes before `begin`, until they are compared.
        self._before = bytearray()
        self._new(begin, bytearray())

    def _new(self, start: int, data: bytearray) -> None:
        """Begin a chunk with its first bytes."""
        self._start = start
        self._data = data
        #: Bytes of it that are whole records, and the blank that ends a segment.
        self._good = self._kept = 0
        self._records = self._last_ms = 0

    @property
    def good_to(self) -> int:
        """Everything below was checked."""
        return self._start + self._good

    def take(self, data: memoryview) -> list[Gathered]:
        """Return the finished chunks. Raises StreamDamaged, AnotherLog: the good bytes before stay, for `cut`."""
        ready: list[Gathered] = []
        if self.position < self._begin:
            data = self._compare(data)
        while data:
            room = self._segment_end - self.position
            self._data += data[:room]
            self.position += min(room, len(data))
            data = data[room:]
            self._check()
            if self.good_to == self._segment_end or self._good >= self._chunk_bytes:
                ready += self.cut()
        return ready

    def cut(self) -> list[Gathered]:
        """The whole records that are gathered, one chunk or none; a begun record waits for its rest."""
        if not self._good:
            return []
        rest = self._data[self._good :]
        data = self._data
        del data[self._kept :]
        with memoryview(data) as view:
            first_ms = record.stored_at_ms(view, 0, len(data)) or 0
        made = Gathered(self._start, self.good_to, data, self._records, first_ms, self._last_ms)
        self._new(self.good_to, rest)
        return [made]

    @property
    def _segment_end(self) -> int:
        return self._start - self._start % self._segment_bytes + self._segment_bytes

    def _compare(self, data: memoryview) -> memoryview:
        missing = self._begin - self.position
        self._before += data[:missing]
        self.position += min(missing, len(data))
        if self.position == self._begin:
            for known in self._known:
                if sha256_of(bytes(self._before[known.start - self._first : known.end - self._first])) != known.sha256:
                    raise AnotherLog(f"the bytes before position {known.end} are not those in the backup")
            self._before.clear()
        return data[missing:]

    def _check(self) -> None:
        with memoryview(self._data) as view:
            try:
                self._count(view, self._good, len(view))
            except StreamDamaged as damage:
                self._count(view, self._good, damage.position - self._start)
                raise

    def _count(self, view: memoryview, start: int, limit: int) -> None:
        with view[start:limit] as new:
            found = check_arrived(new, self._start + start, self._segment_bytes)
            self._records += found.records
            self._last_ms = found.last_timestamp_ms or self._last_ms
            self._good = self._kept = start + found.length
            if found.length and self.good_to == self._segment_end:
                whole = scan(new, 0, len(new), self._start + start, False)
                if whole.stop is Stop.BLANK:  # of which only the head is kept
                    self._kept = start + whole.end + layout.BLANK.size
