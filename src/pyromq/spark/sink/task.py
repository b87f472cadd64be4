"""One task of Spark that writes: rows in, one sum of what became of them out.

Rows are packed on the task's own thread while the client's loop sends earlier ones. `write` returns when
every row is acknowledged, and raises when one is not.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import replace

import numpy as np
import pyarrow as pa

from pyromq.client.blocking import Portal
from pyromq.client.options import parse_name_servers
from pyromq.client.sending.parcel import Parcel
from pyromq.client.sending.unique_ids import UniqueIds
from pyromq.client.sending.writer_identity import WriterIdentity, writer_identity
from pyromq.client.session import Session
from pyromq.errors import PyroMQError
from pyromq.model.queue import MessageQueue
from pyromq.records import property_names as names
from pyromq.spark.connecting import session_of
from pyromq.spark.sink.brokers import check_knows_writers, is_ours
from pyromq.spark.sink.decision_topic import DecisionTopic
from pyromq.spark.sink.delivery import Batches, Singles
from pyromq.spark.sink.halves import HalfWriter, Written
from pyromq.spark.sink.identity import Identity
from pyromq.spark.sink.options import Mode, SinkOptions
from pyromq.spark.sink.outlet import Outlet, Patience, Queues, patiently
from pyromq.spark.sink.queues import Spread, by_queue, by_topic, is_free
from pyromq.spark.sink.rows import Ints, Packer, Rows, in_front, numbered, pieces
from pyromq.spark.sink.transactions import Transactions, check_backs_of

log = logging.getLogger("pyromq.spark")

#: The properties of a request with several messages.
BATCH_PROPERTIES = f"{names.WAIT}\x01true\x02"
#: A failing task tries this long to roll back its messages.
UNDO_SECONDS = 5.0

Work = tuple[Parcel, MessageQueue, Queues]


class Place:
    """The sink's connections of this process: shared by its tasks and kept for the next one."""

    def __init__(self, options: SinkOptions) -> None:
        self.options = options
        self.portal, self.session = session_of(options.cluster)
        self.now_ms: Callable[[], int] = self.session.clock.now_ms
        signed = options.cluster.credentials() is not None
        self.outlet = Outlet(self.session, options.group, signed=signed)
        self.patience = Patience(options.send_timeout_s, options.retries)
        # Made by a broker on the way it would have another number of queues, and decisions would be overlooked.
        decisions = Outlet(self.session, options.group, signed=signed, makes_topics=False)
        self.decisions = DecisionTopic(decisions, self.patience, self.now_ms)

    async def ensure_decisions(self) -> None:
        await self.decisions.ensure(parse_name_servers(self.options.cluster.name_servers))

    def transactions(self) -> Transactions:
        options = self.options
        return Transactions(self.session, self.decisions, options.group, self.patience, options.patience_s, self.now_ms)


_places: dict[tuple[int, SinkOptions], Place] = {}
#: More are not kept: they hold what they have read of decisions.
MAX_PLACES = 16


def place_of(options: SinkOptions) -> Place:
    """The one of this process. What differs from job to job is not a part of it."""
    common = replace(options, topic=None, writer_id=None, writer_secret=None, batch_id=0)
    key = (os.getpid(), common)  # workers are forked: each has connections of its own
    if key not in _places:
        if len(_places) >= MAX_PLACES:
            _places.clear()
        _places[key] = Place(common)
    return _places[key]


class TaskWriter:
    """Writes the rows of one task. What differs from mode to mode is in the classes below."""

    def __init__(self, options: SinkOptions, identity: Identity) -> None:
        self._options = options
        self._place = place = place_of(options)
        self._identity = identity
        self._portal: Portal = place.portal
        self._session: Session = place.session
        self._spread = Spread(identity.writer)
        self._queues: dict[str, Queues] = {}
        #: Proved to brokers with each request, where rows are numbered.
        self._writer = self._numbering()
        self._batches = self._portal.call(
            lambda: Batches(place.outlet, place.patience, options.in_flight, self._writer)
        )

    def _numbering(self) -> WriterIdentity | None:
        return None

    def write(self, batches: Iterable[pa.RecordBatch]) -> Written:
        """Raises what the first message that is not stored was refused with."""
        packer = self._packer()
        rows_written = 0
        try:
            for batch in batches:
                if batch.num_rows:
                    rows = packer.pack(batch)
                    self._take(rows)
                    rows_written += len(rows)
            self._finish()
        except BaseException:
            self._undo()
            raise
        return self._written(rows_written)

    def _new_singles(self) -> Singles:
        place, in_flight = self._place, self._options.halves_in_flight
        return self._portal.call(lambda: Singles(place.outlet, place.patience, in_flight))

    def _packer(self) -> Packer:
        options = self._options
        host = self._session.client_id.partition("@")[0]
        ids = UniqueIds(host, os.getpid(), os.urandom)
        return Packer(options.topic, options.compression if options.compresses else None, ids, self._place.now_ms)

    def _queues_of(self, topic: str) -> Queues:
        if topic not in self._queues:
            found = patiently(lambda: self._find_queues(topic), self._place.patience)
            self._queues[topic] = self._portal.wait(found)
        return self._queues[topic]

    async def _find_queues(self, topic: str) -> Queues:
        return await self._place.outlet.queues(topic)

    def _take(self, rows: Rows) -> None:
        """Send these rows, or at least have them wait for their turn."""
        for topic, chosen in by_topic(rows, ~rows.is_alone):
            work = self._work(rows, topic, chosen)
            self._portal.wait(self._put(work))

    def _work(self, rows: Rows, topic: str, chosen: Ints) -> list[Work]:
        queues, work = self._queues_of(topic), []
        for number, places in by_queue(self._spread.assign(rows, chosen, queues)):
            these = chosen[places]
            bodies, properties = rows.take(these)
            marked = self._marked(queues[number], properties)
            others = queues if self._may_move(rows, these) else ()
            for piece in pieces(bodies, marked, rows.flags[these], self._options.batch_bytes):
                parcel = Parcel(topic, piece.data, BATCH_PROPERTIES, (), self._place.now_ms(), piece.flags, batch=True)  # type: ignore[arg-type]  # a view of the bytes will do: they are joined with a header
                work.append((parcel, queues[number], others))
        return work

    def _marked(self, queue: MessageQueue, properties: pa.LargeBinaryArray) -> pa.LargeBinaryArray:
        return properties

    def _may_move(self, rows: Rows, chosen: Ints) -> bool:
        return False

    async def _put(self, work: list[Work]) -> None:
        for parcel, queue, others in work:
            await self._batches.put(parcel, queue, others)

    def _finish(self) -> None:
        self._portal.wait(self._batches.finish())

    def _undo(self) -> None:
        """The task fails: nothing of it is sent any more."""
        with suppress(PyroMQError):
            self._portal.wait(self._batches.cancel())

    def _written(self, rows: int) -> Written:
        identity = self._identity
        return Written(rows, identity.query, identity.batch, identity.partition)


class AtLeastOnce(TaskWriter):
    """Rows that are held back go alone; the others may take another queue when theirs fails."""

    def __init__(self, options: SinkOptions, identity: Identity) -> None:
        super().__init__(options, identity)
        self._singles = self._new_singles()

    def _may_move(self, rows: Rows, chosen: Ints) -> bool:
        return bool(is_free(rows, chosen).all())

    def _take(self, rows: Rows) -> None:
        super()._take(rows)
        for topic, chosen in by_topic(rows, rows.is_alone):
            assigned = self._spread.assign(rows, chosen, self._queues_of(topic))
            self._portal.wait(self._put_alone(rows, topic, chosen, assigned))

    async def _put_alone(self, rows: Rows, topic: str, chosen: Ints, assigned: Ints) -> None:
        bodies, properties = rows.take(chosen)
        queues, now_ms = self._queues[topic], self._place.now_ms()
        columns = zip(bodies.to_pylist(), properties.to_pylist(), assigned, rows.flags[chosen], strict=True)
        for body, marks, number, flags in columns:
            parcel = Parcel(topic, body, marks.decode(), (), now_ms, int(flags))
            await self._singles.put(lambda _, parcel=parcel: parcel, queues[number], _ignore)  # type: ignore[misc]

    def _finish(self) -> None:
        super()._finish()
        self._portal.wait(self._singles.finish())

    def _undo(self) -> None:
        super()._undo()
        self._portal.wait(self._singles.settle())


class Idempotent(TaskWriter):
    """Every row has a number, by which the broker knows it when it comes again."""

    def __init__(self, options: SinkOptions, identity: Identity) -> None:
        super().__init__(options, identity)
        self._next: dict[MessageQueue, int] = {}
        assert self._writer is not None
        #: Shown to consumers and in the decision topic instead of the query's id, which would give others the identity.
        self._public = self._writer.writer
        writer = f"{self._public}/{identity.partition}"
        self._before = (f"{names.WRITER}\x01{writer}\x02{names.SEQUENCE}\x01{identity.batch}:").encode()

    def _numbering(self) -> WriterIdentity | None:
        return writer_identity(self._identity.query, self._options.writer_secret or "")

    async def _find_queues(self, topic: str) -> Queues:
        """Those of the query's first batch: a repeated row must go where it went, also when there are more by now."""
        now = await self._place.outlet.existing_queues(topic)
        queues = await self._place.decisions.layout(self._public, topic, now)
        await check_knows_writers(self._session, (queue.broker_name for queue in queues))
        return queues

    def _finish(self) -> None:
        super()._finish()
        if self._batches.repeated:
            log.info(
                "%s: %d rows of batch %d were there",
                self._identity.writer,
                self._batches.repeated,
                self._identity.batch,
            )

    def _marked(self, queue: MessageQueue, properties: pa.LargeBinaryArray) -> pa.LargeBinaryArray:
        first = self._next.get(queue, 0)
        self._next[queue] = end = first + len(properties)
        return in_front(numbered(self._before, np.arange(first, end, dtype=np.int64), b"\x02"), properties)


class Transactional(TaskWriter):
    """Rows are halves until the driver has decided over the batch."""

    def __init__(self, options: SinkOptions, identity: Identity) -> None:
        super().__init__(options, identity)
        self._singles = self._new_singles()
        self._halves = HalfWriter(self._singles, options.group, options.patience_s, identity.stamp)
        self._began_ms = self._place.now_ms()
        self._ours: set[str] = set()

    async def _find_queues(self, topic: str) -> Queues:
        queues = await self._place.outlet.existing_queues(topic)
        for broker in sorted({queue.broker_name for queue in queues}):
            if await is_ours(self._session, broker):
                self._ours.add(broker)
        await check_backs_of(self._session).join(self._options.group, self._place.decisions)
        return queues

    def _take(self, rows: Rows) -> None:
        for topic, chosen in by_topic(rows, ~rows.is_alone):
            assigned = self._spread.assign(rows, chosen, self._queues_of(topic))
            self._portal.wait(self._put_halves(rows, topic, chosen, assigned))

    async def _put_halves(self, rows: Rows, topic: str, chosen: Ints, assigned: Ints) -> None:
        bodies, properties = rows.take(chosen)
        queues, now_ms = self._queues[topic], self._place.now_ms()
        columns = zip(bodies.to_pylist(), properties.to_pylist(), assigned, rows.flags[chosen], strict=True)
        for body, marks, number, flags in columns:
            await self._halves.put(queues[number], body, marks.decode(), now_ms, int(flags))

    def _finish(self) -> None:
        self._portal.wait(self._singles.finish())

    def _undo(self) -> None:
        """Halves that stay are rolled back when their broker asks."""
        with suppress(PyroMQError, TimeoutError):
            self._portal.wait(self._roll_back())

    async def _roll_back(self) -> None:
        async with asyncio.timeout(UNDO_SECONDS):
            await self._singles.settle()
            await self._place.transactions().abort([self._written(0), None], self._identity.batch)

    def _written(self, rows: int) -> Written:
        identity = self._identity
        return Written(
            rows,
            identity.query,
            identity.batch,
            identity.partition,
            self._halves.attempt(),
            self._halves.handles(self._ours),
            self._began_ms,
        )


WRITERS: dict[Mode, type[TaskWriter]] = {
    Mode.AT_LEAST_ONCE: AtLeastOnce,
    Mode.IDEMPOTENT: Idempotent,
    Mode.TRANSACTIONAL: Transactional,
}


def _ignore(_: object) -> None:
    """Drop the receipt: the message's position is not needed."""
