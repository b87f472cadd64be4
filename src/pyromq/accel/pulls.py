"""Usual pulls: the next messages of a queue, in memory, all of them or those with some tags.

Consumers repeat the same request, and only three numbers of it differ. So a pull is split into those numbers and the
rest; the rest is checked once, by `broker.requests.pull`, and kept as a plan until topics, groups, subscriptions or
settings change. The position of its messages is also kept for many pulls, as a read window, from which the accelerated
code answers for a short time. Every answer other than messages is left to the ordinary handler.
"""

from __future__ import annotations

import logging
from typing import Any

from pyromq.accel._headers import split_pull
from pyromq.accel._pulls import PullLoop, PullPlan
from pyromq.broker.failover.read_routing import MASTER, ReadAdvice
from pyromq.broker.requests.pull import HAS_COMMIT, Plan, PullProcessor, result
from pyromq.broker.state.clients import Consumers
from pyromq.broker.state.offsets import Progress
from pyromq.broker.state.resets import Resets
from pyromq.broker.statistics.traffic import Statistics
from pyromq.errors import IllegalOffset, PyroMQError, SystemBusy
from pyromq.net.connection import Connection
from pyromq.store.message_store import MessageStore
from pyromq.store.queues.queue_cursor import ENTRY
from pyromq.store.queues.queue_reader import ReadResult, ReadStatus
from pyromq.wire.answer_pieces import answer_pieces
from pyromq.wire.frames import decode_frame
from pyromq.wire.requests.client import PullMessage, decode_request

log = logging.getLogger("pyromq.broker")

#: At most this many plans, one for each consumer and queue; above it, all are dropped and made again on request.
MAX_PLANS = 20_000
#: A usual pull has some 300 bytes; longer ones are planned each time, so that no client fills memory with them.
MAX_KEY_BYTES = 1024
#: Stand for the values in the pattern of an answer.
_NEXT, _LEAST, _LAST = 1_111_111_111_111, 2_222_222_222_222, 3_333_333_333_333


class FastPulls:
    """Takes the usual pulls of a server."""

    def __init__(
        self,
        processor: PullProcessor,
        consumers: Consumers,
        progress: Progress,
        resets: Resets,
        store: MessageStore,
        statistics: Statistics,
        advice: ReadAdvice,
    ) -> None:
        self._processor = processor
        self._consumers = consumers
        self._progress = progress
        self._resets = resets
        self._store = store
        self._statistics = statistics
        self._advice = advice
        self._plans: dict[bytes, PullPlan] = {}
        #: Answers pulls from read windows without calling Python.
        self.loop = PullLoop(self._plans, consumers, resets.pending, self._commit)
        self.loop.planned_at = consumers.changes
        statistics.before_sample(self.count_up)

    def forget(self) -> None:
        """Drop all plans: topics, groups or settings changed."""
        self.count_up()
        self._plans.clear()

    def count_up(self) -> None:
        """Add the pulls since the last call to the statistics."""
        for plan in self._plans.values():
            plan.close_window()
            if plan.pulls:
                self._statistics.got(plan.group, plan.topic, plan.messages, plan.bytes_out, plan.pulls)
                plan.pulls = plan.messages = plan.bytes_out = 0

    def take(self, data: memoryview, at: int, connection: Connection) -> int:
        """Answer the pulls at the front; where the first frame begins that is not for this."""
        room, answered = connection.answer_room, 0
        while (found := split_pull(data, at)) is not None:
            end, key, offset, committed, correlation_id = found
            plan = self._plan(key, data, at, end)
            if plan is None:
                break
            before = plan.bytes_out
            answer = self._answer(plan, offset, correlation_id, connection, room)
            if answer is None:
                if plan.is_too_large:
                    connection.ask_for_turn()
                break
            answered += plan.bytes_out - before
            if plan.commits and committed >= 0:
                self._commit(plan, committed, connection)
            at = end
            if (answer and not connection.put_bytes(answer)) or not connection.is_reading:
                break
            if 2 * answered > room:
                connection.wait_for_turn()
                break
        return at

    def _answer(
        self, plan: PullPlan, offset: int, correlation_id: int, connection: Connection, room: int
    ) -> bytes | None:
        """Return the bytes to write, or `None` if the ordinary path has to decide."""
        store, queue = self._store, plan.queue
        plan.is_too_large = False
        if self._resets.is_pending(plan.group, plan.topic, plan.queue_id):
            return None
        if self._progress.must_rejoin(plan.group, plan.topic, plan.queue_id):
            return None
        store.catch_up()
        last = queue.max_offset
        if not queue.min_offset <= offset < last or offset < queue.found_below:
            return None
        segment = queue.files.find(offset * ENTRY.size)
        if segment is None:
            return None
        entries, log_files = segment.buffer, store.log_files()
        position = ENTRY.unpack_from(entries, offset * ENTRY.size - segment.base)[0]
        warm = store.warm_stretch(position)
        if warm is None or self._advice.is_far(position):
            return None
        plan.open_window(
            entries, segment.base // ENTRY.size, offset, min(last, segment.end // ENTRY.size), queue.min_offset,
            log_files.start, log_files.file_bytes, log_files.buffers, min(store.positions().written, warm[1]), warm[0],
        )  # fmt: skip
        inlet: Any = connection.inlet  # of this folder's intake
        return plan.answer(offset, correlation_id, inlet, room, connection.has_turn)

    def _commit(self, plan: PullPlan, offset: int, connection: Connection) -> None:
        try:
            self._progress.advance(plan.group, plan.topic, plan.queue_id, offset)
        except (IllegalOffset, SystemBusy) as refused:
            log.warning("%s told its progress along with a pull, and it is not kept: %s", connection.address, refused)

    # --- plans -------------------------------------------------------------------------------------------------------

    def _plan(self, key: bytes, data: memoryview, at: int, end: int) -> PullPlan | None:
        if self.loop.planned_at != self._consumers.changes or len(self._plans) > MAX_PLANS:
            self.loop.planned_at = self._consumers.changes
            self.forget()
        plan = self._plans.get(key)
        if plan is None:
            plan = self._new_plan(data, at, end)
            if plan is not None and len(key) <= MAX_KEY_BYTES:
                self._plans[key] = plan
        return plan

    def _new_plan(self, data: memoryview, at: int, end: int) -> PullPlan | None:
        """None when this is a matter for the ordinary way; the next one like it may not be."""
        try:
            command = decode_frame(data, at, end)
            request = decode_request(command)
            assert isinstance(request, PullMessage)
            plan = self._processor.plan(request)
        except PyroMQError:
            return None
        if command.is_one_way or command.is_answer:
            return None
        queue = self._store.queue(request.topic, request.queue_id)
        if queue is None or plan.wanted.needs_properties:
            return None
        return PullPlan(
            queue, request.group, request.topic, request.queue_id, bool(request.flags & HAS_COMMIT),
            plan.wanted.tag_codes, plan.max_messages, plan.max_bytes,
            answer_pattern(plan, self._advice.broker_for(plan.group, None)),
        )  # fmt: skip


def answer_pattern(plan: Plan, broker_id: int = MASTER) -> list[bytes]:
    """The pieces of an answer's header around its values, as the ordinary encoder writes them."""
    answer = result(plan, ReadResult(ReadStatus.FOUND, _NEXT, _LEAST, _LAST))
    answer.suggested_broker_id = broker_id
    return answer_pieces(answer, _NEXT, _LEAST, _LAST)
