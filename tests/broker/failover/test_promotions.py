"""Promotions that would lose acknowledged messages are refused, and those that did not begin in time are void."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from broker.support.leading_scene import Scene, quick, told, until
from pyromq.broker.failover.leadership import BEGIN_MS, Leadership, LeadershipFile
from pyromq.broker.failover.members import Answered, Others
from pyromq.broker.requests import roles as processor
from pyromq.clock import SystemClock
from pyromq.files.disk import OsDisk
from pyromq.replication.log_matching import Epoch
from pyromq.replication.stream import PrimaryStream
from pyromq.store.paths import StorePaths
from pyromq.wire.bodies.epochs import KnownMember
from pyromq.wire.codes import ResponseCode
from pyromq.wire.requests.roles import ForgetMember

SYNC, ASYNC = "SYNC_MASTER", "ASYNC_MASTER"


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    quick(monkeypatch)
    monkeypatch.setattr(processor, "LEARN_SECONDS", 0.05)


async def refused(scene: Scene, name: str, why: str) -> None:
    answer = await scene.promote(name, 2, force=False)
    assert answer.code == ResponseCode.SERVICE_NOT_AVAILABLE
    assert why in str(answer.reason)
    assert scene.of(name).config.is_slave


async def three(scene: Scene) -> None:
    """A third broker, known to the second by what the master tells."""
    await scene.start("c")
    await scene.send("first")
    await scene.follows("b", "a")
    await scene.follows("c", "a")
    for name in "bc":
        await until(lambda name=name: len(known_of(scene, name)) == 2)


def known_of(scene: Scene, name: str) -> set[int]:
    copies = scene.of(name).copies
    return {one.broker_id for one in copies._leading.known.members} if copies is not None else set()


# --- possible loss ---------------------------------------------------------------------------------------------------


def test_the_slave_of_a_sync_pair_is_promoted_without_its_master(tmp_path: Path) -> None:
    async def story(scene: Scene) -> None:
        await scene.send("first")
        await scene.follows("b", "a")
        await scene.stop("a")
        assert (await scene.promote("b", 2, force=False)).code == ResponseCode.SUCCESS
        await scene.leads("b")

    told(tmp_path, story, SYNC)


def test_a_slave_with_a_new_disk_is_not_promoted_before_it_has_caught_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second copies of acknowledged messages were on its old disk: the master alone has them."""

    async def story(scene: Scene) -> None:
        await scene.send("first", "second")
        await scene.follows("b", "a")
        await scene.stop("b")
        shutil.rmtree(scene.root / "b")
        with monkeypatch.context() as nothing_sent:
            nothing_sent.setattr(PrimaryStream, "next_span", lambda stream, now_ms: None)
            await scene.start("b")
            await until(lambda: known_of(scene, "b") == {0})
            await scene.stop("a")
            await refused(scene, "b", f"no answer from {scene.of('a').address} (the master)")
            await scene.stop("b")
            await scene.start("b")
            await refused(scene, "b", f"no answer from {scene.of('a').address} (the master)")
        await scene.start("a")
        await scene.follows("b", "a")
        await scene.stop("a")
        assert (await scene.promote("b", 2, force=False)).code == ResponseCode.SUCCESS

    told(tmp_path, story, SYNC)


def test_without_an_async_master_a_slave_is_promoted_by_force_only(tmp_path: Path) -> None:
    async def story(scene: Scene) -> None:
        await scene.send("first")
        await scene.follows("b", "a")
        await scene.stop("a")
        await refused(scene, "b", "acknowledged messages may be lost")
        assert (await scene.promote("b", 2, force=True)).code == ResponseCode.SUCCESS
        await scene.leads("b")

    told(tmp_path, story, ASYNC)


def test_a_slave_is_not_promoted_while_its_master_answers(tmp_path: Path) -> None:
    async def story(scene: Scene) -> None:
        await scene.send("first")
        await scene.follows("b", "a")
        await refused(scene, "b", "Have it hand over")
        await scene.send("second")
        await scene.follows("b", "a")

    told(tmp_path, story, SYNC)


def test_the_slave_that_has_more_is_to_be_promoted(tmp_path: Path) -> None:
    async def story(scene: Scene) -> None:
        await three(scene)
        await scene.stop("c")
        await scene.send("second")
        await scene.follows("b", "a")
        await scene.stop("a")
        await scene.start("c")
        await refused(scene, "c", f"promote {scene.of('b').address}")
        assert (await scene.promote("b", 2, force=False)).code == ResponseCode.SUCCESS
        await scene.leads("b")
        await scene.follows("c", "b")
        assert scene.bodies("c") == ["first", "second"]

    told(tmp_path, story, SYNC)


def test_a_slave_is_not_promoted_while_both_copies_of_a_message_may_be_elsewhere(tmp_path: Path) -> None:
    async def story(scene: Scene) -> None:
        await three(scene)
        await scene.stop("b")
        await scene.send("second")  # the master and the third broker have it
        await scene.follows("c", "a")
        await scene.stop("c")
        await scene.stop("a")
        await scene.start("b")
        await refused(scene, "b", "no answer from")

    told(tmp_path, story, SYNC)


def test_a_member_that_only_another_broker_knows_is_asked_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A message may be in the logs of the master and of a broker of which this one has never heard."""

    async def story(scene: Scene) -> None:
        await scene.send("first")
        await scene.follows("b", "a")
        same_log = await scene.epochs("b")
        await scene.stop("a")

        async def survey(_: Others, **__: object) -> list[Answered]:
            unheard = KnownMember("127.0.0.1:9", 7, member="unheard")
            return [Answered("127.0.0.1:8", replace(same_log, broker_id=6, member="other", members=(unheard,)))]

        monkeypatch.setattr(Others, "survey", survey)
        await refused(scene, "b", "127.0.0.1:9 (id 7)")

    told(tmp_path, story, SYNC)


def test_a_member_that_is_gone_for_good_is_forgotten_by_request(tmp_path: Path) -> None:
    async def story(scene: Scene) -> None:
        await three(scene)
        gone = scene.of("c").address
        await scene.stop("c")
        assert (await scene.ask("a", ForgetMember(member="nobody"))).code == ResponseCode.INVALID_PARAMETER
        answer = await scene.ask("a", ForgetMember(member=gone))
        assert answer.code == ResponseCode.SUCCESS
        assert known_of(scene, "a") == {1}
        await until(lambda: known_of(scene, "b") == {0})
        await scene.stop("a")
        assert (await scene.promote("b", 2, force=False)).code == ResponseCode.SUCCESS

    told(tmp_path, story, SYNC)


# --- promotions that did not begin -----------------------------------------------------------------------------------


def promote_stopped(scene: Scene, name: str, *, ago_ms: int = 0) -> None:
    """As if the process had ended after it wrote its promotion, and before it began to lead."""
    paths, clock = StorePaths.of(scene.config(name).store), SystemClock()
    file = LeadershipFile(OsDisk(paths.staging), paths.config)
    now_ms, clock_ms = clock.now_ms() - ago_ms, max(int(clock.monotonic() * 1000) - ago_ms, 0)
    file.save(file.load().promoted(2, SYNC, now_ms=now_ms, clock_ms=clock_ms))


def begun(file: LeadershipFile, end: int) -> Leadership:
    known = file.load()
    return known.begun((*known.epochs, Epoch(2, end, f"{known.member}.x")))


def test_a_promotion_that_did_not_begin_in_time_is_void_after_a_restart(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def story(scene: Scene) -> None:
        await scene.send("first")
        await scene.follows("b", "a")
        await scene.stop("b")
        promote_stopped(scene, "b", ago_ms=BEGIN_MS + 1000)
        await scene.start("b")
        assert scene.of("b").config.is_slave
        assert "did not begin within" in caplog.text
        await scene.send("second")
        await scene.follows("b", "a")
        assert not scene.of("a").config.is_slave

    told(tmp_path, story, SYNC)


def test_a_promoted_broker_that_crashed_before_it_began_does_not_lead(tmp_path: Path) -> None:
    async def story(scene: Scene) -> None:
        await scene.send("first")
        await scene.follows("b", "a")
        await scene.stop("b")
        promote_stopped(scene, "b")
        (scene.root / "b" / "abort").touch()
        await scene.start("b")
        assert scene.of("b").config.is_slave
        await scene.follows("b", "a")

    told(tmp_path, story, SYNC)


def test_a_promotion_that_begins_in_time_holds(tmp_path: Path) -> None:
    async def story(scene: Scene) -> None:
        await scene.send("first")
        await scene.follows("b", "a")
        await scene.stop("b")
        await scene.stop("a")
        promote_stopped(scene, "b")
        await scene.start("b")
        await scene.leads("b")

    told(tmp_path, story, SYNC)


# --- another broker leads --------------------------------------------------------------------------------------------


def test_a_promoted_broker_does_not_begin_while_a_leader_has_more(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def story(scene: Scene) -> None:
        await scene.send("first")
        await scene.follows("b", "a")
        await scene.stop("b")
        await scene.send("second")
        promote_stopped(scene, "b")
        await scene.start("b")
        assert scene.of("b").config.is_slave
        assert "its messages above that would be lost" in caplog.text
        await scene.follows("b", "a")
        assert scene.bodies("b") == ["first", "second"]
        assert not scene.of("a").config.is_slave

    told(tmp_path, story, ASYNC)


def test_a_new_leader_that_wrote_nothing_gives_way_to_one_that_has_more(tmp_path: Path) -> None:
    """It began, crashed at once, and the old master never heard of it."""

    async def story(scene: Scene) -> None:
        await scene.send("first")
        await scene.follows("b", "a")
        end = scene.of("b").store.log.end
        await scene.stop("b")
        promote_stopped(scene, "b")
        paths = StorePaths.of(scene.config("b").store)
        file = LeadershipFile(OsDisk(paths.staging), paths.config)
        file.save(begun(file, end))
        (scene.root / "b" / "abort").touch()
        await scene.send("second")
        await scene.start("b")
        assert scene.of("b").config.is_slave
        await scene.follows("b", "a")
        assert scene.bodies("b") == ["first", "second"]

    told(tmp_path, story, ASYNC)
