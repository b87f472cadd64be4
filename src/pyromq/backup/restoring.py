"""From a backup to a store directory that a broker starts on: ours, or RocketMQ's.

    report = restore(LocalTarget(Path("/backup/broker-a")), Path("/data/store"))

The log is put back in files of their old length, and the small tables under `config/`, clamped to the log: a log that
is cut by `until` gets the settings of the first run that has all of it, and the progress of the last run before it.
Queues and index are derived from the log, and the first start makes them: the directory has the mark of a broker that
did not stop (`abort`) and a checkpoint of no time at all, from which RocketMQ reads the log from its beginning. Our
recover point says the same, and that the whole log was on the disk: damage to it after this is never taken for a torn
tail.

Everything is made in `restoring/` inside the directory and moved to its place at the end, the log last. A restore that
is stopped leaves a directory that no broker of ours starts on, and the next restore begins again.
"""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from pyromq.backup.history import last_before, nearest, wanted
from pyromq.backup.manifest import Manifest, SavedFile, sha256_of
from pyromq.backup.pieces import Restored, restore_segment
from pyromq.backup.planning import SegmentPlan, Until, segment_plans
from pyromq.backup.tables import POSITIONS, fit_file
from pyromq.backup.target import Target
from pyromq.backup.telling import counted, moment, tables
from pyromq.errors import BackupError, CorruptBackup, CorruptFile, WrongShape
from pyromq.files.disk import OsDisk
from pyromq.store.durability.checkpoint import AbortMark, Checkpoint, CheckpointFile, RecoverPoint, RecoverPointFile
from pyromq.store.log import log_place
from pyromq.store.paths import StorePaths

#: `(done, total)` in bytes.
Progress = Callable[[int, int], None]

RESTORING = "restoring"


@dataclass(frozen=True, slots=True)
class RestorePlan:
    """The files to restore, and their places."""

    directory: Path
    manifest: Manifest
    files: tuple[SavedFile, ...]
    segments: tuple[SegmentPlan, ...]
    #: The manifest that the progress of groups, delays and transactions is of.
    progress: Manifest

    @property
    def workplace(self) -> Path:
        return self.directory / RESTORING


@dataclass(frozen=True, slots=True)
class RestoreReport:
    """The restored files."""

    directory: Path
    manifest: Manifest
    segments: int
    records: int
    bytes: int
    start: int
    end: int
    last_ms: int
    files: int
    #: The manifest that the progress of groups, delays and transactions is of, and the files clamped to the log.
    progress: Manifest
    clamped: tuple[str, ...] = ()

    def sentences(self) -> list[str]:
        of_run = f"that of manifest {self.progress.number}, made at {moment(self.progress.made_ms)}"
        progress = []
        if self.progress.number != self.manifest.number:
            progress = [f"The progress of groups, delays and transactions is {of_run}."]
        if self.clamped:
            progress.append(f"Positions after the end of the log were set back to it ({', '.join(self.clamped)}).")
        return [
            f"{self.directory} has {counted(self.records, 'message')} in {counted(self.segments, 'segment')}, from "
            f"position {self.start} to {self.end}, and {tables(self.files)}.",
            *progress,
            f"Start a broker on it with `pyromq broker --store {self.directory}`: the first start makes queues and "
            "index from the log.",
        ]


def restore(
    target: Target,
    directory: Path,
    *,
    number: int | None = None,
    until: Until | None = None,
    threads: int = 0,
    progress: Progress | None = None,
) -> RestoreReport:
    """Put a backup back on this machine. Raises BackupError, CorruptBackup, OSError."""
    plan = begin(target, directory, number=number, until=until)
    with claimed(plan):
        return finish(target, plan, _restored(target, plan, threads, progress))


def _restored(target: Target, plan: RestorePlan, threads: int, progress: Progress | None) -> list[Restored]:
    done, total = 0, sum(each.bytes for each in plan.segments)
    restored: list[Restored] = []
    with ThreadPoolExecutor(threads or min(os.cpu_count() or 1, 8), "pyromq-restore") as pool:
        for each in pool.map(lambda one: restore_segment(target, log_of(plan), one), plan.segments):
            restored.append(each)
            done += each.bytes
            if progress is not None:
                progress(done, total)
    return restored


def log_of(plan: RestorePlan) -> Path:
    """Return the directory in which the segments are made."""
    return StorePaths(plan.workplace).commit_log


def begin(target: Target, directory: Path, *, number: int | None = None, until: Until | None = None) -> RestorePlan:
    """Plan a restore. Raises BackupError if the directory is not free."""
    until = until or Until()
    manifest = wanted(target, number)
    segments = segment_plans(manifest, until)
    if manifest.chunks and not segments:
        first = manifest.chunks[0]
        raise BackupError(
            f"nothing would be left: the backup in {target.shown()} begins with position {first.start}, stored at "
            f"{moment(first.first_ms)}, and that is behind the end that was asked for"
        )
    _left_over(directory)
    # Of a whole log the tables are those of its own run: groups may have gone on since the log last grew.
    if until == Until():
        return RestorePlan(directory, manifest, manifest.files, tuple(segments), manifest)
    settings = nearest(target, manifest, until)
    progress = last_before(target, manifest, until) or settings
    files = [saved for saved in settings.files if saved.name not in POSITIONS]
    files += [saved for saved in progress.files if saved.name in POSITIONS]
    return RestorePlan(directory, manifest, tuple(files), tuple(segments), progress)


@contextlib.contextmanager
def claimed(plan: RestorePlan) -> Iterator[None]:
    """Make the directory, locked against other restores. Raises BackupError, StoreLocked, OSError."""
    paths = StorePaths(plan.directory)
    was_there = plan.directory.exists()
    try:
        plan.directory.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise BackupError(f"{plan.directory} cannot be made: {error.strerror}") from error
    with log_place.lock(OsDisk(paths.staging), paths):
        for path in _left_over(plan.directory):
            shutil.rmtree(path) if path.is_dir() else path.unlink()
        log_of(plan).mkdir(parents=True)
        try:
            yield
        except BaseException:
            _tidy(plan, was_there)
            raise


def _tidy(plan: RestorePlan, was_there: bool) -> None:
    """Of one that failed before anything was in its place nothing stays, not even a directory that was made for it."""
    lock = StorePaths(plan.directory).lock
    if {entry.name for entry in os.scandir(plan.directory)} <= {RESTORING, lock.name}:
        shutil.rmtree(plan.workplace, ignore_errors=True)
        lock.unlink(missing_ok=True)
        if not was_there:
            with contextlib.suppress(OSError):
                plan.directory.rmdir()


def _left_over(directory: Path) -> list[Path]:
    """Return the leftovers of a stopped restore. Raises BackupError if there is anything else."""
    if directory.exists() and not directory.is_dir():
        raise BackupError(f"{directory} is a file, and a store is a directory")
    found = {entry.name for entry in os.scandir(directory)} if directory.exists() else set()
    ours = {RESTORING, "config", "checkpoint", "recoverpoint", "abort"} if RESTORING in found else set()
    found -= {"lost+found", StorePaths(directory).lock.name}  # a file system's own, and the restore's
    if found - ours:
        raise BackupError(
            f"{directory} is not empty ({', '.join(sorted(found - ours)[:3])}): restore to a directory that is"
        )
    return [directory / name for name in found]


def finish(target: Target, plan: RestorePlan, restored: Sequence[Restored]) -> RestoreReport:
    """Restore everything except the log, then move all to its place. Raises CorruptBackup, OSError."""
    paths = StorePaths(plan.workplace)
    disk = OsDisk(paths.staging)
    for saved in plan.files:
        disk.replace_bytes(plan.workplace / saved.name, _small_file(target, saved))
    start = plan.segments[0].base if plan.segments else plan.manifest.start
    end, last_ms = max((each.end, each.last_ms) for each in restored) if restored else (plan.manifest.end, 0)
    clamped = _fit_tables(disk, plan, restored, end)
    _note_state(disk, paths, start, end, last_ms)
    _move_in(plan)
    return RestoreReport(
        directory=plan.directory,
        manifest=plan.manifest,
        segments=len(plan.segments),
        records=sum(each.records for each in restored),
        bytes=sum(each.bytes for each in restored),
        start=start,
        end=end,
        last_ms=last_ms,
        files=len(plan.files),
        progress=plan.progress,
        clamped=clamped,
    )


def _fit_tables(disk: OsDisk, plan: RestorePlan, restored: Sequence[Restored], end: int) -> tuple[str, ...]:
    """Clamp the tables to the restored log; the names of those that changed. Raises CorruptBackup, OSError."""
    ends: dict[tuple[str, int], int] = {}
    for segment in restored:
        for queue, offset in segment.queue_ends.items():
            ends[queue] = max(ends.get(queue, 0), offset)
    clamped = []
    for saved in plan.files:
        if saved.name in POSITIONS:
            path = plan.workplace / saved.name
            try:
                if fit_file(disk, path, saved.name, end, ends, is_later=plan.progress.end > end):
                    clamped.append(path.name)
            except (CorruptFile, WrongShape) as problem:
                raise CorruptBackup(saved.file, 0, f"{saved.name} cannot be read: {problem}") from None
    return tuple(clamped)


def _small_file(target: Target, saved: SavedFile) -> bytes:
    data = target.read(saved.file)
    if sha256_of(data) != saved.sha256:
        raise CorruptBackup(target.shown(saved.file), 0, f"{saved.name} has another checksum than the manifest says")
    return data


def _note_state(disk: OsDisk, paths: StorePaths, start: int, end: int, last_ms: int) -> None:
    """The log is on the disk as a whole; queues and index are to be made from its beginning."""
    point = RecoverPointFile(disk, paths.recover_point)
    point.save(RecoverPoint(log_start=start, synced=end, queues_to=start, timestamp_ms=last_ms))
    point.close()
    checkpoint = CheckpointFile(disk, paths.checkpoint)
    checkpoint.save(Checkpoint())
    checkpoint.close()
    AbortMark(disk, paths.abort).set()


def _move_in(plan: RestorePlan) -> None:
    """The log comes last: before, a start finds a recover point of a log that is not there, and refuses."""
    there, here = StorePaths(plan.directory), StorePaths(plan.workplace)
    disk = OsDisk(there.staging)
    moves = [(here.recover_point, there.recover_point), (here.checkpoint, there.checkpoint), (here.abort, there.abort),
             (here.config, there.config), (here.commit_log, there.commit_log)]  # fmt: skip
    for source, place in moves:
        if source.exists():
            disk.move_tree(source, place)
            disk.sync_name(source)
    fd = os.open(plan.directory, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
    shutil.rmtree(plan.workplace)
