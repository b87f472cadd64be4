"""The disk as the store sees it: a port, and the real one.

Everything the store does to files goes through a `Disk`, so that tests can pass one that records
the synced bytes and simulates power cuts (`pyromq.testing.SimDisk`).

Guarantees of the real one:

- `create_mapped`: the file has its length, and the blocks that were asked for, before it has its name. A crash in the
  middle leaves nothing under the name. A full disk raises `OSError` (ENOSPC) and leaves nothing either.
- `replace_bytes`: after a crash the file is the old one or the new one, never a mixture.
- `MappedFile.buffer` stays valid for every holder of a view, also after `close` and after the file is removed:
  the mapping goes with its last view.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import mmap
import os
import shutil
import struct
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from threading import Lock
from typing import Any, Protocol

from pyromq.files import platform


@dataclass(frozen=True, slots=True)
class Usage:
    """The space of a file system."""

    total: int
    used: int
    #: Which one it is, to tell two apart.
    device: int = 0

    @property
    def share(self) -> float:
        return self.used / self.total if self.total else 1.0


#: A file or directory, whatever its name: device and inode.
Identity = tuple[int, int]


class MappedFile(Protocol):
    """A file of fixed length, seen as memory."""

    @property
    def path(self) -> Path: ...

    @property
    def size(self) -> int: ...

    @property
    def buffer(self) -> memoryview:
        """The whole file. Writable unless it was opened for reading."""

    @property
    def identity(self) -> Identity:
        """Tells the file from every other one, whatever its name stands for later."""

    def sync(self) -> None:
        """Block until every byte written so far is durable. Raises OSError when it is not; NotTried: later."""

    def reserve(self, start: int, end: int) -> None:
        """Give these bytes real blocks. Raises OSError when there is no room."""

    def warm(self, start: int, end: int) -> None:
        """Hint: these bytes are written soon."""

    def sync_descriptor(self) -> int:
        """Return the descriptor on which another thread calls fdatasync instead of `sync`; -1 if there is none."""

    def keep_pages_small(self) -> None:
        """Hint: little is written at a time, so large pages would be read and written in vain."""

    def let_pages_grow(self) -> None:
        """Hint: nothing more is written, and readers keep reading."""

    def let_descriptor_go(self) -> None:
        """Hint: there are thousands of such files. Nothing keeps it open but its mapping; what needs the file itself
        opens it by its name, and a file that was removed or replaced has nothing to sync. Before `buffer` is used."""

    def write_at(self, start: int, data: memoryview) -> None:
        """Write through the page cache, not the mapping."""

    def read_at(self, start: int, size: int) -> bytes:
        """Copy bytes out, without holding up other threads while the disk turns."""

    def is_resident(self, start: int, end: int) -> bool:
        """True when reading these bytes needs no disk."""

    def data_end(self, start: int) -> int:
        """From here on to the end of the file nothing was ever written: there are only zeroes. At least `start`."""

    def close(self) -> None: ...


class NotTried(OSError):
    """A sync that could not begin: what it needed could not be opened. Nothing is lost, and trying again is right.

    After any other error of a sync the content of the disk is unknown.
    """


class DirectoryLock(Protocol):
    def release(self) -> None: ...


class Locked(Exception):
    """Another process holds the lock; `pid` is its id, if the system knows it."""

    def __init__(self, pid: int | None) -> None:
        super().__init__(pid)
        self.pid = pid


class Disk(Protocol):
    def make_dir(self, path: Path) -> None:
        """Make it and its parents, durably; fine when it exists."""

    def names(self, path: Path) -> list[str]:
        """Sorted names in a directory; none when there is no such directory."""

    def exists(self, path: Path) -> bool: ...

    def is_dir(self, path: Path) -> bool: ...

    def identity(self, path: Path) -> Identity | None:
        """Return which file or directory has this name now; `None` if there is none. Raises OSError."""

    def abandon(self) -> None:
        """Write no file and remove none from now on: each attempt raises OSError (ESTALE)."""

    def size(self, path: Path) -> int: ...

    def modified_ms(self, path: Path) -> int: ...

    def create_mapped(self, path: Path, size: int, *, reserve: bool, durable: bool = True) -> MappedFile:
        """A new file of zeroes. With `reserve` all its blocks are taken now, else `MappedFile.reserve` takes them.

        Unless it is `durable` at once its name becomes so with its first `sync`: for files that can be rebuilt.
        """

    def open_mapped(self, path: Path, *, writable: bool = True) -> MappedFile: ...

    def read_bytes(self, path: Path) -> bytes: ...

    def replace_bytes(self, path: Path, data: bytes) -> None:
        """Atomically, durably."""

    def remove(self, path: Path) -> None:
        """Fine when it is not there."""

    def remove_tree(self, path: Path) -> None: ...

    def move_tree(self, path: Path, target: Path) -> None:
        """Give a directory another name, at once; durably with the next `sync_name` of the old one. Raises OSError."""

    def sync_name(self, path: Path) -> None:
        """Make durable what a name stands for now, or that it stands for nothing. Raises OSError, NotTried."""

    def files_left(self) -> int:
        """Return the number of files that may still be opened."""

    def usage(self, path: Path) -> Usage: ...

    def lock(self, path: Path) -> DirectoryLock:
        """Take the lock file or raise `Locked`."""

    def lock_holder(self, path: Path) -> int | None:
        """Return the pid that holds the lock, 0 if the system does not know it, None if the lock is free."""


#: Python's mapping duplicates the descriptor by default, which we do not need.
_ONE_DESCRIPTOR: dict[str, Any] = {"trackfd": False} if sys.version_info >= (3, 13) else {}


class OsMappedFile:
    """A mapped file of the operating system."""

    __slots__ = (
        "_address",
        "_fd",
        "_mapping",
        "_opens",
        "_sync_name",
        "_writable",
        "buffer",
        "identity",
        "path",
        "size",
    )

    def __init__(self, path: Path, fd: int, *, writable: bool, sync_name: Callable[[Path], None] | None = None) -> None:
        self._fd = -1  # the caller's, until it is mapped
        #: The file is opened for each call that needs it.
        self._opens = False
        self._writable = writable
        #: Makes the file's name durable; None when it is.
        self._sync_name = sync_name
        self.path = path
        stat = os.fstat(fd)
        self.size = stat.st_size
        self.identity: Identity = (stat.st_dev, stat.st_ino)
        access = mmap.ACCESS_WRITE if writable else mmap.ACCESS_READ
        self._mapping: mmap.mmap | None = mmap.mmap(fd, self.size, access=access, **_ONE_DESCRIPTOR)
        self._address = platform.address_of(self._mapping) if writable else 0
        self.buffer = memoryview(self._mapping)
        self._fd = fd

    def let_descriptor_go(self) -> None:
        if self._fd < 0:
            return
        if not _ONE_DESCRIPTOR:
            mapped = platform.map_without_descriptor(self._fd, self.size, writable=self._writable)
            if mapped is None:  # pragma: no cover - another system than Linux
                return
            self.buffer, address = mapped
            self._address = address if self._writable else 0
            self._mapping = None
        os.close(self._fd)
        self._fd, self._opens = -1, True

    @contextlib.contextmanager
    def _descriptor(self) -> Iterator[int]:
        """The file itself. Raises FileNotFoundError if its name stands for nothing, or for another file."""
        if not self._opens:
            yield self._fd
            return
        fd = os.open(self.path, (os.O_RDWR if self._writable else os.O_RDONLY) | os.O_CLOEXEC)
        try:
            stat = os.fstat(fd)
            if (stat.st_dev, stat.st_ino) != self.identity:
                raise FileNotFoundError(errno.ENOENT, "another file has its name", str(self.path))
            yield fd
        finally:
            os.close(fd)

    def sync(self) -> None:
        if self._opens:
            self._sync_by_name()
        else:
            platform.sync_data(self._fd)
        if self._sync_name is not None:
            self._sync_name(self.path)
            self._sync_name = None

    def _sync_by_name(self) -> None:
        with contextlib.ExitStack() as stack:
            try:
                fd = stack.enter_context(self._descriptor())
            except FileNotFoundError:
                return  # its topic was removed, or retention removed it
            except OSError as error:
                raise NotTried(error.errno, error.strerror, str(self.path)) from error
            platform.sync_data(fd)

    def sync_descriptor(self) -> int:
        assert self._sync_name is None, "the name of this file is not durable yet"
        return self._fd

    def reserve(self, start: int, end: int) -> None:
        with self._descriptor() as fd:
            platform.allocate(fd, start, min(end, self.size))

    def warm(self, start: int, end: int) -> None:
        if self._address:
            platform.warm(self._address, start, min(end, self.size))

    def keep_pages_small(self) -> None:
        if self._address:
            platform.keep_pages_small(self._address, self.size)

    def let_pages_grow(self) -> None:
        if self._address:
            platform.let_pages_grow(self._address, self.size)

    def write_at(self, start: int, data: memoryview) -> None:
        with self._descriptor() as fd:
            while data:
                written = os.pwrite(fd, data, start)
                start += written
                data = data[written:]

    def read_at(self, start: int, size: int) -> bytes:
        if self._opens:  # a queue's entries: few bytes, and the file may be removed
            return bytes(self.buffer[start : start + size])
        parts: list[bytes] = []
        while size > 0:
            part = os.pread(self._fd, size, start)
            if not part:
                raise OSError(errno.EIO, f"{self.path} ends before position {start}")
            parts.append(part)
            start += len(part)
            size -= len(part)
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def is_resident(self, start: int, end: int) -> bool:
        return not self._address or platform.is_resident(self._address, start, min(end, self.size))

    def data_end(self, start: int) -> int:
        try:
            with self._descriptor() as fd:
                return platform.data_end(fd, start, self.size)
        except FileNotFoundError:
            return self.size

    def close(self) -> None:
        self._opens = False
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def __del__(self) -> None:
        # A file that retention removed has no owner but its readers: it closes with the last of them.
        self.close()


#: Lock files that this process holds: the system's record locks never conflict within one process.
_held_here: set[Path] = set()


class _OsLock:
    __slots__ = ("_directory_fd", "_fd", "_path")

    def __init__(self, path: Path, fd: int, directory_fd: int) -> None:
        self._path = path
        self._fd = fd
        self._directory_fd = directory_fd
        _held_here.add(path)

    def release(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            if self._directory_fd >= 0:
                os.close(self._directory_fd)
            self._fd = -1
            _held_here.discard(self._path)


class OsDisk:
    """The real disk. `staging` is a directory of the same file system in which files are made before they are named.

    `apart` are directories that may be in another file system, and where the files in them are made then.
    """

    def __init__(self, staging: Path, apart: Mapping[Path, Path] | None = None) -> None:
        self._staging = staging
        self._apart = dict(apart or {})
        #: Directories with names in them that are not durable yet.
        self._unsynced: set[Path] = set()
        self._naming = Lock()
        self._is_abandoned = False

    def abandon(self) -> None:
        self._is_abandoned = True

    def _require_owned(self, path: Path) -> None:
        if self._is_abandoned:
            raise OSError(errno.ESTALE, "the store directory is no longer the one that was opened", str(path))

    def identity(self, path: Path) -> Identity | None:
        try:
            stat = path.stat()
        except (FileNotFoundError, NotADirectoryError):
            return None
        return stat.st_dev, stat.st_ino

    def make_dir(self, path: Path) -> None:
        self._make_dir(path)
        self.sync_name(path)

    def _make_dir(self, path: Path) -> None:
        self._require_owned(path)
        missing = [parent for parent in (path, *path.parents) if not parent.exists()]
        for directory in reversed(missing):
            with contextlib.suppress(FileExistsError):
                directory.mkdir()
            self._unsynced.add(directory.parent)

    def sync_name(self, path: Path) -> None:
        """Make a name durable, and those of the directories on the way to it that are new."""
        with self._naming:  # wait for a directory that another thread is syncing
            for directory in path.parents:
                if directory in self._unsynced:
                    self._unsynced.discard(directory)  # first: another name may come while it is being synced
                    try:
                        _sync_directory(directory)
                    except OSError:
                        self._unsynced.add(directory)
                        raise

    def names(self, path: Path) -> list[str]:
        try:
            return sorted(entry.name for entry in os.scandir(path))
        except (FileNotFoundError, NotADirectoryError):
            return []

    def exists(self, path: Path) -> bool:
        return path.exists()

    def is_dir(self, path: Path) -> bool:
        return path.is_dir()

    def size(self, path: Path) -> int:
        return path.stat().st_size

    def modified_ms(self, path: Path) -> int:
        return path.stat().st_mtime_ns // 1_000_000

    def create_mapped(self, path: Path, size: int, *, reserve: bool, durable: bool = True) -> MappedFile:
        self._make_dir(path.parent)
        draft = self._staging_for(path.parent) / f"{path.parent.name}-{path.name}"
        fd = os.open(draft, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o644)
        try:
            if reserve:
                platform.allocate(fd, 0, size)
            os.ftruncate(fd, size)
            if durable:
                os.fsync(fd)
            mapped = OsMappedFile(path, fd, writable=True, sync_name=None if durable else self.sync_name)
        except BaseException:
            os.close(fd)
            draft.unlink(missing_ok=True)
            raise
        try:
            draft.rename(path)
            self._unsynced.add(path.parent)
            if durable:
                self.sync_name(path)
        except BaseException:
            mapped.close()
            draft.unlink(missing_ok=True)
            path.unlink(missing_ok=True)
            raise
        return mapped

    def _staging_for(self, directory: Path) -> Path:
        """Return the directory of the same file system in which a file is made before its rename to `directory`."""
        self._make_dir(self._staging)
        own = self._apart.get(directory)
        if own is None:
            return self._staging
        if own != self._staging:
            if platform.mount_of(directory) == platform.mount_of(self._staging):
                self._apart[directory] = own = self._staging
            else:
                self._make_dir(own)
        return own

    def open_mapped(self, path: Path, *, writable: bool = True) -> MappedFile:
        fd = os.open(path, (os.O_RDWR if writable else os.O_RDONLY) | os.O_CLOEXEC)
        try:
            return OsMappedFile(path, fd, writable=writable)
        except BaseException:
            os.close(fd)
            raise

    def read_bytes(self, path: Path) -> bytes:
        return path.read_bytes()

    def replace_bytes(self, path: Path, data: bytes) -> None:
        self.make_dir(path.parent)
        draft = path.with_name(f"{path.name}.tmp")
        try:
            with draft.open("wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            draft.replace(path)
        except BaseException:
            draft.unlink(missing_ok=True)
            raise
        _sync_directory(path.parent)

    def remove(self, path: Path) -> None:
        self._require_owned(path)
        path.unlink(missing_ok=True)

    def remove_tree(self, path: Path) -> None:
        self._require_owned(path)
        shutil.rmtree(path, ignore_errors=True)

    def move_tree(self, path: Path, target: Path) -> None:
        self._make_dir(target.parent)
        path.rename(target)
        self._unsynced -= {each for each in list(self._unsynced) if each.is_relative_to(path)}
        self._unsynced.add(path.parent)

    def files_left(self) -> int:
        return platform.open_files_left()

    def usage(self, path: Path) -> Usage:
        figures = os.statvfs(path)
        # Blocks reserved for root count as used: the broker should not run as root.
        total = figures.f_frsize * (figures.f_blocks - figures.f_bfree + figures.f_bavail)
        used = total - figures.f_frsize * figures.f_bavail
        return Usage(total=total, used=used, device=path.stat().st_dev)

    def lock(self, path: Path) -> DirectoryLock:
        """A record lock on the first byte: the kind that Java takes, and that tells the holder's pid."""
        self.make_dir(path.parent)
        path = path.resolve()
        if path in _held_here:  # opening and closing the file once more would drop the lock that is held
            raise Locked(os.getpid())
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            fcntl.lockf(fd, fcntl.LOCK_EX | fcntl.LOCK_NB, 1)
            directory_fd = _lock_directory(path.parent)
        except BlockingIOError:
            pid = _holder(fd) or None
            os.close(fd)
            raise Locked(pid) from None
        except BaseException:
            os.close(fd)
            raise
        held = _OsLock(path, fd, directory_fd)
        try:
            stat = os.fstat(fd)
            if self.identity(path) != (stat.st_dev, stat.st_ino):
                raise Locked(None)  # removed since it was opened: another process may hold the new one
            os.pwrite(fd, b"lock", 0)  # as RocketMQ does
        except BaseException:
            held.release()
            raise
        return held

    def lock_holder(self, path: Path) -> int | None:
        path = path.resolve()
        if path in _held_here:  # opening and closing the file once more would drop the lock that is held
            return os.getpid()
        try:
            fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            return None
        try:
            return _holder(fd)
        finally:
            os.close(fd)


def _lock_directory(path: Path) -> int:
    """Lock the directory itself too, so that a removed lock file lets no second process in; -1 where that is not
    possible (some network file systems). Raises BlockingIOError if another process holds it."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(fd)
        raise
    except OSError:
        os.close(fd)
        return -1
    return fd


_FLOCK = struct.Struct("hhqqi4x")  # type, whence, start, length, pid: Linux, 64 bits


def _holder(fd: int) -> int | None:
    """Return the pid that holds the record lock on the first byte; 0 if it is unknown, None if the lock is free."""
    try:
        answer = fcntl.fcntl(fd, fcntl.F_GETLK, _FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, 0, 1, 0))
        kind, _, _, _, pid = _FLOCK.unpack(answer)
    except (OSError, struct.error):  # pragma: no cover - another layout than Linux's
        return None
    return None if kind == fcntl.F_UNLCK else max(int(pid), 0)


def _sync_directory(path: Path) -> None:
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError as error:
        raise NotTried(error.errno, error.strerror, str(path)) from error
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
