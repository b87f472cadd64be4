"""A queue of a topic, as clients name it."""

from __future__ import annotations

from typing import NamedTuple


class MessageQueue(NamedTuple):
    """The queues of a topic are numbered from 0 on each broker. They sort as RocketMQ's own clients sort them."""

    topic: str
    broker_name: str
    queue_id: int
