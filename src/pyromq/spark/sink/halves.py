"""Halves of transactions: sent by tasks, held until the batch is decided, ended by the driver.

A half is known to its broker by two numbers, its offset among the halves and its position in the log. A task hands them
to the driver packed, by broker and topic.
"""

from __future__ import annotations

import asyncio
import logging
from array import array
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, field
from functools import partial

from pyspark.sql.datasource import WriterCommitMessage

from pyromq.admin.reading import number_in
from pyromq.client.sending.parcel import Parcel
from pyromq.client.session import Session
from pyromq.client.transaction_producer import Decision as End
from pyromq.errors import CallFailed, CallTimeout, PyroMQError, SendUnknown, Unreachable
from pyromq.model.queue import MessageQueue
from pyromq.records import property_names as names
from pyromq.records.layout import FLAG_PREPARED
from pyromq.records.message_id import decode_message_id
from pyromq.spark.sink.decisions import STAMP, Attempt, Stamp
from pyromq.spark.sink.delivery import Singles
from pyromq.spark.sink.outlet import Patience, Tries
from pyromq.wire.command import Command
from pyromq.wire.requests.client import EndTransaction

log = logging.getLogger("pyromq.spark")

PATIENCE_PROPERTY = "CHECK_IMMUNITY_TIME_IN_SECONDS"
#: Ends that wait for their answers, and how long one waits.
ENDS_IN_FLIGHT = 256
END_SECONDS = 15.0


@dataclass(slots=True)
class Handles:
    """The halves of one task in one topic of one broker, in the order of the rows."""

    broker: str
    topic: str
    #: The broker ends a transaction once, even if told several times.
    may_repeat: bool = False
    offsets: array[int] = field(default_factory=lambda: array("q"))
    positions: array[int] = field(default_factory=lambda: array("q"))

    def __len__(self) -> int:
        return len(self.offsets)


@dataclass(slots=True)
class Written(WriterCommitMessage):
    """A task's report to the driver."""

    rows: int
    query: str = ""
    batch: int = 0
    partition: int = 0
    attempt: Attempt | None = None
    halves: list[Handles] = field(default_factory=list)
    #: The time of the first half.
    began_ms: int = 0


class HalfWriter:
    """Sends the rows of one attempt as halves."""

    def __init__(self, singles: Singles, group: str, patience_s: int, stamp: Stamp) -> None:
        """`stamp`: that of the attempt; the serial counts on from there."""
        self._singles = singles
        self._stamp = stamp
        self._serial = 0
        self._void: set[int] = set()
        self._handles: dict[tuple[str, str], dict[int, tuple[int, int]]] = {}
        self._row = 0
        self._common = (
            f"{names.TRANSACTION_PREPARED}\x01true\x02{names.PRODUCER_GROUP}\x01{group}\x02"
            f"{PATIENCE_PROPERTY}\x01{patience_s}\x02"
        )

    async def put(self, queue: MessageQueue, body: bytes, properties: str, born_ms: int, flags: int) -> None:
        row, self._row = self._row, self._row + 1
        serials: list[int] = []

        def make(is_doubtful: bool) -> Parcel:
            if is_doubtful:  # the last one may be there: it must never count
                self._void.add(serials[-1])
            if is_doubtful or not serials:
                serials.append(self._serial)
                self._serial += 1
            stamp = self._stamp._replace(serial=serials[-1])
            marks = f"{STAMP}\x01{stamp}\x02{self._common}{properties}"
            return Parcel(queue.topic, body, marks, (), born_ms, flags | FLAG_PREPARED)

        await self._singles.put(make, queue, partial(self._stored, queue, row))

    def _stored(self, queue: MessageQueue, row: int, answer: Command) -> None:
        _, position = decode_message_id(answer.fields.get("msgId", ""))
        place = (queue.broker_name, queue.topic)
        self._handles.setdefault(place, {})[row] = (number_in(answer, "queueOffset"), position)

    def attempt(self) -> Attempt:
        return Attempt(self._stamp.attempt, self._serial, frozenset(self._void))

    def handles(self, may_repeat: Collection[str]) -> list[Handles]:
        """`may_repeat`: the brokers that end a transaction once, even if told several times."""
        found = []
        for (broker, topic), by_row in sorted(self._handles.items()):
            packed = Handles(broker, topic, broker in may_repeat)
            for _, (offset, position) in sorted(by_row.items()):
                packed.offsets.append(offset)
                packed.positions.append(position)
            found.append(packed)
        return found


# --- the end ---------------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class Ended:
    """The outcome of the transaction ends sent to brokers."""

    done: int = 0
    #: Left to the brokers' check: the outcome is unknown, and a second end could store the message twice.
    left: int = 0
    refused: list[PyroMQError] = field(default_factory=list)


class Ending:
    """Ends halves, one way or the other."""

    def __init__(self, session: Session, group: str, patience: Patience) -> None:
        self._session = session
        self._group = group
        self._patience = patience

    async def end(self, halves: Iterable[Handles], how: End) -> Ended:
        """Tell the brokers, and wait for their answers."""
        halves, ended = list(halves), Ended()
        requests = ((some, request) for some in halves for request in _requests(some, self._group, how))

        async def tell_one_by_one() -> None:
            for some, request in requests:
                await self._tell(some, request, ended)

        async with asyncio.TaskGroup() as tellers:
            for _ in range(min(ENDS_IN_FLIGHT, sum(map(len, halves)))):
                tellers.create_task(tell_one_by_one())
        return ended

    async def _tell(self, half: Handles, request: EndTransaction, ended: Ended) -> None:
        tries = self._patience.begin()
        while True:
            try:
                await self._try(half, request)
            except CallFailed as error:
                if not await self._goes_on(half, error, tries):
                    ended.left += 1
                    return
            except PyroMQError as error:
                ended.refused.append(error)
                return
            else:
                ended.done += 1
                return

    async def _try(self, half: Handles, request: EndTransaction) -> None:
        address = self._session.routes.address(half.broker)
        if address is None:
            await self._session.routes.of(half.topic)
            address = self._session.routes.address(half.broker)
        if address is None:
            raise Unreachable(f"no route names a master of the broker {half.broker!r}")
        await self._session.ask(address, request, END_SECONDS)

    async def _goes_on(self, half: Handles, error: CallFailed, tries: Tries) -> bool:
        tries.count += 1
        tries.errors.append(error)
        if not half.may_repeat:
            return False
        try:
            self._patience.check(tries, half.topic)
        except PyroMQError as problem:
            log.warning("%s was not told the end of a transaction: %s", half.broker, problem)
            return False
        if isinstance(error, CallTimeout) and (address := self._session.routes.address(half.broker)):
            self._session.doubt(address)
        await self._patience.pause(tries)
        return True


def _requests(half: Handles, group: str, how: End) -> Iterator[EndTransaction]:
    for offset, position in zip(half.offsets, half.positions, strict=True):
        yield EndTransaction(
            topic=half.topic,
            producer_group=group,
            half_offset=offset,
            half_position=position,
            decision=how.value,
            message_id=f"{position:X}",
        )


def check_committed(ended: Ended, batch: int) -> None:
    """Raise SendUnknown if brokers refused a decided commit."""
    if ended.refused:
        raise SendUnknown(
            f"batch {batch} is decided, but {len(ended.refused)} of its messages were not committed: "
            f"{ended.refused[0]}; they wait as halves, and brokers ask for them",
            ended.refused[:10],
        )
