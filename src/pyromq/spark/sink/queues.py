"""Which queue each row goes to: a function of the row and of its number, so that a repeat goes where it went before.

A row that names its queue goes there, one with a sharding key to the key's queue, as RocketMQ's producers choose it.
All others go round the queues in blocks: one queue takes some hundred rows, so that requests are large.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from zlib import crc32

import numpy as np
import numpy.typing as npt

from pyromq.errors import IllegalMessage
from pyromq.model.queue import MessageQueue
from pyromq.spark.sink.rows import Ints, Rows

#: Rows without a queue of their own that go to one queue before it is the next one's turn. It must never change: a
#: repeated row would go elsewhere.
BLOCK = 256


class Spread:
    """Spreads the rows of one writer over queues. `writer` decides the first queue, so that writers start apart."""

    def __init__(self, writer: str) -> None:
        self._start = crc32(writer.encode())

    def assign(self, rows: Rows, chosen: Ints, queues: Sequence[MessageQueue]) -> Ints:
        """Of some rows of one topic, the number of the queue of each. Raises IllegalMessage."""
        turns = self._start + rows.numbers()[chosen] // BLOCK
        assigned = turns % len(queues)
        hashes = rows.key_hashes[chosen]
        assigned = np.where(hashes >= 0, hashes % len(queues), assigned)
        wanted = rows.queue_ids[chosen]
        for queue_id in np.unique(wanted[wanted >= 0]):
            places = self._places(queues, int(queue_id))
            mask = wanted == queue_id
            assigned[mask] = places[turns[mask] % len(places)]
        _refuse_negative(wanted)
        return np.asarray(assigned, dtype=np.int64)

    @staticmethod
    def _places(queues: Sequence[MessageQueue], queue_id: int) -> Ints:
        found = [place for place, queue in enumerate(queues) if queue.queue_id == queue_id]
        if not found:
            topic = queues[0].topic
            highest = max(queue.queue_id for queue in queues)
            raise IllegalMessage(f"the topic {topic!r} has no queue {queue_id}: the highest is {highest}")
        return np.array(found, dtype=np.int64)


def is_free(rows: Rows, chosen: Ints) -> npt.NDArray[np.bool_]:
    """Rows without order: a retry may take another queue."""
    return np.asarray((rows.queue_ids[chosen] == -1) & (rows.key_hashes[chosen] == -1))


def by_topic(rows: Rows, wanted: npt.NDArray[np.bool_]) -> Iterator[tuple[str, Ints]]:
    """The places of the wanted rows of each topic, in order."""
    for code, topic in enumerate(rows.topics):
        chosen = np.flatnonzero(wanted & (rows.topic_codes == code))
        if len(chosen):
            yield topic, chosen


def by_queue(assigned: Ints) -> Iterator[tuple[int, Ints]]:
    """The places of the rows of each queue, in order."""
    order = np.argsort(assigned, kind="stable")
    numbers, starts = np.unique(assigned[order], return_index=True)
    for number, places in zip(numbers, np.split(order, starts[1:]), strict=True):
        yield int(number), places


def _refuse_negative(queue_ids: Ints) -> None:
    if (queue_ids < -1).any():
        raise IllegalMessage(f"queue_id is {int(queue_ids.min())}: queues are numbered from 0 on")
