"""The manifests of a backup: the newest, one of them, all of them."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

from pyromq.backup.manifest import DIRECTORY, Manifest, decode, manifest_path, number_of
from pyromq.backup.planning import Until, kept_chunks
from pyromq.backup.target import Target
from pyromq.errors import BackupError

#: Files that are looked for at the same time: in an object store each takes a while.
AT_ONCE = 16


def numbers(target: Target) -> list[int]:
    """Of all manifests, oldest first."""
    found = (number_of(name) for name in target.names(DIRECTORY))
    return sorted(number for number in found if number is not None)


def newest(target: Target) -> Manifest | None:
    """None: there is no backup yet. Raises CorruptBackup, OSError."""
    found = numbers(target)
    return read_manifest(target, found[-1]) if found else None


def read_manifest(target: Target, number: int) -> Manifest:
    """Raises BackupError when there is none, CorruptBackup when it is damaged."""
    path = manifest_path(number)
    try:
        data = target.read(path)
    except FileNotFoundError:
        has = numbers(target)
        shown = f"it has {has[0]} to {has[-1]}" if has else "it has none"
        raise BackupError(f"{target.shown()} has no manifest {number}; {shown}") from None
    return decode(data, target.shown(path))


def wanted(target: Target, number: int | None = None) -> Manifest:
    """The newest manifest, or a certain one. Raises BackupError when there is none."""
    if number is not None:
        return read_manifest(target, number)
    found = newest(target)
    if found is None:
        raise BackupError(f"there is no backup in {target.shown()}: it has no manifest")
    return found


def refuse_incomplete(target: Target, manifest: Manifest) -> None:
    """Raise BackupError if a file of the backup is missing or has another length: a further run would be useless."""
    lengths = {chunk.file: chunk.bytes for chunk in manifest.chunks} | {one.file: one.bytes for one in manifest.files}
    with ThreadPoolExecutor(AT_ONCE, "pyromq-look") as pool:
        problems = pool.map(lambda file: _problem(target, file, lengths[file]), lengths)
        found = [problem for problem in problems if problem is not None]
    if found:
        more = f", and {len(found) - 1} more of its files are not there or not whole" if len(found) > 1 else ""
        raise BackupError(
            f"{found[0]}{more}: nothing was added. Copy it from another copy of the backup, or begin a new series "
            "beside what is left (--new-series); `pyromq backup verify` shows all that is wrong"
        )


def _problem(target: Target, file: str, length: int) -> str | None:
    try:
        found = target.size(file)
    except FileNotFoundError:
        return f"{target.shown(file)} is missing, which the backup needs"
    return None if found == length else f"{target.shown(file)} has {found} bytes, and was saved with {length}"


def nearest(target: Target, newer: Manifest, until: Until) -> Manifest:
    """The oldest manifest that has all that is kept of the log: its small files are nearest to that time."""
    kept = kept_chunks(newer, until)
    end, best = kept[-1].end if kept else newer.start, newer
    for number in reversed([each for each in numbers(target) if each < newer.number]):
        older = read_manifest(target, number)
        if older.series != newer.series or older.end < end:
            break
        best = older
    return best


def last_before(target: Target, newer: Manifest, until: Until) -> Manifest | None:
    """Return the newest manifest that has nothing of the log that is left out; `None` if there is none.

    Its small files refer only to kept parts of the log.
    """
    kept = kept_chunks(newer, until)
    if not kept:
        return None
    end = kept[-1].end if until.covers(kept[-1]) else kept[-1].start
    for number in reversed([each for each in numbers(target) if each <= newer.number]):
        older = read_manifest(target, number)
        if older.series != newer.series:
            break
        if older.end <= end:
            return older
    return None
