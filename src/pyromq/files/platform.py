"""The few calls that differ between systems, each with a fall-back, so that a laptop still runs a broker.

Everything here is a hint or has a portable twin: only `allocate` and `sync_data` carry promises.
"""

from __future__ import annotations

import ctypes
import errno
import mmap
import os
import resource
from functools import cache
from pathlib import Path

PAGE = mmap.PAGESIZE

_MADV_NORMAL = 0
_MADV_RANDOM = 1
_MADV_POPULATE_READ = 22  # Linux 5.14: bring pages in, clean
_MADV_DONTNEED = 4
_ZEROES = bytes(1 << 20)


def _load_libc() -> ctypes.CDLL | None:
    try:
        libc = ctypes.CDLL(None, use_errno=True)
        libc.madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
        libc.mincore.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_char_p]
        libc.mlock.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
        libc.munlock.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
        offset = ctypes.c_int64 if ctypes.sizeof(ctypes.c_void_p) == 8 else ctypes.c_long
        libc.mmap.argtypes = [
            ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, offset,
        ]  # fmt: skip
        libc.mmap.restype = ctypes.c_void_p
        libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
    except (OSError, AttributeError):  # pragma: no cover - a system without these calls
        return None
    return libc


_libc = _load_libc()


def address_of(mapping: mmap.mmap) -> int:
    """Return the memory address of a writable mapping. Holds no reference: keep the mapping alive yourself."""
    return ctypes.addressof(ctypes.c_char.from_buffer(mapping))


@cache
def _region_type(size: int) -> type[ctypes.Array[ctypes.c_char]]:
    """Memory of a mapping of this size, which is unmapped when the last view of it is gone."""
    assert _libc is not None
    unmap, address = _libc.munmap, ctypes.addressof

    def let_go(region: ctypes.Array[ctypes.c_char]) -> None:
        unmap(address(region), size)

    return type("Region", (ctypes.c_char * size,), {"__del__": let_go})


def map_without_descriptor(fd: int, size: int, *, writable: bool) -> tuple[memoryview, int] | None:
    """Map a file, and return a view of it and its address; None where the system's call is not known.

    Python's own mapping keeps a descriptor open before version 3.13. Raises OSError.
    """
    if _libc is None:  # pragma: no cover - a system without these calls
        return None
    access = mmap.PROT_READ | (mmap.PROT_WRITE if writable else 0)
    address = _libc.mmap(None, size, access, mmap.MAP_SHARED, fd, 0)
    if address is None or address == ctypes.c_void_p(-1).value:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))
    view = memoryview(_region_type(size).from_address(address)).cast("B")
    return (view if writable else view.toreadonly()), address


def allocate(fd: int, start: int, end: int) -> None:
    """Give `[start, end)` of a file real blocks, so that writing there cannot run out of disk later.

    Raises OSError (ENOSPC) when the disk has no room. Bytes that exist keep their value.
    """
    if hasattr(os, "posix_fallocate"):
        try:
            os.posix_fallocate(fd, start, end - start)
        except OSError as error:
            if error.errno not in (errno.EOPNOTSUPP, errno.EINVAL, errno.ENOSYS):
                raise
        else:
            return
    size = os.fstat(fd).st_size
    inside = min(end, size)
    for at in range(start, inside, len(_ZEROES)):  # a hole gets its blocks when its zeroes are written
        os.pwrite(fd, os.pread(fd, min(len(_ZEROES), inside - at), at), at)
    for at in range(max(start, size), end, len(_ZEROES)):
        os.pwrite(fd, _ZEROES[: min(len(_ZEROES), end - at)], at)


def mount_of(path: Path) -> tuple[int, str]:
    """Which mounted file system a directory is in: files can be given other names within it only.

    Two mounts of one device are two: where the system tells them apart, so does this. Raises OSError.
    """
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        device = os.fstat(fd).st_dev
        try:
            about = Path(f"/proc/self/fdinfo/{fd}").read_text("ascii")
        except OSError:  # pragma: no cover - another system than Linux
            about = ""
    finally:
        os.close(fd)
    return device, next((line for line in about.splitlines() if line.startswith("mnt_id:")), "")


def data_end(fd: int, start: int, size: int) -> int:
    """Behind the last byte of a file that may not be zero, as its file system knows it."""
    if not hasattr(os, "SEEK_DATA"):
        return size
    at = start
    while at < size:
        try:
            at = os.lseek(fd, os.lseek(fd, at, os.SEEK_DATA), os.SEEK_HOLE)
        except OSError as error:
            if error.errno == errno.ENXIO:
                return at  # a hole until the end
            return size
    return size


#: True if `sync_data` is one call of fdatasync.
SYNCS_WITH_FDATASYNC = hasattr(os, "fdatasync")


def sync_data(fd: int) -> None:
    """Return once the file's bytes are on the disk. Raises OSError when the disk says they are not."""
    if SYNCS_WITH_FDATASYNC:
        os.fdatasync(fd)
    else:  # pragma: no cover - macOS
        os.fsync(fd)


def warm(address: int, start: int, end: int) -> None:
    """Bring pages into memory before they are written. A hint: without it the first write to each is slower.

    They stay clean: pages that are made ready *for writing* are dirty, and the next sync writes their zeroes out.
    """
    start -= start % PAGE
    if _libc is not None and end > start:
        _libc.madvise(address + start, end - start, _MADV_POPULATE_READ)


def keep_pages_small(address: int, size: int) -> None:
    """A hint for a mapping that is still written: a look at it must not bring in megabytes of zeroes behind it, and a
    sync writes whole pages, large ones many times."""
    if _libc is not None:
        _libc.madvise(address, size, _MADV_RANDOM)


def let_pages_grow(address: int, size: int) -> None:
    """The opposite: from now on it is only read."""
    if _libc is not None:
        _libc.madvise(address, size, _MADV_NORMAL)


def release_pages(address: int, start: int, end: int) -> None:
    """Give whole pages of *anonymous* memory back; they read as zeroes afterwards."""
    start = -(-start // PAGE) * PAGE
    end -= end % PAGE
    if _libc is not None and end > start:
        _libc.munlock(address + start, end - start)  # locked pages cannot be given back
        _libc.madvise(address + start, end - start, _MADV_DONTNEED)


def lock_in_memory(address: int, start: int, end: int) -> bool:
    """Bring memory in and keep it from being swapped out; False where the system's limits do not allow it."""
    return _libc is not None and _libc.mlock(address + start, end - start) == 0


def is_resident(address: int, start: int, end: int) -> bool:
    """True when reading these bytes needs no disk. Where the system cannot say, True."""
    start -= start % PAGE
    pages = -(-(end - start) // PAGE)
    if _libc is None or pages <= 0:
        return True
    answer = ctypes.create_string_buffer(pages)
    if _libc.mincore(address + start, end - start, answer) != 0:
        return True
    return all(byte & 1 for byte in answer.raw)


def raise_open_file_limit() -> None:
    """Every queue file is an open file: take as many as the system gives without asking for more rights."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def open_files_left() -> int:
    """Return the number of files this process may still open, by its own limit."""
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    try:
        lowest_free = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return 0
    os.close(lowest_free)  # all below it are in use
    return max(limit - lowest_free, 0) if limit != resource.RLIM_INFINITY else 1 << 30


_ADVICE = {
    errno.ENOSPC: "make room on the disk and sending goes on by itself",
    errno.EDQUOT: "make room on the disk and sending goes on by itself",
    errno.EMFILE: "this process may not open more files; raise its limit (ulimit -n) and restart",
    errno.ENFILE: "the system may not open more files; raise fs.file-max",
    errno.ENOMEM: "the system has no memory or no mappings left; see vm.max_map_count",
}


def what_to_do(error: OSError) -> str:
    """An error of the system, and what helps against it."""
    advice = _ADVICE.get(error.errno or 0)
    return f"{error}; {advice}" if advice else str(error)
