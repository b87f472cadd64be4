"""What the tests of the broker's parts share: a peer without a connection, and a broker's parts on a disk in memory."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pyromq.broker.delivery.ack_mark import AckMark
from pyromq.broker.delivery.append import Writer
from pyromq.broker.delivery.delays import Delays
from pyromq.broker.failover.read_routing import ReadAdvice
from pyromq.broker.idempotence.keeper import SequenceKeeper
from pyromq.broker.idempotence.producer_file import WritersFile
from pyromq.broker.idempotence.sends import NumberedSends
from pyromq.broker.idempotence.sequences import Sequences
from pyromq.broker.overload import Overload
from pyromq.broker.state.groups import Groups
from pyromq.broker.state.topics import Topics
from pyromq.broker.statistics.traffic import Statistics
from pyromq.clock import Clock, ManualClock
from pyromq.config import BrokerConfig, StoreConfig
from pyromq.errors import Unreachable
from pyromq.model.message import PackedHost, StoredMessage
from pyromq.records import record
from pyromq.store.message_store import InlineRunner, MessageStore
from pyromq.store.tables.config_files import GroupTable, TopicTable
from pyromq.store.tables.offset_files import ConsumerOffsets, DelayOffsets
from pyromq.testing import SimDisk
from pyromq.wire.command import Command
from pyromq.wire.requests.client import Request

STORE_HOST: PackedHost = b"\x7f\x00\x00\x01\x00\x00\x2a\x9f"
PEER_HOST: PackedHost = b"\x0a\x00\x00\x07\x00\x00\x30\x39"


class FakePeer:
    """A client that keeps what it is told, and answers calls with what it was given."""

    def __init__(self, address: str = "10.0.0.7:12345", packed_address: PackedHost = PEER_HOST) -> None:
        self.address = address
        self.packed_address = packed_address
        self.is_open = True
        self.answer_room, self.has_turn = 1 << 30, False
        self.told: list[Request] = []
        self.called: list[Request] = []
        #: The answers to the next calls, in order.
        self.answers: list[Command] = []

    def tell(self, request: Request) -> None:
        if self.is_open:
            self.told.append(request)

    async def call(self, request: Request, timeout_s: float) -> Command:
        self.called.append(request)
        if not self.is_open or not self.answers:
            raise Unreachable(f"{self.address} does not answer")
        return self.answers.pop(0)

    def close(self, why: str) -> None:
        self.is_open = False


async def deliver_due(delays: Delays) -> None:
    """Deliver every message that is due now. Raises DiskFull, StoreFenced."""
    for level in delays._levels:
        while await delays._turn(level) == 0:
            pass


def store_config(**changes: Any) -> StoreConfig:
    """Everything small, so that a few messages roll every kind of file."""
    settings: dict[str, Any] = {
        "root": Path("/store"),
        "segment_bytes": 256 * 1024,
        "queue_file_entries": 50,
        "index_slots": 16,
        "index_entries": 400,
        "prefault_bytes": 0,
        "recovery_threads": 1,
        **changes,
    }
    return StoreConfig(**settings)


class Parts:
    """The parts of a broker that most others need, on a store that is open. Close it, or kill it and start again."""

    def __init__(
        self,
        disk: SimDisk | None = None,
        clock: Clock | None = None,
        *,
        store: dict[str, Any] | None = None,
        **settings: Any,
    ) -> None:
        self.clock: Clock = clock or ManualClock()
        self.disk = disk or SimDisk(self.clock)
        self._arguments = {"store": store, **settings}
        self.config = BrokerConfig(store=store_config(**(store or {})), **settings)
        self.store = MessageStore(self.config.store, disk=self.disk, clock=self.clock, runner=InlineRunner())
        self.store.open(hold_back=self.config.copies > 1 and self.config.replication.hides)
        tables = (self.disk, self.store.paths.config, self.clock)
        self.topic_table = TopicTable(*tables)
        self.group_table = GroupTable(*tables)
        self.offsets = ConsumerOffsets(*tables)
        self.delay_offsets = DelayOffsets(*tables)
        for table in self.tables:
            table.load()
        self.changes = 0
        #: Of the machine that this broker runs on.
        self.memory_bytes = 1 << 40
        self.has_slaves = False
        self.topics = Topics(self.topic_table, lambda: self.config, self._changed)
        self.groups = Groups(self.group_table, lambda: self.config, self._changed)
        self.ack_mark = AckMark(self.config, self.store, self.clock)
        self.writer = Writer(self.store, self.ack_mark, is_slave=self.config.is_slave)
        self.overload = Overload(lambda: self.config.overload, self.store.marks, self.clock)
        self.statistics = Statistics(self.clock)
        file = WritersFile(self.disk, self.store.paths.config)
        remember_ms = self.config.idempotence.retention_hours * 3_600_000
        self.writers = SequenceKeeper(Sequences(remember_ms), file, self.store, self.clock)
        self.writers.load()
        self.numbered = NumberedSends(self.writers, self.writer, self.clock)

    @property
    def tables(self) -> tuple[TopicTable, GroupTable, ConsumerOffsets, DelayOffsets]:
        return self.topic_table, self.group_table, self.offsets, self.delay_offsets

    def read_advice(self) -> ReadAdvice:
        return ReadAdvice(
            lambda: self.config, lambda: self.store.marks.written.value, lambda: self.has_slaves, self.memory_bytes
        )

    def _changed(self) -> None:
        self.changes += 1

    def save(self) -> None:
        for table in self.tables:
            table.save()

    def close(self) -> None:
        self.save()
        self.store.close()

    def killed(self, **changes: Any) -> Parts:
        """The same after `kill -9`: what was saved is there, and the store recovers."""
        disk = self.disk.kill()
        return Parts(disk, self.clock, **{**self._arguments, **changes})

    def restarted(self, **changes: Any) -> Parts:
        """The same after a clean stop."""
        self.close()
        return Parts(self.disk, self.clock, **{**self._arguments, **changes})

    def messages(self, topic: str, queue: int = 0) -> list[StoredMessage]:
        """Everything in a queue."""
        self.store.dispatch()
        offset, found = self.store.min_offset(topic, queue), []
        while offset < self.store.max_offset(topic, queue):
            result = self.store.read(topic, queue, offset)
            found += [record.decode(view) for view in result.records]
            offset = result.next_offset
        return found

    def bodies(self, topic: str, queue: int = 0) -> list[bytes]:
        return [message.body for message in self.messages(topic, queue)]
