"""From a parcel to an answer: choose a queue, send, and try again elsewhere, all within one deadline.

A try that certainly stored nothing because of the broker's moment (it is busy, away, starts again, hands over to its
slave) is repeated for as long as there is time: at another broker if the message may go there, else at the same one
after pauses that grow, with the newest route. All other tries are counted: a message that may be stored is sent a
limited number of times.

Each counted try has its share of the time that is left, so that a broker that says nothing does not use up what the
others would need. Where no other broker may take the message, the time is one try's: a broker that says nothing waits
for something itself, for its slave perhaps, and a second try would only store the message twice. When it has had a
try's share, two events end it: the machine is unreachable, or another broker leads.

The final error is exact: a try without an answer, or with an ambiguous one, may
have stored the message, and then the outcome is unknown unless a later try went well. A later try that goes well may
have stored it a second time, under the same id.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from pyromq.client.sending.fault_backoff import FaultBackoff
from pyromq.client.sending.frames import SendFrames
from pyromq.client.sending.outcomes import STATUS_OF_CODE, refusal_of
from pyromq.client.sending.parcel import Parcel
from pyromq.client.sending.publish_routes import PublishRoutes
from pyromq.client.session import Session
from pyromq.errors import (
    CallFailed,
    CallTimeout,
    NoMaster,
    NoPermission,
    NotNow,
    PyroMQError,
    SendFailed,
    SendUnknown,
    SystemBusy,
    TlsFailed,
    Unreachable,
)
from pyromq.model.queue import MessageQueue
from pyromq.net.connection import Connection
from pyromq.wire.command import Command

#: Before the same broker is asked again; doubled each time, and shortened by chance so that not all come at once.
PAUSE_SECONDS = 0.02
LONGEST_PAUSE_SECONDS = 1.0
MOST_DOUBLINGS = 6
#: Shortly before the deadline pauses are cut short, but not below this.
LAST_PAUSE_SECONDS = 0.1

#: One-way sends wait above this many unsent bytes; and the poll interval.
MAX_BACKLOG = 8 << 20
BACKLOG_SECONDS = 0.005

#: A queue for the next try, given the brokers that failed; something to wait for where the route is not known yet.
Choose = Callable[[Sequence[str]], MessageQueue | Awaitable[MessageQueue]]


class Choice(NamedTuple):
    """The queues allowed for a message."""

    choose: Choose
    #: No other queue will do than the one chosen first.
    is_bound: bool


@dataclass(slots=True)
class _Order:
    """The parcel, its target, and its deadline."""

    parcel: Parcel
    choice: Choice
    deadline: float


@dataclass(slots=True)
class _Trouble:
    """The failures so far."""

    errors: list[PyroMQError] = field(default_factory=list)
    brokers: list[str] = field(default_factory=list)
    may_be_stored: bool = False
    may_try_again: bool = True
    #: The last one was about the broker's moment: it does not count.
    is_momentary: bool = False

    def add(
        self, error: PyroMQError, *, is_certain: bool, may_try_again: bool = True, is_momentary: bool = False
    ) -> None:
        self.errors.append(error)
        self.may_be_stored |= not is_certain
        self.may_try_again = may_try_again
        self.is_momentary = is_momentary

    def outcome(self, topic: str) -> PyroMQError:
        tries = f"{len(self.errors)} {'try' if len(self.errors) == 1 else 'tries'}"
        last = self.errors[-1] if self.errors else "there was no time for a try"
        if self.may_be_stored:
            return SendUnknown(
                f"it is not known whether the message to {topic!r} is stored, after {tries}: {last}. It may be there; "
                "look before you send it again, or let consumers drop what they have seen",
                self.errors,
            )
        if not self.may_try_again:
            return self.errors[-1]  # it has the reason why no other try would help
        said = f"the message to {topic!r} is not stored, after {tries}: {last}"
        for kind in (NoPermission, TlsFailed):  # an operator has to change a setting
            if self.errors and all(isinstance(error, kind) for error in self.errors):
                return kind(said)
        return SendFailed(said, self.errors)


class Delivery:
    """Delivers for one producer. `routes` refreshes routes that may be old; `chance` randomises pauses."""

    def __init__(
        self,
        session: Session,
        frames: SendFrames,
        backoff: FaultBackoff,
        routes: PublishRoutes,
        *,
        signed: bool,
        chance: random.Random | None = None,
    ) -> None:
        self._session = session
        self._frames = frames
        self._backoff = backoff
        self._routes = routes
        self._chance = chance or random.Random()  # noqa: S311  it shortens pauses
        #: The ordinary way signs requests.
        self._signed = signed

    async def deliver(
        self, parcel: Parcel, choice: Choice, timeout_s: float, attempts: int
    ) -> tuple[Command, MessageQueue]:
        """The answer, which says that the message is in a log, and the queue.

        Raises SendFailed, SendUnknown; NoPermission and TlsFailed when every try ended so; and what a broker says of a
        message that no other try would help.
        """
        loop = asyncio.get_running_loop()
        began = loop.time()
        deadline = began + timeout_s
        order, trouble = _Order(parcel, choice, deadline), _Trouble()
        left = attempts
        while began < deadline:
            answered = await self._try(order, trouble, began, began + (deadline - began) / left)
            if answered is not None:
                return answered
            if not trouble.is_momentary:
                left -= 1
            if not left or not trouble.may_try_again:
                break
            await self._pause(parcel.topic, trouble, deadline)
            began = loop.time()
        raise trouble.outcome(parcel.topic)

    async def _try(
        self, order: _Order, trouble: _Trouble, began: float, due: float
    ) -> tuple[Command, MessageQueue] | None:
        """One try; None when it did not go well, and `trouble` says why."""
        parcel, queue, address, is_sent = order.parcel, None, None, False
        try:
            queue = order.choice.choose(trouble.brokers)
            if not isinstance(queue, MessageQueue):
                async with asyncio.timeout_at(due):
                    queue = await queue
            address, connection = self._connected(queue)
            if connection is None:
                async with asyncio.timeout_at(due):
                    connection = await self._session.connect(address)
            slow_s = due - began
            if order.choice.is_bound or parcel.topic in self._routes.at_one_broker:
                due = order.deadline
            is_sent = True
            answer = await self._ask(connection, parcel, queue, due, slow_s)
        except (CallFailed, TimeoutError) as error:
            trouble.add(_told(error), is_certain=not is_sent, is_momentary=not is_sent and _is_away(error, address))
            if is_sent and address is not None and isinstance(error, CallTimeout):
                self._session.doubt(address)
        except PyroMQError as error:  # there is no queue to send it to; what an earlier try did stays as it was
            trouble.add(error, is_certain=not is_sent, may_try_again=False)
        else:
            if answer.code in STATUS_OF_CODE:
                self._backoff.answered(queue.broker_name, began, asyncio.get_running_loop().time() - began)
                return answer, queue
            refused = refusal_of(answer, address)
            trouble.add(
                refused.error,
                is_certain=refused.is_certain,
                may_try_again=refused.may_try_again,
                is_momentary=refused.is_momentary,
            )
        if isinstance(queue, MessageQueue) and trouble.may_try_again:
            trouble.brokers.append(queue.broker_name)
            self._backoff.failed(queue.broker_name, began)
            self._routes.doubt(parcel.topic)
        return None

    async def _pause(self, topic: str, trouble: _Trouble, deadline: float) -> None:
        """A broker that has just failed gets a moment before it is asked again; another one may lead by then."""
        failed = set(trouble.brokers)
        if failed and len(failed) == len(trouble.brokers) < len(self._session.routes.brokers()):
            return
        loop = asyncio.get_running_loop()
        await asyncio.sleep(pause_after(len(trouble.errors), deadline - loop.time(), self._chance.random()))
        await self._routes.renew(topic, deadline - loop.time())

    async def tell(self, parcel: Parcel, queue: MessageQueue) -> None:
        """Send and forget, but not faster than the network takes it. Raises Unreachable."""
        address, connection = self._connected(queue)
        connection = connection or await self._session.connect(address)
        while connection.is_open and connection.backlog > MAX_BACKLOG:  # noqa: ASYNC110  an event would cost every send
            await asyncio.sleep(BACKLOG_SECONDS)
        if self._signed:
            connection.tell(self._frames.request(parcel, queue.queue_id))
        else:
            connection.put_bytes(self._frames.frame(parcel, queue.queue_id, connection.next_id(), one_way=True))

    async def at_master(self, queue: MessageQueue, do: Callable[[str], Awaitable[object]], timeout_s: float) -> None:
        """Do something that may be done twice with the address of a queue's master; and once more after a moment while
        that is away. Raises what the last try raised."""
        loop = asyncio.get_running_loop()
        deadline, tries = loop.time() + timeout_s, 0
        while True:
            try:
                await do(self._address(queue))
            except (Unreachable, NotNow, SystemBusy) as error:
                tries += 1
                if isinstance(error, TlsFailed) or loop.time() + PAUSE_SECONDS >= deadline:
                    raise
                await asyncio.sleep(pause_after(tries, deadline - loop.time(), self._chance.random()))
                await self._routes.renew(queue.topic, deadline - loop.time())
            else:
                return

    def _address(self, queue: MessageQueue) -> str:
        address = self._session.routes.address(queue.broker_name)
        if address is None:
            raise NoMaster(f"no route names a master of the broker {queue.broker_name!r}")
        return address

    def _connected(self, queue: MessageQueue) -> tuple[str, Connection | None]:
        address = self._address(queue)
        return address, self._session.connected(address)

    def _ask(
        self, connection: Connection, parcel: Parcel, queue: MessageQueue, due: float, slow_s: float
    ) -> Awaitable[Command]:
        correlation_id = connection.next_id()
        if self._signed:
            frame = connection.request_frame(self._frames.request(parcel, queue.queue_id), correlation_id)
        else:
            frame = self._frames.frame(parcel, queue.queue_id, correlation_id)
        return connection.call_nowait(correlation_id, frame, due, slow_s)


def pause_after(tries: int, left_s: float, chance: float) -> float:
    """Return the pause in seconds after `tries` tries within the remaining time; `chance` is from 0 to 1."""
    pause = min(PAUSE_SECONDS * (1 << min(tries - 1, MOST_DOUBLINGS)), LONGEST_PAUSE_SECONDS) * (1 - chance / 2)
    # A last try shortly before the end is worth more than sleeping beyond it; but they do not come ever faster.
    return min(pause, max(left_s / 2, LAST_PAUSE_SECONDS))


def _is_away(error: Exception, address: str | None) -> bool:
    """Return whether a try ended before sending: no master, or unreachable. Faults of name servers or TLS last
    longer and do not count."""
    return isinstance(error, NoMaster) or (address is not None and not isinstance(error, TlsFailed))


def _told(error: Exception) -> PyroMQError:
    return error if isinstance(error, PyroMQError) else CallTimeout("there was no connection and no route in time")
