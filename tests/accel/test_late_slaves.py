"""Accelerated sends of a sync master without its slave: their answers wait, and say so if they waited too long."""

from __future__ import annotations

import asyncio
from typing import cast

import pytest

from accel.test_sends import PLAIN, FakeConnection, Scene, frame
from broker.failover.test_late_slaves import ALONE, NOBODY, slave_joins, until
from pyromq.clock import ManualClock, SystemClock
from pyromq.model.message import Draft
from pyromq.replication.followers import Followers
from pyromq.wire.codes import ResponseCode
from pyromq.wire.frames import decode_frames


def test_held_answers_leave_with_the_report_that_covers_them() -> None:
    scene = Scene(**ALONE)
    slave_joins(scene.parts)
    connection = FakeConnection()
    data = frame(PLAIN)
    assert scene.fast.take(memoryview(data), 0, connection) == len(data)  # type: ignore[arg-type]
    scene.parts.store.close_batch()
    assert (connection.out, scene.fast.held_sends) == (b"", 1)
    slave_joins(scene.parts)
    (answer,) = decode_frames(connection.out)
    assert (answer.code, scene.fast.held_sends) == (ResponseCode.SUCCESS, 0)


@pytest.mark.parametrize("leaves", [True, False])
def test_held_answers_that_waited_too_long_keep_their_receipt_and_get_another_code(leaves: bool) -> None:
    scene = Scene(**ALONE, clock=SystemClock())
    slave_joins(scene.parts)
    connection = FakeConnection()
    data = b"".join(frame(PLAIN, opaque=number) for number in range(3))
    scene.fast.take(memoryview(data), 0, connection)  # type: ignore[arg-type]
    scene.parts.store.close_batch()
    if leaves:
        scene.parts.ack_mark.followers_changed(Followers())

    async def story() -> None:
        watching = asyncio.ensure_future(scene.parts.ack_mark.run())
        await until(lambda: bool(connection.out))
        watching.cancel()

    asyncio.run(story())
    answers = list(decode_frames(connection.out))
    late = NOBODY if leaves else ResponseCode.FLUSH_SLAVE_TIMEOUT
    assert [(one.code, one.correlation_id, one.fields["queueOffset"]) for one in answers] == [
        (late, 0, "1"), (late, 1, "2"), (late, 2, "3"),
    ]  # fmt: skip
    assert all(one.fields["msgId"] and one.fields["transactionId"] for one in answers)
    slave_joins(scene.parts)
    assert len(list(decode_frames(connection.out))) == 3


def test_without_a_slave_sends_go_the_ordinary_way_which_says_so() -> None:
    scene = Scene(**ALONE)
    cast(ManualClock, scene.parts.clock).advance(scene.parts.ack_mark.timeout_s)  # none is about to come any more
    assert scene.fast_way(frame(PLAIN)) == (0, b"")


def test_a_draft_is_stored_although_nobody_else_has_it() -> None:
    scene = Scene(**ALONE)
    end = scene.parts.store.marks.appended.value
    scene.parts.writer.append([Draft(b"orders", 0, b"here")])
    assert scene.parts.store.marks.appended.value > end
