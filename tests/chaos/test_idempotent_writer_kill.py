"""Writers that send again whatever was not answered, to a broker that is killed under them: each message comes once.

Two kinds of them: those that number their messages, and those that send halves and say commit again and again.
`PYROMQ_CHAOS_KILLS` sets the number of kills of each.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from chaos.support.client import Gone, Wire, connected, read_queue, send
from chaos.support.server import Server
from pyromq.client.sending.writer_identity import writer_identity
from pyromq.records.batch import encode_batch
from pyromq.wire.codes import RequestCode, ResponseCode
from pyromq.wire.command import Command
from pyromq.wire.requests.admin import GetRuntimeInfo, UpdateTopic
from pyromq.wire.requests.client import EndTransaction, IssueWriter

KILLS = int(os.environ.get("PYROMQ_CHAOS_KILLS", "5"))
TOPIC, QUEUES = "numbered", 2
COMMIT, ROLL_BACK = 8, 12
SYNC = "[store.flush]\nsync = true\n"
#: Messages of one batch, of one request at most, and requests under way.
BATCH, REQUEST, WINDOW = 600, 40, 8

Work = Callable[[Wire], Coroutine[Any, Any, None]]


async def until_killed(server: Server, seconds: float, works: list[Work]) -> None:
    """All of them work side by side, each in a connection of its own, until the broker is gone."""

    async def one(work: Work) -> None:
        with contextlib.suppress(Gone, OSError):
            async with connected(server.port) as wire:
                while True:
                    await work(wire)

    tasks = [asyncio.ensure_future(one(work)) for work in works]
    await asyncio.sleep(seconds)
    server.kill()
    async with asyncio.timeout(20):
        await asyncio.gather(*tasks)


async def make_topic(server: Server) -> None:
    async with connected(server.port) as wire:
        made = UpdateTopic(topic=TOPIC, read_queues=QUEUES, write_queues=QUEUES, permission=6)
        assert (await wire.call(made)).code == ResponseCode.SUCCESS


async def lives(server: Server, rng: random.Random, works: list[Work]) -> None:
    for number in range(KILLS):
        await until_killed(server, rng.uniform(0.15, 0.8), works)
        if number % 3 == 2:
            server.kill_while_it_starts(rng.uniform(0.25, 0.6))
        server.start()


# --- numbered messages -----------------------------------------------------------------------------------------------


@dataclass
class Writer:
    """Writes batch behind batch to one queue. After a kill it begins with the batch that it had no word of in full."""

    name: str
    queue: int
    rng: random.Random
    batch: int = 0
    repeated: int = 0
    token: str = ""

    async def write_batch(self, wire: Wire) -> None:
        issued = await wire.call(IssueWriter(seed=writer_identity(self.name).seed))
        self.token = issued.fields["writerToken"]
        under_way: list[asyncio.Future[Command]] = []
        first = 0
        while first < BATCH:
            count = min(self.rng.randint(1, REQUEST), BATCH - first)
            under_way.append(wire.put(self.request(first, count)))
            first += count
            if len(under_way) == WINDOW:
                await self.answered(under_way.pop(0))
        for answer in under_way:
            await self.answered(answer)
        self.batch += 1

    def request(self, first: int, count: int) -> Command:
        entries = [(0, self.body(index), self.properties(index)) for index in range(first, first + count)]
        request = send(TOPIC, encode_batch(entries), self.queue, code=RequestCode.SEND_BATCH_MESSAGE)
        request.fields["writerToken"] = self.token
        return request

    def body(self, index: int) -> bytes:
        return f"{self.name} {self.batch}:{index} ".encode() + b"." * 100

    def properties(self, index: int) -> bytes:
        writer = writer_identity(self.name).writer
        return f"PYROMQ_WRITER\x01{writer}\x02PYROMQ_SEQUENCE\x01{self.batch}:{index}\x02".encode()

    async def answered(self, waiting: asyncio.Future[Command]) -> None:
        answer = await waiting
        assert answer.code == ResponseCode.SUCCESS, answer.reason
        self.repeated += int(answer.fields.get("repeated", "0"))

    def expected(self) -> list[str]:
        """What the batches hold that were acknowledged in full."""
        return [f"{batch}:{index}" for batch in range(self.batch) for index in range(BATCH)]


async def finish(server: Server, writers: list[Writer]) -> None:
    """The broker stays: the batch that was not acknowledged is written once more."""
    async with connected(server.port) as wire:
        for writer in writers:
            await writer.write_batch(wire)
        info = await wire.call(GetRuntimeInfo())
        assert b'"pyromq.idempotentWriters":"true"' in info.body.replace(b" ", b"")


@pytest.mark.parametrize("settings", ["", SYNC], ids=["async flush", "sync flush"])
def test_numbered_messages_are_there_once_and_in_order(tmp_path: Path, settings: str) -> None:
    async def story() -> None:
        rng = random.Random(11)
        with Server(tmp_path, settings) as server:
            await make_topic(server)
            writers = [Writer(f"query-1/{number}", number % QUEUES, rng) for number in range(4)]
            await lives(server, rng, [writer.write_batch for writer in writers])
            await finish(server, writers)
            async with connected(server.port) as wire:
                for queue in range(QUEUES):
                    found = [message.body.decode().split() for message in await read_queue(wire, TOPIC, queue)]
                    for writer in writers:
                        own = [number for name, number, _ in found if name == writer.name]
                        assert own == (writer.expected() if writer.queue == queue else [])
            assert sum(writer.batch for writer in writers) > len(writers)
            assert sum(writer.repeated for writer in writers) > 0, "no kill came in the middle of a batch"

    asyncio.run(story())


# --- transactions ----------------------------------------------------------------------------------------------------


@dataclass
class Transactions:
    """Sends halves, and ends those that it has no answer of again and again; some that it has one of, too."""

    rng: random.Random
    serial: int = 0
    unanswered: dict[str, EndTransaction] = field(default_factory=dict)
    answered: dict[str, EndTransaction] = field(default_factory=dict)

    async def work(self, wire: Wire) -> None:
        for name in [*self.unanswered, *self.rng.sample(sorted(self.answered), min(3, len(self.answered)))]:
            await self.end(wire, name)
        names = [f"t{self.serial + number}" for number in range(20)]
        self.serial += len(names)
        halves = [wire.put(self.half(name)) for name in names]
        for name, half in zip(names, halves, strict=True):
            self.began(name, await half)
        await asyncio.gather(*(self.end(wire, name) for name in names for _ in range(2)))

    def half(self, name: str) -> Command:
        more = {"TRAN_MSG": "true", "PGROUP": "producers", "UNIQ_KEY": name}
        return send(TOPIC, name.encode(), self.serial % QUEUES, more=more, flags=4)

    def began(self, name: str, answer: Command) -> None:
        assert answer.code == ResponseCode.SUCCESS, answer.reason
        self.unanswered[name] = EndTransaction(
            producer_group="producers", half_offset=int(answer.fields["queueOffset"]),
            half_position=int(answer.fields["msgId"][-16:], 16), message_id=name,
            decision=ROLL_BACK if int(name[1:]) % 5 == 4 else COMMIT,
        )  # fmt: skip

    async def end(self, wire: Wire, name: str) -> None:
        request = self.unanswered.get(name) or self.answered[name]
        answer = await wire.call(request)
        assert answer.code == ResponseCode.SUCCESS, answer.reason
        self.unanswered.pop(name, None)
        self.answered[name] = request

    def committed(self) -> list[str]:
        return sorted(name for name, request in self.answered.items() if request.decision == COMMIT)


@pytest.mark.parametrize("settings", ["", SYNC], ids=["async flush", "sync flush"])
def test_a_transaction_that_is_ended_again_and_again_is_one_message(tmp_path: Path, settings: str) -> None:
    async def story() -> None:
        rng = random.Random(12)
        with Server(tmp_path, settings) as server:
            await make_topic(server)
            producers = Transactions(rng)
            await lives(server, rng, [producers.work])
            async with connected(server.port) as wire:
                await producers.work(wire)
                found = [one.body.decode() for queue in range(QUEUES) for one in await read_queue(wire, TOPIC, queue)]
            assert sorted(found) == producers.committed()
            assert len(found) > 10 * KILLS

    asyncio.run(story())
