"""Work on the event loop comes in slices: a connection or a job that took one waits until others had their turn."""

from __future__ import annotations

import asyncio

from net.fakes import FakeTransport, request, run, turns
from pyromq.config import LimitsConfig
from pyromq.net.endpoint import Home
from pyromq.net.peer import Peer
from pyromq.net.service import NEXT_TURN, Answer
from pyromq.net.slices import (
    MAX_JOBS,
    MAX_TURNS_OF_ACCEPTS,
    MIN_ANSWER_BYTES,
    SLICE_SECONDS,
    TURN_ANSWER_BYTES,
    job,
    slices_of,
)
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


def test_every_third_heavy_turn_is_the_newest_first_request() -> None:
    async def story() -> None:
        slices, served = slices_of(asyncio.get_running_loop()), list[str]()
        for number in range(6):
            slices.later(lambda number=number: served.append(f"old {number}"), is_heavy=True)  # type: ignore[misc]
            slices.later(lambda number=number: served.append(f"new {number}"), is_heavy=True, is_new=True)  # type: ignore[misc]
        assert slices.waiting == 12
        await turns(14)
        assert served[:6] == ["new 0", "old 0", "new 5", "new 1", "old 1", "new 4"]
        assert len(served) == 12

    run(story())


def test_connections_are_accepted_before_heavy_steps_and_delay_each_by_a_bounded_number_of_turns() -> None:
    async def story() -> None:
        slices, served = slices_of(asyncio.get_running_loop()), list[int]()
        for number in range(2):
            slices.later(lambda number=number: served.append(number), is_heavy=True)  # type: ignore[misc]
        for turn in range(2 * MAX_TURNS_OF_ACCEPTS):
            assert len(served) == turn // MAX_TURNS_OF_ACCEPTS
            slices.accepted()
            await turns(1)
        await turns(1)
        assert len(served) == 2

    run(story())


class Giver:
    """A handler whose answers have `size` bytes, and which gives large ones only to a peer that has its turn."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.served: list[str] = []

    def __call__(self, _: Command, peer: Peer) -> Answer:
        if self.size > peer.answer_room and not peer.has_turn:
            return NEXT_TURN
        self.served.append(peer.address)
        return Response(body=bytes(min(self.size, max(peer.answer_room, MIN_ANSWER_BYTES))))


def test_one_answer_larger_than_its_share_is_given_per_turn() -> None:
    async def story() -> None:
        giver = Giver(TURN_ANSWER_BYTES + 1)
        home = Home(giver)
        peers = [FakeTransport(home, ("10.0.0.1", 1 + number)) for number in range(20)]
        for peer in peers:
            peer.feed(request() + request(correlation_id=2))
        assert not giver.served
        assert all(peer.is_reading_paused for peer in peers)
        last, before = FakeTransport(home, ("10.0.0.2", 1)), 0
        last.feed(request())
        for _ in range(MAX_TURNS_OF_ACCEPTS + 4):
            await turns(1)
            assert len(giver.served) <= before + 1, "at most one per turn"
            before = len(giver.served)
        assert "10.0.0.2:1" in giver.served, "the newest does not wait for all the others"
        await turns(200)
        assert len(giver.served) == 41
        assert not any(peer.is_reading_paused for peer in peers)

    run(story())


def test_the_room_of_an_answer_shrinks_with_the_connections_that_wait_and_with_the_unsent_bytes() -> None:
    async def story() -> None:
        home = Home(Giver(2 * TURN_ANSWER_BYTES), LimitsConfig(max_unsent_bytes=64 << 20))
        peer = FakeTransport(home)
        assert peer.connection.answer_room == TURN_ANSWER_BYTES
        for number in range(7):
            FakeTransport(home, ("10.0.0.1", 1 + number)).feed(request())
        assert peer.connection.answer_room == TURN_ANSWER_BYTES // 8
        home.count_unsent((16 << 20) + 1)
        assert peer.connection.answer_room == MIN_ANSWER_BYTES
        home.count_unsent(-2)
        assert peer.connection.answer_room == TURN_ANSWER_BYTES // 8
        await turns(50)

    run(story())


def test_a_connection_gets_its_share_of_answers_and_then_waits_for_its_turn() -> None:
    async def story() -> None:
        home = Home(Giver(MIN_ANSWER_BYTES))
        home.count_unsent(home.limits.max_unsent_bytes // 4 + 1)
        greedy = FakeTransport(home)
        greedy.feed(b"".join(request(correlation_id=number) for number in range(5)))
        assert len(greedy.answers) == 1
        assert greedy.is_reading_paused
        await turns(30)
        assert [one.correlation_id for one in greedy.answers] == [0, 1, 2, 3, 4]

    run(story())
