"""Checking finds every kind of damage; pruning removes old chunks and nothing else, even when it is stopped."""

from __future__ import annotations

from pathlib import Path

import pytest

from backup.memory_target import MemoryTarget, PowerCut
from pyromq.backup.checking import check
from pyromq.backup.history import newest, numbers, read_manifest, wanted
from pyromq.backup.making import back_up
from pyromq.backup.pruning import prune
from pyromq.backup.restoring import restore
from pyromq.clock import ManualClock
from pyromq.errors import BackupError, CorruptBackup
from store.small_store import fill, open_store


def grow(root: Path, count: int) -> None:
    store = open_store(root)
    fill(store, count)
    store.close()


@pytest.fixture
def target(root: Path) -> MemoryTarget:
    made = MemoryTarget()
    for _ in range(3):
        back_up(root, made)
        grow(root, 90)
    back_up(root, made)
    return made


def chunk_names(target: MemoryTarget) -> list[str]:
    return sorted(name for name in target.files if name.startswith("log/"))


@pytest.mark.parametrize("byte", [0, 5, 30, 90, 150, -1])
def test_a_flipped_byte_is_found(target: MemoryTarget, byte: int) -> None:
    name = chunk_names(target)[1]
    data = bytearray(target.files[name])
    data[byte] ^= 4
    target.files[name] = bytes(data)
    report = check(target)
    [found] = report.findings
    assert found.file == f"memory:{name}"
    assert "not as they were saved" in report.sentences()[0]


@pytest.mark.parametrize("change", [lambda data: data[:-1], lambda data: data + b"x", lambda data: data + bytes(8)])
def test_a_wrong_length_is_found(target: MemoryTarget, change: object) -> None:
    name = chunk_names(target)[-1]
    target.files[name] = change(target.files[name])  # type: ignore[operator]
    assert len(check(target).findings) == 1


def test_records_of_another_place_are_found(target: MemoryTarget) -> None:
    """Good records, with good CRCs, in the file of another chunk."""
    first, second = chunk_names(target)[:2]
    target.files[second] = target.files[first]
    assert len(check(target).findings) == 1


def test_a_missing_small_file_and_a_changed_one_are_found(target: MemoryTarget) -> None:
    name = next(name for name in target.files if name.startswith("files/"))
    target.files[name] += b" "
    assert (
        "not what the manifest says" in check(target).findings[0].what or "checksum" in check(target).findings[0].what
    )
    del target.files[name]
    assert "missing" in check(target).findings[0].what


def test_progress_ends_at_the_total(target: MemoryTarget) -> None:
    told: list[tuple[int, int]] = []
    report = check(target, progress=lambda done, total: told.append((done, total)))
    assert told[-1] == (report.manifest.bytes, report.manifest.bytes)
    assert "is whole" in report.sentences()[0]


def test_what_is_no_backup_is_refused(target: MemoryTarget) -> None:
    with pytest.raises(BackupError, match="no backup"):
        check(MemoryTarget())
    with pytest.raises(BackupError, match="it has 1 to 4"):
        wanted(target, 9)
    target.files["manifests/00000004.json"] = b"{}"
    with pytest.raises(CorruptBackup):
        newest(target)


# --- pruning -------------------------------------------------------------------------------------------------------


def moment_in(target: MemoryTarget, number: int) -> int:
    return read_manifest(target, 4).chunks[number].last_ms + 1


def test_old_segments_go_and_the_rest_stays_whole(target: MemoryTarget, tmp_path: Path) -> None:
    before = chunk_names(target)
    report = prune(target, before_ms=moment_in(target, 1), clock=ManualClock())
    assert report.chunks == len(before) - len(chunk_names(target)) > 0
    assert report.manifest.start == report.manifest.chunks[0].start > 0
    assert check(target).ok
    assert numbers(target) == [5]
    restored = restore(target, tmp_path / "restored")
    assert restored.start == report.manifest.start
    assert "Removed" in report.sentences()[0]


def test_a_backup_goes_on_after_pruning(root: Path, target: MemoryTarget) -> None:
    pruned = prune(target, before_ms=moment_in(target, 1)).manifest
    grow(root, 30)
    made = back_up(root, target).manifest
    assert (made.start, made.number) == (pruned.start, 6)
    assert check(target).ok


def test_nothing_is_old(target: MemoryTarget) -> None:
    before = dict(target.files)
    report = prune(target, before_ms=0)
    assert (report.chunks, report.manifests) == (0, 0)
    assert target.files == before


def test_the_last_segment_always_stays(target: MemoryTarget) -> None:
    report = prune(target, before_ms=1 << 60)
    assert len(report.manifest.chunks) >= 1
    assert check(target).ok


def test_an_ended_series_goes_with_its_last_message(root: Path, target: MemoryTarget, tmp_path: Path) -> None:
    clock = ManualClock(1_900_000_000_000)
    store = open_store(tmp_path / "other", clock=clock)
    fill(store, 20)
    store.close()
    back_up(tmp_path / "other", target, new_series=True)
    report = prune(target, before_ms=1_800_000_000_000)
    assert report.manifest.series == 2
    assert all(name.startswith("log/0002/") for name in chunk_names(target))
    assert check(target).ok


def test_pruning_that_is_stopped_anywhere_leaves_a_whole_backup(target: MemoryTarget) -> None:
    before_ms = moment_in(target, 1)
    counted = MemoryTarget(dict(target.files))
    prune(counted, before_ms=before_ms)
    for steps in range(counted.steps):
        cut = MemoryTarget(dict(target.files), cut_after=steps)
        with pytest.raises(PowerCut):
            prune(cut, before_ms=before_ms)
        left = MemoryTarget(cut.files)
        assert check(left).ok
        for number in numbers(left):
            assert check(left, number=number).ok
        prune(left, before_ms=before_ms)
        assert check(left).ok
        assert chunk_names(left) == chunk_names(counted)
