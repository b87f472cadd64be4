"""Lost messages: detection and error texts. Pure.

Only the ends of a queue are judged: its first offset moved up, or it was deleted and created again. Missing offsets in
between are no loss: a broker skips filtered messages and offsets without a message.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from enum import Enum, auto

from pyromq.errors import DataLoss
from pyromq.model.queue import MessageQueue

log = logging.getLogger("pyromq.spark")

WHAT_TO_DO = (
    "To go on without them set the option failOnDataLoss to false, or begin anew with another checkpoint; brokers "
    "should keep messages for longer than readers are behind"
)


class Standing(Enum):
    """The relation of the next offset to the range of its queue."""

    WITHIN = auto()
    #: The queue begins behind it.
    TOO_OLD = auto()
    #: The queue ends before it: it was deleted and created again.
    AHEAD = auto()


def standing(offset: int, first: int, end: int) -> Standing:
    if offset < first:
        return Standing.TOO_OLD
    return Standing.AHEAD if offset > end else Standing.WITHIN


def shown(queue: MessageQueue) -> str:
    return f"queue {queue.queue_id} of the topic {queue.topic} on {queue.broker_name}"


def gone(queue: MessageQueue, offset: int, first: int) -> str:
    return (
        f"messages are lost: {shown(queue)} was to be read from offset {offset} on and begins at {first} now, so "
        f"{first - offset} messages were removed before they were read"
    )


def made_anew(queue: MessageQueue, offset: int, end: int) -> str:
    return (
        f"messages may be lost: {shown(queue)} was to be read from offset {offset} on and ends at {end} now. It was "
        "deleted and made anew, or its broker came back with an older store"
    )


def vanished(queues: Iterable[MessageQueue]) -> str:
    names = ", ".join(map(shown, queues))
    return f"messages may be lost: {names} cannot be read any more. It was deleted, or may not be read"


def lose(sentence: str, *, fails: bool, goes_on: str) -> None:
    """Raise DataLoss, or say what happens instead."""
    if fails:
        raise DataLoss(f"{sentence}. {WHAT_TO_DO}")
    log.warning("%s; %s, as failOnDataLoss is false", sentence, goes_on)
