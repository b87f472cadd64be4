"""Messages that wait for a program to ask for them, and those that it was given and has not acknowledged."""

from __future__ import annotations

import asyncio
from collections import deque
from itertools import islice
from typing import NamedTuple

from pyromq.client.consuming.process_queue import Run
from pyromq.client.consuming.queue_worker import Lane
from pyromq.client.received import ReceivedMessage
from pyromq.model.queue import MessageQueue


class _Given(NamedTuple):
    run: Run
    first: int
    size: int


class Polled:
    """Of one consumer. Nothing that was given counts as handled before `acknowledge`."""

    def __init__(self) -> None:
        self._ready: deque[Run] = deque()
        self._given: list[_Given] = []
        self._waiting: asyncio.Future[None] | None = None
        #: The next fetch of a queue from which messages were returned.
        self.positions: dict[MessageQueue, int] = {}

    def arrived(self, lane: Lane, run: Run) -> None:
        self._ready.append(run)
        self.wake()

    @property
    def is_waited_for(self) -> bool:
        return self._waiting is not None

    def wake(self) -> None:
        """Wake the waiting poll: messages arrived, or none will arrive any more."""
        if self._waiting is not None and not self._waiting.done():
            self._waiting.set_result(None)

    async def wait(self, timeout_s: float | None) -> None:
        """Until something has arrived, or the time is up."""
        if self._ready:
            return
        self._waiting = asyncio.get_running_loop().create_future()
        try:
            async with asyncio.timeout(timeout_s):
                await self._waiting
        except TimeoutError:
            pass
        finally:
            self._waiting = None

    def take(self, most: int) -> list[ReceivedMessage]:
        """Return the messages at hand, of the oldest fetches first."""
        messages: list[ReceivedMessage] = []
        while self._ready and len(messages) < most:
            run = self._ready[0]
            taken = list(islice(run.todo, most - len(messages)))
            if taken:
                self._give(run, taken)
                messages += [message for _, message in taken]
            if len(messages) < most or taken[-1][0] == len(run.messages) - 1:
                self._ready.popleft()
        return messages

    def _give(self, run: Run, taken: list[tuple[int, ReceivedMessage]]) -> None:
        self._given.append(_Given(run, taken[0][0], len(taken)))
        last_index, last = taken[-1]
        is_last = last_index == len(run.messages) - 1
        self.positions[run.owner.queue] = run.next_offset if is_last else last.queue_offset + 1

    def acknowledge(self) -> None:
        """All that was given is handled."""
        given, self._given = self._given, []
        for one in given:
            one.run.finish_many(one.first, one.size)

    def forget(self, queue: MessageQueue) -> None:
        """The caller seeks in it."""
        self.positions.pop(queue, None)
        self._given = [one for one in self._given if one.run.owner.queue != queue]
