"""From the log to the queues: what every record becomes, in both forms of the loop."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pyromq.clock import ManualClock
from pyromq.model.message import Draft
from pyromq.records import layout
from pyromq.records.java_hash import java_hash
from pyromq.records.properties import encode_properties
from pyromq.store.dispatcher import queue_code
from pyromq.store.message_store import MessageStore
from pyromq.store.queues.consume_queue import QueueEntry
from pyromq.store.watermarks import Watermark
from pyromq.testing import SimDisk
from records.drafts import properties as any_properties
from records.drafts import short_topics, transactions
from store.support import (
    ROOT,
    open_store,
    order,
    orders,
    plant_log,
    read_all,
    record_bytes,
    use_definitions,
    use_readable_forms,
)

SCHEDULE = layout.SCHEDULE_TOPIC.decode()


@pytest.fixture(params=["chosen", "readable", "one by one"], autouse=True)
def form(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    if request.param == "readable":
        use_readable_forms(monkeypatch)
    elif request.param == "one by one":
        use_definitions(monkeypatch)
    return request.param


def entries(store: MessageStore, topic: str = "orders", queue: int = 0) -> list[QueueEntry | None]:
    found = store.queues.get(topic.encode(), queue)
    return [] if found is None else [found.entry(offset) for offset in range(found.max_offset)]


def test_every_message_gets_an_entry_in_its_queue() -> None:
    store = open_store()
    receipts = store.append([order("a", TAGS="TagA"), order("b", queue=1), order("c", TAGS="заказ"), order("d")])
    store.dispatch()
    assert entries(store) == [
        QueueEntry(receipts[0].position, receipts[0].size, 2598919),
        QueueEntry(receipts[2].position, receipts[2].size, java_hash("заказ")),
        QueueEntry(receipts[3].position, receipts[3].size, 0),
    ]
    assert entries(store, queue=1) == [QueueEntry(receipts[1].position, receipts[1].size, 0)]
    store.marks.check()


def test_a_negative_tag_code_keeps_its_sign() -> None:
    store = open_store()
    store.append([order(TAGS="polygenelubricants")])
    store.dispatch()
    queue = store.queues.get(b"orders", 0)
    assert queue is not None
    assert bytes(queue.files.segments[0].buffer[12:20]).hex() == "ffffffff80000000"


@pytest.mark.parametrize(
    ("level", "delay_ms"),
    [("1", 1000), ("3", 10_000), ("18", 7_200_000), ("99", 7_200_000), ("0", None), ("-1", None), ("x", None)],
)
def test_a_delayed_message_is_entered_with_its_due_time(level: str, delay_ms: int | None) -> None:
    clock = ManualClock()
    store = open_store(clock=clock)
    store.append([order(topic=SCHEDULE, queue=2, DELAY=level, TAGS="TagA"), order(DELAY="3", TAGS="TagA")])
    store.dispatch()
    expected = java_hash("TagA") if delay_ms is None else clock.now_ms() + delay_ms
    assert [entry and entry.tag_code for entry in entries(store, SCHEDULE, 2)] == [expected]
    assert [entry and entry.tag_code for entry in entries(store)] == [java_hash("TagA")]


def test_an_endless_delay_level_stops_nobody() -> None:
    """Python refuses to read a number of more than 4300 digits; a sender must not be able to stop the queues."""
    store = open_store(segment_bytes=1 << 20)
    store.append([order(topic=SCHEDULE, DELAY="9" * 5000), *orders(2)])
    store.dispatch()
    assert read_all(store) == [b"0", b"1"]


def test_halves_of_a_transaction_are_in_the_log_only() -> None:
    store = open_store()
    store.append([
        order("half", flags=layout.FLAG_PREPARED),
        order("plain"),
        order("rolled back", flags=layout.FLAG_ROLLED_BACK),
        order("committed", flags=layout.FLAG_COMMITTED),
    ])  # fmt: skip
    store.dispatch()
    assert read_all(store) == [b"plain", b"committed"]
    assert store.marks.dispatched.value == store.log.end


def test_a_queue_goes_on_in_its_next_file_and_the_log_in_its_next_segment() -> None:
    store = open_store()
    store.append(orders(333))
    store.dispatch()
    queue = store.queues.get(b"orders", 0)
    assert queue is not None
    assert len(queue.files.segments) == 7
    assert len(store.log.files.segments) > 2
    assert read_all(store) == [b"%d" % number for number in range(333)]


@pytest.mark.parametrize("slice_bytes", [1, 100, 1000])
def test_slices_may_be_shorter_than_a_record(slice_bytes: int) -> None:
    store = open_store()
    store.append(orders(200))
    turns = 1
    while not store.dispatcher.dispatch(slice_bytes):
        turns += 1
    assert turns > 10
    assert read_all(store) == [b"%d" % number for number in range(200)]


def test_readers_see_what_a_mark_of_somebody_else_allows() -> None:
    store = open_store()
    promised = Watermark("promised")
    store.marks.limit_visible(promised)
    receipts = [store.append([order(f"{number}")])[0] for number in range(50)]
    store.dispatch()
    assert entries(store) == []
    for number in (0, 1, 7, 30, 49):
        promised.advance(receipts[number].end - 1)  # the last byte of a message is missing
        store.dispatch()
        assert len(entries(store)) == number
        promised.advance(receipts[number].end)
        assert store.marks.undispatched > 0
        store.dispatch()
        assert len(entries(store)) == number + 1
        assert store.marks.undispatched == 0
        store.marks.check()
    assert store.marks.indexed.value == receipts[-1].end


def test_the_mark_may_be_far_ahead_of_the_log_or_behind_what_was_shown() -> None:
    store = open_store()
    store.append(orders(3))
    store.dispatch()
    store.marks.limit_visible(Watermark("behind", 1))
    store.append(orders(3))
    store.dispatch()
    assert len(entries(store)) == 3
    assert store.marks.undispatched == 0
    store.marks.limit_visible(Watermark("ahead", 1 << 40))
    store.dispatch()
    assert len(entries(store)) == 6


def test_a_store_that_stops_has_all_in_its_queues() -> None:
    disk = SimDisk()
    store = open_store(disk)
    store.marks.limit_visible(Watermark("promised"))
    store.append(orders(20))
    store.close()
    assert read_all(open_store(disk)) == [b"%d" % number for number in range(20)]


def test_a_gap_in_a_queue_is_our_own_mistake() -> None:
    store = open_store()
    store.append([order()])
    store.dispatch()
    store.queues.cursors[b"orders\0\0\0\0"].next_append += 1
    store.append([order()])
    with pytest.raises(AssertionError, match=r"queue orders/0 expects offset 1, position \d+ has 2"):
        store.dispatcher.dispatch()


def test_a_full_disk_stops_the_queues_and_they_go_on_where_they_stopped() -> None:
    store = open_store()
    store.append(orders(80))  # a queue file has 50 entries, and the first one is there with the first message
    store.disk.full = True  # type: ignore[attr-defined]
    with pytest.raises(OSError, match="No space left"):
        store.dispatcher.dispatch()
    assert read_all(store) == [b"%d" % number for number in range(50)]
    store.disk.full = False  # type: ignore[attr-defined]
    store.dispatch()
    assert read_all(store) == [b"%d" % number for number in range(80)]


# --- logs of another writer ------------------------------------------------------------------------------------------


def planted(*drafts: tuple[Draft, int]) -> tuple[SimDisk, MessageStore]:
    """A store opened on a log of these drafts with these queue offsets."""
    disk, log = SimDisk(), b""
    for draft, offset in drafts:
        log += record_bytes(draft, len(log), offset)
    plant_log(disk, log)
    return disk, open_store(disk)


@pytest.mark.parametrize(
    "hostile",
    [
        (replace(order(), topic=b"../evil"), 0),
        (replace(order(), topic=b".."), 0),
        (replace(order(), topic=b"a\0b"), 0),
        (replace(order(), topic=b"x" * 300), 0),  # no file system has such a name
        (replace(order(), queue_id=-5), 0),
        (order(topic="other"), -1),
    ],
    ids=["up and out", "up", "zero byte", "too long", "queue id", "queue offset"],
)
def test_a_record_that_can_be_in_no_queue_stops_nobody(
    hostile: tuple[Draft, int], caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.ERROR):
        disk, store = planted((order("a"), 0), hostile, (order("b"), 1))
    assert read_all(store) == [b"a", b"b"]
    assert "is in no queue" in caplog.text
    assert store.queues.topics() == ["orders"]
    assert all(path.is_relative_to(ROOT) and ".." not in path.parts for path in disk.files())
    assert [path for path in disk.files() if path.is_relative_to(ROOT / "consumequeue")] == [
        ROOT / "consumequeue" / "orders" / "0" / "00000000000000000000"
    ]
    store.append([order("c")])
    store.dispatch()
    assert read_all(store) == [b"a", b"b", b"c"]


def test_broken_utf8_in_a_topic_is_a_name_of_its_own() -> None:
    _, store = planted((replace(order("odd"), topic=b"\xff\xfe"), 0), (order("a"), 0))
    assert read_all(store, b"\xff\xfe".decode("utf-8", "surrogateescape")) == [b"odd"]


def test_a_queue_whose_oldest_messages_are_gone_begins_in_the_middle() -> None:
    _, store = planted((order("x"), 77), (order("y"), 78))
    assert (store.min_offset("orders", 0), store.max_offset("orders", 0)) == (77, 79)
    assert read_all(store) == [b"x", b"y"]
    (receipt,) = store.append([order("z")])
    assert receipt.queue_offset == 79


def test_a_gap_that_another_writer_left_is_stepped_over(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.ERROR):
        _, store = planted(*((order(f"{number}"), number) for number in (0, 1, 2, 60, 61)))
    assert "queue orders/0 has no messages from offset 3 to 59" in caplog.text
    assert (store.min_offset("orders", 0), store.max_offset("orders", 0)) == (0, 62)
    assert read_all(store) == [b"0", b"1", b"2", b"60", b"61"]


def test_of_two_records_with_one_offset_the_later_counts() -> None:
    _, store = planted((order("a"), 0), (order("b"), 1), (order("again"), 1), (order("c"), 2))
    assert read_all(store) == [b"a", b"again", b"c"]


# --- twins -----------------------------------------------------------------------------------------------------------

some_drafts = st.builds(
    Draft,
    topic=short_topics | st.just(layout.SCHEDULE_TOPIC),
    queue_id=st.integers(0, 2),
    body=st.binary(max_size=40),
    properties=any_properties(),
    storage_flags=transactions,
)


def files_after(batches: list[list[Draft]]) -> dict[Path, bytes]:
    store = open_store(segment_bytes=4096 * 4)
    for batch in batches:
        store.append(batch)
        store.dispatch()
    found = store.disk.files()  # type: ignore[attr-defined]
    # A file of the index that has no entry yet may be made a little earlier or later.
    return {path: data for path, data in found.items() if any(data) and path.name not in ("abort", "lock")}


@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.lists(some_drafts, max_size=12), max_size=5))
def test_both_forms_leave_the_same_files(batches: list[list[Draft]]) -> None:
    expected = files_after(batches)
    with pytest.MonkeyPatch.context() as monkeypatch:
        use_readable_forms(monkeypatch)
        assert files_after(batches) == expected


def test_the_code_of_an_entry() -> None:
    delays = (1000, 5000)
    tagged = encode_properties({"TAGS": "TagA"})
    assert queue_code(b"orders", tagged, 10, delays) == 2598919
    assert queue_code(b"orders", b"", 10, delays) == 0
    assert queue_code(layout.SCHEDULE_TOPIC, encode_properties({"DELAY": "2"}), 10, delays) == 5010
    assert queue_code(layout.SCHEDULE_TOPIC, tagged, 10, delays) == 2598919
