"""Which queues are whose: RocketMQ's ways to share out the queues of a topic among the members of a group. Pure.

Each member asks for itself, perhaps another broker, so a share follows from the sorted queues and the sorted members
alone. Together the shares are all queues, and no queue is in two of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TypeVar

Queue = TypeVar("Queue")
#: From how many queues and members there are, and which of the members it is: which queues, counted from 0.
Strategy = Callable[[int, int, int], range]


def in_blocks(queues: int, members: int, place: int) -> range:
    """Neighbouring queues to each; the first members have one more when it does not come out even."""
    each, left = divmod(queues, members)
    first = place * each + min(place, left)
    return range(first, first + each + (place < left))


def in_turns(queues: int, members: int, place: int) -> range:
    """Dealt out like cards."""
    return range(place, queues, members)


#: By the names that clients give them.
STRATEGIES: Mapping[str, Strategy] = {"AVG": in_blocks, "AVG_BY_CIRCLE": in_turns}


def share_of(client_id: str, clients: Iterable[str], queues: Sequence[Queue], strategy: Strategy) -> tuple[Queue, ...]:
    """Return the share of one client of sorted queues; empty for one that is no member."""
    members = sorted(clients)
    if client_id not in members:
        return ()
    return tuple(queues[number] for number in strategy(len(queues), len(members), members.index(client_id)))
