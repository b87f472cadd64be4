"""Halves and their ends, with brokers that exist only here."""

from __future__ import annotations

import asyncio
import pickle
from array import array
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from pyromq.client.sending.parcel import Parcel
from pyromq.client.transaction_producer import Decision as End
from pyromq.errors import CallTimeout, NotFound, NotNow, PyroMQError, SendUnknown, Unreachable
from pyromq.model.queue import MessageQueue
from pyromq.records.properties import decode_properties
from pyromq.spark.sink import outlet as sink_outlet
from pyromq.spark.sink.brokers import KNOWS_WRITERS, check_knows_writers, is_ours
from pyromq.spark.sink.decision_topic import DecisionTopic
from pyromq.spark.sink.decisions import QUEUES, TOPIC, Attempt, BatchDecision, Stamp, View
from pyromq.spark.sink.halves import Ended, Ending, HalfWriter, Handles, Written, check_committed
from pyromq.spark.sink.outlet import Make, Patience
from pyromq.spark.sink.transactions import Transactions
from pyromq.wire.command import Command
from pyromq.wire.requests.client import EndTransaction

QUEUE = MessageQueue("orders", "a", 1)


@pytest.fixture(autouse=True)
def _impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sink_outlet, "PAUSE_SECONDS", 0.0001)


def handles(*offsets: int, may_repeat: bool = True, broker: str = "a") -> Handles:
    return Handles(broker, "orders", may_repeat, array("q", offsets), array("q", [offset * 100 for offset in offsets]))


# --- sending ---------------------------------------------------------------------------------------------------------


class Tries:
    """In place of `Singles`: each message is tried as often as the test says, and the last try is stored."""

    def __init__(self, *doubts: list[bool]) -> None:
        self._doubts = list(doubts)
        self.stamps: list[str] = []
        self.parcels: list[Parcel] = []

    async def put(self, make: Make, queue: MessageQueue, stored: Callable[[Command], None]) -> None:
        for is_doubtful in [False, *self._doubts.pop(0)]:
            self.parcels.append(make(is_doubtful))
            self.stamps.append(decode_properties(self.parcels[-1].properties.encode())["PYROMQ_BATCH"])
        number = len(self.stamps)
        fields = {"queueOffset": str(number), "msgId": "7F00000100002A9F" + f"{number * 100:016X}"}
        stored(Command(code=0, fields=fields))


def written_by(tries: Tries, count: int) -> HalfWriter:
    writer = HalfWriter(tries, "group", 30, Stamp("q", 5, 0, "a1", 0))  # type: ignore[arg-type]

    async def write() -> None:
        for _ in range(count):
            await writer.put(QUEUE, b"body", "KEYS\x01k\x02", 0, 0)

    asyncio.run(write())
    return writer


def test_a_half_whose_fate_is_unknown_gets_another_number_and_the_old_one_is_void() -> None:
    tries = Tries([], [True, True], [False], [])
    writer = written_by(tries, 4)
    assert [int(stamp.rpartition(":")[2]) for stamp in tries.stamps] == [0, 1, 2, 3, 4, 4, 5]
    assert writer.attempt() == Attempt("a1", 6, frozenset({1, 2}))


def test_halves_say_what_brokers_need_to_know() -> None:
    tries = Tries([])
    written_by(tries, 1)
    found = decode_properties(tries.parcels[0].properties.encode())
    assert found == {
        "PYROMQ_BATCH": "q:5:0:a1:0", "TRAN_MSG": "true", "PGROUP": "group", "KEYS": "k",
        "CHECK_IMMUNITY_TIME_IN_SECONDS": "30",
    }  # fmt: skip
    assert tries.parcels[0].storage_flags == 4


def test_handles_travel_in_the_order_of_the_rows() -> None:
    (found,) = written_by(Tries([], [], []), 3).handles({"a"})
    assert found == handles(1, 2, 3)
    written = Written(3, "q", 5, 0, Attempt("a1", 3), [found], 17)
    assert pickle.loads(pickle.dumps(written)) == written


# --- ending ----------------------------------------------------------------------------------------------------------


class Line:
    """In place of a `Session`: `fates` of the ends, in order; then all goes well."""

    def __init__(self, *fates: PyroMQError) -> None:
        self._fates = list(fates)
        self.told: list[tuple[int, int]] = []
        self.routes = SimpleNamespace(address=lambda broker: f"{broker}:10911")

    async def ask(self, address: str, request: EndTransaction, timeout_s: float) -> None:
        await asyncio.sleep(0)
        self.told.append((request.half_offset, request.decision))
        if self._fates:
            raise self._fates.pop(0)

    def doubt(self, address: str) -> None: ...


def end(line: Line, *halves: Handles, how: End = End.COMMIT) -> Ended:
    return asyncio.run(Ending(line, "group", Patience(5.0, 3)).end(halves, how))  # type: ignore[arg-type]


def test_every_half_is_ended() -> None:
    line = Line()
    assert end(line, handles(*range(1000)), handles(7, broker="b")).done == 1001
    assert line.told[:2] == [(0, 8), (1, 8)]
    assert end(line, handles(9), how=End.ROLLBACK).done == 1
    assert line.told[-1] == (9, 12)


def test_a_broker_of_ours_is_told_again() -> None:
    line = Line(CallTimeout("no answer"), Unreachable("broke off"))
    ended = end(line, handles(1))
    assert (ended.done, ended.left, len(line.told)) == (1, 0, 3)


def test_another_broker_is_told_once_and_asks_by_itself() -> None:
    line = Line(CallTimeout("no answer"))
    ended = end(line, handles(1, may_repeat=False))
    assert (ended.done, ended.left, len(line.told)) == (0, 1, 1)


def test_a_broker_that_stays_away_asks_when_it_is_back() -> None:
    assert end(Line(*[Unreachable("away")] * 10), handles(1)).left == 1


def test_a_decided_message_that_is_refused_is_an_error() -> None:
    ended = end(Line(NotFound("no such half")), handles(1, 2))
    assert ended.done == 1
    with pytest.raises(SendUnknown, match="batch 5 is decided, but 1 of its messages were not committed: no such half"):
        check_committed(ended, 5)


@pytest.mark.parametrize(("age_s", "told", "left"), [(0, 4, 0), (470, 4, 0), (490, 2, 2), (10_000, 2, 2)])
def test_near_the_end_of_the_patience_only_our_brokers_are_told(age_s: int, told: int, left: int) -> None:
    now_ms = 1_000_000_000
    none: Any = None
    transactions = Transactions(none, none, "group", none, 600, lambda: now_ms)
    halves = [handles(1, 2, may_repeat=True), handles(3, 4, may_repeat=False)]
    part = Written(4, "q", 5, 0, Attempt("a1", 4), halves, now_ms - age_s * 1000)
    chosen, for_questions = transactions._tellable([part])
    assert (sum(map(len, chosen)), for_questions) == (told, left)


# --- brokers ---------------------------------------------------------------------------------------------------------


class Figures:
    """A session with brokers that tell of themselves."""

    def __init__(self, **figures: str) -> None:
        self._figures = figures
        self.asked = 0
        self.routes = SimpleNamespace(address=lambda broker: f"{broker}:10911")

    async def ask(self, address: str, request: object) -> SimpleNamespace:
        self.asked += 1
        body = "{" + ",".join(f'"{name}":"{value}"' for name, value in self._figures.items()) + "}"
        return SimpleNamespace(body=f'{{"table":{body}}}'.encode())


def test_brokers_are_asked_once_what_they_can_do() -> None:
    session: Any = Figures(**{KNOWS_WRITERS: "true", "pyromqVersion": "1"})
    asyncio.run(check_knows_writers(session, ["a", "a"]))
    assert asyncio.run(is_ours(session, "a"))
    assert session.asked == 1


def test_a_broker_that_does_not_know_writers_is_refused() -> None:
    session: Any = Figures(brokerVersionDesc="V5_3_2")
    with pytest.raises(PyroMQError, match="'a' does not know repeated messages by their numbers"):
        asyncio.run(check_knows_writers(session, ["a"]))
    assert not asyncio.run(is_ours(session, "a"))


# --- the topic of decisions ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("route", [[("a", QUEUES), ("b", QUEUES)], [("a", QUEUES - 1)]])
def test_decisions_that_could_be_overlooked_are_not_made(route: list[tuple[str, int]]) -> None:
    queues = [SimpleNamespace(broker_name=name, read_queues=count) for name, count in route]

    async def of(topic: str) -> SimpleNamespace:
        assert topic == TOPIC
        return SimpleNamespace(queues=queues)

    outlet: Any = SimpleNamespace(session=SimpleNamespace(routes=SimpleNamespace(of=of)))
    topic = DecisionTopic(outlet, Patience(1.0, 1), lambda: 0)
    with pytest.raises(NotNow, match="must be on one broker with 8 queues"):
        asyncio.run(topic.queue("q"))


def test_a_query_whose_decisions_were_deleted_is_warned_of(caplog: pytest.LogCaptureFixture) -> None:
    """An earlier decision of its batch can no longer be found."""

    class Emptied:
        async def view(self, query: str, batch: int) -> View:
            return View(7)

        async def decide(self, query: str, batch: int, decision: BatchDecision) -> BatchDecision:
            return decision

    def commit(batch: int) -> None:
        transactions = Transactions(Line(), Emptied(), "group", Patience(5.0, 3), 30, lambda: 0)  # type: ignore[arg-type]
        asyncio.run(transactions.commit([Written(1, "q", batch, 0, Attempt("a", 1), [handles(1)])], batch))

    commit(0)
    assert "no decision of the query" not in caplog.text
    commit(3)
    assert "no decision of the query q is left" in caplog.text
