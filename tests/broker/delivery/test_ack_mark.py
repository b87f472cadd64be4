"""The meaning of an acknowledgement, by role and flush; and the answers when slaves are late."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest

from broker.support.fakes import Parts
from pyromq.clock import ManualClock, SystemClock
from pyromq.config import FlushConfig, ReplicationConfig
from pyromq.errors import ConfigError, NotEnoughReplicas, NotNow, SlavesLate, StoreFenced
from pyromq.model.message import AppendedAt, Draft
from pyromq.replication.followers import Followers
from pyromq.replication.identity import Identity
from pyromq.wire.codes import ResponseCode
from pyromq.wire.responses import SendReceipt

LATE, NOBODY = ResponseCode.FLUSH_SLAVE_TIMEOUT, ResponseCode.SLAVE_NOT_AVAILABLE


class Scene:
    """A master, and slaves that report what the story says."""

    def __init__(self, role: str = "SYNC_MASTER", *, sync_flush: bool = False, **replication: Any) -> None:
        self.clock = ManualClock()
        self.parts = Parts(
            clock=self.clock,
            role=role,
            replication=ReplicationConfig(timeout_ms=50, **replication),
            store={"flush": FlushConfig(sync=sync_flush)},
        )
        self._lives_with(self.parts)

    def _lives_with(self, parts: Parts) -> None:
        self.parts, self.followers = parts, Followers()
        self.ack_mark, self.writer, self.store = parts.ack_mark, parts.writer, parts.store

    def starts_again(self, **settings: Any) -> None:
        self._lives_with(self.parts.restarted(**settings))

    def is_killed(self) -> None:
        self._lives_with(self.parts.killed())

    def append(self) -> AppendedAt:
        (receipt,) = self.writer.append([Draft(b"orders", 0, b"a message")])
        self.store.close_batch()
        return receipt

    def now_ms(self) -> int:
        return int(self.clock.monotonic() * 1000)

    def joins(self, name: str, machine: str = "") -> None:
        end = self.store.marks.appended.value
        identity = Identity(machine or name, 1, f"{name}:10911")
        self._know(self.followers.joined(name, 0, self.now_ms(), identity=identity, proved=True).sent(name, end))

    def reports(self, name: str, position: int) -> None:
        end = self.store.marks.appended.value
        now_ms = self.now_ms()
        level_ms = now_ms if position >= end else None
        self._know(self.followers.sent(name, end).heard(name, position, now_ms, level_ms=level_ms))

    def leaves(self, name: str) -> None:
        self._know(self.followers.left(name))

    def _know(self, followers: Followers) -> None:
        self.followers = followers
        self.ack_mark.followers_changed(followers)


def test_an_async_master_promises_what_it_has_itself() -> None:
    scene = Scene("ASYNC_MASTER")
    assert scene.ack_mark.acknowledged is scene.store.marks.appended
    assert not scene.ack_mark.waits
    asyncio.run(scene.writer.acknowledged(scene.append()))


def test_sync_flush_promises_the_disk() -> None:
    scene = Scene("ASYNC_MASTER", sync_flush=True)
    assert scene.ack_mark.acknowledged is scene.store.marks.synced
    assert scene.ack_mark.waits


def test_a_slave_that_restarts_is_waited_for_and_one_that_stays_away_is_not() -> None:
    scene = Scene()
    assert scene.ack_mark.expects_replicas, "the master has just started, and slaves are about to come"
    scene.clock.advance(0.05)
    assert not scene.ack_mark.expects_replicas
    scene.joins("s")
    scene.clock.advance(9.0)
    scene.leaves("s")
    assert scene.ack_mark.expects_replicas
    assert scene.ack_mark.late_code() == NOBODY, "whoever waited for it in vain is told that nobody is there"
    scene.clock.advance(0.049)
    scene.joins("again")
    scene.leaves("again")
    scene.clock.advance(0.049)
    assert scene.ack_mark.expects_replicas
    scene.clock.advance(0.001)
    assert not scene.ack_mark.expects_replicas


def test_a_sync_master_promises_what_a_slave_reported() -> None:
    async def story() -> None:
        scene = Scene()
        scene.joins("s")
        one, other = scene.append(), scene.append()
        waiting = asyncio.ensure_future(scene.writer.acknowledged(one))
        await asyncio.sleep(0)
        assert not waiting.done()
        assert scene.ack_mark.waiting_sends == 1
        scene.reports("s", one.end)
        await waiting
        assert scene.ack_mark.acknowledged.value == one.end < other.end

    asyncio.run(story())


def test_with_sync_flush_both_disks_have_it() -> None:
    scene = Scene(sync_flush=True)
    scene.joins("s")
    receipt = scene.append()
    synced = scene.store.marks.synced.value
    scene.reports("s", receipt.end)
    assert scene.ack_mark.acknowledged.value == synced < receipt.end
    scene.store.flush()
    assert scene.ack_mark.acknowledged.value == receipt.end


def test_three_copies_wait_for_the_second_slave() -> None:
    scene = Scene(copies=3)
    scene.joins("s")
    scene.joins("t")
    receipt = scene.append()
    scene.reports("s", receipt.end)
    assert scene.ack_mark.acknowledged.value == 0
    scene.reports("t", receipt.end)
    assert scene.ack_mark.acknowledged.value == receipt.end


def test_a_slave_that_is_slow_and_one_that_is_not_there_are_two_things() -> None:
    async def settled(scene: Scene) -> int:
        with pytest.raises(SlavesLate, match="stored here") as late:
            await scene.writer.acknowledged(scene.append())
        return late.value.code

    async def story() -> None:
        scene = Scene()
        assert await settled(scene) == NOBODY
        scene.joins("s")
        assert await settled(scene) == LATE
        scene.leaves("s")
        assert await settled(scene) == NOBODY

    asyncio.run(story())


def test_who_waited_too_long_gets_the_receipt_with_another_code() -> None:
    async def story() -> None:
        scene = Scene()
        receipt = SendReceipt(message_id="ABC", queue_id=3, queue_offset=7)
        answer = scene.writer.answer_when_acknowledged(scene.append(), receipt)
        assert not isinstance(answer, SendReceipt)
        told = await answer  # type: ignore[misc]
        assert (told.code, told.message_id, told.queue_id, told.queue_offset) == (NOBODY, "ABC", 3, 7)

    asyncio.run(story())


def test_where_nothing_is_accepted_without_a_slave_who_waits_for_one_that_left_hears_that_nobody_is_there() -> None:
    scene = Scene(min_in_sync=2)
    scene.joins("s")
    scene.append()
    assert (scene.ack_mark.expects_replicas, scene.ack_mark.late_code()) == (True, LATE)
    scene.leaves("s")
    assert (scene.ack_mark.expects_replicas, scene.ack_mark.late_code()) == (True, NOBODY)
    scene.clock.advance(0.05)
    assert not scene.ack_mark.expects_replicas


def test_too_few_in_sync_and_nothing_is_stored() -> None:
    scene = Scene(min_in_sync=2)
    end = scene.store.marks.appended.value
    with pytest.raises(NotEnoughReplicas, match=r"the copies in sync are 1, .*2 must be"):
        scene.append()
    assert scene.store.marks.appended.value == end
    scene.joins("s")
    scene.append()


def test_a_slave_that_fell_silent_is_not_in_sync() -> None:
    scene = Scene(min_in_sync=2, peer_timeout_ms=6000)
    scene.joins("s")
    assert scene.ack_mark.accepts
    scene.clock.advance(6001)
    assert not scene.ack_mark.accepts


def test_one_that_adapts_goes_on_alone_when_its_slave_is_gone() -> None:
    scene = Scene(adapts=True)
    scene.joins("s")
    first = scene.append()
    assert scene.ack_mark.replicated() < first.end
    scene.leaves("s")
    assert scene.ack_mark.replicated() == first.end
    asyncio.run(scene.writer.acknowledged(first))


def test_one_that_adapts_promises_what_comes_while_its_slave_is_gone() -> None:
    scene = Scene(adapts=True)
    scene.joins("s")
    scene.leaves("s")
    receipt = scene.append()
    assert scene.ack_mark.acknowledged.value == receipt.end
    asyncio.run(scene.writer.acknowledged(receipt))


def visible(scene: Scene) -> int:
    scene.store.dispatch()
    queue = scene.store.queues.get(b"orders", 0)
    return 0 if queue is None else queue.max_offset


def test_where_two_copies_are_required_consumers_see_what_a_slave_has() -> None:
    """Else they would have seen messages that are lost when the slave takes over, and miss their successors."""
    scene = Scene(min_in_sync=2)
    scene.joins("s")
    one, other = scene.append(), scene.append()
    assert visible(scene) == 0
    scene.reports("s", one.end)
    assert visible(scene) == 1
    scene.reports("s", other.end)
    assert visible(scene) == 2


def test_a_master_that_starts_again_shows_no_more_than_it_did_before() -> None:
    """However often, and however it stopped; until a slave says that it has the rest."""
    scene = Scene(min_in_sync=2)
    scene.joins("s")
    one, other = scene.append(), scene.append()
    scene.reports("s", one.end)
    assert visible(scene) == 1
    scene.store.flush()
    scene.store.save_recover_point()
    for again in (scene.is_killed, scene.starts_again, scene.starts_again, scene.is_killed):
        again()
        assert visible(scene) == 1
    scene.joins("s")
    third = scene.append()
    assert third.queue_offset == 2, "what is hidden keeps its place"
    assert visible(scene) == 1
    scene.reports("s", other.end)
    assert visible(scene) == 2
    scene.reports("s", third.end)
    assert visible(scene) == 3
    scene.starts_again()
    assert visible(scene) == 3, "everything was confirmed"


def test_one_that_waits_for_nobody_any_more_shows_everything() -> None:
    scene = Scene(min_in_sync=2)
    scene.joins("s")
    scene.append()
    scene.starts_again(role="SLAVE", broker_id=1)
    assert visible(scene) == 1
    scene = Scene(visibility="acknowledged")
    scene.append()
    assert visible(scene) == 0
    scene.starts_again(replication=ReplicationConfig(visibility="acknowledged", adapts=True))
    assert visible(scene) == 1
    scene.starts_again(replication=ReplicationConfig(visibility="immediate"))
    assert visible(scene) == 1


def test_consumers_of_a_sync_master_see_what_its_slave_has() -> None:
    scene = Scene()
    scene.joins("s")
    scene.reports("s", 0)
    one, other = scene.append(), scene.append()
    assert visible(scene) == 0
    scene.reports("s", one.end)
    assert visible(scene) == 1
    scene.clock.advance(9.0)
    scene.ack_mark.check_in_sync()
    assert visible(scene) == 1, "the slave is there, and slow"
    scene.reports("s", other.end)
    assert visible(scene) == 2


def test_a_sync_master_that_is_alone_shows_everything_after_a_while() -> None:
    """As long as its sends wait for the slave, its readers do; then both go on without."""
    scene = Scene(visibility="replicated")
    scene.joins("s")
    scene.append()
    scene.leaves("s")
    assert visible(scene) == 0
    scene.clock.advance(0.049)
    scene.ack_mark.check_in_sync()
    assert visible(scene) == 0
    scene.clock.advance(0.001)
    scene.ack_mark.check_in_sync()
    assert not scene.ack_mark.expects_replicas
    assert visible(scene) == 1
    scene.append()
    assert visible(scene) == 2
    scene.joins("s")
    third = scene.append()
    assert visible(scene) == 3, "a slave that has just come, and has far to go perhaps, holds nobody back"
    scene.reports("s", third.end)
    fourth = scene.append()
    assert visible(scene) == 3, "one that has caught up does"
    scene.reports("s", fourth.end)
    assert visible(scene) == 4


def test_a_slave_that_comes_and_goes_holds_nobody_back() -> None:
    scene = Scene(visibility="replicated")
    scene.append()
    for life in range(10):
        scene.joins(f"s{life}")
        scene.clock.advance(0.02)
        scene.ack_mark.check_in_sync()
        scene.leaves(f"s{life}")
    assert visible(scene) == 1


def test_a_slave_that_says_nothing_holds_readers_back_no_longer_than_it_is_in_sync() -> None:
    scene = Scene(peer_timeout_ms=6_000, visibility="replicated")
    scene.joins("s")
    scene.reports("s", 0)
    scene.append()
    for _ in range(2):
        scene.clock.advance(5.0)
        scene.ack_mark.check_in_sync()
    scene.clock.advance(0.05)
    scene.ack_mark.check_in_sync()
    assert visible(scene) == 1


def test_a_slave_that_has_far_to_go_holds_nobody_back() -> None:
    scene = Scene(max_gap_bytes=100, visibility="replicated")
    scene.clock.advance(1.0)
    scene.ack_mark.check_in_sync()
    scene.append()
    scene.joins("s")
    scene.append()
    assert visible(scene) == 2


def test_a_sync_master_that_starts_again_holds_back_what_no_slave_had_for_a_while() -> None:
    scene = Scene(visibility="replicated")
    scene.joins("s")
    one, _ = scene.append(), scene.append()
    scene.reports("s", one.end)
    assert visible(scene) == 1
    scene.store.flush()
    scene.store.save_recover_point()
    scene.is_killed()
    assert visible(scene) == 1
    scene.clock.advance(0.05)
    scene.ack_mark.check_in_sync()
    assert visible(scene) == 2


def test_whoever_had_read_what_a_killed_master_hides_again_waits_for_it() -> None:
    """And is not sent back: the last recover point is older than what was shown."""
    scene = Scene()
    scene.joins("s")
    scene.reports("s", 0)
    receipt = scene.append()
    scene.reports("s", receipt.end)
    assert visible(scene) == 1
    scene.is_killed()
    assert visible(scene) == 0
    assert scene.store.given_out("orders", 0) == 1
    scene.joins("s")
    scene.reports("s", receipt.end)
    assert visible(scene) == 1


def test_how_much_readers_see_may_be_said() -> None:
    scene = Scene(visibility="immediate")
    scene.joins("s")
    scene.append()
    assert visible(scene) == 1
    scene = Scene()
    scene.append()
    scene.clock.advance(9.0)
    scene.ack_mark.check_in_sync()
    assert visible(scene) == 0
    scene = Scene(adapts=True, visibility="acknowledged")
    scene.append()
    assert visible(scene) == 1, "it waits for nobody while nobody is there"
    with pytest.raises(ConfigError, match="acknowledged, replicated, immediate"):
        ReplicationConfig(visibility="some")


def test_removing_a_topic_shows_no_message_that_a_slave_lacks() -> None:
    async def story() -> None:
        scene = Scene()
        scene.joins("s")
        receipt = scene.append()
        with pytest.raises(NotNow, match="nothing is removed"):
            async with scene.ack_mark.all_visible():
                raise AssertionError("slaves did not confirm")
        with pytest.raises(NotNow, match="not acknowledged"):
            await scene.store.remove_topic("other")
        assert visible(scene) == 0
        assert not scene.ack_mark.is_refusing
        scene.reports("s", receipt.end)
        async with scene.ack_mark.all_visible():
            with pytest.raises(NotNow, match="being removed"):
                scene.ack_mark.check_accepts()
            assert await scene.store.remove_topic("other")
        scene.ack_mark.check_accepts()
        assert visible(scene) == 1

    asyncio.run(story())


def test_a_running_sync_master_wakes_its_consumers_when_the_slave_reports() -> None:
    async def story() -> None:
        scene = Scene(min_in_sync=2)
        scene.joins("s")
        async with scene.store.running():
            receipt = scene.append()
            await asyncio.sleep(0)
            assert scene.store.marks.dispatched.value == 0
            arrival = asyncio.ensure_future(scene.store.marks.dispatched.wait(receipt.end))
            scene.reports("s", receipt.end)
            async with asyncio.timeout(5):
                await arrival

    asyncio.run(story())


def test_all_in_sync_are_waited_for_when_that_is_asked_for() -> None:
    scene = Scene(all_in_sync=True)
    scene.joins("s")
    scene.joins("t")
    receipt = scene.append()
    scene.reports("s", receipt.end)
    assert scene.ack_mark.acknowledged.value == 0
    scene.reports("t", receipt.end)
    assert scene.ack_mark.acknowledged.value == receipt.end


def test_reports_of_one_slave_do_not_keep_another_in_sync() -> None:
    scene = Scene(all_in_sync=True, peer_timeout_ms=6_000)
    scene.joins("s")
    scene.joins("t")
    receipt = scene.append()
    scene.reports("s", receipt.end)
    scene.reports("t", receipt.end)
    for _ in range(600):  # "t" says nothing any more
        receipt = scene.append()
        scene.clock.advance(0.01)
        scene.reports("s", receipt.end)
    assert scene.ack_mark.acknowledged.value < receipt.end, "it is waited for"
    for _ in range(6):
        scene.clock.advance(0.01)
        scene.reports("s", receipt.end)
    assert scene.ack_mark.acknowledged.value == receipt.end, "those that are in sync have it"


def test_a_slave_that_came_again_counts_with_its_new_connection_at_once() -> None:
    scene = Scene(all_in_sync=True)
    scene.joins("old", machine="m")
    receipt = scene.append()
    scene.reports("old", receipt.end)
    scene.joins("new", machine="m")
    receipt = scene.append()
    scene.reports("new", receipt.end)
    assert scene.ack_mark.acknowledged.value == receipt.end


def test_a_broker_whose_disk_failed_tells_those_who_wait_for_slaves() -> None:
    async def story() -> None:
        scene = Scene()
        scene.joins("s")
        waiting = asyncio.ensure_future(scene.writer.acknowledged(scene.append()))
        await asyncio.sleep(0)
        scene.ack_mark.fail(StoreFenced("the disk is gone"))
        with pytest.raises(StoreFenced):
            await waiting

    asyncio.run(story())


def test_a_slave_stores_nothing_of_its_own() -> None:
    parts = Parts(role="SLAVE", broker_id=1)
    with pytest.raises(NotNow, match="is a slave"):
        parts.writer.append([Draft(b"orders", 0, b"a message")])


def test_a_master_that_stood_still_looks_before_it_takes_anything() -> None:
    scene = Scene("ASYNC_MASTER")
    scene.ack_mark.leadership_confirmed(6.0)
    scene.ack_mark.check_accepts()
    scene.clock.advance(7)
    assert not scene.ack_mark.accepts
    with pytest.raises(NotNow, match="looks first whether another one leads"):
        scene.ack_mark.check_accepts()
    scene.ack_mark.leadership_confirmed(6.0)
    scene.ack_mark.check_accepts()


@pytest.mark.skipif(not hasattr(time, "CLOCK_BOOTTIME"), reason="no clock that counts suspended time")
def test_a_machine_that_was_suspended_is_stale_although_the_loop_saw_no_time_pass(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    suspended = [0.0]
    usual = time.clock_gettime
    monkeypatch.setattr(
        time, "clock_gettime", lambda kind: usual(kind) + (suspended[0] if kind == time.CLOCK_BOOTTIME else 0.0)
    )
    ack_mark = Parts(clock=SystemClock(), role="SYNC_MASTER").ack_mark
    ack_mark.leadership_confirmed(600.0)
    assert not ack_mark.leadership_is_stale
    suspended[0] = 601.0
    assert ack_mark.leadership_is_stale
