"""Small stores in memory for the tests of this directory."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pytest

from pyromq.clock import ManualClock
from pyromq.config import KIB, StoreConfig
from pyromq.model.message import Draft, StoredMessage
from pyromq.records import layout, record
from pyromq.records.properties import encode_properties
from pyromq.store import dispatcher, key_index
from pyromq.store.key_index import index_keys_readable
from pyromq.store.log import commit_log
from pyromq.store.message_store import InlineRunner, MessageStore
from pyromq.store.queues import queue_reader
from pyromq.store.queues.queue_cursor import COMPILED, Dispatched, append_drafts_readable, dispatch_readable
from pyromq.store.queues.queue_reader import ReadResult, collect_readable
from pyromq.testing import SimDisk

ROOT = Path("/store")
SEGMENT = 16 * KIB

needs_kernel = pytest.mark.skipif(not COMPILED, reason="the compiled kernel is not in use")


def config(**changes: Any) -> StoreConfig:
    """Everything small, so that a few messages roll every kind of file."""
    settings: dict[str, Any] = {
        "root": ROOT,
        "segment_bytes": SEGMENT,
        "queue_file_entries": 50,
        "index_slots": 16,
        "index_entries": 40,
        "prefault_bytes": 0,
        "recovery_threads": 1,
        **changes,
    }
    return StoreConfig(**settings)


def open_store(disk: SimDisk | None = None, clock: ManualClock | None = None, **changes: Any) -> MessageStore:
    """A store on a disk in memory, whose background work is done at once."""
    clock = clock or ManualClock()
    store = MessageStore(
        config(**changes), disk=SimDisk(clock) if disk is None else disk, clock=clock, runner=InlineRunner()
    )
    store.open()
    return store


def order(
    body: bytes | str = b"body", *, topic: str = "orders", queue: int = 0, flags: int = 0, **properties: str
) -> Draft:
    return Draft(
        topic=topic.encode(),
        queue_id=queue,
        body=body.encode() if isinstance(body, str) else body,
        properties=encode_properties(properties),
        storage_flags=flags,
    )


def orders(count: int, **options: Any) -> list[Draft]:
    return [order(f"{number}", **options) for number in range(count)]


def filling(draft: Draft, size: int) -> Draft:
    """Return the same draft with a body that makes its record exactly this long."""
    draft.body = b""
    draft.body = bytes(size - record.encoded_size(draft, with_crc=True))
    return draft


def messages(result: ReadResult | Sequence[memoryview]) -> list[StoredMessage]:
    views = result.records if isinstance(result, ReadResult) else result
    return [record.decode(view) for view in views]


def bodies(result: ReadResult | Sequence[memoryview]) -> list[bytes]:
    return [message.body for message in messages(result)]


def read_all(store: MessageStore, topic: str = "orders", queue: int = 0) -> list[bytes]:
    """Every body of a queue, as a consumer would get them."""
    offset, found = store.min_offset(topic, queue), []
    while offset < store.max_offset(topic, queue):
        result = store.read(topic, queue, offset)
        found += bodies(result)
        assert result.next_offset > offset
        offset = result.next_offset
    return found


def plant_log(disk: SimDisk, records: bytes, *, base: int = 0) -> None:
    """Put these bytes where a log's segment is, as another program would have left them."""
    data = records + bytes(SEGMENT - len(records))
    disk.plant(ROOT / "commitlog" / f"{base:020d}", data)


def record_bytes(draft: Draft, position: int, queue_offset: int = 0, stored_ms: int = 1_700_000_000_000) -> bytes:
    return record.encode(draft, position, queue_offset, stored_ms, True)


def walk(segment: memoryview | bytes) -> Iterator[StoredMessage]:
    """The records of a segment, from its beginning to a blank or the end."""
    view = memoryview(segment)
    at = 0
    while at < len(view) and int.from_bytes(view[at + 4 : at + 8], "big") in (layout.MAGIC_V1, layout.MAGIC_V2):
        message = record.decode(view, at)
        yield message
        at += message.size


def use_readable_forms(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the store run on the functions that define it, also where the kernel is compiled."""
    monkeypatch.setattr(commit_log, "append_drafts", append_drafts_readable)
    monkeypatch.setattr(commit_log, "first_unusual", lambda drafts, start, max_body: start)
    monkeypatch.setattr(dispatcher, "dispatch", dispatch_readable)
    monkeypatch.setattr(key_index, "index_keys", index_keys_readable)
    monkeypatch.setattr(queue_reader, "collect", collect_readable)


def use_definitions(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the dispatcher look at one record after the other, each in full."""
    use_readable_forms(monkeypatch)
    monkeypatch.setattr(dispatcher, "dispatch", lambda buffer, start, end, cursors: Dispatched(start, 0, 0))
    monkeypatch.setattr(key_index, "index_keys", lambda buffer, start, end, index: start)


class LaterRunner:
    """Keeps background work until the test says that its time has come."""

    def __init__(self) -> None:
        self.waiting: list[tuple[Any, Future[Any]]] = []

    def submit(self, work: Any, /) -> Future[Any]:
        future: Future[Any] = Future()
        self.waiting.append((work, future))
        return future

    def run(self) -> int:
        """Run the submitted work; return its amount."""
        waiting, self.waiting = self.waiting, []
        for work, future in waiting:
            try:
                future.set_result(work())
            except OSError as error:
                future.set_exception(error)
        return len(waiting)
