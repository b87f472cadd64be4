"""A consumer that returns with a position in a lost tail skips no message that was given the lost offsets."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from broker.state.test_clamping import config_of, write_store
from broker.support.fakes import Parts
from pyromq.broker.broker import Broker
from pyromq.broker.failover.role_change import Change
from pyromq.broker.state.offsets import Progress
from pyromq.broker.state.rejoin_guard import GUARD_SECONDS, RejoinGuard
from pyromq.clock import ManualClock
from pyromq.errors import IllegalOffset
from pyromq.model.group import GroupConfig
from pyromq.model.message import Draft
from pyromq.model.topic import TopicConfig
from pyromq.net.client import Client
from pyromq.wire.codes import ResponseCode
from pyromq.wire.requests.client import PullMessage, QueryConsumerOffset, UpdateConsumerOffset

FOUND, MOVED = ResponseCode.SUCCESS, ResponseCode.PULL_OFFSET_MOVED


class Scene:
    """A queue that a start found with six messages, and that has twelve by now; groups from before the start."""

    def __init__(self, *, committed: int | None = 4) -> None:
        self.clock = ManualClock()
        self.parts = Parts(clock=self.clock)
        self._grow(6)
        if committed is not None:
            self.parts.offsets.reset("g", "orders", 0, committed)
        guard = RejoinGuard(self.parts.offsets, self.parts.store.given_out, self.clock)
        self.progress = Progress(self.parts.offsets, self.parts.store, guard=guard)
        self._grow(6)

    def _grow(self, count: int) -> None:
        self.parts.store.append([Draft(b"orders", 0, b"x") for _ in range(count)])
        self.parts.store.dispatch()

    def pull(self, offset: int) -> int | None:
        return self.progress.rejoin("g", "orders", 0, offset)

    def commit(self, offset: int, how: str = "commit") -> None:
        getattr(self.progress, how)("g", "orders", 0, offset)

    @property
    def committed(self) -> int | None:
        return self.progress.offset_of("g", "orders", 0)


def test_a_pull_beyond_the_end_of_the_start_goes_on_at_the_progress_until_one_below_it_came() -> None:
    scene = Scene()
    assert scene.pull(10) == 4
    assert scene.pull(10) == 4, "another consumer of the group, or the same one before it heard"
    assert scene.pull(4) is None
    assert not scene.progress.must_rejoin("g", "orders", 0)
    assert scene.pull(10) is None


@pytest.mark.parametrize("how", ["commit", "advance"])
def test_a_commit_beyond_the_end_of_the_start_is_refused_until_the_group_has_rejoined(how: str) -> None:
    scene = Scene()
    with pytest.raises(IllegalOffset, match="last start"):
        scene.commit(10, how)
    assert scene.committed == 4
    scene.commit(6, how)
    assert scene.committed == 6, "up to the end of the start nothing was lost"
    assert scene.pull(6) is None
    scene.commit(10, how)
    assert scene.committed == 10


def test_a_group_without_progress_begins_and_commits_where_it_likes() -> None:
    scene = Scene(committed=None)
    assert scene.pull(10) is None
    scene.commit(11)
    assert scene.pull(11) is None


def test_a_group_that_was_moved_on_purpose_goes_on_there() -> None:
    scene = Scene()
    scene.progress.offsets.reset("g", "orders", 0, 9)
    assert scene.pull(10) is None
    scene.commit(10)
    assert scene.committed == 10


def test_other_queues_and_groups_are_free() -> None:
    scene = Scene()
    assert scene.progress.rejoin("g", "orders", 1, 5) is None
    assert scene.progress.rejoin("other", "orders", 0, 10) is None


def test_after_a_while_nothing_is_checked_any_more() -> None:
    scene = Scene()
    scene.clock.advance(GUARD_SECONDS - 0.1)
    assert scene.pull(10) == 4
    scene.clock.advance(0.1)
    assert scene.pull(10) is None
    scene.commit(10)
    assert scene.committed == 10


# --- a whole broker --------------------------------------------------------------------------------------------------

QUEUE: dict[str, Any] = {"group": "g", "topic": "orders", "queue_id": 0}


def test_a_consumer_of_a_lost_tail_receives_what_was_stored_after_the_restart(tmp_path: Path) -> None:
    config = config_of(tmp_path)
    positions = write_store(config, 10, offset=4)  # the consumer has read ten messages, and committed four
    client = Client()

    async def story() -> None:
        broker = Broker(config, after=Change(why="a power cut", cut_at=positions[6]))
        async with broker.running():
            assert broker.parts is not None
            broker.parts.topics.make(TopicConfig("orders", 1, 1))
            broker.parts.groups.make(GroupConfig("g"))
            broker.store.append([Draft(b"orders", 0, b"new %d" % number) for number in range(6)])
            broker.store.catch_up()

            async def ask(request: Any) -> Any:
                return await client.call(broker.address, request, 10.0)

            async def pull(offset: int) -> Any:
                request = PullMessage(
                    **QUEUE, offset=offset, max_messages=32, flags=1 | 4, commit_offset=offset, subscription="*"
                )
                return await ask(request)

            assert (await ask(UpdateConsumerOffset(**QUEUE, offset=10))).code != ResponseCode.SUCCESS
            for _ in range(2):
                moved = await pull(10)
                assert (moved.code, moved.fields["nextBeginOffset"]) == (MOVED, "4")
            assert (await ask(QueryConsumerOffset(**QUEUE))).fields["offset"] == "4"
            found = await pull(4)
            assert found.code == FOUND
            assert b"new 0" in bytes(found.body)
            assert (await ask(UpdateConsumerOffset(**QUEUE, offset=10))).code == ResponseCode.SUCCESS
            assert (await pull(10)).code == FOUND

    async def run() -> None:
        try:
            async with asyncio.timeout(30):
                await story()
        finally:
            await client.close()

    asyncio.run(run())
