"""A leader's crash is not forgotten, and neither is a life that led a follower's log."""

from __future__ import annotations

import errno
import shutil
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from broker.support.leading_scene import Scene, quick, told, until
from pyromq.broker.failover.fencing import Fencing
from pyromq.broker.failover.role import Leading
from pyromq.broker.failover.role_change import Change
from pyromq.store.message_store import MessageStore
from pyromq.store.offline.verify import verify
from pyromq.wire.codes import ResponseCode


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    quick(monkeypatch)


def problem_of(scene: Scene, name: str) -> str:
    copies = scene.of(name).copies
    return str(copies.replica.state.problem) if copies is not None and copies.replica is not None else ""


async def crash(scene: Scene, name: str, lost_from: int | None = None) -> None:
    """Stop a broker as a power cut does: its files are as they were while it ran, less the unsynced end of its log."""
    role_file = scene.root / name / "config" / "leadership.json"
    running = role_file.read_bytes()
    await scene.stop(name)
    if lost_from is not None:
        scene.lose_end(name, lost_from)
    role_file.write_bytes(running)
    (scene.root / name / "abort").touch()


async def recover(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    """`pyromq store recover`."""
    store = MessageStore(scene.config("a").store)
    store.open()
    store.close()


async def check(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    """`pyromq store verify`."""
    verify(scene.root / "a")


async def fail_to_start(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    """A start that ends with an error after the store was opened."""

    async def fail(*_: object, **__: object) -> bool:
        raise OSError(errno.EIO, "Input/output error")

    with monkeypatch.context() as patch:
        patch.setattr(Fencing, "may_lead", fail)
        with pytest.raises(OSError, match="Input/output error"):
            await scene.start("a")


async def fail_to_begin(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    """A start on a disk that is full when the new life is to be written down."""

    async def leads(*_: object, **__: object) -> bool:
        return True

    def fail(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(Fencing, "may_lead", leads)
        patch.setattr(Leading, "begin", fail)
        with pytest.raises(OSError, match="No space left"):
            await scene.start("a")


async def crash_again_while_it_waits(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    await scene.start("a")
    await crash(scene, "a")
    await recover(scene, monkeypatch)


FORGETS = [recover, check, fail_to_start, fail_to_begin, crash_again_while_it_waits]


@pytest.mark.parametrize("forget", FORGETS, ids=lambda one: one.__name__)
def test_a_crash_of_a_sync_master_is_not_forgotten(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    forget: Callable[[Scene, pytest.MonkeyPatch], Awaitable[None]],
) -> None:
    async def story(scene: Scene) -> None:
        await scene.send("first")
        position = scene.of("a").store.log.end
        await scene.send("second")
        await scene.follows("b", "a")
        await scene.stop("b")
        await crash(scene, "a", lost_from=position)
        await forget(scene, monkeypatch)
        await scene.start("a")
        assert scene.of("a").config.is_slave, "it leads without asking the slave that has its acknowledged messages"
        await scene.start("b")
        await scene.leads("b")
        await scene.follows("a", "b")
        assert scene.bodies("a") == scene.bodies("b") == ["first", "second"]

    told(tmp_path, story)


def test_a_restart_in_place_and_a_stop_are_clean_ends(tmp_path: Path) -> None:
    async def story(scene: Scene) -> None:
        await scene.send("first")
        await scene.follows("b", "a")
        await scene.stop("b")
        assert scene.of("a")._ask_for(Change(why="a test"))
        await until(lambda: scene.lives["a"].changes == 1 and scene.of("a").parts is not None)
        await scene.leads("a")
        await scene.stop("a")
        await scene.start("a")
        assert not scene.of("a").config.is_slave

    told(tmp_path, story)


# --- a store that was put back from a snapshot -----------------------------------------------------------------------


async def take_snapshot_and_go_on(scene: Scene) -> None:
    """A copy of the cleanly stopped master's store; then master and slave go on with another message."""
    await scene.send("first")
    await scene.follows("b", "a")
    await scene.stop("a")
    shutil.copytree(scene.root / "a", scene.root / "snapshot")
    await scene.start("a")
    await scene.send("second")
    await scene.follows("b", "a")


def put_back(scene: Scene) -> None:
    shutil.rmtree(scene.root / "a")
    shutil.copytree(scene.root / "snapshot", scene.root / "a")


def test_a_master_put_back_from_a_snapshot_lets_the_slave_lead_that_has_more(tmp_path: Path) -> None:
    async def story(scene: Scene) -> None:
        await take_snapshot_and_go_on(scene)
        await scene.stop("a")
        put_back(scene)
        await scene.start("a")
        await scene.leads("b")
        await scene.follows("a", "b")
        assert scene.bodies("a") == ["first", "second"]

    told(tmp_path, story, "ASYNC_MASTER")


def test_a_slave_refuses_a_master_that_forgot_a_life_and_keeps_its_log(tmp_path: Path) -> None:
    """Both lives of the restored master begin at the same position, and wrote messages of one size."""

    async def story(scene: Scene) -> None:
        await take_snapshot_and_go_on(scene)
        await scene.stop("b")
        await scene.stop("a")
        put_back(scene)
        await scene.start("a")
        await scene.send("SECOND")
        await scene.start("b")
        await until(lambda: "restored from an older copy" in problem_of(scene, "b"))
        parts = scene.of("a").parts
        assert parts is not None
        assert not parts.ack_mark.in_sync()
        assert scene.bodies("b") == ["first", "second"]
        await scene.stop("a")
        assert (await scene.promote("b", 2)).code == ResponseCode.SUCCESS
        await scene.leads("b")
        assert scene.bodies("b") == ["first", "second"]

    told(tmp_path, story, "ASYNC_MASTER")


def test_a_slave_after_a_power_cut_is_not_promoted_before_it_has_caught_up(tmp_path: Path) -> None:
    """It reported messages that were in its page cache: its master alone may have them now."""

    async def story(scene: Scene) -> None:
        await scene.send("first")
        await scene.follows("b", "a")
        kept = scene.of("b").store.log.end
        await scene.send("second")
        await scene.follows("b", "a")
        await crash(scene, "b", lost_from=kept)
        await scene.stop("a")
        await scene.start("b")
        refused = await scene.promote("b", 2, force=False)
        assert refused.code != ResponseCode.SUCCESS
        assert "acknowledged messages may be lost" in (refused.reason or "")
        await scene.start("a")
        await scene.follows("b", "a")
        await scene.stop("a")
        assert (await scene.promote("b", 2, force=False)).code == ResponseCode.SUCCESS
        await scene.leads("b")
        assert scene.bodies("b") == ["first", "second"]

    told(tmp_path, story)
