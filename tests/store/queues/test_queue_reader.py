"""Reading a queue: limits, filters, the ends of files, and entries that are not to be trusted."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pyromq.errors import CorruptLog, CorruptQueue, CorruptStore
from pyromq.records.java_hash import java_hash
from pyromq.store.message_store import MessageStore
from pyromq.store.queues import queue_reader
from pyromq.store.queues.consume_queue import BLANK_SIZE
from pyromq.store.queues.queue_cursor import ENTRY
from pyromq.store.queues.queue_reader import ReadStatus, collect_readable
from pyromq.testing import SimDisk
from store.support import (
    ROOT,
    bodies,
    filling,
    messages,
    needs_kernel,
    open_store,
    order,
    orders,
    plant_log,
    read_all,
    record_bytes,
)

QUEUE_FILE = ROOT / "consumequeue" / "orders" / "0" / "00000000000000000000"


def filled(count: int, **options: object) -> MessageStore:
    store = open_store(**options)
    store.append(orders(count))
    store.dispatch()
    return store


@pytest.mark.parametrize(
    ("topic", "offset", "status", "next_offset"),
    [
        ("orders", 0, ReadStatus.FOUND, 5),
        ("orders", 4, ReadStatus.FOUND, 5),
        ("orders", 5, ReadStatus.AT_END, 5),
        ("orders", 6, ReadStatus.TOO_LARGE, 5),
        ("orders", -1, ReadStatus.TOO_SMALL, 0),
        ("nobody", 0, ReadStatus.NO_QUEUE, 0),
    ],
)
def test_where_to_go_on(topic: str, offset: int, status: ReadStatus, next_offset: int) -> None:
    result = filled(5).read(topic, 0, offset)
    assert (result.status, result.next_offset) == (status, next_offset)


def test_at_most_so_many_messages() -> None:
    result = filled(100).read("orders", 0, 10, max_messages=7)
    assert bodies(result) == [b"%d" % number for number in range(10, 17)]
    assert (result.next_offset, result.min_offset, result.max_offset) == (17, 0, 100)


def test_at_most_so_many_bytes_and_at_least_one_message() -> None:
    store = filled(10)
    size = len(store.read("orders", 0, 0, max_messages=1).records[0])
    assert len(store.read("orders", 0, 0, max_bytes=3 * size).records) == 3
    assert len(store.read("orders", 0, 0, max_bytes=3 * size - 1).records) == 2
    assert len(store.read("orders", 0, 0, max_bytes=1).records) == 1


def test_the_limit_of_bytes_holds_across_queue_files() -> None:
    store = filled(120)
    size = len(store.read("orders", 0, 45, max_messages=1).records[0])
    assert len(store.read("orders", 0, 45, max_messages=100, max_bytes=12 * size).records) == 12


def test_across_the_ends_of_queue_files_and_segments() -> None:
    store = filled(333)
    result = store.read("orders", 0, 0, max_messages=1000, max_bytes=1 << 20)
    assert bodies(result) == [b"%d" % number for number in range(333)]
    assert len(store.log.files.segments) > 2


def test_only_messages_whose_tag_may_be_wanted() -> None:
    store = open_store()
    store.append([order(f"{n}", TAGS=tag) for n, tag in enumerate(["a", "b", "a", "ü", "Aa", "BB"])])
    store.append([order("no tag")])
    store.dispatch()
    assert bodies(store.read("orders", 0, 0, tags=["a"])) == [b"0", b"2"]
    assert bodies(store.read("orders", 0, 0, tags=["b", "ü"])) == [b"1", b"3"]
    assert bodies(store.read("orders", 0, 0, tags=["Aa"])) == [b"4", b"5"], "by hash: the consumer looks again"
    result = store.read("orders", 0, 0, tags=["none"])
    assert (result.status, result.next_offset) == (ReadStatus.NO_MATCH, 7)


def test_a_filter_that_matches_little_answers_after_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(queue_reader, "MAX_ENTRIES_LOOKED_AT", 60)
    store = filled(200)
    result = store.read("orders", 0, 0, tags=["none"])
    assert (result.status, result.next_offset) == (ReadStatus.NO_MATCH, 60)


def test_blanks_are_skipped() -> None:
    disk, log = SimDisk(), b""
    for offset in (0, 1, 130, 131):
        log += record_bytes(order(f"{offset}"), len(log), offset)
    plant_log(disk, log)
    store = open_store(disk)
    assert bodies(store.read("orders", 0, 0)) == [b"0", b"1"]
    result = store.read("orders", 0, 2)
    assert bodies(result) == [b"130", b"131"]
    assert result.next_offset == 132


# --- entries on disk are checked -------------------------------------------------------------------------------------


def reopened(damage: dict[int, bytes], path: Path = QUEUE_FILE, count: int = 5) -> MessageStore:
    """A store of five messages, stopped cleanly, damaged, and opened again; then five more come."""
    store = filled(count)
    disk = store.disk
    store.close()
    assert isinstance(disk, SimDisk)
    data = bytearray(disk.read_bytes(path))
    for at, new in damage.items():
        data[at : at + len(new)] = new
    disk.plant(path, bytes(data))
    store = open_store(disk)
    store.append(orders(5))
    store.dispatch()
    return store


def entry_of(store: MessageStore, offset: int) -> bytes:
    queue = store.queues.get(b"orders", 0)
    assert queue is not None
    entry = queue.entry(offset)
    assert entry is not None
    return ENTRY.pack(*entry)


@pytest.mark.parametrize(
    "entry",
    [
        ENTRY.pack(0, 118, 0),  # a record of another offset
        ENTRY.pack(7, 118, 0),  # the middle of a record
        ENTRY.pack(236, 117, 0),
        ENTRY.pack(236, 118, 5),  # another tag
        ENTRY.pack(-1, 118, 0),
        ENTRY.pack(236, -118, 0),
        ENTRY.pack(1 << 62, 118, 0),
        ENTRY.pack(236, 0x7FFFFFFE, 0),
        ENTRY.pack(590, 118, 0),  # a record that came after the damage
        ENTRY.pack(600, 118, 0),  # the middle of one
    ],
)
def test_a_damaged_entry_never_shows_a_wrong_message(entry: bytes) -> None:
    store = reopened({2 * 20: entry})
    assert entry_of(store, 1) == ENTRY.pack(118, 118, 0)
    assert bodies(store.read("orders", 0, 0)) == [b"0", b"1"]
    assert bodies(store.read("orders", 0, 3))[:2] == [b"3", b"4"]
    with pytest.raises(CorruptStore, match=r"offset 2|position"):
        store._read(store.queues.of_topic(b"orders")[0], 2, 1, 1, None)
    assert bodies(store.read("orders", 0, 2))[:2] == [b"2", b"3"], "it is derived again from the log"
    assert entry_of(store, 2) == ENTRY.pack(236, 118, 0)


def test_a_damaged_queue_says_what_to_do() -> None:
    store = reopened({2 * 20: ENTRY.pack(0, 118, 0)})
    sentence = r"the entry of offset 2 does not match the log at position 40; .*nothing is lost"
    with pytest.raises(CorruptQueue, match=sentence):
        store._read(store.queues.of_topic(b"orders")[0], 2, 1, 1, None)


def test_a_damaged_record_is_not_the_queues_fault() -> None:
    store = reopened({2 * 118 + 90: b"\xff"}, ROOT / "commitlog" / "00000000000000000000")
    assert bodies(store.read("orders", 0, 0)) == [b"0", b"1"]
    with pytest.raises(CorruptLog, match="CRC does not match at position 236"):
        store.read("orders", 0, 2)


def test_entries_whose_positions_are_right_are_served_after_a_restart() -> None:
    store = reopened({})
    assert read_all(store) == [b"0", b"1", b"2", b"3", b"4"] * 2


# --- twins -----------------------------------------------------------------------------------------------------------

entries_of_log = st.one_of(
    st.none(),  # the right one
    st.just((0, BLANK_SIZE, 0)),
    st.tuples(st.integers(-200, 40_000), st.integers(-10, 400), st.integers(-3, 3)),
    st.tuples(st.integers(-(2**63), 2**63 - 1), st.integers(-(2**31), 2**31 - 1), st.integers(-(2**63), 2**63 - 1)),
)


@needs_kernel
@settings(max_examples=60)
@given(
    st.lists(entries_of_log, min_size=1, max_size=30),
    st.integers(0, 40_000),
    st.integers(0, 40_000),
    st.one_of(st.none(), st.frozensets(st.sampled_from([0, java_hash("a"), java_hash("ü"), 99]))),
    st.integers(0, 20),
    st.integers(-10, 3000),
    st.booleans(),
    st.data(),
)
def test_both_forms_collect_the_same(
    entries: list[tuple[int, int, int] | None], readable: int, checked_below: int, tags: frozenset[int] | None,
    max_messages: int, max_bytes: int, drop_one: bool, data: st.DataObject,
) -> None:  # fmt: skip
    from pyromq.accel._queues import collect

    rng = random.Random(5)
    store = open_store()
    store.append([order(rng.randbytes(rng.randrange(900)), TAGS=rng.choice(["a", "ü", "b"])) for _ in range(60)])
    store.dispatch()
    queue = store.queues.get(b"orders", 0)
    assert queue is not None
    packed = b"".join(ENTRY.pack(*(entry or queue.entry(offset) or (0, 0, 0))) for offset, entry in enumerate(entries))
    buffers = [segment.buffer if number or not drop_one else None
               for number, segment in enumerate(store.log.files.segments)]  # fmt: skip
    start = data.draw(st.integers(0, len(entries)))
    arguments = (memoryview(packed), start, len(entries), 0, store.log.files.file_bytes, buffers, readable,
                 checked_below, b"orders", 0, 0, tags, max_messages, max_bytes)  # fmt: skip
    expected: list[memoryview] = []
    found: list[memoryview] = []
    reached = collect_readable(*arguments, expected)
    assert collect(*arguments, found) == reached
    assert found == expected


def test_views_are_messages() -> None:
    store = open_store()
    store.append([filling(order(TAGS="a"), 2000)])
    store.dispatch()
    (message,) = messages(store.read("orders", 0, 0))
    assert (message.topic, message.queue_offset, message.tags, message.size) == ("orders", 0, "a", 2000)
