"""The replication port has no key: members are served among strangers, and nothing grows."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path

import pytest

from pyromq.replication import primary as primary_module
from pyromq.replication.frames import encode_observer, encode_report
from pyromq.replication.stream import StreamTimes
from pyromq.store.message_store import MessageStore
from replication.pairs import config, following, leading, send, two_stores


async def is_closed(reader: asyncio.StreamReader) -> bool:
    """Whatever is still sent first."""
    async with asyncio.timeout(20):
        while await reader.read(1 << 16):
            pass
    return True


@pytest.mark.parametrize(
    "said",
    [
        b"GET / HTTP/1.1\r\n\r\n",
        encode_report(-1),
        encode_report(1 << 62),
        encode_report(0) + encode_report(1 << 40),
        b"\xff" * 4096,
    ],
)
def test_nonsense_ends_the_connection_and_nobody_is_promised_anything(
    tmp_path: Path, said: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    async def story() -> None:
        async with MessageStore(config(tmp_path / "a")).running() as one, leading(one) as pair:
            send(one, 100)
            reader, writer = await asyncio.open_connection("127.0.0.1", pair.primary.port)
            writer.write(said)
            assert await is_closed(reader)
            assert pair.primary.followers.replicated(2, one.log.end) == 0
            assert not pair.primary.followers.by_name
            writer.close()

    with caplog.at_level(logging.WARNING):
        asyncio.run(story())
    assert any("replica" in record.message for record in caplog.records)
    assert not any("never retrieved" in record.message for record in caplog.records)


def test_whoever_writes_is_not_told_of_nonsense_that_comes_meanwhile(tmp_path: Path) -> None:
    """A report with a valid beginning and an invalid rest is half accepted for some turns of the loop."""

    async def story() -> None:
        async with MessageStore(config(tmp_path / "a")).running() as one, leading(one) as pair:
            for start in range(0, 400, 40):
                reader, writer = await asyncio.open_connection("127.0.0.1", pair.primary.port)
                await asyncio.sleep(0)
                writer.write(encode_report(0) + encode_report(1 << 40))
                for number in range(start, start + 40):
                    send(one, 1, number)
                    one.catch_up()
                    await asyncio.sleep(0)
                assert await is_closed(reader)
                writer.close()
            assert not pair.primary.followers.by_name

    asyncio.run(story())


def test_who_says_nothing_is_sent_away(tmp_path: Path) -> None:
    async def story() -> None:
        times = StreamTimes(hello=200)
        async with MessageStore(config(tmp_path / "a")).running() as one, leading(one, times=times) as pair:
            reader, writer = await asyncio.open_connection("127.0.0.1", pair.primary.port)
            writer.write(b"abc")
            assert await is_closed(reader)
            writer.close()

    asyncio.run(story())


def test_silent_connections_make_room_for_each_other_and_for_replicas(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(primary_module, "MAX_SILENT", 3)

    async def story() -> None:
        async with two_stores(tmp_path) as (one, other, pair):
            send(one, 10)
            silent = [await asyncio.open_connection("127.0.0.1", pair.primary.port) for _ in range(5)]
            assert await is_closed(silent[0][0])
            async with following(other, pair.address):
                await pair.level()
            for _, writer in silent:
                writer.close()

    asyncio.run(story())


def test_no_more_strangers_than_may_be_and_none_that_may_not(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def story() -> None:
        async with MessageStore(config(tmp_path / "a")).running() as one:
            async with leading(one, admits=lambda host: False) as pair:
                reader, writer = await asyncio.open_connection("127.0.0.1", pair.primary.port)
                assert await is_closed(reader)
                writer.close()
            monkeypatch.setattr(primary_module, "MAX_UNKNOWN", 1)
            async with leading(one) as pair:
                _, first = await asyncio.open_connection("127.0.0.1", pair.primary.port)
                first.write(encode_report(0))
                await pair.followers.until(lambda followers: len(followers) == 1)
                reader, second = await asyncio.open_connection("127.0.0.1", pair.primary.port)
                second.write(encode_report(0))
                assert await is_closed(reader)
                assert len(pair.primary.followers) == 1
                first.close()
                second.close()

    asyncio.run(story())


def test_observers_are_few_and_take_no_replicas_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(primary_module, "MAX_OBSERVERS", 2)

    async def story() -> None:
        async with (
            MessageStore(config(tmp_path / "a")).running() as one,
            MessageStore(config(tmp_path / "b")).running() as other,
            leading(one, max_replicas=1) as pair,
        ):
            send(one, 10)
            lines = [await asyncio.open_connection("127.0.0.1", pair.primary.port) for _ in range(3)]
            for _, writer in lines:
                writer.write(encode_observer() + encode_report(0))
            async with asyncio.timeout(20):
                ends = [asyncio.ensure_future(is_closed(reader)) for reader, _ in lines]
                done, there = await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
            assert (len(done), len(there)) == (1, 2)
            async with following(other, pair.address):
                await pair.level()
                assert len(pair.primary.followers) == 1
            for _, writer in lines:
                writer.close()
            await asyncio.gather(*ends)

    asyncio.run(story())
