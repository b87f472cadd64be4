"""A run writes what the definition of a record says, and changes nothing where it does not write."""

from __future__ import annotations

import asyncio
import errno
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyromq.clock import ManualClock
from pyromq.config import KIB, FlushConfig
from pyromq.errors import StoreFenced
from pyromq.model.message import Draft
from pyromq.records import layout, record
from pyromq.records.plain import plain_records, terms_of
from pyromq.store.log import log_run, open_run
from pyromq.store.log.fresh_records import MAX_STRETCHES, FreshRecords, Stretch
from pyromq.store.log.log_run import ReadableLogRun, RecordPattern
from pyromq.store.log.open_run import LINGER_SECONDS
from pyromq.store.message_store import InlineRunner, MessageStore
from pyromq.store.queues.queue_cursor import QueueCursor, ReadableQueueCursor, queue_key
from pyromq.testing import SimDisk
from records.drafts import INT32, properties
from store.support import config, open_store, order, read_all

HOST = b"\x7f\0\0\1\0\0\x2a\x9f"
STORE_HOST = b"\x0a\0\0\1\0\0\x2a\x9f"
NOW = 1_700_000_000_000


def write(run: ReadableLogRun, draft: Draft) -> tuple[int, int] | None:
    pattern = RecordPattern(
        draft.topic, draft.queue_id, draft.user_flag, draft.storage_flags, draft.reconsume_times, draft.store_host
    )
    terms = terms_of(draft.properties)
    body = memoryview(draft.body)
    return run.append(pattern, draft.born_timestamp_ms, draft.born_host, body, draft.properties, terms)


@st.composite
def usual_drafts(draw: st.DrawFn) -> Draft:
    some = draw(properties()).replace(layout.CRC_PROPERTY_NAME, b"other")
    return Draft(
        topic=draw(st.sampled_from([b"orders", b"x" * 127, b"x" * 128])),
        queue_id=draw(st.integers(0, 3)),
        body=draw(st.binary(max_size=100)),
        properties=some if some.endswith(b"\x02") or not some else some + b"\x02",
        user_flag=draw(INT32),
        storage_flags=draw(st.sampled_from([0, 1, 2, 0x30, 0x700])),
        born_timestamp_ms=draw(st.integers(0, 10**18)),
        born_host=HOST,
        store_host=STORE_HOST,
        reconsume_times=draw(st.integers(0, 100)),
    )


@given(st.lists(usual_drafts(), max_size=5), st.booleans(), st.integers(0, 50))
def test_it_writes_what_the_definition_says(some: list[Draft], with_crc: bool, start: int) -> None:
    buffer = memoryview(bytearray(10_000))
    cursors = {queue_key(topic, n): ReadableQueueCursor() for topic in {one.topic for one in some} for n in range(4)}
    run = ReadableLogRun()
    run.open(buffer, 7 << 40, start, NOW, with_crc, 1000, cursors)
    expected = b""
    for draft in some:
        cursor = cursors[queue_key(draft.topic, draft.queue_id)]
        at, offset = (7 << 40) + start + len(expected), cursor.next_append
        if write(run, draft) is None:
            assert record.record_properties(draft, with_crc) != draft.properties, "nothing was the matter"
            assert cursor.next_append == offset
            continue
        assert cursor.next_append == offset + 1
        expected += record.encode(draft, at, offset, NOW, with_crc)
    assert bytes(buffer) == (bytes(start) + expected).ljust(len(buffer), b"\0")
    assert run.offset == start + len(expected)
    if all(len(draft.topic) <= layout.MAX_TOPIC_V1 for draft in some):
        assert run.records == plain_records(buffer, start, run.offset)


@pytest.mark.parametrize(
    ("draft", "room", "max_body"),
    [
        (order(queue=1), 1000, 100),
        (order("x" * 101), 1000, 100),
        (order("x"), 100, 100),
        (order(name="x" * 32_741), 100_000, 100),
    ],
    ids=["no such queue", "a large body", "no room", "many properties"],
)
def test_what_it_does_not_write_changes_nothing(draft: Draft, room: int, max_body: int) -> None:
    buffer, cursor = memoryview(bytearray(room)), ReadableQueueCursor()
    run = ReadableLogRun()
    run.open(buffer, 0, 0, NOW, True, max_body, {queue_key(b"orders", 0): cursor})
    assert write(run, draft) is None
    assert (run.offset, run.count, cursor.next_append, any(buffer)) == (0, 0, 0, False)


def test_room_for_the_blank_is_kept_free() -> None:
    size = record.encoded_size(order("x"), with_crc=True)
    for room, fits in [(size + layout.BLANK_RESERVE, True), (size + layout.BLANK_RESERVE - 1, False)]:
        run = ReadableLogRun()
        run.open(memoryview(bytearray(room)), 0, 0, NOW, True, 10, {queue_key(b"orders", 0): ReadableQueueCursor()})
        assert (write(run, order("x")) is not None) is fits


def test_a_run_begins_inside_of_its_buffer() -> None:
    for offset in (-1, 101):
        with pytest.raises(IndexError):
            ReadableLogRun().open(memoryview(bytearray(100)), 0, offset, NOW, True, 10, {})


# --- behind a run ----------------------------------------------------------------------------------------------------


def store_with_queues(**changes: Any) -> MessageStore:
    store = open_store(**changes)
    store.append([order("first", queue=queue) for queue in range(2)])
    store.dispatch()
    return store


def run_of(store: MessageStore, some: list[Draft]) -> None:
    run: Any = ReadableLogRun()
    assert store.open_run(run)
    for draft in some:
        assert write(run, draft) is not None
    store.close_run()


def some_orders(count: int) -> list[Draft]:
    return [
        order(f"{n}", queue=n % 2, TAGS=f"tag{n % 3}", UNIQ_KEY=f"{n:032X}", KEYS=f"k{n} all") for n in range(count)
    ]


def derived(store: MessageStore) -> object:
    """Everything that the dispatcher made of the log."""
    assert store.index is not None
    queues = [bytes(segment.buffer) for queue in store.queues for segment in queue.files.segments]
    return queues, [bytes(file.file.buffer) for file in store.index.files], store.dispatcher.last_timestamp_ms


@pytest.mark.parametrize("count", [1, 30, 60])
def test_queues_and_index_are_the_same_whether_the_log_is_read_or_not(count: int) -> None:
    """Sixty go through the end of a queue file (50 entries) and of several index files (40)."""
    known, read = store_with_queues(), store_with_queues()
    for store in (known, read):
        run_of(store, some_orders(count))
        if store is read:
            store.log.fresh = FreshRecords()
        store.dispatch()
    assert derived(known) == derived(read)
    assert read_all(known, queue=1) == read_all(read, queue=1)
    known.marks.check()


def test_an_error_in_the_middle_leaves_the_log_in_order(monkeypatch: pytest.MonkeyPatch) -> None:
    store = store_with_queues()
    run: Any = ReadableLogRun()
    assert store.open_run(run)
    assert write(run, order("one")) is not None
    with monkeypatch.context() as patch:
        patch.setattr(log_run, "crc_property", lambda crc: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            write(run, order("never"))
    assert write(run, order("two")) is not None
    store.close_run()
    store.append([order("three")])
    store.dispatch()
    assert read_all(store) == [b"first", b"one", b"two", b"three"]


def test_a_run_that_lingers_is_in_the_log_after_each_turn_and_in_the_queues_when_somebody_asks() -> None:
    store = store_with_queues()
    start, run = store.log.end, ReadableLogRun()
    assert store.open_run(cast(Any, run), lingers=True)
    for turn in range(3):
        assert write(run, order(f"{turn}")) is not None
        assert store.log.written_to > store.log.end
        store.end_turn()
        assert store.log.written_to == store.log.end == store.marks.appended.value
        assert bytes(store.log.record_at(start, store.log.end))
        assert len(store.log_bytes(start, 1 << 20)) == store.log.end - start, "those who copy the log have it already"
    assert run.is_open
    assert store.marks.written.value == start
    store.catch_up()
    assert not run.is_open
    store.dispatch()
    assert read_all(store) == [b"first", b"0", b"1", b"2"]


def test_a_run_that_lingers_ends_with_the_turn_in_which_an_awaited_message_came() -> None:
    store = store_with_queues()
    store.arrivals.watch("orders", 1)
    run = ReadableLogRun()
    assert store.open_run(cast(Any, run), lingers=True)
    assert write(run, order("for nobody", queue=0)) is not None
    store.end_turn()
    assert run.is_open
    assert write(run, order("for somebody", queue=1)) is not None
    store.end_turn()
    assert not run.is_open


@pytest.mark.parametrize(
    ("messages", "seconds", "lingers_s"), [(1, 0.01, 0.02), (100, 0.002, 0.01), (900, 0.001, 0.002)]
)
def test_a_run_stays_open_for_about_as_many_messages_whether_they_come_fast_or_slowly(
    messages: int, seconds: float, lingers_s: float
) -> None:
    clock = ManualClock()
    store = store_with_queues(clock=clock, segment_bytes=1 << 20)
    run = ReadableLogRun()
    assert store.open_run(cast(Any, run), lingers=True)
    for number in range(messages):
        assert write(run, order(f"{number}")) is not None
    clock.advance(seconds)
    store.close_run()
    assert store.open_run(cast(Any, run), lingers=True)
    assert store._open_run.linger_s == pytest.approx(lingers_s, rel=0.01)
    store.close_run()
    assert store.open_run(cast(Any, run))
    assert store._open_run.linger_s == LINGER_SECONDS, "of what follows, since the run itself ends with the turn"


async def turns() -> None:
    for _ in range(20):
        await asyncio.sleep(0)


def in_queues(store: MessageStore) -> bool:
    return store.marks.dispatched.value == store.log.end


def test_with_sync_flush_queues_follow_at_once_if_somebody_waits_and_else_when_somebody_asks_or_a_moment_later(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(open_run, "LINGER_SECONDS", 3600.0)
    settings = config(flush=FlushConfig(sync=True))

    async def written(store: MessageStore, draft: Draft) -> None:
        run_of(store, [draft])
        await synced(store)

    async def synced(store: MessageStore) -> None:
        await turns()
        await store.marks.synced.wait(store.log.end)
        await turns()

    async def story() -> None:
        async with MessageStore(settings, disk=SimDisk(), runner=InlineRunner()).running() as store:
            store.append([order("first", queue=queue) for queue in range(2)])
            await synced(store)
            await written(store, order("for nobody"))
            assert not in_queues(store)
            store.catch_up()
            assert in_queues(store)

            store.arrivals.watch("orders", 1)
            await written(store, order("for nobody"))
            assert not in_queues(store)
            await written(store, order("for somebody", queue=1))
            assert in_queues(store), "also what came before it"

            await written(store, order("for nobody"))
            assert not in_queues(store)
            store.append([order("in the ordinary way")])
            await synced(store)
            assert in_queues(store)

            monkeypatch.setattr(open_run, "LINGER_SECONDS", 0.001)
            await written(store, order("for nobody"))
            await store.marks.dispatched.wait(store.log.end)

    asyncio.run(asyncio.wait_for(story(), 20))


def test_with_a_transient_pool_whoever_waits_when_a_message_becomes_readable_is_told_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(open_run, "LINGER_SECONDS", 3600.0)
    settings = config(flush=FlushConfig(sync=True), transient_pool=True)

    async def story() -> None:
        async with MessageStore(settings, disk=SimDisk(), runner=InlineRunner()).running() as store:
            store.append([order("first")])
            await store.marks.dispatched.wait(store.log.end)
            run_of(store, [order("second")])
            store.arrivals.watch("orders", 0)
            await store.marks.dispatched.wait(store.log.end)

    asyncio.run(asyncio.wait_for(story(), 20))


def test_time_goes_on_while_a_run_lingers_and_never_back() -> None:
    store = store_with_queues()
    run = ReadableLogRun()
    assert store.open_run(cast(Any, run), lingers=True)
    before = run.now_ms
    store.log.renew_run(run, before + 5)
    assert run.now_ms == store.log.last_timestamp_ms == before + 5
    store.log.renew_run(run, before)
    assert run.now_ms == before + 5


def test_a_run_uses_the_same_memory_again_and_stops_at_the_end_of_the_segment() -> None:
    cursors: dict[bytes, Any] = {queue_key(b"orders", 0): ReadableQueueCursor()}
    run = ReadableLogRun()
    run.open(memoryview(bytearray(4 * KIB)), 1000, 0, NOW, True, KIB, cursors)
    first = write(run, order("one"))
    assert first == (1000, 0)
    size = run.offset
    run.go_on(room=size + layout.BLANK_RESERVE)
    assert (run.base, run.offset, run.count) == (1000 + size, 0, 1)
    assert write(run, order("two")) == (1000 + size, 1)
    run.go_on(room=size + layout.BLANK_RESERVE - 1)
    assert write(run, order("six")) is None


@pytest.mark.parametrize("sync", [False, True])
def test_what_cannot_be_written_fences_the_store(monkeypatch: pytest.MonkeyPatch, sync: bool) -> None:
    store = store_with_queues(flush=FlushConfig(sync=sync))
    end, run = store.marks.appended.value, ReadableLogRun()
    assert store.open_run(cast(Any, run), lingers=True)
    assert write(run, order("lost")) is not None
    file = store.log.files.segments[-1].file
    monkeypatch.setattr(type(file), "write_at", _no_disk)
    with pytest.raises(StoreFenced):
        store.close_run() if sync else store.end_turn()
    assert not run.is_open
    assert store.marks.appended.value == end
    assert not store.open_run(cast(Any, run))
    with pytest.raises(StoreFenced):
        store.append([order("never")])


def _no_disk(*_: object) -> None:
    raise OSError(errno.EIO, "the disk is gone")


def test_an_ordinary_append_in_between_is_seen() -> None:
    store = store_with_queues()
    run_of(store, [order("one")])
    store.append([order("two")])
    run_of(store, [order("three")])
    store.dispatch()
    assert read_all(store) == [b"first", b"one", b"two", b"three"]


def test_with_a_transient_pool_what_is_not_readable_waits() -> None:
    store = store_with_queues(transient_pool=True)
    run_of(store, [order("one")])
    assert store.dispatcher.dispatch()
    assert store.max_offset("orders", 0) == 1
    store.commit_gathered()
    store.dispatch()
    assert read_all(store) == [b"first", b"one"]


def test_without_an_index_nothing_gathers() -> None:
    store = store_with_queues(index_enabled=False, segment_bytes=64 * KIB)
    for number in range(3 * MAX_STRETCHES):
        run_of(store, [order(f"{number}")])
        store.dispatch()
    assert len(store.log.fresh) <= MAX_STRETCHES
    assert store.max_offset("orders", 0) == 1 + 3 * MAX_STRETCHES


def test_a_stretch_is_found_where_it_begins_and_only_when_all_of_it_may_be_seen() -> None:
    fresh = FreshRecords()
    fresh.add(Stretch(100, 200, ()))
    assert fresh.find(100, 199) is None
    assert fresh.find(150, 300) is None
    assert fresh.find(100, 200) == Stretch(100, 200, ())
    fresh.forget(100)
    assert fresh.find(100, 200) is None


def test_either_kind_of_cursor_serves() -> None:
    cursor = QueueCursor()
    run = ReadableLogRun()
    run.open(memoryview(bytearray(config().segment_bytes)), 0, 0, NOW, True, 10, {queue_key(b"orders", 0): cursor})
    assert write(run, order("x")) == (0, 0)
    assert cursor.next_append == 1
