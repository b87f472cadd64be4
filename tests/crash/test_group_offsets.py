"""After any number of power cuts every message in the log has been delivered to a group: none is skipped.

A group that reads ahead of the flush may have read what a power cut takes. Its saved offset, or the position that its
consumer kept, then points past messages that are stored there later.
"""

from __future__ import annotations

import random

import pytest

from broker.support.fakes import store_config
from pyromq.broker.state.clamping import GroupOffsets, LogEnds, clamp_tables
from pyromq.broker.state.offsets import Progress
from pyromq.broker.state.rejoin_guard import RejoinGuard
from pyromq.clock import ManualClock
from pyromq.config import FlushConfig
from pyromq.errors import IllegalOffset
from pyromq.model.message import Draft
from pyromq.store.message_store import InlineRunner, MessageStore, decode
from pyromq.store.tables.offset_files import ConsumerOffsets
from pyromq.testing import SimDisk

TOPIC, GROUP = "orders", "readers"
SEEDS = 80


class Life:
    """A store with its group offsets, and a consumer that keeps its position while the machine restarts."""

    def __init__(self, seed: int, *, sync_flush: bool) -> None:
        self.rng = random.Random(seed)
        self.clock = ManualClock()
        self.sync_flush = sync_flush
        self.serial = 0
        self.position = 0
        self.delivered: set[bytes] = set()
        self.start(SimDisk(self.clock))

    def start(self, disk: SimDisk) -> None:
        config = store_config(flush=FlushConfig(sync=self.sync_flush), segment_bytes=64 * 1024, max_body_bytes=4096)
        self.disk = disk
        self.store = MessageStore(config, disk=disk, clock=self.clock, runner=InlineRunner())
        self.store.open()
        self.offsets = ConsumerOffsets(disk, self.store.paths.config, self.clock)
        self.offsets.load()
        clamp_tables(LogEnds.of(self.store), [GroupOffsets(self.offsets)])
        guard = RejoinGuard(self.offsets, self.store.given_out, self.clock)
        self.progress = Progress(self.offsets, self.store, guard=guard)

    def append(self) -> None:
        for _ in range(self.rng.randrange(1, 5)):
            self.serial += 1
            self.store.append([Draft(TOPIC.encode(), 0, b"%d" % self.serial)])

    def flush(self) -> None:
        self.store.flush()

    def consume(self) -> None:
        """Pull once as a consumer does, and follow where the broker sends it."""
        self.store.dispatch()
        moved = self.progress.rejoin(GROUP, TOPIC, 0, self.position)
        if moved is not None:
            self.position = moved
            return
        if self.position > self.store.max_offset(TOPIC, 0):  # PULL_OFFSET_MOVED: to the end, or to the progress
            self.position = self.progress.offset_of(GROUP, TOPIC, 0) or 0
            return
        found = self.store.read(TOPIC, 0, self.position, max_messages=self.rng.randrange(1, 6))
        self.delivered.update(bytes(decode(view).body) for view in found.records)
        self.position = max(found.next_offset, 0)

    def commit(self) -> None:
        if self.progress.offset_of(GROUP, TOPIC, 0) is None:
            self.progress.commit(GROUP, TOPIC, 0, 0)
        try:
            self.progress.commit(GROUP, TOPIC, 0, self.position)
        except IllegalOffset:
            return
        if self.rng.random() < 0.6:
            self.offsets.save()

    def power_cut(self) -> None:
        """Sometimes another one right after the start; sometimes the consumer begins again from its progress.

        Between two losses the consumer pulls at least once: a start knows the end that it found, not that of others.
        """
        self.consume()
        self.disk.mark()
        for _ in range(self.rng.choice((1, 1, 2))):
            self.start(self.disk.crash(self.rng))
        if self.rng.random() < 0.3:
            self.position = self.progress.offset_of(GROUP, TOPIC, 0) or 0

    def run(self, steps: int) -> None:
        self.commit()  # a group without an offset chooses its own start
        self.offsets.save()
        choices = [self.append, self.append, self.flush, self.consume, self.consume, self.commit, self.power_cut]
        for _ in range(steps):
            self.rng.choice(choices)()
            self.disk.mark()

    def drain(self) -> set[bytes]:
        """All messages that the log has in the end, after the group has read to the end of the queue."""
        self.store.flush()
        self.store.dispatch()
        while self.position != self.store.max_offset(TOPIC, 0):
            self.consume()
        found = self.store.read(TOPIC, 0, 0, max_messages=100_000, max_bytes=1 << 30)
        return {bytes(decode(view).body) for view in found.records}


@pytest.mark.parametrize("sync_flush", [False, True])
def test_a_group_receives_every_message_that_the_log_has(sync_flush: bool) -> None:
    for seed in range(SEEDS):
        life = Life(seed, sync_flush=sync_flush)
        life.run(80)
        missed = life.drain() - life.delivered
        assert not missed, f"seed {seed}: never delivered {sorted(missed)}"
