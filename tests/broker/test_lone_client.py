"""A client that is alone with a whole broker: its requests are taken one after the other without a turn of the loop,
and mean what they always mean."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from broker.support.lone_client import SEND, Client, frame, messages, pull, send
from late import TookTooLong, in_time
from net.fakes import LOOPS, until
from pyromq import accelerated
from pyromq.broker.broker import Broker
from pyromq.config import BrokerConfig, FlushConfig, StoreConfig
from pyromq.errors import StoreFenced
from pyromq.model.group import GroupConfig
from pyromq.model.message import Draft
from pyromq.model.topic import TopicConfig
from pyromq.replication.followers import Followers
from pyromq.store.durability import flusher
from pyromq.store.log.commit_log import CommitLog
from pyromq.store.log.open_run import LINGER_SECONDS
from pyromq.wire.codes import ResponseCode
from store.support import read_all, walk

ACCELERATED = accelerated.load("net")

pytestmark = pytest.mark.skipif(ACCELERATED is None, reason="without the kernel the loop goes round for each request")


class Scene:
    def __init__(self, broker: Broker) -> None:
        self.broker = broker
        assert broker.parts is not None
        self.parts = broker.parts
        self.parts.topics.make(TopicConfig("orders", 4, 4))
        self.parts.groups.make(GroupConfig("shop"))

    @property
    def patience(self) -> Any:
        return self.broker.server.intake.patience

    async def client(self, story: Callable[[Client], Any]) -> Any:
        client = Client(self.broker.server.port)
        try:
            return await asyncio.to_thread(story, client)
        finally:
            client.close()

    def was_waited_for(self) -> None:
        """Not only now and then. Whether a request comes while it is waited for is a matter of the clock."""
        if self.patience.stays <= 20:
            raise TookTooLong(f"{self.patience.stays} requests came while they were waited for")

    def bodies(self) -> list[bytes]:
        self.broker.store.dispatch()
        return read_all(self.broker.store)


@asynccontextmanager
async def serving(root: Path, *, sync: bool = False, **changes: Any) -> AsyncIterator[Scene]:
    store = StoreConfig(root=root, segment_bytes=1 << 20, prefault_bytes=0, flush=FlushConfig(sync=sync, **changes))
    async with asyncio.timeout(50), Broker(BrokerConfig(listen_port=0, store=store)).running() as broker:
        yield Scene(broker)


def run(story: Any) -> None:
    with asyncio.Runner(loop_factory=LOOPS["uvloop"]) as runner:
        runner.run(story)


def sends(count: int) -> Callable[[Client], list[tuple[int, int]]]:
    def story(client: Client) -> list[tuple[int, int]]:
        answers = [client.ask(send(number, b"%d" % number)) for number in range(count)]
        return [(one.code, one.correlation_id) for one in answers]

    return story


# --- sends -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("sync", [False, True])
def test_its_sends_are_stored_once_and_in_order(sync: bool, tmp_path: Path) -> None:
    """A thousand of them go through the end of a segment, and some need the ordinary way."""

    def story(client: Client) -> None:
        for number in range(1000):
            body = b"%d" % number + b" " * 1500
            fields = SEND | ({"i": "CLUSTER\x01c\x02"} if number % 50 == 49 else {})
            assert client.ask(frame(310, fields, number, body)).code == 0

    async def told() -> None:
        async with serving(tmp_path, sync=sync) as scene:
            await scene.client(story)
            marks = scene.broker.store.marks
            assert [int(body) for body in scene.bodies()] == list(range(1000))
            scene.was_waited_for()
            marks.check()
            if sync:
                assert marks.synced.value == marks.appended.value

    run(told())


def test_syncs_of_the_loop_are_counted_and_the_marks_say_what_is_on_the_disk(tmp_path: Path) -> None:
    async def told() -> None:
        async with serving(tmp_path, sync=True) as scene:
            await scene.client(sends(200))
            store = scene.broker.store
            assert store.marks.synced.value == store.log.written_to
            flushes = store.telemetry.histogram("store.flush_seconds")
            assert flushes.count >= 200, "each send was a sync"
            assert 0 < flushes.last < 5

    run(told())


@pytest.mark.parametrize("sync", [False, True])
def test_single_messages_find_blocks_that_were_written_before(sync: bool, tmp_path: Path) -> None:
    """So that the system need not make a page for each, nor a sync bring the file's own records to the disk; what lies
    ahead of the log is zeros."""

    async def told() -> None:
        async with serving(tmp_path, sync=sync) as scene:
            file, ahead = None, []
            for _ in range(10):
                await scene.client(sends(100))
                file = file or next((tmp_path / "commitlog").glob("[0-9]*")).open("rb")
                end = scene.broker.store.log.written_to
                ahead.append(os.lseek(file.fileno(), end, os.SEEK_HOLE) - end)
            scene.was_waited_for()
            assert 50_000 < max(ahead) < 200_000, "some of it is there, not all"
            assert file is not None
            with file:
                file.seek(end)
                assert not any(file.read())

    run(told())


@pytest.mark.parametrize("sync", [False, True])
def test_large_messages_between_small_ones_are_stored_where_they_belong(sync: bool, tmp_path: Path) -> None:
    """Some end within the zeros that are there, some behind them, some with their segment."""
    sizes = [10, 20_000, 10, 10, 200_000, 10, 15_000, 10, 130_000, 10] * 20
    wanted = [b"%06d" % number + b"." * size for number, size in enumerate(sizes)]

    def story(client: Client) -> None:
        for number, body in enumerate(wanted):
            assert client.ask(send(number, body)).code == 0

    async def told() -> None:
        async with serving(tmp_path, sync=sync) as scene:
            await scene.client(story)
            if not sync:  # such large ones may take a disk longer than a loop waits for it
                scene.was_waited_for()
            assert scene.bodies() == wanted

    run(told())


def test_store_times_go_on_while_it_is_waited_for(tmp_path: Path) -> None:
    def story(client: Client) -> None:
        client.ask(send(0, b"first"))
        until_s = time.monotonic() + 0.2
        while time.monotonic() < until_s:
            client.ask(frame(310, {**SEND, "g": str(time.time_ns() // 1_000_000)}, 1, b"later"))

    async def told() -> None:
        async with serving(tmp_path) as scene:
            await scene.client(story)
            scene.was_waited_for()
            log = scene.broker.store.log
            found = list(walk(log.files.segments[0].buffer))[1:]
            early_ms = sorted(one.born_timestamp_ms - one.store_timestamp_ms for one in found)
            in_time(early_ms[-1 - len(early_ms) // 20] / 1000, 0.004, "a message stored before it was sent")
            assert log.last_timestamp_ms >= found[-1].store_timestamp_ms

    run(told())


def test_store_times_that_are_ahead_of_the_clock_wait_for_it(tmp_path: Path) -> None:
    """It was set back."""

    async def told() -> None:
        async with serving(tmp_path) as scene:
            log = scene.broker.store.log
            ahead_ms = log.last_timestamp_ms = scene.broker.store.clock.now_ms() + 60_000
            await scene.client(sends(500))
            scene.was_waited_for()
            assert {one.store_timestamp_ms for one in walk(log.files.segments[0].buffer)} == {ahead_ms}

    run(told())


def test_a_broker_with_slaves_leaves_syncs_to_their_thread(tmp_path: Path) -> None:
    """If the disk hangs, its loop goes on, and nobody takes it for dead."""

    async def told() -> None:
        async with serving(tmp_path, sync=True) as scene:
            followers = Followers().joined("slave", 0, 0)
            scene.parts.ack_mark.followers_changed(followers)
            assert await scene.client(sends(50)) == [(0, number) for number in range(50)]
            assert scene.patience.stays == 0

    run(told())


def test_the_log_stays_open_for_longer_when_messages_come_one_by_one(tmp_path: Path) -> None:
    async def told() -> None:
        async with serving(tmp_path) as scene:
            await scene.client(sends(300))
            scene.broker.store.close_run()
            await scene.client(sends(300))
            assert scene.broker.store._open_run.linger_s > 2 * LINGER_SECONDS

    run(told())


@pytest.mark.parametrize("how", ["slow", "unwanted"])
def test_a_disk_that_is_slow_is_left_to_its_thread(how: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if how == "slow":
        monkeypatch.setattr(flusher, "SYNC_HERE_SECONDS", -1.0)

    async def told() -> None:
        async with serving(tmp_path, sync=True, inline_sync=how == "slow") as scene:
            assert await scene.client(sends(50)) == [(0, number) for number in range(50)]
            assert scene.patience.stays == 0
            assert len(scene.bodies()) == 50

    run(told())


def test_a_sync_that_fails_is_not_tried_again_and_nobody_is_told_that_it_did_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is written to the null device cannot be synced: the system says so."""
    original = CommitLog.let_settle

    def into_nothing(self: CommitLog, run: Any, *, syncs: bool) -> None:
        original(self, run, syncs=syncs)
        run.settle_in(nothing, 0, 1 << 30, syncs)

    def story(client: Client) -> list[int]:
        return [client.ask(send(number, b"%d" % number)).code for number in range(200)]

    async def told() -> None:
        monkeypatch.setattr(CommitLog, "let_settle", into_nothing)
        async with serving(tmp_path, sync=True) as scene:
            failed = asyncio.ensure_future(scene.broker.wait_failed())
            codes = await scene.client(story)
            with pytest.raises(StoreFenced):
                await failed
            promised = codes.count(0)  # by the thread that syncs, before the loop did
            assert promised < 200
            assert codes == [0] * promised + [codes[-1]] * (200 - promised)
            assert scene.patience.stays == 0

    nothing = os.open("/dev/null", os.O_WRONLY)
    try:
        with pytest.raises(StoreFenced):
            run(told())
    finally:
        os.close(nothing)


def test_what_could_not_be_written_at_once_is_written_by_the_store(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    original = CommitLog.let_settle

    def into_a_file_to_read(self: CommitLog, run: Any, *, syncs: bool) -> None:
        original(self, run, syncs=syncs)
        run.settle_in(unwritable, 0, 1 << 30, syncs)

    async def told() -> None:
        monkeypatch.setattr(CommitLog, "let_settle", into_a_file_to_read)
        async with serving(tmp_path) as scene:  # the store writes it by itself then
            assert await scene.client(sends(5)) == [(0, number) for number in range(5)]
            assert len(scene.bodies()) == 5
            assert scene.patience.stays == 0

    unwritable = os.open("/dev/null", os.O_RDONLY)
    try:
        run(told())
    finally:
        os.close(unwritable)


def test_where_pages_are_there_messages_are_copied_into_them_without_a_call(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With zeros ahead of the log, and a descriptor that takes nothing: the loop goes on by itself until the zeros end,
    and then the store writes what follows."""
    original = CommitLog.let_settle
    is_shut = False

    def perhaps_shut(self: CommitLog, run: Any, *, syncs: bool) -> None:
        original(self, run, syncs=syncs)
        if is_shut:
            segment = self.files.segments[0]
            run.settle_in(unwritable, segment.base, segment.end, syncs, segment.buffer)

    async def told() -> None:
        nonlocal is_shut
        monkeypatch.setattr(CommitLog, "let_settle", perhaps_shut)
        async with serving(tmp_path) as scene:
            await scene.client(sends(300))
            scene.was_waited_for()
            before, is_shut = scene.patience.stays, True
            scene.broker.store.close_run()
            await scene.client(sends(1000))
            while_shut = scene.patience.stays - before
            if while_shut <= 20:
                raise TookTooLong(f"{while_shut} requests came while they were waited for")
            assert while_shut < 900, "the zeros ended"
            assert [int(body) for body in scene.bodies()] == [*range(300), *range(1000)]

    unwritable = os.open("/dev/null", os.O_RDONLY)
    try:
        run(told())
    finally:
        os.close(unwritable)


@pytest.mark.parametrize("loop", ["asyncio", "uvloop"])
def test_one_on_the_same_loop_is_not_waited_for(loop: str, tmp_path: Path) -> None:
    """It cannot ask again before the loop has gone round."""

    async def told() -> None:
        async with serving(tmp_path) as scene:
            reader, writer = await asyncio.open_connection("127.0.0.1", scene.broker.server.port)
            for number in range(300):
                writer.write(send(number, b"%d" % number))
                size = await reader.readexactly(4)
                await reader.readexactly(int.from_bytes(size, "big"))
            writer.close()
            assert scene.patience.stays_in_vain <= 6, "once, and then after four times as many requests each"

    with asyncio.Runner(loop_factory=LOOPS[loop]) as runner:
        runner.run(told())


def test_everything_else_goes_on_beside_it(tmp_path: Path) -> None:
    """Timers, other threads, and another client that asks for something unusual."""

    async def told() -> None:
        async with serving(tmp_path) as scene:
            loop, ended, delays = asyncio.get_running_loop(), False, []

            def busy(client: Client) -> int:
                number = 0
                while not ended:
                    number += 1
                    assert client.ask(send(number, b"x")).code == 0
                return number

            sending = asyncio.ensure_future(scene.client(busy))
            await until(lambda: scene.patience.stays > 200)
            for _ in range(50):
                began = loop.time()
                await asyncio.to_thread(int)
                for _ in range(10):
                    await asyncio.sleep(0)
                await asyncio.sleep(0.002)
                delays.append(loop.time() - began)
            pulled = await scene.client(lambda client: client.ask(pull(1, 0)))
            ended = True
            await sending
            assert pulled.code == 0
            in_time(sorted(delays)[25], 0.05, "a round")

    run(told())


def test_timers_are_in_time_beside_it(tmp_path: Path) -> None:
    """Whoever is waited for is not waited for any longer than until the next one."""

    async def told() -> None:
        async with serving(tmp_path) as scene:
            loop, ended, late = asyncio.get_running_loop(), False, []

            def busy(client: Client) -> None:
                while not ended:
                    assert client.ask(send(1, b"x")).code == 0

            sending = asyncio.ensure_future(scene.client(busy))
            await until(lambda: scene.patience.stays > 200)
            for _ in range(60):
                began = loop.time()
                await asyncio.sleep(0.004)
                late.append(loop.time() - began - 0.004)
            ended = True
            await sending
            in_time(sorted(late)[30], 0.01, "a timer")

    run(told())


# --- pulls -----------------------------------------------------------------------------------------------------------


def fill(scene: Scene, count: int, size: int) -> list[bytes]:
    wanted = [b"%06d" % number + b"." * size for number in range(count)]
    for number, body in enumerate(wanted):
        scene.broker.store.append([Draft(b"orders", 0, body), Draft(b"orders", 1, b"another %d" % number)])
    scene.broker.store.dispatch()
    return wanted


@pytest.mark.parametrize("size", [10, 1000])
def test_its_pulls_get_every_message_once(size: int, tmp_path: Path) -> None:
    """Small ones are copied together, large ones leave from where they lie."""

    def story(client: Client) -> list[bytes]:
        got: list[bytes] = []
        while len(got) < 1500:
            answer = client.ask(pull(len(got), len(got)))
            assert (answer.code, answer.correlation_id) == (0, len(got))
            assert int(answer.fields["maxOffset"]) == 1500
            got += messages(answer)
            assert int(answer.fields["nextBeginOffset"]) == len(got)
        return got

    async def told() -> None:
        async with serving(tmp_path) as scene:
            wanted = fill(scene, 1500, size)
            assert await scene.client(story) == wanted
            scene.parts.statistics.sample()
            assert scene.parts.statistics.got_total.messages == 1500

    run(told())


def test_one_that_is_slow_to_read_gets_whole_answers(tmp_path: Path) -> None:
    """Many pulls at once, and a socket that takes some of the answers at a time."""

    def story(client: Client) -> list[int]:
        client.ask(pull(0, 0))
        for number in range(1, 40):
            client.sock.sendall(pull(number, number % 300))
        return [
            answer.correlation_id
            for answer in (client.answer() for _ in range(1, 40))
            if list(messages(answer)) == wanted[answer.correlation_id % 300 :][:32]
        ]

    wanted: list[bytes] = []

    async def told() -> None:
        async with serving(tmp_path) as scene:
            wanted.extend(fill(scene, 400, 7000))
            assert sorted(await scene.client(story)) == list(range(1, 40))

    run(told())


def test_what_changes_between_two_pulls_is_heard_of(tmp_path: Path) -> None:
    async def told() -> None:
        async with serving(tmp_path) as scene:
            fill(scene, 400, 100)
            on_loop = asyncio.get_running_loop()

            def do(change: Callable[[], object]) -> None:
                done = asyncio.run_coroutine_threadsafe(_call(change), on_loop)
                done.result(10)

            def story(client: Client) -> None:
                for number in range(5):
                    assert client.ask(pull(number, number)).code == 0
                do(lambda: scene.parts.resets.note("shop", "orders", 0, 7))
                moved = client.ask(pull(6, 50))
                assert moved.code == ResponseCode.PULL_OFFSET_MOVED
                assert client.ask(pull(7, 7)).code == 0
                do(lambda: scene.parts.topics.make(TopicConfig("orders", 4, 4, permission=2)))
                assert client.ask(pull(8, 8)).code == ResponseCode.NO_PERMISSION

            await scene.client(story)

    run(told())


async def _call(change: Callable[[], object]) -> None:
    change()


def test_messages_that_were_just_sent_are_in_the_next_answer(tmp_path: Path) -> None:
    """Although they are not in their queue yet when it is asked for."""

    def story(client: Client) -> None:
        for number in range(100):
            assert client.ask(send(number, b"%d" % number)).code == 0
            answer = client.ask(pull(number, max(0, number - 5)))
            assert [int(body) for body in messages(answer)][-1] == number

    async def told() -> None:
        async with serving(tmp_path) as scene:
            await scene.client(story)

    run(told())
