from array import array

from pyromq.model.message import AppendedAt, Draft

class QueueCursor:
    next_append: int
    next_dispatch: int
    buffer: memoryview
    first: int
    limit: int
    awaited: list[object] | None
    name: object
    def point_at(self, buffer: memoryview, first: int, limit: int) -> None: ...
    def put(self, position: int, size: int, tag_code: int) -> None: ...

class LogRun:
    base: int
    offset: int
    count: int
    is_open: bool
    is_awaited: bool
    now_ms: int
    def open(
        self,
        view: memoryview,
        base: int,
        offset: int,
        now_ms: int,
        with_crc: bool,
        max_body: int,
        cursors: dict[bytes, QueueCursor],
    ) -> None: ...
    #: How far it was brought to the disk, -1: nothing; with how many syncs in this turn, and how long they took
    #: together; and what the last one failed with, 0: none did.
    synced_to: int
    sync_count: int
    sync_seconds: float
    failure: int
    def renew(self, now_ms: int, least_ms: int) -> None: ...
    def settle_in(
        self, descriptor: int, file_start: int, file_end: int, syncs: bool, mapped: memoryview | None = None
    ) -> None: ...
    def settle_no_more(self) -> None: ...
    def go_on(self, room: int) -> None: ...
    def close(self) -> None: ...

class IndexCursor:
    buffer: memoryview
    slots: int
    entries: int
    count: int
    used_slots: int
    limit: int
    begin_ms: int
    end_ms: int
    begin_position: int
    end_position: int
    def __init__(self, buffer: memoryview, slots: int, entries: int) -> None: ...
    def put(self, key_hash: int, position: int, timestamp_ms: int) -> None: ...

def first_unusual(drafts: list[Draft], start: int, max_body: int) -> int: ...
def append_drafts(
    buffer: memoryview,
    offset: int,
    base: int,
    drafts: list[Draft],
    start: int,
    cursors: dict[bytes, QueueCursor],
    now_ms: int,
    with_crc: bool,
    max_body: int,
    receipts: list[AppendedAt],
) -> tuple[int, int, bool]: ...
def dispatch(buffer: memoryview, start: int, end: int, cursors: dict[bytes, QueueCursor]) -> tuple[int, int, int]: ...
def index_keys(buffer: memoryview, start: int, end: int, index: IndexCursor) -> int: ...
def collect(
    entries: memoryview,
    index: int,
    end: int,
    first_base: int,
    segment_bytes: int,
    buffers: list[memoryview | None],
    readable: int,
    checked_below: int,
    topic: bytes,
    queue_id: int,
    first_offset: int,
    tag_codes: frozenset[int] | None,
    max_messages: int,
    max_bytes: int,
    views: list[memoryview],
) -> int: ...
def sync_loop(requests: int, answers: int, shared: array[int]) -> None: ...
