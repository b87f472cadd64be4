"""One more step of a backup: what the log got since the last one, and the small files as they are now.

    report = back_up(Path("/data/store"), LocalTarget(Path("/backup/broker-a")), name="broker-a")

In three parts, so that the middle one can be spread over machines: `prepare` decides the ranges to copy,
`copy_stretch` (in `pieces`) copies each part, `publish` writes the manifest. Until then the backup is what it was
before: a run that is stopped anywhere leaves files that no manifest names, and the next one replaces them.

The store may be in use. The small files are read before the end of the log is asked for: what they say of the log (a
consumer's progress) is then in the backup too, or older, so that a restored consumer gets a message twice rather than
never.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path

from pyromq.backup.history import newest, refuse_incomplete
from pyromq.backup.manifest import TAIL_BYTES, Chunk, Manifest, SavedFile, Source, encode, file_path, sha256_of
from pyromq.backup.pieces import copy_stretch, tail_of
from pyromq.backup.planning import Stretch, stretches, why_not_going_on
from pyromq.backup.target import LocalTarget, Target, saving
from pyromq.backup.telling import counted, tables
from pyromq.clock import Clock, SystemClock
from pyromq.errors import BackupError
from pyromq.files.disk import OsDisk
from pyromq.files.json_file import JsonFile
from pyromq.store.offline.readable_log import ReadableLog, readable_log
from pyromq.store.paths import StorePaths
from pyromq.version import version

#: `(done, total)` in bytes of the log.
Progress = Callable[[int, int], None]

#: The identity and the leaderships of a store: a restored one is another, and its settings say what it is.
NOT_SAVED = {"leadership.json"}


@dataclass(frozen=True, slots=True)
class Step:
    """The additions of one run to a backup."""

    last: Manifest | None
    base: Manifest
    stretches: tuple[Stretch, ...]
    #: The store is in use: bytes written during the run come with the next one.
    live: bool


@dataclass(frozen=True, slots=True)
class BackupReport:
    """The result of a run."""

    manifest: Manifest
    chunks: int
    bytes: int
    records: int
    live: bool
    #: Nothing has changed since the last run: there is no new manifest.
    unchanged: bool
    seconds: float

    def sentences(self) -> list[str]:
        made = self.manifest
        if self.unchanged:
            return [f"Nothing has changed since manifest {made.number}: the backup ends at position {made.end}."]
        whole = f"from position {made.start} to {made.end}, {counted(made.records, 'message')} in "
        whole += counted(len(made.chunks), "chunk")
        lines = [
            f"Added {counted(self.records, 'message')} ({self.bytes} bytes) in {counted(self.chunks, 'chunk')}, every "
            "record verified.",
            f"Manifest {made.number} has the log {whole}, and {tables(len(made.files))}.",
        ]
        return [*lines, "The store is in use: what it writes now comes with the next run."] if self.live else lines


def back_up(
    root: Path,
    target: Target,
    *,
    name: str = "",
    commit_log: Path | None = None,
    new_series: bool = False,
    threads: int = 0,
    clock: Clock | None = None,
    progress: Progress | None = None,
) -> BackupReport:
    """Make one step on this machine. Raises BackupError, CorruptLog, CorruptBackup, StoreError, OSError."""
    clock = clock or SystemClock()
    started = clock.monotonic()
    step = prepare(root, target, name=name, commit_log=commit_log, new_series=new_series, clock=clock)
    total, done = sum(each.end - each.start for each in step.stretches), 0
    chunks: list[Chunk] = []
    with ThreadPoolExecutor(threads or min(os.cpu_count() or 1, 8), "pyromq-backup") as pool:
        for chunk in pool.map(lambda each: copy_stretch(each, target, step.base.series), step.stretches):
            chunks.append(chunk)
            done += chunk.end - chunk.start
            if progress is not None:
                progress(done, total)
    return publish(step, target, chunks, seconds=clock.monotonic() - started)


def prepare(
    root: Path,
    target: Target,
    *,
    name: str = "",
    commit_log: Path | None = None,
    new_series: bool = False,
    clock: Clock | None = None,
) -> Step:
    """Decide the ranges to copy, and save the small files. Raises BackupError if the log does not continue it."""
    now_ms = (clock or SystemClock()).now_ms()
    _refuse_inside(root, target)
    last = newest(target)
    if last is not None and not new_series:
        refuse_incomplete(target, last)
    files = tuple(_save_small_files(root, target, last))
    log = readable_log(root, commit_log=commit_log)
    source = Source(name or root.name, _text(root.absolute()), socket.gethostname())
    begins_anew = last is None or new_series
    if last is not None and not new_series:
        refuse_another(target, last, log, same_tail=_has_tail(last, log))
    base = begun(None if begins_anew else last, last, log, source, files, now_ms)
    return Step(last, base, tuple(stretches(log, base.end)), log.live)


def begun(
    going_on: Manifest | None,
    last: Manifest | None,
    log: ReadableLog,
    source: Source,
    files: tuple[SavedFile, ...],
    now_ms: int,
) -> Manifest:
    """Return the manifest of a run before its chunks. `going_on`: the manifest whose series it continues."""
    number, series = (last.number, last.series) if last is not None else (0, 0)
    chunks = going_on.chunks if going_on is not None else ()
    end = going_on.end if going_on is not None else log.start
    end = end if chunks else max(end, log.start)
    return Manifest(
        number=number + 1,
        made_ms=now_ms,
        made_by=f"pyromq {version()}",
        source=source,
        series=series if going_on is not None else series + 1,
        segment_bytes=log.segment_bytes,
        start=chunks[0].start if chunks else end,
        end=end,
        chunks=chunks,
        files=files,
        previous=number,
    )


def _refuse_inside(root: Path, target: Target) -> None:
    if isinstance(target, LocalTarget) and target.directory.resolve().is_relative_to(root.resolve()):
        raise BackupError(
            f"{target.shown()} is in the store {root} itself, and would be lost with it: name a place outside, best on "
            "another disk"
        )


def _text(path: Path) -> str:
    return str(path).encode("utf-8", "replace").decode()


def refuse_another(target: Target, last: Manifest, log: ReadableLog, *, same_tail: bool | None) -> None:
    """Raises BackupError when the log does not go on from the backup."""
    problem = why_not_going_on(last, log, same_tail=same_tail)
    if problem is not None:
        raise BackupError(
            f"{log.root} does not go on from the backup in {target.shown()}: {problem}. Back it up to another place, "
            "or begin a new series in this one (--new-series): what is there stays, and can be restored"
        )


def _has_tail(last: Manifest, log: ReadableLog) -> bool | None:
    """Return True if the log has the last bytes of the backup; None if it has deleted them, or there are none."""
    compared = 0
    for chunk in reversed(last.chunks):
        segment = log.find(chunk.start)
        if segment is None or log.end < last.end or compared >= TAIL_BYTES:
            break
        if tail_of(segment.path, segment.base, chunk) != chunk.tail_sha256:
            return False
        compared += chunk.bytes  # a chunk may be as short as the blank that ends a segment
    return True if compared else None


def _save_small_files(root: Path, target: Target, last: Manifest | None) -> list[SavedFile]:
    """The tables under `config/`: each as it is, or its previous copy where that is damaged. Raises CorruptFile."""
    disk, directory = OsDisk(StorePaths(root).staging), StorePaths(root).config
    found: dict[str, bytes] = {}
    for name in disk.names(directory):
        if not name.endswith(".json") or name in NOT_SAVED or disk.is_dir(directory / name):
            continue
        file = JsonFile(disk, directory / name)
        file.load()
        found[f"config/{name}"] = disk.read_bytes(file.path if file.problem() is None else file.previous)
    return save_small_files(found, target, last)


def save_small_files(files: Mapping[str, bytes], target: Target, last: Manifest | None) -> list[SavedFile]:
    """Those that the backup does not have yet. Raises BackupError."""
    known = {saved.file for saved in last.files} if last is not None else set()
    saved: list[SavedFile] = []
    for name, data in files.items():
        each = SavedFile(name, file_path(sha256_of(data)), len(data), sha256_of(data))
        if each.file not in known:
            with saving(target, each.file):
                target.write(each.file, [data])
        saved.append(each)
    return saved


def publish(step: Step, target: Target, chunks: Sequence[Chunk], *, seconds: float = 0.0) -> BackupReport:
    """Write the manifest, which adds the copied chunks to the backup. Raises BackupError, OSError."""
    ordered = tuple(sorted(chunks, key=lambda chunk: chunk.start))
    manifest = step.base.going_on(ordered, ordered[-1].end if ordered else step.base.end)
    unchanged = step.last is not None and manifest == replace(
        step.last,
        number=manifest.number,
        made_ms=manifest.made_ms,
        made_by=manifest.made_by,
        source=manifest.source,
        previous=manifest.previous,
    )
    if unchanged and step.last is not None:
        return BackupReport(step.last, 0, 0, 0, step.live, True, seconds)
    with saving(target, manifest.path):
        try:
            target.create(manifest.path, encode(manifest))
        except FileExistsError:
            raise BackupError(
                f"another backup to {target.shown()} has just ended: manifest {manifest.number} is there. Run one at a "
                "time"
            ) from None
    figures = (len(ordered), sum(each.bytes for each in ordered), sum(each.records for each in ordered))
    return BackupReport(manifest, *figures, step.live, False, seconds)
