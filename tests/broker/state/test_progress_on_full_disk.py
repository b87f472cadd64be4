"""Progress that consumers report while the disk is full: kept over a restart, or refused."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from broker.state.test_clamping import config_of, write_store
from broker.support.fakes import FakePeer, store_config
from pyromq.broker.broker import Broker
from pyromq.broker.requests.offsets import OffsetProcessor
from pyromq.broker.state.groups import Groups
from pyromq.broker.state.offsets import Progress
from pyromq.broker.state.resets import Resets
from pyromq.broker.state.tables import Tables
from pyromq.broker.state.topics import Topics
from pyromq.clock import ManualClock
from pyromq.config import BrokerConfig
from pyromq.errors import NotNow
from pyromq.model.group import GroupConfig
from pyromq.model.message import Draft
from pyromq.model.topic import TopicConfig
from pyromq.net.client import Client
from pyromq.store.message_store import InlineRunner, MessageStore
from pyromq.testing import SimDisk
from pyromq.wire.codes import ResponseCode
from pyromq.wire.requests.client import QueryConsumerOffset, UpdateConsumerOffset
from small_disks import tmpfs

QUEUE: dict[str, Any] = {"group": "g", "topic": "orders", "queue_id": 0}


class Scene:
    """A broker's tables on a disk in memory, with ten messages in the log."""

    def __init__(self, disk: SimDisk | None = None) -> None:
        self.clock = ManualClock()
        self.disk = disk or SimDisk(self.clock)
        self.config = BrokerConfig(store=store_config(segment_bytes=1 << 20))
        self.store = MessageStore(self.config.store, disk=self.disk, clock=self.clock, runner=InlineRunner())
        self.store.open()
        self.tables = Tables(self.config, self.store, self.clock)
        self.progress = Progress(self.tables.offsets, self.store)
        topics = Topics(self.tables.topics, lambda: self.config, lambda: None)
        groups = Groups(self.tables.groups, lambda: self.config, lambda: None)
        self.offsets = OffsetProcessor(
            topics, groups, self.progress, self.store, Resets(), self.tables.offsets_saver.check
        )
        if disk is None:
            topics.make(TopicConfig("orders", 1, 1))
            groups.make(GroupConfig("g"))
            self.store.append([Draft(b"orders", 0, b"x") for _ in range(10)])
            self.store.flush()
            self.store.dispatch()
            self.report(1)
            self.save()

    def report(self, offset: int) -> None:
        assert self.offsets.update(UpdateConsumerOffset(**QUEUE, offset=offset), FakePeer()).code == 0

    def save(self) -> None:
        asyncio.run(self.tables.save())

    def killed(self) -> Scene:
        return Scene(self.disk.kill())

    @property
    def known(self) -> int | None:
        return self.progress.offset_of("g", "orders", 0)


def test_progress_is_saved_on_a_full_disk_in_the_room_that_is_kept() -> None:
    scene = Scene()
    scene.disk.capacity_bytes = scene.disk.usage(scene.store.paths.root).used
    for offset in range(2, 11):
        scene.report(offset)
        scene.save()
        assert scene.killed().known == offset


def test_progress_that_cannot_be_saved_is_refused_until_it_can_be() -> None:
    scene = Scene()
    scene.disk.full = True
    scene.report(2)  # that the disk does not take it is not known yet
    scene.save()
    with pytest.raises(NotNow, match="not kept"):
        scene.report(3)
    assert scene.known == 2
    scene.disk.full = False
    scene.save()
    scene.report(3)
    scene.save()
    assert scene.killed().known == 3


# --- a whole broker --------------------------------------------------------------------------------------------------


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    yield from tmpfs(tmp_path / "small", mib=16)


def fill(path: Path) -> None:
    """Take the last block of a disk."""
    with path.open("wb", buffering=0) as file:
        for size in (1 << 20, 4096):
            with contextlib.suppress(OSError):  # no room
                while True:
                    file.write(bytes(size))
    assert os.statvfs(path).f_bavail == 0


def test_progress_reported_to_a_broker_on_a_full_disk_is_there_after_a_restart(small_disk: Path) -> None:
    root = small_disk / "store"
    config = config_of(root)
    config = replace(config, store=replace(config.store, segment_bytes=1 << 20))
    write_store(config, 10, offset=1)

    async def ask(broker: Broker, request: Any) -> Any:
        client = Client()
        try:
            return await client.call(broker.address, request, 10.0)
        finally:
            await client.close()

    async def story() -> None:
        async with Broker(config).running() as broker:
            assert broker.parts is not None
            broker.parts.topics.make(TopicConfig("orders", 1, 1))
            broker.parts.groups.make(GroupConfig("g"))
        async with Broker(config).running() as broker:
            fill(small_disk / "ballast")
            answer = await ask(broker, UpdateConsumerOffset(**QUEUE, offset=7))
            assert answer.code == ResponseCode.SUCCESS
        async with Broker(config).running() as broker:
            answer = await ask(broker, QueryConsumerOffset(**QUEUE))
            assert answer.fields["offset"] == "7"

    async def bounded() -> None:
        async with asyncio.timeout(30):
            await story()

    asyncio.run(bounded())
