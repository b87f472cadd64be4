"""The log lines of a slave whose copy stops: one line for all attempts, with advice."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path

import pytest

from pyromq.replication import replica
from pyromq.store.message_store import MessageStore
from replication.pairs import config, following


def test_a_port_that_is_no_replication_port_is_told_of_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "pyromq.replication")
    monkeypatch.setattr(replica, "FIRST_RETRY_SECONDS", 0.001)
    monkeypatch.setattr(replica, "LONGEST_RETRY_SECONDS", 0.5)

    async def story() -> None:
        tries, enough = 0, asyncio.Event()

        async def close(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            nonlocal tries
            tries += 1
            writer.close()
            if tries == 5:
                enough.set()

        server = await asyncio.start_server(close, "127.0.0.1", 0)
        address = f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
        async with (
            asyncio.timeout(10),
            server,
            MessageStore(config(tmp_path)).running() as store,
            following(store, address) as slave,
        ):
            await enough.wait()
            assert (await slave.problem()).problem == replica.CLOSED_AT_ONCE

    asyncio.run(story())
    said = [record.getMessage() for record in caplog.records if record.name == "pyromq.replication"]
    assert len([line for line in said if "is this its replication port (haListenPort" in line]) == 1
    assert len([line for line in said if line.startswith("copying the log of")]) <= 2
