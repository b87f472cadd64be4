"""The runs of a backup, for people who look for the one that they need."""

from __future__ import annotations

from dataclasses import dataclass

from pyromq.backup.history import numbers, read_manifest
from pyromq.backup.manifest import Chunk, Manifest
from pyromq.backup.target import Target
from pyromq.errors import BackupError, CorruptBackup


@dataclass(frozen=True, slots=True)
class Run:
    """One manifest: what the backup held when it was written, and what that run had added."""

    number: int
    made_ms: int = 0
    source: str = ""
    series: int = 0
    #: Of the log.
    start: int = 0
    end: int = 0
    records: int = 0
    bytes: int = 0
    #: The store time of its last message: a restore of this run ends there.
    last_ms: int = 0
    files: int = 0
    new_records: int = 0
    new_bytes: int = 0
    #: The manifest cannot be read, and why; then nothing else is known.
    problem: str | None = None


def runs(target: Target) -> list[Run]:
    """Oldest first. Raises BackupError when there is none, OSError."""
    found: list[Run] = []
    known: set[Chunk] = set()
    for number in numbers(target):
        try:
            manifest = read_manifest(target, number)
        except CorruptBackup as damage:
            found.append(Run(number, problem=str(damage)))
            continue
        found.append(_run(manifest, known))
        known = set(manifest.chunks)
    if not found:
        raise BackupError(f"there is no backup in {target.shown()}: it has no manifest")
    return found


def _run(manifest: Manifest, known: set[Chunk]) -> Run:
    new = [chunk for chunk in manifest.chunks if chunk not in known]
    return Run(
        number=manifest.number,
        made_ms=manifest.made_ms,
        source=manifest.source.name,
        series=manifest.series,
        start=manifest.start,
        end=manifest.end,
        records=manifest.records,
        bytes=manifest.bytes,
        last_ms=max((chunk.last_ms for chunk in manifest.chunks), default=0),
        files=len(manifest.files),
        new_records=sum(chunk.records for chunk in new),
        new_bytes=sum(chunk.bytes for chunk in new),
    )
