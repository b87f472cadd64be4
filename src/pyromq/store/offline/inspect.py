"""The contents of a store directory, for people and tools. Reads only: no lock is taken and no byte changes.

Works on a directory that a broker is using as well as on a cold one. Of a running broker it shows a moment that may
be over already: everything is looked at once, and the end of the log first.
"""

from __future__ import annotations

import shlex
import struct
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

from pyromq.config import StoreConfig
from pyromq.errors import ConfigError, StoreError
from pyromq.files import platform
from pyromq.files.disk import Disk, MappedFile, OsDisk, Usage
from pyromq.model.ids import QueueId
from pyromq.records import record
from pyromq.store import key_index
from pyromq.store.durability.checkpoint import AbortMark, Checkpoint, CheckpointFile, RecoverPoint, RecoverPointFile
from pyromq.store.log import log_place
from pyromq.store.log.segmented_file import NAME_DIGITS, Segment, SegmentedFile, is_position, run_names
from pyromq.store.log.zeroes import last_nonzero
from pyromq.store.paths import StorePaths
from pyromq.store.queues.consume_queue import ConsumeQueue
from pyromq.store.queues.queue_cursor import ENTRY
from pyromq.store.recovery import log_recovery

# --- what kind of store it is ------------------------------------------------------------------------------------


def detect(
    root: Path,
    *,
    commit_log: Path | None = None,
    disk: Disk | None = None,
    index_slots: int | None = None,
    index_entries: int | None = None,
) -> StoreConfig:
    """Return the sizes a store was written with, from the lengths of its files. Raises StoreError if it is no store.

    Our stores note the directory of their log. The length of an index file does not tell slots from entries, but its
    contents do. If it is empty or damaged, and has not the usual length, give both.
    """
    disk = disk or OsDisk(StorePaths(root).staging)
    try:
        paths = StorePaths(root, commit_log or log_place.remembered(disk, StorePaths(root)))
    except ConfigError as error:
        raise StoreError(str(error)) from None
    _require_store(disk, paths)
    defaults = StoreConfig(root=root)
    if index_slots is None and index_entries is None:
        index_slots, index_entries = _index_sizes(disk, paths, defaults) or (None, None)
    segment_bytes = _usual_length(disk, [paths.commit_log]) or defaults.segment_bytes
    queue_bytes = _usual_length(disk, (directory for _, _, directory in queue_directories(disk, paths)))
    try:
        config = StoreConfig(
            root=root,
            commit_log=paths.commit_log if paths.log_is_apart else None,
            segment_bytes=segment_bytes,
            queue_file_entries=queue_bytes // ENTRY.size if queue_bytes else defaults.queue_file_entries,
            index_slots=defaults.index_slots if index_slots is None else index_slots,
            index_entries=defaults.index_entries if index_entries is None else index_entries,
        )
    except ConfigError as error:
        raise StoreError(f"the file lengths in {root} are none that a store has: {error}") from None
    _require_index_length(disk, paths, config)
    return config


def _require_store(disk: Disk, paths: StorePaths) -> None:
    if not disk.exists(paths.root):
        raise StoreError(f"there is no directory {paths.root}")
    marks = (paths.commit_log, paths.checkpoint, paths.recover_point, paths.queues)
    if not any(map(disk.exists, marks)):
        raise StoreError(f"{paths.root} is no store: it has neither a commitlog directory nor a checkpoint")
    if paths.log_is_apart and not disk.exists(paths.commit_log):
        raise StoreError(
            f"the log of {paths.root} is in {paths.commit_log}, and there is no such directory: is its file system "
            "mounted? If the log is elsewhere now, say where (--commit-log)"
        )


def _usual_length(disk: Disk, directories: Iterable[Path]) -> int:
    """The length that most files have; 0 when there is no file."""
    lengths = Counter(
        size
        for directory in directories
        for name in disk.names(directory)
        if is_position(name) and (size := disk.size(directory / name))
    )
    return lengths.most_common(1)[0][0] if lengths else 0


def _index_sizes(disk: Disk, paths: StorePaths, defaults: StoreConfig) -> tuple[int, int] | None:
    """Slots and entries, where the files have another length than the usual one and agree on what they are."""
    found: set[tuple[int, int]] = set()
    for name in disk.names(paths.index):
        size = disk.size(paths.index / name)
        if not name.isdigit() or size < key_index.HEADER.size or size == index_file_bytes(defaults):
            continue
        file = disk.open_mapped(paths.index / name, writable=False)
        sizes = index_sizes_of(file)
        file.close()
        if sizes is not None:
            found.add(sizes)
    return found.pop() if len(found) == 1 else None


def index_sizes_of(file: MappedFile) -> tuple[int, int] | None:
    """Slots and entries of one index file, from where its last entry ends; None when the chains do not agree."""
    buffer, size = file.buffer, file.size
    header, entry_bytes = key_index.HEADER.size, key_index.ENTRY.size
    _, _, begin_position, end_position, _, count = key_index.HEADER.unpack_from(buffer)
    used = last_nonzero(buffer, header, max(file.data_end(0), header))
    # The last entry begins at a multiple of 4, less than an entry before its last byte that is not zero. The length of
    # the file allows one of these places: each step of 4 bytes is a slot more, and slots are given but for fives.
    for at in range((used - 1) // 4 * 4, max(used - 1 - entry_bytes, 0), -4):
        slots = (at - header - (count - 1) * entry_bytes) // 4
        entries, rest = divmod(size - header - 4 * slots, entry_bytes)
        if rest or count < 2 or slots < 1 or entries < count:
            continue
        chains = _Chains(buffer, slots, count)
        if chains.position(1) == begin_position and chains.position(count - 1) == end_position and chains.are_sound():
            return slots, entries
    return None


class _Chains:
    """Return the chains of an index file, if it had this many slots."""

    #: Entries that are looked at, at most.
    SAMPLE = 2000

    def __init__(self, buffer: memoryview, slots: int, count: int) -> None:
        self._buffer = buffer
        self._slots = slots
        self._count = count

    def _entry(self, number: int) -> tuple[int, int, int, int]:
        at = key_index.HEADER.size + 4 * self._slots + key_index.ENTRY.size * number
        entry: tuple[int, int, int, int] = key_index.ENTRY.unpack_from(self._buffer, at)
        return entry

    def position(self, number: int) -> int:
        return self._entry(number)[1]

    def are_sound(self) -> bool:
        """Each entry is in the chain of its slot: at its head or behind it, and before an older one of that slot."""
        for number in range(1, self._count, max(self._count // self.SAMPLE, 1)):
            found, _, _, previous = self._entry(number)
            slot = found % self._slots
            (head,) = struct.unpack_from(">i", self._buffer, key_index.HEADER.size + 4 * slot)
            if not number <= head < self._count or self._entry(head)[0] % self._slots != slot:
                return False
            if previous and not (0 < previous < number and self._entry(previous)[0] % self._slots == slot):
                return False
        return True


def _require_index_length(disk: Disk, paths: StorePaths, config: StoreConfig) -> None:
    expected = index_file_bytes(config)
    for name in disk.names(paths.index):
        size = disk.size(paths.index / name)
        if name.isdigit() and size not in (0, expected):
            raise StoreError(
                f"{paths.index / name} has {size} bytes, which is not an index of {config.index_slots} slots and "
                f"{config.index_entries} entries ({expected} bytes): say how many of both it was written with "
                "(--index-slots, --index-entries)"
            )


def index_file_bytes(config: StoreConfig) -> int:
    return key_index.HEADER.size + 4 * config.index_slots + key_index.ENTRY.size * config.index_entries


# --- finding the files -------------------------------------------------------------------------------------------


class Problem(Enum):
    NAME = "name"
    LENGTH = "length"
    MISSING = "missing"
    DAMAGE = "damage"


@dataclass(frozen=True, slots=True)
class FileProblem:
    """A file that cannot be part of its run, or one that is missing from it."""

    path: Path
    position: int
    what: str
    kind: Problem


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why a start would refuse the store, and what can be done."""

    what: str
    way_out: str


def find_run(disk: Disk, directory: Path, file_bytes: int) -> tuple[list[Segment], list[FileProblem]]:
    """Return the readable files of a run, oldest first, and the faults of the others."""
    segments: list[Segment] = []
    problems: list[FileProblem] = []
    for name in run_names(disk, directory):
        path = directory / name
        if not is_position(name):
            problems.append(FileProblem(path, 0, "the file's name is not a position of 20 digits", Problem.NAME))
            continue
        base, size = int(name), disk.size(path)
        if segments and base > segments[-1].end:
            what = f"no file holds the bytes from {segments[-1].end} to {base}"
            problems.append(FileProblem(path, segments[-1].end, what, Problem.MISSING))
        if size != file_bytes or base % file_bytes:
            what = f"the file has {size} bytes where the others have {file_bytes}"
            if size == file_bytes:
                what = f"no file of {file_bytes} bytes begins at {base}"
            problems.append(FileProblem(path, base, what, Problem.LENGTH))
            continue
        segments.append(Segment(disk, path, base, size, writable=False))
    return segments, problems


def why_refused(
    disk: Disk, paths: StorePaths, point: RecoverPoint | None, segments: list[Segment], problems: list[FileProblem]
) -> Refusal | None:
    """Would a start refuse these files of a log? Not for what it puts right itself, as `SegmentedFile.load` says."""
    log_start = point.log_start if point is not None else 0
    last = max(run_names(disk, paths.commit_log), default="")
    for problem in problems:
        if problem.kind is Problem.NAME:
            return Refusal(f"{problem.path}: {problem.what}", f"Move {problem.path} elsewhere.")
        if problem.kind is Problem.LENGTH and problem.path.name == last and not disk.size(problem.path):
            continue
        if problem.kind is Problem.MISSING:
            behind = [segment for segment in segments if segment.base > problem.position]
            if problem.position <= log_start or not any(any(each.buffer[:8]) for each in behind if each.data_end(0)):
                continue
        return Refusal(f"{problem.path}: {problem.what}", _way_round(disk, paths, segments, problem))
    return None


def _way_round(disk: Disk, paths: StorePaths, segments: list[Segment], problem: FileProblem) -> str:
    """A way out that works when a file is missing, or is not what it must be."""
    whole = [segment.end for segment in segments if segment.end <= problem.position]
    back = "the missing file" if problem.kind is Problem.MISSING else problem.path
    wanted = f"Put {back} back from a backup or a replica"
    if not whole:  # the log may begin later
        return f"{wanted}; or give it up: move it elsewhere, then run `{recover_command(paths)}`."
    names = [name for name in disk.names(paths.commit_log) if is_position(name) and int(name) >= whole[-1]]
    files = f"{names[0]} and all behind it ({len(names)} files)" if len(names) > 1 else names[0]
    return (
        f"{wanted}; or give up what follows: move {files} from {paths.commit_log} elsewhere, then run "
        f"`{recover_command(paths, whole[-1])}`."
    )


def recover_command(paths: StorePaths, truncate_at: int | None = None) -> str:
    """To be copied into a shell."""
    command = f"pyromq store recover {shlex.quote(str(paths.root))}"
    if paths.log_is_apart:
        command += f" --commit-log {shlex.quote(str(paths.commit_log))}"
    return command if truncate_at is None else f"{command} --truncate-at {truncate_at}"


def queue_directories(disk: Disk, paths: StorePaths) -> Iterable[tuple[str, int, Path]]:
    """Topic, number and directory of every queue, in order."""
    for topic in disk.names(paths.queues):
        numbers = [int(name) for name in disk.names(paths.queues / topic) if name.isascii() and name.isdigit()]
        for number in sorted(numbers):
            yield topic, number, paths.queues / topic / str(number)


def last_stretch(segments: list[Segment]) -> list[Segment]:
    """The newest files that have no gap between them."""
    start = len(segments) - 1
    while start > 0 and segments[start - 1].end == segments[start].base:
        start -= 1
    return segments[max(start, 0) :]


def without_unused(segments: list[Segment]) -> list[Segment]:
    """Without those at the end to which nothing was ever written; the first stays. On a tmpfs a look takes room."""
    end = len(segments)
    while end > 1 and not segments[end - 1].data_end(0):
        end -= 1
    return segments[:end]


def stored_ms(segment: Segment, position: int) -> int | None:
    """Return the store time of the record at a position; None when none is there."""
    return record.stored_at_ms(segment.buffer, position - segment.base, segment.size)


# --- the results -------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class LogView:
    start: int
    end: int
    segment_bytes: int
    #: Its directory, if that is not the usual one.
    apart: Path | None
    segments: list[SegmentView]
    last_message_ms: int | None
    #: The bytes after the end that are no record, in the words of a start; None if there are none.
    behind_the_end: str | None


@dataclass(frozen=True, slots=True)
class SegmentView:
    file: str
    position: int
    used_bytes: int
    first_message_ms: int | None


@dataclass(frozen=True, slots=True)
class QueueView:
    number: int
    min_offset: int
    max_offset: int
    files: int
    last_message_ms: int | None

    @property
    def messages(self) -> int:
        return self.max_offset - self.min_offset


@dataclass(frozen=True, slots=True)
class TopicView:
    name: str
    queues: list[QueueView]

    @property
    def messages(self) -> int:
        return sum(queue.messages for queue in self.queues)

    @property
    def last_message_ms(self) -> int | None:
        return max((queue.last_message_ms for queue in self.queues if queue.last_message_ms), default=None)


@dataclass(frozen=True, slots=True)
class IndexView:
    file: str
    entries: int
    capacity: int
    begin_ms: int
    end_ms: int
    begin_position: int
    end_position: int


@dataclass(frozen=True, slots=True)
class FileView:
    file: str
    bytes: int
    modified_ms: int


@dataclass(frozen=True, slots=True)
class StoreView:
    root: Path
    #: The pid of the process that has the store open; 0 if the system does not know it, None if the store is not open.
    lock_holder: int | None
    #: The last broker stopped in order (no abort mark), or there never was one.
    clean: bool
    #: The process that left the abort mark.
    abort_pid: int | None
    log: LogView
    queue_file_entries: int
    recover_point: RecoverPoint | None
    checkpoint: Checkpoint
    topics: list[TopicView]
    index: list[IndexView]
    config_files: list[FileView]
    cut_off: list[FileView]
    disk: Usage
    #: That of the log, which may be another one.
    log_disk: Usage
    #: Lengths of the files, by directory. Files are made in full length ahead, so less may be in use.
    bytes_by_directory: dict[str, int]
    problems: list[FileProblem]
    #: One of the problems, or damage in the log, that keeps the store from starting; None: it would start.
    refusal: Refusal | None

    @property
    def messages(self) -> int:
        return sum(topic.messages for topic in self.topics)


# --- looking -----------------------------------------------------------------------------------------------------


def inspect(
    root: Path, *, disk: Disk | None = None, config: StoreConfig | None = None, topic: str | None = None
) -> StoreView:
    """Look at a store. With `topic`, only at that one's queues. Raises StoreError, OSError."""
    disk = disk or OsDisk(StorePaths(root).staging)
    config = config or detect(root, disk=disk)
    paths = StorePaths.of(config)
    platform.raise_open_file_limit()
    return _Inspection(disk, paths, config).view(topic)


class _Inspection:
    def __init__(self, disk: Disk, paths: StorePaths, config: StoreConfig) -> None:
        self._disk = disk
        self._paths = paths
        self._config = config
        self._problems: list[FileProblem] = []
        self._refusal: Refusal | None = None
        self._files = SegmentedFile(disk, paths.commit_log, config.segment_bytes, writable=False)

    def view(self, topic: str | None) -> StoreView:
        disk, paths = self._disk, self._paths
        abort = AbortMark(disk, paths.abort)
        clean = not abort.is_set()
        point = RecoverPointFile(disk, paths.recover_point).load()
        checkpoint = CheckpointFile(disk, paths.checkpoint).load()
        log = self._log(point, checkpoint, clean)
        view = StoreView(
            root=paths.root,
            lock_holder=disk.lock_holder(paths.lock),
            clean=clean,
            abort_pid=_number(disk.read_bytes(paths.abort)) if not clean else None,
            log=log,
            queue_file_entries=self._config.queue_file_entries,
            recover_point=point,
            checkpoint=checkpoint,
            topics=self._topics(topic, log),
            index=self._index(),
            config_files=self._small_files(paths.config),
            cut_off=self._small_files(paths.cut_off),
            disk=disk.usage(paths.root),
            log_disk=log_place.usage(disk, paths),
            bytes_by_directory=self._bytes_by_directory(),
            problems=self._problems,
            refusal=self._refusal,
        )
        self._files.close()
        return view

    def _log(self, point: RecoverPoint | None, checkpoint: Checkpoint, clean: bool) -> LogView:
        segments, problems = find_run(self._disk, self._paths.commit_log, self._config.segment_bytes)
        self._problems += problems
        self._refusal = why_refused(self._disk, self._paths, point, segments, problems)
        if point is not None:
            segments = [segment for segment in segments if segment.end > point.log_start]
        files = self._files
        files.segments = without_unused(last_stretch(segments))
        start = log_recovery.scan_start(files, point, checkpoint, clean=clean)
        found = log_recovery.find_log_end(files, start, self._config.recovery_threads)
        self._check_synced(found, point, clean)
        views = [
            SegmentView(
                str(self._paths.shown(segment.path)),
                segment.base,
                min(max(found.end - segment.base, 0), segment.size),
                stored_ms(segment, segment.base) if segment.data_end(0) else None,
            )
            for segment in segments
        ]
        last_ms = found.last_timestamp_ms or (point.timestamp_ms if point else 0)
        return LogView(
            start=segments[0].base if segments else 0,
            end=found.end,
            segment_bytes=files.file_bytes,
            apart=self._paths.commit_log if self._paths.log_is_apart else None,
            segments=views,
            last_message_ms=last_ms or None,
            behind_the_end=found.damage,
        )

    def _check_synced(self, found: log_recovery.LogEnd, point: RecoverPoint | None, clean: bool) -> None:
        """Does the log end before it may? A start says the same, for the same reasons."""
        if point is None and not (clean and found.damage):
            return
        if point is not None and found.end >= point.synced:
            return
        path = self._paths.commit_log / f"{found.end - found.end % self._config.segment_bytes:0{NAME_DIGITS}d}"
        there = f"damage in synced data ({found.damage or 'zeroes where a record must be'})"
        what = there if self._disk.exists(path) else "the file is missing: the log went on here"
        self._problems.append(FileProblem(path, found.end, what, Problem.DAMAGE))
        if self._refusal is None:
            way_out = (
                f"Put {path} back from a backup or a replica, or give up what follows with "
                f"`{recover_command(self._paths, found.end)}`."
            )
            self._refusal = Refusal(f"{path}: {what} at position {found.end}", way_out)

    def _topics(self, wanted: str | None, log: LogView) -> list[TopicView]:
        topics: dict[str, list[QueueView]] = {}
        for topic, number, directory in queue_directories(self._disk, self._paths):
            if wanted is None or topic == wanted:
                topics.setdefault(topic, []).append(self._queue(QueueId(topic, number), directory, log))
        if wanted is not None and not topics:
            raise StoreError(f"{self._paths.root} has no topic {wanted}")
        return [TopicView(name, queues) for name, queues in topics.items()]

    def _queue(self, queue_id: QueueId, directory: Path, log: LogView) -> QueueView:
        queue = ConsumeQueue(self._disk, directory, queue_id, self._config.queue_file_entries, writable=False)
        segments, problems = find_run(self._disk, directory, queue.files.file_bytes)
        self._problems += problems
        queue.files.segments = last_stretch(segments)
        try:
            end = queue.find_end(lambda _, entry: entry.size > 0 and 0 <= entry.position < log.end)
            start = self._first_offset(queue, end, log.start)
            last = queue.entry(end - 1) if end > start else None
            segment = self._files.find(last.position) if last is not None else None
            last_ms = stored_ms(segment, last.position) if segment is not None and last is not None else None
            return QueueView(queue_id.number, start, end, len(segments), last_ms)
        finally:
            queue.close()

    @staticmethod
    def _first_offset(queue: ConsumeQueue, end: int, log_start: int) -> int:
        low, high = queue.files.start // ENTRY.size, end
        while low < high:
            middle = (low + high) // 2
            entry = queue.entry(middle)
            if entry is None or entry.is_blank or entry.position < log_start:
                low = middle + 1
            else:
                high = middle
        return low

    def _index(self) -> list[IndexView]:
        views: list[IndexView] = []
        for name in self._disk.names(self._paths.index):
            path = self._paths.index / name
            if not name.isdigit() or self._disk.size(path) != index_file_bytes(self._config):
                self._problems.append(
                    FileProblem(path, 0, "this is no index file of the usual name and length", Problem.LENGTH)
                )
                continue
            file = self._disk.open_mapped(path, writable=False)
            begin_ms, end_ms, begin, end, _, count = key_index.HEADER.unpack_from(file.buffer)
            file.close()
            # Entry 0 is never used.
            views.append(IndexView(f"index/{name}", max(count - 1, 0), self._config.index_entries - 1,
                                   begin_ms, end_ms, begin, end))  # fmt: skip
        return views

    def _small_files(self, directory: Path) -> list[FileView]:
        return [
            FileView(
                str((directory / name).relative_to(self._paths.root)),
                self._disk.size(directory / name),
                self._disk.modified_ms(directory / name),
            )
            for name in self._disk.names(directory)
        ]

    def _bytes_by_directory(self) -> dict[str, int]:
        paths, disk = self._paths, self._disk
        directories = {
            "commitlog": [paths.commit_log],
            "consumequeue": [directory for _, _, directory in queue_directories(disk, paths)],
            "index": [paths.index],
            "config": [paths.config],
            "cutoff": [paths.cut_off],
        }
        return {
            name: sum(disk.size(each / file) for each in places for file in run_names(disk, each))
            for name, places in directories.items()
        }


def _number(text: bytes) -> int | None:
    return int(text) if text.strip().isdigit() else None
