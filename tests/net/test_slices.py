"""Work on the event loop comes in slices: a connection or a job that took one waits until others had their turn."""

from __future__ import annotations

import asyncio

from net.fakes import FakeTransport, request, run, turns
from pyromq.net.endpoint import Home
from pyromq.net.peer import Peer
from pyromq.net.service import Answer
from pyromq.net.slices import MAX_JOBS, SLICE_SECONDS, job, slices_of
from pyromq.wire.command import Command
from pyromq.wire.responses import Response


class Cpu:
    """A CPU clock that a test moves."""

    def __init__(self) -> None:
        self.now = 0.0
        slices_of(asyncio.get_running_loop()).cpu_time = lambda: self.now

    def work(self, slices: float = 1.5) -> None:
        self.now += slices * SLICE_SECONDS


class Worker:
    """A handler whose requests with a body take longer than a slice; notes who was served."""

    def __init__(self) -> None:
        self.cpu = Cpu()
        self.served: list[str] = []

    def __call__(self, command: Command, peer: Peer) -> Answer:
        self.served.append(peer.address)
        if command.body:
            self.cpu.work()
        return Response()


def heavy(count: int) -> bytes:
    return b"".join(request(correlation_id=number, body=b"much") for number in range(count))


def test_a_connection_that_used_a_slice_waits_for_the_next_turn() -> None:
    async def story() -> None:
        worker = Worker()
        home = Home(worker)
        greedy = FakeTransport(home, ("10.0.0.1", 1))
        greedy.feed(heavy(3))
        assert len(worker.served) == 1, "the second request waits for another turn"
        assert greedy.is_reading_paused
        await turns(10)
        assert len(worker.served) == 3
        assert not greedy.is_reading_paused
        assert [one.correlation_id for one in greedy.answers] == [0, 1, 2]

    run(story())


def test_others_are_served_between_the_slices_of_many_greedy_connections() -> None:
    async def story() -> None:
        worker = Worker()
        home = Home(worker)
        for number in range(10):
            FakeTransport(home, ("10.0.0.1", 1 + number)).feed(heavy(10))
        assert len(worker.served) == 1, "one slice of work in one turn, however many ask for it"
        modest = FakeTransport(home, ("10.0.0.2", 1))
        modest.feed(request())
        served_before = len(worker.served)
        await turns(20)
        at = worker.served.index("10.0.0.2:1")
        assert at <= served_before + 10, "it waits for connections that came before, not for all their requests"
        await turns(300)
        assert len(worker.served) == 101

    run(story())


def test_light_connections_go_before_those_that_used_their_slice() -> None:
    async def story() -> None:
        worker = Worker()
        home = Home(worker)
        FakeTransport(home, ("10.0.0.1", 1)).feed(heavy(5))
        for number in range(20):
            FakeTransport(home, ("10.0.0.2", 1 + number)).feed(request())
        await turns(2)
        assert worker.served[1:21] == [f"10.0.0.2:{1 + number}" for number in range(20)]

    run(story())


def test_a_connection_that_ends_while_it_waits_is_forgotten() -> None:
    async def story() -> None:
        worker = Worker()
        greedy = FakeTransport(Home(worker))
        greedy.feed(heavy(3))
        greedy.abort()
        await turns(10)
        assert len(worker.served) == 1

    run(story())


def test_a_job_pauses_when_its_slice_is_used_up_and_others_go_on() -> None:
    async def story() -> None:
        cpu = Cpu()
        story: list[str] = []

        async def work(name: str, steps: int) -> int:
            async with job() as one:
                for _ in range(steps):
                    story.append(name)
                    cpu.work(0.6)
                    await one.pause()
                return one.count

        counts = await asyncio.gather(work("a", 6), work("b", 6))
        assert counts == [4, 4], "two steps fit into a slice; one slice at the beginning"
        assert "".join(story) == "aabbaabbaabb"

    run(story())


def test_only_a_few_jobs_are_under_way_at_once() -> None:
    async def story() -> None:
        cpu = Cpu()
        under_way = most = 0

        async def work() -> None:
            nonlocal under_way, most
            async with job() as one:
                under_way += 1
                most = max(most, under_way)
                for _ in range(5):
                    cpu.work()
                    await one.pause()
                under_way -= 1

        await asyncio.gather(*(work() for _ in range(10)))
        assert most == MAX_JOBS

    run(story())


def test_a_job_that_is_cancelled_makes_room_for_the_next() -> None:
    async def story() -> None:
        begun = [asyncio.ensure_future(_endless()) for _ in range(MAX_JOBS)]
        await turns(5)
        for task in begun:
            task.cancel()
        async with asyncio.timeout(5), job() as one:
            assert one.count == 1

    run(story())


async def _endless() -> None:
    async with job() as one:
        while True:
            await one.next_slice()


def test_a_caller_with_many_jobs_makes_another_wait_for_one_of_them() -> None:
    async def story() -> None:
        cpu = Cpu()
        done: list[str] = []

        def handle(command: Command, peer: Peer) -> Answer:
            return work(peer.address)

        async def work(name: str) -> Response:
            async with job() as one:
                for _ in range(3):
                    cpu.work()
                    await one.pause()
                done.append(name)
            return Response()

        home = Home(handle)
        greedy, modest = FakeTransport(home, ("10.0.0.1", 1)), FakeTransport(home, ("10.0.0.2", 1))
        greedy.feed(b"".join(request(correlation_id=number) for number in range(50)))
        modest.feed(request())
        await turns(400)
        assert len(done) == 51
        assert done.index("10.0.0.2:1") <= 2 * MAX_JOBS

    run(story())


def test_jobs_whose_caller_went_away_are_not_begun() -> None:
    async def story() -> None:
        begun: list[int] = []

        async def work(number: int) -> None:
            async with job() as one:
                begun.append(number)
                await one.next_slice()

        tasks = [asyncio.ensure_future(work(number)) for number in range(20)]
        await turns(1)
        for task in tasks[:-1]:
            task.cancel()
        await asyncio.wait(tasks)
        assert begun == [19]

    run(story())
