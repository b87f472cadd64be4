"""A disk in memory that tracks synced data, and shows the possible states after a power cut.

    disk = SimDisk()
    ...                          # let a store work on it; call disk.mark() after each operation
    after = disk.crash(rng)      # one possible disk after a power cut now; the same seed gives the same one
    after = disk.kill()          # the disk after only the process died

The fault model, which is harsher than any one file system:

- *Sectors* of 512 bytes are written whole or not at all, each on its own and in any order, across all files.
  Before a sync has returned, a sector may come back as it was at the last sync (zeroes, in a new file), as it
  is now, or as it was at any `mark()` in between. Writes into a mapping cannot be
  observed, so all changes between two marks count as one write.
- *sync* makes a file's bytes durable as of the call. One that fails makes nothing durable, and the pages it
  was to write are not tried again: a later sync that succeeds says nothing about them until they change (as
  Linux does it). Bytes written over with equal bytes do not count as a change here.
- *create_mapped* is durable on return: name, size, zeroes. A crash within leaves nothing under the name.
- *replace_bytes* is durable on return. A crash within leaves the old file or the new one, and perhaps the
  draft next to the old one (`.tmp`): empty, with sectors missing, or complete.
- *remove* is durable once a later create, replace or make_dir has synced the same directory. Until then each
  file may come back, with its durable or pending bytes.
- *move_tree* is a remove and a create of each file, durable with `sync_name`.
- *A process kill* loses no bytes, but unsynced ones stay unsynced: a power cut later may still take them.
- *Not modelled*: sectors torn inside, synced bytes that go bad by themselves (order it with `flip_bits` and
  `plant`), drafts in a staging directory, and room taken by writing into a hole that was never reserved.

Faults to order: `on_operation` may raise `PowerCut` in the middle of things, `fail_next_sync`, `full` and
`capacity_bytes` for a disk without room, `cold` for files that are not in memory.
"""

from __future__ import annotations

import errno
import os
import random
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from pyromq.clock import Clock, ManualClock
from pyromq.files.disk import DirectoryLock, Identity, Locked, MappedFile, Usage
from pyromq.testing.sim.crash_choice import Change, CrashChoice, CrashMode, choose
from pyromq.testing.sim.file import PAGE, SimFile, pages_between

#: Room on a disk that was not told how large it is: more than a test fills.
DEFAULT_CAPACITY_BYTES = 1 << 40


class PowerCut(BaseException):
    """The machine stopped here. Not an `Exception`, so that no handler for errors takes it for one."""


class _Folder:
    """A directory. Its content follows from the paths."""

    __slots__ = ()


_FOLDER = _Folder()
_Entry = SimFile | _Folder


@dataclass(slots=True)
class _NameHistory:
    """The targets of a name since its directory was last synced. None: the name did not exist."""

    durable: _Entry | None
    versions: list[tuple[int, _Entry | None]] = field(default_factory=list)


class SimMappedFile:
    """A `MappedFile` of a `SimDisk`."""

    __slots__ = ("_disk", "_file", "_open", "buffer", "path", "size")

    def __init__(self, disk: SimDisk, path: Path, file: SimFile, *, writable: bool) -> None:
        if not file.size:
            raise ValueError("cannot map an empty file")  # the system cannot either
        view = memoryview(file.map())
        self.buffer = view if writable else view.toreadonly()
        self.path = path
        self.size = file.size
        self._disk = disk
        self._file = file
        self._open = True

    @property
    def identity(self) -> Identity:
        return 0, self._file.inode

    def sync(self) -> None:
        self._require_open()
        self._disk._sync_file(self.path, self._file)

    def reserve(self, start: int, end: int) -> None:
        self._require_open()
        self._disk._reserve(self.path, self._file, start, min(end, self.size))

    def warm(self, start: int, end: int) -> None:
        """Memory is warm."""

    def sync_descriptor(self) -> int:
        return -1  # nothing real is behind it

    def keep_pages_small(self) -> None:
        """Any number is fine."""

    def let_pages_grow(self) -> None:
        """Here too."""

    def let_descriptor_go(self) -> None:
        """There is none."""

    def write_at(self, start: int, data: memoryview) -> None:
        self._require_open()
        self._disk._require_power()
        if self.buffer.readonly:
            raise OSError(errno.EBADF, os.strerror(errno.EBADF), str(self.path))
        assert start + len(data) <= self.size, "a mapped file has a fixed length"
        self.buffer[start : start + len(data)] = data

    def read_at(self, start: int, size: int) -> bytes:
        self._require_open()
        if start + size > self.size:
            raise OSError(errno.EIO, f"{self.path} ends before position {start + size}")
        return bytes(self.buffer[start : start + size])

    def is_resident(self, start: int, end: int) -> bool:
        return self.path not in self._disk.cold

    def data_end(self, start: int) -> int:
        return self.size

    def close(self) -> None:
        self._open = False

    def _require_open(self) -> None:
        if not self._open:  # the caller's mistake, not the disk's
            raise ValueError(f"{self.path} is closed")


class _SimLock:
    __slots__ = ("_held", "_path")

    def __init__(self, held: set[Path], path: Path) -> None:
        self._held = held
        self._path = path
        held.add(path)

    def release(self) -> None:
        self._held.discard(self._path)


class SimDisk:
    """A `Disk` in memory. The module says what a power cut does to it.

    Several threads may use it; what a crash finds is then up to their timing, and a seed repeats nothing.
    """

    def __init__(
        self,
        clock: Clock | None = None,
        *,
        capacity_bytes: int = DEFAULT_CAPACITY_BYTES,
        pid: int | None = None,
    ) -> None:
        #: The size of the disk. Set it below the used bytes, and nothing more fits.
        self.capacity_bytes = capacity_bytes
        #: True: there is no room, however large the disk is.
        self.full = False
        #: The number of further files a program may open; nothing counts them.
        self.open_files_left = 1 << 20
        #: Files that pretend not to be in memory.
        self.cold: set[Path] = set()
        #: Called before each step of an operation, with its name and path. What it raises, the operation
        #: raises; `PowerCut` stops the disk for good: it stays as it was then, whatever the program does on
        #: its way out. Steps: create, sync, reserve, remove, replace:write (the draft is being written),
        #: replace:rename (it is complete), replace:sync_dir (the new file has the name, not yet durably), move,
        #: sync_name.
        self.on_operation: Callable[[str, Path], None] | None = None
        self._clock = clock or ManualClock()
        self._pid = os.getpid() if pid is None else pid
        self._names: dict[Path, _Entry] = {}
        self._unsynced_names: dict[Path, _NameHistory] = {}
        self._failures: list[tuple[Callable[[Path], bool], OSError]] = []
        self._held: set[Path] = set()
        #: Directories that were moved away, and when, until that is durable.
        self._moved: dict[Path, int] = {}
        self._moment = 0
        self._power = True
        self._is_abandoned = False
        # Syncs come from flush threads: a mark in the middle of one would take synced sectors for stale ones.
        self._guard = threading.RLock()

    # -- the Disk port -----------------------------------------------------------------------------

    def make_dir(self, path: Path) -> None:
        self._require_power()
        self._require_owned(path)
        with self._guard:
            missing = [each for each in (path, *path.parents) if each not in self._names]
            for directory in reversed(missing):
                self._settle(directory.parent)
                self._names[directory] = _FOLDER

    def names(self, path: Path) -> list[str]:
        return sorted(name for name, _ in self._below(path) if os.sep not in name)

    def exists(self, path: Path) -> bool:
        return path in self._names

    def is_dir(self, path: Path) -> bool:
        return self._names.get(path) is _FOLDER

    def identity(self, path: Path) -> Identity | None:
        entry = self._names.get(path)
        return None if entry is None else (0, entry.inode if isinstance(entry, SimFile) else 0)

    def abandon(self) -> None:
        self._is_abandoned = True

    def _require_owned(self, path: Path) -> None:
        if self._is_abandoned:
            raise OSError(errno.ESTALE, os.strerror(errno.ESTALE), str(path))

    def size(self, path: Path) -> int:
        return self._file(path).size

    def modified_ms(self, path: Path) -> int:
        return self._file(path).modified_ms

    def create_mapped(self, path: Path, size: int, *, reserve: bool, durable: bool = True) -> MappedFile:
        self._step("create", path)
        pages = pages_between(0, size) if reserve else 0
        self._require_room(pages, path)
        self.make_dir(path.parent)
        file = SimFile(bytes(size), self._clock.now_ms(), pages=pages)
        mapped = SimMappedFile(self, path, file, writable=True)
        with self._guard:
            self._rename(path, file)
            if durable:
                self._settle(path.parent)
        return mapped

    def open_mapped(self, path: Path, *, writable: bool = True) -> MappedFile:
        self._require_power()
        return SimMappedFile(self, path, self._file(path), writable=writable)

    def read_bytes(self, path: Path) -> bytes:
        return self._file(path).content

    def replace_bytes(self, path: Path, data: bytes) -> None:
        self._require_power()
        self._require_room(pages_between(0, max(len(data), 1)), path)
        self.make_dir(path.parent)
        file = self._write_draft(path, data)
        with self._guard:
            self._rename(path, file)
            self._rename(_draft_of(path), None)
        self._step("replace:sync_dir", path)
        self._settle(path.parent)

    def _write_draft(self, path: Path, data: bytes) -> SimFile:
        file = self._write_new(_draft_of(path), bytes(data))
        try:
            self._step("replace:write", path)
            self._finish_sync(path, file)
            self._step("replace:rename", path)
        except PowerCut:
            raise
        except BaseException:
            self._rename(_draft_of(path), None)
            raise
        return file

    def remove(self, path: Path) -> None:
        self._require_owned(path)
        self._step("remove", path)
        if path in self._names:
            self._file(path)  # a directory is not removed this way
            self._rename(path, None)

    def remove_tree(self, path: Path) -> None:
        self._require_power()
        self._require_owned(path)
        with self._guard:
            inside = [each for _, each in self._below(path)]
        for each in sorted(inside, reverse=True):  # the content of a directory before the directory
            self._step("remove", each)
            self._rename(each, None)
        if self._names.get(path) is _FOLDER:
            self._rename(path, None)

    def move_tree(self, path: Path, target: Path) -> None:
        self._step("move", path)
        if self._names.get(path) is not _FOLDER:
            raise OSError(errno.ENOENT, os.strerror(errno.ENOENT), str(path))
        self.make_dir(target)
        with self._guard:
            for name, each in self._below(path):
                entry = self._names[each]
                self._rename(each, None)
                self._rename(target / name, entry)
            self._rename(path, None)
            self._moved[path] = self._next_moment()

    def sync_name(self, path: Path) -> None:
        self._step("sync_name", path)
        with self._guard:
            moment = self._moved.pop(path, None)
            inside = [each for each in self._unsynced_names if moment is not None and path in each.parents]
            for each in inside:
                # It was in the directory that has moved away: only entries of a new one may still be lost.
                versions = [version for version in self._unsynced_names[each].versions if version[0] > (moment or 0)]
                self._unsynced_names[each] = _NameHistory(None, versions)
                if not versions:
                    del self._unsynced_names[each]
            self._settle(path.parent)

    def files_left(self) -> int:
        return self.open_files_left

    def usage(self, path: Path) -> Usage:
        used = self.capacity_bytes if self.full else min(self._used(), self.capacity_bytes)
        return Usage(total=self.capacity_bytes, used=used)

    def lock(self, path: Path) -> DirectoryLock:
        if path in self._held:
            raise Locked(self._pid)
        self.make_dir(path.parent)
        if path not in self._names:
            self._write_new(path, b"lock")
        return _SimLock(self._held, path)

    def lock_holder(self, path: Path) -> int | None:
        return self._pid if path in self._held else None

    # -- power cuts --------------------------------------------------------------------------------

    def mark(self) -> None:
        """Record the changes since the last mark, as versions that a power cut may bring back."""
        with self._guard:
            self._moment += 1
            for file in self._files():
                if file.note(self._moment):
                    file.modified_ms = self._clock.now_ms()

    def crash(self, rng: random.Random, mode: CrashMode | None = None) -> SimDisk:
        """A new disk: one possible state of this one after a power cut now. This one is left as it is."""
        with self._guard:
            return self.after(self.choose_crash(rng, mode))

    def choose_crash(self, rng: random.Random, mode: CrashMode | None = None) -> CrashChoice:
        """Decide what a power cut now would leave; `after` shows it."""
        with self._guard:
            self.mark()
            changes = list(self._unsynced())
        return choose(changes, rng, mode)

    def after(self, choice: CrashChoice) -> SimDisk:
        """The disk that this choice leaves. Nothing may have happened to this one since it was made."""
        names = dict(self._names)
        sectors: dict[SimFile, dict[int, bytes]] = {}
        for (owner, sector, _), pick in zip(self._unsynced(), choice.picks, strict=True):
            if isinstance(owner, Path):
                self._apply_name(names, owner, pick)
            elif pick:
                _, data = owner.versions[sector][pick - 1]
                sectors.setdefault(owner, {})[sector] = data
        self._mend(names)
        disk = self._like_this()
        disk._names = {
            path: entry.after(sectors.get(entry, {})) if isinstance(entry, SimFile) else entry
            for path, entry in names.items()
        }
        return disk

    def kill(self) -> SimDisk:
        """A new disk: this one after the process died and lost its locks. What it wrote is all there."""
        return self.copy()

    def copy(self) -> SimDisk:
        """The same disk once more, with all that it may still lose; without locks, hook, ordered failures."""
        with self._guard:
            self.mark()
            twins: dict[_Entry, _Entry] = {file: file.copy() for file in self._files()}
            twins[_FOLDER] = _FOLDER
            disk = self._like_this()
            disk._names = {path: twins[entry] for path, entry in self._names.items()}
            for path, history in self._unsynced_names.items():
                versions = [(moment, entry and twins[entry]) for moment, entry in history.versions]
                disk._unsynced_names[path] = _NameHistory(history.durable and twins[history.durable], versions)
            return disk

    def sync_all(self) -> None:
        """Make everything durable, removals too: what the system does when it is given time."""
        self._require_power()
        with self._guard:
            for file in self._files():
                file.sync()
            self._unsynced_names.clear()

    def describe(self, choice: CrashChoice) -> str:
        """A choice in words, a line for each unsynced change: for the report of a failing seed."""
        renamed = ((path, entry) for path, each in self._unsynced_names.items() for _, entry in each.versions)
        paths = {entry: path for path, entry in (*renamed, *self._names.items())}
        lines = [f"crash: {choice.mode.value}"]
        for (owner, sector, versions), pick in zip(self._unsynced(), choice.picks, strict=True):
            where = f"name {owner}" if isinstance(owner, Path) else f"{paths.get(owner, 'removed')} sector {sector}"
            lines.append(f"{where}: {f'version {pick} of {len(versions)}' if pick else 'lost'}")
        return "\n".join(lines)

    # -- faults to order ---------------------------------------------------------------------------

    def fail_next_sync(self, where: Callable[[Path], bool] = lambda path: True, error: OSError | None = None) -> None:
        """Let the next sync of such a path fail, or the `replace_bytes` of it. Several calls add up."""
        self._failures.append((where, error or OSError(errno.EIO, os.strerror(errno.EIO))))

    def flip_bits(
        self, path: Path, rng: random.Random, count: int = 1, *, start: int = 0, end: int | None = None
    ) -> list[int]:
        """Flip this many bits in these bytes, in memory and on the disk; return the damaged bytes."""
        with self._guard:
            file = self._file(path)
            file.note(self._moment)
            bits = rng.sample(range(start * 8, (file.size if end is None else end) * 8), count)
            for bit in bits:
                file.flip(bit // 8, bit % 8)
        return [bit // 8 for bit in bits]

    def plant(self, path: Path, data: bytes) -> None:
        """Put a file there as if it had always been: to cut one short, to swap two, to start from."""
        self.make_dir(path.parent)
        with self._guard:
            self._unsynced_names.pop(path, None)
            self._names[path] = SimFile(bytes(data), self._clock.now_ms(), pages=pages_between(0, len(data)))

    # -- looking at it -----------------------------------------------------------------------------

    def files(self) -> dict[Path, bytes]:
        """Every file as a program sees it now."""
        with self._guard:
            return {path: entry.content for path, entry in self._names.items() if isinstance(entry, SimFile)}

    def export(self, directory: Path) -> None:
        """Write every file, as a program sees it now, into a real directory: to look at a failing seed."""
        for path, entry in list(self._names.items()):
            target = directory / path.relative_to(path.anchor)
            if isinstance(entry, SimFile):
                target.parent.mkdir(parents=True, exist_ok=True)
                target.write_bytes(entry.content)
            else:
                target.mkdir(parents=True, exist_ok=True)

    @classmethod
    def load(cls, directory: Path, *, root: Path = Path("/"), clock: Clock | None = None) -> SimDisk:
        """A disk with what a real directory holds; `root` is what the directory is called on it."""
        disk = cls(clock)
        for path in sorted(directory.rglob("*")):
            if path.is_file():
                disk.plant(root / path.relative_to(directory), path.read_bytes())
            elif path.is_dir():
                disk.make_dir(root / path.relative_to(directory))
        return disk

    # -- steps -------------------------------------------------------------------------------------

    def _require_power(self) -> None:
        if not self._power:
            raise PowerCut

    def _step(self, operation: str, path: Path) -> None:
        self._require_power()
        if self.on_operation is None:
            return
        try:
            self.on_operation(operation, path)
        except PowerCut:
            self._stop()
            raise

    def _stop(self) -> None:
        """From now on nothing changes: mappings that the program still writes to are cut loose."""
        with self._guard:
            self.mark()
            for file in self._files():
                file.memory = None
            self._power = False

    def _sync_file(self, path: Path, file: SimFile) -> None:
        self._step("sync", path)
        self._finish_sync(path, file)
        if path in self._unsynced_names and self._names.get(path) is file:
            self._settle(path.parent)  # a file that was made without a durable name gets one with its first sync

    def _finish_sync(self, path: Path, file: SimFile) -> None:
        failure = next((each for each in self._failures if each[0](path)), None)
        with self._guard:
            self._require_power()
            if failure is not None:
                self._failures.remove(failure)
                file.fail_sync(self._next_moment())
                raise failure[1]
            if file.changed:
                file.modified_ms = self._clock.now_ms()
            file.sync()

    # -- room --------------------------------------------------------------------------------------

    def _used(self) -> int:
        with self._guard:
            files = [entry for entry in self._names.values() if isinstance(entry, SimFile)]
            return PAGE * sum(file.pages.bit_count() for file in files)

    def _require_room(self, pages: int, path: Path) -> None:
        wanted = PAGE * pages.bit_count()
        if wanted and (self.full or self._used() + wanted > self.capacity_bytes):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))

    def _reserve(self, path: Path, file: SimFile, start: int, end: int) -> None:
        self._step("reserve", path)
        wanted = pages_between(start, end) & ~file.pages
        self._require_room(wanted, path)
        file.pages |= wanted

    # -- names -------------------------------------------------------------------------------------

    def _file(self, path: Path) -> SimFile:
        entry = self._names.get(path)
        if isinstance(entry, SimFile):
            return entry
        code = errno.ENOENT if entry is None else errno.EISDIR
        raise OSError(code, os.strerror(code), str(path))  # Python makes it FileNotFoundError, IsADirectoryError

    def _below(self, path: Path) -> list[tuple[str, Path]]:
        """Everything inside a directory, at any depth, with its name relative to it."""
        # Text, for pathlib's own comparisons cost more here than a whole recovery does.
        prefix = "" if path == Path() else str(path).rstrip(os.sep) + os.sep
        start = len(prefix)
        found = [(str(each)[start:], each) for each in list(self._names) if str(each).startswith(prefix)]
        return [(name, each) for name, each in found if name and each != path]

    def _write_new(self, path: Path, data: bytes) -> SimFile:
        """A new name for unsynced bytes. It was empty first, and may be found so."""
        with self._guard:
            self._rename(path, SimFile(b"", self._clock.now_ms(), pages=0))
            file = SimFile.written(data, self._next_moment(), self._clock.now_ms())
            self._rename(path, file)
        return file

    def _rename(self, path: Path, entry: _Entry | None) -> None:
        """Let a name stand for something else, or for nothing; not durably."""
        with self._guard:
            history = self._unsynced_names.setdefault(path, _NameHistory(self._names.get(path)))
            history.versions.append((self._next_moment(), entry))
            if entry is None:
                self._names.pop(path, None)
            else:
                self._names[path] = entry

    def _settle(self, directory: Path) -> None:
        """Sync a directory: what its names stand for now is durable."""
        with self._guard:
            settled = [path for path in self._unsynced_names if path.parent == directory]
            gone = {path for path in settled if path not in self._names}
            # Nothing comes back into a directory whose removal is durable.
            settled += [path for path in self._unsynced_names if gone and not gone.isdisjoint(path.parents)]
            for path in settled:
                self._unsynced_names.pop(path, None)

    def _next_moment(self) -> int:
        self._moment += 1
        return self._moment

    # -- possible losses ---------------------------------------------------------------------------

    def _files(self) -> list[SimFile]:
        """Every file that has a name or may get one back, in a fixed order."""
        entries: list[_Entry | None] = list(self._names.values())
        for history in self._unsynced_names.values():
            entries += [history.durable, *(entry for _, entry in history.versions)]
        return list(dict.fromkeys(entry for entry in entries if isinstance(entry, SimFile)))

    def _unsynced(self) -> Iterator[Change]:
        for file in self._files():
            for sector in sorted(file.versions):
                yield Change(file, sector, file.versions[sector])
        for path, history in self._unsynced_names.items():
            yield Change(path, -1, history.versions)

    def _apply_name(self, names: dict[Path, _Entry], path: Path, pick: int) -> None:
        history = self._unsynced_names[path]
        entry = history.versions[pick - 1][1] if pick else history.durable
        if entry is None:
            names.pop(path, None)
        else:
            names[path] = entry

    def _mend(self, names: dict[Path, _Entry]) -> None:
        """Names were picked each on its own; make a file system of them."""
        for path in self._unsynced_names:
            if path in names:
                self._drop_draft(names, path)
                for parent in path.parents:
                    names.setdefault(parent, _FOLDER)

    def _drop_draft(self, names: dict[Path, _Entry], path: Path) -> None:
        """A rename is one step: the file that got there under its name is not under the draft's too."""
        history = self._unsynced_names.get(_draft_of(path))
        if history is not None and any(entry is names[path] for _, entry in history.versions):
            names.pop(_draft_of(path), None)

    def _like_this(self) -> SimDisk:
        disk = SimDisk(self._clock, capacity_bytes=self.capacity_bytes, pid=self._pid)
        disk.full = self.full
        disk.cold = set(self.cold)
        disk._moment = self._moment
        return disk


def _draft_of(path: Path) -> Path:
    return path.with_name(f"{path.name}.tmp")
