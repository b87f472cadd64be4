"""A log in memory, for both ends of a stream: no store, no disk, and a synced mark that the test sets."""

from __future__ import annotations

from pyromq.errors import OffsetNotFound
from pyromq.model.message import Draft
from pyromq.records import layout
from pyromq.records.record import encode

SEGMENT = 2048


def a_log(bodies: list[bytes], start: int = 0) -> bytes:
    """Records one behind the other, with the blanks that end segments; its first position is `start`."""
    log = bytearray()
    for number, body in enumerate(bodies):
        room = SEGMENT - (start + len(log)) % SEGMENT
        record = encode(Draft(b"t", 0, body), start + len(log), number, 1000 + number, True)
        if len(record) + layout.BLANK_RESERVE > room:
            log += layout.BLANK.pack(room, layout.MAGIC_BLANK) + bytes(room - layout.BLANK.size)
            record = encode(Draft(b"t", 0, body), start + len(log), number, 1000 + number, True)
        log += record
    return bytes(log)


class MemoryLog:
    """Both sides of it."""

    segment_bytes = SEGMENT

    def __init__(self, data: bytes = b"", start: int = 0, *, sync: bool = False) -> None:
        self.data = bytearray(data)
        self.start = start
        self.synced = start + len(data)
        self._sync = sync
        #: Raised instead of the next append, once.
        self.refusal: Exception | None = None

    @property
    def log_start(self) -> int:
        return self.start

    @property
    def log_end(self) -> int:
        return self.start + len(self.data)

    copy_end = log_end

    @property
    def last_segment_start(self) -> int:
        return self.log_end - self.log_end % SEGMENT

    @property
    def copy_safe(self) -> int:
        return self.synced if self._sync else self.log_end

    @property
    def is_empty(self) -> bool:
        return not self.data

    def log_bytes(self, position: int, most: int) -> memoryview:
        if not self.start <= position <= self.log_end:
            raise OffsetNotFound(f"there is no {position}")
        most = min(most, SEGMENT - position % SEGMENT)
        return memoryview(bytes(self.data[position - self.start : position - self.start + most]))

    def in_file(self, position: int) -> None:
        return None

    def is_warm(self, position: int, length: int) -> bool:
        return True

    def fetch(self, position: int, length: int) -> None:
        raise AssertionError("everything is in memory")

    def start_copy_at(self, position: int) -> None:
        assert self.is_empty
        self.start = self.synced = position

    def append_copy(self, data: memoryview, records: int, last_timestamp_ms: int) -> None:
        if self.refusal is not None:
            refusal, self.refusal = self.refusal, None
            raise refusal
        self.data += data

    def before(self, position: int) -> tuple[str, bytes]:
        return "memory", bytes(self.data[: position - self.start][-32:])

    def remove_below(self, position: int) -> None:
        del self.data[: position - self.start]
        self.start = position
