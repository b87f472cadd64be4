"""A restored store is the one that was saved: same log, same tables, every message served; or as it was at a moment."""

from __future__ import annotations

import resource
import shutil
from pathlib import Path

import pytest

from backup.memory_target import MemoryTarget, PowerCut
from pyromq import ConsumeFrom, Message, sync, testing
from pyromq.backup import restoring
from pyromq.backup.making import back_up
from pyromq.backup.planning import Until
from pyromq.backup.restoring import restore
from pyromq.backup.target import LocalTarget
from pyromq.errors import BackupError, CorruptBackup, CorruptLog, StoreLocked
from pyromq.files.disk import OsDisk
from pyromq.records import layout
from pyromq.records.record import decode
from pyromq.store.message_store import MessageStore
from pyromq.store.offline.readable_log import readable_log
from pyromq.store.offline.verify import verify
from store.small_store import MESSAGES, fill, open_store, small_config


@pytest.fixture
def target(root: Path) -> MemoryTarget:
    """Two runs: the last segment is made of two chunks."""
    made = MemoryTarget()
    back_up(root, made)
    store = open_store(root)
    fill(store, 60)
    store.close()
    back_up(root, made)
    return made


def queue_files(root: Path) -> dict[str, bytes]:
    files = [path for path in (root / "consumequeue").rglob("*") if path.is_file()]
    return {str(path.relative_to(root)): path.read_bytes() for path in files}


def served(root: Path) -> list[int]:
    """The positions of all messages in the queues, after a start and a clean stop."""
    with MessageStore(small_config(root)) as store:
        found: list[int] = []
        for queue in store.queues:
            offset = queue.min_offset
            while (result := store.read(queue.id.topic, queue.id.number, offset)).records:
                found += [decode(each).position for each in result.records]
                offset = result.next_offset
    assert verify(root, config=small_config(root)).findings == []
    return sorted(found)


def test_the_log_and_the_tables_are_what_they_were(root: Path, target: MemoryTarget, tmp_path: Path) -> None:
    report = restore(target, tmp_path / "restored")
    assert (report.records, report.end) == (MESSAGES + 60, readable_log(root).end)
    for path in (*(root / "commitlog").iterdir(), root / "config" / "topics.json"):
        assert (tmp_path / "restored" / path.relative_to(root)).read_bytes() == path.read_bytes()
    assert "Start a broker" in report.sentences()[1]


def test_a_start_makes_the_same_queues(root: Path, target: MemoryTarget, tmp_path: Path) -> None:
    restore(target, tmp_path / "restored")
    assert served(tmp_path / "restored") == served(root)
    assert queue_files(tmp_path / "restored") == queue_files(root)


def test_a_log_that_begins_in_the_middle(root: Path, tmp_path: Path) -> None:
    min((root / "commitlog").iterdir()).unlink()
    target = MemoryTarget()
    made = back_up(root, target).manifest
    assert made.start > 0
    restore(target, tmp_path / "restored")
    assert served(tmp_path / "restored") == [each for each in served(root) if each >= made.start]


def test_an_empty_store(tmp_path: Path) -> None:
    open_store(tmp_path / "store").close()
    target = MemoryTarget()
    back_up(tmp_path / "store", target)
    report = restore(target, tmp_path / "restored")
    assert report.records == 0
    assert served(tmp_path / "restored") == []


def all_records(root: Path) -> list[tuple[int, int, int]]:
    """Position, end and store time of every record."""
    with MessageStore(small_config(root)) as store:
        found, at = [], store.log.start
        while at < store.log.end:
            segment = store.log.files.find(at)
            assert segment is not None
            if layout.BLANK.unpack_from(segment.buffer, at - segment.base)[1] == layout.MAGIC_BLANK:
                at = segment.end
                continue
            one = decode(segment.buffer, at - segment.base)
            found.append((one.position, one.position + one.size, one.store_timestamp_ms))
            at += one.size
    return found


@pytest.mark.parametrize("which", [0, 37, 150, 299, 300, 358, 359])
def test_up_to_a_time_and_up_to_a_position(root: Path, target: MemoryTarget, tmp_path: Path, which: int) -> None:
    records = all_records(root)
    _, end, at_ms = records[which]
    kept = [each for each in records if each[2] <= at_ms]
    by_time = restore(target, tmp_path / "by-time", until=Until(time_ms=at_ms))
    assert (by_time.records, by_time.end) == (len(kept), kept[-1][1])
    assert all_records(tmp_path / "by-time") == kept
    by_position = restore(target, tmp_path / "by-position", until=Until(position=end + 3))
    assert (by_position.records, by_position.end) == (which + 1, end)
    assert all_records(tmp_path / "by-position") == records[: which + 1]
    assert verify(tmp_path / "by-position", config=small_config(tmp_path / "by-position")).findings == []


def test_a_moment_before_everything_is_refused(target: MemoryTarget, tmp_path: Path) -> None:
    with pytest.raises(BackupError, match="nothing would be left"):
        restore(target, tmp_path / "restored", until=Until(time_ms=1))
    assert not (tmp_path / "restored").exists()


def test_the_tables_are_those_nearest_to_the_moment(root: Path, tmp_path: Path) -> None:
    target = MemoryTarget()
    for number in range(3):
        (root / "config" / "extra.json").write_text(f'{{"run": {number}}}')
        back_up(root, target)
        store = open_store(root)
        fill(store, 20)
        store.close()
    middle = restoring.wanted(target, 2)
    restore(target, tmp_path / "restored", until=Until(position=middle.end - 10))
    assert (tmp_path / "restored" / "config" / "extra.json").read_text() == '{"run": 1}'


def test_a_directory_with_something_in_it_is_refused(target: MemoryTarget, tmp_path: Path) -> None:
    (tmp_path / "restored").mkdir()
    (tmp_path / "restored" / "mine").write_text("x")
    with pytest.raises(BackupError, match="not empty"):
        restore(target, tmp_path / "restored")
    (tmp_path / "restored" / "mine").unlink()
    (tmp_path / "restored" / "lost+found").mkdir()
    assert restore(target, tmp_path / "restored").records == MESSAGES + 60
    with pytest.raises(BackupError, match="not empty"):
        restore(target, tmp_path / "restored")
    with pytest.raises(BackupError, match="is a file"):
        restore(target, tmp_path / "restored" / "abort")


def test_what_is_damaged_is_not_restored(target: MemoryTarget, tmp_path: Path) -> None:
    name = next(name for name in sorted(target.files) if name.startswith("log/"))
    data = bytearray(target.files[name])
    data[200] ^= 1
    target.files[name] = bytes(data)
    with pytest.raises(CorruptBackup, match="checksum"):
        restore(target, tmp_path / "restored")
    del target.files[name]
    with pytest.raises(CorruptBackup, match="missing"):
        restore(target, tmp_path / "restored")


def test_a_restore_that_was_stopped_is_begun_again(
    target: MemoryTarget, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Stopped before each of its moves: our store refuses the directory, and the next restore makes it whole."""
    directory, moved = tmp_path / "restored", 0
    real = OsDisk.move_tree

    def stop_at(limit: int) -> None:
        def move(self: OsDisk, path: Path, place: Path) -> None:
            nonlocal moved
            if moved == limit:
                raise PowerCut
            moved += 1
            real(self, path, place)

        monkeypatch.setattr(OsDisk, "move_tree", move)

    for limit in range(1, 5):
        moved = 0
        stop_at(limit)
        with pytest.raises(PowerCut):
            restore(target, directory)
        copy = Path(shutil.copytree(directory, tmp_path / f"left-{limit}"))
        with pytest.raises(CorruptLog):
            MessageStore(small_config(copy)).open()
    monkeypatch.undo()
    assert restore(target, directory).records == MESSAGES + 60
    assert not (directory / restoring.RESTORING).exists()


def test_a_disk_that_is_full_is_told_and_the_next_restore_begins_anew(target: MemoryTarget, tmp_path: Path) -> None:
    place = tmp_path / "restored"
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, limits[1]))
    try:
        with pytest.raises(BackupError, match=r"cannot be made, with 32768 bytes: File too large\. Nothing"):
            restore(target, place)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert not (place / "commitlog").exists()
    assert restore(target, place).records == MESSAGES + 60


def test_two_restores_to_one_directory_at_once_are_told(target: MemoryTarget, tmp_path: Path) -> None:
    plan = restoring.begin(target, tmp_path / "restored")
    with restoring.claimed(plan):
        with pytest.raises(StoreLocked):
            restore(target, tmp_path / "restored")
        assert restoring.log_of(plan).is_dir()


def test_a_place_that_cannot_be_made(target: MemoryTarget, tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(BackupError, match="cannot be made: Not a directory"):
        restore(target, tmp_path / "file" / "store")


def test_damage_after_the_restore_is_no_torn_tail(target: MemoryTarget, tmp_path: Path) -> None:
    restore(target, tmp_path / "restored")
    path = max((tmp_path / "restored" / "commitlog").iterdir())
    data = bytearray(path.read_bytes())
    data[300] ^= 1
    path.write_bytes(data)
    with pytest.raises(CorruptLog):
        MessageStore(small_config(tmp_path / "restored")).open()


def receive(name_servers: str, topic: str, count: int) -> list[bytes]:
    with sync.PullConsumer(name_servers, group="readers", consume_from=ConsumeFrom.FIRST) as consumer:
        consumer.assign(consumer.queues(topic))
        found: list[bytes] = []
        while len(found) < count and (some := consumer.poll(timeout_s=10)):
            found += [one.body for one in some]
    return found


def test_a_broker_serves_what_was_saved_of_another(tmp_path: Path) -> None:
    """Saved while it runs and after it stopped; a broker on the restored store has it all, and continues."""
    place = LocalTarget(tmp_path / "backup")
    with testing.broker(data_dir=tmp_path / "first", topics={"orders": 2}) as mq:
        store = next((tmp_path / "first").rglob("lock")).parent
        with sync.Producer(mq.name_servers, group="makers") as producer:
            for number in range(40):
                producer.send(Message("orders", b"%d" % number))
            assert back_up(store, place).live
            for number in range(40, 50):
                producer.send(Message("orders", b"%d" % number))
    back_up(store, place)
    restore(place, tmp_path / "second" / store.relative_to(tmp_path / "first"))
    with testing.broker(data_dir=tmp_path / "second", auto_create_topics=False) as mq:
        with sync.Producer(mq.name_servers, group="makers") as producer:
            producer.send(Message("orders", b"50"))
        assert sorted(map(int, receive(mq.name_servers, "orders", 51))) == list(range(51))
