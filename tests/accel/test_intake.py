"""All connections read together: what the intake does itself, and what it leaves to the connection."""

from __future__ import annotations

import asyncio
import logging
import socket
import struct
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from late import TookTooLong, in_time
from net.fakes import frames_in, request, run, until
from pyromq.accel._intake import SLICE_VALUES, Inlet, Intake
from pyromq.net.connection import Connection
from pyromq.net.peer import Peer
from pyromq.net.server import Server
from pyromq.net.service import Answer
from pyromq.net.slices import MIN_ANSWER_BYTES, SLICE_SECONDS, TURN_ANSWER_BYTES
from pyromq.wire.command import Command
from pyromq.wire.responses import Response


def echo(command: Command, _: Peer) -> Answer:
    return Response(body=command.body)


@asynccontextmanager
async def serving(handle: Callable[[Command, Peer], Answer] = echo) -> AsyncIterator[tuple[Server, socket.socket]]:
    """A server, and a peer that it has begun to read together with others."""
    server = Server(handle)
    server.new_intake = Intake
    await server.start("127.0.0.1", 0)
    sock = socket.create_connection(("127.0.0.1", server.port))
    sock.setblocking(False)
    try:
        await until(lambda: [one for one in server.connections if one.inlet is not None])
        yield server, sock
    finally:
        sock.close()
        await server.stop(grace_s=0.2)
        assert server.intake is None


def only(server: Server) -> Connection:
    (connection,) = server.connections
    return connection


async def receive(sock: socket.socket, size: int) -> bytes:
    loop, data = asyncio.get_running_loop(), b""
    while len(data) < size:
        piece = await loop.sock_recv(sock, size - len(data))
        assert piece
        data += piece
    return data


@pytest.mark.parametrize("loop", ["asyncio", "uvloop"])
def test_requests_are_answered_and_it_is_noted_when_the_last_came(loop: str) -> None:
    async def story() -> None:
        async with serving() as (server, sock):
            server.tick = 7
            sock.sendall(request(body=b"hello", correlation_id=3))
            head = await receive(sock, 4)
            (answer,) = frames_in(head + await receive(sock, int.from_bytes(head, "big")))
            assert (answer.body, answer.correlation_id) == (b"hello", 3)
            assert only(server).last_tick == 7

    run(story(), loop)


class Answering:
    """A connection whose peer asks again as soon as it has its answer."""

    def __init__(self, intake: Any, asks: float) -> None:
        self.ours, self.theirs = socket.socketpair()
        self.heard, self._asks = 0, asks
        self.inlet = Inlet(self, self.ours.fileno(), b"")
        intake.add(self.inlet)
        self.theirs.send(b"?")

    def received(self, _: memoryview) -> None:
        self.heard += 1
        if self.heard < self._asks:
            self.theirs.send(b"?")

    def close(self) -> None:
        self.ours.close()
        self.theirs.close()


@pytest.mark.parametrize("asks", [5, float("inf")])
def test_a_turn_reads_those_as_well_who_ask_meanwhile_but_does_not_go_on_forever(asks: float) -> None:
    intake = Intake(memoryview(bytearray(1000)))
    peers = [Answering(intake, asks) for _ in range(4)]
    began = time.process_time()
    intake.turn(None, 1)
    in_time(time.process_time() - began, 1, "a turn")
    heard = [peer.heard for peer in peers]
    assert max(heard) <= asks
    assert sum(heard) <= 256 + 4, "then others have their turn"
    if min(heard) < 2:
        raise TookTooLong("to read them once took as long as a turn may")
    intake.close()
    for peer in peers:
        peer.close()


def test_half_a_request_is_not_plain_until_its_rest_has_come() -> None:
    async def story() -> None:
        async with serving() as (server, sock):
            inlet: Any = only(server).inlet
            assert inlet.is_plain
            frame = request()
            sock.sendall(frame[:10])
            await until(lambda: not inlet.is_plain)
            sock.sendall(frame[10:])
            await until(lambda: inlet.is_plain)

    run(story())


def test_what_the_peer_does_not_take_goes_through_the_transport_whole_and_in_order() -> None:
    body = bytes(range(256)) * (32 << 10)  # 8 MiB, more than a socket holds

    async def story() -> None:
        async with serving(lambda *_: Response(body=body)) as (server, sock):
            inlet: Any = only(server).inlet
            sock.sendall(request(correlation_id=1))
            await until(lambda: not inlet.is_plain)
            assert only(server).unsent_bytes > 0
            head = await receive(sock, 4)
            (answer,) = frames_in(head + await receive(sock, int.from_bytes(head, "big")))
            assert answer.body == body
            await until(lambda: inlet.is_plain)
            assert server.unsent_bytes == 0

    run(story())


@pytest.mark.parametrize("reset", [False, True])
def test_the_end_of_a_peer_is_noticed(reset: bool) -> None:
    async def story() -> None:
        async with serving() as (server, sock):
            if reset:
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            sock.close()
            await until(lambda: not server.connections)

    run(story())


def test_a_fault_of_ours_ends_one_connection_and_no_other(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def story() -> None:
        async with serving() as (server, sock):
            unlucky = only(server)
            with socket.create_connection(("127.0.0.1", server.port)) as other:
                other.setblocking(False)
                await until(lambda: len(server.connections) == 2)
                monkeypatch.setattr(Connection, "received", _fail_for(unlucky))
                sock.sendall(request())
                await until(lambda: unlucky not in server.connections)
                other.sendall(request(body=b"alive"))
                assert await receive(other, 4)

    with caplog.at_level(logging.ERROR, "pyromq.net"):
        run(story())
    assert "its bytes could not be handled" in caplog.text


def _fail_for(unlucky: Connection) -> Callable[[Connection, memoryview], None]:
    received = Connection.received

    def fail_or_receive(connection: Connection, chunk: memoryview) -> None:
        if connection is unlucky:
            raise ZeroDivisionError
        received(connection, chunk)

    return fail_or_receive


def test_a_connection_that_was_left_takes_no_answers_any_more() -> None:
    async def story() -> None:
        async with serving() as (server, _):
            connection = only(server)
            inlet: Any = connection.inlet
            connection.abort()
            assert connection.inlet is None
            assert inlet.send(b"too late") == 0
            await until(lambda: not server.connections)

    run(story())


def test_the_intake_has_the_limits_of_slices() -> None:
    assert (round(SLICE_SECONDS * 1e9), TURN_ANSWER_BYTES, MIN_ANSWER_BYTES) == SLICE_VALUES


class Turns:
    """A fast path that takes nothing, and counts the turns."""

    count = 0

    def take(self, data: memoryview, at: int, connection: Connection) -> int:
        return at

    def begin_turn(self) -> None:
        self.count += 1

    def end_turn(self) -> None:
        pass


def test_a_turn_ends_when_its_slice_is_used_up_and_the_next_begins_with_the_rest() -> None:
    async def story() -> None:
        counted, rooms, served = Turns(), list[int](), list[tuple[int, int]]()

        def work(command: Command, peer: Peer) -> Answer:
            rooms.append(peer.answer_room)
            served.append((command.correlation_id, counted.count))
            until_ns = time.monotonic_ns() + int(1.5e9 * SLICE_SECONDS)
            while time.monotonic_ns() < until_ns:
                pass
            return Response()

        async with serving(work) as (server, sock):
            more = [socket.create_connection(("127.0.0.1", server.port)) for _ in range(3)]
            await until(lambda: len([one for one in server.connections if one.inlet is not None]) == 4)
            server.fast_path = server.turns = counted
            for number, one in enumerate([sock, *more]):
                one.send(request(correlation_id=number))
            await until(lambda: len(served) == 4)
            assert sorted(number for number, _ in served) == [0, 1, 2, 3]
            assert [turn for _, turn in served] == [1, 2, 3, 4]
            assert rooms == [TURN_ANSWER_BYTES // 4, TURN_ANSWER_BYTES // 3, TURN_ANSWER_BYTES // 2, TURN_ANSWER_BYTES]
            for one in more:
                one.close()

    run(story())
