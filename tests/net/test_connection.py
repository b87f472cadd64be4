"""One connection with a scripted transport: turns, back-pressure, and everything that ends oddly."""

from __future__ import annotations

import asyncio
import gc
import logging
import struct
import tracemalloc
import warnings
from collections.abc import Awaitable, Callable

import pytest

from net.fakes import FakeTransport, frames_in, request, run, turns
from pyromq.config import LimitsConfig
from pyromq.errors import CallTimeout, TopicNotFound, Unreachable
from pyromq.net.connection import WAITING_BYTES, WRITE_BYTES, Connection
from pyromq.net.endpoint import READ_BYTES, Home
from pyromq.net.outbox import CHUNK_BYTES
from pyromq.net.peer import Peer
from pyromq.net.service import Answer
from pyromq.wire.codes import ResponseCode
from pyromq.wire.command import FLAG_ANSWER, FLAG_ONE_WAY, Command, Serialization
from pyromq.wire.frames import encode_frame
from pyromq.wire.requests.client import GetMinOffset, NotifyMembersChanged
from pyromq.wire.responses import OffsetAnswer, Response

KIB, MIB = 1 << 10, 1 << 20


def echo(command: Command, _: Peer) -> Answer:
    return Response(body=command.body, more={"id": str(command.correlation_id)})


class Later:
    """Answers on command."""

    def __init__(self) -> None:
        self.waiting: list[asyncio.Future[Response | None]] = []

    def __call__(self, command: Command, peer: Peer) -> Answer:
        future: asyncio.Future[Response | None] = asyncio.get_running_loop().create_future()
        self.waiting.append(future)
        return future

    def answer_all(self) -> None:
        for future in self.waiting:
            if not future.done():
                future.set_result(Response())


# --- turns -----------------------------------------------------------------------------------------------------------


def test_all_requests_of_a_read_are_answered_in_one_write_each_in_its_own_form() -> None:
    async def story() -> None:
        peer = FakeTransport(Home(echo))
        peer.feed(b"".join(request(correlation_id=number, form=number % 2) for number in range(50)))
        assert len(peer.writes) == 1
        assert [one.correlation_id for one in peer.answers] == list(range(50))
        assert [one.serialization for one in peer.answers] == [Serialization(number % 2) for number in range(50)]
        assert all(one.flags == FLAG_ANSWER for one in peer.answers)

    run(story())


def test_bytes_may_come_one_by_one() -> None:
    async def story() -> None:
        home = Home(echo)
        peer = FakeTransport(home)
        for byte in request(body=b"hello") + request(correlation_id=2, form=1):
            peer.feed(bytes([byte]))
        assert [one.body for one in peer.answers] == [b"hello", b""]
        assert home.partial_bytes == 0
        assert not home.partial

    run(story())


def test_answers_that_become_ready_in_one_turn_share_a_write() -> None:
    async def story() -> None:
        later = Later()
        peer = FakeTransport(Home(later))
        peer.feed(request(correlation_id=1) + request(correlation_id=2) + request(correlation_id=3))
        assert not peer.writes
        later.answer_all()
        peer.connection.tell(NotifyMembersChanged(group="g"))
        await turns()
        assert len(peer.writes) == 1
        assert len(peer.answers) == 4

    run(story())


def test_a_one_way_request_is_never_answered() -> None:
    async def story() -> None:
        later = Later()
        for handle in (echo, later, lambda *_: 1 / 0):
            peer = FakeTransport(Home(handle))
            peer.feed(request(flags=FLAG_ONE_WAY))
            later.answer_all()
            await turns()
            assert not peer.writes

    run(story())


def test_large_answers_do_not_pile_up_within_a_turn() -> None:
    async def story() -> None:
        peer = FakeTransport(Home(lambda *_: Response(body=[memoryview(bytes(MIB))])))
        peer.feed(b"".join(request(correlation_id=number) for number in range(8)))
        assert len(peer.answers) == 4, "other connections go first"
        await turns()
        assert len(peer.answers) == 8
        assert max(map(len, peer.writes)) <= CHUNK_BYTES

    run(story())


# --- handlers that end oddly -----------------------------------------------------------------------------------------


class OutOfBand(BaseException):
    pass


async def _raise(error: BaseException) -> Response:
    raise error


def _now(error: BaseException) -> Callable[[Command, Peer], Answer]:
    def handle(_: Command, __: Peer) -> Answer:
        raise error

    return handle


def _soon(error: BaseException) -> Callable[[Command, Peer], Answer]:
    return lambda *_: _raise(error)


@pytest.mark.parametrize("when", [_now, _soon])
@pytest.mark.parametrize(
    ("error", "code"),
    [
        (TopicNotFound("no topic t"), ResponseCode.TOPIC_NOT_EXIST),
        (ZeroDivisionError("secret"), ResponseCode.SYSTEM_ERROR),
        (asyncio.CancelledError(), ResponseCode.SYSTEM_ERROR),
    ],
)
def test_what_a_handler_raises_becomes_an_answer(
    when: Callable[[BaseException], Callable[[Command, Peer], Answer]], error: BaseException, code: int
) -> None:
    async def story() -> None:
        peer = FakeTransport(Home(when(error)))
        peer.feed(request(correlation_id=9))
        await turns()
        (answer,) = peer.answers
        assert (answer.code, answer.correlation_id) == (code, 9)
        assert "secret" not in (answer.reason or "")
        assert peer.connection.is_open

    run(story())


def test_an_error_that_is_no_exception_is_an_answer_too() -> None:
    async def story() -> None:
        peer = FakeTransport(Home(_soon(OutOfBand())))
        peer.feed(request())
        await turns()
        assert [one.code for one in peer.answers] == [ResponseCode.SYSTEM_ERROR]

    run(story())


@pytest.mark.parametrize("form", [0, 1])
@pytest.mark.parametrize(
    "nonsense",
    ["text", 17, Response(body=None), Response(more={"a": object()}), Response(more={5: "x"})],  # type: ignore
)
def test_an_answer_that_cannot_be_written_is_a_system_error(nonsense: Answer, form: int) -> None:
    async def story() -> None:
        peer = FakeTransport(Home(lambda *_: nonsense))
        peer.feed(request(form=form) + request(correlation_id=2, form=form))
        await turns()
        assert [one.code for one in peer.answers] == [ResponseCode.SYSTEM_ERROR] * 2

    run(story())


def test_a_future_that_somebody_else_cancels_is_answered() -> None:
    async def story() -> None:
        later = Later()
        peer = FakeTransport(Home(later))
        peer.feed(request())
        later.waiting[0].cancel()
        await turns()
        assert [one.code for one in peer.answers] == [ResponseCode.SYSTEM_ERROR]

    run(story())


def test_a_coroutine_that_never_started_leaves_no_warning_when_the_connection_dies() -> None:
    async def story() -> None:
        async def never() -> Response:
            raise AssertionError("the peer is gone")

        peer = FakeTransport(Home(lambda *_: never()))
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            peer.feed(request())
            peer.connection.connection_lost(None)
            await turns()
            gc.collect()

    run(story())


def test_what_waits_is_cancelled_when_the_peer_goes_unless_it_was_one_way() -> None:
    async def story() -> None:
        later, home = Later(), Home(None)
        home.handle = later
        peer = FakeTransport(home)
        peer.feed(request() + request(flags=FLAG_ONE_WAY))
        peer.connection.connection_lost(None)
        asked, told = later.waiting
        await turns()
        assert asked.cancelled()
        assert not told.done()
        assert home.orphans == {told}
        later.answer_all()
        await turns()
        assert not home.orphans

    run(story())


def test_a_handler_may_close_its_own_peer_and_its_answer_still_leaves() -> None:
    async def story() -> None:
        def handle(_: Command, peer: Peer) -> Answer:
            peer.close("enough")
            assert not peer.is_open
            return Response()

        peer = FakeTransport(Home(handle))
        peer.feed(request(correlation_id=1) + request(correlation_id=2))
        await turns()
        assert [one.correlation_id for one in peer.answers] == [1]
        assert peer.is_closing()

    run(story())


def test_a_handler_may_abort_its_own_peer() -> None:
    async def story() -> None:
        def handle(_: Command, peer: Peer) -> Answer:
            assert isinstance(peer, Connection)
            peer.abort("enough")
            return Response()

        home = Home(handle)
        peer = FakeTransport(home)
        peer.feed(request() + request()[:10])
        peer = FakeTransport(home)
        peer.feed(request()[:10])
        peer.feed(request()[10:] + request())
        await turns()
        assert not peer.writes
        assert home.partial_bytes == 0

    run(story())


def test_a_handler_may_tell_its_peer_something_before_it_answers() -> None:
    async def story() -> None:
        def handle(_: Command, peer: Peer) -> Answer:
            peer.tell(NotifyMembersChanged(group="g"))
            return Response()

        peer = FakeTransport(Home(handle))
        peer.feed(request(correlation_id=5))
        assert len(peer.writes) == 1
        told, answered = peer.answers
        assert (told.code, told.is_one_way, answered.correlation_id) == (40, True, 5)

    run(story())


# --- asking the other end --------------------------------------------------------------------------------------------


def answer(correlation_id: int) -> bytes:
    return encode_frame(Command(code=0, flags=FLAG_ANSWER, correlation_id=correlation_id))


async def ask(connection: Connection, timeout_s: float = 5.0) -> Command:
    return await connection.call(GetMinOffset(topic="t", queue_id=0), timeout_s)


def test_answers_find_their_calls_in_any_order() -> None:
    async def story() -> None:
        peer = FakeTransport(Home(None))
        calls = [asyncio.ensure_future(ask(peer.connection)) for _ in range(3)]
        await turns()
        ids = [one.correlation_id for one in peer.answers]
        peer.feed(b"".join(answer(number) for number in reversed(ids)))
        assert [(await call).correlation_id for call in calls] == ids

    run(story())


def test_an_answer_that_comes_late_or_that_nobody_waits_for_is_ignored() -> None:
    async def story() -> None:
        peer = FakeTransport(Home(None))
        with pytest.raises(CallTimeout, match=r"GET_MIN_OFFSET within 0\.01 s"):
            await ask(peer.connection, timeout_s=0.01)
        peer.feed(answer(1) + answer(1) + answer(77) + answer(-5))
        assert peer.connection.is_open
        call = asyncio.ensure_future(ask(peer.connection))
        await turns()
        peer.feed(answer(2) + answer(2))
        assert (await call).correlation_id == 2

    run(story())


def test_calls_fail_when_the_connection_breaks_and_on_one_that_is_closed() -> None:
    async def story() -> None:
        peer = FakeTransport(Home(None))
        call = asyncio.ensure_future(ask(peer.connection))
        await turns()
        peer.connection.connection_lost(None)
        with pytest.raises(Unreachable, match="broke"):
            await call
        with pytest.raises(Unreachable, match="closed"):
            await ask(peer.connection)
        peer.connection.tell(NotifyMembersChanged(group="g"))  # nothing happens

    run(story())


def ask_soon(connection: Connection, seconds: float = 5.0) -> asyncio.Future[Command]:
    """A frame that was made elsewhere, and no timer for it."""
    correlation_id = connection.next_id()
    due = asyncio.get_running_loop().time() + seconds
    return connection.call_nowait(correlation_id, request(correlation_id=correlation_id), due)


def test_frames_that_were_made_elsewhere_leave_in_one_write_and_find_their_answers() -> None:
    async def story() -> None:
        peer = FakeTransport(Home(None))
        calls = [ask_soon(peer.connection) for _ in range(3)]
        await turns()
        assert len(peer.writes) == 1
        peer.feed(answer(3) + answer(1) + answer(2))
        assert [(await call).correlation_id for call in calls] == [1, 2, 3]

    run(story())


def test_of_calls_without_timers_only_those_that_are_too_late_fail() -> None:
    async def story() -> None:
        peer = FakeTransport(Home(None))
        patient, hasty = ask_soon(peer.connection), ask_soon(peer.connection, 0.01)
        with pytest.raises(CallTimeout, match="gave no answer in time"):
            await hasty
        peer.feed(answer(2) + answer(1))
        assert (await patient).correlation_id == 1
        assert not peer.connection._calls
        assert not peer.connection._due

    run(story())


def test_calls_without_timers_fail_when_the_connection_breaks_and_on_one_that_is_closed() -> None:
    async def story() -> None:
        peer = FakeTransport(Home(None))
        call = ask_soon(peer.connection)
        peer.connection.connection_lost(None)
        with pytest.raises(Unreachable, match="broke"):
            await call
        with pytest.raises(Unreachable, match="closed"):
            await ask_soon(peer.connection)

    run(story())


def test_every_request_is_signed_by_a_client_that_signs() -> None:
    async def story() -> None:
        home = Home(None)
        home.sign = lambda command: command.fields.update(by="me")
        peer = FakeTransport(home)
        call = asyncio.ensure_future(ask(peer.connection))
        peer.connection.tell(NotifyMembersChanged(group="g"))
        await turns()
        assert [one.fields["by"] for one in peer.answers] == ["me", "me"]
        peer.feed(b"".join(answer(one.correlation_id) for one in peer.answers))
        await call

    run(story())


def test_correlation_ids_go_round_and_pass_over_those_in_use() -> None:
    async def story() -> None:
        peer = FakeTransport(Home(None))
        calls = [asyncio.ensure_future(ask(peer.connection)) for _ in range(2)]
        await turns()
        peer.connection._last_id = 0x7FFFFFFE
        calls += [asyncio.ensure_future(ask(peer.connection)) for _ in range(3)]
        await turns()
        ids = [one.correlation_id for one in peer.answers]
        assert ids == [1, 2, 0x7FFFFFFF, 0, 3]
        peer.feed(b"".join(map(answer, ids)))
        await asyncio.gather(*calls)

    run(story())


def test_a_client_without_a_handler_says_that_it_supports_nothing() -> None:
    async def story() -> None:
        peer = FakeTransport(Home(None))
        peer.feed(request(code=40) + request(code=40, flags=FLAG_ONE_WAY))
        assert [one.code for one in peer.answers] == [ResponseCode.REQUEST_CODE_NOT_SUPPORTED]

    run(story())


# --- back-pressure ---------------------------------------------------------------------------------------------------

SMALL = LimitsConfig(
    max_frame_bytes=64 * KIB,
    max_header_bytes=4 * KIB,
    max_in_flight_bytes_per_connection=64 * KIB,
    max_unsent_bytes_per_connection=64 * KIB,
    max_unsent_bytes=1 * MIB,
    max_partial_bytes=100 * KIB,
)


def test_a_peer_that_asks_too_much_at_once_is_not_read_from_until_answers_are_ready() -> None:
    async def story() -> None:
        later = Later()
        peer = FakeTransport(Home(later, SMALL))
        peer.feed(b"".join(request(correlation_id=number) for number in range(100)))
        taken = len(later.waiting)
        assert 10 < taken < 20  # each costs WAITING_BYTES
        assert peer.is_reading_paused
        for _ in range(20):
            later.answer_all()
            await turns()
        assert len(later.waiting) == 100
        assert not peer.is_reading_paused
        assert [one.correlation_id for one in peer.answers] == list(range(100))
        assert peer.connection._in_flight_bytes == 0

    assert SMALL.max_in_flight_bytes_per_connection == WAITING_BYTES * 16
    run(story())


def test_a_peer_that_does_not_take_its_answers_is_not_read_from_until_it_has() -> None:
    async def story() -> None:
        home = Home(lambda *_: Response(body=bytes(10 * KIB)), SMALL)
        peer = FakeTransport(home)
        peer.is_stuck = True
        for number in range(20):
            if not peer.is_reading_paused:
                peer.feed(request(correlation_id=number))
        assert peer.is_reading_paused
        assert SMALL.max_unsent_bytes_per_connection < home.unsent_bytes < 80 * KIB
        peer.take_all()
        assert home.unsent_bytes == 0
        assert not peer.is_reading_paused
        peer.feed(request(correlation_id=99))
        assert peer.answers[-1].correlation_id == 99

    run(story())


def test_what_lay_unread_while_a_peer_was_behind_is_looked_at_again() -> None:
    async def story() -> None:
        handled: list[int] = []

        def handle(command: Command, _: Peer) -> Answer:
            handled.append(command.correlation_id)
            return Response(body=bytes(WRITE_BYTES))

        home = Home(handle, LimitsConfig(max_unsent_bytes_per_connection=MIB))
        peer = FakeTransport(home)
        peer.is_stuck = True
        peer.feed(b"".join(request(correlation_id=number) for number in range(5)) + request()[:7])
        assert handled == [0]
        assert home.partial_bytes > 0
        for answered in range(2, 6):
            peer.take_all()
            peer.is_stuck = True
            await turns()
            assert handled == list(range(answered))
        assert home.partial_bytes == 7
        peer.take_all()
        await turns()
        peer.feed(request()[7:])
        assert len(peer.answers) == 6

    run(story())


def test_what_a_peer_takes_in_chunks_arrives_whole_before_the_connection_closes() -> None:
    async def story() -> None:
        home = Home(lambda *_: Response(body=bytes(range(256)) * (4 * KIB)))
        peer = FakeTransport(home)
        peer.is_stuck = True
        peer.feed(request())
        peer.connection.close("a test")
        for _ in range(20):
            assert not peer.is_closing() or peer.unsent == 0
            assert home.unsent_bytes == peer.connection.unsent_bytes == peer.connection.backlog
            peer.take_all()
            peer.is_stuck = True
            await turns()
        assert peer.is_closing()
        assert peer.answers[0].body == bytes(range(256)) * (4 * KIB)
        assert home.unsent_bytes == 0

    run(story())


def test_memory_of_a_peer_that_is_cut_off_is_free_in_the_same_turn() -> None:
    async def story() -> None:
        home = Home(lambda *_: Response(body=bytes(MIB)), LimitsConfig(max_unsent_bytes_per_connection=2 * MIB,
                                                                       max_unsent_bytes=4 * MIB * 4 // 3))  # fmt: skip
        tracemalloc.start()
        peers = [FakeTransport(home, ("10.0.0.1", port)) for port in range(1, 40)]
        for peer in peers:
            peer.is_stuck = True
            peer.feed(request())
            peer.writes.clear()
        held = tracemalloc.get_traced_memory()[0]
        tracemalloc.stop()
        assert sum(peer.was_aborted for peer in peers) == 36
        assert home.unsent_bytes <= 4 * MIB
        assert held < 6 * MIB

    run(story())


def test_above_half_of_the_limit_for_all_nobody_who_is_behind_is_read_from() -> None:
    async def story() -> None:
        home = Home(lambda *_: Response(body=bytes(15 * KIB)), SMALL)
        peers = [FakeTransport(home) for _ in range(40)]
        for peer in peers:
            peer.is_stuck = True
            peer.feed(request())
        assert [peer.is_reading_paused for peer in peers] == [False] * 33 + [True] * 7
        for peer in peers:
            peer.take_all()
        assert not any(peer.is_reading_paused for peer in peers)

    run(story())


def test_above_the_limit_for_all_the_one_that_is_most_behind_is_cut_off(caplog: pytest.LogCaptureFixture) -> None:
    async def story() -> None:
        sizes = iter([300, 500, 200, 100])
        home = Home(lambda *_: Response(body=bytes(next(sizes) * KIB)), SMALL)
        peers = [FakeTransport(home, ("10.0.0.1", port)) for port in range(4)]
        for peer in peers:
            peer.is_stuck = True
            peer.feed(request())
        assert [peer.was_aborted for peer in peers] == [False, True, False, False]
        assert home.unsent_bytes < 620 * KIB
        await turns()
        assert home.unsent_bytes == sum(peer.connection.unsent_bytes for peer in peers if not peer.was_aborted)
        assert all(peer.unsent <= CHUNK_BYTES for peer in peers), "transports hold their memory until they are closed"

    run(story())
    assert len(caplog.messages) == 1
    assert "10.0.0.1:1 closed: it has not taken" in caplog.text


def test_above_the_limit_of_unfinished_requests_the_oldest_is_cut_off() -> None:
    async def story() -> None:
        home = Home(echo, SMALL)
        peers = [FakeTransport(home) for _ in range(3)]
        half = request(body=bytes(60 * KIB))[: 40 * KIB]
        peers[0].feed(half)
        peers[1].feed(half)
        peers[0].feed(request(body=bytes(60 * KIB))[40 * KIB :] + half)  # is finished, and a younger one begun
        assert home.partial_bytes == 80 * KIB
        peers[2].feed(half)
        assert [peer.was_aborted for peer in peers] == [False, True, False]
        assert home.partial_bytes == 80 * KIB
        for peer in peers:
            peer.connection.connection_lost(None)
        assert home.partial_bytes == 0
        assert not home.partial

    run(story())


# --- bad input -------------------------------------------------------------------------------------------------------


def test_a_bad_frame_closes_after_the_good_ones_were_answered(caplog: pytest.LogCaptureFixture) -> None:
    async def story() -> None:
        home = Home(echo)
        peer = FakeTransport(home)
        peer.feed(request(correlation_id=1) + b"GET / HTTP/1.1\r\n" + request(correlation_id=2))
        assert [one.correlation_id for one in peer.answers] == [1]
        assert peer.is_closing()
        assert home.partial_bytes == 0
        await turns()
        assert peer.connection not in home.connections

    with caplog.at_level(logging.INFO):
        run(story())
    assert caplog.messages == [
        "connection of 10.0.0.1:5000 closed: this is the beginning of HTTP; "
        "this port speaks RocketMQ's remoting protocol"
    ]


def test_limits_of_frames_are_those_of_the_configuration() -> None:
    async def story() -> None:
        many = {f"f{number}": "" for number in range(65)}
        limits = LimitsConfig(
            max_frame_bytes=64 * KIB, max_header_bytes=4 * KIB, max_header_fields=64,
            max_in_flight_bytes_per_connection=64 * KIB,
        )  # fmt: skip
        for bad in (request(body=bytes(64 * KIB)), request(topic="x" * 4 * KIB)):
            peer = FakeTransport(Home(echo, limits))
            peer.feed(request())
            assert peer.connection.is_open
            peer.feed(bad)
            assert peer.is_closing()
        peer = FakeTransport(Home(echo, limits))
        peer.feed(request(**many) + request(form=1, **many))
        assert ["limit" in (one.reason or "") for one in peer.answers] == [True, True]

    run(story())


def framed(header: bytes, form: int = 0, body: bytes = b"") -> bytes:
    size = 4 + len(header) + len(body)
    return size.to_bytes(4, "big") + (form << 24 | len(header)).to_bytes(4, "big") + header + body


CUT_OFF = struct.pack(">hBhiiii", 10, 0, 0, 7, 0, 0, 100)


@pytest.mark.parametrize(
    ("bad", "form", "why"),
    [
        (b'{"code":10,"opaque":7,"extFields":{"a":["b"]}}', 0, "neither text nor a number"),
        (b'{"code":10,"opaque":7,"extFields":17}', 0, "extFields are not an object"),
        (b'{"code":"10","opaque":7}', 0, "must be whole numbers"),
        (CUT_OFF, 1, "says 100"),
    ],
)
def test_a_request_with_a_number_and_something_wrong_is_told_so_and_those_behind_it_are_answered(
    bad: bytes, form: int, why: str, caplog: pytest.LogCaptureFixture
) -> None:
    async def story() -> None:
        peer = FakeTransport(Home(echo))
        peer.feed(request(correlation_id=6) + framed(bad, form, b"body") + request(correlation_id=8))
        refused = peer.answers[1]
        assert [one.correlation_id for one in peer.answers] == [6, 7, 8]
        assert (refused.code, refused.serialization) == (ResponseCode.INVALID_PARAMETER, form)
        assert why in (refused.reason or "")
        assert peer.connection.is_open

    with caplog.at_level(logging.INFO):
        run(story())
    (line,) = caplog.messages
    assert line.startswith("a request of 10.0.0.1:5000 is refused: ")
    assert why in line


def test_one_that_wants_no_answer_gets_none_and_one_that_was_to_be_an_answer_ends_the_connection() -> None:
    async def story() -> None:
        peer = FakeTransport(Home(echo))
        peer.feed(framed(b'{"opaque":7,"flag":2,"extFields":1}') + request(correlation_id=8))
        assert [one.correlation_id for one in peer.answers] == [8]
        peer.feed(framed(b'{"opaque":7,"flag":1,"extFields":1}') + request(correlation_id=9))
        assert [one.correlation_id for one in peer.answers] == [8]
        assert peer.is_closing()

    run(story())


@pytest.mark.parametrize(
    "header", [b"17", b'{"extFields":[1]}', b'{"opaque":1,"flag":1,"extFields":[1]}', b'{"opaque":1,"extFields":[1]}']
)
def test_what_was_wrong_is_forgotten_at_once(header: bytes) -> None:
    """Not when the collector of cycles comes: a header may be large."""

    async def story() -> None:
        peer = FakeTransport(Home(echo))
        gc.collect()
        peer.feed(framed(header))
        assert gc.collect() == 0

    gc.disable()
    try:
        run(story())
    finally:
        gc.enable()


@pytest.mark.parametrize(
    "header", [b'{"code":10,"extFields":1}', b'{"opaque":2147483648}', b'{"opaque":7,"flag":"x"}', b"17"]
)
def test_a_request_without_a_number_ends_the_connection(header: bytes) -> None:
    async def story() -> None:
        peer = FakeTransport(Home(echo))
        peer.feed(framed(header) + request(correlation_id=8))
        assert peer.answers == []
        assert peer.is_closing()

    run(story())


# --- the seam for a compiled path ------------------------------------------------------------------------------------


class KnowsOdd:
    """Handles requests with odd ids; everything else is left to the ordinary path."""

    def take(self, data: memoryview, at: int, connection: Connection) -> int:
        while len(data) - at >= 8:
            size = int.from_bytes(data[at : at + 4], "big") + 4
            if at + size > len(data):
                break
            (command,) = frames_in(bytes(data[at : at + size]))
            if command.correlation_id % 2 == 0:
                break
            at += size
            frame = encode_frame(
                Command(code=0, flags=FLAG_ANSWER, correlation_id=command.correlation_id, reason="fast")
            )
            if not connection.put_bytes(frame):
                break
        return at


def test_a_fast_path_takes_what_it_knows_and_its_answers_leave_in_order_with_the_others() -> None:
    async def story() -> None:
        home = Home(echo)
        home.fast_path = KnowsOdd()
        peer = FakeTransport(home)
        data = b"".join(request(correlation_id=number) for number in (1, 3, 2, 5, 7, 9, 4))
        peer.feed(data)
        assert len(peer.writes) == 1
        assert [one.correlation_id for one in peer.answers] == [1, 3, 2, 5, 7, 9, 4]
        assert [one.reason == "fast" for one in peer.answers] == [True, True, False, True, True, True, False]
        for byte in data:
            peer.feed(bytes([byte]))
        assert len(peer.answers) == 14
        peer.feed(b"\0\0\0\0")
        assert peer.is_closing()

    run(story())


def test_ready_made_bytes_leave_at_the_end_of_the_turn() -> None:
    async def story() -> None:
        peer = FakeTransport(Home(None))
        assert peer.connection.put_bytes(answer(1))
        assert peer.connection.put_bytes(answer(2))
        assert not peer.writes
        await turns()
        assert len(peer.writes) == 1

    run(story())


# --- the end ---------------------------------------------------------------------------------------------------------


def test_finishing_waits_for_answers_says_all_and_then_closes() -> None:
    async def story() -> None:
        later = Later()
        peer = FakeTransport(Home(later))
        peer.feed(request(correlation_id=4))
        finishing = asyncio.ensure_future(peer.connection.finish())
        await turns()
        assert not peer.has_said_all
        later.answer_all()
        await turns(10)
        assert [one.correlation_id for one in peer.answers] == [4]
        assert peer.has_said_all
        peer.feed(request(correlation_id=5))  # the peer has not heard it yet: read, and thrown away
        peer.connection.connection_lost(None)
        await finishing

    run(story())


def test_a_buffer_serves_all_connections() -> None:
    async def story() -> None:
        home = Home(echo)
        one, other = FakeTransport(home), FakeTransport(home)
        assert one.connection.get_buffer(-1) is other.connection.get_buffer(-1)
        assert len(home.scratch) == READ_BYTES
        assert not hasattr(one.connection, "__dict__")

    run(story())


def test_an_awaitable_of_any_kind_is_waited_for() -> None:
    async def story() -> None:
        class Thing:
            def __await__(self):  # type: ignore[no-untyped-def]
                yield from asyncio.sleep(0).__await__()
                return OffsetAnswer(offset=3)

        thing: Awaitable[Response] = Thing()
        peer = FakeTransport(Home(lambda *_: thing))
        peer.feed(request())
        await turns()
        assert peer.answers[0].fields == {"offset": "3"}

    run(story())


def test_the_rest_of_an_answer_leaves_before_everything_that_waits() -> None:
    """Its beginning has left already."""

    async def story() -> None:
        peer = FakeTransport(Home(echo))
        peer.connection.put_bytes(b"the next answer")
        peer.connection.write_rest(b"the end of the last, ")
        await turns()
        assert b"".join(peer.writes) == b"the end of the last, the next answer"

    run(story())
