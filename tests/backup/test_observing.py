"""A backup that reads a broker's log is no replica: it counts neither for acknowledgements nor as in sync."""

from __future__ import annotations

import asyncio
import contextlib
import struct
from collections.abc import AsyncIterator

import pytest

from pyromq.backup import line as line_module
from pyromq.backup.line import NO_COPY, BrokerGone, log_line, settled_in
from pyromq.errors import BackupError, BadFrame
from pyromq.replication.followers import Followers, SyncRule
from pyromq.replication.frames import ReportReader, encode_grant, encode_observer, encode_report, push_head
from pyromq.replication.stream import PrimaryStream, StreamTimes
from replication.memory_log import MemoryLog, a_log

WORD = struct.Struct(">q")


# --- our own broker's side -------------------------------------------------------------------------------------------


def test_the_word_of_an_observer_comes_first_or_is_a_grant() -> None:
    assert ReportReader().feed(encode_observer() + encode_report(7) + encode_grant(9)) == (7, 7, 9, True)
    assert ReportReader().feed(encode_report(7) + encode_grant(1)) == (7, 7, 1, False)
    with pytest.raises(BadFrame):
        ReportReader().feed(encode_grant(2) + encode_report(7))


def stream_of(log: MemoryLog) -> PrimaryStream:
    return PrimaryStream("backup", log, batch_bytes=1 << 20, whole_log=False, times=StreamTimes(), now_ms=0)


def test_an_observer_is_sent_what_it_asks_for_and_never_becomes_a_follower() -> None:
    log = MemoryLog(a_log([b"x" * 20] * 10))
    stream, followers = stream_of(log), Followers()
    followers = stream.received(encode_observer() + encode_report(0), followers, 0)
    assert stream.next_span(1) is None, "it has not asked"
    followers = stream.received(encode_grant(100), followers, 1)
    span = stream.next_span(2)
    assert span is not None
    assert (span.position, span.length) == (0, 100)
    followers = stream.sent(span, followers, 2)
    followers = stream.received(encode_report(0) + encode_report(log.log_end), followers, 3)
    assert len(followers) == 0
    assert followers.in_sync(SyncRule(), log.log_end, 3) == frozenset()
    assert followers.replicated(2, log.log_end) == 0


def test_an_observer_is_gone_when_it_says_nothing() -> None:
    log = MemoryLog(a_log([b"x"]))
    stream = stream_of(log)
    stream.received(encode_observer() + encode_report(0), Followers(), 0)
    stream.received(encode_report(0), Followers(), 15_000)
    stream.check_silence(30_000)
    with pytest.raises(Exception, match="has said nothing"):
        stream.check_silence(40_000)


# --- reports to RocketMQ's broker ------------------------------------------------------------------------------------


class RocketMQMaster:
    """Believes the newest word that it reads, as RocketMQ's does; the first that is no −1 says where to begin."""

    def __init__(self, log: bytes) -> None:
        self.log = log
        self.acknowledged: list[int] = []
        self.said_later = asyncio.Event()
        self.port = 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            begin = WORD.unpack(await reader.readexactly(8))[0]
            self.acknowledged.append(begin)
            writer.write(push_head(begin, 0))
            for at in range(begin, len(self.log), 1000):
                part = self.log[at : at + 1000]
                writer.write(push_head(at, len(part)) + part)
            while True:
                self.acknowledged.append(WORD.unpack(await reader.readexactly(8))[0])
                self.said_later.set()
        writer.close()


@contextlib.asynccontextmanager
async def rocketmq(log: bytes) -> AsyncIterator[RocketMQMaster]:
    master = RocketMQMaster(log)
    async with await asyncio.start_server(master.serve, "127.0.0.1", 0) as server:
        master.port = server.sockets[0].getsockname()[1]
        yield master


def test_rocketmq_hears_where_to_begin_and_then_of_no_copy() -> None:
    async def story() -> None:
        async with (
            rocketmq(bytes(range(256)) * 20) as master,
            log_line(f"127.0.0.1:{master.port}", 2000, ours=False) as line,
        ):
            assert bytes(await line.following(5120)) == master.log[2000:3000]
            await master.said_later.wait()
            assert master.acknowledged[:2] == [2000, -NO_COPY]
            assert set(master.acknowledged[1:]) == {-NO_COPY}

    asyncio.run(story())


def test_the_whole_log_of_rocketmq_is_asked_for_from_its_second_byte() -> None:
    """Position 0 means "I have nothing" to it, and then it begins with its last file."""
    log = b"\0" + bytes(range(1, 256)) * 8

    async def story() -> bytes:
        got = b""
        async with rocketmq(log) as master, log_line(f"127.0.0.1:{master.port}", 0, ours=False) as line:
            while len(got) < len(log):
                got += bytes(await line.following(len(log)))
            assert master.acknowledged[0] == 1
        return got

    assert asyncio.run(story()) == log


@pytest.mark.parametrize(("made", "now", "wait"), [(0, 100_000, 0), (95_000, 100_000, 5), (200_000, 100_000, 10)])
def test_a_run_right_behind_another_waits_until_nobody_can_wait_for_it(made: int, now: int, wait: float) -> None:
    assert settled_in(made, now) == pytest.approx(wait)


# --- a line that breaks ----------------------------------------------------------------------------------------------


def test_nobody_there_is_said_with_what_to_do() -> None:
    async def story() -> None:
        async with log_line("127.0.0.1:1", 0, ours=True):
            pass

    with pytest.raises(BrokerGone, match=r"no replication port at 127\.0\.0\.1:1 .*--ha-address"):
        asyncio.run(story())


def test_another_position_than_was_asked_for_is_refused() -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readexactly(8)
        writer.write(push_head(700, 3) + b"abc")
        await reader.read()
        writer.close()

    async def story() -> None:
        async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
            port = server.sockets[0].getsockname()[1]
            async with log_line(f"127.0.0.1:{port}", 500, ours=False) as line:
                await line.following(1000)

    with pytest.raises(BackupError, match="sends position 700 of its log where 500 was asked for"):
        asyncio.run(story())


def test_a_broker_that_says_nothing_is_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(line_module, "SILENCE_SECONDS", 0.05)

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()
        writer.close()

    async def story() -> None:
        async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
            port = server.sockets[0].getsockname()[1]
            async with log_line(f"127.0.0.1:{port}", 500, ours=True) as line:
                await line.following(1000)

    with pytest.raises(BrokerGone, match="has said nothing for"):
        asyncio.run(story())
