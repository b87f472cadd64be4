"""Requests of a sink on their way, to brokers that exist only here: they answer, refuse, fall silent or break off."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pyromq.client.sending.parcel import Parcel
from pyromq.client.sending.writer_identity import WriterTokens, writer_identity
from pyromq.errors import (
    CallTimeout,
    IllegalMessage,
    NoPermission,
    NotNow,
    PyroMQError,
    SendFailed,
    SendUnknown,
    TopicNotFound,
    Unreachable,
    WriterNotIssued,
)
from pyromq.model.queue import MessageQueue
from pyromq.spark.sink import outlet
from pyromq.spark.sink.delivery import Batches, Singles
from pyromq.spark.sink.outlet import Patience, Tries, judge
from pyromq.wire.codes import ResponseCode
from pyromq.wire.command import Command

QUEUE, OTHER = MessageQueue("orders", "a", 0), MessageQueue("orders", "b", 0)
OK, BUSY, ILLEGAL = ResponseCode.SUCCESS, ResponseCode.SYSTEM_BUSY, ResponseCode.MESSAGE_ILLEGAL

#: The outcome of a request: an answer with this code, an error in its place, or an error before it leaves.
Fate = int | PyroMQError


class Brokers:
    """In place of an `Outlet`. `fates` are used up one after the other; then all goes well.

    Like a broker that knows rows by their numbers: a number is stored once, and only behind the one before it.
    """

    def __init__(self, *fates: Fate, away: str = "") -> None:
        self.fates = list(fates)
        self.away = away
        self.stored: list[tuple[str, bytes]] = []
        self.received: list[bytes] = []
        self.most_under_way = 0
        self._under_way = 0

    async def send(
        self, parcel: Parcel, queue: MessageQueue, timeout_s: float, writer: object = None
    ) -> asyncio.Future[Command]:
        if queue.broker_name == self.away:
            raise Unreachable(f"{self.away} is away")
        await asyncio.sleep(0)
        return self._take(parcel, queue)

    def _take(self, parcel: Parcel, queue: MessageQueue) -> asyncio.Future[Command]:
        self.received.append(bytes(parcel.body))
        self._under_way += 1
        self.most_under_way = max(self.most_under_way, self._under_way)
        fate = self.fates.pop(0) if self.fates else OK
        answer = asyncio.get_running_loop().create_future()
        asyncio.get_running_loop().call_later(0.001, self._answer, answer, fate, parcel, queue)
        return answer

    def _answer(self, answer: asyncio.Future[Command], fate: Fate, parcel: Parcel, queue: MessageQueue) -> None:
        self._under_way -= 1
        if answer.cancelled():
            return
        if isinstance(fate, PyroMQError):
            if isinstance(fate, CallTimeout):  # it was carried out, and only the answer is lost
                self._store(parcel, queue)
            answer.set_exception(fate)
        else:
            code = self._store(parcel, queue) if fate == OK else fate
            answer.set_result(Command(code=code, reason="said so"))

    def _store(self, parcel: Parcel, queue: MessageQueue) -> int:
        self.stored.append((queue.broker_name, bytes(parcel.body)))
        return OK

    def send_now(self, parcel: Parcel, queue: MessageQueue, timeout_s: float) -> asyncio.Future[Command] | None:
        return None if queue.broker_name == self.away else self._take(parcel, queue)

    async def look_again(self, queue: MessageQueue, error: PyroMQError) -> None:
        await asyncio.sleep(0)


class Numbering(Brokers):
    """Stores each number once, in order."""

    def __init__(self, *fates: Fate) -> None:
        super().__init__(*fates)
        self.last = -1

    def _store(self, parcel: Parcel, queue: MessageQueue) -> int:
        number = int(parcel.body)
        if number > self.last + 1:
            return ILLEGAL
        if number == self.last + 1:
            self.last = number
            super()._store(parcel, queue)
        return OK


@pytest.fixture(autouse=True)
def _impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outlet, "PAUSE_SECONDS", 0.0001)


def parcel(body: bytes) -> Parcel:
    return Parcel("orders", body, "", (), 0, batch=True)


def send_all(brokers: Any, bodies: list[bytes], *, retries: int = 50, in_flight: int = 4, others: bool = False) -> None:
    async def sending() -> None:
        batches = Batches(brokers, Patience(5.0, retries), in_flight)
        try:
            for body in bodies:
                await batches.put(parcel(body), QUEUE, (QUEUE, OTHER) if others else ())
            await batches.finish()
        finally:
            await batches.cancel()

    asyncio.run(sending())


BODIES = [b"%d" % number for number in range(12)]


def test_all_are_stored_and_some_are_under_way_at_once() -> None:
    brokers = Brokers()
    send_all(brokers, BODIES)
    assert [body for _, body in brokers.stored] == BODIES
    assert brokers.most_under_way == 4


def test_what_is_refused_for_now_is_sent_again() -> None:
    brokers = Brokers(OK, BUSY, OK, BUSY)
    send_all(brokers, BODIES)
    assert sorted(body for _, body in brokers.stored) == sorted(BODIES)


fate = st.sampled_from([OK, BUSY, ResponseCode.SYSTEM_ERROR]) | st.sampled_from(["silent", "broken"])


@settings(max_examples=60, deadline=None)
@given(fates=st.lists(fate, max_size=25), in_flight=st.integers(1, 6))
def test_numbered_rows_are_stored_once_and_in_order_whatever_fails(fates: list[Any], in_flight: int) -> None:
    kinds = {"silent": CallTimeout("no answer"), "broken": Unreachable("broke off")}
    brokers = Numbering(*(kinds.get(one, one) for one in fates))
    send_all(brokers, BODIES, in_flight=in_flight)
    assert [body for _, body in brokers.stored] == BODIES


def test_a_final_refusal_ends_the_task_with_what_the_broker_said() -> None:
    with pytest.raises(IllegalMessage, match="a: said so"):
        send_all(Brokers(OK, ILLEGAL), BODIES)


def test_the_first_that_failed_decides_not_those_behind_it() -> None:
    """The broker refused the second only because the first was missing."""
    brokers = Numbering(BUSY)
    send_all(brokers, BODIES[:2])
    assert [body for _, body in brokers.stored] == BODIES[:2]


def test_patience_has_an_end() -> None:
    with pytest.raises(SendFailed, match=r"messages to 'orders' are not stored, after 3 tries .*: a: said so"):
        send_all(Brokers(*[BUSY] * 50), [b"0"], retries=2)
    with pytest.raises(SendUnknown, match="it is not known whether messages to 'orders' are stored"):
        send_all(Brokers(*[CallTimeout("no answer")] * 50), [b"0"], retries=2)


def test_a_row_that_is_free_goes_to_another_broker() -> None:
    brokers = Brokers(away="a")
    send_all(brokers, BODIES[:3], others=True)
    assert brokers.stored == [("b", body) for body in BODIES[:3]]


def test_a_row_that_is_not_free_waits_for_its_queue() -> None:
    with pytest.raises(SendFailed, match="a is away"):
        send_all(Brokers(away="a"), [b"0"], retries=3)


# --- alone -----------------------------------------------------------------------------------------------------------


def alone(brokers: Any, retries: int = 50) -> list[bool]:
    """Sends one message; for each try, whether the one before it may have been stored."""
    made: list[bool] = []

    def make(is_doubtful: bool) -> Parcel:
        made.append(is_doubtful)
        return parcel(b"x")

    async def sending() -> None:
        singles = Singles(brokers, Patience(5.0, retries), 2)
        answers: list[Command] = []
        await singles.put(make, QUEUE, answers.append)
        await singles.finish()
        assert len(answers) == 1

    asyncio.run(sending())
    return made


def test_a_message_alone_is_sent_until_it_is_stored() -> None:
    assert alone(Brokers()) == [False]
    assert alone(Brokers(CallTimeout("no answer"), Unreachable("broke off"))) == [False, True, True]


def test_its_error_reaches_whoever_waits() -> None:
    with pytest.raises(IllegalMessage, match="said so"):
        alone(Brokers(ILLEGAL))
    with pytest.raises(SendFailed, match="a is away"):
        alone(Brokers(away="a"), retries=1)


# --- judging ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        (ResponseCode.FLUSH_DISK_TIMEOUT, SendUnknown),
        (ResponseCode.SLAVE_NOT_AVAILABLE, SendUnknown),
        (ResponseCode.NO_PERMISSION, NoPermission),
        (ResponseCode.TOPIC_NOT_EXIST, TopicNotFound),
    ],
)
def test_some_answers_are_final(code: int, kind: type[PyroMQError]) -> None:
    with pytest.raises(kind):
        judge(Command(code=code, reason="no"), Tries(0.0), "a")


def test_a_broker_that_knows_no_delivery_times_is_asked_once() -> None:
    said = "timer message is under flow control or timerWheelEnable is false"
    with pytest.raises(PyroMQError, match="use a delay_level instead"):
        judge(Command(code=ResponseCode.SYSTEM_ERROR, reason=said), Tries(0.0), "a")


def test_what_did_not_leave_is_not_stored() -> None:
    tries = Tries(0.0)
    judge(Unreachable("away"), tries, "a", was_sent=False)
    assert not tries.may_be_stored
    judge(Unreachable("broke off"), tries, "a")
    assert tries.may_be_stored


# --- identities of writers -------------------------------------------------------------------------------------------


def test_a_token_of_an_earlier_life_of_a_broker_is_asked_for_again() -> None:
    refusal = Command(code=ResponseCode.NO_PERMISSION, reason="ask again", fields={"writerToken": "renew"})
    error = judge(refusal, Tries(0.0), "a")
    assert isinstance(error, WriterNotIssued), "it is tried again, and nothing was stored"
    with pytest.raises(NoPermission):
        judge(Command(code=ResponseCode.NO_PERMISSION, reason="never"), Tries(0.0), "a")


class Issuing:
    """In place of a `Session`."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.problem: PyroMQError | None = None

    async def ask(self, address: str, request: Any) -> Command:
        self.asked.append(address)
        if self.problem is not None:
            raise self.problem
        return Command(code=OK, fields={"writer": "w", "writerToken": f"token {len(self.asked)}"})


def test_a_token_is_asked_for_once_at_each_broker_and_again_when_it_was_refused() -> None:
    async def story() -> None:
        session = Issuing()
        tokens = WriterTokens(session)  # type: ignore[arg-type]
        identity = writer_identity("query")
        for _ in range(3):
            assert await tokens.token("a:1", identity) == "token 1"
        assert await tokens.token("b:1", identity) == "token 2"
        tokens.forget("a:1")
        assert await tokens.token("a:1", identity) == "token 3"
        assert await tokens.token("b:1", identity) == "token 2"
        tokens.forget("a:1")
        session.problem = NotNow("not now")
        with pytest.raises(Unreachable, match="issues no identity"):
            await tokens.token("a:1", identity)

    asyncio.run(story())
