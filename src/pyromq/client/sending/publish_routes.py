"""The queues that a producer sends to, at hand without waiting once they are known.

A topic that is not there yet has the queues that it will get: brokers that allow it make the topic with its first
message. Its real route is asked for soon after.
"""

from __future__ import annotations

import asyncio
import logging

from pyromq.client.session import Session
from pyromq.errors import PyroMQError, Unreachable
from pyromq.model import names
from pyromq.model.queue import MessageQueue

log = logging.getLogger("pyromq.client")

#: For so long the queues of a topic that is not there yet are taken for its own.
NEW_TOPIC_SECONDS = 1.0

Queues = tuple[MessageQueue, ...]


class PublishRoutes:
    """The writable queues of one producer's topics. `topic_queues`: how many a new topic gets on each broker."""

    def __init__(self, session: Session, topic_queues: int) -> None:
        self._session = session
        self._topic_queues = topic_queues
        #: By topic; look here first.
        self.known: dict[str, Queues] = {}
        self._refreshing: set[str] = set()
        session.routes.on_change.append(self._changed)

    async def find(self, topic: str) -> Queues:
        """Raises IllegalName, TopicNotFound, Unreachable (also when no broker takes messages of it at the moment)."""
        names.check_topic(topic)
        queues = await self._session.routes.writable(topic, self._topic_queues)
        is_there = self._session.routes.is_known(topic)
        if not queues:
            self.doubt(topic)  # another master may be about to come
            raise Unreachable(f"no broker takes messages of {topic!r}: none may be written to, or no master is there")
        self.known[topic] = queues
        if not is_there:
            asyncio.get_running_loop().call_later(NEW_TOPIC_SECONDS, self._changed, topic)
        return queues

    def doubt(self, topic: str) -> None:
        """Something failed: ask for the route again, beside. What is known serves until then."""
        if topic not in self._refreshing:
            self._refreshing.add(topic)
            self._session.spawn(self._refresh(topic))

    async def _refresh(self, topic: str) -> None:
        try:
            await self._session.routes.refresh(topic)
        except PyroMQError as error:
            log.debug("the route of %s cannot be had at the moment: %s", topic, error)
        finally:
            self._refreshing.discard(topic)

    def _changed(self, topic: str) -> None:
        self.known.pop(topic, None)
