"""Requests of the sink: how one leaves, what its answer means, how long and how often it is tried.

Everything here runs on the loop of the client; tasks of Spark wait for it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import TypeVar

from pyromq.client.sending.frames import SendFrames
from pyromq.client.sending.outcomes import STATUS_OF_CODE, refusal_of
from pyromq.client.sending.parcel import Parcel
from pyromq.client.sending.writer_identity import WriterIdentity, WriterTokens
from pyromq.client.session import Session
from pyromq.errors import (
    CallFailed,
    CallTimeout,
    NoPermission,
    PyroMQError,
    SendFailed,
    SendUnknown,
    TlsFailed,
    TopicNotFound,
    Unreachable,
    WriterNotIssued,
)
from pyromq.model.names import DEFAULT_TOPIC, check_topic
from pyromq.model.queue import MessageQueue
from pyromq.net.connection import Connection
from pyromq.wire.codes import ResponseCode
from pyromq.wire.command import Command

log = logging.getLogger("pyromq.spark")

#: The timeout of one try.
TRY_SECONDS = 15.0
#: Before the next try; doubled each time up to the second.
PAUSE_SECONDS = 0.05
LONGEST_PAUSE_SECONDS = 1.0
#: A name server that was just started has not heard of all topics yet.
UNKNOWN_SECONDS = 5.0

#: No broker has it, so the next try reuses its number.
NO_TOPIC = "PYROMQ_NO_TOPIC"
#: The broker's answer to a token it did not issue since its start.
RENEW_FIELD, RENEW = "writerToken", "renew"

T = TypeVar("T")

Queues = tuple[MessageQueue, ...]


class Outlet:
    """The ways from this process to the brokers, as the sink needs them. `signed`: requests carry a signature.
    `makes_topics`: brokers may make a topic that is not there."""

    def __init__(self, session: Session, group: str, *, signed: bool, makes_topics: bool = True) -> None:
        self.session = session
        self._frames = SendFrames(group, 4, DEFAULT_TOPIC if makes_topics else NO_TOPIC)
        self._signed = signed
        self._tokens = WriterTokens(session)

    async def queues(self, topic: str) -> Queues:
        """Those that may be written to, in the order that all clients see. Raises what a route is refused with."""
        check_topic(topic)
        found = await self.session.routes.writable(topic)
        if not found:
            raise Unreachable(f"no broker takes messages of {topic!r}: none may be written to, or no master is there")
        return found

    async def existing_queues(self, topic: str) -> Queues:
        """The same for an existing topic: the queues of a new one are unknown. Raises TopicNotFound."""
        found = await self.queues(topic)
        if not self.session.routes.is_known(topic):
            raise TopicNotFound(f"no broker has the topic {topic!r}: create it first, for exactly-once writing")
        return found

    async def send(
        self, parcel: Parcel, queue: MessageQueue, timeout_s: float, writer: WriterIdentity | None = None
    ) -> asyncio.Future[Command]:
        """Hand a request over, behind those that were handed over before; its answer comes later. `writer`: whose
        numbered messages they are.

        Raises Unreachable when there is no connection.
        """
        address = await self._address(queue)
        token = None if writer is None else await self._tokens.token(address, writer)
        connection = self.session.connected(address) or await self.session.connect(address)
        if self._signed:
            request = self._frames.request(_owned(parcel), queue.queue_id, writer_token=token)
            return asyncio.ensure_future(connection.call(request, timeout_s))
        return self._put(connection, parcel, queue, timeout_s, token)

    def send_now(self, parcel: Parcel, queue: MessageQueue, timeout_s: float) -> asyncio.Future[Command] | None:
        """The same where nothing has to be waited for; None: something has."""
        address = self.session.routes.address(queue.broker_name)
        connection = None if address is None or self._signed else self.session.connected(address)
        return None if connection is None else self._put(connection, parcel, queue, timeout_s)

    def _put(
        self, connection: Connection, parcel: Parcel, queue: MessageQueue, timeout_s: float, token: str | None = None
    ) -> asyncio.Future[Command]:
        correlation_id = connection.next_id()
        frame = self._frames.frame(parcel, queue.queue_id, correlation_id, writer_token=token)
        return connection.call_nowait(correlation_id, frame, asyncio.get_running_loop().time() + timeout_s)

    async def _address(self, queue: MessageQueue) -> str:
        address = self.session.routes.address(queue.broker_name)
        if address is None:
            await self.session.routes.of(queue.topic)
            address = self.session.routes.address(queue.broker_name)
        if address is None:
            raise Unreachable(f"no route names a master of the broker {queue.broker_name!r}")
        return address

    async def look_again(self, queue: MessageQueue, error: PyroMQError) -> None:
        """After a failure: the connection may lead nowhere, and the broker may be elsewhere by now."""
        address = self.session.routes.address(queue.broker_name)
        if isinstance(error, CallTimeout) and address is not None:
            self.session.doubt(address)
        if isinstance(error, WriterNotIssued) and address is not None:
            self._tokens.forget(address)
        try:
            await self.session.routes.refresh(queue.topic)
        except PyroMQError as problem:
            log.info("the route of %s cannot be had at the moment: %s", queue.topic, problem)


def _owned(parcel: Parcel) -> Parcel:
    """With a body that can be signed."""
    if not isinstance(parcel.body, bytes):
        parcel.body = bytes(parcel.body)
    return parcel


@dataclass(slots=True)
class Tries:
    """The tries of one request and their duration."""

    began: float
    count: int = 0
    errors: list[PyroMQError] = field(default_factory=list)
    may_be_stored: bool = False


class Patience:
    """The limits of a retry: time and number of tries."""

    def __init__(self, timeout_s: float, retries: int) -> None:
        self.timeout_s = timeout_s
        self.retries = retries

    def begin(self) -> Tries:
        return Tries(asyncio.get_running_loop().time())

    def left_s(self, tries: Tries) -> float:
        return tries.began + self.timeout_s - asyncio.get_running_loop().time()

    def check(self, tries: Tries, topic: str) -> None:
        """Raises SendFailed or SendUnknown when it was tried often or long enough."""
        if tries.count <= self.retries and self.left_s(tries) > 0:
            return
        last = tries.errors[-1]
        said = f"{tries.count} tries in {self.timeout_s - self.left_s(tries):.1f} s, the last one: {last}"
        if tries.may_be_stored:
            raise SendUnknown(f"it is not known whether messages to {topic!r} are stored, after {said}", tries.errors)
        raise SendFailed(f"messages to {topic!r} are not stored, after {said}", tries.errors)

    async def pause(self, tries: Tries) -> None:
        pause_s = min(PAUSE_SECONDS * 2 ** min(tries.count, 10), LONGEST_PAUSE_SECONDS)
        await asyncio.sleep(max(min(pause_s, self.left_s(tries)), 0.0))


async def patiently(work: Callable[[], Awaitable[T]], patience: Patience) -> T:
    """Call an idempotent function until it succeeds. Raises the last error."""
    tries = patience.begin()
    while True:
        try:
            return await work()
        except (CallFailed, TopicNotFound) as error:
            tries.count += 1
            if tries.count > patience.retries or patience.left_s(tries) <= 0 or _stays(error, tries):
                raise
            log.info("tried again after this: %s", error)
            await patience.pause(tries)


def _stays(error: PyroMQError, tries: Tries) -> bool:
    """Return whether the error lasts longer than a broker's restart."""
    waited_s = asyncio.get_running_loop().time() - tries.began
    return isinstance(error, TlsFailed) or (isinstance(error, TopicNotFound) and waited_s > UNKNOWN_SECONDS)


def judge(outcome: Command | BaseException, tries: Tries, address: str, *, was_sent: bool = True) -> PyroMQError | None:
    """Return a retryable failure; None if the message is acknowledged. Raises an error that no retry would change."""
    if isinstance(outcome, Command):
        status = STATUS_OF_CODE.get(outcome.code)
        if outcome.code == ResponseCode.SUCCESS:
            return None
        if status is not None:
            raise SendUnknown(
                f"{address} has the messages, but did not get them to the disk or to a slave in time ({status.name}): "
                "they may be lost if it fails now"
            )
        if outcome.fields.get(RENEW_FIELD) == RENEW:
            return WriterNotIssued(f"{address}: {outcome.reason or 'the token is not known'}", may_renew=True)
        refusal = refusal_of(outcome, address)
        tries.may_be_stored |= not refusal.is_certain
        if not refusal.may_try_again or _is_final(refusal.error, refusal.is_certain):
            raise refusal.error
        return refusal.error
    if isinstance(outcome, TlsFailed) or not isinstance(outcome, CallFailed | TimeoutError):
        raise outcome
    tries.may_be_stored |= was_sent
    return outcome if isinstance(outcome, PyroMQError) else CallTimeout("there was no connection in time")


def _is_final(error: PyroMQError, is_certain: bool) -> bool:
    """Return whether the refusal is permanent until an operator changes something."""
    no_delivery_times = is_certain and error.code == ResponseCode.SYSTEM_ERROR
    return isinstance(error, NoPermission | TopicNotFound) or no_delivery_times


#: Makes the parcel of a try: the first, or one after a try with unknown outcome.
Make = Callable[[bool], Parcel]


#: The outcome of a try, and whether it was sent.
Outcome = tuple[Command | BaseException, bool]


async def deliver(
    outlet: Outlet, make: Make, queue: MessageQueue, patience: Patience, first: Outcome | None = None
) -> Command:
    """Send one message to a queue until it is stored; return the answer. `first`: the outcome of an earlier try.

    Raises SendFailed, SendUnknown, final refusals.
    """
    tries = patience.begin()
    outcome, was_sent = first or await _try(outlet, make(False), queue)
    while True:
        error = judge(outcome, tries, queue.broker_name, was_sent=was_sent)
        if error is None:
            assert isinstance(outcome, Command)
            return outcome
        tries.count += 1
        tries.errors.append(error)
        patience.check(tries, queue.topic)
        await outlet.look_again(queue, error)
        await patience.pause(tries)
        outcome, was_sent = await _try(outlet, make(was_sent), queue)


async def _try(outlet: Outlet, parcel: Parcel, queue: MessageQueue) -> Outcome:
    try:
        async with asyncio.timeout(TRY_SECONDS):
            answer = await outlet.send(parcel, queue, TRY_SECONDS)
    except (PyroMQError, TimeoutError) as error:
        return error, False
    return await outcome_of(answer), True


async def outcome_of(answer: asyncio.Future[Command]) -> Command | BaseException:
    try:
        return await answer
    except PyroMQError as error:
        return error
