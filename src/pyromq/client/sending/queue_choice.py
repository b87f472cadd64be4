"""Which queue a message goes to.

A message that is free to go anywhere takes the next queue in turn, of a broker that is not avoided and is not the one
that just failed. One with a sharding key always takes the queue of its key, by the hash that Java's producers use, so
that producers in both languages agree. One with a queue of its own or chosen by the user takes that. Only the first
kind may go elsewhere when it fails: for the others that would break the order that they were sent in.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache

from pyromq.client.message import Message
from pyromq.client.sending.fault_backoff import FaultBackoff
from pyromq.model.queue import MessageQueue
from pyromq.records.java_hash import java_hash

#: The user's own choice: of these queues, one for this message.
Selector = Callable[[Sequence[MessageQueue], Message], MessageQueue]
#: One of these queues for the next try, given the brokers that failed.
Pick = Callable[[Sequence[MessageQueue], Sequence[str]], MessageQueue]


class TurnTaking:
    """Goes round the queues of a topic. `start` is where it begins, so that not all producers begin alike."""

    __slots__ = ("_backoff", "_turn")

    def __init__(self, backoff: FaultBackoff, start: int = 0) -> None:
        self._backoff = backoff
        self._turn = start

    def next(self, queues: Sequence[MessageQueue], failed_brokers: Sequence[str] = ()) -> MessageQueue:
        """The next queue, of the best broker there is: not failed and not avoided, or not failed, or any."""
        self._turn = turn = self._turn + 1
        if not failed_brokers and not self._backoff:
            return queues[turn % len(queues)]
        first = turn % len(queues)
        in_turn = [*queues[first:], *queues[:first]]
        others = [queue for queue in in_turn if queue.broker_name not in failed_brokers] or in_turn
        chosen = next((queue for queue in others if not self._backoff.avoids(queue.broker_name)), others[0])
        self._turn += in_turn.index(chosen)
        self._backoff.chosen(chosen.broker_name)
        return chosen


def only_once(choose: Callable[[Sequence[MessageQueue]], MessageQueue]) -> Pick:
    """A choice for all tries of one message, also when the queues are others by then."""
    chosen: list[MessageQueue] = []

    def pick(queues: Sequence[MessageQueue], _: Sequence[str]) -> MessageQueue:
        if not chosen:
            chosen.append(choose(queues))
        return chosen[0]

    return pick


def queue_of_key(queues: Sequence[MessageQueue], sharding_key: str) -> MessageQueue:
    """The queue of a sharding key, as Java's `SelectMessageQueueByHash` finds it for a string."""
    return queues[_positive_hash(sharding_key) % len(queues)]


@lru_cache(maxsize=4096)
def _positive_hash(key: str) -> int:
    # Java takes the remainder first, with the sign of the hash, and makes it positive then: the same number.
    return abs(java_hash(key))
