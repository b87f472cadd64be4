"""The known producers over restarts, kills and power cuts: in the file, and after its position in the log."""

from __future__ import annotations

import asyncio
import random
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from broker.support.fakes import Parts
from broker.support.numbered_scene import WRITER, Scene, numbers, writer_named
from pyromq.broker.idempotence import keeper as sequence_keeper
from pyromq.broker.idempotence.producer_file import FILE, Snapshot, WritersFile, snapshot_from_json, snapshot_to_json
from pyromq.broker.idempotence.sequences import BatchEnd, Newest, Stream
from pyromq.clock import ManualClock
from pyromq.config import FlushConfig, IdempotenceConfig
from pyromq.errors import NotNow, RepeatNotFound, WrongShape
from pyromq.model.message import Draft
from pyromq.model.topic import TopicConfig
from pyromq.testing.sim.crash_choice import CrashMode


def path_of(scene: Scene) -> Path:
    return scene.parts.store.paths.config / FILE


def file_of(scene: Scene) -> Snapshot | None:
    return WritersFile(scene.parts.disk, scene.parts.store.paths.config).load()


# --- the file --------------------------------------------------------------------------------------------------------


def test_the_file_holds_what_it_was_given() -> None:
    stream = Stream(b"orders", 3, "größe/0".encode())
    snapshot = Snapshot(4096, [(stream, Newest(5, 299, 1_700_000_000_000, 4000, (BatchEnd(4, 7, 2000),)))])
    assert snapshot_from_json(snapshot_to_json(snapshot)) == snapshot


@pytest.mark.parametrize(
    "form",
    [
        {},
        {"position": -1, "writers": []},
        {"position": 1},
        {"position": 1, "writers": [["orders", 0, "w", 1, 2, 3]]},
        {"position": 1, "writers": [["orders", 0, "w", 1, []]]},
        {"position": 1, "writers": [["orders", 0, "w", 1, [[1, 2]]]]},
        {"position": 1, "writers": [["orders", 0, "w", 1, [[1, -2, 3]]]]},
        {"position": 1, "writers": [["orders", 0, "w", 1, [[True, 2, 3]]]]},
    ],
)
def test_a_file_of_another_shape_is_damaged(form: dict[str, Any]) -> None:
    with pytest.raises(WrongShape):
        snapshot_from_json(form)


def test_a_broker_without_numbered_messages_has_no_file_and_looks_at_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    scene = Scene()
    scene.parts.store.append([Draft(b"orders", 0, b"tea", b"PYROMQ_WRITER\x01w\x02PYROMQ_SEQUENCE\x010:0\x02")])
    monkeypatch.setattr(sequence_keeper, "numbered_records", lambda *_: pytest.fail("it looks at the log"))
    scene = scene.restarted()
    assert file_of(scene) is None
    assert len(scene.parts.writers.sequences) == 0


def test_the_file_is_there_before_the_first_message_is(monkeypatch: pytest.MonkeyPatch) -> None:
    scene = Scene()
    ends: list[int] = []
    write = WritersFile.save

    def save(file: WritersFile, snapshot: Snapshot) -> None:
        ends.append(scene.parts.store.marks.appended.value)
        write(file, snapshot)

    monkeypatch.setattr(WritersFile, "save", save)
    scene.send(0, 0)
    assert ends == [0]
    assert file_of(scene) == Snapshot(0, [])


def test_after_a_clean_stop_nothing_is_read_again(monkeypatch: pytest.MonkeyPatch) -> None:
    scene = Scene()
    scene.send(0, 0, 5)
    read: list[tuple[int, int]] = []
    monkeypatch.setattr(sequence_keeper, "numbered_records", lambda _, *span: read.append(span) or ())
    scene = scene.restarted()
    assert [start == end for start, end in read] == [True]
    assert scene.send(0, 3, 4).more["repeated"] == "2"


def test_the_file_speaks_only_of_what_is_on_the_disk() -> None:
    scene = Scene()
    scene.send(0, 0, 5)
    assert scene.parts.store.marks.synced.value < scene.parts.store.marks.appended.value
    asyncio.run(scene.parts.writers.save())
    saved = file_of(scene)
    assert saved is not None
    assert saved.position == scene.parts.store.marks.synced.value
    assert [(newest.batch, newest.number) for _, newest in saved.entries] == [(0, 4)]


# --- the log ---------------------------------------------------------------------------------------------------------


def test_a_kill_takes_nothing_from_what_is_known() -> None:
    scene = Scene()
    for first in range(0, 40, 4):
        scene.send(0, first, 4)
        scene.send(1, first, 4, queue=1)
    scene = scene.killed()
    assert scene.send(0, 0, 42).more["repeated"] == "40"
    assert scene.send(1, 39, 2, queue=1).more["repeated"] == "1"
    assert (scene.stored(), scene.stored(1)) == (numbers(0, 0, 42), numbers(1, 0, 41))


def test_numbers_are_found_in_all_segments_among_other_messages() -> None:
    scene = Scene(store={"segment_bytes": 64 * 1024})
    other = Draft(b"orders", 1, b"PYROMQ_WRITER\x01 in a body " * 20, b"TAGS\x01red\x02")
    for first in range(0, 300, 3):
        scene.send(7, first, 3)
        scene.parts.store.append([other] * 3)
    assert len(scene.parts.store.log.files.segments) > 3
    scene = scene.killed()
    (entry,) = scene.parts.writers.sequences.entries()
    assert entry[1][:2] == (7, 299)


def test_a_log_that_was_cut_below_the_file_is_read_from_its_start(caplog: pytest.LogCaptureFixture) -> None:
    scene = Scene()
    scene.send(0, 0, 5)
    saved = file_of(scene)
    assert saved is not None
    late = Snapshot(10**6, [(Stream(b"orders", 0, WRITER.encode()), Newest(9, 9, 0, 10**6))])
    WritersFile(scene.parts.disk, scene.parts.store.paths.config).save(late)
    scene = scene.killed()
    assert "the log was cut" in caplog.text
    assert scene.send(0, 0, 6).more["repeated"] == "5"
    repaired = file_of(scene)
    assert repaired is not None
    assert repaired.position < 10**6, "before anything is stored the file says the truth again"


def test_a_damaged_file_is_made_good_from_the_log(caplog: pytest.LogCaptureFixture) -> None:
    scene = Scene()
    scene.send(0, 0, 5)
    for path in (path_of(scene), path_of(scene).with_name(FILE + ".bak")):
        scene.parts.disk.plant(path, b'{"position": 12, "wri')
    scene = scene.killed()
    assert "read from the whole log" in caplog.text
    assert scene.send(0, 0, 6).more["repeated"] == "5"
    assert file_of(scene) is not None


def test_a_repeat_that_retention_took_from_the_log_is_an_error_and_never_acknowledged() -> None:
    scene = Scene(store={"segment_bytes": 64 * 1024})
    scene.send(0, 0, 5)
    asyncio.run(scene.parts.writers.save())
    while len(scene.parts.store.log.files.segments) < 4:
        scene.parts.store.append([Draft(b"orders", 1, b"tea" * 1000)])
    scene.parts.store.flush()
    scene.parts.store.log.files.remove_first()
    scene.parts.store.log.files.remove_first()
    scene.parts.store.save_recover_point()
    scene = scene.killed()
    for first, count in ((0, 5), (0, 6), (4, 2)):
        with pytest.raises(RepeatNotFound, match=r"batch 0 .* is not in the log any more"):
            scene.send(0, first, count)
    assert scene.send(0, 5).code == 0, "the next one is no repeat"
    assert scene.send(1, 0).code == 0


def test_writers_that_rested_too_long_are_not_known_after_a_restart() -> None:
    clock = ManualClock()
    scene = Scene(idempotence=IdempotenceConfig(retention_hours=2), clock=clock)
    scene.send(0, 0, 5)
    clock.advance(3600)
    scene.send(0, 0, name="another")
    clock.advance(3601)
    scene = scene.restarted()
    assert [stream.writer for stream, _ in scene.parts.writers.sequences.entries()] == [
        writer_named("another").encode()
    ]


# --- topics that go --------------------------------------------------------------------------------------------------


def test_a_removed_topic_does_not_come_back_with_its_numbers() -> None:
    scene = Scene()
    scene.send(3, 0, 5)

    async def remove() -> None:
        keeper = scene.parts.writers
        await scene.parts.store.remove_topic("orders", lambda: keeper.forget_topic("orders") or True)
        await keeper.settled()

    asyncio.run(remove())
    assert "repeated" not in scene.send(0, 0, 2).more, "it is another topic of that name"
    scene = scene.killed()
    assert scene.send(0, 0, 2).more["repeated"] == "2"
    assert scene.stored() == ["0:0", "0:1"]


def test_that_numbers_were_forgotten_is_tried_again_when_the_disk_is_full(monkeypatch: pytest.MonkeyPatch) -> None:
    scene = Scene()
    scene.send(3, 0, 5)
    keeper = scene.parts.writers
    keeper.forget_topic("orders")

    def full(snapshot: Snapshot) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(keeper._file, "save", full)
        with pytest.raises(NotNow, match="cannot be written"):
            asyncio.run(keeper.settled())
        asyncio.run(keeper.save())  # the background save only logs it
    asyncio.run(keeper.settled())
    saved = file_of(scene)
    assert saved is not None
    assert saved.entries == []


# --- in the background -----------------------------------------------------------------------------------------------


def test_the_file_follows_the_log(monkeypatch: pytest.MonkeyPatch) -> None:
    scene = Scene()
    keeper, clock = scene.parts.writers, scene.parts.clock
    assert isinstance(clock, ManualClock)
    scene.send(0, 0, 5)
    assert not keeper._is_due
    monkeypatch.setattr(sequence_keeper, "FOLLOW_BYTES", 1000)
    assert keeper._is_due, "the log has grown"
    asyncio.run(keeper.save())
    assert not keeper._is_due
    scene.send(0, 5)
    clock.advance(sequence_keeper.FOLLOW_SECONDS)
    assert keeper._is_due, "it is time"


def test_it_looks_from_time_to_time(monkeypatch: pytest.MonkeyPatch) -> None:
    scene = Scene()
    scene.send(0, 0, 5)
    keeper = scene.parts.writers
    monkeypatch.setattr(sequence_keeper, "FOLLOW_BYTES", 1)
    monkeypatch.setattr(sequence_keeper, "LOOK_SECONDS", 0.001)
    written = asyncio.Event()
    write = keeper._write

    async def noticed(snapshot: Snapshot) -> None:
        await write(snapshot)
        written.set()

    monkeypatch.setattr(keeper, "_write", noticed)

    async def story() -> None:
        task = asyncio.ensure_future(keeper.run())
        async with asyncio.timeout(20):
            await written.wait()
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    asyncio.run(story())
    saved = file_of(scene)
    assert saved is not None
    assert saved.position == scene.parts.store.marks.appended.value


# --- in any order ----------------------------------------------------------------------------------------------------


class NumberedMachine(RuleBasedStateMachine):
    """A writer that does not hear answers, and a broker that ends in every way, on a real store."""

    @initialize(sync=st.booleans())
    def begin(self, sync: bool) -> None:
        self.sync = sync
        self.scene = Scene(store={"flush": FlushConfig(sync=sync)})
        self.acknowledged: dict[int, set[str]] = {0: set(), 1: set()}
        self.batch = 0
        #: The writer's progress in its batch, by queue.
        self.next = [0, 0]

    @rule(queue=st.integers(0, 1), back=st.integers(0, 6), count=st.integers(1, 8), heard=st.booleans())
    def send(self, queue: int, back: int, count: int, heard: bool) -> None:
        """Send from the writer's progress, or from further back; it advances only after a success."""
        first = max(self.next[queue] - back, 0)
        answer = self.scene.send(self.batch, first, count, queue=queue)
        sent = numbers(self.batch, first, count)
        if answer.code != 0:
            assert answer.code == 13
            batch, _, index = answer.more["expected"].partition(":")
            assert int(batch) == self.batch
            assert int(index) < first, "it is told to go back"
            self.next[queue] = int(index)
            return
        assert set(sent) <= set(self.scene.stored(queue)), "what is acknowledged is stored"
        self.acknowledged[queue] |= set(sent)
        if heard:
            self.next[queue] = first + count

    @rule(queue=st.integers(0, 1), ahead=st.integers(1, 3))
    def send_too_far(self, queue: int, ahead: int) -> None:
        known = [int(one.partition(":")[2]) for one in self.scene.stored(queue) if one.startswith(f"{self.batch}:")]
        answer = self.scene.send(self.batch, len(known) + ahead, 2, queue=queue)
        assert answer.more["expected"] == f"{self.batch}:{len(known)}"

    @rule()
    def next_batch(self) -> None:
        self.batch += 1
        self.next = [0, 0]

    @rule()
    def another_message(self) -> None:
        self.scene.parts.store.append([Draft(b"orders", 2, b"tea" * 100)])

    @rule()
    def sync_log(self) -> None:
        self.scene.parts.store.flush()

    @rule()
    def save(self) -> None:
        asyncio.run(self.scene.parts.writers.save())

    @rule()
    def restart(self) -> None:
        self.scene = self.scene.restarted()

    @rule()
    def kill(self) -> None:
        self.scene = self.scene.killed()

    @rule(seed=st.integers(0, 2**16), mode=st.sampled_from([None, CrashMode.ALL_LOST]))
    def cut_power(self, seed: int, mode: CrashMode | None) -> None:
        parts = self.scene.parts
        disk = parts.disk.crash(random.Random(seed), mode)
        self.scene = Scene(Parts(disk, parts.clock, **parts._arguments))
        if not self.sync:  # no more was promised: what is lost is not known either, and may be sent again
            for queue, acknowledged in self.acknowledged.items():
                acknowledged &= set(self.scene.stored(queue))

    @invariant()
    def each_message_is_there_once_and_in_order(self) -> None:
        for queue, acknowledged in self.acknowledged.items():
            found = [tuple(map(int, one.split(":"))) for one in self.scene.stored(queue)]
            assert found == sorted(set(found))
            assert acknowledged <= set(self.scene.stored(queue))

    def teardown(self) -> None:
        if hasattr(self, "scene"):
            self.scene.parts.close()


TestNumberedMachine = NumberedMachine.TestCase
TestNumberedMachine.settings = settings(max_examples=40, stateful_step_count=30, deadline=None)


# --- a copy ----------------------------------------------------------------------------------------------------------


def copied(master: Scene, slave: Parts) -> None:
    """The slave's log becomes its master's."""
    store = master.parts.store
    store.close_batch()
    start, end = slave.store.log.end, store.log.end
    slave.store.append_copy(store.log_range(start, end - start), 1, 1)


def test_a_slave_that_takes_over_knows_what_writers_sent_to_its_master() -> None:
    master = Scene()
    slave = Parts(role="SLAVE", broker_id=1)
    slave.store.follow()
    asyncio.run(slave.writers._follow_copy())
    master.send(0, 0, 5)
    copied(master, slave)
    asyncio.run(slave.writers._follow_copy())
    asyncio.run(slave.writers.save())
    master.send(0, 5, 5)
    copied(master, slave)  # this it has not looked at when it is killed
    promoted = Scene(slave.killed(role="ASYNC_MASTER", broker_id=0))
    promoted.parts.topics.make(TopicConfig("orders", 4, 4))
    assert promoted.send(0, 3, 8).more["repeated"] == "7"
    assert promoted.stored() == numbers(0, 0, 11)


def test_a_master_that_becomes_a_slave_goes_on_with_what_it_knows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sequence_keeper, "PIECE_BYTES", 100)
    other = Scene()
    other.send(0, 0, 5)
    slave = other.killed().parts.killed(role="SLAVE", broker_id=1)
    slave.store.follow()
    other = Scene(slave.killed(role="ASYNC_MASTER", broker_id=0))
    for first in range(5, 50, 5):
        other.send(0, first, 5)
        copied(other, slave)
    asyncio.run(slave.writers._follow_copy())
    (entry,) = slave.writers.sequences.entries()
    assert entry[1][:2] == (0, 49)
