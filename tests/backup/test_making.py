"""A backup continues after the last run, holds only verified data, and is whole when a run is stopped anywhere."""

from __future__ import annotations

import errno
import os
import resource
import shutil
from collections.abc import Iterable
from pathlib import Path

import pytest

from backup.memory_target import MemoryTarget, PowerCut
from pyromq.backup.checking import check
from pyromq.backup.history import newest, numbers, wanted
from pyromq.backup.making import back_up, prepare, publish
from pyromq.backup.pieces import copy_stretch
from pyromq.backup.restoring import restore
from pyromq.backup.target import LocalTarget, Part
from pyromq.clock import ManualClock
from pyromq.errors import BackupError, CorruptFile, CorruptLog
from pyromq.store.message_store import MessageStore
from pyromq.store.offline.readable_log import readable_log
from store.small_store import MESSAGES, fill, open_store, small_config


def grow(root: Path, count: int = 40) -> None:
    store = open_store(root)
    fill(store, count)
    store.close()


def log_bytes(root: Path, start: int, end: int) -> bytes:
    files = sorted((root / "commitlog").iterdir())
    return b"".join(file.read_bytes() for file in files)[start - int(files[0].name) : end - int(files[0].name)]


def segments(root: Path) -> list[Path]:
    return sorted((root / "commitlog").iterdir())


def test_the_first_run_saves_the_whole_log_and_the_tables(root: Path) -> None:
    target = MemoryTarget()
    report = back_up(root, target, name="broker-a")
    made = report.manifest
    assert (made.number, made.previous, made.series) == (1, 0, 1)
    assert (made.start, made.end, made.records) == (0, readable_log(root).end, MESSAGES)
    assert made.source.name == "broker-a"
    assert [saved.name for saved in made.files] == ["config/topics.json"]
    assert check(target).ok
    assert "300 messages" in report.sentences()[0]


def test_chunks_are_the_bytes_of_the_log(root: Path) -> None:
    target = MemoryTarget()
    for chunk in back_up(root, target).manifest.chunks:
        assert target.files[chunk.file] == log_bytes(root, chunk.start, chunk.written_end)
        assert not any(log_bytes(root, chunk.written_end, chunk.end))


def test_the_next_run_adds_only_what_is_new(root: Path) -> None:
    target = MemoryTarget()
    first = back_up(root, target).manifest
    before = dict(target.files)
    grow(root)
    report = back_up(root, target)
    assert report.records == 40
    assert report.manifest.chunks[: len(first.chunks)] == first.chunks
    assert {name: target.files[name] for name in before} == before
    assert numbers(target) == [1, 2]
    assert check(target).ok
    assert check(target, number=1).ok


def test_nothing_new_is_no_new_manifest(root: Path) -> None:
    target = MemoryTarget()
    back_up(root, target)
    report = back_up(root, target)
    assert report.unchanged
    assert numbers(target) == [1]
    assert "Nothing has changed" in report.sentences()[0]


def test_a_changed_table_alone_is_saved(root: Path) -> None:
    target = MemoryTarget()
    back_up(root, target)
    (root / "config" / "extra.json").write_text('{"a": 1}')
    report = back_up(root, target)
    assert (report.records, report.manifest.number) == (0, 2)
    assert [saved.name for saved in report.manifest.files] == ["config/extra.json", "config/topics.json"]


def test_a_damaged_table_is_saved_as_its_previous_copy(root: Path) -> None:
    good = (root / "config" / "topics.json.bak").read_bytes()
    (root / "config" / "topics.json").write_bytes(b"{torn")
    target = MemoryTarget()
    [saved] = back_up(root, target).manifest.files
    assert target.files[saved.file] == good
    (root / "config" / "topics.json.bak").write_bytes(b"{torn")
    with pytest.raises(CorruptFile):
        back_up(root, target)


def test_a_store_in_use_is_saved_up_to_what_is_durable(root: Path) -> None:
    store = open_store(root)
    store.save_recover_point()
    durable = store.marks.synced.value
    fill(store, 20)
    target = MemoryTarget()
    report = back_up(root, target)
    assert report.live
    assert report.manifest.end == durable
    assert "in use" in report.sentences()[-1]
    store.flush()
    store.save_recover_point()
    assert back_up(root, target).records == 20
    store.close()


def test_damage_stops_the_run_with_file_and_position(root: Path) -> None:
    target = MemoryTarget()
    back_up(root, target)
    grow(root, 300)
    path = segments(root)[-1]
    data = bytearray(path.read_bytes())
    data[500] ^= 1
    path.write_bytes(data)
    with pytest.raises(CorruptLog) as damage:
        back_up(root, target)
    assert damage.value.file == path
    assert int(path.name) <= damage.value.position <= int(path.name) + 500
    assert numbers(target) == [1]
    assert check(target).ok


def test_retention_in_the_store_does_not_shrink_the_backup(root: Path) -> None:
    target = MemoryTarget()
    first = back_up(root, target).manifest
    segments(root)[0].unlink()
    grow(root)
    made = back_up(root, target).manifest
    assert made.start == first.start == 0
    assert check(target).ok


def test_a_log_that_was_cut_is_refused(root: Path) -> None:
    target = MemoryTarget()
    grow(root)
    back_up(root, target)
    shutil.rmtree(root)
    grow(root, 100)
    with pytest.raises(BackupError, match="it was cut, or it is another store"):
        back_up(root, target)


def test_another_store_is_refused_until_somebody_wants_a_new_series(root: Path, tmp_path: Path) -> None:
    target = MemoryTarget()
    old = back_up(root, target).manifest
    other = tmp_path / "other"
    store = open_store(other, clock=ManualClock(1_600_000_000_000))
    fill(store, 350)
    store.close()
    with pytest.raises(BackupError, match="are not those in the backup"):
        back_up(other, target)
    report = back_up(other, target, new_series=True)
    assert (report.manifest.series, report.manifest.start, report.records) == (2, 0, 350)
    assert check(target).ok
    assert check(target, number=old.number).ok
    restore(target, tmp_path / "restored", number=old.number)
    assert log_bytes(tmp_path / "restored", 0, old.end) == log_bytes(root, 0, old.end)


def test_a_log_that_has_lost_what_was_not_saved_is_refused(root: Path) -> None:
    target = MemoryTarget()
    step = prepare(root, target)
    assert len(step.stretches) == 3
    back_up(root, target)
    grow(root, 300)
    for path in segments(root)[:3]:
        path.unlink()
    with pytest.raises(BackupError, match="removed too soon"):
        back_up(root, target)


def test_files_of_another_length_are_refused(root: Path, tmp_path: Path) -> None:
    target = MemoryTarget()
    back_up(root, target)
    config = small_config(tmp_path / "other")
    with MessageStore(type(config)(root=config.root, segment_bytes=65536)) as store:
        fill(store, 10)
    with pytest.raises(BackupError, match="65536 bytes"):
        back_up(tmp_path / "other", target)


def test_two_runs_at_once_are_told(root: Path) -> None:
    target = MemoryTarget()

    class Second(MemoryTarget):
        def names(self, directory: str) -> list[str]:
            return [] if directory == "manifests" else super().names(directory)

    back_up(root, target)
    with pytest.raises(BackupError, match="one at a time"):
        back_up(root, Second(target.files))


def test_a_run_that_is_stopped_anywhere_leaves_a_whole_backup(root: Path, tmp_path: Path) -> None:
    """The power fails before every step of a second run; a third run continues as if nothing had happened."""
    target = MemoryTarget()
    first = back_up(root, target).manifest
    grow(root, 200)
    (root / "config" / "extra.json").write_text("{}")
    saved = dict(target.files)
    counted = MemoryTarget(dict(saved))
    wanted = back_up(root, counted).manifest
    assert counted.steps > 3
    for steps in range(counted.steps):
        cut = MemoryTarget(dict(saved), cut_after=steps)
        with pytest.raises(PowerCut):
            back_up(root, cut, threads=1)
        left = MemoryTarget(cut.files)
        assert newest(left) == first
        assert check(left).ok
        again = back_up(root, left).manifest
        assert (again.chunks, again.files) == (wanted.chunks, wanted.files)
        assert check(left).ok


def test_a_run_after_every_few_messages(root: Path, tmp_path: Path) -> None:
    """Chunks as short as a message, or as the blank that ends a segment."""
    target = MemoryTarget()
    other = tmp_path / "other"
    for _ in range(60):
        grow(other, 5)
        back_up(other, target)
    made = wanted(target)
    assert any(chunk.records == 0 for chunk in made.chunks) or len(made.chunks) >= 60
    assert made.records == 300
    assert check(target).ok
    restore(target, tmp_path / "restored")
    assert log_bytes(tmp_path / "restored", 0, made.end) == log_bytes(other, 0, made.end)


def test_a_file_that_is_gone_says_why(root: Path) -> None:
    target = MemoryTarget()
    step = prepare(root, target)
    step.stretches[0].path.unlink()
    with pytest.raises(BackupError, match="retention"):
        copy_stretch(step.stretches[0], target, 1)


def test_a_directory_has_nothing_unfinished_and_refuses_a_taken_name(root: Path, tmp_path: Path) -> None:
    target = LocalTarget(tmp_path / "backup")
    back_up(root, target)
    assert not [path for path in (tmp_path / "backup").rglob("*") if path.name.endswith(".unfinished")]
    with pytest.raises(FileExistsError):
        target.create("manifests/00000001.json", b"")

    def parts() -> object:
        yield b"half"
        raise PowerCut

    with pytest.raises(PowerCut):
        target.write("log/0001/x", parts())  # type: ignore[arg-type]
    assert "x" not in target.names("log/0001")
    assert check(target).ok


# --- places that are not what they seem ------------------------------------------------------------------------------


def test_two_stores_at_once_do_not_write_over_each_other(root: Path, tmp_path: Path) -> None:
    """Their segments have the same positions and lengths. One of the two is refused, the other's backup is whole."""
    store = open_store(tmp_path / "other", clock=ManualClock(1_800_000_000_000))
    fill(store)
    store.close()
    target = LocalTarget(tmp_path / "backup")
    ours, theirs = prepare(root, target), prepare(tmp_path / "other", target)
    chunks = [copy_stretch(each, target, ours.base.series) for each in ours.stretches]
    others = [copy_stretch(each, target, theirs.base.series) for each in theirs.stretches]
    publish(ours, target, chunks)
    with pytest.raises(BackupError, match="has just ended"):
        publish(theirs, target, others)
    assert check(target).ok


def test_a_backup_of_a_store_is_not_in_the_store(root: Path, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(root)
    for place in (root, root / "backup", tmp_path / "link" / "backup"):
        with pytest.raises(BackupError, match="would be lost with it"):
            back_up(root, LocalTarget(place))
    assert not (root / "manifests").exists()
    assert back_up(tmp_path / "link", LocalTarget(tmp_path / "backup")).records == MESSAGES, "the store may be a link"


def test_a_file_where_the_backup_must_be(root: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(BackupError, match="is a file, and a backup is a directory"):
        back_up(root, LocalTarget(tmp_path / "file"))


class FullTarget(MemoryTarget):
    """Accepts this many bytes and no more."""

    def __init__(self, room: int) -> None:
        super().__init__()
        self.room = room

    def write(self, name: str, parts: Iterable[Part]) -> None:
        data = b"".join(map(bytes, parts))
        self.room -= len(data)
        if self.room < 0:
            raise OSError(errno.ENOSPC, "No space left on device")
        super().write(name, [data])


@pytest.mark.parametrize("room", [0, 1000, 40_000, 77_000])
def test_a_disk_that_fills_anywhere_is_told_and_nothing_is_added(root: Path, room: int) -> None:
    target = FullTarget(room)
    with pytest.raises(BackupError, match=r"^memory:.* cannot be written: No space left on device. Nothing of this"):
        back_up(root, target)
    assert newest(target) is None
    target.room = 1 << 30
    assert back_up(root, target).records == MESSAGES
    assert check(target).ok


def test_a_file_that_would_be_too_long_leaves_nothing_by_its_name(root: Path, tmp_path: Path) -> None:
    target = LocalTarget(tmp_path / "backup")
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, limits[1]))
    try:
        with pytest.raises(BackupError, match=r"log/0001/0{20}-0{15}32768-\w{8} cannot be written: File too large"):
            back_up(root, target, threads=1)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert newest(target) is None
    assert [path for path in (tmp_path / "backup").rglob("*") if path.stat().st_size > 20_000] == []
    assert not list((tmp_path / "backup").rglob("*.unfinished"))


def test_a_file_system_without_links(root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def link(source: Path, place: Path) -> None:
        raise PermissionError(errno.EPERM, "Operation not permitted")

    monkeypatch.setattr(os, "link", link)
    target = LocalTarget(tmp_path / "backup")
    step = prepare(root, target)
    assert back_up(root, target).manifest.number == 1
    with pytest.raises(BackupError, match="has just ended"):
        publish(step, target, [copy_stretch(each, target, 1) for each in step.stretches])
    assert check(target).ok
