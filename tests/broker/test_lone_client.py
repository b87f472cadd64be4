"""A client with one request in flight, and a whole broker: every message is stored once and read once."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from broker.support.lone_client import SEND, Client, frame, messages, pull, send
from net.fakes import LOOPS
from pyromq import accelerated
from pyromq.broker.broker import Broker
from pyromq.config import BrokerConfig, FlushConfig, StoreConfig
from pyromq.model.group import GroupConfig
from pyromq.model.message import Draft
from pyromq.model.topic import TopicConfig
from pyromq.store.log.append_batch import MIN_OPEN_SECONDS
from pyromq.wire.codes import ResponseCode
from store.support import read_all, walk


class Scene:
    def __init__(self, broker: Broker) -> None:
        self.broker = broker
        assert broker.parts is not None
        self.parts = broker.parts
        self.parts.topics.make(TopicConfig("orders", 4, 4))
        self.parts.groups.make(GroupConfig("shop"))

    async def client(self, story: Callable[[Client], Any]) -> Any:
        client = Client(self.broker.server.port)
        try:
            return await asyncio.to_thread(story, client)
        finally:
            client.close()

    def bodies(self) -> list[bytes]:
        self.broker.store.dispatch()
        return read_all(self.broker.store)


@asynccontextmanager
async def serving(root: Path, *, sync: bool = False) -> AsyncIterator[Scene]:
    store = StoreConfig(root=root, segment_bytes=1 << 20, prefault_bytes=0, flush=FlushConfig(sync=sync))
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
            marks.check()
            if sync:
                assert marks.synced.value == marks.appended.value

    run(told())


@pytest.mark.parametrize("sync", [False, True])
def test_large_messages_between_small_ones_are_stored_where_they_belong(sync: bool, tmp_path: Path) -> None:
    """Some end their segment."""
    sizes = [10, 20_000, 10, 10, 200_000, 10, 15_000, 10, 130_000, 10] * 20
    wanted = [b"%06d" % number + b"." * size for number, size in enumerate(sizes)]

    def story(client: Client) -> None:
        for number, body in enumerate(wanted):
            assert client.ask(send(number, body)).code == 0

    async def told() -> None:
        async with serving(tmp_path, sync=sync) as scene:
            await scene.client(story)
            assert scene.bodies() == wanted

    run(told())


def test_store_times_that_are_ahead_of_the_clock_wait_for_it(tmp_path: Path) -> None:
    """It was set back."""

    async def told() -> None:
        async with serving(tmp_path) as scene:
            log = scene.broker.store.log
            ahead_ms = log.last_timestamp_ms = scene.broker.store.clock.now_ms() + 60_000
            await scene.client(sends(500))
            assert {one.store_timestamp_ms for one in walk(log.files.segments[0].buffer)} == {ahead_ms}

    run(told())


@pytest.mark.skipif(accelerated.load("accelerator") is None, reason="without it there is no append batch")
def test_the_batch_stays_open_for_longer_when_messages_come_one_by_one(tmp_path: Path) -> None:
    async def told() -> None:
        async with serving(tmp_path) as scene:
            await scene.client(sends(300))
            scene.broker.store.close_batch()
            await scene.client(sends(300))
            assert scene.broker.store.batch().open_s > 2 * MIN_OPEN_SECONDS

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
