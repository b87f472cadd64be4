"""Handles messages of any queue concurrently: a fixed number of workers take fetched messages.

Nothing is made for a message, no task and no timer. A worker takes the next message of the oldest run, and when nothing
is left it waits until something arrives. Handlers that never wait for anything are interrupted now and then, so that
the loop does its other work. A worker that is cancelled while its consumer runs, by a handler as a rule, is replaced:
the message that it was at is a failed delivery.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Iterator
from itertools import islice
from typing import Any

from pyromq.client.consuming.ending import let_end
from pyromq.client.consuming.handler_task import HandlerTask, is_at_loop_end
from pyromq.client.consuming.large_bodies import LargeBodies
from pyromq.client.consuming.listeners import Listener, Listeners, is_its_own
from pyromq.client.consuming.process_queue import Run
from pyromq.client.consuming.queue_worker import Lane
from pyromq.client.consuming.sending_back import SendingBack, told
from pyromq.client.consuming.settings import ConsumerSettings
from pyromq.client.received import ReceivedMessage
from pyromq.client.session import Session

log = logging.getLogger("pyromq.client")

#: A worker yields to the loop after this time, and reads the clock after this many messages.
SLICE_SECONDS = 0.005
LOOK_MASK = 31
#: The pause before a message is tried again that could not be sent back.
AGAIN_SECONDS = 5.0


class Workers:
    """Of one consumer."""

    def __init__(
        self, session: Session, settings: ConsumerSettings, listeners: Listeners, sending_back: SendingBack
    ) -> None:
        self._session = session
        self._settings = settings
        self._listeners = listeners
        self._sending_back = sending_back
        self._ready: deque[Run] = deque()
        self._idle: deque[asyncio.Future[None]] = deque()
        self._tasks: list[asyncio.Task[Any]] = []
        self._is_stopping = False
        self._large_bodies = LargeBodies()
        self.failed = 0

    def start(self) -> None:
        self._tasks = [self._new_worker() for _ in range(self._settings.concurrency)]

    def _new_worker(self) -> asyncio.Task[Any]:
        return self._session.spawn(self._work(), HandlerTask)

    def arrived(self, lane: Lane, run: Run) -> None:
        """Messages to handle."""
        lane.handled_ms = lane.fetched_ms
        self._offer(run, run.left)

    def _offer(self, run: Run, count: int) -> None:
        self._ready.append(run)
        while count and self._idle:
            waiting = self._idle.popleft()
            if not waiting.done():  # else its worker was cancelled
                waiting.set_result(None)
                count -= 1

    def runs(self, task: asyncio.Task[Any] | None) -> bool:
        """Return whether a task is one of the workers: it handles a message at the moment."""
        return task in self._tasks

    async def stop(self) -> None:
        """Let handlers that are at work end; cancel those that do not within the grace."""
        self._is_stopping = True
        while self._idle:
            waiting = self._idle.popleft()
            if not waiting.done():
                waiting.set_result(None)
        await let_end(self._tasks, self._settings.stop_grace_s)

    # --- a worker ----------------------------------------------------------------------------------------------------

    @property
    def _is_ending(self) -> bool:
        """Return whether a cancellation of the current task is meant to end it."""
        return self._is_stopping or self._session.is_closing or is_at_loop_end()

    async def _work(self) -> None:
        try:
            await self._work_on()
        except asyncio.CancelledError:
            if not self._is_ending:
                log.warning("a task that handles messages was cancelled, by its handler or by another task: replaced")
                self._tasks = [task for task in self._tasks if task is not asyncio.current_task()]
                self._tasks.append(self._new_worker())
            raise

    async def _work_on(self) -> None:
        ready = self._ready
        while True:
            if not ready:
                if self._is_stopping:
                    return
                await self._wait()
                continue
            run = ready[0]
            todo = run.todo
            listener = self._listeners.of(run.owner.queue.topic)
            if listener.batch:
                await self._handle_batches(run, todo, listener)
            else:
                await self._handle_each(run, todo, listener)
            # Nothing was awaited since `todo` came to its end, so the run is still what it was then.
            if ready and ready[0] is run and run.todo is todo:
                ready.popleft()

    async def _wait(self) -> None:
        waiting: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._idle.append(waiting)
        await waiting

    async def _handle_each(self, run: Run, todo: Iterator[tuple[int, ReceivedMessage]], listener: Listener) -> None:
        """The busiest loop of a consumer: `Run.finish` is written out in it."""
        handle, call, done = listener.call, self._large_bodies.call, run.done
        task = asyncio.current_task()
        assert task is not None
        cancelling = task.cancelling
        now = self._session.clock.monotonic
        until = now() + SLICE_SECONDS
        for index, message in todo:
            try:
                await call(handle, message)
            except BaseException as error:  # handlers are the program's own: anything asks for redelivery
                if not is_its_own(error):
                    self._interrupted(run, [(index, message)], error)
                    raise
                await self._failed(run, index, message, error)
            else:
                done[index] = 1
                run.left -= 1
                if not run.left:
                    run.settle()
                if cancelling():
                    await asyncio.sleep(0)  # raises here what the handler asked for, and not in the next handler
            if not index & LOOK_MASK and now() > until:
                await asyncio.sleep(0)
                until = now() + SLICE_SECONDS

    async def _handle_batches(self, run: Run, todo: Iterator[tuple[int, ReceivedMessage]], listener: Listener) -> None:
        while taken := list(islice(todo, listener.batch)):
            try:
                await self._large_bodies.call_batch(listener.call, [message for _, message in taken])
            except BaseException as error:
                if not is_its_own(error):
                    self._interrupted(run, taken, error)
                    raise
                for index, message in taken:
                    await self._failed(run, index, message, error)
            else:
                for index, _ in taken:
                    run.finish(index)
            await asyncio.sleep(0)

    # --- what failed -------------------------------------------------------------------------------------------------

    def _interrupted(self, run: Run, taken: list[tuple[int, ReceivedMessage]], error: BaseException) -> None:
        """A handler was cancelled: a failed delivery, unless its consumer or the program ends."""
        if isinstance(error, asyncio.CancelledError) and not self._is_ending:
            for index, message in taken:
                self._session.spawn(self._failed(run, index, message, error), HandlerTask)

    async def _failed(self, run: Run, index: int, message: ReceivedMessage, error: BaseException) -> None:
        self.failed += 1
        log.warning("%s could not be handled", told(message), exc_info=error)
        if run.is_void or run.owner.is_dropped:
            return  # the queue has another owner now
        try:
            is_over = await self._is_over(message, error)
        except asyncio.CancelledError:
            if not self._is_ending:
                self._try_later(run, index)
            raise
        if is_over:
            run.finish(index)
        else:
            self._try_later(run, index)

    def _try_later(self, run: Run, index: int) -> None:
        pause_s = self._settings.pause_s if self._settings.broadcast else AGAIN_SECONDS
        self._session.spawn(self._again(run, index, pause_s))

    async def _is_over(self, message: ReceivedMessage, error: BaseException) -> bool:
        """Return whether the message is finished here."""
        try:
            if self._settings.broadcast:
                return self._is_given_up(message)
            return await self._sending_back.send_back(message, error)
        except Exception:  # whatever it is, above all a record that is none: a worker must not end by it
            log.exception("what becomes of %s is not known, and it is tried again here", told(message))
            return False

    def _is_given_up(self, message: ReceivedMessage) -> bool:
        """No broker keeps retries for a consumer that gets every message: it is tried again here, not for ever."""
        if message.delivery_attempt >= self._settings.last_attempt:
            log.error("%s is given up", told(message))
            return True
        message.reconsume_times += 1
        return False

    async def _again(self, run: Run, index: int, pause_s: float) -> None:
        await asyncio.sleep(pause_s)
        if not run.is_void and not run.owner.is_dropped and not self._is_stopping:
            run.again(index)
            self._offer(run, 1)
