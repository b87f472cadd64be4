"""The messages of a topic as they come, one after the other, without anybody's progress changing.

Every queue is read by a task of its own; what they find is handed over in one row that is bounded, so that a reader who
is slow makes them wait. A topic that is not there yet is waited for.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import stat
import sys
from collections.abc import AsyncIterator, Mapping
from typing import TYPE_CHECKING, TypeAlias

from pyromq.admin.messages import GOES_ON, pull_of
from pyromq.admin.reading import number_in
from pyromq.cli import output
from pyromq.cli.output import escaped
from pyromq.client.received import ReceivedMessage, split_records
from pyromq.errors import CallFailed, NotFound, PyroMQError, TopicNotFound
from pyromq.model.queue import MessageQueue

if TYPE_CHECKING:
    from pyromq.admin.admin import Admin

#: A pull that may be held, and for how long.
HELD, HOLD_MS = 2, 15_000
CALL_SECONDS = 3.0
#: Interval of retries for a missing topic or an unreachable broker.
LOOK_AGAIN_SECONDS = 0.5
#: Stop pulling while this many messages wait to be shown.
FOUND_AT_MOST = 1000

#: A message to show, an error, or `None` after the reader stopped.
Findings: TypeAlias = "asyncio.Queue[ReceivedMessage | PyroMQError | None]"


async def follow(
    admin: Admin, starts: Mapping[MessageQueue, int], tags: str, *, patient: bool = False
) -> AsyncIterator[ReceivedMessage]:
    """Yield the messages of these queues from these offsets on, including new ones, until the reader stops.

    If a broker does not answer it raises the error; with `patient` it reports the error once and retries.
    """
    found: Findings = asyncio.Queue(FOUND_AT_MOST)
    _notice_the_end_of_the_reader(found)
    pulls = [asyncio.create_task(_pull(admin, queue, at, tags, found, patient)) for queue, at in starts.items()]
    try:
        while (one := await found.get()) is not None:
            if isinstance(one, PyroMQError):
                raise one
            yield one
    finally:
        for pull in pulls:
            pull.cancel()
        await asyncio.gather(*pulls, return_exceptions=True)


async def queues_when_there(admin: Admin, topic: str) -> tuple[list[MessageQueue], bool]:
    """The queues of a topic, and whether it was there from the beginning."""
    was_there = True
    while True:
        try:
            return await admin.messages.queues(topic), was_there
        except TopicNotFound:
            if was_there:
                output.note(escaped(f"no broker has a topic {topic!r} that may be read: waiting for it"))
            was_there = False
            await asyncio.sleep(LOOK_AGAIN_SECONDS)


async def _pull(admin: Admin, queue: MessageQueue, offset: int, tags: str, found: Findings, patient: bool) -> None:
    """Pull one queue until cancelled; pass errors to the reader."""
    was_lost = False
    while True:
        try:
            offset = await _pull_once(admin, queue, offset, tags, found)
            was_lost = False
        except (CallFailed, TopicNotFound, NotFound) as error:  # the last two: a broker that went says so first
            admin.messages.forget_addresses()
            if not patient:
                await found.put(error)
                return
            if not was_lost:
                output.note(f"[yellow]![/] {escaped(f'{error}; trying again')}")
            was_lost = True
            await asyncio.sleep(LOOK_AGAIN_SECONDS)
        except PyroMQError as error:
            await found.put(error)
            return


async def _pull_once(admin: Admin, queue: MessageQueue, offset: int, tags: str, found: Findings) -> int:
    """One pull. Where to go on."""
    request = pull_of(queue, offset, 32, tags)
    request.flags |= HELD
    request.suspend_ms = HOLD_MS
    address = await admin.messages.address(queue)
    answer = await admin.session.ask(address, request, HOLD_MS / 1000 + CALL_SECONDS, ok=GOES_ON)
    for message in split_records(answer.body, queue):
        await found.put(message)
    return number_in(answer, "nextBeginOffset")


def _notice_the_end_of_the_reader(found: Findings) -> None:
    """`pyromq tail … | head -1` ends when `head` does, and not with the next message."""
    try:
        number = sys.stdout.fileno()
        if not stat.S_ISFIFO(os.fstat(number).st_mode):
            return
    except (OSError, ValueError):  # no file at all
        return
    loop = asyncio.get_running_loop()

    def ended() -> None:
        loop.remove_reader(number)
        with contextlib.suppress(asyncio.QueueFull):  # then something is shown next, and fails
            found.put_nowait(None)

    loop.add_reader(number, ended)
