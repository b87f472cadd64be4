"""The client runs on any loop: asyncio's own, uvloop, and one of a framework."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager

import pytest
import uvloop

from pyromq import ConsumeFrom, Decision, Message, Producer, PullConsumer, PushConsumer, TransactionProducer, testing
from pyromq.client.received import ReceivedMessage

LOOPS: dict[str, Callable[[], asyncio.AbstractEventLoop]] = {
    "asyncio": asyncio.new_event_loop,
    "uvloop": uvloop.new_event_loop,
}


@pytest.fixture(scope="module")
def name_servers() -> Iterator[str]:
    with testing.broker() as mq:
        yield mq.name_servers


class Desk:
    """Return a consumer's messages."""

    def __init__(self) -> None:
        self.bodies: list[str] = []
        self._more = asyncio.Event()

    async def take(self, message: ReceivedMessage) -> None:
        self.bodies.append(message.text)
        self._more.set()

    async def until(self, count: int) -> list[str]:
        async with asyncio.timeout(20):
            while len(self.bodies) < count:
                self._more.clear()
                await self._more.wait()
        return sorted(self.bodies)


@asynccontextmanager
async def consuming(name_servers: str, topic: str, **settings: bool) -> AsyncIterator[Desk]:
    desk = Desk()
    consumer = PushConsumer(
        name_servers,
        group=f"{topic}-readers",
        consume_from=ConsumeFrom.FIRST,
        **settings,  # type: ignore[arg-type]
    )
    consumer.subscribe(topic, desk.take)
    async with consumer:
        yield desk


@pytest.mark.parametrize("loop", LOOPS)
def test_a_whole_day_at_work(name_servers: str, loop: str) -> None:
    topic = f"day-{loop}"

    async def day() -> None:
        async with Producer(name_servers, group="p", auto_batch=True) as producer:
            await asyncio.gather(*(producer.send(topic, f"{number:03}") for number in range(200)))
        async with TransactionProducer(name_servers, group="t", check=lambda _: Decision.COMMIT) as producer:
            await producer.send_in_transaction(Message(topic, "200"), lambda _: Decision.COMMIT)
            await producer.send_in_transaction(Message(topic, "never"), lambda _: Decision.ROLLBACK)
        async with consuming(name_servers, topic) as desk:
            assert await desk.until(201) == [f"{number:03}" for number in range(201)]
        async with PullConsumer(name_servers, group=f"{topic}-pull", consume_from=ConsumeFrom.FIRST) as consumer:
            await consumer.subscribe(topic)
            found = [await anext(aiter(consumer)) for _ in range(5)]
            assert len({message.message_id for message in found}) == 5

    with asyncio.Runner(loop_factory=LOOPS[loop]) as runner:
        runner.run(day())


@pytest.mark.parametrize("loop", LOOPS)
def test_inside_a_loop_that_runs_already_beside_somebody_elses_tasks(name_servers: str, loop: str) -> None:
    """As in a web framework: the loop is theirs, started in a thread, and runs on after the client is closed."""
    topic = f"guest-{loop}"
    theirs = LOOPS[loop]()
    thread = threading.Thread(target=theirs.run_forever)
    thread.start()
    ticks = 0

    async def tick() -> None:
        nonlocal ticks
        while True:
            ticks += 1
            await asyncio.sleep(0.001)

    async def visit() -> None:
        async with Producer(name_servers, group="guest") as producer, consuming(name_servers, topic) as desk:
            await producer.send(topic, "hello")
            assert await desk.until(1) == ["hello"]

    try:
        ticking = asyncio.run_coroutine_threadsafe(tick(), theirs)
        asyncio.run_coroutine_threadsafe(visit(), theirs).result(30)
        before = ticks
        asyncio.run_coroutine_threadsafe(asyncio.sleep(0.05), theirs).result(5)
        assert ticks > before
        left = asyncio.run_coroutine_threadsafe(_others(), theirs).result(5)
        assert left == {"tick"}
        ticking.cancel()
    finally:
        theirs.call_soon_threadsafe(theirs.stop)
        thread.join(10)
        theirs.close()


async def _others() -> set[str]:
    """Return all tasks except this one."""
    mine = asyncio.current_task()
    names = (task.get_coro() for task in asyncio.all_tasks() if task is not mine)
    return {getattr(one, "__name__", "?") for one in names}


def test_clients_of_two_loops_do_not_know_of_each_other(name_servers: str) -> None:
    results: list[list[str]] = []

    def life(topic: str, factory: Callable[[], asyncio.AbstractEventLoop]) -> None:
        async def run() -> None:
            async with Producer(name_servers, group="two") as producer, consuming(name_servers, topic) as desk:
                for number in range(20):
                    await producer.send(topic, f"{number:02}")
                results.append(await desk.until(20))

        with asyncio.Runner(loop_factory=factory) as runner:
            runner.run(run())

    threads = [threading.Thread(target=life, args=(f"own-{name}", factory)) for name, factory in LOOPS.items()]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(40)
    assert results == [[f"{number:02}" for number in range(20)]] * 2
