"""Automatic batches: the timers and futures around `batching`, which decides.

A send gets a future at once; the delivery of a batch completes the futures of its messages. A message whose waiting
task is gone is sent all the same: it was handed over.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

from pyromq.client.sending.batching import BatchOptions, Gathered, Gathering
from pyromq.client.sending.parcel import BATCH_OVERHEAD, BatchEntry
from pyromq.client.sending.receipt import SendReceipt
from pyromq.errors import PyroMQError, SendUnknown
from pyromq.model.queue import MessageQueue

Waiting = asyncio.Future[SendReceipt]
#: Topic, and the queue where it must be a certain one.
Place = tuple[str, MessageQueue | None]
Deliver = Callable[[Place, Gathered[Waiting]], Awaitable[list[SendReceipt]]]
Spawn = Callable[[Coroutine[Any, Any, Any]], asyncio.Task[Any]]


class AutoBatch:
    """The messages of one producer that wait for company."""

    def __init__(self, options: BatchOptions, deliver: Deliver, spawn: Spawn) -> None:
        self._options = options
        self._deliver = deliver
        self._spawn = spawn
        self._loop = asyncio.get_running_loop()
        self._new_waiting = self._loop.create_future
        self._places: dict[Place, Gathering[Waiting]] = {}
        self._flush_is_due = False
        self._under_way: set[asyncio.Task[None]] = set()
        #: Bytes that wait or are under way. When there are too many, a send has to wait for room.
        self._bytes = 0
        self.is_full = False
        self._room = asyncio.Event()

    async def wait_for_room(self) -> None:
        while self.is_full:
            self._room.clear()
            await self._room.wait()

    def add(self, place: Place, entry: BatchEntry, message_id: str) -> Waiting:
        """Hand over a message; the future of its receipt."""
        size = BATCH_OVERHEAD + len(entry[1]) + len(entry[2])
        gathering = self._places.get(place)
        if gathering is None:
            gathering = self._open(place)
        elif not gathering.fits(size):
            self._send(place, gathering)
        if not gathering.since:
            gathering.since = self._loop.time()
        waiting: Waiting = self._new_waiting()
        self._bytes += size
        if gathering.add(entry, size, message_id, waiting):
            self._send(place, gathering)
        elif not self._flush_is_due:
            self._flush_soon()
        return waiting

    def _open(self, place: Place) -> Gathering[Waiting]:
        for other in [one for one, idle in self._places.items() if not idle.in_flight and not len(idle)]:
            del self._places[other]  # there are as many places as are in use
        made = self._places[place] = Gathering(self._options)
        return made

    async def finish(self) -> None:
        """Send everything that waits, and return when all of it is settled."""
        for place, gathering in tuple(self._places.items()):
            if len(gathering):
                self._send(place, gathering)
        while self._under_way:
            await asyncio.wait(tuple(self._under_way))

    def _flush_soon(self) -> None:
        self._flush_is_due = True
        if self._options.linger_s:
            self._loop.call_later(self._options.linger_s, self._flush)
        else:
            self._loop.call_soon(self._flush)

    def _flush(self) -> None:
        self._flush_is_due = False
        for place, gathering in tuple(self._places.items()):
            if gathering.may_leave():
                self._send(place, gathering)

    def _send(self, place: Place, gathering: Gathering[Waiting]) -> None:
        self.is_full = self._bytes >= self._options.max_waiting_bytes
        task = self._spawn(self._settle(place, gathering, gathering.take()))
        self._under_way.add(task)
        task.add_done_callback(self._under_way.discard)

    async def _settle(self, place: Place, gathering: Gathering[Waiting], batch: Gathered[Waiting]) -> None:
        try:
            receipts = await self._deliver(place, batch)
        except PyroMQError as error:
            _fail(batch.waiters, error)
        except BaseException:
            _fail(batch.waiters, SendUnknown("the producer stopped before the answer came: it may be stored or not"))
            raise
        else:
            for waiting, receipt in zip(batch.waiters, receipts, strict=True):
                if not waiting.done():
                    waiting.set_result(receipt)
        finally:
            gathering.in_flight -= 1
            self._bytes -= batch.size
            self.is_full = self._bytes >= self._options.max_waiting_bytes
            if not self.is_full:
                self._room.set()
        if gathering.may_leave() and not self._flush_is_due:
            # Those who were just woken may send more: they get a turn of the loop to do so.
            self._flush_is_due = True
            self._loop.call_soon(self._flush)


def _fail(waiters: list[Waiting], error: PyroMQError) -> None:
    for waiting in waiters:
        if not waiting.done():
            waiting.set_exception(error)
            waiting.exception()  # retrieved, even if the waiting task is gone
