"""Held pulls: woken by what arrives, in order, without anybody waiting for them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from broker.support.fakes import Parts
from pyromq.broker.delivery.long_polls import LOOKS_PER_CLOCK, LOOKS_PER_TURN, Holds
from pyromq.errors import TopicNotFound
from pyromq.model.message import Draft
from pyromq.net.slices import SLICE_SECONDS, TURN_ANSWER_BYTES, slices_of
from pyromq.wire.responses import Response

LONG = 60.0
NOTHING = Response(code=19, reason="nothing")


class World:
    def __init__(self) -> None:
        self.parts = Parts()
        self.holds = Holds(self.parts.store.arrivals, max_held=100_000)
        self.looks: list[str] = []

    def arrive(self, queue: int = 0) -> None:
        self.parts.store.append([Draft(b"orders", queue, b"x")])
        self.parts.store.dispatch()

    def hold(
        self, name: str = "a", queue: int = 0, found: Response | None = None, seconds: float = LONG
    ) -> asyncio.Future[Response]:
        def look() -> Response | None:
            self.looks.append(name)
            return found

        return self.holds.hold("orders", queue, look, seconds, lambda: NOTHING)


def story(tell: Callable[[World], Coroutine[Any, Any, None]]) -> None:
    world = World()
    try:
        asyncio.run(tell(world))
    finally:
        world.parts.close()


def test_an_arrival_answers_the_pull_that_it_is_for() -> None:
    async def tell(world: World) -> None:
        world.arrive()
        mine, others = world.hold("mine", found=Response()), world.hold("other queue", queue=1)
        world.arrive()
        assert (await mine).code == 0
        assert world.looks == ["mine"]
        await asyncio.sleep(0)
        assert world.holds.count == 1
        world.arrive(queue=1)
        assert world.looks == ["mine", "other queue"]
        assert not others.done()

    story(tell)


def test_a_queue_that_does_not_exist_yet_is_waited_for_too() -> None:
    async def tell(world: World) -> None:
        waiting = world.hold(found=Response())
        world.arrive()
        assert (await waiting).code == 0

    story(tell)


def test_a_pull_for_which_nothing_came_waits_on_and_looks_at_the_next_arrival() -> None:
    async def tell(world: World) -> None:
        waiting = world.hold()
        for _ in range(3):
            world.arrive()
        assert world.looks == ["a"] * 3
        assert not waiting.done()

    story(tell)


def test_time_is_up_after_a_while() -> None:
    async def tell(world: World) -> None:
        assert await world.hold(seconds=0.01) is NOTHING
        await asyncio.sleep(0)
        assert world.holds.count == 0

    story(tell)


def test_a_client_that_is_gone_leaves_nothing_behind() -> None:
    async def tell(world: World) -> None:
        waiting = [world.hold() for _ in range(50)]
        assert world.holds.count == 50
        for each in waiting:
            each.cancel()
        await asyncio.sleep(0)
        assert world.holds.count == 0
        assert not world.holds._by_queue
        world.arrive()
        assert world.looks == []

    story(tell)


def test_what_a_look_raises_is_the_answer() -> None:
    async def tell(world: World) -> None:
        def look() -> Response | None:
            raise TopicNotFound("it was removed")

        waiting = world.holds.hold("orders", 0, look, LONG, lambda: NOTHING)
        healthy = world.hold("healthy", found=Response())
        world.holds.topic_changed("bills")
        world.holds.topics_changed(lambda topic: topic == "orders")
        assert not waiting.done()
        world.holds.topic_changed("orders")
        with pytest.raises(TopicNotFound):
            await waiting
        assert (await healthy).code == 0, "one that fails does not keep the others from looking"

    story(tell)


def test_thousands_look_in_order_and_a_few_in_each_turn() -> None:
    async def tell(world: World) -> None:
        world.arrive()
        waiting = [world.hold(str(number), found=Response()) for number in range(1000)]
        world.arrive()
        assert len(world.looks) == LOOKS_PER_TURN, "others are served before the rest looks"
        world.arrive()
        assert len(world.looks) == LOOKS_PER_TURN, "one round at a time"
        await asyncio.gather(*waiting)
        assert world.looks == [str(number) for number in range(1000)], "who waited longest comes first"
        await asyncio.sleep(0)
        assert world.holds.count == 0

    story(tell)


def test_what_arrives_during_a_round_makes_one_more_round() -> None:
    async def tell(world: World) -> None:
        world.arrive()
        for number in range(100):
            world.hold(str(number))
        world.arrive()
        for _ in range(10):
            world.arrive()
        for _ in range(6):
            await asyncio.sleep(0)
        assert len(world.looks) == 200, "everybody saw the last arrival, and nobody looked eleven times"
        world.arrive()
        await asyncio.sleep(0)
        assert len(world.looks) == 300, "and they still wait"

    story(tell)


def test_a_stop_answers_everybody() -> None:
    async def tell(world: World) -> None:
        waiting = [world.hold(queue=number % 3) for number in range(9)]
        world.holds.release()
        assert [each.result() for each in waiting] == [NOTHING] * 9

    story(tell)


def test_there_is_a_limit() -> None:
    async def tell(world: World) -> None:
        holds = Holds(world.parts.store.arrivals, max_held=1)
        assert not holds.is_full
        waiting = holds.hold("orders", 0, lambda: None, LONG, lambda: NOTHING)
        assert holds.is_full
        waiting.cancel()
        await asyncio.sleep(0)
        assert not holds.is_full

    story(tell)


def test_looks_that_cost_much_are_spread_over_turns_of_the_loop() -> None:
    async def tell(world: World) -> None:
        slices = slices_of(asyncio.get_running_loop())
        slices.cpu_time = lambda: len(world.looks) * SLICE_SECONDS / 3
        for number in range(3 * LOOKS_PER_CLOCK):
            world.hold(str(number))
            world.hold(f"{number} of another queue", queue=1)
        world.arrive()
        world.arrive(queue=1)
        assert len(world.looks) == LOOKS_PER_CLOCK, "one slice in one turn, of all queues together"
        for _ in range(20):
            await asyncio.sleep(0)
        assert len(world.looks) == 6 * LOOKS_PER_CLOCK

    story(tell)


def test_large_answers_are_given_in_several_turns() -> None:
    async def tell(world: World) -> None:
        slices_of(asyncio.get_running_loop()).cpu_time = lambda: 0.0
        world.arrive()
        large = Response(body=[memoryview(bytes(TURN_ANSWER_BYTES // 2))])
        held = [world.hold(str(number), found=large) for number in range(8)]
        world.arrive()
        assert len(world.looks) == 2
        await asyncio.gather(*held)
        assert len(world.looks) == 8

    story(tell)
