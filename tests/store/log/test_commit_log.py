"""Appending to the log: order, rolling, and drafts of every kind."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pyromq.clock import ManualClock
from pyromq.errors import CorruptLog, DiskFull, IllegalMessage
from pyromq.metrics import Telemetry
from pyromq.model.message import AppendedAt, Draft
from pyromq.records import layout, record
from pyromq.store.log.allocator import Allocator
from pyromq.store.log.commit_log import CommitLog
from pyromq.store.log.segmented_file import SegmentedFile
from pyromq.store.log.transient_pool import TransientPool
from pyromq.store.message_store import InlineRunner
from pyromq.store.queues.queue_cursor import QueueCursor, queue_key
from pyromq.testing import SimDisk
from records.drafts import drafts as any_draft
from store.support import SEGMENT, config, filling, order, orders, use_readable_forms, walk

NOW = 1_700_000_000_000


class World:
    """A log that knows every queue of the drafts it is given."""

    def __init__(self, *, transient: bool = False, **changes: object) -> None:
        self.config = config(**changes)
        self.disk = SimDisk()
        self.files = SegmentedFile(self.disk, self.config.root / "commitlog", self.config.segment_bytes)
        allocator = Allocator(self.files, InlineRunner(), ManualClock(), Telemetry(), 0)
        self.pool = TransientPool() if transient else None
        self.log = CommitLog(self.config, self.files, allocator, self.pool)
        self.cursors: dict[bytes, QueueCursor] = {}
        self.receipts: list[AppendedAt] = []

    def append(self, drafts: list[Draft], now_ms: int = NOW) -> list[AppendedAt]:
        for draft in drafts:
            self.cursors.setdefault(queue_key(draft.topic, draft.queue_id), QueueCursor())
        receipts: list[AppendedAt] = []
        self.receipts = receipts
        assert self.log.append(drafts, self.cursors, now_ms, receipts) == len(drafts)
        return receipts

    def segments(self) -> list[bytes]:
        return [bytes(segment.buffer) for segment in self.files.segments]


def test_records_lie_one_behind_the_other_with_queue_offsets_of_their_own() -> None:
    world = World()
    receipts = world.append([order("a"), order("b", queue=1), order("c"), order("d", topic="other")])
    assert [receipt.queue_offset for receipt in receipts] == [0, 0, 1, 0]
    assert [receipt.end for receipt in receipts][:-1] == [receipt.position for receipt in receipts][1:]
    assert world.log.end == receipts[-1].end
    found = list(walk(world.segments()[0]))
    assert [(message.body, message.position) for message in found] == [
        (body, receipt.position) for body, receipt in zip([b"a", b"b", b"c", b"d"], receipts, strict=True)
    ]


def test_halves_of_a_transaction_take_no_queue_offset() -> None:
    world = World()
    flags = [layout.FLAG_PREPARED, 0, layout.FLAG_ROLLED_BACK, layout.FLAG_COMMITTED]
    receipts = world.append([order(flags=flag) for flag in flags])
    assert [receipt.queue_offset for receipt in receipts] == [0, 0, 0, 1]


def test_a_full_segment_ends_with_a_blank_and_a_batch_goes_on_in_the_next() -> None:
    world = World()
    receipts = world.append(orders(300))
    first, second, *_ = world.segments()
    last = [receipt for receipt in receipts if receipt.position < SEGMENT][-1]
    assert layout.BLANK.unpack_from(first, last.end) == (SEGMENT - last.end, layout.MAGIC_BLANK)
    assert not any(first[last.end + 8 :])
    assert receipts[receipts.index(last) + 1].position == SEGMENT
    assert next(walk(second)).queue_offset == last.queue_offset + 1
    assert [receipt.queue_offset for receipt in receipts] == list(range(300))
    assert [message.body for segment in world.segments() for message in walk(segment)] == [
        draft.body for draft in orders(300)
    ]


def test_a_record_may_fill_all_but_the_room_of_the_blank() -> None:
    world = World()
    world.append([filling(order(), SEGMENT - 8)])
    assert world.log.end == SEGMENT - 8
    world.append([order("next")])
    assert layout.BLANK.unpack_from(world.segments()[0], SEGMENT - 8) == (8, layout.MAGIC_BLANK)
    assert next(walk(world.segments()[1])).body == b"next"


def test_one_byte_more_goes_to_the_next_segment() -> None:
    world = World()
    world.append([filling(order(), 8192)])
    (receipt,) = world.append([filling(order(), 8192 - 7)])
    assert receipt.position == SEGMENT
    assert layout.BLANK.unpack_from(world.segments()[0], 8192) == (8192, layout.MAGIC_BLANK)


def test_what_fits_in_no_segment_is_refused_before_anything_is_appended() -> None:
    world = World()
    world.log.check([filling(order(), SEGMENT - 8)])
    with pytest.raises(IllegalMessage, match=f"the record of {SEGMENT - 7} bytes does not fit in a segment"):
        world.log.check([order(), filling(order(), SEGMENT - 7)])
    with pytest.raises(IllegalMessage, match="the limit is 100"):
        World(max_body_bytes=100).log.check([order(), order(bytes(101))])


@pytest.mark.parametrize(
    "odd",
    [{"topic": b".."}, {"topic": b"a/b"}, {"topic": b""}, {"queue_id": -1}, {"user_flag": 1 << 31}, {"born_host": b""},
     {"storage_flags": 1 << 31}, {"prepared_position": 1 << 63}, {"born_timestamp_ms": -(1 << 63) - 1}],
)  # fmt: skip
def test_the_check_finds_the_odd_one_among_many(odd: dict[str, object]) -> None:
    drafts = orders(20)
    drafts[13] = replace(drafts[13], **odd)  # type: ignore[arg-type]
    with pytest.raises(IllegalMessage):
        World(segment_bytes=1 << 20).log.check(drafts)


def test_a_queue_that_is_not_known_yet_stops_the_append_before_it() -> None:
    world = World()
    drafts = [order("a"), order("b", topic="unknown"), order("c")]
    cursors = {queue_key(b"orders", 0): QueueCursor()}
    receipts: list[AppendedAt] = []
    assert world.log.append(drafts, cursors, NOW, receipts) == 1
    assert len(receipts) == 1
    cursors[queue_key(b"unknown", 0)] = QueueCursor()
    assert world.log.append(drafts[1:], cursors, NOW, receipts) == 2
    assert [message.body for message in walk(world.segments()[0])] == [b"a", b"b", b"c"]


def test_what_the_kernel_hands_back_is_appended_all_the_same() -> None:
    world = World()
    drafts = orders(9)
    drafts[4] = replace(drafts[4], properties=b"x\x01y\x02__CRC32#\x010123456789")
    drafts[7] = replace(drafts[7], born_host=bytes(20))
    world.append(drafts)
    found = list(walk(world.segments()[0]))
    assert [message.body for message in found] == [draft.body for draft in drafts]
    assert found[4].properties["x"] == "y"
    assert found[4].properties["__CRC32#"] != "0123456789"


def test_store_times_never_go_back() -> None:
    world = World()
    for now_ms in (NOW, NOW - 5000, NOW + 1):
        world.append([order()], now_ms)
    assert [message.store_timestamp_ms for message in walk(world.segments()[0])] == [NOW, NOW, NOW + 1]


def test_a_full_disk_is_told_between_two_drafts() -> None:
    world = World(segment_bytes=8192)
    world.append([order()])
    world.disk.full = True
    with pytest.raises(DiskFull):
        world.append([filling(order(), 4000) for _ in range(5)])
    assert len(world.receipts) == 2
    assert world.log.end == world.receipts[-1].end
    assert not any(world.segments()[0][world.log.end :]), "no blank: the segment is not finished"


def test_a_record_is_found_by_position_and_nothing_else_is() -> None:
    world = World()
    first, second = world.append([order("a"), order("b")])
    assert record.decode(world.log.record_at(second.position, world.log.end)).body == b"b"
    for position, readable in [
        (second.position + 1, world.log.end),
        (second.position, second.position),
        (second.position, second.end - 1),
        (world.log.end, world.log.end),
        (99 * SEGMENT, world.log.end),
        (-1, world.log.end),
    ]:
        with pytest.raises(CorruptLog):
            world.log.record_at(position, readable)
    assert world.log.start == first.position == 0


@pytest.mark.parametrize("transient", [False, True])
def test_gathered_records_reach_the_file_when_they_are_committed(transient: bool) -> None:
    world = World(transient=transient)
    receipts = world.append(orders(200))
    if world.pool is not None:
        assert not any(map(any, world.segments()))
        half = receipts[120].end
        assert world.pool.commit(half) == half
        assert sum(1 for segment in world.segments() for _ in walk(segment)) == 121
        world.append(orders(100))
        assert world.pool.commit(world.log.end) == world.log.end
        assert world.pool.commit(world.log.end) == world.log.end
    else:
        world.append(orders(100))
    expected = [draft.body for draft in orders(200) + orders(100)]
    assert [message.body for segment in world.segments() for message in walk(segment)] == expected


@settings(max_examples=40)
@given(st.lists(st.lists(any_draft(), max_size=4), max_size=4), st.booleans())
def test_both_forms_write_the_same_log(batches: list[list[Draft]], with_crc: bool) -> None:
    chosen, readable = World(record_crc=with_crc), World(record_crc=with_crc)
    for batch in batches:
        chosen.log.check(batch)
        with pytest.MonkeyPatch.context() as monkeypatch:
            use_readable_forms(monkeypatch)
            expected = readable.append(batch)
        assert chosen.append(batch) == expected
    assert chosen.segments() == readable.segments()
