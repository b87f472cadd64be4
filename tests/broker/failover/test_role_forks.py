"""Two brokers that led one after the other, each without the other: no log is cut before an operator decides."""

from __future__ import annotations

from pathlib import Path

import pytest

from broker.support.leading_scene import TOPIC, Scene, told, until
from pyromq import Message, Producer
from pyromq.broker import nameserver_link
from pyromq.broker.failover import fencing
from pyromq.errors import SendError
from pyromq.wire.codes import ResponseCode
from pyromq.wire.requests.roles import ForgetMember

ASYNC = "ASYNC_MASTER"


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nameserver_link, "CHECK_SECONDS", 0.1)
    monkeypatch.setattr(nameserver_link, "FIRST_RETRY_SECONDS", 0.05)
    monkeypatch.setattr(fencing, "WATCH_SECONDS", 0.1)
    monkeypatch.setattr(fencing, "TAIL_SECONDS", 0.3)


def problem_of(scene: Scene, name: str) -> str:
    parts = scene.of(name).parts
    return str(parts.copy_figures.figures().get("pyromq.copyProblem")) if parts is not None else ""


def cut_from(scene: Scene, name: str) -> bytes:
    """Return everything that was cut from a broker's log."""
    return b"".join(path.read_bytes() for path in (scene.root / name / "cutoff").glob("*.bin"))


async def fork(scene: Scene) -> int:
    """Let `b` lead with epoch 2, stop it, and let `a` lead alone with epoch 1. Return where their logs part."""
    await scene.send("both have it")
    await scene.follows("b", "a")
    await scene.stop("a")
    position = scene.of("b").store.log.end
    assert (await scene.promote("b", 2)).code == ResponseCode.SUCCESS
    await scene.leads("b")
    await scene.send("of b")
    await scene.stop("b")
    await scene.start("a")
    await scene.leads("a")
    await scene.send("of a, first", "of a, second")
    return position


async def keeps_log_of_a(scene: Scene) -> None:
    await scene.leads("a")
    await scene.send("since then")
    await scene.follows("b", "a")
    assert scene.bodies("b") == scene.bodies("a") == ["both have it", "of a, first", "of a, second", "since then"]
    assert b"of b" in cut_from(scene, "b")
    assert cut_from(scene, "a") == b""


async def keeps_log_of_b(scene: Scene) -> None:
    await scene.leads("b")
    await scene.send("since then")
    await scene.follows("a", "b")
    assert scene.bodies("a") == scene.bodies("b") == ["both have it", "of b", "since then"]
    assert b"of a, second" in cut_from(scene, "a")
    assert cut_from(scene, "b") == b""


# --- the promoted broker returns -------------------------------------------------------------------------------------


async def held(scene: Scene, caplog: pytest.LogCaptureFixture) -> None:
    position = await fork(scene)
    theirs = scene.of("a").store.log.end - position
    await scene.start("b")
    assert scene.of("b").config.is_slave
    why = f"are the same up to position {position}"
    assert why in caplog.text
    await until(lambda: f"that one had {theirs}" in problem_of(scene, "b"))
    assert f"this one has {scene.of('b').store.log.end - position} bytes above it" in problem_of(scene, "b")
    assert "promote --force" in problem_of(scene, "b")
    await until(lambda: "and goes on leading. Decide which log to keep" in caplog.text)


def test_a_promoted_broker_does_not_lead_over_a_master_that_led_alone_since(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def story(scene: Scene) -> None:
        await held(scene, caplog)
        await scene.send("of a, third")
        for name in "ba":  # neither log is cut, whichever broker starts again
            await scene.stop(name)
            await scene.start(name)
            assert scene.of("b").config.is_slave
            assert not scene.of("a").config.is_slave
        assert scene.bodies("b") == ["both have it", "of b"]
        assert scene.bodies("a") == ["both have it", "of a, first", "of a, second", "of a, third"]
        assert cut_from(scene, "a") == cut_from(scene, "b") == b""

    told(tmp_path, story, ASYNC)


def test_the_broker_that_did_not_begin_does_not_when_the_other_one_stops(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def story(scene: Scene) -> None:
        await held(scene, caplog)
        gone = scene.of("a").address
        await scene.stop("a")
        await scene.stop("b")
        await scene.start("b")
        assert scene.of("b").config.is_slave
        assert "neither leads nor follows" in problem_of(scene, "b")
        refused = await scene.promote("b", 3, force=False)
        assert refused.code == ResponseCode.SERVICE_NOT_AVAILABLE
        assert (await scene.ask("b", ForgetMember(member=gone))).code == ResponseCode.SUCCESS
        await scene.leads("b")

    told(tmp_path, story, ASYNC)


def test_an_operator_keeps_the_log_of_the_broker_that_did_not_begin(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def story(scene: Scene) -> None:
        await held(scene, caplog)
        assert (await scene.promote("b", 3)).code == ResponseCode.SUCCESS
        await keeps_log_of_b(scene)

    told(tmp_path, story, ASYNC)


def test_an_operator_keeps_the_log_of_the_broker_that_leads(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async def story(scene: Scene) -> None:
        await held(scene, caplog)
        assert (await scene.promote("a", 3)).code == ResponseCode.SUCCESS
        await keeps_log_of_a(scene)

    told(tmp_path, story, ASYNC)


# --- the old master returns ------------------------------------------------------------------------------------------


async def refuses_to_follow(scene: Scene) -> None:
    """The promoted broker leads again, without the old master; that one is not cut for it."""
    position = await fork(scene)
    await scene.stop("a")
    await scene.start("b")
    await scene.leads("b")
    await scene.start("a")
    await until(lambda: "neither leads nor follows" in problem_of(scene, "a"))
    assert f"are the same up to position {position}" in problem_of(scene, "a")
    assert scene.bodies("a") == ["both have it", "of a, first", "of a, second"]
    assert cut_from(scene, "a") == b""


def test_an_operator_gives_up_what_the_old_master_wrote_alone(tmp_path: Path) -> None:
    async def story(scene: Scene) -> None:
        await refuses_to_follow(scene)
        assert (await scene.promote("b", 3)).code == ResponseCode.SUCCESS
        await keeps_log_of_b(scene)

    told(tmp_path, story, ASYNC)


def test_an_operator_keeps_what_the_old_master_wrote_alone(tmp_path: Path) -> None:
    async def story(scene: Scene) -> None:
        await refuses_to_follow(scene)
        assert (await scene.promote("a", 3)).code == ResponseCode.SUCCESS
        await keeps_log_of_a(scene)

    told(tmp_path, story, ASYNC)


def test_unacknowledged_bytes_of_a_sync_master_are_cut_without_an_operator(tmp_path: Path) -> None:
    """The old master of a sync pair acknowledges nothing alone."""

    async def story(scene: Scene) -> None:
        await scene.send("both have it")
        await scene.follows("b", "a")
        await scene.stop("b")
        await scene.stop("a")
        await scene.start("a")
        await scene.leads("a")
        async with Producer(scene.name_server, group="producers", attempts=1, timeout_s=5.0) as producer:
            with pytest.raises(SendError):
                await producer.send(Message(TOPIC, b"of a"))
        await scene.stop("a")
        await scene.start("b")
        assert (await scene.promote("b", 2)).code == ResponseCode.SUCCESS
        await scene.leads("b")
        await scene.start("a")
        await scene.follows("a", "b")
        assert scene.bodies("a") == ["both have it"]
        assert b"of a" in cut_from(scene, "a")

    told(tmp_path, story, "SYNC_MASTER")
