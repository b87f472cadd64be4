"""Large answers to admin tools: each queue once, in slices, within bounds."""

from __future__ import annotations

import asyncio
import tracemalloc

import pytest

from broker.support.admin_parts import AdminParts
from pyromq.net import slices
from pyromq.net.slices import SLICE_SECONDS, sliced_body, slices_of
from pyromq.wire.requests import admin as ask
from pyromq.wire.requests.client import Request
from pyromq.wire.responses import Response

MIB = 1 << 20


def large(topics: int = 4, queues: int = 1000) -> AdminParts:
    parts = AdminParts()
    parts.make_group()
    for number in range(topics):
        parts.make_topic(f"t{number}", queues)
        parts.offsets.commit("shop", f"t{number}", 0, 0)
    return parts


async def counted(parts: AdminParts, request: Request, slices_per_call: float) -> tuple[Response, int]:
    """The answer, and in how many turns of the loop it was made if every look at the CPU clock took so much."""
    queue = slices_of(asyncio.get_running_loop())
    now = turns = 0.0

    def cpu_time() -> float:
        nonlocal now
        now += slices_per_call * SLICE_SECONDS
        return now

    queue.cpu_time = cpu_time
    turn = queue._turn

    def turn_counted() -> None:
        nonlocal turns
        turns += 1
        turn()

    queue._turn = turn_counted  # type: ignore[method-assign]
    return await parts.answer(request), int(turns)


def test_a_topic_that_is_named_many_times_is_told_of_once() -> None:
    parts = large(1, 8)
    told = parts.told(ask.GetConsumeStats(group="shop", topics=";".join(["t0"] * 60)))
    assert [key["queueId"] for key, _ in told["offsetTable"].pairs] == list(range(8))


@pytest.mark.parametrize(
    "request_",
    [
        ask.GetConsumeStats(group="shop"),
        ask.GetBrokerConsumeStats(),
        ask.GetTopicStats(topic="t0"),
        ask.QueryTimeSpan(topic="t0", group="shop"),
    ],
    ids=lambda one: type(one).__name__,
)
def test_statistics_are_made_in_slices_and_in_little_memory(request_: Request) -> None:
    parts = large()
    tracemalloc.start()
    answer, turns = asyncio.run(counted(parts, request_, 0.01))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert answer.code == 0
    assert isinstance(answer.body, bytes)
    assert turns >= 10
    assert peak < 4 * len(answer.body) + MIB


def test_an_answer_that_no_client_could_read_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slices, "MAX_ANSWER_BYTES", 100_000)
    answer = large().ask(ask.GetConsumeStats(group="shop"))
    assert answer.code != 0
    assert answer.reason is not None
    assert "larger than" in answer.reason


def test_pieces_are_asked_for_one_by_one() -> None:
    asked: list[int] = []

    async def story() -> bytes:
        return await sliced_body((asked.append(number) or b"x" for number in range(3)), "it")  # type: ignore[func-returns-value]

    assert asyncio.run(story()) == b"xxx"
    assert asked == [0, 1, 2]
