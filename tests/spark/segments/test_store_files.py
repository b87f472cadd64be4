"""Stores, logs, files and backups that may be read, and refused ones. No Spark is needed for this."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from pyarrow import fs

from pyromq.backup.making import back_up
from pyromq.backup.target import LocalTarget
from pyromq.clock import ManualClock
from pyromq.errors import StoreError
from pyromq.files.disk import OsDisk
from pyromq.model.message import Draft
from pyromq.records import layout
from pyromq.spark.segments import read, store_places
from pyromq.spark.segments.store_files import find_pieces
from pyromq.spark.segments.store_places import RemotePlace
from pyromq.store.durability.checkpoint import Checkpoint, CheckpointFile
from spark.support.logs_on_disk import SEGMENT_BYTES, offsets_of, rows_of, some_drafts, write_log
from store.small_store import MESSAGES, fill, make_store, open_store

# --- stores ----------------------------------------------------------------------------------------------------------


def test_a_store_that_nobody_uses_is_read_to_its_end(tmp_path: Path) -> None:
    make_store(tmp_path)
    pieces = find_pieces(str(tmp_path))
    assert len(pieces) > 2
    assert [piece.base for piece in pieces] == [number * 32 * 1024 for number in range(len(pieces))]
    rows = rows_of(pieces)
    assert len(rows) == MESSAGES
    positions = [row["commit_log_offset"] for row in rows]
    assert positions == sorted(positions)  # type: ignore[type-var]
    assert {row["topic"] for row in rows} == {"orders", "SCHEDULE_TOPIC_XXXX"}


def test_its_commitlog_directory_and_its_files_are_the_same(tmp_path: Path) -> None:
    make_store(tmp_path)
    expected = rows_of(find_pieces(str(tmp_path)))
    assert rows_of(find_pieces(f"file://{tmp_path}/commitlog")) == expected
    files = [str(path) for path in sorted((tmp_path / "commitlog").iterdir()) if path.is_file()]
    assert rows_of(find_pieces(files)) == expected


def test_of_a_store_in_use_only_what_is_durable_is_read(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    fill(store, 100)
    store.flush()
    store.points.save()
    store.append([Draft(b"orders", 0, b"not yet durable")])
    for place in (tmp_path, tmp_path / "commitlog"):
        rows = rows_of(find_pieces(str(place)))
        assert len(rows) == 100
        assert b"not yet durable" not in {row["body"] for row in rows}
    last = max(path for path in (tmp_path / "commitlog").iterdir() if path.is_file())
    assert b"not yet durable" not in {row["body"] for row in rows_of(find_pieces(str(last)))}
    store.flush()
    store.points.save()
    assert len(rows_of(find_pieces(str(tmp_path)))) == 101
    store.close()


def test_a_torn_end_is_left_out_as_a_start_would_cut_it(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    fill(store, 100)
    store.flush()
    store.points.save()
    end = store.log.end
    shutil.copytree(tmp_path, tmp_path.with_name("copy"))
    store.close()
    copy = tmp_path.with_name("copy")
    segment = copy / "commitlog" / f"{end - end % (32 * 1024):020d}"
    data = bytearray(segment.read_bytes())
    data[end % (32 * 1024) : end % (32 * 1024) + 8] = layout.BLANK.pack(200, layout.MAGIC_V1)
    segment.write_bytes(data)
    assert len(rows_of(find_pieces(str(copy)))) == 100


def test_a_store_of_another_broker_in_use_is_read_as_far_as_its_checkpoint_goes(tmp_path: Path) -> None:
    clock = ManualClock()
    store = open_store(tmp_path, clock=clock)
    fill(store, 100)
    store.flush()
    now_ms = clock.now_ms()
    (tmp_path / "recoverpoint").unlink(missing_ok=True)
    CheckpointFile(OsDisk(tmp_path), tmp_path / "checkpoint").save(Checkpoint(now_ms, now_ms, now_ms))
    found = rows_of(find_pieces(str(tmp_path)))
    assert 0 < len(found) < 100, "the last three seconds are not trusted"
    store.close()


# --- logs without a store --------------------------------------------------------------------------------------------


def test_a_bare_log_is_read_to_its_last_record(tmp_path: Path) -> None:
    paths = write_log(tmp_path / "log", some_drafts(60))
    assert len(paths) > 3
    pieces = find_pieces(str(tmp_path / "log"))
    assert offsets_of(pieces) == list(range(60))
    assert pieces[0].first_ms is not None


def test_a_file_made_ahead_of_its_use_is_no_matter(tmp_path: Path) -> None:
    paths = write_log(tmp_path, some_drafts(30))
    (tmp_path / f"{len(paths) * SEGMENT_BYTES:020d}").write_bytes(bytes(SEGMENT_BYTES))
    assert offsets_of(find_pieces(str(tmp_path))) == list(range(30))


def test_a_single_file_by_any_name(tmp_path: Path) -> None:
    paths = write_log(tmp_path / "log", some_drafts(60))
    renamed = tmp_path / "archived.seg"
    shutil.copy(paths[1], renamed)
    [piece] = find_pieces(str(renamed))
    assert piece.base == SEGMENT_BYTES
    assert rows_of([piece]) == rows_of(find_pieces(str(paths[1])))


def test_a_torn_end_of_a_bare_log_ends_it(tmp_path: Path) -> None:
    [path] = write_log(tmp_path, some_drafts(8))
    data = path.read_bytes().rstrip(b"\0")
    path.write_bytes(data[:-30].ljust(SEGMENT_BYTES, b"\0"))
    assert offsets_of(find_pieces(str(tmp_path))) == list(range(7))


def test_damage_with_records_behind_it_is_refused_or_passed_over(tmp_path: Path) -> None:
    [path] = write_log(tmp_path, some_drafts(8))
    data = bytearray(path.read_bytes())
    second = int.from_bytes(data[:4], "big")
    data[second + 100] ^= 1
    path.write_bytes(data)
    with pytest.raises(StoreError, match=f"damage at position {second} .*records behind it"):
        find_pieces(str(tmp_path))
    assert offsets_of(find_pieces(str(tmp_path), must_be_whole=False)) == [0, 2, 3, 4, 5, 6, 7]


def test_a_missing_file_is_refused_or_passed_over(tmp_path: Path) -> None:
    paths = write_log(tmp_path, some_drafts(60))
    whole = offsets_of(find_pieces(str(tmp_path)))
    gone = offsets_of(find_pieces(str(paths[1])))
    paths[1].unlink()
    with pytest.raises(StoreError, match="no file holds the bytes from 4096 to 8192"):
        find_pieces(str(tmp_path))
    assert offsets_of(find_pieces(str(tmp_path), must_be_whole=False)) == [each for each in whole if each not in gone]


def test_what_is_no_log_is_refused(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="there is no"):
        find_pieces(str(tmp_path / "nothing"))
    with pytest.raises(StoreError, match="neither a store nor a backup"):
        find_pieces(str(tmp_path))
    (tmp_path / "short").write_bytes(b"x")
    assert find_pieces(str(tmp_path / "short")) == []


@pytest.mark.parametrize("name", ["9" * 20, "18446744073709551616", "09223372036854775807"])
def test_a_file_whose_name_is_no_position_of_a_log_is_refused(tmp_path: Path, name: str) -> None:
    write_log(tmp_path, some_drafts(5))[0].rename(tmp_path / name)
    for place in (tmp_path, tmp_path / name):
        for whole in (True, False):
            with pytest.raises(StoreError, match=r"can be none|it would begin"):
                find_pieces(str(place), must_be_whole=whole)


def test_a_file_with_the_name_of_another_position_or_without_records_is_not_an_empty_table(tmp_path: Path) -> None:
    path = write_log(tmp_path, some_drafts(5))[0].rename(tmp_path / f"{SEGMENT_BYTES:020d}")
    with pytest.raises(StoreError, match="has no record of a log in it: it says that it belongs to position 0"):
        find_pieces(str(path))
    (tmp_path / "letter.txt").write_bytes(b"Dear Sir or Madam, " * 50)
    with pytest.raises(StoreError, match=r"no record of a log|no segment of a log"):
        find_pieces(str(tmp_path / "letter.txt"))


def test_segments_that_were_made_and_not_written_are_empty(tmp_path: Path) -> None:
    for number, size in enumerate((0, SEGMENT_BYTES)):
        directory = tmp_path / str(number)
        directory.mkdir()
        (directory / ("0" * 20)).write_bytes(bytes(size))
        for whole in (True, False):
            assert not offsets_of(find_pieces(str(directory / ("0" * 20)), must_be_whole=whole))
        assert not find_pieces(str(directory), must_be_whole=False)


def test_odd_things_by_the_name_of_a_segment(tmp_path: Path) -> None:
    (tmp_path / "log" / ("0" * 20)).mkdir(parents=True)
    with pytest.raises(StoreError, match="can be none: move it elsewhere"):
        find_pieces(str(tmp_path / "log"))
    with pytest.raises(StoreError, match="neither a file nor a directory"):
        find_pieces("/dev/null")
    with pytest.raises(StoreError, match="there is no"):
        find_pieces("~nobody-has-this-name/store")


def test_the_same_file_is_not_read_twice(tmp_path: Path) -> None:
    paths = write_log(tmp_path, some_drafts(30))
    with pytest.raises(StoreError, match="would be read twice"):
        find_pieces([str(tmp_path), str(paths[0])])
    (tmp_path / "link").symlink_to(tmp_path)
    with pytest.raises(StoreError, match="would be read twice"):
        find_pieces([str(tmp_path), str(tmp_path / "link")])


def test_a_log_apart_that_a_broker_uses_is_refused(tmp_path: Path) -> None:
    """The store holds the durable end of the log, and the log does not name its store."""
    write_log(tmp_path / "log", some_drafts(3))
    lock = OsDisk(tmp_path).lock(tmp_path / "log" / "pyromq" / "lock")
    with pytest.raises(StoreError, match="name that one"):
        find_pieces(str(tmp_path / "log"))
    lock.release()
    assert offsets_of(find_pieces(str(tmp_path / "log"))) == [0, 1, 2]


# --- backups, and places with a scheme -------------------------------------------------------------------------------


def test_a_backup_has_what_the_store_had(tmp_path: Path) -> None:
    make_store(tmp_path / "store")
    expected = rows_of(find_pieces(str(tmp_path / "store")))
    back_up(tmp_path / "store", LocalTarget(tmp_path / "backup"))
    assert rows_of(find_pieces(str(tmp_path / "backup"))) == expected


@pytest.fixture
def far(monkeypatch: pytest.MonkeyPatch) -> str:
    """A scheme whose places are in truth here."""
    monkeypatch.setattr(store_places, "file_system", lambda uri: (fs.LocalFileSystem(), uri.removeprefix("far://here")))
    return "far://here"


def test_far_away_a_store_a_log_a_file_and_a_backup_are_read_alike(tmp_path: Path, far: str) -> None:
    paths = write_log(tmp_path / "store" / "commitlog", some_drafts(60))
    expected = rows_of(find_pieces(str(tmp_path / "store" / "commitlog")))
    assert rows_of(find_pieces(f"{far}{tmp_path}/store")) == expected
    assert rows_of(find_pieces(f"{far}{tmp_path}/store/commitlog/")) == expected
    assert rows_of(find_pieces([f"{far}{path}" for path in paths])) == expected
    back_up(tmp_path / "store", LocalTarget(tmp_path / "backup"))
    assert rows_of(find_pieces(f"{far}{tmp_path}/backup")) == expected


def test_far_away_records_larger_than_a_window_are_fetched_too(
    tmp_path: Path, far: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_log(tmp_path, some_drafts(60))
    for window in (64, 100, 173, 1000, 4096):
        monkeypatch.setattr(read, "WINDOW_BYTES", window)
        assert offsets_of(find_pieces(f"{far}{tmp_path}")) == list(range(60))


def test_far_away_nothing_is_an_error(tmp_path: Path, far: str) -> None:
    with pytest.raises(StoreError, match="has no store, no backup and no segments"):
        find_pieces(f"{far}{tmp_path}")
    (tmp_path / "renamed").write_bytes(bytes(200))
    with pytest.raises(StoreError, match="not named by its position"):
        find_pieces(f"{far}{tmp_path}/renamed")


def test_a_scheme_that_nobody_knows() -> None:
    with pytest.raises(StoreError, match="cannot be reached"):
        RemotePlace("nosuchscheme://x/y")
