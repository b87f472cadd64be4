"""Looking for messages by key, unique key and position."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

from broker.support.fakes import FakePeer, Parts
from pyromq.broker.requests import query as query_module
from pyromq.broker.requests.query import QueryProcessor
from pyromq.clock import ManualClock
from pyromq.errors import ServiceError
from pyromq.model.message import Draft
from pyromq.records import layout, record
from pyromq.records.properties import encode_properties
from pyromq.store import reader
from pyromq.wire.requests.client import QueryMessage, ViewMessage
from pyromq.wire.responses import QueryAnswer

PEER = FakePeer()
START_MS = 1_700_000_000_000
ALWAYS = (0, 2**63 - 1)


class World:
    def __init__(self) -> None:
        self.clock = ManualClock(START_MS)
        self.parts = Parts(clock=self.clock)
        self.queries = QueryProcessor(self.parts.store)
        self.positions: list[int] = []
        for number in range(100):
            properties = {"UNIQ_KEY": f"ID{number}", "KEYS": f"order-{number} user-{number % 2}"}
            draft = Draft(b"orders", number % 4, str(number).encode(), encode_properties(properties))
            self.positions.append(self.parts.store.append([draft])[0].position)
            self.clock.advance(1)
        self.parts.store.dispatch()

    def query(
        self, key: str, most: int = 32, *, topic: str = "orders", span: tuple[int, int] = ALWAYS, unique: bool = False
    ) -> QueryAnswer:
        request = QueryMessage(
            topic=topic, key=key, max_messages=most, begin_ms=span[0], end_ms=span[1], by_unique_key=unique
        )

        async def ask() -> QueryAnswer:
            answer = await self.queries.query(request, PEER)
            assert isinstance(answer, QueryAnswer)
            return answer

        return asyncio.run(ask())

    def view(self, position: int) -> bytes:
        async def ask() -> bytes:
            answer = await self.queries.view(ViewMessage(position=position), PEER)
            assert isinstance(answer.body, memoryview)
            return record.decode(answer.body).body

        return asyncio.run(ask())


@pytest.fixture(params=["in memory", "on disk"])
def world(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    world = World()
    if request.param == "on disk":
        monkeypatch.setattr(reader, "HOT_BYTES", 0)
        world.parts.disk.cold = {segment.path for segment in world.parts.store.log.files.segments}
    yield world
    world.parts.close()


def bodies(answer: QueryAnswer) -> list[int]:
    assert isinstance(answer.body, list)
    return [int(record.decode(view).body) for view in answer.body]


def test_messages_are_found_by_key(world: World) -> None:
    assert bodies(world.query("order-7")) == [7]
    assert bodies(world.query("ID8", 1, unique=True)) == [8]
    answer = world.query("user-1", 5)
    assert bodies(answer) == [91, 93, 95, 97, 99], "the newest five, oldest first"
    assert answer.index_position == world.positions[-1]
    assert answer.index_timestamp_ms == START_MS + 99_000


def test_only_what_was_stored_in_the_time_that_was_asked_for_is_found(world: World) -> None:
    span = (START_MS + 10_000, START_MS + 20_000)
    assert bodies(world.query("user-0", span=span)) == [10, 12, 14, 16, 18, 20]


def test_a_unique_key_has_its_own_limit(world: World) -> None:
    assert len(bodies(world.query("user-1", 1, unique=True))) == query_module.UNIQUE_KEY_RESULTS
    assert len(bodies(world.query("user-1", 2**31 - 1))) == 50


@pytest.mark.parametrize(
    ("topic", "key", "most"),
    [("orders", "nobody", 32), ("bills", "order-7", 32), ("orders", "", 32), ("orders", "order-7", 0),
     ("orders", "order-7", -1), ("\ud800", "\ud800", 32)],
)  # fmt: skip
def test_what_is_not_there_is_not_found(world: World, topic: str, key: str, most: int) -> None:
    answer = world.query(key, most, topic=topic)
    assert (answer.code, answer.body) == (22, [])
    assert answer.reason


def test_an_answer_is_no_larger_than_clients_take(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(query_module, "MAX_ANSWER_BYTES", 500)
    assert 1 < len(bodies(world.query("user-1"))) < 5
    monkeypatch.setattr(query_module, "MAX_ANSWER_BYTES", 1)
    assert bodies(world.query("user-1")) == [99], "one message always fits"


def test_a_broker_without_an_index_finds_nothing() -> None:
    parts = Parts(store={"index_enabled": False})
    answer = asyncio.run(_ask(parts))
    assert (answer.code, answer.index_position, answer.index_timestamp_ms) == (22, 0, 0)
    parts.close()


async def _ask(parts: Parts) -> QueryAnswer:
    request = QueryMessage(topic="orders", key="k", max_messages=1, begin_ms=0, end_ms=1)
    answer = await QueryProcessor(parts.store).query(request, PEER)
    assert isinstance(answer, QueryAnswer)
    return answer


def test_a_message_is_found_by_its_position(world: World) -> None:
    assert [world.view(position) for position in world.positions[:3]] == [b"0", b"1", b"2"]


@pytest.mark.parametrize("position", [-1, -(2**63), 1, 7, 2**40, 2**63 - 1])
def test_where_no_message_begins_there_is_none(world: World, position: int) -> None:
    with pytest.raises(ServiceError, match=f"can not find message by the offset, {position}") as refused:
        world.view(position)
    assert refused.value.code == 1


def test_half_of_a_transaction_is_found_by_its_position(world: World) -> None:
    draft = Draft(b"orders", 0, b"half", storage_flags=layout.FLAG_PREPARED)
    (receipt,) = world.parts.store.append([draft])
    assert world.view(receipt.position) == b"half"
