"""A full disk: messages are refused with a sentence, reads go on, nothing is lost, and sending resumes by itself."""

from __future__ import annotations

import contextlib
import errno
import os
import random
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from crash import filler
from crash.crash_lab import ROOT, Setting
from pyromq.clock import ManualClock
from pyromq.config import RetentionConfig, StoreConfig
from pyromq.errors import DiskFull
from pyromq.model.message import Draft
from pyromq.store.message_store import InlineRunner, MessageStore, decode
from pyromq.store.retention import SegmentAge, decide
from pyromq.store.tables.offset_files import ConsumerOffsets
from pyromq.testing import CrashMode, SimDisk

FILLER = Path(filler.__file__)
HOUR_MS = 3_600_000


class Bench:
    """A store on a disk whose room the test decides on."""

    def __init__(self, config: StoreConfig | None = None) -> None:
        self.clock = ManualClock()
        self.disk = SimDisk(self.clock)
        self.config = config or Setting().config()
        self.acked: list[tuple[int, bytes]] = []
        self.store = self.new_store(self.disk)
        self.store.open()

    def new_store(self, disk: SimDisk) -> MessageStore:
        return MessageStore(self.config, disk=disk, clock=self.clock, runner=InlineRunner())

    def append(self, count: int = 1) -> None:
        for _ in range(count):
            body = b"%d:" % len(self.acked) + bytes(300)
            properties = b"KEYS\x01k%d\x02" % len(self.acked)
            (receipt,) = self.store.append([Draft(b"orders", 0, body, properties)])
            self.acked.append((receipt.queue_offset, body))

    def append_until_refused(self) -> DiskFull:
        with pytest.raises(DiskFull) as refusal:
            self.append(10_000)
        return refusal.value

    def no_room_for(self, folder: str) -> None:
        def refuse(operation: str, path: Path) -> None:
            if operation in ("create", "reserve") and folder in path.parts:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))

        self.disk.on_operation = refuse

    def make_room(self) -> None:
        self.disk.on_operation = None
        self.disk.full = False
        self.clock.advance(2)

    def check(self, store: MessageStore | None = None) -> None:
        """Everything acknowledged is there, at its offset."""
        store = store or self.store
        store.dispatch()
        assert [offset for offset, _ in self.acked] == list(range(len(self.acked)))
        for offset, body in self.acked:
            assert decode(store.read("orders", 0, offset, max_messages=1).records[0]).body == body
        for number in range(0, len(self.acked), 7):
            assert len(store.query("orders", f"k{number}")) == 1

    def check_after_a_crash(self) -> None:
        self.store.flush()
        for seed in range(20):
            store = self.new_store(self.disk.crash(random.Random(seed)))
            store.open()
            self.check(store)


# --- one kind of file at a time ------------------------------------------------------------------------------------


def test_no_room_for_the_next_segment() -> None:
    bench = Bench()
    bench.append(3)
    bench.disk.full = True
    refusal = bench.append_until_refused()
    assert "make room" in str(refusal)
    assert refusal.receipts == []
    bench.store.read("orders", 0, 0)
    assert len(bench.acked) > 3, "the segment that was there is filled first"
    bench.store.flush()
    bench.append_until_refused()
    bench.make_room()
    bench.append(20)
    bench.check()
    bench.check_after_a_crash()


def test_what_was_appended_before_the_refusal_is_told() -> None:
    bench = Bench()
    bench.append()
    bench.disk.full = True
    with pytest.raises(DiskFull) as refusal:
        bench.store.append([Draft(b"orders", 0, b"%d" % number + bytes(500)) for number in range(20)])
    receipts = refusal.value.receipts
    assert 0 < len(receipts) < 20
    bench.make_room()
    bench.store.dispatch()
    assert bench.store.max_offset("orders", 0) == 1 + len(receipts)


@pytest.mark.parametrize("folder", ["consumequeue", "index"])
@pytest.mark.parametrize("at_once", [True, False], ids=["from the start", "later"])
def test_no_room_for_queues_or_index(folder: str, at_once: bool) -> None:
    """The log takes what it was given; then messages are refused until queues and index can follow."""
    bench = Bench()
    bench.append(1)
    if not at_once:
        bench.append(27)
        bench.store.dispatch()
    bench.no_room_for(folder)
    bench.append(5)
    for _ in range(3):
        with contextlib.suppress(DiskFull):
            bench.append(40)
            bench.store.dispatch()
    with pytest.raises(DiskFull, match="room"):
        bench.store.dispatch()
    with pytest.raises(DiskFull, match="room"):
        bench.append()
    bench.store.flush()
    bench.make_room()
    bench.append(5)
    bench.check()
    bench.check_after_a_crash()


def test_a_crash_while_queues_have_no_room() -> None:
    bench = Bench()
    bench.append(10)
    bench.store.dispatch()
    bench.append(25)
    bench.no_room_for("consumequeue")
    with pytest.raises(DiskFull):
        bench.store.dispatch()
    bench.check_after_a_crash()


@pytest.mark.parametrize("name", ["recoverpoint", "checkpoint"])
def test_no_room_for_the_recover_point(name: str) -> None:
    """It has its room since the first start: a full disk does not keep it from moving."""
    bench = Bench()
    bench.append(10)
    bench.no_room_for(name)
    bench.store.flush()
    bench.store.save_recover_point()
    assert bench.store.points.current.synced == bench.store.log.end
    bench.append(10)
    bench.store.clean()
    bench.check()
    bench.check_after_a_crash()
    bench.make_room()
    bench.store.save_recover_point()
    bench.check_after_a_crash()


def test_no_room_for_a_config_file() -> None:
    clock = ManualClock()
    disk = SimDisk(clock)
    table = ConsumerOffsets(disk, ROOT / "config", clock)
    table.load()
    table.commit("group", "orders", 0, 1)
    table.save()
    table.commit("group", "orders", 0, 2)
    disk.full = True
    with pytest.raises(OSError, match="No space"):
        table.save()
    assert table.offset_of("group", "orders", 0) == 2
    for expected in (1, 2):
        again = ConsumerOffsets(disk.crash(random.Random(1), CrashMode.ALL_LOST), ROOT / "config", clock)
        again.load()
        assert again.offset_of("group", "orders", 0) == expected
        disk.full = False
        table.save()


def test_stopping_and_starting_on_a_full_disk() -> None:
    """Whatever it can do without room it does; nothing is lost, and a refusal to start is a sentence."""
    bench = Bench()
    bench.append(10)
    bench.store.dispatch()
    bench.store.save_recover_point()
    bench.disk.full = True
    bench.append_until_refused()
    with contextlib.suppress(OSError):
        bench.store.close()
    store = bench.new_store(bench.disk)
    with contextlib.suppress(DiskFull):
        store.open()
    store.close()
    bench.make_room()
    store = bench.new_store(bench.disk)
    store.open()
    bench.check(store)


# --- watermarks ----------------------------------------------------------------------------------------------------


def test_messages_are_refused_from_one_mark_and_taken_again_below_another() -> None:
    bench = Bench()
    bench.append(100)
    bench.store.dispatch()
    bench.store.flush()
    used = bench.disk.usage(ROOT).used
    bench.disk.capacity_bytes = int(used / 0.91)
    bench.store.clean()
    with pytest.raises(DiskFull, match=r"91% full.*90%.*85%"):
        bench.append()
    bench.check()
    bench.disk.capacity_bytes = int(used / 0.88)  # between the marks: no flapping
    bench.store.clean()
    with pytest.raises(DiskFull):
        bench.append()
    bench.disk.capacity_bytes = int(used / 0.80)
    bench.store.clean()
    bench.append()
    bench.disk.capacity_bytes = int(bench.disk.usage(ROOT).used / 0.88)  # below the upper mark: still taken
    bench.store.clean()
    bench.append()
    bench.check()


def test_unexpired_messages_are_not_given_up_for_room() -> None:
    bench = Bench()
    bench.append(100)
    bench.store.dispatch()
    bench.store.flush()
    bench.disk.capacity_bytes = bench.disk.usage(ROOT).used
    for _ in range(5):
        bench.store.clean()
    assert bench.store.min_offset("orders", 0) == 0
    bench.check()


def test_unless_somebody_wants_that() -> None:
    retention = RetentionConfig(max_age_hours=1, delete_unexpired=True)
    bench = Bench(replace(Setting().config(), retention=retention))
    bench.append(100)
    bench.store.dispatch()
    bench.store.flush()
    bench.disk.capacity_bytes = int(bench.disk.usage(ROOT).used / 0.95)
    for _ in range(5):
        bench.store.clean()  # a bounded number of segments each time
    assert bench.store.min_offset("orders", 0) > 0
    assert bench.store.telemetry.counter("pyromq_store_removed_unexpired_segments_total").value > 0
    assert bench.disk.usage(ROOT).share < 0.9
    bench.append()


def test_expired_messages_make_room_and_sending_resumes() -> None:
    bench = Bench()
    bench.append(100)
    bench.store.dispatch()
    bench.store.flush()
    bench.disk.mark()
    bench.disk.capacity_bytes = int(bench.disk.usage(ROOT).used / 0.95)
    bench.store.clean()
    with pytest.raises(DiskFull):
        bench.append()
    bench.clock.advance(3700)
    bench.store.clean()
    bench.append()
    assert bench.store.min_offset("orders", 0) > 0


def test_a_decision_follows_from_what_is_seen() -> None:
    config = RetentionConfig(max_age_hours=1)
    ages = [SegmentAge(10, 0), SegmentAge(10, HOUR_MS), SegmentAge(10, HOUR_MS)]
    assert decide(config, ages, 0.5, 100, refusing=False, now_ms=HOUR_MS).remove == 1
    assert decide(config, ages, 0.99, 100, refusing=False, now_ms=HOUR_MS).remove == 1
    assert decide(config, ages, 0.99, 100, refusing=False, now_ms=HOUR_MS).refuse_appends is False
    assert decide(config, [], 0.90, 100, refusing=False, now_ms=0).refuse_appends is True
    assert decide(config, [], 0.86, 100, refusing=False, now_ms=0).refuse_appends is False
    assert decide(config, [], 0.86, 100, refusing=True, now_ms=0).refuse_appends is True
    assert decide(config, [], 0.84, 100, refusing=True, now_ms=0).refuse_appends is False
    forced = decide(replace(config, delete_unexpired=True), ages, 0.99, 100, refusing=False, now_ms=0)
    assert (forced.remove, forced.remove_unexpired) == (1, 1)


# --- a real file system --------------------------------------------------------------------------------------------


@pytest.fixture
def mount(tmp_path: Path) -> Iterator[Callable[[str], Path]]:
    """Makes small file systems in memory, and takes them away again."""
    made: list[Path] = []

    def make(options: str) -> Path:
        directory = tmp_path / f"mount{len(made)}"
        directory.mkdir()
        command = ["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(directory)]
        try:
            tried = subprocess.run(command, capture_output=True, text=True, check=False)
        except FileNotFoundError:
            pytest.skip("there is no mount command")
        if tried.returncode:
            pytest.skip(f"a tmpfs cannot be mounted here: {tried.stderr.strip()}")
        made.append(directory)
        return directory

    yield make
    for directory in made:
        subprocess.run(["umount", "-l", str(directory)], check=False)


def run_filler(root: Path, ballast: list[Path], *arguments: str) -> list[str]:
    """The program on a full disk; one piece of ballast goes each time it is refused."""
    process = subprocess.Popen(
        [sys.executable, str(FILLER), str(root), *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    said: list[str] = []
    try:
        for piece in ballast:
            said.append(process.stdout.readline())
            assert said[-1].startswith("refused"), (said, process.poll())
            piece.unlink()
            time.sleep(1.1)  # the writer tries again once a second
            process.stdin.write("room\n")
            process.stdin.flush()
            said.append(process.stdout.readline())
            assert said[-1].startswith("accepted"), (said, process.poll())
        assert process.wait(30) == 0
    finally:
        process.kill()
        process.wait()
        process.stdin.close()
        process.stdout.close()
    return said


def test_a_real_disk_runs_full(mount: Callable[[str], Path]) -> None:
    """No process dies (a write into a mapping without room would be a SIGBUS), and it continues three times."""
    disk = mount("size=4m")
    ballast = [disk / f"ballast{number}" for number in range(3)]
    for piece in ballast:
        piece.write_bytes(bytes(700 * 1024))
    said = run_filler(disk / "store", ballast)
    assert "room" in said[0]
    counts = [int(line.split()[1].rstrip(":")) for line in said if line.startswith("refused")]
    assert counts == sorted(counts)
    assert counts[0] > 100
    with MessageStore(filler.config(disk / "store")) as store:
        assert store.max_offset("orders", 0) == counts[-1] + 1


def test_a_real_disk_runs_out_of_inodes(mount: Callable[[str], Path]) -> None:
    """Each topic needs two directories and a file."""
    disk = mount("size=32m,nr_inodes=120")
    ballast = [disk / f"ballast{number}" for number in range(24)]
    for piece in ballast:
        piece.touch()
    process = subprocess.Popen(
        [sys.executable, str(FILLER), str(disk / "store"), "new topics"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    with process:
        try:
            for some in (ballast[:8], ballast[8:16], ballast[16:]):
                line = process.stdout.readline()
                assert line.startswith("refused"), line
                for piece in some:
                    piece.unlink()
                time.sleep(1.1)
                process.stdin.write("room\n")
                process.stdin.flush()
                line = process.stdout.readline()
                assert line.startswith("accepted"), line
        finally:
            process.kill()
