from pyromq.model.message import Draft

def use_crc32(address: int) -> None: ...
def positive_crc32(data: bytes | bytearray | memoryview) -> int: ...
def scan(
    buffer: bytes | bytearray | memoryview, start: int, limit: int, base: int, check_crc: bool
) -> tuple[int, int, int, int]: ...
def last_nonzero(buffer: bytes | bytearray | memoryview, start: int, end: int) -> int: ...
def encode(
    draft: Draft,
    position: int,
    queue_offset: int,
    store_timestamp_ms: int,
    with_crc: bool,
    room: int,
    max_body: int,
) -> bytes | None: ...
