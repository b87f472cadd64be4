"""The append batch: its writers store what the definition of a record says, the end of each turn commits it, and every
method of the store that needs the log closes it."""

from __future__ import annotations

import ast
import asyncio
import errno
import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyromq.clock import ManualClock
from pyromq.config import KIB, FlushConfig
from pyromq.errors import StoreFenced
from pyromq.model.message import Draft
from pyromq.records import layout, record
from pyromq.store import message_store
from pyromq.store.log import append_batch
from pyromq.store.log.append_batch import MIN_OPEN_SECONDS, BatchState
from pyromq.store.message_store import InlineRunner, MessageStore
from pyromq.store.queues.queue_cursor import QueueCursor, queue_key
from pyromq.testing import SimDisk
from records.drafts import INT32, properties
from store.batch_writers import WRITERS, DraftWriter
from store.support import config, open_store, order, read_all

HOST = b"\x7f\0\0\1\0\0\x2a\x9f"
STORE_HOST = b"\x0a\0\0\1\0\0\x2a\x9f"
NOW = 1_700_000_000_000

each_writer = pytest.mark.parametrize("form", WRITERS)


def new_writer(form: str) -> DraftWriter:
    writer: DraftWriter = WRITERS[form]()
    return writer


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


@given(st.sampled_from(sorted(WRITERS)), st.lists(usual_drafts(), max_size=5), st.booleans(), st.integers(0, 50))
def test_it_writes_what_the_definition_says(form: str, some: list[Draft], with_crc: bool, start: int) -> None:
    buffer = memoryview(bytearray(10_000))
    cursors = {queue_key(topic, n): QueueCursor() for topic in {one.topic for one in some} for n in range(4)}
    writer = new_writer(form)
    writer.open(buffer, 7 << 40, start, NOW, with_crc, 1000, cursors)
    expected = b""
    for draft in some:
        cursor = cursors[queue_key(draft.topic, draft.queue_id)]
        at, offset = (7 << 40) + start + len(expected), cursor.next_append
        if writer.append_draft(draft) is None:
            assert record.record_properties(draft, with_crc) != draft.properties, "nothing was the matter"
            assert cursor.next_append == offset
            continue
        assert cursor.next_append == offset + 1
        expected += record.encode(draft, at, offset, NOW, with_crc)
    assert bytes(buffer) == (bytes(start) + expected).ljust(len(buffer), b"\0")
    assert writer.offset == start + len(expected)


@each_writer
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
def test_what_it_does_not_write_changes_nothing(form: str, draft: Draft, room: int, max_body: int) -> None:
    buffer, cursor = memoryview(bytearray(room)), QueueCursor()
    writer = new_writer(form)
    writer.open(buffer, 0, 0, NOW, True, max_body, {queue_key(b"orders", 0): cursor})
    assert writer.append_draft(draft) is None
    assert (writer.offset, writer.count, cursor.next_append, any(buffer)) == (0, 0, 0, False)


@each_writer
def test_room_for_the_blank_is_kept_free(form: str) -> None:
    size = record.encoded_size(order("x"), with_crc=True)
    for room, fits in [(size + layout.BLANK_RESERVE, True), (size + layout.BLANK_RESERVE - 1, False)]:
        writer = new_writer(form)
        writer.open(memoryview(bytearray(room)), 0, 0, NOW, True, 10, {queue_key(b"orders", 0): QueueCursor()})
        assert (writer.append_draft(order("x")) is not None) is fits


@each_writer
def test_a_batch_begins_inside_of_its_buffer(form: str) -> None:
    for offset in (-1, 101):
        with pytest.raises(IndexError):
            new_writer(form).open(memoryview(bytearray(100)), 0, offset, NOW, True, 10, {})


@each_writer
def test_a_writer_uses_the_same_memory_again_and_stops_at_the_end_of_the_segment(form: str) -> None:
    cursors: dict[bytes, Any] = {queue_key(b"orders", 0): QueueCursor()}
    writer = new_writer(form)
    writer.open(memoryview(bytearray(4 * KIB)), 1000, 0, NOW, True, KIB, cursors)
    assert writer.append_draft(order("one")) == (1000, 0)
    size = writer.offset
    writer.go_on(size + layout.BLANK_RESERVE)
    assert (writer.base, writer.offset, writer.count) == (1000 + size, 0, 1)
    assert writer.append_draft(order("two")) == (1000 + size, 1)
    writer.go_on(size + layout.BLANK_RESERVE - 1)
    assert writer.append_draft(order("six")) is None


# --- states ----------------------------------------------------------------------------------------------------------


def store_with_queues(**changes: Any) -> MessageStore:
    store = open_store(**changes)
    store.append([order("first", queue=queue) for queue in range(2)])
    store.dispatch()
    return store


def opened(store: MessageStore, form: str = "definition", **how: Any) -> DraftWriter:
    writer = new_writer(form)
    assert store.batch().open(writer, **how)
    return writer


def batch_of(store: MessageStore, some: list[Draft], form: str = "definition") -> None:
    writer = opened(store, form)
    for draft in some:
        assert writer.append_draft(draft) is not None
    store.close_batch()


def some_orders(count: int) -> list[Draft]:
    return [
        order(f"{n}", queue=n % 2, TAGS=f"tag{n % 3}", UNIQ_KEY=f"{n:032X}", KEYS=f"k{n} all") for n in range(count)
    ]


def everything(store: MessageStore) -> object:
    """The log, and everything that the dispatcher made of it."""
    assert store.index is not None
    log = [bytes(segment.buffer) for segment in store.log.files.segments]
    queues = [bytes(segment.buffer) for queue in store.queues for segment in queue.files.segments]
    return log, queues, [bytes(file.file.buffer) for file in store.index.files], store.dispatcher.last_timestamp_ms


@each_writer
@pytest.mark.parametrize("count", [1, 30, 60])
def test_a_batch_leaves_the_same_bytes_as_single_appends(form: str, count: int) -> None:
    """Sixty go through the end of a queue file (50 entries) and of several index files (40)."""
    batched, single = store_with_queues(clock=ManualClock()), store_with_queues(clock=ManualClock())
    batch_of(batched, some_orders(count), form)
    for draft in some_orders(count):
        single.append([draft])
    for store in (batched, single):
        store.dispatch()
    assert everything(batched) == everything(single)
    assert read_all(batched, queue=1) == read_all(single, queue=1)
    batched.marks.check()


@each_writer
def test_a_batch_is_committed_after_each_turn_and_in_the_queues_when_a_reader_asks(form: str) -> None:
    store = store_with_queues()
    start, batch = store.log.end, store.batch()
    assert batch.state is BatchState.CLOSED
    writer = opened(store, form, spans_turns=True)
    for turn in range(3):
        assert writer.append_draft(order(f"{turn}")) is not None
        assert store.log.written_to > store.log.end
        assert batch.state is BatchState.OPEN
        store.end_turn()
        assert batch.state is BatchState.COMMITTED
        assert store.log.written_to == store.log.end == store.marks.appended.value
        assert bytes(store.log.record_at(start, store.log.end))
        assert len(store.log_range(start, 1 << 20)) == store.log.end - start, "those who copy the log have it already"
    assert writer.is_open
    assert store.marks.written.value == start
    store.catch_up()
    assert not writer.is_open
    assert batch.state is BatchState.CLOSED
    store.dispatch()
    assert read_all(store) == [b"first", b"0", b"1", b"2"]


@each_writer
def test_a_batch_is_closed_with_the_turn_in_which_an_awaited_message_came(form: str) -> None:
    store = store_with_queues()
    store.arrivals.watch("orders", 1)
    writer = opened(store, form, spans_turns=True)
    assert writer.append_draft(order("for nobody", queue=0)) is not None
    store.end_turn()
    assert writer.is_open
    assert writer.append_draft(order("for a long poll", queue=1)) is not None
    store.end_turn()
    assert not writer.is_open


@pytest.mark.parametrize(("messages", "seconds", "open_s"), [(1, 0.01, 0.02), (100, 0.002, 0.01), (900, 0.001, 0.002)])
def test_a_batch_stays_open_for_about_as_many_messages_whether_they_come_fast_or_slowly(
    messages: int, seconds: float, open_s: float
) -> None:
    clock = ManualClock()
    store = store_with_queues(clock=clock, segment_bytes=1 << 20)
    writer = opened(store, spans_turns=True)
    for number in range(messages):
        assert writer.append_draft(order(f"{number}")) is not None
    clock.advance(seconds)
    store.close_batch()
    opened(store, spans_turns=True)
    assert store.batch().open_s == pytest.approx(open_s, rel=0.01)
    store.close_batch()
    opened(store)
    assert store.batch().open_s == MIN_OPEN_SECONDS, "of what follows, since the batch itself ends with the turn"


async def turns() -> None:
    for _ in range(20):
        await asyncio.sleep(0)


def in_queues(store: MessageStore) -> bool:
    return store.marks.dispatched.value == store.log.end


def test_with_sync_flush_queues_follow_at_once_if_a_long_poll_waits_and_else_when_a_reader_asks_or_a_moment_later(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(append_batch, "MIN_OPEN_SECONDS", 3600.0)
    settings = config(flush=FlushConfig(sync=True))

    async def written(store: MessageStore, draft: Draft) -> None:
        batch_of(store, [draft])
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
            await written(store, order("for a long poll", queue=1))
            assert in_queues(store), "also what came before it"

            await written(store, order("for nobody"))
            assert not in_queues(store)
            store.append([order("without a batch")])
            await synced(store)
            assert in_queues(store)

            monkeypatch.setattr(append_batch, "MIN_OPEN_SECONDS", 0.001)
            await written(store, order("for nobody"))
            await store.marks.dispatched.wait(store.log.end)

    asyncio.run(asyncio.wait_for(story(), 20))


def test_with_a_transient_pool_a_long_poll_is_answered_when_a_message_becomes_readable(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(append_batch, "MIN_OPEN_SECONDS", 3600.0)
    settings = config(flush=FlushConfig(sync=True), transient_pool=True)

    async def story() -> None:
        async with MessageStore(settings, disk=SimDisk(), runner=InlineRunner()).running() as store:
            store.append([order("first")])
            await store.marks.dispatched.wait(store.log.end)
            batch_of(store, [order("second")])
            store.arrivals.watch("orders", 0)
            await store.marks.dispatched.wait(store.log.end)

    asyncio.run(asyncio.wait_for(story(), 20))


@pytest.mark.parametrize("spans_turns", [False, True])
def test_a_batch_that_no_method_closes_is_closed_by_the_loop(spans_turns: bool) -> None:
    async def story() -> None:
        async with MessageStore(config(), disk=SimDisk(), runner=InlineRunner()).running() as store:
            store.append([order("first")])
            writer = opened(store, spans_turns=spans_turns)
            assert writer.append_draft(order("second")) is not None
            await store.marks.dispatched.wait(store.log.written_to)
            assert store.batch().state is BatchState.CLOSED

    asyncio.run(asyncio.wait_for(story(), 20))


@each_writer
def test_time_goes_on_while_a_batch_is_open_and_never_back(form: str) -> None:
    clock = ManualClock()
    store = store_with_queues(clock=clock)
    writer = opened(store, form, spans_turns=True)
    before = writer.now_ms
    clock.advance(0.005)
    store.batch().begin_turn()
    assert writer.now_ms == store.log.last_timestamp_ms == before + 5
    store.log.renew_batch(writer, before)
    assert writer.now_ms == before + 5


@each_writer
@pytest.mark.parametrize("sync", [False, True])
def test_what_cannot_be_written_fences_the_store(monkeypatch: pytest.MonkeyPatch, sync: bool, form: str) -> None:
    store = store_with_queues(flush=FlushConfig(sync=sync))
    end, writer = store.marks.appended.value, opened(store, form, spans_turns=True)
    assert writer.append_draft(order("lost")) is not None
    file = store.log.files.segments[-1].file
    monkeypatch.setattr(type(file), "write_at", _no_disk)
    with pytest.raises(StoreFenced):
        store.close_batch() if sync else store.end_turn()
    assert not writer.is_open
    assert store.marks.appended.value == end
    assert not store.batch().open(writer)
    with pytest.raises(StoreFenced):
        store.append([order("never")])


def _no_disk(*_: object) -> None:
    raise OSError(errno.EIO, "the disk is gone")


@each_writer
def test_an_append_in_between_is_seen(form: str) -> None:
    store = store_with_queues()
    batch_of(store, [order("one")], form)
    store.append([order("two")])
    batch_of(store, [order("three")], form)
    store.dispatch()
    assert read_all(store) == [b"first", b"one", b"two", b"three"]


@each_writer
def test_with_a_transient_pool_what_is_not_readable_waits(form: str) -> None:
    store = store_with_queues(transient_pool=True)
    batch_of(store, [order("one")], form)
    assert store.dispatcher.dispatch()
    assert store.max_offset("orders", 0) == 1
    store.commit_gathered()
    store.dispatch()
    assert read_all(store) == [b"first", b"one"]


# --- the gate --------------------------------------------------------------------------------------------------------

#: They pass the gate; how each is called.
GATED: dict[str, Callable[[MessageStore], object]] = {
    "append": lambda store: store.append([order("x")]),
    "append_together": lambda store: store.append_together([order("x")]),
    "catch_up": lambda store: store.catch_up(),
    "clean": lambda store: store.clean(),
    "close": lambda store: store.close(),
    "close_batch": lambda store: store.close_batch(),
    "commit_gathered": lambda store: store.commit_gathered(),
    "dispatch": lambda store: store.dispatch(),
    "fence": lambda store: store.fence(OSError("the disk is gone")),
    "flush": lambda store: store.flush(),
    "follow": lambda store: store.follow(),
    "lead": lambda store: store.lead(),
    "save_recover_point": lambda store: store.save_recover_point(),
    "append_copy": lambda store: store.append_copy(memoryview(b""), 0, 0),
}
#: They read committed bytes of the log or dispatched messages, ask for figures, or open the store: an open batch
#: changes nothing of their results. The coroutines call methods that pass the gate.
OPEN_TO_ALL = {
    "batch", "end_turn", "open", "running", "check_presence", "start_copy_at",
    "wait_synced", "clean_soon", "remove_topic",
    "is_fenced",
}  # fmt: skip


@pytest.mark.parametrize("method", GATED)
def test_every_method_that_needs_the_log_closes_the_batch(method: str) -> None:
    store = store_with_queues()
    writer = opened(store, spans_turns=True)
    assert writer.append_draft(order("second")) is not None
    GATED[method](store)
    assert store.batch().state is BatchState.CLOSED
    assert not writer.is_open


def test_a_new_method_of_the_store_passes_the_gate_or_says_why_not() -> None:
    own = {name for name in vars(MessageStore) if not name.startswith("_")}
    assert own == GATED.keys() | OPEN_TO_ALL


def test_one_place_closes_the_batch() -> None:
    """The gate; all other code asks it to."""
    tree = ast.parse(Path(inspect.getfile(message_store)).read_text(encoding="utf-8"))
    calls = [ast.unparse(node.func) for node in ast.walk(tree) if isinstance(node, ast.Call)]
    assert calls.count("self._batch.close") == 1
