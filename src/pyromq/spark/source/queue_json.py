"""Queues as people name them in options: `topic@broker@id`, or JSON objects inside each other.

    {"orders@broker-a@0": 17, "orders@broker-a@1": "earliest"}
    {"orders": {"broker-a": {"0": 17, "1": -2}}}        -2 is the earliest, -1 the latest, as Kafka's connector has it
    {"orders": "latest"}                                all queues of a topic; of one broker likewise
    {"v": 1, "q": {"orders@broker-a@0": 17}}            an offset as it stands in a checkpoint

A name that leaves out the broker or the number stands for all of them, and a nearer name counts before it.
Everything here raises ValueError with a sentence; the caller knows which option it was.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from enum import Enum
from typing import NamedTuple, TypeVar

from pyromq.model.queue import MessageQueue
from pyromq.spark.option_reader import INT64_MAX, moment_ms

T = TypeVar("T")

ANY_BROKER = ""
ANY_QUEUE = -1
#: A queue has a number of 32 bits.
MOST_QUEUE_ID = (1 << 31) - 1


class Kind(Enum):
    OFFSET = "offset"
    TIME = "time"
    EARLIEST = "earliest"
    LATEST = "latest"


class Placed(NamedTuple):
    """A place in a queue: the value is an offset or milliseconds."""

    kind: Kind
    value: int = 0


def queue_name(queue: MessageQueue) -> str:
    return f"{queue.topic}@{queue.broker_name}@{queue.queue_id}"


def parse_queue_name(name: str) -> MessageQueue:
    """Names of topics have no @; what stands between the first and the last one is the broker."""
    topic, _, rest = name.partition("@")
    broker, _, number = rest.rpartition("@")
    if not topic or not broker:
        raise ValueError(f"{name!r} is no queue: it is topic@broker@id")
    return MessageQueue(topic, broker, _queue_id(number))


def _queue_id(number: object) -> int:
    text = str(number)
    if not (text.isascii() and text.isdigit() and len(text) <= 10 and int(text) <= MOST_QUEUE_ID):
        raise ValueError(f"{number!r} is no number of a queue")
    return int(text)


def parse_assigned(form: object) -> tuple[MessageQueue, ...]:
    """The option `assign`: a list of queues, or `{"orders": {"broker-a": [0, 1]}}`, or `{"orders": [0, 1]}`."""
    if isinstance(form, list):
        found = [parse_queue_name(str(name)) for name in form]
    elif isinstance(form, dict):
        found = [queue for topic, below in form.items() for queue in _of_topic(topic, below)]
    else:
        raise ValueError('it is a list such as ["topic@broker@0"] or an object such as {"topic": {"broker": [0]}}')
    if not found:
        raise ValueError("it names no queue")
    return tuple(sorted(set(found)))


def _of_topic(topic: str, below: object) -> Iterator[MessageQueue]:
    brokers = below if isinstance(below, dict) else {ANY_BROKER: below}
    for broker, numbers in brokers.items():
        if not isinstance(numbers, list):
            raise ValueError(f"the queues of {topic!r} are a list of numbers, not {numbers!r}")
        yield from (MessageQueue(topic, broker, _queue_id(number)) for number in numbers)


def parse_placed(form: object) -> Mapping[MessageQueue, Placed]:
    """The start or end offset of each queue."""
    return {queue: _placed(value) for queue, value in _leaves(form)}


def parse_times(form: object) -> Mapping[MessageQueue, Placed]:
    """The same, with times instead of offsets."""
    return {queue: Placed(Kind.TIME, _time(value)) for queue, value in _leaves(form)}


def _leaves(form: object) -> Iterator[tuple[MessageQueue, object]]:
    if not isinstance(form, dict) or not form:
        raise ValueError('it is an object such as {"topic@broker@0": 17}')
    inside = form.get("q") if "v" in form else None
    for topic, below in (inside if isinstance(inside, dict) else form).items():
        if "@" in topic:
            yield parse_queue_name(topic), below
        elif isinstance(below, dict):
            yield from _of_brokers(topic, below)
        else:
            yield MessageQueue(topic, ANY_BROKER, ANY_QUEUE), below


def _of_brokers(topic: str, brokers: Mapping[str, object]) -> Iterator[tuple[MessageQueue, object]]:
    for broker, below in brokers.items():
        if isinstance(below, dict):
            yield from ((MessageQueue(topic, broker, _queue_id(number)), value) for number, value in below.items())
        else:
            yield MessageQueue(topic, broker, ANY_QUEUE), below


def _placed(value: object) -> Placed:
    if value in ("earliest", -2):
        return Placed(Kind.EARLIEST)
    if value in ("latest", -1):
        return Placed(Kind.LATEST)
    if type(value) is not int or not 0 <= value <= INT64_MAX:
        raise ValueError(f'{value!r} is no offset: it is a number from 0 on, "earliest" or "latest"')
    return Placed(Kind.OFFSET, value)


def _time(value: object) -> int:
    found = moment_ms(str(value)) if type(value) in (int, str) else None
    if found is None:
        raise ValueError(f"{value!r} is no time: it is one as in 2026-01-31T12:00:00Z, or the milliseconds since 1970")
    return found


def found_for(queue: MessageQueue, named: Mapping[MessageQueue, T]) -> T | None:
    """Return the value of a queue: by its own name, else by its broker, else by its topic."""
    topic, broker, number = queue
    for name in (queue, MessageQueue(topic, broker, ANY_QUEUE), MessageQueue(topic, ANY_BROKER, number),
                 MessageQueue(topic, ANY_BROKER, ANY_QUEUE)):  # fmt: skip
        if name in named:
            return named[name]
    return None


def is_assigned(queue: MessageQueue, assigned: Collection[MessageQueue]) -> bool:
    return queue in assigned or MessageQueue(queue.topic, ANY_BROKER, queue.queue_id) in assigned
