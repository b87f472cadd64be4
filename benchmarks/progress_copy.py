"""Processor time of copying the progress of groups to a slave: the whole table, and what changed.

    python benchmarks/progress_copy.py [TOPICS]

Each topic has 8 queues and one group. Master and slave share this process, and no network is between them.
"""

from __future__ import annotations

import asyncio
import itertools
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, cast

from pyromq.broker.failover.metadata_sync import MetadataCopy, TakenProgress
from pyromq.broker.requests.admin.offsets import OffsetAdmin
from pyromq.broker.state.offsets import Progress
from pyromq.broker.state.tables import Tables
from pyromq.clock import SystemClock
from pyromq.config import BrokerConfig, StoreConfig
from pyromq.net.client import Client
from pyromq.store.message_store import MessageStore
from pyromq.wire.command import Command
from pyromq.wire.requests import admin as ask

QUEUES, ROUNDS = 8, 30
NO_END = 1 << 40


class Side:
    """One broker's tables on an empty store."""

    def __init__(self, root: Path, role: str) -> None:
        store = StoreConfig(root=root, segment_bytes=1 << 20)
        self.config = BrokerConfig(store=store, role=role, broker_id=int(role == "SLAVE"))
        self.store = MessageStore(store)
        self.store.open()
        self.tables = Tables(self.config, self.store, SystemClock())


class Link:
    """The client of the slave: calls the master's handlers, and counts their time."""

    def __init__(self, master: Side) -> None:
        admin = OffsetAdmin.__new__(OffsetAdmin)  # of all its parts only these answer
        admin._progress = Progress(master.tables.offsets, master.store)
        admin._delays, admin._delay_levels = master.tables.delays, 18
        self._admin: Any = admin
        self.seconds = 0.0

    async def call(self, address: str, request: Any, timeout_s: float) -> Command:
        began = time.process_time()
        if isinstance(request, ask.GetAllOffsets):
            answer = await self._admin.all_offsets(request, None)
        else:
            answer = self._admin.all_delay_offsets(request, None)
        body = bytes(answer.body)
        self.seconds += time.process_time() - began
        return Command(code=0, body=body, fields=answer.more)


async def measure(root: Path, topics: int) -> None:
    master, slave = Side(root / "master", "ASYNC_MASTER"), Side(root / "slave", "SLAVE")
    link = Link(master)
    copy = MetadataCopy(
        lambda: slave.config, slave.tables, cast(Client, link), topics_changed=lambda: None,
        groups_changed=lambda: None, log_end=lambda: NO_END,
        queue_end=lambda topic, queue: slave.store.max_offset(topic, queue) or NO_END,
        taken=TakenProgress(slave.store.disk, slave.store.paths.config),
    )  # fmt: skip
    copy.master_is_at("127.0.0.1:1")

    def commit(share: float, offset: int) -> None:
        for topic in range(int(topics * share)):
            for queue in range(QUEUES):
                master.tables.offsets.commit(f"group-{topic}", f"topic-{topic}", queue, offset)

    numbers = itertools.count(1)
    commit(1.0, next(numbers))
    for name, share in (("whole table", 1.0), ("changes: none", 0.0), ("1 %", 0.01), ("10 %", 0.1), ("all", 1.0)):
        total, link.seconds = 0.0, 0.0
        for _ in range(ROUNDS):
            commit(share, next(numbers))
            began = time.process_time()
            if name == "whole table":
                copy._token = None
                await copy._copy_progress("127.0.0.1:1")
            else:
                await copy.copy_changes()
            total += time.process_time() - began
        theirs, ours = link.seconds / ROUNDS * 1e3, (total - link.seconds) / ROUNDS * 1e3
        print(f"{name:14} master {theirs:7.2f} ms   slave {ours:7.2f} ms")
    await copy.settled()
    for side in (master, slave):
        side.store.close()


def main() -> None:
    with tempfile.TemporaryDirectory() as directory:
        asyncio.run(measure(Path(directory), int(sys.argv[1]) if len(sys.argv) > 1 else 1000))


if __name__ == "__main__":
    main()
