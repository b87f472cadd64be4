"""The fault proxy passes bytes unchanged, and fails in each of its ways, on asyncio's loop and on uvloop."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator

import pytest
import uvloop

from pyromq.errors import ConfigError, NotNow
from pyromq.net.address import parse_address
from pyromq.testing import Direction, FaultProxy

SECONDS = 10
#: Long enough for anything that would pass to pass.
MOMENT = 0.05

Story = Callable[["Stage"], Awaitable[None]]
Connection = tuple[asyncio.StreamReader, asyncio.StreamWriter]


class Stage:
    """A server that echoes, a proxy before it, and clients."""

    def __init__(self, proxy: FaultProxy) -> None:
        self.proxy = proxy
        self._opened: list[asyncio.StreamWriter] = []

    async def connect(self) -> Connection:
        reader, writer = await asyncio.open_connection(*parse_address(self.proxy.address))
        self._opened.append(writer)
        return reader, writer

    def close(self) -> None:
        for writer in self._opened:
            writer.transport.abort()


async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(OSError):
        while data := await reader.read(1 << 16):
            writer.write(data)
            await writer.drain()
        writer.write(b"bye")
        await writer.drain()
        writer.close()


@contextlib.asynccontextmanager
async def staged() -> AsyncIterator[Stage]:
    server = await asyncio.start_server(echo, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    try:
        async with FaultProxy(f"127.0.0.1:{port}") as proxy:
            stage = Stage(proxy)
            yield stage
            stage.close()
    finally:
        server.close()


@pytest.fixture(params=[asyncio.new_event_loop, uvloop.new_event_loop], ids=["asyncio", "uvloop"])
def play(request: pytest.FixtureRequest) -> Iterator[Callable[[Story], None]]:
    async def perform(story: Story) -> None:
        async with asyncio.timeout(SECONDS), staged() as stage:
            await story(stage)

    with asyncio.Runner(loop_factory=request.param) as runner:
        yield lambda story: runner.run(perform(story))


async def answer(connection: Connection, said: bytes) -> bytes:
    reader, writer = connection
    writer.write(said)
    return await reader.readexactly(len(said))


async def is_silent(connection: Connection) -> bool:
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(MOMENT):
            await connection[0].read(1)
            return False
    return True


def now() -> float:
    return asyncio.get_running_loop().time()


def test_bytes_pass_unchanged(play: Callable[[Story], None]) -> None:
    async def story(stage: Stage) -> None:
        connection = await stage.connect()
        long = bytes(range(256)) * 4000
        assert await answer(connection, long) == long
        assert stage.proxy.connections == stage.proxy.accepted == 1
        assert stage.proxy.passed(Direction.TO_SERVER) == stage.proxy.passed(Direction.TO_CLIENT) == len(long)

    play(story)


def test_an_end_is_passed_on_and_the_rest_arrives(play: Callable[[Story], None]) -> None:
    async def story(stage: Stage) -> None:
        reader, writer = await stage.connect()
        writer.write(b"last words")
        writer.write_eof()
        assert await reader.read() == b"last wordsbye"

    play(story)


def test_what_was_sent_before_the_end_is_not_forgotten(play: Callable[[Story], None]) -> None:
    async def story(stage: Stage) -> None:
        reader, writer = await stage.connect()
        writer.write(b"x" * 3_000_000)
        writer.write_eof()
        await asyncio.sleep(MOMENT)  # all buffers are full by now, and no task reads
        assert len(await reader.read()) == 3_000_003

    play(story)


def test_cut_resets_every_connection_and_new_ones_may_come(play: Callable[[Story], None]) -> None:
    async def story(stage: Stage) -> None:
        connections = [await stage.connect() for _ in range(3)]
        for connection in connections:
            await answer(connection, b"hello")
        stage.proxy.cut()
        for reader, _ in connections:
            with pytest.raises(ConnectionResetError):
                await reader.read()
        assert await answer(await stage.connect(), b"again") == b"again"

    play(story)


def test_refuse_lets_nobody_connect_and_leaves_the_others(play: Callable[[Story], None]) -> None:
    async def story(stage: Stage) -> None:
        before = await stage.connect()
        await answer(before, b"hello")
        await stage.proxy.refuse()
        with pytest.raises(ConnectionRefusedError):
            await stage.connect()
        assert await answer(before, b"still here") == b"still here"
        await stage.proxy.accept()
        assert await answer(await stage.connect(), b"back") == b"back"

    play(story)


@pytest.mark.parametrize("direction", [None, *Direction])
def test_a_stall_keeps_bytes_until_it_ends(play: Callable[[Story], None], direction: Direction | None) -> None:
    async def story(stage: Stage) -> None:
        connection = await stage.connect()
        stage.proxy.stall(direction)
        connection[1].write(b"hello")
        assert await is_silent(connection)
        arrived = stage.proxy.passed(Direction.TO_SERVER)
        assert arrived == (5 if direction is Direction.TO_CLIENT else 0)
        stage.proxy.resume(direction)
        assert await connection[0].readexactly(5) == b"hello"

    play(story)


def test_a_delay_makes_everything_late_and_nothing_slow(play: Callable[[Story], None]) -> None:
    async def story(stage: Stage) -> None:
        connection = await stage.connect()
        stage.proxy.delay(0.1)
        began = now()
        for number in range(10):  # on their way together: one delay there and one back
            connection[1].write(b"%d" % number)
            await asyncio.sleep(0.005)
        assert await connection[0].readexactly(10) == b"0123456789"
        assert 0.2 <= now() - began < 1.0

    play(story)


def test_a_throttled_line_passes_so_many_bytes_a_second(play: Callable[[Story], None]) -> None:
    async def story(stage: Stage) -> None:
        connection = await stage.connect()
        stage.proxy.throttle(100_000, Direction.TO_SERVER)
        began = now()
        await answer(connection, b"x" * 20_000)
        assert now() - began >= 0.15
        stage.proxy.throttle(None)
        await answer(connection, b"x" * 1_000_000)

    play(story)


def test_half_close_ends_one_direction_only(play: Callable[[Story], None]) -> None:
    async def story(stage: Stage) -> None:
        reader, writer = await stage.connect()
        await answer((reader, writer), b"hello")
        stage.proxy.half_close(Direction.TO_SERVER)
        assert await reader.read() == b"bye"

    play(story)


def test_corrupt_changes_one_byte_and_no_other(play: Callable[[Story], None]) -> None:
    async def story(stage: Stage) -> None:
        connection = await stage.connect()
        await answer(connection, b"before")
        stage.proxy.corrupt(3)
        heard = await answer(connection, b"abcdefgh")
        assert [at for at in range(8) if heard[at] != b"abcdefgh"[at]] == [3]
        assert await answer(connection, b"after") == b"after"

    play(story)


def test_heal_ends_all_of_it(play: Callable[[Story], None]) -> None:
    async def story(stage: Stage) -> None:
        connection = await stage.connect()
        stage.proxy.delay(60)
        stage.proxy.throttle(1)
        stage.proxy.stall()
        stage.proxy.corrupt()
        stage.proxy.heal()
        assert await answer(connection, b"well") == b"well"

    play(story)


def test_a_server_that_is_not_there_is_a_reset(play: Callable[[Story], None]) -> None:
    async def story(stage: Stage) -> None:
        stage.proxy.target = None
        reader, _ = await stage.connect()
        with pytest.raises(ConnectionResetError):
            await reader.read()

    play(story)


def test_nothing_runs_on_after_the_block(play: Callable[[Story], None]) -> None:
    async def story(stage: Stage) -> None:
        async with FaultProxy(stage.proxy.target) as inner:
            reader, writer = await asyncio.open_connection(*parse_address(inner.address))
            await answer((reader, writer), b"hello")
            inner.stall()
            writer.write(b"never heard")
        with pytest.raises(ConnectionResetError):
            await reader.read()
        writer.transport.abort()
        with pytest.raises(ConnectionRefusedError):
            await asyncio.open_connection(*parse_address(inner.address))
        assert inner.connections == 0

    play(story)


def test_sentences_for_what_cannot_be() -> None:
    proxy = FaultProxy("127.0.0.1:1")
    with pytest.raises(NotNow, match="async with FaultProxy"):
        _ = proxy.address
    with pytest.raises(ConfigError, match="stall"):
        proxy.throttle(0)
