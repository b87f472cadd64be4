"""The retention of data, and the reaction to a full disk.

The decision is a function of its inputs: ages, the usage of the disk, and if appends are refused already. Unexpired
data is never removed unless the configuration says so; the store rather refuses new messages, continues to serve the
present ones, and accepts messages again once there is room.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from pyromq.config import RetentionConfig

HOUR_MS = 3_600_000
#: Remove at most this many segments at once, as RocketMQ does: an error in the decision costs no more than that.
MAX_REMOVED = 10


@dataclass(frozen=True, slots=True)
class SegmentAge:
    """A segment that retention may remove, oldest first. The one being written is not among them."""

    size: int
    #: The store time of its newest record, or the file's last change, whichever is later.
    newest_ms: int


def newest_ms(stored_ms: int, modified_ms: int, now_ms: int) -> int:
    """Return when a segment was last written.

    Both times count, and the later one decides: a restored file has an old newest record, and a file that was written
    while the clock was behind has an old change. A store time of the future was written by a clock that was ahead:
    then the file's change alone decides.
    """
    return modified_ms if stored_ms > now_ms else max(stored_ms, modified_ms)


@dataclass(frozen=True, slots=True)
class Decision:
    """The actions due now."""

    #: Remove this many of the oldest segments …
    remove: int
    #: … of which this many are unexpired.
    remove_unexpired: int
    refuse_appends: bool


def decide(
    config: RetentionConfig,
    segments: list[SegmentAge],
    disk_share: float,
    disk_total: int,
    refusing: bool,
    now_ms: int,
    *,
    other_share: float = 0.0,
    clock_is_trusted: bool = True,
) -> Decision:
    """Expired segments go, unless the clock has jumped. With `delete_unexpired`, older ones go too until the disk is
    below the refuse mark. At most `MAX_REMOVED` go at once.

    `other_share` is that of the disk of queues and index, if it is another one. If that is full, expired segments wait
    no longer and messages are refused; but removing segments makes little room there, so none is given up for it.
    """
    expired = 0
    segments = segments[:MAX_REMOVED]
    may_remove = clock_is_trusted and _may_remove(config, max(disk_share, other_share), now_ms)
    for segment in segments if may_remove else []:
        if now_ms - segment.newest_ms < config.max_age_hours * HOUR_MS:
            break
        expired += 1
    share = disk_share - sum(segment.size for segment in segments[:expired]) / max(disk_total, 1)
    forced = 0
    if config.delete_unexpired:
        for segment in segments[expired:]:
            if share < config.refuse_at:
                break
            share -= segment.size / max(disk_total, 1)
            forced += 1
    limit = config.resume_below if refusing else config.refuse_at
    return Decision(expired + forced, forced, refuse_appends=max(share, other_share) >= limit)


def _may_remove(config: RetentionConfig, disk_share: float, now_ms: int) -> bool:
    """Expired segments wait for their hour of the day, if they have one, unless the room is needed."""
    if not config.delete_hours or disk_share >= min(config.delete_above, config.refuse_at):
        return True
    return datetime.fromtimestamp(now_ms / 1000).astimezone().hour in config.delete_hours
