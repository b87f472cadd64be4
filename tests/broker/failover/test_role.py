"""Leadership: a slave is promoted, an old master is fenced, a live one hands over, and nothing acknowledged is lost."""

from __future__ import annotations

import asyncio
import contextlib
import json
import shutil
from dataclasses import replace
from pathlib import Path
from unittest.mock import AsyncMock

import pytest

from broker.support.leading_scene import SEGMENT, TOPIC, Scene, copy_with, told, until
from proving import proved
from pyromq import Message, Producer
from pyromq.broker import nameserver_link
from pyromq.broker.broker import Broker
from pyromq.broker.failover import fencing
from pyromq.broker.requests import roles as processor
from pyromq.config import BrokerConfig, ReplicationConfig, StoreConfig
from pyromq.errors import PyroMQError, SendError
from pyromq.net.address import parse_address
from pyromq.replication.log_matching import Parted
from pyromq.wire.bodies.epochs import EpochEntry
from pyromq.wire.codes import ResponseCode
from pyromq.wire.requests.roles import GetTimerCheckPoint, RestartBroker, StepDown


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nameserver_link, "CHECK_SECONDS", 0.1)
    monkeypatch.setattr(nameserver_link, "FIRST_RETRY_SECONDS", 0.05)
    monkeypatch.setattr(fencing, "WATCH_SECONDS", 0.1)


def test_a_slave_leads_when_its_master_is_gone(tmp_path: Path) -> None:
    async def story(scene: Scene) -> None:
        await scene.send("first", "second")
        await scene.follows("b", "a")
        await scene.stop("a")
        end = scene.of("b").store.log.end
        answer = await scene.promote("b", 2, role="ASYNC_MASTER")
        assert (answer.code, answer.fields["epoch"], answer.fields["position"]) == (0, "2", str(end))
        await scene.leads("b")
        assert [(one.number, one.start) for one in (await scene.epochs("b")).entries] == [(1, 0), (2, end)]
        await scene.send("third")
        assert scene.bodies("b") == ["first", "second", "third"]
        assert scene.lives["b"].changes == 1

    told(tmp_path, story)


def test_a_new_master_has_the_topic_of_the_last_message_although_it_was_not_copied(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def story(scene: Scene) -> None:
        await scene.send("first")
        await scene.follows("b", "a")
        slave = scene.of("b").parts
        assert slave is not None
        await until(lambda: slave.topics.get(TOPIC))
        monkeypatch.setattr(type(slave.metadata_copy), "copy_now", AsyncMock())
        async with Producer(scene.name_server, group="producers", timeout_s=20.0) as producer:
            await producer.send(Message("brand-new", b"hello"))
        await scene.follows("b", "a")
        await scene.stop("a")
        await scene.promote("b", 2)
        await scene.leads("b")
        promoted = scene.of("b").parts
        assert promoted is not None
        assert promoted.topics.get("brand-new") is not None

    told(tmp_path, story, "ASYNC_MASTER")


def test_what_was_decided_wins_over_the_settings_of_the_next_start(tmp_path: Path) -> None:
    async def story(scene: Scene) -> None:
        await scene.send("first")
        await scene.follows("b", "a")
        await scene.stop("a")
        await scene.promote("b", 2, role="ASYNC_MASTER")
        await scene.leads("b")
        await scene.stop("b")
        await scene.start("b")  # its settings say that it is a slave
        assert not scene.of("b").config.is_slave
        epochs = (await scene.epochs("b")).entries
        assert [one.number for one in epochs] == [1, 2], "the number is the same, and who led nothing is forgotten"
        await scene.send("second")
        assert scene.bodies("b") == ["first", "second"]

    told(tmp_path, story)


def test_an_old_master_comes_back_as_a_slave_and_its_own_bytes_are_kept_aside(tmp_path: Path) -> None:
    async def story(scene: Scene) -> None:
        await scene.send("both have it")
        await scene.follows("b", "a")
        common = scene.of("a").store.log.end
        await scene.stop("b")
        await scene.send("only the old master has it")
        await scene.stop("a")
        await scene.start("b")
        await scene.promote("b", 2)
        await scene.leads("b")
        await scene.send("the new master's")
        await scene.start("a")
        await scene.follows("a", "b")
        assert scene.of("a").config.broker_id == 1
        assert scene.bodies("a") == scene.bodies("b") == ["both have it", "the new master's"]
        kept = list((tmp_path / "a" / "cutoff").glob(f"{common:020d}*.bin"))
        assert b"only the old master has it" in kept[0].read_bytes()
        (note,) = (tmp_path / "a" / "cutoff").glob("*.json")
        told_of = json.loads(note.read_text())
        assert (told_of["first"], "epoch 2" in told_of["why"]) == (common, True)

    told(tmp_path, story, "ASYNC_MASTER")


def test_a_master_that_was_cut_off_stands_down_when_it_hears_of_another(tmp_path: Path) -> None:
    """The slave is promoted although the master lives: there are two for a moment, and then one."""

    async def story(scene: Scene) -> None:
        await scene.send("first")
        await scene.follows("b", "a")
        assert (await scene.promote("b", 2)).code == ResponseCode.SUCCESS
        await scene.leads("b")
        await scene.follows("a", "b")
        assert (await scene.members()) == {0: scene.of("b").address, 1: scene.of("a").address}
        await scene.send("second")
        await scene.follows("a", "b")
        assert scene.bodies("a") == ["first", "second"]

    told(tmp_path, story, "ASYNC_MASTER")


@pytest.mark.parametrize("role", ["ASYNC_MASTER", "SYNC_MASTER"])
def test_a_master_hands_over_under_load_and_nothing_acknowledged_is_lost(tmp_path: Path, role: str) -> None:
    async def story(scene: Scene) -> None:
        acknowledged: list[str] = []
        stop = asyncio.Event()

        async def keep_sending() -> None:
            async with Producer(scene.name_server, group="producers", attempts=1, timeout_s=5.0) as producer:
                number = 0
                while not stop.is_set():
                    number += 1
                    body = f"order {number}"
                    try:
                        await producer.send(Message(TOPIC, body.encode()))
                    except SendError:
                        await asyncio.sleep(0.01)
                    else:
                        acknowledged.append(body)

        async def more() -> None:
            goal = len(acknowledged) + 50
            await until(lambda: len(acknowledged) >= goal)

        sending = asyncio.ensure_future(keep_sending())
        for master, slave in (("a", "b"), ("b", "a"), ("a", "b")):
            await more()
            answer = await scene.step_down(master, slave)
            assert answer.code == ResponseCode.SUCCESS, answer.reason
            await scene.leads(slave)
            await more()
            await scene.follows(master, slave)
        stop.set()
        await sending
        assert (await scene.epochs("b")).newest == 4
        assert scene.of("b").config.role == role
        stored = scene.bodies("b")
        assert [body for body in acknowledged if body not in set(stored)] == []
        await scene.follows("a", "b")
        assert scene.bodies("a") == stored
        assert not list((tmp_path / "a").glob("cutoff/*.bin")), "nothing had to be cut"

    told(tmp_path, story, role)


def test_a_promoted_slave_that_starts_again_shows_no_more_than_it_did(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its settings say that it is a slave: what it is was decided since."""
    copy_with(monkeypatch, visibility="acknowledged", timeout_ms=300)

    async def story(scene: Scene) -> None:
        await scene.send("one")
        await scene.follows("b", "a")
        await scene.stop("a")
        assert (await scene.promote("b", 2, role="SYNC_MASTER")).code == ResponseCode.SUCCESS
        await scene.leads("b")
        with pytest.raises(SendError):
            await scene.send("alone")
        assert scene.of("b").store.max_offset(TOPIC, 0) == 1
        await scene.stop("b")
        await scene.start("b")
        assert scene.of("b").store.max_offset(TOPIC, 0) == 1

    told(tmp_path, story)


def test_a_master_that_lost_the_end_of_its_log_lets_its_slave_lead(tmp_path: Path) -> None:
    async def story(scene: Scene) -> None:
        await scene.send("first")
        position = scene.of("a").store.log.end
        await scene.send("second")
        await scene.follows("b", "a")
        await scene.stop("a")
        scene.lose_end("a", position)
        await scene.start("a")
        await scene.follows("a", "b")
        await scene.leads("b")
        assert scene.bodies("a") == scene.bodies("b") == ["first", "second"]
        assert (await scene.epochs("b")).newest == 2
        await scene.send("third")

    told(tmp_path, story, "ASYNC_MASTER")


def test_without_its_slave_it_leads_and_what_the_slave_has_is_kept_aside(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fencing, "TAIL_SECONDS", 0.1)

    async def story(scene: Scene) -> None:
        await scene.send("first")
        position = scene.of("a").store.log.end
        await scene.send("lost by the master")
        await scene.follows("b", "a")
        await scene.stop("a")
        await scene.stop("b")
        scene.lose_end("a", position)
        await scene.start("a")
        await scene.send("another")
        await scene.start("b")
        await scene.follows("b", "a")
        assert scene.bodies("b") == scene.bodies("a") == ["first", "another"]
        kept = [path.read_bytes() for path in (tmp_path / "b" / "cutoff").glob("*.bin")]
        assert any(b"lost by the master" in data for data in kept)

    told(tmp_path, story, "ASYNC_MASTER")


def test_a_slave_that_was_left_behind_puts_its_log_aside_and_begins_anew(tmp_path: Path) -> None:
    async def story(scene: Scene) -> None:
        await scene.send("first")
        await scene.follows("b", "a")
        await scene.stop("b")
        await scene.send(*("x" * 3900 for _ in range(3 * SEGMENT // 3900)))  # small enough not to be compressed
        store = scene.of("a").store
        async with store.points.lock:  # as retention does, without waiting for days
            store.dispatch()
            store.flush()
            plan = store.points.plan_log_start(store.log.files.segments[1].end)
            store.points.carry_out(plan)
            for _ in range(2):
                store.disk.remove(store.log.files.forget_first().path)
        assert store.log.start == 2 * SEGMENT
        await scene.start("b")
        await scene.follows("b", "a")
        assert scene.of("b").store.log.start == 2 * SEGMENT
        (place,) = (tmp_path / "b" / "aside").iterdir()
        assert "what is between is gone there" in json.loads((place / "why.json").read_text())["why"]

    told(tmp_path, story, "ASYNC_MASTER")


def test_who_leads_is_found_without_a_name_server(tmp_path: Path) -> None:
    """The old master starts with only the address that it remembers."""

    async def story(scene: Scene) -> None:
        await scene.send("first")
        await scene.follows("b", "a")
        await until(lambda: scene.of("a").copies is not None and scene.of("a").parts is not None)
        await scene.stop("a")
        await scene.promote("b", 2)
        await scene.leads("b")
        scene.name_server = "127.0.0.1:9"
        await scene.start("a")
        await scene.follows("a", "b")

    told(tmp_path, story, "ASYNC_MASTER")


def test_a_number_that_has_been_is_refused_and_the_same_question_twice_is_one(tmp_path: Path) -> None:
    async def story(scene: Scene) -> None:
        await scene.send("first")
        await scene.follows("b", "a")
        answer = await scene.promote("b", 1)
        assert (answer.code, "a larger one" in str(answer.reason)) == (2000, True)
        answer = await scene.promote("b", 2, position=1 << 40)
        assert answer.code == ResponseCode.SERVICE_NOT_AVAILABLE
        assert (await scene.promote("b", 2, role="KING")).code == ResponseCode.INVALID_PARAMETER
        await scene.send("it still follows")
        await scene.follows("b", "a")
        assert (await scene.promote("a", 5, force=False)).code == ResponseCode.SERVICE_NOT_AVAILABLE
        await scene.stop("a")
        assert (await scene.promote("b", 2)).code == ResponseCode.SUCCESS
        await scene.leads("b")
        assert (await scene.promote("b", 2)).code == ResponseCode.SUCCESS

    told(tmp_path, story, "ASYNC_MASTER")


def test_a_master_goes_on_when_there_is_nobody_to_hand_over_to(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processor, "DOUBT_SECONDS", 0.2)

    async def story(scene: Scene) -> None:
        await scene.send("first")
        await scene.follows("b", "a")
        assert (await scene.step_down("b", "a")).code == ResponseCode.SERVICE_NOT_AVAILABLE
        assert (await scene.step_down("a", "a")).code == ResponseCode.SERVICE_NOT_AVAILABLE
        for wrong in (StepDown(to="nobody"), StepDown(to=scene.of("b").address, role="SLAVE")):
            answer = await scene.ask("a", wrong)
            assert answer.code == ResponseCode.INVALID_PARAMETER
        await scene.stop("b")
        answer = await scene.step_down("a", "b", timeout_ms=300)
        assert (answer.code, "goes on leading" in str(answer.reason)) == (ResponseCode.SERVICE_NOT_AVAILABLE, True)
        await scene.send("second")
        assert scene.bodies("a") == ["first", "second"]

    told(tmp_path, story, "ASYNC_MASTER")


def test_progress_beyond_the_end_of_a_queue_is_set_back_to_it_by_a_new_master(tmp_path: Path) -> None:
    async def story(scene: Scene) -> None:
        await scene.send("first")
        await scene.follows("b", "a")
        await scene.stop("a")
        parts = scene.of("b").parts
        assert parts is not None
        parts.progress.offsets.reset("shop", TOPIC, 0, 7)
        parts.progress.offsets.reset("shop", "gone", 0, 9)
        await scene.promote("b", 2)
        await scene.leads("b")
        parts = scene.of("b").parts
        assert parts is not None
        assert parts.progress.offset_of("shop", TOPIC, 0) == 1
        assert parts.progress.offset_of("shop", "gone", 0) == 0, "its first message is still to come"

    told(tmp_path, story, "ASYNC_MASTER")


def test_an_old_master_does_not_tell_the_new_one_progress_in_messages_that_were_lost(tmp_path: Path) -> None:
    async def story(scene: Scene) -> None:
        await scene.send("first")
        await scene.follows("b", "a")
        await scene.stop("b")
        await scene.send("lost", "lost too")
        old = scene.of("a").parts
        assert old is not None
        old.progress.commit("shop", TOPIC, 0, 3)
        await scene.stop("a")
        await scene.start("b")
        await scene.promote("b", 2)
        await scene.leads("b")
        await scene.send("new", "new", "new", "new")
        await scene.start("a")
        await scene.follows("a", "b")
        parts = scene.of("a").parts
        assert parts is not None
        await parts.metadata_copy.copy_now()
        master = scene.of("b").parts
        assert master is not None
        assert master.progress.offset_of("shop", TOPIC, 0) is None

    told(tmp_path, story, "ASYNC_MASTER")


def test_a_restart_in_place_is_a_new_life_on_the_same_port(tmp_path: Path) -> None:
    async def story(scene: Scene) -> None:
        await scene.send("first")
        await scene.follows("b", "a")
        before, address = scene.of("a"), scene.of("a").address
        assert (await scene.ask("a", RestartBroker(reason="a test"))).code == ResponseCode.SUCCESS
        await until(lambda: scene.of("a") is not before)
        assert scene.of("a").address == address
        await scene.send("second")
        await scene.follows("b", "a")
        ours = (await scene.epochs("a")).entries
        assert [one.number for one in ours] == [1, 1]
        assert ours[0].by != ours[1].by
        assert ours == (await scene.epochs("b")).entries

    told(tmp_path, story, "ASYNC_MASTER")


def test_slaves_of_rocketmq_are_told_quietly_that_there_are_no_timers(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def story(scene: Scene) -> None:
        caplog.clear()
        assert (await scene.ask("a", GetTimerCheckPoint())).code == ResponseCode.SYSTEM_ERROR
        assert "TIMER" not in caplog.text

    told(tmp_path, story, "ASYNC_MASTER")


def test_a_master_whose_store_was_destroyed_lets_its_slave_lead(tmp_path: Path) -> None:
    async def story(scene: Scene) -> None:
        await scene.send("first", "second")
        await scene.follows("b", "a")
        await scene.stop("a")
        shutil.rmtree(tmp_path / "a")
        await scene.start("a")
        await scene.leads("b")
        await scene.follows("a", "b")
        assert scene.bodies("a") == ["first", "second"]

    told(tmp_path, story)


def test_a_slave_does_not_give_its_log_up_for_a_master_that_lost_all(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def story(scene: Scene) -> None:
        await scene.send("first", "second")
        await scene.follows("b", "a")
        await scene.stop_brokers()
        shutil.rmtree(tmp_path / "a")
        await scene.start("a")
        await scene.start("b")
        await until(lambda: "it may have lost its store" in caplog.text)
        assert scene.bodies("b") == ["first", "second"]
        assert (await scene.promote("b", 2)).code == ResponseCode.SUCCESS
        await scene.leads("b")

    told(tmp_path, story, "ASYNC_MASTER")


def test_whoever_asked_for_a_hand_over_may_go_and_it_is_still_done_whole(tmp_path: Path) -> None:
    async def story(scene: Scene) -> None:
        await scene.send("first")
        await scene.follows("b", "a")
        with contextlib.suppress(PyroMQError):
            request = await proved(scene.line_to("a"), StepDown(to=scene.of("b").address))
            await scene.client.tell(scene.of("a").address, request)
        await scene.leads("b")
        await scene.follows("a", "b")

    told(tmp_path, story, "ASYNC_MASTER")


def test_only_those_that_are_named_may_copy_the_log(tmp_path: Path) -> None:
    async def main() -> None:
        config = BrokerConfig(
            listen_port=0, store=StoreConfig(root=tmp_path / "store"),
            replication=ReplicationConfig(allowed_hosts=("192.0.2.0/24",)),
        )  # fmt: skip
        async with asyncio.timeout(30), Broker(config).running() as broker:
            assert broker.copies is not None
            reader, writer = await asyncio.open_connection(*parse_address(broker.copies.address))
            assert await reader.read() == b""
            writer.close()

    asyncio.run(main())


def test_a_start_warns_when_a_promotion_can_lose_acknowledged_messages(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    copy_with(monkeypatch, total=3)

    async def story(scene: Scene) -> None:
        assert "what 2 of 3 brokers have" in caplog.text
        caplog.clear()
        await scene.stop("b")
        await scene.start("b")  # a slave acknowledges nothing
        assert "brokers have" not in caplog.text

    told(tmp_path, story, "SYNC_MASTER")


def test_a_start_warns_of_a_third_broker_that_it_knows_of(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async def story(scene: Scene) -> None:
        assert "brokers have" not in caplog.text
        await scene.start("c")
        await scene.send("first")
        await scene.follows("c", "a")
        leading = scene.of("a").copies
        assert leading is not None
        await until(lambda: len(leading._leading.known.members) == 2)
        await scene.stop("a")
        await scene.start("a")
        assert "what 2 of 3 brokers have" in caplog.text

    told(tmp_path, story, "SYNC_MASTER")


def test_a_slave_that_cuts_its_log_for_a_new_master_follows_the_old_one_no_more(tmp_path: Path) -> None:
    async def story(scene: Scene) -> None:
        await scene.send("first")
        cut_at = (await scene.epochs("a")).end
        await scene.send("second")
        await scene.follows("b", "a")
        told_by_a = await scene.epochs("a")
        entries = (*told_by_a.entries, EpochEntry(told_by_a.newest + 1, cut_at, told_by_a.end, "c.1"))
        told_by_c = replace(told_by_a, entries=entries, number=told_by_a.newest + 1, member="c")
        copies = scene.of("b").copies
        assert copies is not None
        with pytest.raises(Parted, match="are not in the log of the master"):
            copies._agree_with(told_by_c, "127.0.0.1:1")
        assert copies.number == told_by_a.newest + 1, "it is on the disk before the cut"
        with pytest.raises(Parted, match="another broker has led since"):
            copies._refuse_strangers(told_by_a, scene.of("a").address)

    told(tmp_path, story, "ASYNC_MASTER")
