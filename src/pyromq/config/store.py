"""Settings of one store directory."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path

from pyromq.config.checks import GIB, MIB, require

#: Where the log is in a store directory, and what else is there.
LOG_NAME = "commitlog"
TAKEN_NAMES = ("consumequeue", "index", "config", "staging", "cutoff")

#: RocketMQ's eighteen delay levels.
DELAY_LEVELS = "1s 5s 10s 30s 1m 2m 3m 4m 5m 6m 7m 8m 9m 10m 20m 30m 1h 2h"


@dataclass(frozen=True, slots=True, kw_only=True)
class FlushConfig:
    """How appended bytes become durable."""

    #: Wait for the disk before a send is acknowledged.
    sync: bool = False
    #: A sender that is alone does not wait for a thread: the broker's loop waits for the disk by itself, while a sync
    #: takes less than a millisecond and there are no slaves. A disk that hangs stops the loop then, until it goes on.
    sync_here: bool = True
    #: Longest time an appended byte stays unsynced when `sync` is off.
    interval_ms: int = 500
    #: Sync earlier when this many bytes wait, so that a burst is written while it happens.
    amount_bytes: int = 16 * MIB
    #: How often queues are synced and the recover point moves: the most that a restart must scan, in time …
    recover_point_interval_ms: int = 1000
    #: … and in bytes.
    recover_point_bytes: int = 64 * MIB

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
    """When old segments go, and when new messages are refused because the disk is full."""

    #: Age of a segment's newest record, and of the file's last change, after which it may be removed.
    max_age_hours: float = 72
    #: Hours of the day, local time, in which such segments are removed. None given: at any time …
    delete_hours: tuple[int, ...] = ()
    #: … and from this share of the disk in use on, at any time too.
    delete_above: float = 0.75
    #: Share in use from which appends are refused. Unexpired data is never removed to make room …
    refuse_at: float = 0.90
    #: … and they are accepted again below this share: the gap keeps the broker from flapping.
    resume_below: float = 0.85
    #: Remove unexpired segments, oldest first, when the refuse mark is reached. Counted when it happens.
    delete_unexpired: bool = False
    #: How often the disk is looked at.
    interval_ms: int = 10_000
    #: A clock that jumped ahead expires nothing until it has gone on for this long without another jump.
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

    #: The directory that holds `commitlog`, `consumequeue`, `index` and `config`.
    root: Path
    #: The directory of the commit log, if it is another one than `commitlog` in `root`; also on another file system.
    commit_log: Path | None = None
    #: Length of a commit-log segment. RocketMQ opens a store only with the length it was written with.
    segment_bytes: int = 1 * GIB
    #: Entries in one consume-queue file (20 bytes each).
    queue_file_entries: int = 300_000
    #: Hash slots and entries of one key-index file.
    index_slots: int = 5_000_000
    index_entries: int = 20_000_000
    #: Keep the key index at all.
    index_enabled: bool = True
    #: Largest message body; a record may be 64 KiB larger.
    max_body_bytes: int = 4 * MIB
    #: Write the whole-record CRC property (`__CRC32#`), which RocketMQ can check too.
    record_crc: bool = True
    #: Gather records in anonymous memory and write them to the page cache in batches. Higher throughput on
    #: a busy page cache; a killed process loses what was gathered and not yet committed.
    transient_pool: bool = False
    #: Longest time a gathered record waits for its commit.
    transient_commit_ms: int = 200
    #: How far ahead of the end of the log pages are brought in, so that an append does not wait for memory. Not used
    #: with `flush.sync`.
    warm_bytes: int = 64 * MIB
    #: Threads of a recovery scan. 0: one per core, at most 8.
    recovery_threads: int = 0
    #: Delay levels, as RocketMQ writes them: the queue entry of a delayed message holds its due time.
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
        require(self.warm_bytes >= 0, "store.warm_bytes", self.warm_bytes, "it must not be negative")
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
        """Whether the log is in another directory than the usual one."""
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
    """From the root of the file system on. The disk is not looked at, so links stay."""
    return Path(os.path.abspath(path))  # noqa: PTH100


_UNITS_MS = {"s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}


def parse_delay_levels(text: str) -> tuple[int, ...]:
    """Delays in milliseconds; level 1 is the first."""
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
