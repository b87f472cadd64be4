"""Pulls that found nothing and wait: until a message arrives, or their time is up.

A held pull is a future. The store tells which queues grew; each pull held there looks again, the one that waits longest
first, and stays when nothing in the queue is for it. When very many wait for one queue they look in several turns of
the loop, so that others are served in between. Time is kept by one timer for each pull.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from pyromq.net.slices import SLICE_SECONDS, TURN_ANSWER_BYTES, slices_of
from pyromq.store.queues.arrivals import Arrivals
from pyromq.wire.responses import Response

#: Looks again; None: still nothing for this pull.
Look = Callable[[], Response | None]
#: The answer when time is up.
Last = Callable[[], Response]

#: The maximum of pulls that read again in one turn of the loop: a read costs some tens of microseconds.
LOOKS_PER_TURN = 64
#: A look of a pull by expression may cost some milliseconds.
LOOKS_PER_CLOCK = 4


@dataclass(slots=True, eq=False)
class _Held:
    answer: asyncio.Future[Response]
    look: Look
    last: Last
    timer: asyncio.TimerHandle


Queue = tuple[str, int]


class Holds:
    """All pulls that wait, by queue."""

    def __init__(self, arrivals: Arrivals, max_held: int) -> None:
        self._arrivals = arrivals
        self._max_held = max_held
        #: Of each queue those who wait, oldest first: a dict keeps the order.
        self._by_queue: dict[Queue, dict[_Held, None]] = {}
        #: Queues whose pulls are looking again, and whether more arrived since that began.
        self._rounds: dict[Queue, bool] = {}
        self.count = 0
        arrivals.listen(self.arrived)

    @property
    def is_full(self) -> bool:
        return self.count >= self._max_held

    def hold(self, topic: str, queue_id: int, look: Look, seconds: float, last: Last) -> asyncio.Future[Response]:
        """Wait for a message in the queue. Must be called in the turn of the loop in which `look` found nothing."""
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[Response] = loop.create_future()
        held = _Held(answer, look, last, loop.call_later(seconds, _end, answer, last))
        queue = (topic, queue_id)
        self._by_queue.setdefault(queue, {})[held] = None
        self.count += 1
        answer.add_done_callback(partial(self._drop, queue, held))
        self._arrivals.watch(topic, queue_id)
        return answer

    def arrived(self, queues: list[Queue]) -> None:
        """These queues have new messages."""
        for queue in queues:
            if queue in self._rounds:
                self._rounds[queue] = True
            elif queue in self._by_queue:
                self._rounds[queue] = False
                self._look_again(queue, list(self._by_queue[queue]))

    def topic_changed(self, topic: str) -> None:
        """Let the long polls of a topic read again: it was removed, or its configuration changed."""
        self.arrived([queue for queue in self._by_queue if queue[0] == topic])

    def topics_changed(self, is_there: Callable[[str], bool]) -> None:
        """Let the long polls of removed topics read again."""
        self.arrived([queue for queue in self._by_queue if not is_there(queue[0])])

    def release(self) -> None:
        """Answer everybody now: the broker stops."""
        for waiting in list(self._by_queue.values()):
            for held in tuple(waiting):
                _end(held.answer, held.last)

    def _look_again(self, queue: Queue, waiting: list[_Held]) -> None:
        """Let all of them read again, a slice in this turn. Arrivals in between cause one more round, not many."""
        slices = slices_of(asyncio.get_running_loop())
        began, looked, answered = slices.cpu_time(), 0, 0
        if not slices.is_spent:
            for held in waiting[:LOOKS_PER_TURN]:
                answered += _look(held)
                looked += 1
                if answered >= TURN_ANSWER_BYTES:
                    break
                if looked % LOOKS_PER_CLOCK == 0 and slices.cpu_time() - began > SLICE_SECONDS:
                    break
            slices.spend(slices.cpu_time() - began)
        rest = waiting[looked:]
        if rest:
            slices.later(partial(self._look_again, queue, rest), is_heavy=False)
        elif self._rounds.pop(queue):
            asyncio.get_running_loop().call_soon(self.arrived, [queue])
        if any(not held.answer.done() for held in self._by_queue.get(queue, ())):
            self._arrivals.watch(*queue)

    def _drop(self, queue: Queue, held: _Held, _: asyncio.Future[Response]) -> None:
        """Answered, or its client is gone."""
        held.timer.cancel()
        waiting = self._by_queue.get(queue)
        if waiting is not None and held in waiting:
            del waiting[held]
            self.count -= 1
            if not waiting:
                del self._by_queue[queue]


def _look(held: _Held) -> int:
    """Answer the pull if there is something for it. Return the bytes of the answer: they are copied in this turn."""
    if held.answer.done():
        return 0
    try:
        found = held.look()
    except Exception as error:  # noqa: BLE001  the pull is answered with it, like any other
        held.answer.set_exception(error)
        return 0
    if found is None:
        return 0
    held.answer.set_result(found)
    return found.body_bytes


def _end(answer: asyncio.Future[Response], last: Last) -> None:
    if not answer.done():
        answer.set_result(last())
