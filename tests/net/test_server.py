"""A server and its clients on real sockets, on both event loops."""

from __future__ import annotations

import asyncio
import gc
import logging
import socket
import tracemalloc
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from net.fakes import LOOPS, frames_in, request, run, turns, until
from pyromq import accelerated
from pyromq.clock import ManualClock
from pyromq.config import LimitsConfig
from pyromq.errors import CallFailed, CallTimeout, ConfigError, Unreachable
from pyromq.net import server as net_server
from pyromq.net.client import Client
from pyromq.net.peer import Peer
from pyromq.net.rate_limited_log import LINES_PER_WINDOW
from pyromq.net.server import Server
from pyromq.net.service import Answer, Service
from pyromq.testing.brokers.ports import free_port
from pyromq.wire.codes import ResponseCode
from pyromq.wire.command import FLAG_ONE_WAY, Command
from pyromq.wire.requests.client import GetMaxOffset, GetMinOffset, Heartbeat, NotifyMembersChanged
from pyromq.wire.responses import OffsetAnswer, Response

ACCELERATED = accelerated.load("accelerator")

KIB, MIB = 1 << 10, 1 << 20

SMALL = LimitsConfig(
    max_frame_bytes=64 * KIB,
    max_header_bytes=16 * KIB,
    max_in_flight_bytes_per_connection=64 * KIB,
    max_unsent_bytes_per_connection=64 * KIB,
    max_unsent_bytes=256 * KIB,
    max_partial_bytes=256 * KIB,
)

pytestmark = pytest.mark.parametrize("loop", LOOPS)


@pytest.fixture(autouse=True, params=["each"] if ACCELERATED is None else ["each", "together"])
def reading(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Every story is the same whether each transport reads, which is the definition, or all are read together."""
    if request.param == "together" and ACCELERATED is not None:
        monkeypatch.setattr(Server, "new_intake", staticmethod(ACCELERATED.Intake))
    return str(request.param)


def offsets(wanted: GetMaxOffset, _: Peer) -> Answer:
    return OffsetAnswer(offset=wanted.queue_id)


SERVICE = Service({GetMaxOffset: offsets})


@asynccontextmanager
async def serving(handle: object = SERVICE.handle, limits: LimitsConfig | None = None) -> AsyncIterator[Server]:
    server = Server(handle, limits)  # type: ignore[arg-type]
    await server.start("127.0.0.1", 0)
    try:
        yield server
    finally:
        await server.stop(grace_s=0.5)
        assert not server.connections
        assert (server.unsent_bytes, server.partial_bytes, server.behind, server.partial) == (0, 0, set(), {})


class Raw:
    """A peer that sends whatever bytes it likes."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer

    def send(self, data: bytes) -> None:
        self.writer.write(data)

    async def frame(self) -> Command:
        head = await self.reader.readexactly(4)
        (command,) = frames_in(head + await self.reader.readexactly(int.from_bytes(head, "big")))
        return command

    async def until_closed(self) -> bytes:
        try:
            return await self.reader.read()
        except ConnectionError:
            return b""

    def close(self) -> None:
        self.writer.close()


async def connect(server: Server) -> Raw:
    return Raw(*await asyncio.open_connection("127.0.0.1", server.port))


def our_lines(caplog: pytest.LogCaptureFixture) -> list[str]:
    """What the network says; the loop itself may say that something was slow."""
    return [record.getMessage() for record in caplog.records if record.name == "pyromq.net"]


def offset_request(correlation_id: int, form: int = 0) -> bytes:
    return request(30, correlation_id, form=form, topic="t", queueId=str(correlation_id % 100))


# --- serving ---------------------------------------------------------------------------------------------------------


def test_requests_in_both_forms_and_any_chunks_are_answered_in_their_own_form(loop: str) -> None:
    async def story() -> None:
        async with serving() as server:
            peer = await connect(server)
            data = b"".join(offset_request(number, number % 2) for number in range(200))
            for at in range(0, len(data), 97):
                peer.send(data[at : at + 97])
                await peer.writer.drain()
                await turns(1)
            for number in range(200):
                answer = await peer.frame()
                assert (answer.correlation_id, answer.serialization) == (number, number % 2)
                assert answer.fields == {"offset": str(number % 100)}
            peer.close()

    run(story(), loop)


def test_both_directions_share_a_connection(loop: str) -> None:
    """While the server answers a client it asks the same client something, and tells it something else."""
    told: asyncio.Queue[Command] = asyncio.Queue()

    def at_the_client(command: Command, _: Peer) -> Answer:
        told.put_nowait(command)
        return OffsetAnswer(offset=41)

    async def story() -> None:
        async def handle(_: Command, peer: Peer) -> Response:
            peer.tell(NotifyMembersChanged(group="g"))
            answer = await peer.call(GetMinOffset(topic="t", queue_id=0), 5)
            return OffsetAnswer(offset=int(answer.fields["offset"]) + 1)

        async with serving(handle) as server:
            client = Client(at_the_client)
            calls = [client.call(f"127.0.0.1:{server.port}", Heartbeat()) for _ in range(10)]
            assert [answer.fields["offset"] for answer in await asyncio.gather(*calls)] == ["42"] * 10
            assert told.qsize() == 20
            assert len(server.connections) == 1
            await client.close()

    run(story(), loop)


def test_a_large_frame_goes_both_ways(loop: str) -> None:
    async def story() -> None:
        async with serving(lambda command, _: Response(body=[memoryview(command.body)] * 2)) as server:
            client = Client(limits=LimitsConfig(max_frame_bytes=64 * MIB))
            body = bytes(range(256)) * (60 * KIB)
            answer = await client.call(f"127.0.0.1:{server.port}", Heartbeat(body=body), timeout_s=10)
            assert answer.body == body + body
            await client.close()

    run(story(), loop)


def test_an_address_that_is_taken_or_impossible_is_a_sentence(loop: str) -> None:
    async def story() -> None:
        async with serving() as server:
            for host, port, why in (
                ("127.0.0.1", server.port, "another program listens there"),
                ("192.0.2.1", 0, "no such address"),
                ("127.0.0.1", 99_999, ""),
            ):
                with pytest.raises(ConfigError, match=f"cannot listen on {host}:{port}: .*{why}"):
                    await Server(SERVICE.handle).start(host, port)

    run(story(), loop)


def test_that_files_run_out_is_said_and_connections_are_refused_with_a_reason(
    loop: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The system would cut them off without a word."""

    async def story() -> None:
        server = Server(SERVICE.handle)
        await server.start("127.0.0.1", 0)
        first = await connect(server)
        first.send(offset_request(1))
        assert (await first.frame()).code == 0
        with monkeypatch.context() as patch:
            patch.setattr(net_server, "_files_left", lambda: 3)
            server.look_after_connections()
        second = await connect(server)
        assert await second.until_closed() == b""
        first.send(offset_request(2))
        assert (await first.frame()).code == 0
        server.look_after_connections()
        third = await connect(server)
        third.send(offset_request(3))
        assert (await third.frame()).code == 0
        for peer in (first, second, third):
            peer.close()
        await server.stop()

    run(story(), loop)
    assert "new connections are refused: this process may open only 3 more files (ulimit -n)" in caplog.text
    assert "refused: this process may open only 3 more files" in caplog.text


def test_another_port_has_the_same_clients_and_limits(loop: str, caplog: pytest.LogCaptureFixture) -> None:
    async def story() -> None:
        async with serving(limits=LimitsConfig(max_connections=2)) as server:
            port = free_port()
            assert await server.listen_also(port)
            assert not await server.listen_also(port)
            client, other, third = Client(), Client(), Client()
            for one, at in ((client, port), (other, server.port)):
                answer = await one.call(f"127.0.0.1:{at}", GetMaxOffset(topic="t", queue_id=3))
                assert answer.fields == {"offset": "3"}
            with pytest.raises(CallFailed):
                await third.call(f"127.0.0.1:{port}", GetMaxOffset(topic="t", queue_id=3))
            for one in (client, other, third):
                await one.close()
        with pytest.raises(Unreachable):
            await Client().call(f"127.0.0.1:{port}", GetMaxOffset(topic="t", queue_id=3))

    with caplog.at_level(logging.INFO):
        run(story(), loop)
    assert "another program listens there; stop it, or choose another port; this port is done without" in caplog.text


# --- bad input -------------------------------------------------------------------------------------------------------

BAD = {
    "HTTP": b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
    "HTTP/2": b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    "TLS": bytes.fromhex("16030102000100") + bytes(509),
    "a proxy": b"PROXY TCP4 10.0.0.1 10.0.0.2 1 2\r\n",
    "a proxy, second form": b"\r\n\r\n\0\r\nQUIT\n\x21\x11\0\x0c",
    "zeroes": bytes(1000),
    "ones": b"\xff" * 1000,
    "a length too long": b"\x7f\xff\xff\xff\0\0\0\x10",
    "a length too short": b"\0\0\0\1\0",
    "a header longer than the frame": b"\0\0\0\x10\0\0\0\x0d",
    "an oversized header": b"\0\x10\0\0\0\x08\0\0",
    "an unknown form": b"\0\0\0\x10\x07\0\0\x0c" + bytes(12),
    "bad UTF-8": b"\0\0\0\x0c\0\0\0\x08" + b'{"a":"\xff"',
    "deep JSON": (60_004).to_bytes(4, "big") + (60_000).to_bytes(4, "big") + b"[" * 60_000,
    "a binary header without a number": b"\0\0\0\x0c\1\0\0\x08" + bytes(8),
}


@pytest.mark.parametrize("bad", BAD)
def test_bad_input_closes_that_connection_with_one_line_and_no_other(
    bad: str, loop: str, caplog: pytest.LogCaptureFixture
) -> None:
    async def story() -> None:
        async with serving() as server:
            good, peer = await connect(server), await connect(server)
            peer.send(offset_request(1) + BAD[bad])
            assert [one.correlation_id for one in frames_in(await peer.until_closed())] == [1]
            good.send(offset_request(2))
            assert (await good.frame()).correlation_id == 2
            good.close()
            peer.close()

    run(story(), loop)
    (line,) = our_lines(caplog)
    assert line.startswith("connection of 127.0.0.1:")


def test_what_the_protocol_has_an_answer_for_is_answered(loop: str) -> None:
    async def story() -> None:
        async with serving() as server:
            peer = await connect(server)
            for code, fields, expected in (
                (31337, {}, ResponseCode.REQUEST_CODE_NOT_SUPPORTED),
                (34, {}, ResponseCode.REQUEST_CODE_NOT_SUPPORTED),
                (30, {}, ResponseCode.INVALID_PARAMETER),
                (30, {"topic": "t", "queueId": "x\0"}, ResponseCode.INVALID_PARAMETER),
            ):
                for form in (0, 1):
                    peer.send(request(code, 7, form=form, **fields))
                    answer = await peer.frame()
                    assert (answer.code, answer.correlation_id, answer.serialization) == (expected, 7, form)
                    assert answer.reason
            peer.close()

    run(story(), loop)


def test_a_flood_of_bad_connections_does_not_fill_the_log(loop: str, caplog: pytest.LogCaptureFixture) -> None:
    async def story() -> None:
        async with serving() as server:
            for _ in range(50):
                peer = await connect(server)
                peer.send(b"GET / HTTP/1.1\r\n\r\n")
                await peer.until_closed()
                peer.close()

    run(story(), loop)
    assert len(our_lines(caplog)) == LINES_PER_WINDOW


# --- limits ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("limits", "why"),
    [
        (LimitsConfig(max_connections=2), "limits.max_connections)"),
        (LimitsConfig(max_connections_per_host=2), "limits.max_connections_per_host)"),
    ],
)
def test_a_connection_above_the_limit_is_refused(
    limits: LimitsConfig, why: str, loop: str, caplog: pytest.LogCaptureFixture
) -> None:
    async def story() -> None:
        gone: list[Peer] = []
        server = Server(SERVICE.handle, limits, on_disconnect=gone.append)
        await server.start("127.0.0.1", 0)
        first, second, third = [await connect(server) for _ in range(3)]
        assert await third.until_closed() == b""
        first.send(offset_request(1))
        assert (await first.frame()).code == 0
        assert not gone  # a peer that was never admitted does not leave
        second.close()
        await until(lambda: gone)
        fourth = await connect(server)
        fourth.send(offset_request(2))
        assert (await fourth.frame()).code == 0
        for peer in (first, third, fourth):
            peer.close()
        await server.stop()
        assert len(gone) == 3

    run(story(), loop)
    assert len(our_lines(caplog)) == 1
    assert why in caplog.text


def test_an_idle_connection_is_closed_and_a_busy_one_is_not(loop: str, caplog: pytest.LogCaptureFixture) -> None:
    async def story() -> None:
        async with serving(limits=LimitsConfig(idle_close_ms=1000)) as server:
            idle, busy = await connect(server), await connect(server)
            for number in range(7):
                busy.send(offset_request(number))
                await busy.frame()
                server.look_after_connections()
            assert await idle.until_closed() == b""
            assert len(server.connections) == 1
            idle.close()
            busy.close()

    with caplog.at_level(logging.INFO):
        run(story(), loop)
    assert "nothing came for 1 s" in caplog.text


def test_half_a_request_is_not_waited_for_for_ever(loop: str, caplog: pytest.LogCaptureFixture) -> None:
    async def story() -> None:
        async with serving(limits=LimitsConfig(partial_close_ms=100)) as server:
            peer = await connect(server)
            frame = request(body=bytes(1000))
            for byte in frame:  # slowly, but never silent for long
                peer.send(bytes([byte]))
                await asyncio.sleep(0.005)
                if not server.connections:
                    break
            await peer.until_closed()
            peer.close()

    run(story(), loop)
    assert "it began a request 0.1 s ago" in caplog.text


def test_a_peer_that_never_reads_is_cut_off_and_costs_little(loop: str, caplog: pytest.LogCaptureFixture) -> None:
    """It asks for more and more; each answer is 60 KiB."""
    limits = LimitsConfig(max_unsent_bytes_per_connection=256 * KIB, max_unsent_bytes=2 * MIB, stalled_close_ms=300)

    async def story() -> None:
        async with serving(lambda *_: Response(body=bytes(60 * KIB)), limits) as server:
            sock = socket.create_connection(("127.0.0.1", server.port))
            sock.setblocking(False)
            asked, most = 0, 0
            running = asyncio.get_running_loop()
            try:
                async with asyncio.timeout(10):
                    while asked == 0 or server.connections:
                        await asyncio.sleep(0.001)
                        try:
                            asked += sock.send(request() * 20)
                        except BlockingIOError:
                            pass
                        except OSError:
                            break
                        most = max(most, server.unsent_bytes)
            finally:
                sock.close()
            assert running.is_running()
            assert 0 < most <= limits.max_unsent_bytes_per_connection + 2 * MIB

    run(story(), loop)
    assert "it has taken none of the" in caplog.text or "it has not taken" in caplog.text


def test_many_peers_that_never_read_cost_no_more_than_the_limit_together(loop: str) -> None:
    async def story() -> None:
        async with serving(lambda *_: Response(body=bytes(1 * MIB)), SMALL_UNSENT) as server:
            socks = [socket.create_connection(("127.0.0.1", server.port)) for _ in range(30)]
            most = 0
            for sock in socks:
                sock.sendall(request() * 20)
                for _ in range(20):
                    await asyncio.sleep(0.001)
                    most = max(most, server.unsent_bytes)
            assert 0 < most <= SMALL_UNSENT.max_unsent_bytes
            for sock in socks:
                sock.close()

    run(story(), loop)


SMALL_UNSENT = LimitsConfig(max_unsent_bytes_per_connection=4 * MIB, max_unsent_bytes=16 * MIB)


def test_half_a_request_on_each_of_many_connections_costs_no_more_than_the_limit(loop: str) -> None:
    async def story() -> None:
        async with serving(limits=SMALL) as server:
            half = request(body=bytes(50 * KIB))[: 30 * KIB]
            socks = []
            for _ in range(40):
                sock = socket.create_connection(("127.0.0.1", server.port))
                sock.sendall(half)
                socks.append(sock)
                await asyncio.sleep(0.005)
                assert server.partial_bytes <= SMALL.max_partial_bytes
            peer = await connect(server)
            peer.send(offset_request(1))
            assert (await peer.frame()).code == 0
            assert len(server.connections) < 20
            peer.close()
            for sock in socks:
                sock.close()

    run(story(), loop)


def test_a_thousand_idle_connections_cost_a_few_kilobytes_each(loop: str) -> None:
    async def story() -> None:
        async with serving() as server:
            socks = [socket.create_connection(("127.0.0.1", server.port))]
            await asyncio.sleep(0.05)
            gc.collect()
            tracemalloc.start()
            for _ in range(1000):
                sock = socket.create_connection(("127.0.0.1", server.port))
                sock.sendall(offset_request(1))
                socks.append(sock)
                if len(socks) % 100 == 0:
                    await asyncio.sleep(0.005)
            await until(lambda: len(server.connections) == 1001)
            await asyncio.sleep(0.05)
            gc.collect()
            held, _ = tracemalloc.get_traced_memory()
            tracemalloc.stop()
            assert held / 1000 < 8 * KIB
            for sock in socks:
                sock.close()
            await until(lambda: not server.connections)

    run(story(), loop)


# --- stopping --------------------------------------------------------------------------------------------------------


def test_a_stop_finishes_what_it_started_and_refuses_the_rest(loop: str) -> None:
    async def story() -> None:
        go = asyncio.Event()
        done: list[int] = []

        async def handle(command: Command, _: Peer) -> Response:
            await go.wait()
            done.append(command.correlation_id)
            return Response(body=bytes(100 * KIB))

        server = Server(handle)
        await server.start("127.0.0.1", 0)
        peer, gone = await connect(server), await connect(server)
        peer.send(request(correlation_id=1) + request(correlation_id=2, flags=FLAG_ONE_WAY))
        gone.send(request(correlation_id=3, flags=FLAG_ONE_WAY))
        await asyncio.sleep(0.05)
        gone.close()
        await asyncio.sleep(0.05)
        stopping = asyncio.ensure_future(server.stop())
        await turns()
        peer.send(request(correlation_id=4))
        late = await peer.frame()
        assert (late.correlation_id, late.code) == (4, ResponseCode.SERVICE_NOT_AVAILABLE)
        with pytest.raises(OSError):
            await connect(server)
        go.set()
        answer = await peer.frame()
        assert (answer.correlation_id, len(answer.body)) == (1, 100 * KIB)
        assert await peer.until_closed() == b""
        peer.close()
        await stopping
        assert sorted(done) == [1, 2, 3]

    run(story(), loop)


def test_a_stop_reads_on_for_what_it_has_asked_its_clients(loop: str) -> None:
    async def story() -> None:
        go = asyncio.Event()

        async def slow(_: Command, __: Peer) -> Response:
            await go.wait()
            return Response(body=b"from the client")

        async def handle(_: Command, peer: Peer) -> Response:
            return Response(body=(await peer.call(GetMinOffset(topic="t", queue_id=0), 5)).body)

        async with serving(handle) as server:
            client = Client(slow)
            call = asyncio.ensure_future(client.call(f"127.0.0.1:{server.port}", Heartbeat()))
            await asyncio.sleep(0.05)
            stopping = asyncio.ensure_future(server.stop())
            await turns()
            go.set()
            assert (await call).body == b"from the client"
            await stopping
            await client.close()

    run(story(), loop)


def test_a_stop_does_not_wait_longer_than_the_grace(loop: str, caplog: pytest.LogCaptureFixture) -> None:
    async def story() -> None:
        async def never(_: Command, __: Peer) -> Response:
            await asyncio.Event().wait()
            raise AssertionError

        server = Server(never, LimitsConfig(stop_grace_ms=100))
        await server.start("127.0.0.1", 0)
        peer = await connect(server)
        peer.send(request())
        await asyncio.sleep(0.02)
        async with asyncio.timeout(2):
            await server.stop()
            await peer.until_closed()
        peer.close()
        await server.stop()  # a second time is no harm
        assert not server.connections

    run(story(), loop)
    assert "not finished in 0.1 s" in caplog.text


def test_a_stop_is_not_held_up_by_a_peer_that_never_reads(loop: str) -> None:
    async def story() -> None:
        server = Server(lambda *_: Response(body=bytes(8 * MIB)))
        await server.start("127.0.0.1", 0)
        sock = socket.create_connection(("127.0.0.1", server.port))
        sock.sendall(request())
        await until(lambda: server.unsent_bytes)
        async with asyncio.timeout(2):
            await server.stop(grace_s=0.1)
        assert (len(server.connections), server.unsent_bytes) == (0, 0)
        sock.close()

    run(story(), loop)


def test_what_follows_a_disconnection_may_fail(loop: str, caplog: pytest.LogCaptureFixture) -> None:
    async def story() -> None:
        def fail(_: Peer) -> None:
            raise KeyError

        server = Server(SERVICE.handle, on_disconnect=fail, clock=ManualClock())
        await server.start("127.0.0.1", 0)
        peer = await connect(server)
        peer.send(offset_request(1))
        await peer.frame()
        peer.close()
        await until(lambda: not server.connections)
        await server.stop()

    run(story(), loop)
    assert "what follows the disconnection" in caplog.text


# --- the client ------------------------------------------------------------------------------------------------------


def test_a_client_connects_again_when_its_server_is_back(loop: str) -> None:
    async def story() -> None:
        client = Client()
        wanted = GetMaxOffset(topic="t", queue_id=5)
        async with serving() as server:
            address = f"127.0.0.1:{server.port}"
            answers = await asyncio.gather(*(client.call(address, wanted) for _ in range(20)))
            assert {answer.fields["offset"] for answer in answers} == {"5"}
            assert len(server.connections) == 1
        with pytest.raises(Unreachable, match=rf"^nobody answers at {address} \(connection refused\)$"):
            await client.call(address, wanted)
        again = Server(SERVICE.handle)
        await again.start("127.0.0.1", server.port)
        assert (await client.call(address, wanted)).code == 0
        await client.tell(address, wanted)
        await client.close()
        with pytest.raises(Unreachable, match="this client is closed"):
            await client.call(address, wanted)
        await again.stop()

    run(story(), loop)


def test_a_client_does_not_talk_to_itself(loop: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where nobody listens the system may connect a port with itself, and its server could not come back."""

    async def story() -> None:
        running, port = asyncio.get_running_loop(), free_port()
        connect = running.create_connection

        async def connect_from_there(*arguments: Any, **more: Any) -> Any:
            return await connect(*arguments, **more, local_addr=("127.0.0.1", port))

        client = Client()
        with monkeypatch.context() as unlucky:
            unlucky.setattr(running, "create_connection", connect_from_there)
            with pytest.raises(Unreachable, match=r"connection refused"):
                await client.call(f"127.0.0.1:{port}", Heartbeat())
        await turns()
        server = Server(SERVICE.handle)
        await server.start("127.0.0.1", port)
        assert (await client.call(f"127.0.0.1:{port}", GetMaxOffset(topic="t", queue_id=5))).code == 0
        await client.close()
        await server.stop()

    run(story(), loop)


@pytest.mark.parametrize("address", ["", "nowhere", "127.0.0.1:", "127.0.0.1:x", "127.0.0.1:99999", "a" * 300 + ":1"])
def test_an_impossible_address_is_unreachable(address: str, loop: str) -> None:
    async def story() -> None:
        with pytest.raises(Unreachable, match="nobody answers"):
            await Client().call(address, Heartbeat())

    run(story(), loop)


def test_a_client_gives_up_a_connection_on_which_nothing_comes_back(loop: str) -> None:
    async def story() -> None:
        async with serving(lambda *_: None) as server:
            client = Client()
            for _ in range(2):
                with pytest.raises(CallTimeout):
                    await client.call(f"127.0.0.1:{server.port}", Heartbeat(), timeout_s=0.05)
                await until(lambda: not server.connections)
            await client.close()

    run(story(), loop)
