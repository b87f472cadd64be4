"""Remove old chunks, and the manifests that need them. Nothing else ever removes from a backup.

A new manifest without the old chunks comes first, then the old manifests go, then the chunks. Stopped anywhere, the
newest manifest is whole; leftovers go with the next pruning. Only files below the new beginning are removed, so a
backup may run at the same time.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from pyromq.backup.history import numbers, read_manifest, wanted
from pyromq.backup.manifest import Manifest, chunk_directory, encode, manifest_path
from pyromq.backup.planning import chunks_since
from pyromq.backup.target import Target
from pyromq.clock import Clock, SystemClock
from pyromq.errors import BackupError


@dataclass(frozen=True, slots=True)
class PruneReport:
    """The removed files."""

    manifest: Manifest
    manifests: int
    chunks: int

    def sentences(self) -> list[str]:
        begins = f"The backup begins at position {self.manifest.start} now."
        return [f"Removed {self.chunks} chunks and {self.manifests} manifests.", begins]


def prune(target: Target, *, before_ms: int, clock: Clock | None = None) -> PruneReport:
    """Remove segments whose every message was stored before a time. Raises BackupError, OSError."""
    last = wanted(target)
    kept = chunks_since(last, before_ms)
    manifest = last
    if kept != last.chunks:
        now_ms = (clock or SystemClock()).now_ms()
        start = kept[0].start if kept else last.end
        manifest = replace(last, number=last.number + 1, made_ms=now_ms, previous=last.number, chunks=kept, start=start)
        try:
            target.create(manifest.path, encode(manifest))
        except FileExistsError:
            raise BackupError(f"a backup to {target.shown()} has just ended: prune again") from None
    return _remove(target, manifest, before_ms)


def _remove(target: Target, manifest: Manifest, before_ms: int) -> PruneReport:
    needed = manifest.names
    manifests = 0
    for number in numbers(target):
        older = read_manifest(target, number) if number < manifest.number else manifest
        is_cut = older.series == manifest.series and older.start < manifest.start
        if is_cut or (older.series < manifest.series and _is_over(older, before_ms)):
            target.remove(manifest_path(number))
            manifests += 1
        else:
            needed |= older.names
    return PruneReport(manifest, manifests, _remove_chunks(target, manifest, needed))


def _is_over(manifest: Manifest, before_ms: int) -> bool:
    """A series that was ended, all of whose messages are too old."""
    return all(chunk.last_ms < before_ms for chunk in manifest.chunks)


def _remove_chunks(target: Target, manifest: Manifest, needed: set[str]) -> int:
    removed = 0
    for series in range(1, manifest.series + 1):
        directory = chunk_directory(series)
        for name in target.names(directory):
            start = name.partition("-")[0]
            is_old = series < manifest.series or (start.isdigit() and int(start) < manifest.start)
            if is_old and f"{directory}/{name}" not in needed:
                target.remove(f"{directory}/{name}")
                removed += 1
    return removed
