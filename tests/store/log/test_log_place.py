"""A log in a directory of its own, also on another file system: found, kept, locked, and never mistaken for lost."""

from __future__ import annotations

import random
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from datetime import datetime
from pathlib import Path

import pytest

from pyromq.clock import ManualClock
from pyromq.config import RetentionConfig, StoreConfig
from pyromq.errors import DiskFull, StoreError, StoreLocked
from pyromq.files.disk import OsDisk, Usage
from pyromq.store.message_store import InlineRunner, MessageStore
from pyromq.store.offline.inspect import detect, inspect
from pyromq.store.offline.verify import Severity, bytes_and_messages_from, verify
from pyromq.testing import SimDisk
from store.support import ROOT, SEGMENT, config, open_store, order, orders, read_all

LOG = Path("/fast/log")
#: Memory on Linux, and so another file system than the one of temporary files.
MEMORY = Path("/dev/shm")


@pytest.fixture(params=["same file system", "another file system"])
def log_dir(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Path]:
    if request.param == "same file system":
        yield tmp_path / "apart" / "log"
        return
    if not MEMORY.is_dir() or MEMORY.stat().st_dev == tmp_path.stat().st_dev:
        pytest.skip("there is no second file system here")
    with tempfile.TemporaryDirectory(dir=MEMORY) as directory:
        yield Path(directory) / "log"


def real(root: Path, log: Path | None) -> MessageStore:
    return MessageStore(config(root=root, commit_log=log), clock=ManualClock(), runner=InlineRunner())


def filled(root: Path, log: Path | None, count: int = 200) -> None:
    with real(root, log) as store:
        store.append(orders(count, KEYS="k"))


def segments_in(directory: Path) -> list[str]:
    return sorted(each.name for each in directory.iterdir() if each.is_file())


# --- it works ------------------------------------------------------------------------------------------------------


def test_a_log_elsewhere_is_written_read_and_found_again(tmp_path: Path, log_dir: Path) -> None:
    root = tmp_path / "store"
    filled(root, log_dir)
    assert len(segments_in(log_dir)) > 1
    assert not (root / "commitlog").exists()
    with real(root, log_dir) as store:
        assert store.report.clean
        assert read_all(store) == [b"%d" % number for number in range(200)]
        assert len(store.query("orders", "k")) > 1
        store.append(orders(200))
    with real(root, log_dir) as store:
        assert len(read_all(store)) == 400


def test_segments_are_made_in_the_file_system_of_the_log(tmp_path: Path, log_dir: Path) -> None:
    root = tmp_path / "store"
    with real(root, log_dir) as store:
        store.append(orders(200))
        is_other = log_dir.stat().st_dev != root.stat().st_dev
        assert store.paths.log_staging.exists() == is_other
        drafts = store.paths.log_staging if is_other else store.paths.staging
        assert list(drafts.iterdir()) == []
        (drafts / "log-left").write_bytes(b"of a start that was killed")
    with real(root, log_dir):
        assert not (drafts / "log-left").exists()


def test_a_file_system_that_is_mounted_in_the_usual_place(tmp_path: Path) -> None:
    """A link stands for the mount, which only an administrator may make."""
    if not MEMORY.is_dir() or MEMORY.stat().st_dev == tmp_path.stat().st_dev:
        pytest.skip("there is no second file system here")
    root = tmp_path / "store"
    root.mkdir()
    with tempfile.TemporaryDirectory(dir=MEMORY) as directory:
        (Path(directory) / "lost+found").mkdir()
        (root / "commitlog").symlink_to(directory)
        filled(root, None)
        with real(root, None) as store:
            assert len(read_all(store)) == 200
            assert store.disk_usage()[0].device == Path(directory).stat().st_dev
        assert verify(root).findings == []


WRITER = """
import sys
from pathlib import Path
from pyromq.model.message import Draft
from pyromq.store.message_store import MessageStore
from store.support import config
with MessageStore(config(root=Path(sys.argv[1]), commit_log=Path(sys.argv[2]))) as store:
    while True:
        store.append([Draft(b"orders", 0, b"x" * 300)])
        store.flush()
        print(store.max_offset("orders", 0) if store.dispatch() is None else 0, flush=True)
"""


def test_a_killed_writer_loses_nothing_and_the_next_start_goes_on(tmp_path: Path, log_dir: Path) -> None:
    root = tmp_path / "store"
    tests = str(Path(__file__).parents[2])
    promised = 0
    for _ in range(3):
        command = [sys.executable, "-c", WRITER, str(root), str(log_dir)]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env={"PYTHONPATH": tests}) as process:
            assert process.stdout
            for line in process.stdout:
                promised = max(promised, int(line))
                if promised % 150 == 0:
                    process.send_signal(signal.SIGKILL)
        assert verify(root).errors == 0
        with real(root, log_dir) as store:
            assert not store.report.clean
            assert store.max_offset("orders", 0) >= promised
            promised = store.max_offset("orders", 0)
    assert promised >= 300


@pytest.mark.parametrize("seed", range(20))
def test_power_cuts(seed: int) -> None:
    rng = random.Random(seed)
    disk, promised = SimDisk(), 0
    for _ in range(6):
        store = open_store(disk, commit_log=LOG)
        assert len(read_all(store)) >= promised
        promised = len(read_all(store))
        for _ in range(rng.randrange(8)):
            store.append(orders(rng.randrange(1, 60)))
            disk.mark()
            if rng.random() < 0.5:
                store.flush()
                store.dispatch()
                promised = store.max_offset("orders", 0)
        disk = disk.crash(rng)
        assert detect(ROOT, disk=disk).log_directory == LOG


# --- it is not lost sight of ---------------------------------------------------------------------------------------


def test_tools_find_the_log_by_themselves(tmp_path: Path, log_dir: Path) -> None:
    root = tmp_path / "store"
    filled(root, log_dir)
    view = inspect(root)
    assert (view.log.apart, view.messages, view.problems, view.refusal) == (log_dir, 200, [], None)
    assert view.log.segments[0].file == str(log_dir / ("0" * 20))
    assert view.bytes_by_directory["commitlog"] == SEGMENT * len(segments_in(log_dir))
    assert view.log_disk.device == log_dir.stat().st_dev
    assert verify(root).records == 200
    assert bytes_and_messages_from(detect(root), 0)[1] == 200


def test_of_a_store_that_another_program_wrote_the_log_must_be_named(tmp_path: Path, log_dir: Path) -> None:
    root = tmp_path / "store"
    filled(root, log_dir)
    (root / "logdirectory").unlink()
    assert inspect(root).refusal is not None
    assert inspect(root, config=detect(root, commit_log=log_dir)).messages == 200
    with pytest.raises(StoreError, match="is it or is in it"):
        detect(root, commit_log=tmp_path)


def test_damage_is_named_by_its_whole_path_and_with_a_command_that_works(tmp_path: Path, log_dir: Path) -> None:
    root = tmp_path / "store"
    filled(root, log_dir)
    path = log_dir / f"{SEGMENT:020d}"
    path.unlink()
    view = inspect(root)
    assert view.refusal is not None
    assert str(log_dir) in view.refusal.what
    assert f"recover {root} --commit-log {log_dir} --truncate-at {SEGMENT}" in view.refusal.way_out
    report = verify(root)
    assert report.is_in_log(next(each for each in report.findings if each.severity is Severity.ERROR))


def test_a_start_that_looks_elsewhere_is_refused_and_changes_nothing(tmp_path: Path, log_dir: Path) -> None:
    root = tmp_path / "store"
    filled(root, log_dir)
    for other in (None, tmp_path / "new"):
        with pytest.raises(StoreError, match=f"the log of {root} is in {log_dir}, and not in .*storePathCommitLog"):
            real(root, other).open()
    with real(root, log_dir) as store:
        assert store.report.clean
        assert len(read_all(store)) == 200


def test_a_log_in_the_usual_place_is_not_left_behind_either(tmp_path: Path) -> None:
    root = tmp_path / "store"
    filled(root, None)
    with pytest.raises(StoreError, match=f"is in {root}/commitlog, and not in {tmp_path}/new"):
        real(root, tmp_path / "new").open()


def test_a_log_moves_with_its_files_and_back(tmp_path: Path, log_dir: Path) -> None:
    root = tmp_path / "store"
    filled(root, None)
    shutil.copytree(root / "commitlog", log_dir)
    shutil.rmtree(root / "commitlog")
    filled(root, log_dir)
    assert detect(root).commit_log == log_dir
    shutil.copytree(log_dir, root / "commitlog")
    shutil.rmtree(log_dir)
    with real(root, None) as store:
        assert len(read_all(store)) == 400
    assert detect(root).commit_log is None
    assert not (root / "logdirectory").exists()


def test_a_file_system_that_is_not_mounted_is_not_an_empty_log(tmp_path: Path, log_dir: Path) -> None:
    root = tmp_path / "store"
    filled(root, log_dir)
    shutil.rmtree(log_dir)
    with pytest.raises(StoreError, match="no such directory: is its file system mounted"):
        detect(root)
    log_dir.mkdir()
    with pytest.raises(StoreError, match=r"although it was written up to \d+: is its file system mounted"):
        real(root, log_dir).open()
    store = real(root, log_dir)
    store.open(truncate_at=0)  # as the error says
    store.append([order()])
    store.close()


# --- one user at a time --------------------------------------------------------------------------------------------


def test_two_stores_with_one_log_are_refused(tmp_path: Path, log_dir: Path) -> None:
    with real(tmp_path / "one", log_dir) as first:
        with pytest.raises(StoreLocked, match=f"{log_dir} is in use by process"):
            real(tmp_path / "two", log_dir).open()
        first.append([order()])
    assert OsDisk(tmp_path).lock_holder(first.paths.log_lock) is None


def test_the_usual_log_of_another_store_is_refused_in_both_directions(tmp_path: Path) -> None:
    theirs = tmp_path / "theirs"
    with real(theirs, None) as first:
        with pytest.raises(StoreLocked, match=f"{theirs} is in use by process"):
            real(tmp_path / "ours", theirs / "commitlog").open()
        first.append([order()])
    shutil.rmtree(theirs)
    with (
        real(tmp_path / "other", theirs / "commitlog"),
        pytest.raises(StoreLocked, match=f"{theirs}/commitlog is in use by process"),
    ):
        real(theirs, None).open()
    with real(theirs, None):
        pass


def test_a_directory_called_lock_beside_the_log_is_nobodys_lock(tmp_path: Path) -> None:
    (tmp_path / "var" / "lock").mkdir(parents=True)
    filled(tmp_path / "store", tmp_path / "var" / "commitlog")


# --- two disks -----------------------------------------------------------------------------------------------------


class TwoDisks(SimDisk):
    """Each as full as the test says."""

    log_share = root_share = 0.5

    def usage(self, path: Path) -> Usage:
        is_log = path.is_relative_to(LOG)
        return Usage(total=100, used=round(100 * (self.log_share if is_log else self.root_share)), device=int(is_log))


def two_disks(**changes: object) -> tuple[TwoDisks, MessageStore]:
    clock = ManualClock()
    disk = TwoDisks(clock)
    return disk, open_store(disk, clock, commit_log=LOG, **changes)


@pytest.mark.parametrize(("which", "directory"), [("log_share", LOG), ("root_share", ROOT)])
def test_either_disk_can_be_too_full(which: str, directory: Path) -> None:
    disk, store = two_disks()
    setattr(disk, which, 0.93)
    store.clean()
    with pytest.raises(DiskFull, match=f"the disk of {directory} is 93% full"):
        store.append([order()])
    assert store.telemetry.snapshot()["pyromq_store_disk_used_ratio"] == 0.93
    setattr(disk, which, 0.8)
    store.clean()
    store.append([order()])
    store.close()


def test_unexpired_segments_are_given_up_only_for_the_disk_that_they_are_on() -> None:
    disk, store = two_disks(retention=RetentionConfig(delete_unexpired=True))
    store.append(orders(400))
    store.flush()
    store.dispatch()
    disk.root_share = 0.95
    store.clean()
    assert store.log.start == 0
    disk.log_share = 0.95
    store.clean()
    assert store.log.start > 0
    store.close()


def test_expired_segments_wait_for_their_hour_unless_one_disk_needs_the_room() -> None:
    clock = ManualClock()
    disk = TwoDisks(clock)
    hour = (datetime.fromtimestamp(clock.now_ms() / 1000).astimezone().hour + 12) % 24
    store = open_store(disk, clock, commit_log=LOG, retention=RetentionConfig(max_age_hours=1, delete_hours=(hour,)))
    store.append(orders(400))
    store.flush()
    store.dispatch()
    clock.advance(2 * 3600)
    store.clean()
    assert store.log.start == 0
    disk.root_share = 0.8
    store.clean()
    assert store.log.start > 0
    store.close()


def test_settings_say_whether_the_log_is_apart() -> None:
    usual = StoreConfig(root=ROOT)
    assert not usual.log_is_apart
    assert not replace(usual, commit_log=ROOT / "commitlog").log_is_apart
    assert replace(usual, commit_log=ROOT / "log").log_is_apart
