"""Questions about offsets, as ordinary clients ask them."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

from broker.support.fakes import FakePeer, Parts
from pyromq.broker.requests.offsets import OffsetProcessor
from pyromq.broker.state.offsets import Progress
from pyromq.broker.state.resets import Resets
from pyromq.clock import ManualClock
from pyromq.errors import BadRequest, GroupNotFound, IllegalOffset, NotFound, PyroMQError, TopicNotFound
from pyromq.model.group import GroupConfig
from pyromq.model.message import Draft
from pyromq.model.topic import TopicConfig
from pyromq.store import reader
from pyromq.wire.requests.client import (
    GetEarliestStoreTime,
    GetMaxOffset,
    GetMinOffset,
    QueryConsumerOffset,
    SearchOffset,
    UpdateConsumerOffset,
)
from pyromq.wire.responses import OffsetAnswer, StoreTimeAnswer

PEER = FakePeer()
START_MS = 1_700_000_000_000


class World:
    def __init__(self) -> None:
        self.clock = ManualClock(START_MS)
        self.parts = Parts(clock=self.clock)
        self.parts.topics.make(TopicConfig("orders", 4, 4))
        self.parts.groups.make(GroupConfig("readers"))
        for _ in range(200):
            self.parts.store.append([Draft(b"orders", 0, b"x")])
            self.clock.advance(1)
        self.parts.store.dispatch()
        progress = Progress(self.parts.offsets, self.parts.store)
        self.resets = Resets()
        self.offsets = OffsetProcessor(self.parts.topics, self.parts.groups, progress, self.parts.store, self.resets)

    def query(self, *, queue: int = 0, zero: bool = True) -> int | None:
        request = QueryConsumerOffset(group="readers", topic="orders", queue_id=queue, zero_if_not_found=zero)
        answer = self.offsets.query(request, PEER)
        assert isinstance(answer, OffsetAnswer)
        return answer.offset

    def commit(self, offset: int, *, group: str = "readers", topic: str = "orders", queue: int = 0) -> None:
        request = UpdateConsumerOffset(group=group, topic=topic, queue_id=queue, offset=offset)
        assert self.offsets.update(request, PEER).code == 0

    def told_by_a_slave(self, offset: int) -> None:
        request = UpdateConsumerOffset(group="readers", topic="orders", queue_id=0, offset=offset, only_forward=True)
        assert self.offsets.update(request, PEER).code == 0

    def search(self, seconds: float, boundary: str = "LOWER") -> int | None:
        async def ask() -> int | None:
            timestamp_ms = START_MS + int(seconds * 1000)
            answer = await self.offsets.search(
                SearchOffset(topic="orders", queue_id=0, timestamp_ms=timestamp_ms, boundary=boundary), PEER
            )
            assert isinstance(answer, OffsetAnswer)
            return answer.offset

        return asyncio.run(ask())

    def earliest(self, queue: int = 0, topic: str = "orders") -> int | None:
        async def ask() -> int | None:
            answer = await self.offsets.earliest_store_time(GetEarliestStoreTime(topic=topic, queue_id=queue), PEER)
            assert isinstance(answer, StoreTimeAnswer)
            return answer.timestamp_ms

        return asyncio.run(ask())


@pytest.fixture
def world() -> Iterator[World]:
    world = World()
    yield world
    world.parts.close()


def test_a_group_without_progress_begins_at_zero_only_where_everything_is_still_there(world: World) -> None:
    assert world.query() == 0
    with pytest.raises(NotFound):
        world.query(zero=False)
    with pytest.raises(NotFound):
        world.query(queue=1)
    queue = world.parts.store.queues.get(b"orders", 0)
    assert queue is not None
    queue.min_offset = 5
    with pytest.raises(NotFound):
        world.query()


def test_progress_is_kept_and_told(world: World) -> None:
    world.commit(42)
    assert (world.query(), world.query(zero=False)) == (42, 42)
    again = world.parts.restarted()
    assert again.offsets.offset_of("readers", "orders", 0) == 42
    world.parts = again


def test_a_slave_that_tells_what_it_was_told_never_takes_a_group_back(world: World) -> None:
    world.told_by_a_slave(8)
    assert world.query() == 8
    world.commit(15)  # by a consumer, after the slave had asked how far the group is
    world.told_by_a_slave(8)
    assert world.query() == 15


@pytest.mark.parametrize(
    ("error", "group", "topic", "offset"),
    [
        (GroupNotFound, "nobody", "orders", 1), (TopicNotFound, "readers", "nothing", 1),
        (IllegalOffset, "readers", "orders", -1), (IllegalOffset, "readers", "orders", 201),
        (IllegalOffset, "readers", "orders", 2**63 - 1),
    ],
)  # fmt: skip
def test_progress_that_cannot_be_is_refused_and_what_was_there_stays(
    world: World, error: type[PyroMQError], group: str, topic: str, offset: int
) -> None:
    world.commit(42)
    with pytest.raises(error):
        world.commit(offset, group=group, topic=topic)
    assert world.query() == 42
    assert world.parts.groups.get("nobody") is None


def test_progress_is_kept_only_for_queues_that_are_there_or_were(world: World) -> None:
    for queue in (-1, 4, 100_000):
        with pytest.raises(BadRequest, match="has no queue"):
            world.commit(0, queue=queue)
    world.commit(0, queue=3)
    world.parts.store.append([Draft(b"orders", 3, b"x")])
    world.parts.store.dispatch()
    world.parts.topics.change("orders", read_queues=1, write_queues=1)
    world.commit(1, queue=3)
    with pytest.raises(BadRequest):
        world.commit(0, queue=2)


def test_progress_does_not_count_until_the_consumer_has_heard_of_a_reset(world: World) -> None:
    world.commit(42)
    world.resets.note("readers", "orders", 0, 42)
    world.commit(50)
    assert world.query() == 42
    world.resets.take("readers", "orders", 0, 42)
    world.commit(50)
    assert world.query() == 50


def test_where_a_queue_begins_and_ends(world: World) -> None:
    def edge(request: GetMinOffset | GetMaxOffset) -> int | None:
        ask = world.offsets.minimum if isinstance(request, GetMinOffset) else world.offsets.maximum
        answer = ask(request, PEER)  # type: ignore[arg-type]
        assert isinstance(answer, OffsetAnswer)
        return answer.offset

    assert edge(GetMinOffset(topic="orders", queue_id=0)) == 0
    assert edge(GetMaxOffset(topic="orders", queue_id=0)) == 200
    for topic, queue in (("orders", 3), ("orders", -1), ("orders", 2**31 - 1), ("nothing", 0), ("\ud800", 0)):
        assert edge(GetMinOffset(topic=topic, queue_id=queue)) == 0
        assert edge(GetMaxOffset(topic=topic, queue_id=queue)) == 0


@pytest.mark.parametrize("cold", [False, True])
def test_an_offset_is_found_by_time(world: World, cold: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if cold:
        monkeypatch.setattr(reader, "HOT_BYTES", 0)
        world.parts.disk.cold = {segment.path for segment in world.parts.store.log.files.segments}
    assert [world.search(at) for at in (-1, 0, 0.5, 1, 99.5, 100, 199, 500)] == [0, 0, 1, 1, 100, 100, 199, 200]
    assert [world.search(at, "UPPER") for at in (-1, 0, 0.5, 1, 99.5, 500)] == [0, 0, 0, 1, 99, 199]
    assert world.earliest() == START_MS


def test_a_queue_without_messages_has_no_earliest_time(world: World) -> None:
    assert world.earliest(queue=3) == -1
    assert world.earliest(topic="\ud800") == -1
