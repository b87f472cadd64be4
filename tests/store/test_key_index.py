"""Messages by key."""

from __future__ import annotations

import struct
from datetime import datetime

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pyromq.clock import ManualClock
from pyromq.model.message import Draft
from pyromq.records import layout
from pyromq.records.java_hash import key_hash
from pyromq.store.key_index import (
    ENTRY,
    HEADER,
    IndexCursor,
    KeyIndex,
    ReadableIndexCursor,
    keys_of,
)
from pyromq.testing import SimDisk
from records.drafts import drafts, log_of
from store.support import bodies, config, needs_kernel, open_store, order, use_definitions, use_readable_forms

NOW = 1_700_000_000_000


def new_index(disk: SimDisk | None = None, clock: ManualClock | None = None, **changes: object) -> KeyIndex:
    index = KeyIndex(config(**changes), disk or SimDisk(), clock or ManualClock())
    index.load()
    return index


def fill(index: KeyIndex, some: list[Draft]) -> bytes:
    log = log_of(some, base=0)
    assert index.index_span(memoryview(log), 0, len(log)) == len(log)
    return log


def found(index: KeyIndex, key: str, begin_ms: int = 0, end_ms: int = 1 << 62) -> list[int]:
    return list(index.positions(b"orders", key.encode(), begin_ms, end_ms))


# --- what a message is found by --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("properties", "keys"),
    [
        (b"", []),
        (b"KEYS\x01a", [b"a"]),
        (b"KEYS\x01 a  b \x02", [b"a", b"b"]),
        (b"KEYS\x01a b\x02UNIQ_KEY\x01u\x02", [b"u", b"a", b"b"]),
        (b"KEYS\x01a\x02KEYS\x01b\x02", [b"b"]),
        (b"UNIQ_KEY\x01two words\x02", [b"two words"]),
    ],
)
def test_a_unique_key_and_every_word_of_the_keys(properties: bytes, keys: list[bytes]) -> None:
    assert list(keys_of(properties)) == keys


def test_newest_first() -> None:
    index = new_index()
    log = fill(index, [order(KEYS="a b"), order(KEYS="b"), order(KEYS="c", UNIQ_KEY="b")])
    size = len(log_of([order(KEYS="a b")], base=0))
    assert found(index, "a") == [0]
    assert found(index, "b") == [size + len(log_of([order(KEYS="b")], base=0)), size, 0]
    assert found(index, "none") == []
    assert len(log) > 0


def test_rolled_back_messages_are_not_found() -> None:
    index = new_index()
    fill(index, [order(KEYS="a", flags=layout.FLAG_ROLLED_BACK), order(KEYS="b", flags=layout.FLAG_PREPARED)])
    assert found(index, "a") == []
    assert len(found(index, "b")) == 1


def test_the_bytes_of_a_file() -> None:
    disk, clock = SimDisk(), ManualClock(NOW)
    index = new_index(disk, clock)
    fill(index, [order(KEYS="a"), order(KEYS="a")])
    (file,) = index.files
    data = disk.read_bytes(config().root / "index" / file.name)
    assert file.name == f"{datetime.fromtimestamp(NOW / 1000).astimezone():%Y%m%d%H%M%S}000"
    assert len(data) == 40 + 4 * 16 + 20 * 40
    second = len(log_of([order(KEYS="a")], base=0))
    assert HEADER.unpack_from(data) == (NOW + 123, NOW + 124, 0, second, 1, 3)
    hashed = key_hash(b"orders", b"a")
    assert struct.unpack_from(">i", data, 40 + 4 * (hashed % 16)) == (2,)
    assert ENTRY.unpack_from(data, 40 + 64 + 20) == (hashed, 0, 0, 0)
    assert ENTRY.unpack_from(data, 40 + 64 + 40) == (hashed, second, 0, 1)


def test_all_keys_of_a_record_are_in_one_file() -> None:
    index = new_index(index_entries=10)
    fill(index, [order(KEYS=" ".join(f"{record}-{word}" for word in range(4))) for record in range(5)])
    assert [file.cursor.count - 1 for file in index.files] == [8, 8, 4]
    for record in range(5):
        assert len({tuple(found(index, f"{record}-{word}")) for word in range(4)}) == 1


def test_a_record_with_more_keys_than_a_file_holds_goes_on_in_the_next() -> None:
    index = new_index(index_entries=10)
    fill(index, [order(KEYS="x"), order(KEYS=" ".join(f"k{n}" for n in range(30)))])
    assert all(len(found(index, f"k{n}")) == 1 for n in range(30))


def test_names_sort_even_when_the_clock_stands_still_or_goes_back() -> None:
    clock = ManualClock(NOW)
    index = new_index(clock=clock, index_entries=3)
    for _ in range(3):
        fill(index, [order(KEYS="a b"), order(KEYS="c d")])
        clock.advance(-3600)
    names = [file.name for file in index.files]
    assert names == sorted(set(names))
    assert len(names) == 6


def test_a_time_range() -> None:
    clock = ManualClock(NOW)
    store = open_store(clock=clock)
    for number in range(20):
        store.append([order(f"{number}", KEYS="k")])
        clock.advance(0.7)
    store.dispatch()
    for begin in range(0, 20, 3):
        for end in range(begin, 20, 4):
            hits = store.query("orders", "k", begin_ms=NOW + 700 * begin, end_ms=NOW + 700 * end)
            assert bodies(hits) == [b"%d" % number for number in range(end, begin - 1, -1)]


@pytest.mark.parametrize("key", ["ключ", "😀", "naïve", "a"])
def test_keys_and_topics_need_not_be_ascii(key: str) -> None:
    store = open_store()
    store.append([order("yes", topic="заказы", KEYS=f"x {key}"), order("no", topic="заказы", KEYS="other")])
    store.dispatch()
    assert bodies(store.query("заказы", key)) == [b"yes"]
    assert bodies(store.query("заказы", "x")) == [b"yes"]


def test_two_keys_with_one_hash_are_told_apart_by_the_record() -> None:
    store = open_store()
    store.append([order("1", KEYS="Aa"), order("2", KEYS="BB"), order("3", KEYS="AaBB")])
    store.dispatch()
    assert key_hash(b"orders", b"Aa") == key_hash(b"orders", b"BB")
    assert len(list(store.index.positions(b"orders", b"Aa", 0, 1 << 62))) == 2  # type: ignore[union-attr]
    assert bodies(store.query("orders", "Aa")) == [b"1"]
    assert bodies(store.query("orders", "BB")) == [b"2"]


def test_the_key_whose_hash_is_the_smallest_int_is_found() -> None:
    store = open_store()
    store.append([order("1", KEYS="abydncvw")])
    store.dispatch()
    assert bodies(store.query("orders", "abydncvw")) == [b"1"]


# --- files that are found at start -----------------------------------------------------------------------------------


def test_files_are_found_again() -> None:
    disk = SimDisk()
    index = new_index(disk, index_entries=5)
    fill(index, [order(KEYS=f"k{number}") for number in range(12)])
    before = {number: found(index, f"k{number}") for number in range(12)}
    index.close()
    again = new_index(disk, index_entries=5)
    assert len(again.files) == 3
    assert {number: found(again, f"k{number}") for number in range(12)} == before


@pytest.mark.parametrize(
    ("field", "value"),
    [(0, -1), (8, 0), (16, -1), (24, -5), (32, 99), (32, -1), (36, -1), (36, 1000)],
)
def test_a_header_that_no_writer_leaves_makes_the_file_go(field: int, value: int) -> None:
    disk = SimDisk()
    index = new_index(disk)
    fill(index, [order(KEYS="a"), order(KEYS="b")])
    path = config().root / "index" / index.files[0].name
    data = bytearray(disk.read_bytes(path))
    struct.pack_into(">q" if field < 32 else ">i", data, field, value)
    disk.plant(path, bytes(data))
    assert new_index(disk).files == []
    assert not disk.exists(path)


@settings(max_examples=60)
@given(st.data())
def test_a_damaged_file_gives_wrong_positions_at_worst_and_ends(data: st.DataObject) -> None:
    """No exception, no endless chain."""
    disk = SimDisk()
    index = new_index(disk)
    fill(index, [order(KEYS=f"k{number % 3}") for number in range(20)])
    path = config().root / "index" / index.files[0].name
    content = bytearray(disk.read_bytes(path))
    for _ in range(data.draw(st.integers(1, 20))):
        content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    disk.plant(path, bytes(content))
    damaged = new_index(disk)
    for number in range(3):
        assert len(found(damaged, f"k{number}")) <= 40


def test_old_files_go_with_the_log() -> None:
    index = new_index(index_entries=5)
    fill(index, [order(KEYS=f"k{number}") for number in range(12)])
    index.drop_before(index.files[1].cursor.begin_position)
    assert len(index.files) == 2
    index.drop_before(1 << 60)
    assert len(index.files) == 1, "the last one stays: it is being written"


# --- twins -----------------------------------------------------------------------------------------------------------


@needs_kernel
@given(
    st.lists(st.tuples(st.integers(0, 2**31 - 1), st.integers(0, 2**62), st.integers(-(2**40), 2**45)), max_size=20),
    st.binary(max_size=40),
)
def test_both_cursors_write_the_same_bytes(puts: list[tuple[int, int, int]], garbage: bytes) -> None:
    size = 40 + 4 * 8 + 20 * 30
    cursors = []
    for kind in (ReadableIndexCursor, IndexCursor):
        cursor = kind(memoryview(bytearray(bytes(40) + garbage).ljust(size, b"\0")[:size]), 8, 30)
        for put in puts:
            cursor.put(*put)
        cursors.append(cursor)
    readable, compiled = cursors
    assert compiled.buffer == readable.buffer
    for name in ("count", "used_slots", "begin_ms", "end_ms", "begin_position", "end_position"):
        assert getattr(compiled, name) == getattr(readable, name)


@settings(max_examples=60)
@given(st.lists(drafts(), max_size=8))
def test_all_forms_index_the_same(some: list[Draft]) -> None:
    files = []
    for use_form in (lambda _: None, use_readable_forms, use_definitions):
        with pytest.MonkeyPatch.context() as monkeypatch:
            use_form(monkeypatch)
            index = new_index()
            fill(index, some)
            files.append({file.name: bytes(file.file.buffer) for file in index.files if file.cursor.count > 1})
    assert files[0] == files[1] == files[2]


@pytest.mark.parametrize("kind", [ReadableIndexCursor, IndexCursor])
def test_a_full_file_takes_no_more(kind: type[ReadableIndexCursor]) -> None:
    cursor = kind(memoryview(bytearray(40 + 4 + 60)), 1, 3)
    cursor.put(1, 2, 3)
    cursor.put(1, 2, 3)
    with pytest.raises(AssertionError, match="full"):
        cursor.put(1, 2, 3)
