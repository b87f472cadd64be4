"""Verification of received bytes: every record is checked before it is appended: length, position, CRC.

Bytes come in frames that end anywhere. Whole records are checked and passed on; a partial one waits for its rest.
No input or output.
"""

from __future__ import annotations

from dataclasses import dataclass

from pyromq.errors import PyroMQError
from pyromq.records import layout
from pyromq.records.scan import Stop, scan, why_bad

#: A record (or the blank where one did not fit) that claims to be longer is none: its rest is not waited for. A body
#: has up to 64 MiB, everything around it less than 64 KiB.
MOST_RECORD = (64 << 20) + (64 << 10)
#: Received bytes that an error shows.
SHOWN_BYTES = 64


class StreamDamaged(PyroMQError):
    """The primary sent bytes that are no record of this log: neither they nor any later bytes were appended."""

    def __init__(self, position: int, what: str, found: bytes, where: str = "", before: bytes = b"") -> None:
        self.position = position
        self.what = what
        self.found = found
        ours = f" In {where} our log ends with {_shown(before)}." if where else ""
        super().__init__(
            f"what the primary sent for position {position} is not appended: {what}; it begins with {_shown(found)}."
            f"{ours} Compare both logs (`pyromq store verify`), then connect again"
        )

    def seen_from(self, where: str, before: bytes) -> StreamDamaged:
        """The same, told with the file that it was for and what that holds before it."""
        return StreamDamaged(self.position, self.what, self.found, where, before)


def _shown(data: bytes) -> str:
    return data[:32].hex(" ") or "nothing"


@dataclass(frozen=True, slots=True)
class Checked:
    #: Bytes from the start that are whole, good records (and the blank that ends a segment).
    length: int
    records: int
    #: Store time of the last record; 0 when there is none.
    last_timestamp_ms: int = 0


def check_arrived(data: memoryview, position: int, segment_bytes: int) -> Checked:
    """Check bytes for `position` and return the part that may be appended. Raises StreamDamaged."""
    at = records = last_ms = 0
    while at < len(data):
        segment_end = at + segment_bytes - (position + at) % segment_bytes
        limit = min(len(data), segment_end)
        found = scan(data, at, limit, position, True)
        records, last_ms = records + found.records, found.last_timestamp_ms or last_ms
        at = found.end
        if found.stop is Stop.BLANK:
            if not _is_whole_blank(data, at, segment_end, position):
                return Checked(at, records, last_ms)
            at = segment_end
        elif at < limit:
            if not _is_begun(data, at, limit, segment_end):
                raise _damage(data, at, position, why_bad(data, at, limit, position + at))
            return Checked(at, records, last_ms)
    return Checked(at, records, last_ms)


def _damage(data: memoryview, at: int, position: int, what: str) -> StreamDamaged:
    return StreamDamaged(position + at, what, bytes(data[at : at + SHOWN_BYTES]))


def _is_begun(data: memoryview, at: int, limit: int, segment_end: int) -> bool:
    """A good beginning of a record whose rest has not come."""
    if limit - at < layout.BLANK.size:
        return limit != segment_end
    size, magic = layout.BLANK.unpack_from(data, at)
    if magic not in (layout.MAGIC_V1, layout.MAGIC_V2) or not layout.SMALLEST_RECORD <= size <= MOST_RECORD:
        return False
    return bool(limit - at < size <= segment_end - at)


def _is_whole_blank(data: memoryview, at: int, segment_end: int, position: int) -> bool:
    size, _ = layout.BLANK.unpack_from(data, at)
    if at + size != segment_end or size > MOST_RECORD:
        raise _damage(data, at, position, f"a blank of {size} bytes does not end its segment")
    return len(data) >= segment_end


def begun_size(begun: bytes | bytearray) -> int:
    """Return the size of a record or blank whose beginning was found good; the size of the head if that is partial."""
    if len(begun) < layout.BLANK.size:
        return layout.BLANK.size
    size: int = layout.BLANK.unpack_from(begun)[0]
    return size
