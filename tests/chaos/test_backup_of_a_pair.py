"""`pyromq backup` of a sync master under load, and `pyromq restore`: the restored store is one consistent moment.

Its log is a prefix of the slave's log and has everything that was acknowledged when the backup began. Its tables speak
of no message that this log lacks.
"""

from __future__ import annotations

import asyncio
import json
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from chaos.support.client import Wire, commit, connected, messages_in, progress_of, pull, read_queue, send
from chaos.support.server import SETTINGS, Server
from chaos.test_pair import LARGE_FILES, PATIENCE_S, QUEUES, SMALL_FILES, TOPIC, Pair
from pyromq.wire.codes import ResponseCode

GROUP = "shop"
RUNS = 3
#: The topic of delayed messages.
LATE = "reminders"
#: The group may read what the slave does not have.
VISIBLE_AT_ONCE = 'replication.visibility = "immediate"\n'


async def pyromq(*arguments: object) -> str:
    """Run a command to its end, and return what it printed."""
    command = [sys.executable, "-m", "pyromq", *map(str, arguments)]
    run = await asyncio.to_thread(subprocess.run, command, capture_output=True, text=True, timeout=60, check=False)
    assert run.returncode == 0, run.stdout + run.stderr
    return " ".join(run.stdout.split())


@dataclass
class Bounds:
    """Of a backup: what the pair had acknowledged and committed when it began, and committed when it ended."""

    acknowledged: dict[int, int]
    committed: dict[int, int]
    committed_later: dict[int, int]


class Consumption:
    """A group that reads the master's queues and commits after every pull."""

    def __init__(self) -> None:
        self.committed = dict.fromkeys(range(QUEUES), 0)

    async def step(self, wire: Wire, queue: int) -> list[bytes]:
        """Pull once, commit, and return the bodies."""
        answer = await wire.call(pull(TOPIC, queue, self.committed[queue], group=GROUP, hold_ms=100))
        found = messages_in(answer) if answer.code == ResponseCode.SUCCESS else []
        if found:
            offset = found[-1].queue_offset + 1
            assert (await commit(wire, GROUP, TOPIC, queue, offset)).code == ResponseCode.SUCCESS
            self.committed[queue] = offset
        return [bytes(message.body) for message in found]

    async def run(self, port: int, queue: int) -> None:
        async with connected(port) as wire:
            while True:
                await self.step(wire, queue)


async def ends_of(wire: Wire) -> dict[int, int]:
    return {queue: len(await read_queue(wire, TOPIC, queue)) for queue in range(QUEUES)}


async def progress(wire: Wire) -> dict[int, int]:
    return {queue: await progress_of(wire, GROUP, TOPIC, queue) or 0 for queue in range(QUEUES)}


def table_of(store: Path, name: str) -> dict[str, dict[str, int]]:
    found: dict[str, dict[str, int]] = json.loads((store / "config" / name).read_bytes())["offsetTable"]
    return found


def log_of(store: Path) -> bytes:
    return b"".join(file.read_bytes() for file in sorted((store / "commitlog").iterdir())).rstrip(b"\0")


@asynccontextmanager
async def restored(backup: Path, home: Path, number: int) -> AsyncIterator[Server]:
    """A broker that is about to start on a restored backup."""
    await asyncio.to_thread(home.mkdir)
    await pyromq("restore", backup, home / "store", "--manifest", number)
    server = Server(home, settings=SETTINGS.replace(LARGE_FILES, SMALL_FILES))
    try:
        yield server
    finally:
        if server.is_running():
            server.kill()


async def is_one_moment(server: Server, bounds: Bounds) -> None:
    positions = table_of(server.store, "consumerOffset.json")[f"{TOPIC}@{GROUP}"]
    await asyncio.to_thread(server.start)
    async with connected(server.port) as wire:
        for queue in range(QUEUES):
            found = await read_queue(wire, TOPIC, queue)
            assert [message.queue_offset for message in found] == list(range(len(found)))
            assert len(found) >= bounds.acknowledged[queue], "acknowledged before the backup began"
            position = await progress_of(wire, GROUP, TOPIC, queue)
            assert position == positions[str(queue)], "the start had nothing to set back"
            assert bounds.committed[queue] <= position <= min(len(found), bounds.committed_later[queue])


def test_a_backup_under_load_is_restored_as_one_moment(tmp_path: Path) -> None:
    async def story() -> None:
        async with Pair(tmp_path, "SYNC_MASTER").running() as pair:
            await pair.load(0.3)
            group, port = Consumption(), pair.master.running.port
            loading = asyncio.ensure_future(pair.load(3600.0))
            consuming = [asyncio.ensure_future(group.run(port, queue)) for queue in range(QUEUES)]
            runs: list[Bounds] = []
            async with connected(port) as wire, asyncio.timeout(PATIENCE_S * (1 + RUNS)):
                while not all(group.committed.values()):  # noqa: ASYNC110  the group tells nobody
                    await asyncio.sleep(0.01)
                for _ in range(RUNS):
                    acknowledged, committed = await ends_of(wire), await progress(wire)
                    await pyromq("backup", tmp_path / "backup", "--broker", f"127.0.0.1:{port}")
                    runs.append(Bounds(acknowledged, committed, await progress(wire)))
            for task in (loading, *consuming):
                task.cancel()
            await asyncio.gather(loading, *consuming, return_exceptions=True)
            await pair.level()
            for number, bounds in enumerate(runs, 1):
                async with restored(tmp_path / "backup", tmp_path / f"restored{number}", number) as server:
                    assert pair.slave.log().startswith(log_of(server.store))
                    await is_one_moment(server, bounds)

    asyncio.run(story())


def test_tables_ahead_of_the_slave_are_restored_as_far_as_its_log(tmp_path: Path) -> None:
    """The slave stands still while the group reads on, and a delayed message comes and is delivered."""

    async def story() -> None:
        async with Pair(tmp_path, "SYNC_MASTER", VISIBLE_AT_ONCE).running() as pair:
            await pair.load(0.3)
            group, port = Consumption(), pair.master.running.port
            pair.slave.running.process.send_signal(signal.SIGSTOP)
            kept = pair.slave.log()
            async with connected(port) as wire, asyncio.timeout(PATIENCE_S):
                unacknowledged = [wire.put(send(TOPIC, b"lost", queue)) for queue in range(QUEUES)]
                unacknowledged.append(wire.put(send(LATE, b"late", more={"DELAY": "1"})))
                for queue in range(QUEUES):
                    while b"lost" not in await group.step(wire, queue):
                        pass
                await arrives(wire, b"late")
                await pyromq("backup", tmp_path / "backup", "--broker", f"127.0.0.1:{port}")
                for answer in await asyncio.gather(*unacknowledged):
                    assert answer.code == ResponseCode.FLUSH_SLAVE_TIMEOUT
            async with restored(tmp_path / "backup", tmp_path / "restored", 1) as server:
                assert log_of(server.store) == kept
                positions = table_of(server.store, "consumerOffset.json")[f"{TOPIC}@{GROUP}"]
                assert not any(table_of(server.store, "delayOffset.json").values())
                await asyncio.to_thread(server.start)
                async with connected(server.port) as wire, asyncio.timeout(PATIENCE_S):
                    assert {int(queue): at for queue, at in positions.items()} == await ends_of(wire)
                    for queue in range(QUEUES):
                        await wire.call(send(TOPIC, b"next", queue))
                        found = await read_queue(wire, TOPIC, queue, positions[str(queue)])
                        assert [bytes(one.body) for one in found] == [b"next"], "it has the offset of a lost one"
                    await wire.call(send(LATE, b"again", more={"DELAY": "1"}))
                    await arrives(wire, b"again")

    asyncio.run(story())


async def arrives(wire: Wire, body: bytes) -> None:
    """Wait until a delayed message is delivered, and is the only one."""
    while [bytes(one.body) for one in await read_queue(wire, LATE, 0)] != [body]:  # noqa: ASYNC110  as tests wait
        await asyncio.sleep(0.01)
