"""Handling messages in the order of their queue: one at a time for each queue, and only while its lock is held.

A message that fails is tried again in its place after a pause, and the following messages wait;
with `max_attempts`, it goes to the dead letters after the last one and the queue continues. The lock is checked before
every message: if another member may have it, the queue stops, which keeps the order. The task of a queue
that is cancelled while its consumer runs, by a handler as a rule, is replaced, and the message tried again.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from dataclasses import dataclass, field
from typing import Any

from pyromq.client.consuming.ending import let_end
from pyromq.client.consuming.handler_task import HandlerTask, is_at_loop_end, is_cancelled
from pyromq.client.consuming.large_bodies import LargeBodies
from pyromq.client.consuming.listeners import Listeners, is_its_own
from pyromq.client.consuming.process_queue import Run
from pyromq.client.consuming.queue_worker import Lane
from pyromq.client.consuming.sending_back import SendingBack, told
from pyromq.client.consuming.settings import ConsumerSettings
from pyromq.client.consuming.verdicts import DeadLetter
from pyromq.client.group.queue_locks import QueueLocks
from pyromq.client.received import ReceivedMessage
from pyromq.client.session import Session

log = logging.getLogger("pyromq.client")

#: Poll interval for a lost lock.
LOCK_SECONDS = 0.1
SLICE_SECONDS = 0.005


@dataclass(slots=True)
class _Track:
    """The pending messages of one queue, and the task that handles them."""

    runs: deque[Run] = field(default_factory=deque)
    stirred: asyncio.Event = field(default_factory=asyncio.Event)
    task: asyncio.Task[Any] | None = None


class OrderedHandling:
    """Of one consumer; the same face as `Workers`."""

    def __init__(
        self,
        session: Session,
        settings: ConsumerSettings,
        listeners: Listeners,
        sending_back: SendingBack,
        locks: QueueLocks,
    ) -> None:
        self._session = session
        self._settings = settings
        self._listeners = listeners
        self._sending_back = sending_back
        self._locks = locks
        self._tracks: dict[Lane, _Track] = {}
        self.failed = 0
        self._is_stopping = False
        self._large_bodies = LargeBodies()

    def start(self) -> None:
        """Each queue has its own task, from its first message on."""

    def arrived(self, lane: Lane, run: Run) -> None:
        track = self._tracks.get(lane)
        if track is None:
            track = self._tracks[lane] = _Track()
            track.task = self._session.spawn(self._work(lane, track), HandlerTask)
        track.runs.append(run)
        track.stirred.set()

    def forget_dropped(self) -> None:
        """Queues were given away: their tasks end."""
        for lane, track in list(self._tracks.items()):
            if lane.is_dropped:
                del self._tracks[lane]
                track.stirred.set()

    def runs(self, task: asyncio.Task[Any] | None) -> bool:
        """Return whether a task is one of those that handle messages."""
        return any(track.task is task for track in self._tracks.values())

    async def stop(self) -> None:
        """Let the messages that are being handled end; cancel what does not within the grace."""
        self._is_stopping = True
        tasks = [track.task for track in self._tracks.values() if track.task is not None]
        for track in self._tracks.values():
            track.stirred.set()
        await let_end(tasks, self._settings.stop_grace_s)

    # --- one queue ---------------------------------------------------------------------------------------------------

    async def _work(self, lane: Lane, track: _Track) -> None:
        while not lane.is_dropped and not lane.is_leaving:
            if not track.runs:
                track.stirred.clear()
                await track.stirred.wait()
                continue
            await self._handle_run(lane, track, track.runs.popleft())

    @property
    def _is_ending(self) -> bool:
        """Return whether a cancellation of the current task is meant to end it."""
        return self._is_stopping or self._session.is_closing or is_at_loop_end()

    async def _resume(
        self, lane: Lane, track: _Track, run: Run, taken: tuple[int, ReceivedMessage], error: BaseException
    ) -> None:
        """Go on in place of a task that was cancelled, with the message that it was at."""
        index, message = taken
        track.runs.appendleft(run)
        if not run.is_void and not run.done[index]:
            if await self._is_given_up(message, error):
                run.finish(index)
            elif not run.is_void:
                run.again(index)
        await self._work(lane, track)

    async def _handle_run(self, lane: Lane, track: _Track, run: Run) -> None:
        listener = self._listeners.of(lane.queue.topic)
        now = self._session.clock.monotonic
        until = now() + SLICE_SECONDS
        for index, message in run.todo:
            try:
                while not await self._handle(lane, run, index, message, listener.handle):
                    if lane.is_leaving or run.is_void:
                        return
                if now() > until or is_cancelled():
                    await asyncio.sleep(0)
                    until = now() + SLICE_SECONDS
            except asyncio.CancelledError as error:
                if not self._is_ending:
                    log.warning("the task that handles a queue was cancelled, by its handler or another task: replaced")
                    resumed = self._resume(lane, track, run, (index, message), error)
                    track.task = self._session.spawn(resumed, HandlerTask)
                raise

    async def _handle(self, lane: Lane, run: Run, index: int, message: ReceivedMessage, handle: Any) -> bool:
        """Return whether the next message may be handled; if not, this one is tried again unless the queue is gone."""
        if not self._locks.holds(lane):
            await asyncio.sleep(LOCK_SECONDS)
            return False
        if run.is_void or lane.is_leaving:
            return False
        lane.is_busy = True
        try:
            await self._large_bodies.call(handle, message)
            run.finish(index)
        except BaseException as error:  # handlers are the program's own: anything is tried again
            if not is_its_own(error):
                raise
            if not await self._is_given_up(message, error):
                return False
            run.finish(index)
        finally:
            lane.is_busy = False
            lane.handled_ms = self._session.clock.now_ms()
        return True

    async def _is_given_up(self, message: ReceivedMessage, error: BaseException) -> bool:
        self.failed += 1
        log.warning("%s could not be handled", told(message), exc_info=error)
        try:
            if await self._is_over(message, error):
                return True
        except Exception:  # whatever it is, above all a record that is none: the queue's task must not end by it
            log.exception("what becomes of %s is not known, and it is tried again", told(message))
        await asyncio.sleep(self._settings.pause_s)
        return False

    async def _is_over(self, message: ReceivedMessage, error: BaseException) -> bool:
        if not isinstance(error, DeadLetter) and message.delivery_attempt < self._settings.last_attempt:
            message.reconsume_times += 1
            return False
        if self._settings.broadcast:
            log.error("%s is given up", told(message))
            return True
        return await self._sending_back.send_back(message, DeadLetter())
