"""Those who play in the demo's story: services, visitors, the two ways to sign up, and the books that are kept."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyromq.demo.lanes import Lane, monotonic
from pyromq.demo.ledger import Account, Ledger
from pyromq.demo.script import FAST_SECONDS, LEAST_SECONDS, USUAL_SECONDS, script_for
from pyromq.demo.services import KINDS, REGISTRATION_SECONDS, SPREAD, Kind, Service, ServiceDown
from pyromq.demo.traffic import Visitors
from pyromq.errors import SendFailed

RNG = random.Random(7)


def in_a_loop(story: Callable[[], Awaitable[None]]) -> None:
    async def run() -> None:
        async with asyncio.timeout(20):
            await story()

    asyncio.run(run())


# --- services --------------------------------------------------------------------------------------------------------


def test_the_cast_takes_the_200_ms_of_the_story() -> None:
    assert REGISTRATION_SECONDS + sum(kind.seconds for kind in KINDS) == pytest.approx(0.2)


def test_a_service_takes_its_time() -> None:
    async def story() -> None:
        service = Service(Kind("SMS", 0.03), RNG)
        began = monotonic()
        await service.call()
        assert monotonic() - began >= 0.03 * (1 - SPREAD) - 0.002
        assert service.done == 1

    in_a_loop(story)


def test_a_service_works_on_no_more_than_it_has_hands() -> None:
    """Six calls, two at a time, are three rounds."""

    async def story() -> None:
        service = Service(Kind("SMS", 0.02, capacity=2), RNG)
        began = monotonic()
        await asyncio.gather(*(service.call() for _ in range(6)))
        assert monotonic() - began >= 3 * 0.02 * (1 - SPREAD) - 0.005

    in_a_loop(story)


def test_a_service_that_is_down_says_so_and_comes_back() -> None:
    async def story() -> None:
        service = Service(Kind("coupon", 0.001), RNG)
        service.is_up = False
        with pytest.raises(ServiceDown, match="the coupon service is down"):
            await service.call()
        service.is_up = True
        await service.call()
        assert service.done == 1

    in_a_loop(story)


# --- lanes -----------------------------------------------------------------------------------------------------------


def test_a_lane_counts_who_is_done_who_failed_and_who_left() -> None:
    async def sign_up(user: str) -> None:
        if user == "unlucky":
            raise SendFailed("no broker")
        await asyncio.sleep(10 if user == "impatient" else 0.01)

    async def story() -> None:
        lane = Lane("with a queue", sign_up, patience_s=0.1)
        for user in ("ann", "unlucky", "impatient"):
            lane.arrive(user)
        await asyncio.sleep(0)
        assert lane.waiting == 2
        await lane.settled()
        assert (lane.came, lane.done, lane.failed, lane.gave_up, lane.waiting) == (3, 1, 1, 1, 0)
        assert len(lane.take_fresh()) == 2  # of those who waited to the end or left
        assert lane.take_fresh() == []
        lane.reset()
        assert (lane.came, lane.done, lane.failed, lane.gave_up) == (0, 0, 0, 0)

    in_a_loop(story)


def test_a_lane_knows_where_the_time_goes() -> None:
    async def story() -> None:
        lane = Lane("in line", asyncio.sleep, patience_s=1)  # type: ignore[arg-type]
        with lane.steps.step("register"):
            await asyncio.sleep(0.02)
        with pytest.raises(ServiceDown), lane.steps.step("coupon"):
            raise ServiceDown("down")
        assert list(lane.steps.medians()) == ["register"]
        assert lane.steps.medians()["register"] >= 0.018

    in_a_loop(story)


def test_visitors_take_turns_at_the_desks() -> None:
    users: list[str] = []

    async def sign_up(user: str) -> None:
        users.append(user)
        await asyncio.sleep(0.01)
        assert lane.waiting <= 3

    async def story() -> None:
        nonlocal lane
        lane = Lane("in line", sign_up, patience_s=1)
        await Visitors("run", RNG).take_turns(lane, desks=3, seconds=0.1)
        assert lane.done == len(users) == len(set(users)) >= 6

    lane: Lane
    in_a_loop(story)


def test_a_stream_of_visitors_waits_for_nobody_and_comes_to_both() -> None:
    async def story() -> None:
        crowd = asyncio.Event()

        async def never(_: str) -> None:
            if lanes[1].waiting >= 20:
                crowd.set()
            await asyncio.Event().wait()

        lanes = [Lane(name, never, patience_s=60) for name in ("in line", "with a queue")]
        visitors = Visitors("run", RNG)
        visitors.rate = 1000.0
        stream = asyncio.ensure_future(visitors.stream(lanes))
        await crowd.wait()
        stream.cancel()
        assert lanes[0].came == lanes[1].came
        for lane in lanes:
            lane.close()
        await asyncio.gather(stream, *(lane.settled() for lane in lanes), return_exceptions=True)

    in_a_loop(story)


# --- the books -------------------------------------------------------------------------------------------------------


def test_what_nobody_handled_is_lost_and_what_came_twice_is_counted() -> None:
    ledger = Ledger(["SMS", "push"])
    for user in "abc":
        ledger.acknowledge(user)
    for user in "abcc":
        ledger.handle("SMS", user)
    ledger.handle("push", "a")
    assert ledger.accounts() == {"SMS": Account(3, 1, 0), "push": Account(1, 0, 2)}
    assert not ledger.is_complete
    assert (ledger.backlog("SMS"), ledger.backlog("push")) == (0, 2)


def test_a_handler_may_be_quicker_than_the_acknowledgement() -> None:
    ledger = Ledger(["SMS"])
    ledger.handle("SMS", "a")
    assert ledger.backlog("SMS") == 0
    ledger.acknowledge("a")
    assert ledger.is_complete
    assert ledger.acknowledged == 1


@given(st.lists(st.tuples(st.sampled_from(["acknowledge", "SMS", "push"]), st.sampled_from("abcdef"))))
def test_the_books_add_up_in_any_order(events: list[tuple[str, str]]) -> None:
    ledger = Ledger(["SMS", "push"])
    for what, user in events:
        ledger.acknowledge(user) if what == "acknowledge" else ledger.handle(what, user)
    known = {user for what, user in events if what == "acknowledge"}
    for name, account in ledger.accounts().items():
        mine = [user for what, user in events if what == name]
        assert account == Account(len(set(mine)), len(mine) - len(set(mine)), len(known - set(mine)))
    assert ledger.is_complete == all(account.lost == 0 for account in ledger.accounts().values())


# --- the script ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seconds", [LEAST_SECONDS, FAST_SECONDS, USUAL_SECONDS, 600.0])
def test_a_longer_story_has_longer_acts_and_the_same_people(seconds: float) -> None:
    script = script_for(seconds)
    assert 2 * script.turns_s + 3 * script.calm_s + script.burst_s + script.outage_s < seconds
    assert script.burst_rate == 10 * script.usual_rate
    assert script.usual_rate < min(kind.per_second for kind in KINDS) < script.burst_rate
