"""Redeliveries to a group after a fail-over: the offsets committed after the slave's last copy, and no more."""

from __future__ import annotations

import asyncio
import selectors
from dataclasses import replace
from pathlib import Path

import orjson
import pytest

from broker.failover.test_metadata_sync import MASTER, Master, Slave
from broker.support.leading_scene import TOPIC, Scene, copy_with, quick, told
from pyromq import ConsumeFrom, PullConsumer
from pyromq.store.tables.change_log import ChangeLog
from pyromq.wire.codes import ResponseCode
from pyromq.wire.requests.admin import UpdateGroup
from pyromq.wire.requests.client import UpdateConsumerOffset

GROUP = "shop"
COMMIT_EVERY_MS = 10
SECONDS = 40


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    quick(monkeypatch)


class VirtualTime(selectors.SelectSelector):
    """Never waits for a timer: the loop's clock jumps to it."""

    now = 0.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if timeout is None:
            return super().select(timeout)
        self.now += max(timeout, 0)
        return super().select(0)


def loop_with_virtual_time() -> asyncio.AbstractEventLoop:
    clock = VirtualTime()
    loop = asyncio.SelectorEventLoop(clock)
    loop.time = lambda: clock.now  # type: ignore[method-assign]
    return loop


class Consumption:
    """A group that reads and commits one message every `COMMIT_EVERY_MS`, and the slave that copies its progress."""

    def __init__(self) -> None:
        self.master = Master()
        self.master.changes = ChangeLog()
        self.slave = Slave(self.master)
        self.slave.queue_ends = {("orders", 0): 1 << 30}

    async def _lags(self) -> list[int]:
        """Return, for each commit, how many messages a fail-over right after it would deliver again."""
        copying = asyncio.ensure_future(self.slave.copy.run())
        self.slave.copy.master_is_at(MASTER)
        found = []
        for offset in range(1, SECONDS * 1000 // COMMIT_EVERY_MS):
            self.master.commit("orders@shop", offset)
            await asyncio.sleep(COMMIT_EVERY_MS / 1000)
            found.append(offset - (self.slave.progress() or 0))
        copying.cancel()
        await asyncio.gather(copying, return_exceptions=True)
        return found

    def lags(self) -> list[int]:
        with asyncio.Runner(loop_factory=loop_with_virtual_time) as runner:
            return runner.run(self._lags())


@pytest.mark.parametrize("interval_ms", [1000, 200])
def test_at_any_moment_a_slave_lacks_the_commits_of_one_interval_at_most(interval_ms: int) -> None:
    consumption = Consumption()
    usual = consumption.slave.config
    assert usual.replication.progress_interval_ms == 1000
    copies = replace(usual.replication, progress_interval_ms=interval_ms)
    consumption.slave.config = replace(usual, replication=copies)
    lags = consumption.lags()
    assert max(lags) <= interval_ms // COMMIT_EVERY_MS + 1
    assert max(lags) > interval_ms // COMMIT_EVERY_MS // 2, "nothing was measured"
    assert consumption.master.whole_tables <= 1 + SECONDS * 1000 // usual.replication.metadata_interval_ms


def test_a_promoted_slave_delivers_again_what_was_committed_after_its_last_copy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    copy_with(monkeypatch, metadata_interval_ms=3_600_000, progress_interval_ms=3_600_000)
    sent, copied, committed = [str(number) for number in range(30)], 10, 25

    async def commit(scene: Scene, offset: int) -> None:
        answer = await scene.ask("a", UpdateConsumerOffset(group=GROUP, topic=TOPIC, queue_id=0, offset=offset))
        assert answer.code == ResponseCode.SUCCESS

    async def story(scene: Scene) -> None:
        await scene.send(*sent)
        await scene.follows("b", "a")
        await scene.ask("a", UpdateGroup(body=orjson.dumps({"groupName": GROUP})))
        await commit(scene, copied)
        slave = scene.of("b").parts
        assert slave is not None
        await slave.metadata_copy.copy_now()
        await commit(scene, committed)
        await scene.stop("a")
        await scene.promote("b", 9)
        await scene.leads("b")
        received: list[str] = []
        async with PullConsumer(scene.name_server, group=GROUP, consume_from=ConsumeFrom.FIRST) as consumer:
            await consumer.subscribe(TOPIC)
            while len(received) < len(sent) - copied:
                received += [message.text for message in await consumer.poll(timeout_s=1.0)]
        assert received == sent[copied:]
        assert len(set(received) & set(sent[:committed])) == committed - copied

    told(tmp_path, story, "ASYNC_MASTER")
