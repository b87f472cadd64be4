"""Settings of one store directory."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path

from pyromq.config.checks import GIB, MIB, fixed, require

#: The log's directory in a store directory, and the names of the other directories.
LOG_NAME = "commitlog"
TAKEN_NAMES = ("consumequeue", "index", "config", "staging", "cutoff")

#: RocketMQ's eighteen delay levels.
DELAY_LEVELS = "1s 5s 10s 30s 1m 2m 3m 4m 5m 6m 7m 8m 9m 10m 20m 30m 1h 2h"


@dataclass(frozen=True, slots=True, kw_only=True)
class FlushConfig:
    """Syncing of the log to disk."""

    #: Acknowledge a send only after its message is synced.
    sync: bool = False
    #: Sync at least this often if `sync` is off.
    interval_ms: int = 500
    #: Sync earlier above this many unsynced bytes.
    amount_bytes: int = 16 * MIB
    #: Sync the queues and move the recover point at least this often …
    recover_point_interval_ms: int = fixed(1000)
    #: … and after this many bytes. A restart after a crash scans the log from the recover point on.
    recover_point_bytes: int = fixed(64 * MIB)

    def __post_init__(self) -> None:
        require(self.interval_ms > 0, "flush.interval_ms", self.interval_ms, "it must be above 0")
        require(self.amount_bytes > 0, "flush.amount_bytes", self.amount_bytes, "it must be above 0")
        require(
            self.recover_point_interval_ms > 0,
            "flush.recover_point_interval_ms",
            self.recover_point_interval_ms,
            "it must be above 0",
        )
        require(
            self.recover_point_bytes > 0,
            "flush.recover_point_bytes",
            self.recover_point_bytes,
            "it must be above 0",
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class RetentionConfig:
    """Removal of old segments, and refusal of sends on a full disk."""

    #: A segment expires at this age: of its newest record and of the file's last change.
    max_age_hours: float = 72
    #: Hours of the day, local time, in which expired segments are removed. Default: at any hour.
    delete_hours: tuple[int, ...] = ()
    #: Share of the disk in use from which expired segments are removed at any hour.
    delete_above: float = 0.75
    #: Share of the disk in use from which sends are refused.
    refuse_at: float = 0.90
    #: Accept sends again below this share of the disk in use.
    resume_below: float = 0.85
    #: Remove unexpired segments, oldest first, at `refuse_at` instead of refusing sends. A counter records it.
    delete_unexpired: bool = False
    #: Interval of the disk check.
    interval_ms: int = 10_000
    #: After the clock jumped ahead, expire nothing until it has run this long without another jump.
    clock_confirm_hours: float = 12

    def __post_init__(self) -> None:
        require(self.max_age_hours > 0, "retention.max_age_hours", self.max_age_hours, "it must be above 0")
        require(
            all(0 <= hour <= 23 for hour in self.delete_hours),
            "retention.delete_hours",
            self.delete_hours,
            "an hour is 0 to 23",
        )
        require(
            0 < self.delete_above <= 1, "retention.delete_above", self.delete_above, "it must be above 0 and at most 1"
        )
        require(
            0 < self.resume_below < self.refuse_at <= 1,
            "retention.resume_below",
            self.resume_below,
            f"it must be above 0 and below retention.refuse_at ({self.refuse_at}), which is at most 1",
        )
        require(self.interval_ms > 0, "retention.interval_ms", self.interval_ms, "it must be above 0")
        require(
            self.clock_confirm_hours >= 0,
            "retention.clock_confirm_hours",
            self.clock_confirm_hours,
            "it must not be negative",
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreConfig:
    """One store directory."""

    #: Directory of `commitlog`, `consumequeue`, `index` and `config`.
    root: Path
    #: Directory of the commit log, which may be on another file system. Default: `commitlog` in `root`.
    commit_log: Path | None = None
    #: Length of a commit-log segment. RocketMQ opens a store only with the length it was written with.
    segment_bytes: int = 1 * GIB
    #: Entries of one consume-queue file (20 bytes each).
    queue_file_entries: int = 300_000
    #: Hash slots and entries of one key-index file.
    index_slots: int = 5_000_000
    index_entries: int = 20_000_000
    #: Index messages by key.
    index_enabled: bool = True
    #: Largest message body. A record may be 64 KiB larger.
    max_body_bytes: int = 4 * MIB
    #: Write the whole-record CRC property (`__CRC32#`), which RocketMQ can check too.
    record_crc: bool = True
    #: Collect records in anonymous memory and write them to the page cache in batches. Higher throughput on a busy page
    #: cache; a killed process loses the records that are not yet written.
    transient_pool: bool = False
    #: Longest time a record stays in the transient pool.
    transient_commit_ms: int = fixed(200)
    #: Prefault pages this far ahead of the end of the log, so that appends wait for no page fault. Unused with
    #: `flush.sync`.
    prefault_bytes: int = 64 * MIB
    #: Threads of a recovery scan. 0: one per core, at most 8.
    recovery_threads: int = fixed(0)
    #: Delay levels in RocketMQ's notation, level 1 first.
    delay_levels: str = DELAY_LEVELS
    flush: FlushConfig = field(default_factory=FlushConfig)
    retention: RetentionConfig = field(default_factory=RetentionConfig)

    def __post_init__(self) -> None:
        require(
            4096 <= self.segment_bytes <= 2 * GIB - 4096 and self.segment_bytes % 4096 == 0,
            "store.segment_bytes",
            self.segment_bytes,
            "it must be a multiple of 4096 from 4096 to just under 2 GiB (sizes in the file are 31 bits)",
        )
        require(self.queue_file_entries > 0, "store.queue_file_entries", self.queue_file_entries, "it must be above 0")
        require(self.index_slots > 0, "store.index_slots", self.index_slots, "it must be above 0")
        require(self.index_entries > 1, "store.index_entries", self.index_entries, "it must be above 1")
        require(0 < self.max_body_bytes <= 64 * MIB, "store.max_body_bytes", self.max_body_bytes, "1 byte to 64 MiB")
        require(self.recovery_threads >= 0, "store.recovery_threads", self.recovery_threads, "it must not be negative")
        require(self.prefault_bytes >= 0, "store.prefault_bytes", self.prefault_bytes, "it must not be negative")
        require(
            self.transient_commit_ms > 0, "store.transient_commit_ms", self.transient_commit_ms, "it must be above 0"
        )
        parse_delay_levels(self.delay_levels)
        self._check_log_directory()

    @property
    def log_directory(self) -> Path:
        return self.commit_log if self.commit_log is not None else self.root / LOG_NAME

    @property
    def log_is_apart(self) -> bool:
        """Return whether the log is outside of the store directory (`commit_log`)."""
        return spelt_out(self.log_directory) != spelt_out(self.root / LOG_NAME)

    def _check_log_directory(self) -> None:
        place, root = spelt_out(self.log_directory), spelt_out(self.root)
        require(
            not root.is_relative_to(place),
            "store.commit_log",
            str(self.commit_log),
            f"nothing but the log may be in it, and the store directory {self.root} is it or is in it",
        )
        taken = next((name for name in TAKEN_NAMES if place.is_relative_to(root / name)), None)
        require(
            taken is None,
            "store.commit_log",
            str(self.commit_log),
            f"nothing but the log may be in it, and {taken} of {self.root} is for other files",
        )


def spelt_out(path: Path) -> Path:
    """Return the absolute path without resolving links."""
    return Path(os.path.abspath(path))  # noqa: PTH100


_UNITS_MS = {"s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}


def parse_delay_levels(text: str) -> tuple[int, ...]:
    """Return the delays in milliseconds; the first is that of level 1."""
    delays: list[int] = []
    for word in text.split():
        number, unit = word[:-1], word[-1:]
        require(
            unit in _UNITS_MS and number.isascii() and number.isdigit(),
            "store.delay_levels",
            text,
            f"{word!r} is not a number followed by s, m, h or d",
        )
        delays.append(int(number) * _UNITS_MS[unit])
    require(bool(delays), "store.delay_levels", text, "at least one level is needed")
    return tuple(delays)
