"""Leadership in doubt: answers that say nothing, unknown logs, two promotions, a slave away."""

from __future__ import annotations

import asyncio
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from broker.support.leading_scene import TOPIC, Scene, quick, told, until
from pyromq.auth.group_secret import read_group_secret
from pyromq.auth.proofs import proof_of_answer, prove_question
from pyromq.broker.broker import Broker
from pyromq.broker.failover import fencing
from pyromq.broker.failover.replication import Replicating
from pyromq.broker.failover.role import MAX_JUMP
from pyromq.broker.failover.role_change import Change
from pyromq.broker.requests import roles as processor
from pyromq.config import LimitsConfig
from pyromq.net.peer import Peer
from pyromq.net.server import Server
from pyromq.wire.codes import RequestCode, ResponseCode
from pyromq.wire.command import Command
from pyromq.wire.requests.roles import GetBrokerEpochs
from pyromq.wire.responses import Response


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    quick(monkeypatch)


def copies_of(scene: Scene, name: str) -> Replicating:
    copies = scene.of(name).copies
    assert copies is not None
    return copies


def problem_of(scene: Scene, name: str) -> str:
    replica = copies_of(scene, name).replica
    return str(replica.state.problem) if replica is not None else ""


async def part_the_logs(scene: Scene) -> None:
    """While the slave is away the master loses its newest messages, and continues with others of the same size."""
    both_have = (f"same-size-{number:03}" for number in range(20))
    await scene.part_logs(both_have, (f"OTHERsize-{number:03}" for number in range(15)))


# --- what a slave makes of its master's answer -----------------------------------------------------------------------


@pytest.mark.parametrize("code", [ResponseCode.SYSTEM_BUSY, ResponseCode.SYSTEM_ERROR, ResponseCode.NO_PERMISSION])
def test_a_master_that_does_not_answer_the_question_is_asked_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: ResponseCode
) -> None:
    asked: list[int] = [0]
    handle = Broker._handle

    def refuse_once(self: Broker, command: Command, peer: Peer) -> object:
        if command.code == RequestCode.GET_BROKER_EPOCH_CACHE and command.fields.get("brokerId") and not asked:
            asked.append(command.code)
            return Response(code=code, reason="not now")
        return handle(self, command, peer)

    async def story(scene: Scene) -> None:
        await part_the_logs(scene)
        asked.clear()
        await scene.start("b")
        await until(lambda: len(asked) == 1 and not scene.seeks("b"))
        await scene.follows("b", "a")
        assert scene.bodies("a") == scene.bodies("b")
        assert copies_of(scene, "b").epochs == copies_of(scene, "a").epochs != ()

    monkeypatch.setattr(Broker, "_handle", refuse_once)
    told(tmp_path, story, "ASYNC_MASTER")


def test_a_master_without_epochs_is_not_followed_by_one_that_has_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    handle = Broker._handle
    is_old: list[bool] = []

    def like_an_old_one(self: Broker, command: Command, peer: Peer) -> object:
        if command.code == RequestCode.GET_BROKER_EPOCH_CACHE and is_old:
            return Response(code=ResponseCode.SYSTEM_ERROR, reason="this request only for controllerMode ")
        return handle(self, command, peer)

    async def story(scene: Scene) -> None:
        await scene.send("first")
        await scene.follows("b", "a")
        await scene.stop("b")
        is_old.append(True)
        await scene.start("b")
        await until(lambda: "knows nothing of epochs" in problem_of(scene, "b"))
        assert copies_of(scene, "b").epochs
        await scene.stop("b")
        for path in (tmp_path / "b" / "config").glob("leadership.json*"):
            path.unlink()  # as the sentence says
        await scene.start("b")
        await scene.follows("b", "a")

    monkeypatch.setattr(Broker, "_handle", like_an_old_one)
    told(tmp_path, story, "ASYNC_MASTER")


def test_a_log_that_nobody_knows_is_continued_if_its_messages_are_the_masters(tmp_path: Path) -> None:
    async def story(scene: Scene) -> None:
        await scene.send("first", "second")
        await scene.follows("b", "a")
        await scene.stop("b")
        await scene.send("third")
        for path in (tmp_path / "b" / "config").glob("leadership.json*"):
            path.unlink()
        await scene.start("b")
        await scene.follows("b", "a")
        assert scene.bodies("b") == ["first", "second", "third"]

    told(tmp_path, story, "ASYNC_MASTER")


@pytest.mark.parametrize("longer", [False, True])
def test_a_log_that_nobody_knows_and_that_has_other_messages_is_left_as_it_is(tmp_path: Path, *, longer: bool) -> None:
    async def story(scene: Scene) -> None:
        await part_the_logs(scene)
        if longer:  # the master's ends before the slave's, and behind where they part
            end = scene.of("a").store.log.end
            await scene.stop("a")
            scene.lose_end("a", end * 15 // 25)
            await scene.start("a")
        for path in (tmp_path / "b" / "config").glob("leadership.json*"):
            path.unlink()
        await scene.start("b")
        await until(lambda: "nobody knows who led our log" in problem_of(scene, "b"))
        assert scene.bodies("b") == [f"same-size-{number:03}" for number in range(20)]
        assert not list((tmp_path / "b").glob("cutoff/*.json"))

    told(tmp_path, story, "ASYNC_MASTER")


def test_nothing_is_taken_over_from_a_master_whose_log_is_another(tmp_path: Path) -> None:
    async def story(scene: Scene) -> None:
        await scene.send("first")
        await scene.follows("b", "a")
        slave = scene.of("b").parts
        assert slave is not None
        await until(lambda: slave.topics.get(TOPIC))
        await scene.stop_brokers()
        shutil.rmtree(tmp_path / "a")
        await scene.start("a")
        await scene.start("b")
        await until(lambda: "nothing in common" in problem_of(scene, "b"))
        slave = scene.of("b").parts
        assert slave is not None
        await slave.metadata_copy.copy_now()
        assert slave.topics.get(TOPIC) is not None
        # The broker promoted then closes the other one, although their logs are unrelated.
        assert (await scene.promote("b", 5, role="ASYNC_MASTER")).code == ResponseCode.SUCCESS
        await scene.leads("b")
        await until(lambda: scene.of("a").config.is_slave or closed(scene, "a"))

    told(tmp_path, story, "ASYNC_MASTER")


def closed(scene: Scene, name: str) -> bool:
    parts = scene.of(name).parts
    return parts is not None and parts.ack_mark.is_refusing


# --- who is newer ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("with_a_message", [False, True])
def test_a_slave_without_a_byte_that_is_promoted_fences_its_old_master(tmp_path: Path, *, with_a_message: bool) -> None:
    async def story(scene: Scene) -> None:
        await scene.stop("b")
        if with_a_message:
            await scene.send("only the old master has it")
        await scene.stop("a")
        await scene.start("b")
        assert (await scene.promote("b", 2)).code == ResponseCode.SUCCESS
        await scene.leads("b")
        await scene.send("the new master's")
        await scene.start("a")
        await scene.follows("a", "b")
        assert scene.bodies("a") == ["the new master's"]
        assert bool(list((tmp_path / "a").glob("aside/*"))) == with_a_message

    told(tmp_path, story, "ASYNC_MASTER")


def test_of_two_slaves_promoted_at_once_one_leads_and_the_others_follow_it(tmp_path: Path) -> None:
    async def story(scene: Scene) -> None:
        await scene.start("c")
        await scene.send("first")
        await scene.follows("b", "a")
        await scene.follows("c", "a")
        await scene.stop("a")
        before = {name: scene.of(name) for name in "bc"}
        answers = await asyncio.gather(scene.promote("b", 2), scene.promote("c", 2))
        assert [one.code for one in answers] == [0, 0]
        await until(lambda: all(scene.of(name) is not before[name] for name in "bc"))
        await until(lambda: scene.of("b").config.is_slave != scene.of("c").config.is_slave)
        winner, loser = sorted("bc", key=lambda name: scene.of(name).config.is_slave)
        await scene.leads(winner)
        await scene.send("second")
        await scene.follows(loser, winner)
        assert scene.bodies(loser) == ["first", "second"]
        await scene.start("a")
        await scene.follows("a", winner)

    told(tmp_path, story, "ASYNC_MASTER")


# --- a sync master after a crash -------------------------------------------------------------------------------------


async def crash_without_slave(scene: Scene) -> None:
    """The master loses what it and its slave have acknowledged, and starts while that one is away."""
    await scene.send("first")
    position = scene.of("a").store.log.end
    await scene.send("second")
    await scene.follows("b", "a")
    await scene.stop("b")
    await scene.stop("a")
    scene.lose_end("a", position)
    (scene.root / "a" / "abort").touch()
    await scene.start("a")


def test_a_sync_master_that_may_have_lost_messages_waits_for_its_slave(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def story(scene: Scene) -> None:
        await crash_without_slave(scene)
        assert scene.of("a").config.is_slave
        assert "does not lead yet" in caplog.text
        assert "does not lead yet" in problem_of(scene, "a")
        await scene.stop("a")
        await scene.start("a")  # cleanly stopped, and still in doubt
        assert scene.of("a").config.is_slave
        await scene.start("b")
        await scene.leads("b")
        await scene.follows("a", "b")
        assert scene.bodies("a") == scene.bodies("b") == ["first", "second"]
        assert scene.of("b").config.role == "SYNC_MASTER"

    told(tmp_path, story)


def test_a_sync_master_that_has_lost_nothing_leads_when_its_slave_is_back(tmp_path: Path) -> None:
    async def story(scene: Scene) -> None:
        await scene.send("first")
        await scene.follows("b", "a")
        await scene.stop("b")
        await scene.stop("a")
        (scene.root / "a" / "abort").touch()
        await scene.start("a")
        assert scene.of("a").config.is_slave
        await scene.start("b")
        await scene.leads("a")
        await scene.follows("b", "a")
        await scene.send("second")
        assert (await scene.epochs("a")).newest == 1

    told(tmp_path, story)


def test_somebody_decides_that_a_sync_master_leads_without_its_slave(tmp_path: Path) -> None:
    async def story(scene: Scene) -> None:
        await crash_without_slave(scene)
        assert (await scene.promote("a", 2)).code == ResponseCode.SUCCESS
        await scene.leads("a")
        assert scene.of("a").config.role == "SYNC_MASTER"
        await scene.start("b")
        await scene.follows("b", "a")
        assert scene.bodies("b") == ["first"]
        assert list((tmp_path / "b").glob("cutoff/*.json")), "what it had more is kept aside"

    told(tmp_path, story)


@pytest.mark.parametrize("role", ["SYNC_MASTER", "ASYNC_MASTER"])
def test_who_was_stopped_cleanly_or_promises_one_copy_leads_without_its_slave(tmp_path: Path, role: str) -> None:
    async def story(scene: Scene) -> None:
        await scene.send("first")
        await scene.follows("b", "a")
        await scene.stop("b")
        await scene.stop("a")
        if role == "ASYNC_MASTER":
            (scene.root / "a" / "abort").touch()
        await scene.start("a")
        assert not scene.of("a").config.is_slave

    told(tmp_path, story, role)


# --- promotions that must not be -------------------------------------------------------------------------------------


def test_a_promotion_that_comes_too_late_is_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A slow disk: the master has given up, and continues."""
    monkeypatch.setattr(fencing, "PROMOTE_SECONDS", 0.3)
    monkeypatch.setattr(processor, "PROMOTE_SECONDS", 0.3)
    monkeypatch.setattr(processor, "DOUBT_SECONDS", 0.2)

    async def story(scene: Scene) -> None:
        await scene.send("first")
        await scene.follows("b", "a")
        store, go_on = scene.of("b").store, asyncio.Event()
        wait_synced = store.wait_synced

        async def slowly(*args: object) -> None:
            await go_on.wait()
            await wait_synced(*args)  # type: ignore[arg-type]

        monkeypatch.setattr(store, "wait_synced", slowly)
        answer = await scene.step_down("a", "b")
        assert answer.code == ResponseCode.SERVICE_NOT_AVAILABLE
        await scene.send("second")
        go_on.set()
        await scene.follows("b", "a")
        assert (await scene.epochs("b")).newest == 1
        assert scene.bodies("b") == ["first", "second"]

    told(tmp_path, story, "ASYNC_MASTER")


def test_a_promotion_that_is_written_too_late_is_taken_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def story(scene: Scene) -> None:
        await scene.send("first")
        await scene.follows("b", "a")
        late = lambda self: 10**15 if self._leading.number == 2 else 0  # noqa: E731  the write takes its time
        monkeypatch.setattr(processor.LeadingProcessor, "_clock_ms", late)
        answer = await scene.promote("b", 2, deadline_ms=10**14)
        assert answer.code == ResponseCode.SERVICE_NOT_AVAILABLE
        before = scene.of("b")
        await until(lambda: scene.of("b") is not before)
        await scene.follows("b", "a")
        assert copies_of(scene, "b").number == 1

    told(tmp_path, story, "ASYNC_MASTER")


def test_nobody_is_promoted_while_its_log_is_about_to_be_put_aside(tmp_path: Path) -> None:
    async def story(scene: Scene) -> None:
        await scene.send("first")
        await scene.follows("b", "a")
        copies, slave = copies_of(scene, "b"), scene.of("b")
        stop_following = copies.stop_following

        async def decide_meanwhile() -> None:
            slave._ask_for(Change(why="the logs part", begin_anew=True))
            await stop_following()

        copies.stop_following = decide_meanwhile  # type: ignore[method-assign]
        answer = await scene.promote("b", 2)
        assert (answer.code, "try again" in str(answer.reason)) == (ResponseCode.SERVICE_NOT_AVAILABLE, True)
        await until(lambda: scene.of("b") is not slave)
        await scene.follows("b", "a")
        assert copies_of(scene, "b").number == 1

    told(tmp_path, story, "ASYNC_MASTER")


def test_a_number_that_leaves_none_for_the_next_promotion_is_refused(tmp_path: Path) -> None:
    async def story(scene: Scene) -> None:
        await scene.send("first")
        await scene.follows("b", "a")
        for number in ((1 << 63) - 1, 2 + MAX_JUMP):
            assert (await scene.promote("b", number)).code == ResponseCode.INVALID_PARAMETER
        await scene.follows("b", "a")

    told(tmp_path, story, "ASYNC_MASTER")


# --- strangers -------------------------------------------------------------------------------------------------------


def test_whoever_says_that_it_is_a_slave_is_not_written_down_for_that(tmp_path: Path) -> None:
    async def story(scene: Scene) -> None:
        await scene.send("first")
        await scene.follows("b", "a")
        leading = copies_of(scene, "a")._leading
        await until(lambda: [one.address for one in leading.known.members] == [scene.of("b").address])
        for number in range(100):
            request = GetBrokerEpochs(name="pair", broker_id=number % 20 - 5, address=f"10.0.{number}.1:{number}")
            assert (await scene.ask("a", request)).code == ResponseCode.SUCCESS
        await asyncio.sleep(0.5)  # it looks for others several times in between
        assert [one.address for one in leading.known.members] == [scene.of("b").address]

    told(tmp_path, story, "ASYNC_MASTER")


@pytest.mark.parametrize("change", [{"broker_id": -5}, {"number": 1 << 62}, {"cluster": "another"}])
def test_answers_that_make_no_sense_change_nothing(tmp_path: Path, change: dict[str, object]) -> None:
    async def story(scene: Scene) -> None:
        await scene.send("first")
        await scene.follows("b", "a")
        of_b, secret = await scene.epochs("b"), read_group_secret()
        asked = asyncio.Event()

        def answer(command: Command, peer: Peer) -> Response:
            """It has the secret, and a fault."""
            asked.set()
            body = replace(of_b, address=address, **change).encode()  # type: ignore[arg-type]
            return Response(body=body, more={"proof": proof_of_answer(secret, command.fields["nonce"], body)})

        server = Server(answer, LimitsConfig())
        await server.start("127.0.0.1", 0)
        address = f"127.0.0.1:{server.port}"
        try:
            question = GetBrokerEpochs(name="pair", broker_id=7, address=address)
            prove_question(secret, question, "DefaultCluster")
            await scene.ask("a", question)
            await asked.wait()
            await asyncio.sleep(0.3)
            assert address not in [one.address for one in copies_of(scene, "a")._leading.known.members]
            await scene.send("second")
            await scene.stop("a")
            await scene.start("a")
            assert (await scene.epochs("a")).newest == 1
        finally:
            await server.stop()

    told(tmp_path, story, "ASYNC_MASTER")
