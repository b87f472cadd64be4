"""Getting the rows of a task to brokers: some requests under way at once, every answer awaited.

A `Lane` is the way to one queue. Requests leave it in order, on one connection, several before the first is answered.
After a failure the lane waits for the answers to the others, and continues with the failed requests in their order: if
the broker deduplicates rows by their numbers, nothing is stored twice or out of order.

Everything here runs on the loop of the client; tasks of Spark wait for it.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from functools import partial

from pyromq.client.sending.parcel import Parcel
from pyromq.client.sending.writer_identity import WriterIdentity
from pyromq.errors import CallFailed
from pyromq.model.queue import MessageQueue
from pyromq.spark.sink.outlet import (
    TRY_SECONDS,
    Make,
    Outcome,
    Outlet,
    Patience,
    Queues,
    Tries,
    deliver,
    judge,
    outcome_of,
)
from pyromq.wire.codes import ResponseCode
from pyromq.wire.command import Command

log = logging.getLogger("pyromq.spark")

#: The broker's answer to repeated messages: their number in the request.
REPEATED = "repeated"

# --- requests with many messages -------------------------------------------------------------------------------------


@dataclass(slots=True, eq=False)
class _Item:
    parcel: Parcel
    #: Queues that will do as well when this one fails.
    others: Queues
    tries: Tries


class Lane:
    """The way to one queue."""

    def __init__(
        self,
        outlet: Outlet,
        queue: MessageQueue,
        patience: Patience,
        done: Callable[[Command], None],
        writer: WriterIdentity | None = None,
    ) -> None:
        self._outlet = outlet
        self._writer = writer
        self.queue = queue
        self._patience = patience
        self._done = done
        self._waiting: deque[_Item] = deque()
        self._under_way: deque[tuple[_Item, asyncio.Future[Command]]] = deque()
        self._running: asyncio.Task[None] | None = None
        #: The target after a failure of items that may go to any queue.
        self.elsewhere: Callable[[_Item], bool] = lambda _: False

    @property
    def is_busy(self) -> bool:
        return self._running is not None and not self._running.done()

    def put(self, item: _Item, spawn: Callable[[Awaitable[None]], asyncio.Task[None]]) -> None:
        self._waiting.append(item)
        if not self.is_busy:
            self._running = spawn(self._run())

    async def _run(self) -> None:
        try:
            while self._waiting or self._under_way:
                await self._hand_over()
                if self._under_way:
                    await self._next_answer()
        finally:
            for _, answer in self._under_way:
                answer.cancel()

    async def _hand_over(self) -> None:
        while self._waiting:
            item = self._waiting[0]
            try:
                async with asyncio.timeout(TRY_SECONDS):
                    answer = await self._outlet.send(item.parcel, self.queue, TRY_SECONDS, self._writer)
            except (CallFailed, TimeoutError) as error:
                await self._failed([(self._waiting.popleft(), error)], was_sent=False)
                return
            self._waiting.popleft()
            self._under_way.append((item, answer))

    async def _next_answer(self) -> None:
        item, answer = self._under_way[0]
        outcome = await outcome_of(answer)
        if isinstance(outcome, Command) and outcome.code == ResponseCode.SUCCESS:
            self._under_way.popleft()
            self._done(outcome)
            return
        others = list(self._under_way)[1:]
        outcomes = [(item, outcome)] + [(one, await outcome_of(other)) for one, other in others]
        self._under_way.clear()
        failed = []
        for one, came in outcomes:
            if isinstance(came, Command) and came.code == ResponseCode.SUCCESS:
                self._done(came)
            else:
                failed.append((one, came))
        await self._failed(failed)

    async def _failed(self, failed: Sequence[tuple[_Item, Command | BaseException]], *, was_sent: bool = True) -> None:
        """The first failure decides: those after it may have failed only because of it."""
        item, outcome = failed[0]
        tries, error = item.tries, judge(outcome, item.tries, self.queue.broker_name, was_sent=was_sent)
        assert error is not None
        tries.count += 1
        tries.errors.append(error)
        self._patience.check(tries, self.queue.topic)
        log.info("%s/%d: sent again after this: %s", self.queue.broker_name, self.queue.queue_id, error)
        await self._outlet.look_again(self.queue, error)
        stay = [one for one, _ in failed if not (one.others and self.elsewhere(one))]
        self._waiting.extendleft(reversed(stay))
        if stay:
            await self._patience.pause(tries)


class Batches:
    """Requests of one task that carry many messages. `writer`: the identity of numbered ones."""

    def __init__(
        self, outlet: Outlet, patience: Patience, in_flight: int, writer: WriterIdentity | None = None
    ) -> None:
        self._outlet = outlet
        self._writer = writer
        self._patience = patience
        self._room = asyncio.Semaphore(in_flight)
        self._lanes: dict[MessageQueue, Lane] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._error: BaseException | None = None
        self._open = 0
        self._settled = asyncio.Event()
        #: Messages that a broker had already.
        self.repeated = 0

    async def put(self, parcel: Parcel, queue: MessageQueue, others: Queues = ()) -> None:
        """Hand over a request, when there is room for one more; `others` are queues that would do as well.

        Raises what an earlier one failed with.
        """
        await self._room.acquire()
        self._raise()
        self._open += 1
        self._lane(queue).put(_Item(parcel, others, self._patience.begin()), self._spawn)

    async def finish(self) -> None:
        """Wait for all answers. Raises what one failed with."""
        while self._open and self._error is None:
            self._settled.clear()
            await self._settled.wait()
        self._raise()

    async def cancel(self) -> None:
        for task in tuple(self._tasks):
            task.cancel()
        if self._tasks:
            await asyncio.wait(tuple(self._tasks))

    def _raise(self) -> None:
        if self._error is not None:
            raise self._error

    def _lane(self, queue: MessageQueue) -> Lane:
        lane = self._lanes.get(queue)
        if lane is None:
            lane = self._lanes[queue] = Lane(self._outlet, queue, self._patience, self._done, self._writer)
            lane.elsewhere = lambda item: self._move(item, queue)
        return lane

    def _move(self, item: _Item, failed: MessageQueue) -> bool:
        """To a queue of another broker, if there is one."""
        others = [queue for queue in item.others if queue.broker_name != failed.broker_name]
        if others:
            self._lane(others[item.tries.count % len(others)]).put(item, self._spawn)
        return bool(others)

    def _done(self, answer: Command) -> None:
        self.repeated += int(answer.fields.get(REPEATED, 0))
        self._open -= 1
        self._room.release()
        if not self._open:
            self._settled.set()

    def _spawn(self, work: Awaitable[None]) -> asyncio.Task[None]:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        error = None if task.cancelled() else task.exception()
        if error is not None and self._error is None:
            self._error = error
            self._settled.set()
            self._room.release()  # wakes a waiting sender


# --- messages alone --------------------------------------------------------------------------------------------------


class Singles:
    """Messages of one task that go alone: held back, or halves of transactions.

    As long as all goes well there is no task of the loop for each of them: a callback takes the answer.
    """

    def __init__(self, outlet: Outlet, patience: Patience, in_flight: int) -> None:
        self._outlet = outlet
        self._patience = patience
        self._room = asyncio.Semaphore(in_flight)
        self._open = 0
        self._settled = asyncio.Event()
        self._tasks: set[asyncio.Task[None]] = set()
        self._error: BaseException | None = None

    async def put(self, make: Make, queue: MessageQueue, stored: Callable[[Command], None]) -> None:
        """Send, when there is room for one more; `stored` gets the answer. Raises what an earlier one failed with."""
        await self._room.acquire()
        if self._error is not None:
            raise self._error
        self._open += 1
        answer = self._outlet.send_now(make(False), queue, TRY_SECONDS)
        if answer is None:
            self._send_beside(make, queue, stored, None)
        else:
            answer.add_done_callback(partial(self._answered, make, queue, stored))

    def _answered(
        self, make: Make, queue: MessageQueue, stored: Callable[[Command], None], answer: asyncio.Future[Command]
    ) -> None:
        outcome: Command | BaseException | None = answer.exception()
        if outcome is None:
            outcome = answer.result()
            if outcome.code == ResponseCode.SUCCESS:
                stored(outcome)
                return self._done()
        return self._send_beside(make, queue, stored, (outcome, True))

    def _send_beside(
        self, make: Make, queue: MessageQueue, stored: Callable[[Command], None], first: Outcome | None
    ) -> None:
        task = asyncio.ensure_future(self._send(make, queue, stored, first))
        self._tasks.add(task)
        task.add_done_callback(self._ended)

    async def _send(
        self, make: Make, queue: MessageQueue, stored: Callable[[Command], None], first: Outcome | None
    ) -> None:
        stored(await deliver(self._outlet, make, queue, self._patience, first))

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        error = None if task.cancelled() else task.exception()
        if error is not None and self._error is None:
            self._error = error
        self._done()

    def _done(self) -> None:
        self._open -= 1
        self._room.release()
        if not self._open:
            self._settled.set()

    async def finish(self) -> None:
        """Wait for all answers. Raises what one failed with."""
        await self.settle()
        if self._error is not None:
            raise self._error

    async def settle(self) -> None:
        """Wait for the requests in flight, ignoring their results."""
        while self._open:
            self._settled.clear()
            await self._settled.wait()
