"""After a start nothing counts as acknowledged until slaves confirmed it, and readers keep seeing what they saw."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from broker.support.fakes import Parts
from broker.support.numbered_scene import Scene as NumberedScene
from broker.support.transaction_scene import COMMIT, ROLL_BACK
from broker.support.transaction_scene import Scene as TransactionScene
from pyromq.clock import ManualClock
from pyromq.config import FlushConfig, ReplicationConfig
from pyromq.model.message import Draft
from pyromq.replication.followers import Followers
from pyromq.replication.identity import Identity
from pyromq.wire.codes import ResponseCode

OK, NOBODY = ResponseCode.SUCCESS, ResponseCode.SLAVE_NOT_AVAILABLE
SYNC_MASTER: dict[str, Any] = {"role": "SYNC_MASTER", "replication": ReplicationConfig(timeout_ms=20)}


def confirm(parts: Parts) -> None:
    """A slave reports that it has the whole log."""
    end, now_ms = parts.store.marks.appended.value, int(parts.clock.monotonic() * 1000)
    identity = Identity("s", 1, "s:10911")
    followers = (
        Followers().joined("s", 0, now_ms, identity=identity).sent("s", end).heard("s", end, now_ms, level_ms=now_ms)
    )
    parts.ack_mark.followers_changed(followers)


def stay_alone(parts: Parts) -> None:
    """No slave connects until readers see everything."""
    assert isinstance(parts.clock, ManualClock)
    parts.ack_mark.followers_changed(Followers())
    for _ in range(2):
        parts.clock.advance(1.0)
        parts.ack_mark.check_in_sync()
    parts.store.dispatch()


@pytest.mark.parametrize("sync_flush", [False, True])
@pytest.mark.parametrize("how", ["restarted", "killed"])
def test_a_repeated_numbered_send_waits_for_a_slave_after_a_start(how: str, sync_flush: bool) -> None:
    scene = NumberedScene(**SYNC_MASTER, store={"flush": FlushConfig(sync=sync_flush)})
    assert scene.send(1, 0).code == NOBODY, "stored here, and in no other log"
    stay_alone(scene.parts)
    asyncio.run(scene.parts.writers.save())
    after = NumberedScene(getattr(scene.parts, how)())
    again = after.send(1, 0)
    assert again.more["repeated"] == "1"
    assert again.code == NOBODY
    confirm(after.parts)
    assert after.send(1, 0).code == OK
    after.parts.close()


def test_a_repeated_numbered_send_waits_for_a_slave_of_a_promoted_one() -> None:
    scene = NumberedScene(role="ASYNC_MASTER")  # its log is one that was copied
    assert scene.send(1, 0).code == OK
    asyncio.run(scene.parts.writers.save())
    after = NumberedScene(scene.parts.restarted(**SYNC_MASTER))
    assert after.send(1, 0).code == NOBODY
    confirm(after.parts)
    assert after.send(1, 0).code == OK
    after.parts.close()


@pytest.mark.parametrize("decision", [COMMIT, ROLL_BACK])
@pytest.mark.parametrize("how", ["restarted", "killed"])
def test_the_repeated_end_of_a_transaction_waits_for_a_slave_after_a_start(how: str, decision: int) -> None:
    scene = TransactionScene(**SYNC_MASTER)
    half = scene.send()
    confirm(scene.parts)
    scene.parts.store.dispatch()
    stay_alone(scene.parts)
    assert scene.end(half, decision).code == NOBODY
    scene.parts.store.flush()
    scene.parts.store.save_recover_point()
    after: TransactionScene = getattr(scene, how)()
    assert after.end(half, decision).code == NOBODY
    confirm(after.parts)
    assert after.end(half, decision).code == OK
    after.parts.close()


def test_what_readers_saw_before_a_start_they_see_after_it() -> None:
    parts = Parts(**SYNC_MASTER)
    parts.store.append([Draft(b"orders", 0, b"x")])
    confirm(parts)
    assert parts.bodies("orders") == [b"x"]
    after = parts.restarted()
    assert after.ack_mark.acknowledged.value == 0, "no slave has confirmed it in this life"
    assert after.bodies("orders") == [b"x"]
    after.close()


@pytest.mark.parametrize("visibility", ["acknowledged", "replicated", "immediate"])
def test_a_start_shows_no_message_as_acknowledged_whatever_readers_see(visibility: str) -> None:
    settings = {"role": "SYNC_MASTER", "replication": ReplicationConfig(timeout_ms=20, visibility=visibility)}
    parts = Parts(**settings)
    parts.store.append([Draft(b"orders", 0, b"x")])
    after = parts.killed()
    assert after.ack_mark.acknowledged.value == 0
    confirm(after)
    assert after.ack_mark.acknowledged.value == after.store.marks.appended.value
    after.close()
