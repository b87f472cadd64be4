"""The writing end of a queue and the loop that fills the log: two forms, one behaviour."""

from __future__ import annotations

import random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pyromq.model.message import AppendedAt, Draft
from pyromq.records import record
from pyromq.store.queues.queue_cursor import (
    ENTRY,
    QueueCursor,
    ReadableQueueCursor,
    append_drafts,
    append_drafts_readable,
    queue_key,
)
from records.drafts import BASE, drafts, ordinary_log
from store.support import needs_kernel, order, orders

CURSORS = pytest.mark.parametrize("kind", [ReadableQueueCursor, QueueCursor], ids=["readable", "chosen"])
INT64 = st.integers(-(2**63), 2**63 - 1)
entries = st.tuples(INT64, st.integers(-(2**31), 2**31 - 1), INT64)


@CURSORS
@given(some=st.lists(entries, max_size=10), first=st.integers(0, 2**40))
def test_entries_are_packed_one_behind_the_other(kind: Any, some: list[tuple[int, int, int]], first: int) -> None:
    buffer = memoryview(bytearray(20 * 12))
    cursor = kind()
    cursor.next_dispatch = first + 1
    cursor.point_at(buffer, first, first + 12)
    for entry in some:
        cursor.put(*entry)
    packed = b"".join(ENTRY.pack(*entry) for entry in some)
    assert bytes(buffer) == (bytes(20) + packed).ljust(240, b"\0")
    assert cursor.next_dispatch == first + 1 + len(some)
    assert cursor.next_append == 0, "only appending moves it"


@CURSORS
@pytest.mark.parametrize("next_dispatch", [4, 10, 11])
def test_nothing_is_written_outside_of_the_room(kind: Any, next_dispatch: int) -> None:
    cursor = kind()
    cursor.point_at(memoryview(bytearray(100)), 5, 10)
    cursor.next_dispatch = next_dispatch
    with pytest.raises(AssertionError):
        cursor.put(1, 2, 3)


@needs_kernel
def test_the_kernel_takes_no_room_that_is_not_there() -> None:
    with pytest.raises(IndexError):
        QueueCursor().point_at(memoryview(bytearray(100)), 0, 6)


def test_a_queue_is_looked_up_by_topic_and_number() -> None:
    assert queue_key(b"orders", 258) == b"orders\x00\x00\x01\x02"


class Side:
    """One form at work in a buffer of its own."""

    def __init__(self, append: Any, cursor: Any, size: int) -> None:
        self.append = append
        self.buffer = memoryview(bytearray(b"\xee" * size))
        self.cursors: dict[bytes, Any] = {}
        self.cursor = cursor
        self.receipts: list[AppendedAt] = []

    def fill(self, some: list[Draft], start: int, offset: int, with_crc: bool) -> tuple[int, int, bool]:
        arguments = (self.cursors, 1_700_000_000_000, with_crc, 1 << 20, self.receipts)
        return tuple(self.append(self.buffer, offset, BASE, some, start, *arguments))

    def state(self) -> object:
        return bytes(self.buffer), self.receipts, {key: cursor.next_append for key, cursor in self.cursors.items()}


@needs_kernel
@settings(max_examples=80)
@given(st.lists(drafts(), max_size=6), st.integers(100, 3000), st.booleans(), st.data())
def test_both_forms_fill_the_same_bytes_until_the_kernel_hands_back(
    some: list[Draft], size: int, with_crc: bool, data: st.DataObject
) -> None:
    readable = Side(append_drafts_readable, ReadableQueueCursor, size)
    compiled = Side(append_drafts, QueueCursor, size)
    known = data.draw(st.lists(st.booleans(), min_size=len(some), max_size=len(some)))
    for draft, is_known in zip(some, known, strict=True):
        for side in (readable, compiled):
            if is_known:
                side.cursors.setdefault(queue_key(draft.topic, draft.queue_id), side.cursor())
    offset = data.draw(st.integers(0, 100))
    taken, reached, is_full = compiled.fill(some, 0, offset, with_crc)
    stopped_short = taken < len(some) and not is_full
    expected = readable.fill(some[:taken] if stopped_short else some, 0, offset, with_crc)
    assert (taken, reached, is_full) == expected
    assert compiled.state() == readable.state()


@pytest.mark.parametrize("append", [append_drafts, append_drafts_readable], ids=["chosen", "readable"])
def test_a_full_buffer_is_told_from_an_unknown_queue(append: Any) -> None:
    side = Side(append, QueueCursor, 400)
    side.cursors[queue_key(b"orders", 0)] = QueueCursor()
    size = record.encoded_size(order("0"), with_crc=True)
    assert side.fill(orders(9), 0, 0, True) == (3, 3 * size, True)
    assert side.fill([order("x", queue=1)], 0, 0, True) == (0, 0, False)
    assert side.fill(orders(9), 8, 0, True) == (9, size, False)


@needs_kernel
def test_the_kernel_stays_within_its_buffers() -> None:
    from pyromq.accel import _append_batch, _queues

    log = memoryview(ordinary_log(random.Random(1), 3))
    for start, end in [(-1, 5), (5, 4), (0, len(log) + 1)]:
        with pytest.raises(IndexError):
            _queues.dispatch(log, start, end, {})
        with pytest.raises(IndexError):
            _queues.index_keys(log, start, end, _queues.IndexCursor(memoryview(bytearray(200)), 1, 3))
    with pytest.raises(IndexError):
        _queues.IndexCursor(memoryview(bytearray(100)), 1, 3)
    with pytest.raises(IndexError):
        _append_batch.append_drafts(memoryview(bytearray(100)), 101, 0, [order()], 0, {}, 0, True, 100, [])
    with pytest.raises(IndexError):
        _queues.collect(log, 0, len(log), 0, 4096, [log], 10, 0, b"t", 0, 0, None, 1, 1, [])
