"""Topics filled for tests of the source: which message is where is known beforehand."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from itertools import islice

from pyromq.model.queue import MessageQueue
from pyromq.sync import Message, Producer

#: A batch of messages is one request.
TOGETHER = 200


@contextmanager
def producer(name_servers: str) -> Iterator[Producer]:
    with Producer(name_servers, group="filling") as sender:
        yield sender


def fill(name_servers: str, queue: MessageQueue, messages: Iterable[Message]) -> None:
    """Append messages to one queue, in order."""
    waiting = iter(messages)
    with producer(name_servers) as sender:
        while batch := list(islice(waiting, TOGETHER)):
            sender.send_batch(batch, queue=queue)


def numbered(topic: str, first: int, end: int, size: int = 0) -> Iterator[Message]:
    """Bodies are numbers, followed by blanks up to a size; tags go a, b, c, a, …; keys are the numbers."""
    for number in range(first, end):
        yield Message(
            topic,
            str(number).encode().ljust(size),
            tags="abc"[number % 3],
            keys=str(number),
            properties={"number": str(number)},
        )


def fill_evenly(name_servers: str, topic: str, queues: int, each: int, broker: str = "broker-a", size: int = 0) -> None:
    """`each` messages in each queue: number n is at offset n // queues of queue n % queues."""
    every = list(numbered(topic, 0, queues * each, size))
    for queue_id in range(queues):
        fill(name_servers, MessageQueue(topic, broker, queue_id), every[queue_id::queues])
