"""The first offset of a group in a queue without a committed offset."""

from __future__ import annotations

from datetime import datetime
from enum import Enum

from pyromq.client.group.places import Places
from pyromq.errors import ConfigError
from pyromq.model.names import is_retry_topic
from pyromq.model.queue import MessageQueue


class ConsumeFrom(Enum):
    """The start of a new group; a known group continues at its committed offset."""

    #: Messages sent from now on. A queue whose first message is still there and recent is read from that one, as
    #: RocketMQ's own clients do it: else the first messages of a topic that has just been made would be missed.
    LAST = "CONSUME_FROM_LAST_OFFSET"
    #: With the oldest message that is still there.
    FIRST = "CONSUME_FROM_FIRST_OFFSET"


#: Also a time: with the first message that was stored then or later. A number is seconds since 1970.
Start = ConsumeFrom | datetime | float


_TIMESTAMP = "CONSUME_FROM_TIMESTAMP"


def checked(start: Start) -> ConsumeFrom | float:
    """Raises ConfigError."""
    if isinstance(start, datetime):
        return start.timestamp()
    if isinstance(start, ConsumeFrom) or (isinstance(start, int | float) and start >= 0):
        return start
    raise ConfigError(f"consume_from is ConsumeFrom.FIRST, ConsumeFrom.LAST or a time, not {start!r}", "consume_from")


def name_of(start: ConsumeFrom | float) -> str:
    """RocketMQ's word for it, as heartbeats carry it."""
    return start.value if isinstance(start, ConsumeFrom) else _TIMESTAMP


async def first_offset(places: Places, queue: MessageQueue, start: ConsumeFrom | float) -> int:
    """For a group without progress in this queue. Raises CallFailed and what brokers answer."""
    if is_retry_topic(queue.topic) or start is ConsumeFrom.FIRST:
        return await places.begin(queue)
    if isinstance(start, ConsumeFrom):
        return await places.end(queue)
    return await places.at_time(queue, start)
