from pyromq.accel._append_batch import QueueCursor

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
