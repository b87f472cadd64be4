"""One machine of the replication simulation: a disk, the store on it, and what it knows of who led."""

from __future__ import annotations

import itertools
import random
from dataclasses import replace
from enum import Enum, auto
from pathlib import Path

from pyromq.auth.group_secret import GroupSecret
from pyromq.broker.failover.leadership import LeadershipFile, Member
from pyromq.broker.failover.role import Leading, Verdict, extent_of, judge
from pyromq.clock import ManualClock
from pyromq.config import BrokerConfig, FlushConfig, StoreConfig
from pyromq.replication.admission import Admission, Itself
from pyromq.replication.identity import Identity
from pyromq.replication.introduction import Introduction
from pyromq.replication.log_matching import Epoch, LogExtent
from pyromq.store.message_store import InlineRunner, MessageStore
from pyromq.store.paths import StorePaths
from pyromq.store.recovery.quarantine import put_log_aside
from pyromq.store.store_log import StoreLog
from pyromq.testing.sim.disk import PowerCut, SimDisk
from pyromq.wire.bodies.epochs import BrokerEpochs

SEGMENT = 4096
SECRET = GroupSecret(b"of the simulation")


class Planted(Enum):
    """Mistakes that the simulation must find."""

    BELIEVE_SENT = auto()
    BELIEVE_STRANGERS = auto()
    SKIP_CRC = auto()
    APPEND_BEFORE_CHECK = auto()
    RESEND_FROM_SEGMENT = auto()
    LOSE_BEGUN_RECORD = auto()
    REPORT_UNSYNCED = auto()
    HELLO_BEFORE_SYNC = auto()
    REPORT_BEGUN_RECORD = auto()
    FORGET_TO_CUT = auto()
    HELLO_BEFORE_COMPARING = auto()
    NO_EPOCH_AT_RESTART = auto()
    IGNORE_WHO_LED = auto()
    KEEP_NUMBER = auto()
    LEAD_OVER_A_LOST_END = auto()
    LEAD_UNFLUSHED = auto()
    CUT_WITHOUT_KEEPING = auto()
    START_COUNTS_AS_COPIED = auto()
    COUNT_CONNECTIONS = auto()
    THROW_AWAY = auto()
    FORGET_PROGRESS = auto()
    PROMOTE_WITHOUT_ASKING = auto()


class Node:
    """A node that restarts after every crash."""

    def __init__(
        self, name: str, clock: ManualClock, rng: random.Random, *, sync: bool, planted: Planted | None
    ) -> None:
        self.name = name
        self.sync = sync
        self._clock = clock
        self._rng = rng
        self._planted = planted
        self.config = StoreConfig(
            root=Path("/store"), segment_bytes=SEGMENT, queue_file_entries=64, index_enabled=False, prefault_bytes=0,
            recovery_threads=1, max_body_bytes=2048, flush=FlushConfig(sync=sync),
        )  # fmt: skip
        self.disk = SimDisk(clock, pid=1)
        #: Its broker id whenever it follows.
        self.slave_id = 1 + "abc".index(name)
        role = {"role": "ASYNC_MASTER"} if name == "a" else {"role": "SLAVE", "broker_id": self.slave_id}
        self._given = BrokerConfig(name="pair", store=self.config, **role)
        self.fails_soon = False
        #: Unique like the random names of real lives, and the same for one seed.
        self._life_names = itertools.count(1)
        self._nonces = itertools.count(1)
        #: The number of starts: each is another process.
        self.starts = 0
        #: Bytes that were taken out of the log on purpose, and where they were.
        self.kept: list[tuple[int, bytes]] = []
        self._open()

    def _open(self, truncate_at: int | None = None) -> None:
        self.store = MessageStore(self.config, disk=self.disk, clock=self._clock, runner=InlineRunner())
        self.store.open(truncate_at=truncate_at)
        self.store.follow()
        self.log = StoreLog(self.store)
        file = LeadershipFile(self.disk, StorePaths.of(self.config).config, lambda: self.name)
        self.leading = Leading(file, self._given, lambda: f"{next(self._life_names):x}")
        self.starts += 1

    # --- as a primary, and as a follower -----------------------------------------------------------------------------

    def admission(self, heartbeat_ms: int) -> Admission:
        """The rules by which it takes followers in."""
        given, known = self._given, self.leading.known
        return Admission(
            self.log, itself=lambda: Itself(given.cluster, given.name, known.member, self.name),
            epochs=lambda: self.leading.epochs, secret=SECRET, write_down=self._write_down, heartbeat_ms=heartbeat_ms,
            nonce=self._nonce,
        )  # fmt: skip

    def introduction(self, primary: BrokerEpochs) -> Introduction:
        """Return its answer to a primary after comparing the logs."""
        given = self._given
        return Introduction(
            cluster=given.cluster, name=given.name,
            identity=Identity(self.leading.known.member, self.slave_id, self.name, "", str(self.starts)),
            epochs=self.leading.epochs, primary=primary.member, primary_start=primary.start, secret=SECRET,
            expects_proof=True, nonce=self._nonce,
        )  # fmt: skip

    def _nonce(self) -> str:
        return f"{self.name} {next(self._nonces)}"

    def _write_down(self, identity: Identity) -> None:
        self.leading.heard_of([Member(identity.address, identity.broker_id, identity.ha_address, identity.member)])

    # --- its log -----------------------------------------------------------------------------------------------------

    @property
    def start(self) -> int:
        return self.log.log_start

    @property
    def end(self) -> int:
        return self.store.positions().log_end

    @property
    def epochs(self) -> tuple[Epoch, ...]:
        return self.leading.epochs

    @property
    def extent(self) -> LogExtent:
        return extent_of(self.told())

    def told(self) -> BrokerEpochs:
        """Return its description of itself."""
        told = self.leading.describe(self.start, self.end, self.name, self.name)
        if self._planted is Planted.IGNORE_WHO_LED:
            told = replace(told, entries=tuple(replace(one, by="") for one in told.entries))
        return told

    def bytes_between(self, start: int, end: int) -> bytes:
        parts = []
        while start < end:
            part = bytes(self.store.log_range(start, end - start))
            assert part, f"{self.name} has no {start}"
            parts.append(part)
            start += len(part)
        return b"".join(parts)

    def is_level(self, other: Node) -> bool:
        return self.end == other.end or (self.log.is_empty and other.log.is_empty)

    def lead(self) -> None:
        """Return a new identity for each start."""
        self.store.lead()
        is_again = bool(self.epochs) and self.leading.number <= self.epochs[-1].number
        if not (is_again and self._planted is Planted.NO_EPOCH_AT_RESTART):
            self.leading.begin(self.start, self.end)

    def promote(self, number: int) -> None:
        if self._planted is not Planted.KEEP_NUMBER:
            self.leading.promote(number, "ASYNC_MASTER")

    def verdict(self, other: Node) -> Verdict:
        """Judge another node's answer as the master."""
        return judge(self.leading.number, self.extent, other.told())

    def remove_oldest(self) -> None:
        """Apply retention, without a clock."""
        store = self.store
        store.dispatch()
        store.flush()
        plan = store.points.plan_log_start(store.log_files().segments[0].end)
        store.points.carry_out(plan)
        self.disk.remove(store.log_files().forget_first().path)
        for queue in store.queue_list():
            queue.drop_before(plan.point.log_start)

    # --- faults ------------------------------------------------------------------------------------------------------

    def fail_after(self, operations: int) -> None:
        """The power fails in the middle of a later operation of the disk."""
        left = [operations]
        self.fails_soon = True

        def count(operation: str, path: Path) -> None:
            left[0] -= 1
            if left[0] <= 0:
                raise PowerCut

        self.disk.on_operation = count

    def never_fails(self) -> None:
        self.fails_soon = False
        self.disk.on_operation = None

    def restart(self, *, with_power: bool) -> None:
        self.disk = self.disk.crash(self._rng) if with_power else self.disk.kill()
        self.disk.full = False
        self.never_fails()
        self._open()

    def cut_back(self, position: int) -> None:
        self._expect_kept(position)
        self.never_fails()
        self.disk.full = False
        self._clock.advance(1.5)
        self.store.close()
        self._open(truncate_at=position)
        if self._planted is Planted.CUT_WITHOUT_KEEPING:
            self.disk.remove_tree(StorePaths.of(self.config).cut_off)

    def start_over(self, why: str) -> None:
        self._expect_kept(self.start)
        end = self.end
        self.never_fails()
        self.disk.full = False
        self._clock.advance(1.5)
        self.store.close()
        paths = StorePaths.of(self.config)
        put_log_aside(self.disk, paths, self._clock, end=end, why=why)
        if self._planted is Planted.THROW_AWAY:
            self.disk.remove_tree(paths.root / "aside")
        self._open()

    def _expect_kept(self, start: int) -> None:
        while start < self.end:
            end = min(start + SEGMENT - start % SEGMENT, self.end)
            self.kept.append((start, self.bytes_between(start, end).rstrip(b"\0")))
            start = end

    def check_kept(self) -> None:
        """Check that removed bytes are in some file of the quarantine."""
        beside = [data for path, data in self.disk.files().items() if "cutoff" in path.parts or "aside" in path.parts]
        for position, gone in self.kept:
            assert any(gone in data for data in beside), f"{self.name} threw {len(gone)} bytes at {position} away"
