"""Fair use of the event loop: at most about one slice of work per turn of the loop, over all connections.

Two users share the queue. A connection whose requests took a slice waits here before its next frame is handled, and is
not read from until then. A handler whose answer takes long works in slices:

    async with job() as one:
        for queue in queues:
            ...
            await one.pause()

Connections that come while the slice of this turn is used up wait too, and go first: they have used nothing yet. Jobs
run a few at a time, because each keeps its unfinished answer in memory, and callers take turns: one that asks for a
thousand jobs at once makes another one wait for one of them.

Work is measured in CPU time of the thread: a machine that is busy otherwise makes nothing wait here.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterable
from contextvars import ContextVar
from functools import partial
from weakref import WeakKeyDictionary

from pyromq.clock import cpu_seconds
from pyromq.errors import ServiceError

#: Work in one turn of the loop before other connections get theirs.
SLICE_SECONDS = 0.005
#: Bytes of answers that one turn of the loop gives out, shared equally by the connections that are ready in it, and the
#: smallest share: one default pull of a RocketMQ client (32 messages of 1 KiB). With 1,000 connections ready at once a
#: round of smallest shares takes less than 100 ms; whole answers of 4 MiB took 9 s.
TURN_ANSWER_BYTES = 8 << 20
MIN_ANSWER_BYTES = 32 << 10
#: Turns in a row in which new connections are accepted before a heavy step. uvloop accepts one connection per turn:
#: with a heavy step in each of them a new client would wait for one per connection that comes before its own.
MAX_TURNS_OF_ACCEPTS = 8
#: Jobs that are under way at once; each may hold an answer of the largest size.
MAX_JOBS = 2
#: A frame of RocketMQ's clients has 16 MiB at most, with its header.
MAX_ANSWER_BYTES = (16 << 20) - (256 << 10)

Step = Callable[[], None]
#: The connection whose request is being answered.
CALLER: ContextVar[object] = ContextVar("caller", default=None)


class Slices:
    """The queue of one event loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop, cpu_time: Callable[[], float] = cpu_seconds) -> None:
        self._loop = loop
        self.cpu_time = cpu_time
        self._spent_s = 0.0
        #: Steps that used a slice in an earlier turn, and steps that came when the slice of their turn was used up.
        self._heavy: deque[Step] = deque()
        self._light: deque[Step] = deque()
        #: Heavy steps that have had no turn yet, and the number of turns that were given to heavy steps.
        self._new: deque[Step] = deque()
        self._heavy_turns = 0
        #: A connection was accepted in this turn, and the number of turns before it of which that was true.
        self._has_accepted = False
        self._accepts = 0
        self._is_due = False
        #: Jobs that are under way; those that wait, by caller; and the callers in the order of their turns.
        self._jobs = 0
        self._waiting: dict[object, deque[asyncio.Future[None]]] = {}
        self._callers: deque[object] = deque()

    @property
    def is_spent(self) -> bool:
        """Return whether this turn of the loop has used up its slice."""
        return self._spent_s >= SLICE_SECONDS

    @property
    def waiting(self) -> int:
        """Number of steps that wait for a turn."""
        return len(self._light) + len(self._heavy) + len(self._new)

    def accepted(self) -> None:
        """Count a new connection: more of them may be waiting, and go first."""
        self._has_accepted = True

    def spend(self, seconds: float) -> None:
        """Count work that was done in this turn. Small amounts of several turns may add up: to reset the sum in every
        turn would cost a callback each."""
        self._spent_s += seconds
        if self.is_spent:
            self._turn_soon()

    def later(self, step: Step, *, is_heavy: bool, is_new: bool = False) -> None:
        """Call `step` in a later turn: one heavy step per turn, light ones before, as many as fit into a slice.

        Heavy steps have their turns in the order in which they came, except that every third turn is the newest's of
        those that have had none (`is_new`): of a crowd that asks at once the last one would wait for all the others,
        and so would each client that comes after it.
        """
        (self._new if is_new else self._heavy if is_heavy else self._light).append(step)
        self._turn_soon()

    def _next_heavy(self) -> Step | None:
        self._accepts = self._accepts + 1 if self._has_accepted else 0
        self._has_accepted = False
        if self._accepts % MAX_TURNS_OF_ACCEPTS:
            return None
        self._heavy_turns += 1
        if self._new and self._heavy_turns % 3 == 0:
            return self._new.pop()
        if self._new and (self._heavy_turns % 3 == 1 or not self._heavy):
            return self._new.popleft()
        return self._heavy.popleft() if self._heavy else None

    def _turn_soon(self) -> None:
        if not self._is_due:
            self._is_due = True
            self._loop.call_soon(self._turn)

    def _turn(self) -> None:
        self._is_due = False
        self._spent_s = 0.0
        began = self.cpu_time()
        while self._light and self.cpu_time() - began < SLICE_SECONDS:
            self._light.popleft()()
        step = None if self._light else self._next_heavy()
        if step is not None:
            step()
        if self.waiting:
            self._turn_soon()

    @contextlib.asynccontextmanager
    async def job(self) -> AsyncIterator[Job]:
        """Wait until one more job may begin."""
        await self._wait_for_job()
        try:
            job = Job(self)
            await job.next_slice()
            yield job
        finally:
            self._jobs -= 1
            self._begin_jobs()

    async def _wait_for_job(self) -> None:
        turn: asyncio.Future[None] = self._loop.create_future()
        caller = CALLER.get()
        if caller not in self._waiting:
            self._waiting[caller] = deque()
            self._callers.append(caller)
        self._waiting[caller].append(turn)
        self._begin_jobs()
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():  # it was this one's turn
                self._jobs -= 1
                self._begin_jobs()
            raise

    def _begin_jobs(self) -> None:
        while self._callers and self._jobs < MAX_JOBS:
            caller = self._callers.popleft()
            turn = self._waiting[caller].popleft()
            if self._waiting[caller]:
                self._callers.append(caller)
            else:
                del self._waiting[caller]
            if not turn.done():  # it is, if the handler was cancelled
                self._jobs += 1
                turn.set_result(None)


class Job:
    """A handler that works in slices."""

    def __init__(self, slices: Slices) -> None:
        self._slices = slices
        self._began = 0.0
        #: Slices that were begun.
        self.count = 0

    async def pause(self) -> None:
        """Wait for the next slice if this one is used up."""
        if self._slices.cpu_time() - self._began >= SLICE_SECONDS:
            await self.next_slice()

    async def next_slice(self) -> None:
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._slices.later(partial(_wake, turn), is_heavy=True)
        await turn
        self.count += 1
        self._began = self._slices.cpu_time()


def _wake(turn: asyncio.Future[None]) -> None:
    if not turn.done():  # it is, if the handler was cancelled
        turn.set_result(None)


_OF_LOOP: WeakKeyDictionary[asyncio.AbstractEventLoop, Slices] = WeakKeyDictionary()


def slices_of(loop: asyncio.AbstractEventLoop) -> Slices:
    """Return the queue that everything on this loop shares."""
    found = _OF_LOOP.get(loop)
    if found is None:
        found = _OF_LOOP[loop] = Slices(loop)
    return found


def job() -> contextlib.AbstractAsyncContextManager[Job]:
    """Begin a job on the running loop."""
    return slices_of(asyncio.get_running_loop()).job()


async def sliced_body(pieces: Iterable[bytes], what: str) -> bytes:
    """Join the pieces of an answer in slices. Raise ServiceError if it is larger than a client reads."""
    async with job() as one:
        body = bytearray()
        for piece in pieces:
            body += piece
            if len(body) > MAX_ANSWER_BYTES:
                raise ServiceError(
                    f"{what} would be larger than {MAX_ANSWER_BYTES >> 20} MiB, which no client reads: ask for less"
                )
            await one.pause()
        return bytes(body)
