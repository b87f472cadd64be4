"""The store as its users see it: append, read, find; opened once, closed cleanly, honest about a full disk."""

from __future__ import annotations

import os
import subprocess
import sys
from array import array
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pyromq.clock import ManualClock, SystemClock
from pyromq.config import RetentionConfig, StoreConfig
from pyromq.errors import (
    CorruptLog,
    CorruptStore,
    DiskFull,
    IllegalMessage,
    OffsetNotFound,
    StoreClosed,
    StoreFenced,
    StoreLocked,
)
from pyromq.model.message import LOCALHOST, Draft
from pyromq.records import layout, record
from pyromq.records.message_id import encode_message_id
from pyromq.store.message_store import InlineRunner, MessageStore, decode
from pyromq.store.queues.queue_reader import ReadStatus
from pyromq.testing import SimDisk
from store.support import (
    ROOT,
    SEGMENT,
    bodies,
    config,
    filling,
    messages,
    open_store,
    order,
    orders,
    plant_log,
    read_all,
    record_bytes,
)

NOW = 1_700_000_000_000
FIRST = ROOT / "commitlog" / "00000000000000000000"


def on_disk(root: Path, **changes: object) -> MessageStore:
    """A store in a real directory."""
    return MessageStore(config(root=root, **changes), runner=InlineRunner())


# --- append and read -------------------------------------------------------------------------------------------------


def test_what_was_appended_is_read_and_found_by_id() -> None:
    store = open_store()
    receipts = store.append([order("a", TAGS="x"), order("b", queue=1), order("c")])
    store.dispatch()
    assert read_all(store) == [b"a", b"c"]
    assert read_all(store, queue=1) == [b"b"]
    message_id = encode_message_id(LOCALHOST, receipts[1].position)
    assert decode(store.message_by_id(message_id)).body == b"b"
    assert decode(store.message_at(receipts[2].position)).queue_offset == 1
    store.marks.check()


def test_an_append_of_nothing_is_nothing() -> None:
    store = open_store()
    assert store.append([]) == []
    assert store.log.end == 0


def test_one_illegal_message_and_nothing_is_appended() -> None:
    store = open_store()
    with pytest.raises(IllegalMessage):
        store.append([order("a"), order("b", topic=".."), order("c")])
    assert store.log.end == 0
    assert store.queues.topics() == []
    assert store.append([order("d")])[0].queue_offset == 0


def test_a_message_is_found_at_its_position_at_once_because_looking_for_it_puts_it_into_its_queue() -> None:
    store = open_store()
    (receipt,) = store.append([order("a")])
    assert store.read("orders", 0, 0).status is ReadStatus.NO_QUEUE or store.max_offset("orders", 0) == 0
    assert decode(store.message_at(receipt.position)).body == b"a"
    assert store.read("orders", 0, 0).status is ReadStatus.FOUND


@pytest.mark.parametrize("flags", [layout.FLAG_PREPARED, layout.FLAG_ROLLED_BACK])
def test_half_of_a_transaction_is_in_no_queue_and_is_found_by_its_position(flags: int) -> None:
    store = open_store()
    store.append([order("a"), order("b")])
    (half,) = store.append([order("half", flags=flags)])
    forged = record.encode(order("FORGED", flags=flags), half.end + layout.SMALLEST_RECORD - 2 - 1, 0, 1, True)
    (outer,) = store.append([Draft(b"orders", 0, forged)])
    store.dispatch()
    assert decode(store.message_at(half.position)).body == b"half"
    inside = outer.position + bytes(store.message_at(outer.position)).index(forged)
    assert layout.HEAD.unpack_from(forged)[6] == inside, "the forged record must say the right position"
    with pytest.raises(OffsetNotFound, match="inside another"):
        store.message_at(inside)


@pytest.mark.parametrize("topic", ["orders", "nobody"])
def test_a_record_inside_a_body_is_no_message(topic: str) -> None:
    """A sender may know where its body will be and put a whole record there."""
    store = open_store()
    body_at = layout.SMALLEST_RECORD - 3
    fake = record_bytes(order("fake", topic=topic), body_at)
    (receipt,) = store.append([order(fake)])
    store.dispatch()
    assert bytes(store.log.record_at(body_at, store.log.end)) == fake, "the bytes alone do not tell"
    with pytest.raises(OffsetNotFound, match=f"no message begins at position {body_at}: what looks like one is inside"):
        store.message_at(body_at)
    assert decode(store.message_at(receipt.position)).body == fake


@pytest.mark.parametrize("position", [-1, 1, 50, 117, 118, 5000, SEGMENT, 1 << 62])
def test_where_no_message_begins_none_is_found(position: int) -> None:
    store = open_store()
    store.append([order("0")])
    store.dispatch()
    with pytest.raises(OffsetNotFound, match=f"no message begins at position {position}"):
        store.message_at(position)


def test_an_id_that_is_none_finds_nothing() -> None:
    with pytest.raises(OffsetNotFound, match="not a message id"):
        open_store().message_by_id("nonsense")


def test_a_message_is_found_once_by_a_key_that_it_has_twice() -> None:
    store = open_store()
    store.append([order("a", KEYS="k k", UNIQ_KEY="k"), order("b", KEYS="k")])
    store.dispatch()
    assert bodies(store.query("orders", "k")) == [b"b", b"a"]
    assert bodies(store.query("orders", "k", max_messages=1)) == [b"b"]
    assert store.query("other", "k") == []
    assert store.query("orders", "") == []


def test_without_an_index_nothing_is_found_by_key() -> None:
    store = open_store(index_enabled=False)
    store.append([order("a", KEYS="k")])
    store.dispatch()
    assert store.query("orders", "k") == []
    assert not store.disk.exists(ROOT / "index")


@settings(max_examples=50)
@given(st.lists(st.integers(0, 3), max_size=30), st.integers(-2, 50))
def test_the_offset_of_a_time(pauses: list[int], wanted: int) -> None:
    clock = ManualClock(NOW)
    store = open_store(clock=clock)
    times = []
    for pause in pauses:
        clock.advance(pause)
        times.append(clock.now_ms())
        store.append([order()])
    store.dispatch()
    moment = NOW + 1000 * wanted
    lower = next((offset for offset, at in enumerate(times) if at >= moment), len(times))
    upper = max((offset for offset, at in enumerate(times) if at <= moment), default=0)
    assert store.offset_at("orders", 0, moment) == lower
    assert store.offset_at("orders", 0, moment, upper=True) == upper
    assert store.offset_at("nobody", 0, moment) == 0


# --- opened once -----------------------------------------------------------------------------------------------------


def test_a_second_open_in_this_process_is_refused_and_names_it(tmp_path: Path) -> None:
    with on_disk(tmp_path) as first:
        first.append([order("a")])
        with pytest.raises(StoreLocked, match=f"in use by process {os.getpid()}; stop it first") as refused:
            on_disk(tmp_path).open()
        assert refused.value.pid == os.getpid()
        with pytest.raises(StoreLocked):
            on_disk(tmp_path).open()  # the refused attempt did not drop the lock
        first.append([order("b")])
    with on_disk(tmp_path) as again:
        assert read_all(again) == [b"a", b"b"]


OPEN_IT = """
import sys
from pathlib import Path
from pyromq.config import StoreConfig
from pyromq.errors import StoreLocked
from pyromq.store.message_store import MessageStore
store = MessageStore(StoreConfig(root=Path(sys.argv[1]), segment_bytes=16384, prefault_bytes=0))
try:
    store.open()
except StoreLocked as refused:
    print(refused.pid, flush=True)
else:
    print("opened", flush=True)
    sys.stdin.read()
    store.close()
"""


def open_elsewhere(root: Path) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", OPEN_IT, str(root)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )


def test_another_process_is_refused_and_told_our_pid(tmp_path: Path) -> None:
    with on_disk(tmp_path):
        other = open_elsewhere(tmp_path)
        answer, _ = other.communicate(timeout=30)
    assert answer.strip() == str(os.getpid())


def test_the_pid_of_another_process_is_told(tmp_path: Path) -> None:
    other = open_elsewhere(tmp_path)
    assert other.stdout is not None
    assert other.stdout.readline().strip() == "opened"
    with pytest.raises(StoreLocked) as refused:
        on_disk(tmp_path).open()
    other.communicate(timeout=30)
    assert refused.value.pid == other.pid
    on_disk(tmp_path).open()


def test_the_lock_goes_when_the_store_is_closed_or_could_not_be_opened(tmp_path: Path) -> None:
    with on_disk(tmp_path) as store:
        store.append(orders(5))
    log = tmp_path / "commitlog" / "00000000000000000000"
    whole = log.read_bytes()
    log.write_bytes(whole[:-1])
    for _ in range(2):
        with pytest.raises(CorruptStore, match="the configuration says 16384"):
            on_disk(tmp_path).open()
    log.write_bytes(whole)
    with on_disk(tmp_path) as store:
        assert read_all(store) == [b"0", b"1", b"2", b"3", b"4"]


def test_a_store_that_is_not_open_says_so() -> None:
    store = MessageStore(config(), disk=SimDisk(), clock=ManualClock(), runner=InlineRunner())
    for _ in ("before it was opened", "after it was closed"):
        with pytest.raises(StoreClosed):
            store.append([order()])
        with pytest.raises(StoreClosed):
            store.read("orders", 0, 0)
        with pytest.raises(StoreClosed):
            store.message_at(0)
        store.close()


def test_closing_twice_is_fine() -> None:
    store = open_store()
    store.append([order()])
    store.close()
    store.close()


# --- closed and opened again -----------------------------------------------------------------------------------------


def test_a_clean_stop_leaves_nothing_to_do() -> None:
    disk = SimDisk()
    store = open_store(disk)
    store.append(orders(200, KEYS="k"))
    store.close()
    assert not disk.exists(ROOT / "abort")
    assert len(disk.names(ROOT / "commitlog")) == -(-store.log.end // SEGMENT), "no segment made ahead is left"
    again = open_store(disk)
    assert again.report.clean
    assert (again.report.records_scanned, again.report.index_from) == (0, store.log.end)
    assert disk.exists(ROOT / "abort")
    assert read_all(again) == [b"%d" % number for number in range(200)]
    assert len(again.query("orders", "k", max_messages=500)) == 200
    assert again.append([order()])[0].queue_offset == 200


def test_damage_below_the_synced_mark_is_never_cut_silently() -> None:
    disk = SimDisk()
    store = open_store(disk)
    store.append(orders(5))
    store.flush()
    store.points.save()  # nothing is dispatched: the next start scans from the beginning
    damaged = disk.kill()
    damaged.plant(FIRST, damaged.read_bytes(FIRST)[:300] + bytes(SEGMENT - 300))
    with pytest.raises(CorruptLog, match=r"damage in synced data .* at position 236; .*--truncate-at 236"):
        open_store(damaged)
    again = MessageStore(config(), disk=damaged, clock=ManualClock(), runner=InlineRunner())
    assert again.open(truncate_at=236).log_end == 236
    assert read_all(again) == [b"0", b"1"]


def test_a_killed_process_loses_nothing() -> None:
    store = open_store()
    store.append(orders(200, KEYS="k"))
    assert isinstance(store.disk, SimDisk)
    again = open_store(store.disk.kill())
    assert not again.report.clean
    assert read_all(again) == [b"%d" % number for number in range(200)]
    again.dispatch()
    assert len(again.query("orders", "k", max_messages=500)) == 200


def test_index_files_that_were_synced_whole_survive_a_kill() -> None:
    store = open_store()
    store.append(orders(100, KEYS="k"))
    store.dispatch()
    store.flush()
    store.save_recover_point()
    assert isinstance(store.disk, SimDisk)
    again = open_store(store.disk.kill())
    assert again.report.index_from > 0, "only the last file is built again"
    again.dispatch()
    assert bodies(again.query("orders", "k", max_messages=500)) == [b"%d" % n for n in reversed(range(100))]


def test_a_log_that_another_program_wrote_is_taken_over() -> None:
    disk, log = SimDisk(), b""
    for number in range(20):
        log += record_bytes(order(f"{number}", KEYS="k"), len(log), number)
    plant_log(disk, log)
    store = open_store(disk)
    store.dispatch()
    assert read_all(store) == [b"%d" % number for number in range(20)]
    assert len(store.query("orders", "k")) == 20
    assert store.append([order()])[0].position == len(log)


def test_store_times_go_on_where_they_were_when_the_clock_went_back() -> None:
    disk = SimDisk()
    store = open_store(disk, ManualClock(NOW))
    store.append([order()])
    store.close()
    again = open_store(disk, ManualClock(NOW - 10_000))
    again.append([order()])
    again.dispatch()
    assert [message.store_timestamp_ms for message in messages(again.read("orders", 0, 0))] == [NOW, NOW]


# --- the transient pool ----------------------------------------------------------------------------------------------


def test_readers_never_see_what_is_only_gathered() -> None:
    store = open_store(transient_pool=True)
    first, second = store.append([order("a"), order("b")])
    assert (store.marks.appended.value, store.marks.written.value) == (second.end, 0)
    store.dispatcher.dispatch()
    assert store.read("orders", 0, 0).status in (ReadStatus.AT_END, ReadStatus.NO_QUEUE)
    for receipt in (first, second):
        with pytest.raises(OffsetNotFound):
            store.message_at(receipt.position)
    store.commit_gathered()
    store.append([order("c")])
    store.dispatcher.dispatch()
    assert read_all(store) == [b"a", b"b"]
    store.marks.check()
    store.dispatch()
    assert read_all(store) == [b"a", b"b", b"c"]


def test_a_clean_stop_commits_what_was_gathered() -> None:
    disk = SimDisk()
    store = open_store(disk, transient_pool=True)
    store.append(orders(300))
    store.close()
    assert read_all(open_store(disk)) == [b"%d" % number for number in range(300)]


def test_a_flush_makes_what_was_gathered_durable() -> None:
    store = open_store(transient_pool=True)
    store.append(orders(300))
    store.flush()
    assert store.marks.synced.value == store.log.end


# --- a full disk -----------------------------------------------------------------------------------------------------


def test_a_full_disk_tells_which_messages_are_in_and_goes_on_by_itself() -> None:
    clock = ManualClock()
    disk = SimDisk(clock)
    store = open_store(disk, clock)
    store.append([order("first")])
    store.dispatch()
    disk.full = True
    batch = [filling(order(), 3000) for _ in range(10)]
    with pytest.raises(DiskFull, match="no room for the next segment") as refused:
        store.append(batch)
    assert len(refused.value.receipts) == 5
    store.dispatch()
    assert store.max_offset("orders", 0) == 6, "reads go on"
    with pytest.raises(DiskFull):
        store.append([filling(order(), 3000)])
    disk.full = False
    clock.advance(1)
    assert [receipt.queue_offset for receipt in store.append(batch[5:])] == [6, 7, 8, 9, 10]
    store.marks.check()


def test_no_room_for_queues_refuses_messages_until_there_is() -> None:
    disk = SimDisk()
    store = open_store(disk)
    store.append(orders(60))  # a queue file has 50 entries
    disk.full = True
    with pytest.raises(DiskFull, match=r"queue entries cannot be written.*make room"):
        store.dispatch()
    with pytest.raises(DiskFull, match=r"queue entries cannot be written.*make room"):
        store.append([order("b")])
    disk.full = False
    store.append([order("c")])
    store.dispatch()
    assert read_all(store) == [*(b"%d" % number for number in range(60)), b"c"]


def test_a_queue_that_cannot_be_made_refuses_its_first_message_before_it_is_in_the_log() -> None:
    disk = SimDisk()
    store = open_store(disk)
    store.append([order("a")])
    end = store.log.end
    disk.full = True
    with pytest.raises(DiskFull, match="queue orders/7 cannot be made"):
        store.append([order("b", queue=7)])
    assert store.log.end == end
    store.append([order("c")])  # other queues go on
    disk.full = False
    assert store.append([order("d", queue=7)])[0].queue_offset == 0


def test_an_error_in_the_middle_of_a_batch_leaves_what_came_before_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-C arrives while the third of four messages is being appended."""
    interrupted = False

    class Interrupting(Draft):
        def __getattribute__(self, name: str) -> object:
            if interrupted and name == "reconsume_times":
                raise KeyboardInterrupt
            return super().__getattribute__(name)

    store = open_store()
    real_check = store.log.check

    def check_then_interrupt(drafts: list[Draft]) -> None:
        nonlocal interrupted
        real_check(drafts)
        interrupted = True

    monkeypatch.setattr(store.log, "check", check_then_interrupt)
    with pytest.raises(KeyboardInterrupt):
        store.append([order("a"), order("b"), Interrupting(b"orders", 0, b"c"), order("d")])
    (receipt,) = store.append([order("e")])
    store.dispatch()
    assert receipt.queue_offset == 2
    assert read_all(store) == [b"a", b"b", b"e"]


@pytest.mark.parametrize(
    "draft",
    [
        Draft(b"orders", 0, memoryview(array("i", [1, 2]))),
        Draft(b"orders", 0, memoryview(b"abcdef")[::2]),
        Draft(b"orders", 1.5, b"body"),  # type: ignore[arg-type]
        Draft("orders", 0, b"body"),  # type: ignore[arg-type]
        Draft(b"orders", 0, "body"),  # type: ignore[arg-type]
        Draft(b"orders", 0, b"body", born_timestamp_ms=None),  # type: ignore[arg-type]
    ],
)
def test_a_draft_of_the_wrong_kind_is_refused_before_anything_is_appended(draft: Draft) -> None:
    store = open_store()
    with pytest.raises(IllegalMessage):
        store.append([order("a"), draft])
    assert store.log.end == 0


def test_what_no_queue_can_have_is_not_found_rather_than_an_error() -> None:
    store = open_store()
    store.append([order("a")])
    store.dispatch()
    assert store.read("\ud800", 0, 0).status is ReadStatus.NO_QUEUE
    assert store.read("orders", 1 << 40, 0).status is ReadStatus.NO_QUEUE
    assert store.read("orders", -1, 0).status is ReadStatus.NO_QUEUE
    assert store.read("orders", 0, 0, max_messages=1 << 80, max_bytes=1 << 80).status is ReadStatus.FOUND
    assert store.read("orders", 0, 0, max_messages=0).next_offset == 1, "a client that asks for nothing still moves on"
    assert store.query("orders", "\ud800") == []


def test_a_closed_store_answers_nothing_and_writes_nothing() -> None:
    store = open_store()
    store.append([order("a")])
    store.close()
    for call in (store.flush, store.dispatch, store.clean, store.save_recover_point):
        with pytest.raises(StoreClosed):
            call()
    with pytest.raises(StoreClosed):
        store.read("orders", 0, 0)
    with pytest.raises(StoreClosed):
        store.query("orders", "k")


def test_a_message_found_where_its_queue_no_longer_reaches_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    """After retention a body may hold a record whose queue offset is below everything that is left."""
    clock = ManualClock()
    store = open_store(clock=clock, queue_file_entries=5)
    store.append(orders(200))
    store.flush()
    store.dispatch()
    clock.advance(100 * 3600)
    store.append([order("new")])
    store.clean()
    assert store.min_offset("orders", 0) > 5
    at = store.log.end
    forged = record.encode(order("FORGED"), at + layout.SMALLEST_RECORD + 5, 0, 1, True)
    (receipt,) = store.append([order(forged, topic="evil")])
    store.dispatch()
    inside = bytes(store.message_at(receipt.position)).index(forged) + receipt.position
    forged = record.encode(order("FORGED"), inside, 0, 1, True)
    (again,) = store.append([order(forged, topic="evil")])
    store.dispatch()
    position = bytes(store.message_at(again.position)).index(forged[36:]) + again.position - 36
    with pytest.raises(OffsetNotFound):
        store.message_at(position)


def test_a_stop_on_a_full_disk_keeps_the_log_whole() -> None:
    disk = SimDisk()
    store = open_store(disk)
    store.append([order("a")])
    disk.full = True
    store.close()
    disk.full = False
    assert read_all(open_store(disk)) == [b"a"]


# --- retention -------------------------------------------------------------------------------------------------------


def test_old_segments_go_and_a_view_of_them_stays_valid(tmp_path: Path) -> None:
    retention = RetentionConfig(max_age_hours=1, refuse_at=1.0, resume_below=0.99)
    clock = ManualClock(SystemClock().now_ms() - 2 * 3_600_000)
    store = MessageStore(config(root=tmp_path, retention=retention), clock=clock, runner=InlineRunner())
    store.open()
    store.append(orders(500, KEYS="k"))
    store.dispatch()
    store.flush()
    view = store.read("orders", 0, 0).records[0]
    before = bytes(view)
    segments = sorted((tmp_path / "commitlog").iterdir())
    for path in segments[:2]:
        os.utime(path, (1, 1))
    store.clean()
    assert segments[0].exists(), "its messages are new, whatever the file says"
    clock.advance(2 * 3600)
    store.clean()
    assert not segments[0].exists()
    assert not segments[1].exists()
    assert bytes(view) == before
    start = store.min_offset("orders", 0)
    assert 0 < start < 500
    assert store.read("orders", 0, 0).status is ReadStatus.TOO_SMALL
    assert read_all(store) == [b"%d" % number for number in range(start, 500)]
    assert len(store.query("orders", "k", max_messages=1000)) == 500 - start
    assert store.telemetry.snapshot()["pyromq_store_removed_segments_total"] == 2
    with pytest.raises(OffsetNotFound):
        store.message_at(0)
    store.close()
    with on_disk(tmp_path) as again:
        assert (again.min_offset("orders", 0), again.max_offset("orders", 0)) == (start, 500)


def test_messages_are_refused_while_the_disk_is_too_full_and_taken_again_after() -> None:
    disk = SimDisk(capacity_bytes=400_000)
    store = open_store(disk)
    store.append([order()])
    store.dispatch()
    disk.capacity_bytes = disk.usage(ROOT).used
    store.clean()
    with pytest.raises(DiskFull, match=r"100% full and nothing is taken from 90% on"):
        store.append([order()])
    assert read_all(store) == [b"body"]
    disk.capacity_bytes *= 10
    store.clean()
    store.append([order()])


def test_the_figures_tell_what_happens() -> None:
    store = open_store()
    store.append(orders(3))
    figures = store.telemetry.snapshot()
    assert figures["pyromq_store_append_seconds.count"] == 1
    assert (
        figures["pyromq_store_log_end_bytes"]
        == figures["rocketmq_storage_flush_behind_bytes"]
        == figures["rocketmq_storage_dispatch_behind_bytes"]
        > 0
    )
    store.flush()
    store.dispatch()
    figures = store.telemetry.snapshot()
    assert figures["rocketmq_storage_flush_behind_bytes"] == figures["rocketmq_storage_dispatch_behind_bytes"] == 0
    assert figures["pyromq_store_unindexed_bytes"] == 0
    assert 0 <= figures["pyromq_store_disk_used_ratio"] <= 1


# --- fenced ----------------------------------------------------------------------------------------------------------


def test_a_sync_that_fails_fences_the_store() -> None:
    disk = SimDisk()
    store = open_store(disk)
    store.append([order("a")])
    disk.fail_next_sync(lambda path: path == FIRST)
    with pytest.raises(StoreFenced, match="did not confirm a write"):
        store.flush()
    for attempt in (store.flush, lambda: store.append([order()])):
        with pytest.raises(StoreFenced):
            attempt()
    store.dispatch()
    assert read_all(store) == [b"a"], "what is there can be read"
    store.close()
    assert disk.exists(ROOT / "abort"), "not a clean stop"
    assert not open_store(disk).report.clean


def test_the_defaults_are_rocketmqs() -> None:
    settings = StoreConfig(root=ROOT)
    assert (settings.segment_bytes, settings.queue_file_entries) == (1 << 30, 300_000)
    assert 40 + 4 * settings.index_slots + 20 * settings.index_entries == 420_000_040


# --- offsets that were given out -------------------------------------------------------------------------------------


def store_whose_old_topic_is_gone(disk: SimDisk) -> MessageStore:
    """Retention removed every message of topic `old`; only its queue knows that 100 offsets were given out."""
    clock = ManualClock()
    store = open_store(disk, clock, queue_file_entries=300)
    store.append(orders(100, topic="old"))
    store.append(orders(600))
    store.dispatch()
    store.flush()
    clock.advance(100 * 3600)
    store.append(orders(200))
    store.dispatch()
    store.flush()
    store.clean()
    assert store.log.start > 0
    assert store.min_offset("old", 0) == store.max_offset("old", 0) == 100
    store.save_recover_point()
    return store


def test_a_rebuild_does_not_give_out_offsets_again() -> None:
    disk = SimDisk()
    store_whose_old_topic_is_gone(disk).close()
    store = MessageStore(config(queue_file_entries=300), disk=disk, clock=ManualClock(), runner=InlineRunner())
    store.open(rebuild=True)
    assert store.append([order("new", topic="old")])[0].queue_offset == 100
    store.close()
    again = open_store(disk, queue_file_entries=300)
    assert [decode(view).body for view in again.read("old", 0, 100).records] == [b"new"]


@pytest.mark.parametrize("entry", [0, 10, 49, 50, 62, 75, 98])
@pytest.mark.parametrize("clean", [True, False])
def test_damage_in_a_queue_does_not_give_out_offsets_again(entry: int, clean: bool) -> None:
    disk = SimDisk()
    store = store_whose_old_topic_is_gone(disk)
    if clean:
        store.close()
    disk = disk.kill()
    path = next(path for path in disk.files() if path.parts[-3:-1] == ("old", "0"))
    damaged = bytearray(disk.files()[path])
    damaged[entry * 20 + 8] ^= 0x80  # the sign of the size
    disk.plant(path, bytes(damaged))
    again = open_store(disk, queue_file_entries=300)
    assert again.append([order("new", topic="old")])[0].queue_offset == 100


def test_an_entry_that_ends_in_a_hole_is_an_entry(tmp_path: Path) -> None:
    """A copy with holes: the last bytes of an entry are zeroes, and no block holds them."""
    settings = StoreConfig(root=tmp_path, segment_bytes=1 << 20, index_enabled=False)
    with MessageStore(settings) as store:
        store.append([Draft(b"orders", 0, b"no tag") for _ in range(205)])  # 4100 bytes of entries
    (path,) = (tmp_path / "consumequeue" / "orders" / "0").iterdir()
    content = path.read_bytes()
    with path.open("wb") as file:
        file.write(content[:4096])
        file.truncate(len(content))
    with MessageStore(settings) as store:
        assert store.max_offset("orders", 0) == 205
