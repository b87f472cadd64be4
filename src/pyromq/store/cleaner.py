"""Carries out what `retention` decides: removes segments, and refuses messages while the disk is too full."""

from __future__ import annotations

import asyncio
import logging
from concurrent.futures import Executor
from dataclasses import replace
from pathlib import Path

from pyromq.clock import Clock
from pyromq.config import StoreConfig
from pyromq.files.disk import Disk
from pyromq.files.uninterrupted import uninterrupted
from pyromq.metrics import Telemetry
from pyromq.records import record
from pyromq.store.durability.recover_points import RecoverPoints
from pyromq.store.key_index import KeyIndex
from pyromq.store.log import log_place
from pyromq.store.log.allocator import Runner
from pyromq.store.log.commit_log import CommitLog
from pyromq.store.log.segmented_file import Segment
from pyromq.store.paths import StorePaths
from pyromq.store.queues.queue_table import QueueTable
from pyromq.store.retention import MAX_REMOVED, Decision, SegmentAge, decide, newest_ms
from pyromq.store.trusted_clock import TrustedClock
from pyromq.store.watermarks import Watermarks

log = logging.getLogger("pyromq.store")


class Cleaner:
    """Looks at the disk now and then."""

    def __init__(
        self,
        config: StoreConfig,
        disk: Disk,
        paths: StorePaths,
        clock: Clock,
        runner: Runner,
        commit_log: CommitLog,
        queues: QueueTable,
        index: KeyIndex | None,
        marks: Watermarks,
        points: RecoverPoints,
        telemetry: Telemetry,
    ) -> None:
        #: May be changed while the store is open.
        self.retention = config.retention
        self._disk = disk
        self._paths = paths
        self._clock = clock
        self._runner = runner
        self._log = commit_log
        self._queues = queues
        self._index = index
        self._marks = marks
        self._points = points
        self._removed = telemetry.counter("pyromq_store_removed_segments_total")
        self._removed_unexpired = telemetry.counter("pyromq_store_removed_unexpired_segments_total")
        #: Decides if the wall clock may be used to expire segments.
        self.trusted_clock = TrustedClock(disk, paths.trusted_clock, clock)
        #: Why messages are refused; None: they are not.
        self.refusal: str | None = None

    @property
    def why_nothing_expires(self) -> str:
        """Return why expired segments stay, for people; empty if they do not."""
        return self.trusted_clock.why_not(self.retention.clock_confirm_hours)

    def clean(self) -> None:
        """Remove expired segments, and decide if messages are refused. Raises OSError, StoreFenced."""
        decision = self._decide()
        self.trusted_clock.save_if_due()
        if decision.remove:
            plan = self._points.plan_log_start(self._log.files.segments[decision.remove - 1].end)
            self._points.carry_out(plan)
            self._remove(plan.point.log_start, decision)

    async def clean_beside(self, executor: Executor | None, *, at_any_hour: bool = False) -> int:
        """The same, with the syncs on another thread; how many segments went. The caller holds the lock of the recover
        points."""
        decision = self._decide(at_any_hour=at_any_hour)
        saving = asyncio.get_running_loop().run_in_executor(executor, self.trusted_clock.save_if_due)
        await uninterrupted(saving)
        if decision.remove:
            plan = self._points.plan_log_start(self._log.files.segments[decision.remove - 1].end)
            await self._points.carry_out_beside(plan, executor)
            self._remove(plan.point.log_start, decision)
        return decision.remove

    def _decide(self, *, at_any_hour: bool = False) -> Decision:
        now_ms = self._clock.now_ms()
        ages = [SegmentAge(segment.size, self._newest_ms(segment, now_ms)) for segment in self._removable()]
        usage, other = log_place.usage(self._disk, self._paths), self._disk.usage(self._paths.root)
        other_share = other.share if other.device != usage.device else 0.0
        refusing = self.refusal is not None
        retention = replace(self.retention, delete_hours=()) if at_any_hour else self.retention
        decision = decide(
            retention, ages, usage.share, usage.total, refusing, now_ms,
            other_share=other_share, clock_is_trusted=self.trusted_clock.look(retention.clock_confirm_hours),
        )  # fmt: skip
        in_log = other.device != usage.device and usage.share >= other_share
        directory = self._paths.commit_log if in_log else self._paths.root
        self._refuse(decision.refuse_appends, max(usage.share, other_share), directory)
        return decision

    def _removable(self) -> list[Segment]:
        """Return the oldest segments that everyone is done with: synced, in their queues, in the index, and not being
        written."""
        done = min(self._marks.synced.value, self._marks.dispatched.value, self._marks.indexed.value)
        segments = self._log.files.segments
        return [segment for segment in segments[: min(MAX_REMOVED, len(segments) - 1)] if segment.end <= done]

    def _newest_ms(self, segment: Segment, now_ms: int) -> int:
        """Return when a segment was last written. The first record of the next segment is stored no earlier than its
        newest one, and needs no search."""
        following = self._log.files.find(segment.end)
        stored_ms = record.stored_at_ms(following.buffer, 0, following.size) if following is not None else None
        return newest_ms(stored_ms or 0, self._disk.modified_ms(segment.path), now_ms)

    def _remove(self, start: int, decision: Decision) -> None:
        """The recover point knows already that the files below `start` are not wanted."""
        files = self._log.files
        while files.start < start:
            path = files.forget_first().path
            self._runner.submit(lambda path=path: self._disk.remove(path))  # type: ignore[misc]
            log.info("removed segment %s", path)
        for queue in self._queues:
            if not queue.is_suspect:  # a suspected queue may misplace its messages; its repair drops them
                queue.drop_before(start)
        if self._index is not None:
            self._index.drop_before(start)
        self._removed.add(decision.remove)
        self._removed_unexpired.add(decision.remove_unexpired)

    def _refuse(self, refuse: bool, share: float, directory: Path) -> None:
        retention = self.retention
        if refuse and self.refusal is None:
            self.refusal = (
                f"the disk of {directory} is {share:.0%} full and nothing is taken from "
                f"{retention.refuse_at:.0%} on; make room, and it goes on below {retention.resume_below:.0%}"
            )
            log.error("%s", self.refusal)
        elif not refuse and self.refusal is not None:
            self.refusal = None
            log.info("the disk is %.0f%% full: messages are accepted again", share * 100)
