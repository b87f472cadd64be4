"""The report of a check of a store: findings, each with its place, and counts.

Findings are kept in order, up to a maximum number; all are counted.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import NamedTuple

from pyromq.store.offline.inspect import Refusal

#: Findings that are kept; all are counted.
MAX_FINDINGS = 1000


class Severity(Enum):
    #: The next start repairs it.
    NOTE = "note"
    #: Bytes differ from the written ones.
    ERROR = "error"


class Finding(NamedTuple):
    #: Relative to the store's directory, where it is in there.
    file: Path
    #: Of the log and of a queue: the position in the whole run of files. Of any other file: the byte in it.
    position: int
    what: str
    severity: Severity


@dataclass(slots=True)
class VerifyReport:
    """The counts and findings of a check."""

    root: Path
    log_directory: Path
    log_start: int = 0
    log_end: int = 0
    segments: int = 0
    records: int = 0
    queues: int = 0
    queue_entries: int = 0
    index_files: int = 0
    index_entries: int = 0
    #: A broker has the store open: its new messages are not checked.
    live: bool = False
    errors: int = 0
    notes: int = 0
    #: The first of them, errors and notes in the order they were met.
    findings: list[Finding] = field(default_factory=list)
    #: Files of the log for which a start would refuse the store; None: they are all there, and as long as they must be.
    refusal: Refusal | None = None
    seconds: float = 0.0
    max_findings: int = MAX_FINDINGS

    @property
    def ok(self) -> bool:
        return not self.errors

    def error(self, file: Path, position: int, what: str) -> None:
        self.errors += 1
        self._keep(file, position, what, Severity.ERROR)

    def note(self, file: Path, position: int, what: str) -> None:
        self.notes += 1
        self._keep(file, position, what, Severity.NOTE)

    def is_in_log(self, finding: Finding) -> bool:
        return (self.root / finding.file).is_relative_to(self.log_directory)

    def _keep(self, file: Path, position: int, what: str, severity: Severity) -> None:
        if len(self.findings) < self.max_findings:
            shown = file.relative_to(self.root) if file.is_relative_to(self.root) else file
            self.findings.append(Finding(shown, position, what, severity))
