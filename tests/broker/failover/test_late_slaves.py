"""A sync master without its slave: each message is stored once, and no background task stops."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Any

import pytest

from broker.delivery import test_delays
from broker.requests import test_send_back
from broker.support import numbered_scene, transaction_scene
from broker.support.transaction_scene import COMMIT, HALVES, ROLL_BACK
from net.fakes import until as until_ever
from pyromq.broker.delivery import delays as delays_module
from pyromq.clock import SystemClock
from pyromq.config import ReplicationConfig, TransactionConfig
from pyromq.replication.followers import Followers
from pyromq.replication.identity import Identity
from pyromq.wire.codes import ResponseCode

#: It acknowledges with one slave, and takes and shows messages without.
ALONE: dict[str, Any] = {"role": "SYNC_MASTER", "replication": ReplicationConfig(timeout_ms=20, visibility="immediate")}
#: It takes no messages without one, and shows none that the slave does not have.
CLOSED: dict[str, Any] = {"role": "SYNC_MASTER", "replication": ReplicationConfig(timeout_ms=20, min_in_sync=2)}
NOBODY = ResponseCode.SLAVE_NOT_AVAILABLE


def slave_joins(parts: Any, position: int | None = None) -> None:
    """One that has everything, or everything below a position."""
    end = parts.store.marks.appended.value
    known = Followers().joined(
        "s", end if position is None else position, int(parts.clock.monotonic() * 1000),
        identity=Identity("s", 1, "s:10911"), proved=True,
    )  # fmt: skip
    parts.ack_mark.followers_changed(known.sent("s", end))
    parts.store.dispatch()  # its messages become visible


def slave_leaves(parts: Any) -> None:
    """With everything."""
    slave_joins(parts)
    parts.ack_mark.followers_changed(Followers())


async def until(holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(10):
        await until_ever(holds)


# --- delayed messages ------------------------------------------------------------------------------------------------


def test_a_delayed_message_is_delivered_once() -> None:
    parts = test_delays.Parts(**ALONE)
    parts.topics.make(test_delays.TopicConfig("orders", 4, 4))
    scene = test_delays.Scene(parts)
    scene.send("tea", 1)
    scene.wait(1)
    assert scene.deliver() == ["tea"]
    scene.wait(10)
    assert scene.deliver() == ["tea"]


def test_delayed_messages_wait_while_nothing_is_taken_and_are_delivered_then(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(delays_module, "RETRY_SECONDS", 0.01)

    async def story() -> None:
        parts = test_delays.Parts(clock=SystemClock(), store={"delay_levels": "1s"}, **CLOSED)
        parts.topics.make(test_delays.TopicConfig("orders", 4, 4))
        scene = test_delays.Scene(parts)
        scene.send("tea", 1)
        slave_leaves(parts)
        parts.store.dispatch()
        running = asyncio.ensure_future(scene.delays.run())
        await until(lambda: "delayed messages wait" in caplog.text)
        assert scene.orders() == []
        slave_joins(parts)
        await until(lambda: slave_joins(parts) or bool(scene.orders()))
        running.cancel()
        assert scene.orders() == ["tea"]

    asyncio.run(story())


# --- messages sent back ----------------------------------------------------------------------------------------------


def test_a_consumer_that_gives_a_message_back_is_told_that_it_was_taken() -> None:
    scene = test_send_back.Scene(**ALONE)
    answer = scene.send_back(scene.store().position)
    assert answer.code == ResponseCode.SUCCESS
    assert "no slave has confirmed it" in (answer.reason or "")
    scene.deliver(10)
    assert len(scene.parts.messages(test_send_back.RETRY)) == 1


# --- transactions ----------------------------------------------------------------------------------------------------


def test_a_transaction_is_committed_once() -> None:
    scene = transaction_scene.Scene(**ALONE)
    sent = scene.send()
    assert sent.code == NOBODY
    assert scene.end(sent, COMMIT).code == NOBODY
    assert scene.end(sent, COMMIT).reason is not None
    assert len(scene.parts.messages("orders", 2)) == 1


def test_an_end_that_could_not_be_recorded_counts_and_is_recorded_later() -> None:
    scene = transaction_scene.Scene(**CLOSED)
    slave_joins(scene.parts)
    sent = scene.send()
    slave_leaves(scene.parts)
    assert scene.end(sent, ROLL_BACK).code == ResponseCode.SUCCESS
    assert scene.parts.messages(transaction_scene.OPS) == []
    slave_joins(scene.parts)
    scene.journal.record_missing_ends()
    slave_joins(scene.parts)
    assert len(scene.parts.messages(transaction_scene.OPS)) == 1


def test_check_back_goes_on_when_messages_are_taken_again(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
    scene = transaction_scene.Scene(**CLOSED, transaction=TransactionConfig(timeout_ms=1, check_interval_ms=10))
    slave_joins(scene.parts)
    scene.send()
    peer = scene.connect()
    scene.clock.advance(10)
    slave_leaves(scene.parts)

    async def story() -> None:
        running = asyncio.ensure_future(scene.check_back.run())
        await until(lambda: "not asked for until messages are taken again" in caplog.text)
        slave_joins(scene.parts)
        await until(lambda: bool(peer.told))
        assert not running.done()
        running.cancel()

    asyncio.run(story())
    slave_joins(scene.parts)
    assert len(scene.parts.messages(HALVES)) == 2  # the half, and the copy that it was asked for with


# --- numbered messages -----------------------------------------------------------------------------------------------


def test_a_numbered_message_that_is_sent_again_is_not_stored_again() -> None:
    scene = numbered_scene.Scene(**ALONE)
    assert scene.send(0, 0, 3).code == NOBODY
    again = scene.send(0, 0, 3)
    assert (again.code, again.more["repeated"]) == (NOBODY, "3")
    slave_joins(scene.parts)
    assert scene.send(0, 0, 3).code == ResponseCode.SUCCESS
    assert scene.stored() == numbered_scene.numbers(0, 0, 3)


def test_a_numbered_message_that_was_refused_has_no_number_yet() -> None:
    scene = numbered_scene.Scene(**CLOSED)
    slave_joins(scene.parts)
    scene.send(0, 0)
    scene.parts.ack_mark.followers_changed(Followers())
    with pytest.raises(Exception, match="must be"):
        scene.send(0, 1)
    slave_joins(scene.parts)
    assert "repeated" not in scene.send(0, 1).more
    slave_joins(scene.parts)
    assert scene.stored() == numbered_scene.numbers(0, 0, 2)
