from typing import Any

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

class BatchWriter:
    @property
    def base(self) -> int: ...
    @property
    def offset(self) -> int: ...
    @property
    def count(self) -> int: ...
    @property
    def is_open(self) -> bool: ...
    @property
    def is_awaited(self) -> bool: ...
    @property
    def now_ms(self) -> int: ...
    def open(
        self,
        view: memoryview,
        base: int,
        offset: int,
        now_ms: int,
        with_crc: bool,
        max_body: int,
        cursors: dict[bytes, Any],
    ) -> None: ...
    def renew(self, now_ms: int) -> None: ...
    def go_on(self, room: int) -> None: ...
    def close(self) -> None: ...
    def append_draft(self, draft: Draft) -> tuple[int, int] | None: ...

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
