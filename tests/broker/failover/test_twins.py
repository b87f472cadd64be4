"""Two brokers of one name and one log: at most one of them acknowledges."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from broker.support.leading_scene import Scene, quick, told, until
from pyromq.broker.failover.fencing import Fencing
from pyromq.config import BrokerConfig

ASYNC = "ASYNC_MASTER"


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    quick(monkeypatch)
    usual = Scene.config

    def config(scene: Scene, name: str) -> BrokerConfig:
        """`c` is a master as `a` is."""
        given = usual(scene, name)
        return replace(given, role=ASYNC, broker_id=0) if name == "c" else given

    monkeypatch.setattr(Scene, "config", config)
    return None


async def copy_store(scene: Scene) -> None:
    """The store of the cleanly stopped master has a copy; both may be started."""
    await scene.send("first")
    await scene.follows("b", "a")
    await scene.stop("a")
    shutil.copytree(scene.root / "a", scene.root / "c")
    await scene.start("a")


def is_open(scene: Scene, name: str) -> bool:
    parts = scene.of(name).parts
    return parts is not None and parts.ack_mark.accepts


def test_the_copy_of_a_store_does_not_lead_while_the_other_does(tmp_path: Path) -> None:
    async def story(scene: Scene) -> None:
        await copy_store(scene)
        await scene.start("c")
        assert scene.of("c").config.is_slave
        copies = scene.of("c").copies
        assert copies is not None
        assert copies.replica is not None
        assert f"{scene.of('a').address} leads its log already" in str(copies.replica.state.problem)
        await scene.send("second")
        await scene.follows("b", "a")

    told(tmp_path, story, ASYNC)


def test_two_that_lead_one_log_accept_nothing_until_one_is_stopped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def leads(*_: object, **__: object) -> bool:
        return True

    async def story(scene: Scene) -> None:
        await copy_store(scene)
        with monkeypatch.context() as patch:
            patch.setattr(Fencing, "may_lead", leads)  # it could not reach the other one
            await scene.start("c")
        assert not scene.of("c").config.is_slave
        await until(lambda: not is_open(scene, "a") and not is_open(scene, "c"))
        await scene.stop("c")
        await until(lambda: is_open(scene, "a"))
        await scene.send("second")

    told(tmp_path, story, ASYNC)


def test_a_leader_that_was_set_back_while_it_ran_accepts_nothing(tmp_path: Path) -> None:
    """A virtual machine that was restored with its memory: the life and its name go on, the end of the log is gone."""

    async def story(scene: Scene) -> None:
        await scene.send("first")
        await scene.follows("b", "a")
        parts = scene.of("a").parts
        assert parts is not None
        assert is_open(scene, "a")
        fencing_of_a = parts.leading._fencing
        now = fencing_of_a._extent
        fencing_of_a._extent = lambda: replace(now(), end=now().end - 1)
        await until(lambda: not is_open(scene, "a"))

    told(tmp_path, story, ASYNC)
