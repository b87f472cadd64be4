"""Consumers that write down what they are given: in this process, or in one of their own that can be killed.

    python members.py NAME_SERVERS GROUP TOPIC CLIENT ordered|concurrent

The program says each event on stdout, one JSON line each, as it happens: what a killed one had said is not lost.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import orjson

from pyromq import ClientOptions, ConsumeFrom, PushConsumer, ReceivedMessage
from pyromq.client.consuming import queue_worker
from pyromq.client.group import member, queue_locks
from pyromq.errors import PyroMQError
from pyromq.testing import History
from pyromq.testing.history.events import Event, from_json, to_json

#: One in so many messages fails at its first attempt, in groups that may ask for it again.
FAILS_AT_FIRST = 50
OPTIONS = ClientOptions(call_timeout_s=1.5, connect_timeout_s=1.5, heartbeat_s=1.0, route_refresh_s=1.0)


def quicker() -> None:
    """What clients do every half minute, they do every second or so; what may take one, may take a few seconds.

    Brokers of the cluster give a lock to another after twice the time that it counts here, as always.
    """
    queue_locks.RENEW_SECONDS, queue_locks.EXPIRY_SECONDS = 0.7, 2.0
    member.LOOK_SECONDS = 1.0
    queue_worker.PATIENCE_SECONDS = 2.0


class HandlerFails(Exception):
    """On purpose."""


@dataclass(slots=True)
class Member:
    """One consumer, from its birth to its end."""

    name_servers: str
    group: str
    topic: str
    client: str
    history: History
    ordered: bool = False
    broadcast_in: Path | None = None
    fails: bool = False
    task: asyncio.Task[None] | None = None

    def consumer(self) -> PushConsumer:
        consumer = PushConsumer(
            self.name_servers,
            group=self.group,
            options=OPTIONS,
            ordered=self.ordered,
            broadcast=self.broadcast_in is not None,
            offsets_dir=self.broadcast_in,
            consume_from=ConsumeFrom.FIRST,
            concurrency=8,
            hold_s=2.0,
            retry_delay=1,
            pause_s=0.1,
            commit_every_s=0.3,
            stop_grace_s=1.0,
        )
        consumer.subscribe(self.topic, self.handle)
        return consumer

    async def handle(self, message: ReceivedMessage) -> None:
        name, place = message.body.decode(), (message.queue, message.queue_offset)
        self.history.delivered(self.client, self.group, *place, name, attempt=message.delivery_attempt)
        await asyncio.sleep(0.001)
        again = self.fails and message.queue_offset % FAILS_AT_FIRST == 0 and message.delivery_attempt == 1
        self.history.handled(self.client, self.group, *place, name, again=again)
        if again:
            raise HandlerFails(name)

    # --- life --------------------------------------------------------------------------------------------------------

    def start(self) -> Self:
        self.task = asyncio.create_task(self._run(), name=self.client)
        return self

    async def _run(self) -> None:
        while True:
            consumer = self.consumer()
            try:
                async with consumer:
                    await asyncio.Event().wait()
            except PyroMQError:  # no name server is there yet: a program is started again
                await asyncio.sleep(0.3)

    async def leave(self) -> None:
        """In order, with goodbyes."""
        await self._cancelled(1)

    async def vanish(self) -> None:
        """Without giving it time for anything: cancelled wherever it is, and again while it cleans up."""
        await self._cancelled(1000)

    async def _cancelled(self, times: int) -> None:
        assert self.task is not None
        for _ in range(times):
            self.task.cancel()
            await asyncio.sleep(0)
            if self.task.done():
                break
        with contextlib.suppress(asyncio.CancelledError):
            await self.task


# --- a process of its own --------------------------------------------------------------------------------------------


@dataclass(slots=True)
class MemberProcess:
    """The same as a program; what it says goes into the history."""

    name_servers: str
    group: str
    topic: str
    client: str
    history: History
    ordered: bool = False
    process: asyncio.subprocess.Process | None = None
    _listening: asyncio.Task[None] | None = None

    async def start(self) -> Self:
        kind = "ordered" if self.ordered else "concurrent"
        self.process = await asyncio.create_subprocess_exec(
            sys.executable, __file__, self.name_servers, self.group, self.topic, self.client, kind,
            stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.DEVNULL,
        )  # fmt: skip
        self._listening = asyncio.create_task(self._listen())
        return self

    async def _listen(self) -> None:
        assert self.process is not None
        assert self.process.stdout is not None
        while (line := await self.process.stdout.readline()).endswith(b"\n"):
            self.history.add(from_json(orjson.loads(line)))

    async def kill(self) -> None:
        assert self.process is not None
        assert self._listening is not None
        with contextlib.suppress(ProcessLookupError):
            self.process.kill()
        await self.process.wait()
        await self._listening


class Said(History):
    """Written to stdout instead of into memory."""

    def add(self, event: Event) -> None:
        os.write(1, orjson.dumps(to_json(event), option=orjson.OPT_APPEND_NEWLINE))


async def _main(name_servers: str, group: str, topic: str, client: str, kind: str) -> None:
    quicker()
    member = Member(name_servers, group, topic, client, Said(), ordered=kind == "ordered").start()
    await asyncio.to_thread(sys.stdin.read)  # whoever started it is gone
    await member.leave()


if __name__ == "__main__":
    asyncio.run(_main(*sys.argv[1:]))
