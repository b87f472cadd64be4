"""Check that a backup is unchanged: its manifest, every chunk record by record, every small file."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from pyromq.backup.history import wanted
from pyromq.backup.manifest import Chunk, Manifest, sha256_of
from pyromq.backup.pieces import check_chunk
from pyromq.backup.target import Target
from pyromq.backup.telling import counted, tables
from pyromq.errors import CorruptBackup

Progress = Callable[[int, int], None]


@dataclass(frozen=True, slots=True)
class BackupFinding:
    """A difference between a backup and its manifest."""

    file: str
    position: int
    what: str


@dataclass(frozen=True, slots=True)
class CheckReport:
    """The checked files, and the findings."""

    manifest: Manifest
    findings: tuple[BackupFinding, ...]

    @property
    def ok(self) -> bool:
        return not self.findings

    def sentences(self) -> list[str]:
        made = self.manifest
        looked = f"{counted(made.records, 'message')} in {counted(len(made.chunks), 'chunk')} and "
        looked += tables(len(made.files))
        if self.ok:
            return [f"Manifest {made.number} is whole: {looked}, everything as it was saved."]
        return [f"Manifest {made.number}: {looked}, and {len(self.findings)} of them are not as they were saved.",
                *(f"{each.file}, position {each.position}: {each.what}" for each in self.findings)]  # fmt: skip


def check(
    target: Target, *, number: int | None = None, threads: int = 0, progress: Progress | None = None
) -> CheckReport:
    """Check the newest manifest, or a certain one, on this machine. Raises BackupError, CorruptBackup, OSError."""
    manifest = wanted(target, number)
    findings = list(check_small_files(target, manifest))
    done = 0
    with ThreadPoolExecutor(threads or min(os.cpu_count() or 1, 8), "pyromq-check") as pool:
        work = pool.map(lambda chunk: finding_in(target, manifest.segment_bytes, chunk), manifest.chunks)
        for chunk, finding in zip(manifest.chunks, work, strict=True):
            findings += [finding] if finding is not None else []
            done += chunk.bytes
            if progress is not None:
                progress(done, manifest.bytes)
    return CheckReport(manifest, tuple(findings))


def finding_in(target: Target, segment_bytes: int, chunk: Chunk) -> BackupFinding | None:
    """Return the fault of a chunk; None if it is good."""
    try:
        check_chunk(target, segment_bytes, chunk)
    except CorruptBackup as damage:
        return BackupFinding(damage.file, damage.position, damage.what)
    return None


def check_small_files(target: Target, manifest: Manifest) -> Iterable[BackupFinding]:
    for saved in manifest.files:
        try:
            data = target.read(saved.file)
        except FileNotFoundError:
            yield BackupFinding(target.shown(saved.file), 0, f"the file is missing, which holds {saved.name}")
            continue
        if sha256_of(data) != saved.sha256:
            yield BackupFinding(
                target.shown(saved.file), 0, f"{saved.name} has another checksum than the manifest says"
            )
