"""Backups of a running broker over its replication stream: saved, kept and impossible states."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import pyromq.testing
from backup.memory_target import MemoryTarget, PowerCut
from backup.test_arriving import bytes_of
from pyromq import Admin, ConsumeFrom, Message, Producer, PullConsumer
from pyromq.backup import live as live_module
from pyromq.backup.broker_state import LogState, RunningBroker, ha_address, may_be_saved_to
from pyromq.backup.checking import check
from pyromq.backup.history import newest, numbers, wanted
from pyromq.backup.line import BrokerGone, log_line
from pyromq.backup.listing import runs
from pyromq.backup.live import LiveBackup
from pyromq.backup.making import back_up
from pyromq.backup.restoring import restore
from pyromq.backup.target import LocalTarget, Part
from pyromq.clock import ManualClock
from pyromq.errors import BackupError, SendUnknown, Unreachable
from pyromq.replication.arrival import check_arrived
from pyromq.replication.frames import encode_report
from pyromq.testing import Direction, FaultProxy, LocalBroker

TOPIC, GROUP = "orders", "shop"
SECONDS = 30
#: Frames are small, so that a chunk of a few may be too.
FRAMES = {"replication.batch_bytes": 4096}
Result = TypeVar("Result")


def tell(story: Callable[[], Awaitable[Result]]) -> Result:
    async def told() -> Result:
        async with asyncio.timeout(SECONDS):
            return await story()

    return asyncio.run(told())


async def until(holds: Callable[[], bool]) -> None:
    while not holds():  # noqa: ASYNC110  files send no event
        await asyncio.sleep(0.01)


async def send(mq: LocalBroker, count: int, size: int = 1000) -> None:
    async with Producer(mq.name_servers, group="producers") as producer:
        for number in range(count):
            await producer.send(Message(TOPIC, b"%06d" % number + b"x" * size))


@contextlib.asynccontextmanager
async def running(mq: LocalBroker, ha: str | None = None) -> AsyncIterator[RunningBroker]:
    async with Admin(mq.name_servers) as admin:
        yield RunningBroker(admin.session.ask, mq.broker_address, ha)


async def saved(mq: LocalBroker, target: Any, ha: str | None = None, **options: Any) -> Any:
    async with running(mq, ha) as broker:
        return await LiveBackup(broker, target, **options).run()


def ha_of(mq: LocalBroker) -> str:
    host, _, port = mq.broker_address.rpartition(":")
    return f"{host}:{int(port) + 1}"


def served(name_servers: str, count: int) -> list[str]:
    async def story() -> list[str]:
        found: list[str] = []
        options: dict[str, Any] = {"group": GROUP, "consume_from": ConsumeFrom.FIRST}
        async with PullConsumer(name_servers, **options) as consumer:
            await consumer.subscribe(TOPIC)
            while len(found) < count:
                found += [message.text[:6] for message in await consumer.poll(timeout_s=10.0)]
            await consumer.commit()
        return found

    return tell(story)


# --- saved data ------------------------------------------------------------------------------------------------------


def test_a_broker_is_backed_up_step_by_step_and_comes_back_with_its_tables(tmp_path: Path) -> None:
    target = LocalTarget(tmp_path / "backup")
    with pyromq.testing.broker(topics={TOPIC: 2}, config={**FRAMES, "store.segment_bytes": 64 << 10}) as mq:

        async def story() -> None:
            await send(mq, 100)
            first = await saved(mq, target, chunk_bytes=20_000)
            assert (first.records, first.manifest.start) == (100, 0)
            assert len(first.manifest.chunks) > 3
            await send(mq, 20)
            second = await saved(mq, target, chunk_bytes=20_000)
            assert second.records == 20
            assert second.manifest.chunks[: len(first.manifest.chunks)] == first.manifest.chunks
            assert (await saved(mq, target)).records == 0

        tell(story)
        assert len(served(mq.name_servers, 120)) == 120
        tell(lambda: saved(mq, target))
        store = mq.data_dir / "store"
        names = [each.name for each in wanted(target).files]
        assert {"config/topics.json", "config/consumerOffset.json", "config/delayOffset.json"} <= set(names)
        assert (store / "config" / "topics.json").exists()
    assert check(target).ok
    home = tmp_path / "home"
    restore(target, home / "store")
    with pyromq.testing.broker(data_dir=home, config={"store.segment_bytes": 64 << 10}) as again:
        tell(lambda: send(again, 5))
        assert len(served(again.name_servers, 5)) == 5, "the group goes on where it was"


def test_a_restored_backup_is_a_slave_that_has_a_start(tmp_path: Path) -> None:
    target, home = LocalTarget(tmp_path / "backup"), tmp_path / "slave"
    with pyromq.testing.broker(topics={TOPIC: 1}, data_dir=tmp_path / "master") as mq:
        tell(lambda: send(mq, 40))
        tell(lambda: saved(mq, target))
        tell(lambda: send(mq, 40))
        restore(target, home / "store")
        as_slave = {"role": "SLAVE", "broker_id": 1, "replication.primary": ha_of(mq)}
        with pyromq.testing.broker(data_dir=home, config=as_slave):

            async def story() -> None:
                await until(lambda: segment(home) == segment(tmp_path / "master"))

            tell(story)


def segment(home: Path) -> bytes:
    return (home / "store" / "commitlog" / f"{0:020d}").read_bytes()


def test_a_directory_goes_on_with_what_came_over_the_stream_and_the_other_way_round(tmp_path: Path) -> None:
    target = LocalTarget(tmp_path / "backup")
    with pyromq.testing.broker(topics={TOPIC: 1}, data_dir=tmp_path / "home") as mq:
        tell(lambda: send(mq, 30))
        tell(lambda: saved(mq, target))
        tell(lambda: send(mq, 10))
        mq.stop()
        assert back_up(tmp_path / "home" / "store", target).records == 10
        mq.start()
        tell(lambda: send(mq, 7))
        assert tell(lambda: saved(mq, target)).records == 7
    assert [run.new_records for run in runs(target) if run.new_records] == [30, 10, 7]
    assert check(target).ok


def test_a_slow_link_is_asked_in_ranges(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No more is on its way than was asked for: the signs of life go on, and so does everything else."""
    monkeypatch.setattr(live_module, "log_line", _narrow(32 << 10))
    target = LocalTarget(tmp_path / "backup")
    with pyromq.testing.broker(topics={TOPIC: 1}, config={"store.segment_bytes": 1 << 20}) as mq:

        async def story() -> None:
            await send(mq, 300)
            async with FaultProxy(ha_of(mq)) as proxy:
                proxy.throttle(400_000, Direction.TO_CLIENT)
                report = await saved(mq, target, proxy.address)
                assert report.records == 300
                assert proxy.passed(Direction.TO_SERVER) >= 8 * 10, "it asked many times"

        tell(story)
    assert check(target).ok


def _narrow(window: int) -> Callable[..., Any]:
    whole = live_module.log_line
    return lambda *arguments, **options: whole(*arguments, **options, window=window)


# --- what it never does ----------------------------------------------------------------------------------------------


async def is_not_acknowledged(producer: Producer) -> None:
    with pytest.raises(SendUnknown):
        await producer.send(Message(TOPIC, b"who has it?"))


SYNC = {"role": "SYNC_MASTER", "replication.timeout_ms": 500, "replication.heartbeat_ms": 100}


def test_a_sync_master_is_never_satisfied_by_a_backup(tmp_path: Path) -> None:
    target = LocalTarget(tmp_path / "backup")
    with pyromq.testing.broker(topics={TOPIC: 1}, config=SYNC) as mq:

        async def story() -> None:
            async with running(mq) as broker, Producer(mq.name_servers, group="p", attempts=1) as producer:
                following = asyncio.get_running_loop().create_task(LiveBackup(broker, target).follow(1.0))
                await until(lambda: newest(target) is not None)
                for _ in range(4):
                    await is_not_acknowledged(producer)
                await until(lambda: wanted(target).records >= 4)
                await is_not_acknowledged(producer)
                following.cancel()
                await asyncio.gather(following, return_exceptions=True)

        tell(story)


def test_neither_is_one_whose_slave_is_slow_and_what_only_the_master_has_is_not_taken(tmp_path: Path) -> None:
    """The slave is there and reports nothing, so a send waits; a backup that begins behind it changes nothing."""
    target = LocalTarget(tmp_path / "backup")
    configured = SYNC | {"replication.members": ("1@127.0.0.1:9",)}  # so it counts without a handshake
    with pyromq.testing.broker(topics={TOPIC: 1}, config=configured) as mq:

        async def log_end(admin: Admin) -> int:
            return int((await admin.brokers.status(mq.broker_address)).figures["pyromq.logEnd"])

        async def story() -> None:
            host, _, port = ha_of(mq).rpartition(":")
            _, slave = await asyncio.open_connection(host, int(port))
            slave.write(encode_report(0))
            async with (
                running(mq) as broker,
                Admin(mq.name_servers) as admin,
                Producer(mq.name_servers, group="p", attempts=1) as producer,
            ):
                sending = asyncio.get_running_loop().create_task(is_not_acknowledged(producer))
                while not (end := await log_end(admin)):  # noqa: ASYNC110  a broker sends no event
                    await asyncio.sleep(0.01)
                async with log_line(ha_of(mq), end, ours=True):
                    assert not sending.done(), "it waits for its slave"
                    await sending
                assert (await LiveBackup(broker, target).run()).manifest.end == 0
            slave.close()

        tell(story)


def test_a_backup_of_a_master_is_in_no_set(tmp_path: Path) -> None:
    """Two copies must be in sync for anything to be accepted: a backup that is level is not the second."""
    target = LocalTarget(tmp_path / "backup")
    config = {"role": "SYNC_MASTER", "replication.min_in_sync": 2, "replication.timeout_ms": 300}
    with pyromq.testing.broker(topics={TOPIC: 1}, config=config) as mq:

        async def story() -> None:
            async with running(mq) as broker, Admin(mq.name_servers) as admin:
                following = asyncio.get_running_loop().create_task(LiveBackup(broker, target).follow(1.0))
                await until(lambda: newest(target) is not None)
                figures = (await admin.brokers.status(mq.broker_address)).figures
                assert (figures["pyromq.slaves"], figures["pyromq.slavesInSync"]) == ("0", "0")
                async with Producer(mq.name_servers, group="p", attempts=1) as producer:
                    with pytest.raises(Exception, match="in sync"):
                        await producer.send(Message(TOPIC, b"refused before it is stored"))
                following.cancel()
                await asyncio.gather(following, return_exceptions=True)

        tell(story)


@pytest.mark.parametrize(
    ("figures", "end"),
    [
        ({"commitLogMaxOffset": "70"}, 70),
        ({"commitLogMaxOffset": "70", "pyromq.logEnd": "60"}, 60),
        ({"pyromq.logEnd": "60", "pyromq.copies": "2", "pyromq.slavesInSync": "1", "pyromq.replicatedTo": "50"}, 50),
        ({"pyromq.logEnd": "60", "pyromq.copies": "2", "pyromq.slavesInSync": "0", "pyromq.replicatedTo": "0"}, 60),
    ],
)
def test_nothing_is_taken_that_slaves_should_have_and_have_not(figures: dict[str, str], end: int) -> None:
    assert may_be_saved_to(figures) == end


def test_the_replication_port_is_told_or_is_the_one_behind() -> None:
    assert ha_address("h:10911", {"haListenPort": "77"}, {}) == "h:77"
    assert ha_address("h:10911", {"haListenPort": "0"}, {}) == "h:10912"
    assert ha_address("h:10911", {}, {"pyromq.haAddress": "other:5"}) == "other:5"
    with pytest.raises(BackupError, match="does not tell its commitLogMaxOffset"):
        may_be_saved_to({})


# --- what stays when it breaks ---------------------------------------------------------------------------------------


def test_what_came_before_the_broker_was_killed_stays_and_the_next_run_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(live_module, "log_line", _narrow(64 << 10))  # else the proxy has everything at once
    target = LocalTarget(tmp_path / "backup")
    with pyromq.testing.broker(
        topics={TOPIC: 1}, config={**FRAMES, "store.segment_bytes": 1 << 20}, process=True
    ) as mq:

        async def story() -> None:
            await send(mq, 1500)
            async with FaultProxy(ha_of(mq)) as proxy:
                proxy.throttle(2_000_000, Direction.TO_CLIENT)
                work = asyncio.get_running_loop().create_task(saved(mq, target, proxy.address, chunk_bytes=100_000))
                await until(lambda: bool(target.names("log/0001")))
                mq.kill()
                with pytest.raises(BrokerGone, match="run it again, and it goes on there"):
                    await work
            kept = wanted(target)
            assert 0 < kept.records < 1500
            mq.start()
            report = await saved(mq, target)
            assert report.manifest.records == 1500
            assert report.records == 1500 - kept.records

        tell(story)
    assert check(target).ok


def test_damage_on_the_way_is_not_saved_and_what_was_before_it_is(tmp_path: Path) -> None:
    target = LocalTarget(tmp_path / "backup")
    with pyromq.testing.broker(topics={TOPIC: 1}, config=FRAMES) as mq:

        async def story() -> None:
            await send(mq, 300)
            async with FaultProxy(ha_of(mq)) as proxy:
                proxy.corrupt(150_000, Direction.TO_CLIENT)
                with pytest.raises(BackupError, match=r"(?s)is not appended.*The backup has the log up to position"):
                    await saved(mq, target, proxy.address, chunk_bytes=50_000)
            kept = wanted(target)
            assert 0 < kept.end <= 150_000
            assert (await saved(mq, target)).manifest.records == 300

        tell(story)
    assert check(target).ok


class FullDisk(MemoryTarget):
    """Accepts this many chunks."""

    def __init__(self, room: int) -> None:
        super().__init__()
        self.room = room

    def write(self, name: str, parts: Iterable[Part]) -> None:
        if name.startswith("log/"):
            self.room -= 1
            if self.room < 0:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), name)
        super().write(name, parts)


def test_a_full_disk_keeps_what_fitted() -> None:
    target = FullDisk(3)
    with pyromq.testing.broker(topics={TOPIC: 1}, config=FRAMES) as mq:
        tell(lambda: send(mq, 200))
        with pytest.raises(BackupError, match=r"No space left on device. What came before is in the backup; put that"):
            tell(lambda: saved(mq, target, chunk_bytes=10_000))
        assert len(wanted(target).chunks) == 3
        assert check(target).ok
        target.room = 1000
        assert tell(lambda: saved(mq, target, chunk_bytes=10_000)).manifest.records == 200
    assert check(target).ok


def test_who_follows_keeps_what_came_when_it_is_stopped_and_waits_for_a_broker_that_restarts(tmp_path: Path) -> None:
    target, said = LocalTarget(tmp_path / "backup"), []
    with pyromq.testing.broker(topics={TOPIC: 1}) as mq:

        async def has(records: int) -> None:
            await until(lambda: (made := newest(target)) is not None and made.records >= records)

        async def story() -> None:
            async with running(mq) as broker:
                work = asyncio.get_running_loop().create_task(LiveBackup(broker, target, tell=said.append).follow(1.0))
                await send(mq, 20)
                await has(20)
                await asyncio.to_thread(mq.restart)
                await send(mq, 20)
                await has(40)
                work.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await work

        tell(story)
    assert any("trying again" in sentence for sentence in said)
    assert check(target).ok


def test_nobody_there_is_an_error_also_for_who_would_follow(tmp_path: Path) -> None:
    async def story() -> None:
        async with Admin("127.0.0.1:1") as admin:
            await LiveBackup(RunningBroker(admin.session.ask, "127.0.0.1:1"), MemoryTarget()).follow(1.0)

    with pytest.raises(Unreachable):
        tell(story)


# --- logs that do not go on ------------------------------------------------------------------------------------------


def test_another_broker_is_refused_and_begins_a_series_of_its_own_when_that_is_wanted(tmp_path: Path) -> None:
    target = LocalTarget(tmp_path / "backup")
    for size, options in ((1000, {}), (1100, {"new_series": True})):
        with pyromq.testing.broker(topics={TOPIC: 1}) as mq:

            async def story(mq: LocalBroker = mq, size: int = size, options: dict[str, Any] = options) -> None:
                await send(mq, 50, size)
                if options:
                    with pytest.raises(BackupError, match=r"does not go on from the backup.*--new-series"):
                        await saved(mq, target)
                await saved(mq, target, **options)

            tell(story)
    assert [run.series for run in runs(target)] == [1, 2]
    assert check(target, number=1).ok
    assert check(target).ok


class Forgetful(RunningBroker):
    """Has removed the first bytes of its log."""

    forgotten = 0

    async def log_state(self) -> LogState:
        return replace(await super().log_state(), start=self.forgotten)


def test_a_gap_is_said_as_what_it_is(tmp_path: Path) -> None:
    target = LocalTarget(tmp_path / "backup")
    with pyromq.testing.broker(topics={TOPIC: 1}) as mq:

        async def story() -> None:
            await send(mq, 20)
            end = (await saved(mq, target)).manifest.end
            await send(mq, 20)
            async with Admin(mq.name_servers) as admin:
                broker = Forgetful(admin.session.ask, mq.broker_address)
                broker.forgotten = end + 1
                with pytest.raises(BackupError, match=r"what is between was removed too soon.*--new-series"):
                    await LiveBackup(broker, target).run()

        tell(story)


def test_a_slave_is_not_asked() -> None:
    class Slave(RunningBroker):
        async def _figures(self) -> dict[str, str]:
            return {"pyromq.role": "SLAVE"}

    with pyromq.testing.broker() as mq:

        async def story() -> None:
            async with Admin(mq.name_servers) as admin:
                with pytest.raises(BackupError, match="is a slave: back up its master"):
                    await Slave(admin.session.ask, mq.broker_address).log_state()

        tell(story)


# --- however often it is stopped -------------------------------------------------------------------------------------


class ScriptedBroker(RunningBroker):
    """Has a log in memory, and tables that never change."""

    def __init__(self, log: bytes) -> None:
        super().__init__(None, "scripted:1")  # type: ignore[arg-type]
        self.log = log

    async def log_state(self) -> LogState:
        return LogState(len(self.log), 0, 32 * 1024, "scripted:2", "scripted", ours=True)

    async def small_files(self) -> dict[str, bytes]:
        return {"config/topics.json": b"{}"}


class ScriptedLine:
    """Breaks after this many bytes."""

    def __init__(self, log: bytes, start: int, lives: int) -> None:
        self._log, self._at, self._lives = log, start, lives

    async def following(self, until: int) -> memoryview:
        if self._lives <= 0:
            raise BrokerGone("the line broke")
        part = self._log[self._at : min(self._at + 3000, until)]
        self._at, self._lives = self._at + len(part), self._lives - len(part)
        return memoryview(part)


@given(
    breaks=st.lists(st.integers(0, 60_000), max_size=5),
    cuts=st.lists(st.integers(0, 12), max_size=3),
    chunk_bytes=st.sampled_from([500, 6_000, 1 << 20]),
)
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None, max_examples=60)
def test_however_often_line_and_power_fail_the_backup_is_whole_and_gets_there(
    intact: Path, breaks: list[int], cuts: list[int], chunk_bytes: int
) -> None:
    log, files = bytes_of(intact), {}
    broker = ScriptedBroker(log)

    def run(lives: int, cut_after: int | None = None) -> None:
        @contextlib.asynccontextmanager
        async def line(address: str, start: int, *, ours: bool) -> AsyncIterator[ScriptedLine]:
            yield ScriptedLine(log, start, lives)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(live_module, "log_line", line)
            target = MemoryTarget(files, cut_after)
            with contextlib.suppress(BrokerGone, PowerCut):
                asyncio.run(LiveBackup(broker, target, chunk_bytes=chunk_bytes, clock=ManualClock()).run())

    end = 0
    for lives, cut_after in [*((lives, None) for lives in breaks), *((1 << 30, cut) for cut in cuts), (1 << 30, None)]:
        run(lives, cut_after)
        if numbers(MemoryTarget(files)):
            made = wanted(MemoryTarget(files))
            assert made.end >= end
            assert check(MemoryTarget(files), threads=1).ok
            end = made.end
    manifest = wanted(MemoryTarget(files))
    assert manifest.end == len(log)
    joined = b"".join(files[chunk.file] + bytes(chunk.end - chunk.written_end) for chunk in manifest.chunks)
    assert joined == log
    with memoryview(joined) as view:
        assert check_arrived(view, 0, 32 * 1024).records == manifest.records
