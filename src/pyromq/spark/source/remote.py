"""Pulls of executors: large ones, several in flight, answers in the order of the queue.

    for batch in read_span(pulling, span, names): ...

A span existed when the driver planned it, so failures are retried until the timeout: a broken connection, a restarting
broker, a failed master with a slave. Missing messages are judged by `loss`. Memory holds at most the pulls in flight
and the batch that is decoded.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import pyarrow as pa

from pyromq.client.session import Session
from pyromq.errors import CallFailed, NotNow, PyroMQError, SystemBusy, TopicNotFound, Unreachable
from pyromq.spark.connecting import session_of
from pyromq.spark.source import loss
from pyromq.spark.source.blocks import batches_of, before
from pyromq.spark.source.offsets import Span
from pyromq.spark.source.options import Pulling
from pyromq.spark.source.pace import Pace
from pyromq.spark.source.pulls import EXPECTED, MASTER, Answer, Verdict, address_of, judge, question, read_answer

log = logging.getLogger("pyromq.spark")

#: Transient errors.
PASSING = (CallFailed, SystemBusy, NotNow, TopicNotFound)
#: The pause after something went wrong doubles from the first to the last of these.
FIRST_PAUSE_SECONDS = 0.1
LAST_PAUSE_SECONDS = 2.0
#: Ignore suggestions of a broker that did not answer for this long.
AVOID_SECONDS = 30.0
#: Tolerate this long that a master's queue ends before planned messages: it may have just started.
END_SECONDS = 5.0


def read_span(pulling: Pulling, span: Span, names: Sequence[str]) -> Iterator[pa.RecordBatch]:
    """The messages of a span, these columns of them. Raises DataLoss, Unreachable, and what a broker refuses."""
    if span.count == 0:
        return
    portal, session = session_of(pulling.cluster)
    fetch = Fetch(session, pulling, span)
    try:
        while (bodies := portal.wait(fetch.take())) is not None:
            yield from batches_of(bodies, span, names, tags=pulling.wanted_tags, verify_crc=pulling.verify_crc)
    finally:
        portal.call(fetch.close)


@dataclass(slots=True)
class Piece:
    """The answers to one or more pulls, which follow each other."""

    bodies: list[bytes]
    end: int


class Fetch:
    """The pulls of one span. Lives on the loop of its session."""

    def __init__(self, session: Session, pulling: Pulling, span: Span) -> None:
        self._pulling = pulling
        self._span = span
        self._line = Line(session, pulling, span)
        self._pace = Pace(pulling.pull_bytes, pulling.in_flight)
        #: A broker that leaves out messages gives as many as asked for, from a stretch of any length.
        self._is_filtered = pulling.sql is not None or pulling.wanted_tags is not None
        #: The end of the requested range.
        self._asked = span.start
        self._pieces: deque[asyncio.Task[Piece]] = deque()

    async def take(self) -> list[bytes] | None:
        """The next records, in blocks as they came: one, and those behind it that are there already, up to the size of
        a pull. None at the end."""
        self._ask_ahead()
        bodies: list[bytes] = []
        size = 0
        while self._pieces and (not bodies or (self._pieces[0].done() and size < self._pulling.pull_bytes)):
            piece = await self._pieces[0]
            self._pieces.popleft()
            if self._is_filtered:
                self._asked = piece.end
            bodies += piece.bodies
            size += sum(map(len, piece.bodies))
            self._ask_ahead()
        return bodies or None

    def close(self) -> None:
        for piece in self._pieces:
            piece.cancel()
            piece.add_done_callback(_looked_at)
        self._pieces.clear()

    def _ask_ahead(self) -> None:
        most = 1 if self._is_filtered else self._pace.pulls
        while len(self._pieces) < most and self._asked < self._span.end:
            first = self._asked
            if self._is_filtered:
                work = self._next_found(first)
            else:
                self._asked = min(first + self._pace.count, self._span.end)
                work = self._whole(first, self._asked)
            self._pieces.append(asyncio.get_running_loop().create_task(work))

    async def _whole(self, first: int, end: int) -> Piece:
        """A stretch up to its end, however many pulls that takes."""
        bodies: list[bytes] = []
        while first < end:
            answer = await self._line.pull(first, end - first, self._pulling.pull_bytes)
            if answer is None:
                break
            self._pace.learn(end - first, min(answer.next_offset, end) - first, len(answer.body))
            if answer.body:  # a filtered answer may reach into the next piece
                bodies.append(answer.body if answer.next_offset <= end else before(answer.body, end))
            first = answer.next_offset
        return Piece(bodies, end)

    async def _next_found(self, first: int) -> Piece:
        """Return the next message of a broker that filters; nothing at the end."""
        while first < self._span.end:
            answer = await self._line.pull(first, self._pace.count, self._pulling.pull_bytes)
            if answer is None:
                break
            first = answer.next_offset
            if answer.body:
                return Piece([answer.body], first)
        return Piece([], self._span.end)


def _looked_at(done: asyncio.Task[Piece]) -> None:
    if not done.cancelled():
        done.exception()


class Line:
    """The way to a broker of the queue's name, and to another one when that does not answer."""

    def __init__(self, session: Session, pulling: Pulling, span: Span) -> None:
        self._session = session
        self._pulling = pulling
        self._span = span
        self._queue = span.queue
        #: None: a copy, if there is one.
        self._broker_id: int | None = MASTER if pulling.read_from != "replica" else None
        #: Brokers that did not answer, and the time until which suggestions of them are ignored.
        self._avoided: dict[int, float] = {}

    async def pull(self, offset: int, count: int, max_bytes: int) -> Answer | None:
        """The next answer that helps; None when the rest of the span is lost and that is accepted. The answer's
        `next_offset` is behind `offset`."""
        trouble = Trouble(self._session.clock.monotonic(), self._pulling.patience_s, FIRST_PAUSE_SECONDS)
        while True:
            try:
                broker_id, answer = await self._ask(offset, count, max_bytes)
            except PASSING as error:
                await self._after(error, trouble, offset)
                continue
            verdict = judge(answer, offset)
            if verdict is Verdict.TAKE or verdict is Verdict.SKIP:
                self._follow(answer)
                return answer
            if verdict is not Verdict.AGAIN and broker_id != MASTER and self._has_master():
                self._broker_id = MASTER  # a copy may lag behind: the master has the say
                await asyncio.sleep(0)
            elif verdict is Verdict.GONE:
                loss.lose(
                    loss.gone(self._queue, offset, answer.min_offset), fails=self._pulling.fail_on_data_loss,
                    goes_on="reading goes on there",
                )  # fmt: skip
                answer.next_offset, answer.body = answer.min_offset, b""
                return answer
            elif verdict is Verdict.ENDED and trouble.lasts_s(self._session.clock.monotonic()) >= END_SECONDS:
                loss.lose(
                    loss.made_anew(self._queue, offset, answer.max_offset), fails=self._pulling.fail_on_data_loss,
                    goes_on="the rest is left out",
                )  # fmt: skip
                return None
            else:
                await self._after(_pointless(answer, offset), trouble, offset)

    async def _ask(self, offset: int, count: int, max_bytes: int) -> tuple[int, Answer]:
        if not self._addresses():  # or no slave is known
            await self._session.routes.of(self._queue.topic)
        broker_id, address = await address_of(self._session, self._queue, self._preferred())
        request = question(self._pulling, self._queue, offset, count, max_bytes)
        answer = await self._session.ask(address, request, ok=EXPECTED)
        return broker_id, read_answer(answer, self._queue)

    def _preferred(self) -> int:
        if self._broker_id is not None:
            return self._broker_id
        return min((one for one in self._addresses() if one != MASTER), default=MASTER)

    def _addresses(self) -> Sequence[int]:
        return sorted(self._session.routes.addresses(self._queue.broker_name))

    def _has_master(self) -> bool:
        return MASTER in self._addresses()

    def _follow(self, answer: Answer) -> None:
        """A master that would have to fetch old messages from the disk sends readers to its copy, and back again."""
        is_avoided = self._avoided.get(answer.broker_id, 0.0) > self._session.clock.monotonic()
        if self._pulling.read_from == "auto" and answer.broker_id in self._addresses() and not is_avoided:
            self._broker_id = answer.broker_id

    async def _after(self, error: PyroMQError, trouble: Trouble, offset: int) -> None:
        """Wait, look where the brokers are, and try the next one where that is allowed. Raises when it is too long."""
        pause_s = trouble.pause(self._session.clock.monotonic())
        if pause_s is None:
            raise Unreachable(
                f"offset {offset} of {loss.shown(self._queue)} could not be read within {self._pulling.patience_s:g} s "
                f"(the option pullTimeoutMs): {error}"
            ) from error
        log.info("offset %d of %s is asked for again: %s", offset, loss.shown(self._queue), error)
        await asyncio.sleep(pause_s)
        try:
            await self._session.routes.refresh(self._queue.topic)
        except PyroMQError as no_news:
            log.debug("no news of %s: %s", self._queue.topic, no_news)
        if self._pulling.read_from != "master":
            failed = self._preferred()
            self._avoided[failed] = self._session.clock.monotonic() + AVOID_SECONDS
            self._broker_id = _next_of(self._addresses(), failed)


@dataclass(slots=True)
class Trouble:
    """The duration of a failure."""

    since_s: float
    patience_s: float
    next_pause_s: float

    def lasts_s(self, now_s: float) -> float:
        return now_s - self.since_s

    def pause(self, now_s: float) -> float | None:
        """Return the next pause; None after the timeout."""
        pause_s, self.next_pause_s = self.next_pause_s, min(self.next_pause_s * 2, LAST_PAUSE_SECONDS)
        return pause_s if self.lasts_s(now_s) + pause_s <= self.patience_s else None


def _next_of(addresses: Sequence[int], broker_id: int) -> int:
    """The broker behind one in a ring."""
    behind = [one for one in addresses if one > broker_id]
    return min(behind or addresses, default=MASTER)


def _pointless(answer: Answer, offset: int) -> PyroMQError:
    return Unreachable(
        f"the broker answered {answer.code} and has offsets {answer.min_offset} to {answer.max_offset}; nothing came "
        f"from {offset} on"
    )
