"""The queues that a producer sends to, at hand without waiting once they are known.

A topic that is not there yet has the queues that it will get: brokers that allow it make the topic with its first
message. Its real route is asked for soon after.
"""

from __future__ import annotations

import asyncio

from pyromq.client.sending.steady_queues import AWAY_SECONDS, Queues, SteadyQueues
from pyromq.client.session import Session
from pyromq.errors import NoMaster, Unreachable
from pyromq.model import names

#: The queues of a missing topic (those of the default topic) stay valid this long.
NEW_TOPIC_SECONDS = 1.0
#: A route that was asked for so short a time ago is not asked for again, however many sends fail.
FRESH_SECONDS = 0.05
#: A send that is tried again waits no longer than this for a newer route.
ROUTE_SECONDS = 0.25


class PublishRoutes:
    """The writable queues of one producer's topics. `topic_queues`: how many a new topic gets on each broker."""

    def __init__(self, session: Session, topic_queues: int) -> None:
        self._session = session
        self._topic_queues = topic_queues
        #: By topic; look here first.
        self.known: dict[str, Queues] = {}
        #: The topics among them that have a single broker.
        self.at_one_broker: set[str] = set()
        self._steady: dict[str, SteadyQueues] = {}
        #: Topics whose routes are being asked for again, and when that was last begun.
        self._refreshing: dict[str, asyncio.Task[None]] = {}
        self._asked_at: dict[str, float] = {}
        session.routes.on_change.append(self._changed)

    async def find(self, topic: str) -> Queues:
        """Raises IllegalName, TopicNotFound, Unreachable (no broker takes messages of it); NoMaster when that may be
        for a moment only."""
        names.check_topic(topic)
        routes = self._session.routes
        queues = await routes.writable(topic, self._topic_queues)
        is_there = routes.is_known(topic)
        self._keep_steady(topic, queues)
        if not queues:
            self.doubt(topic)  # another master may be about to come
            if self._steady[topic].queues:
                raise NoMaster(f"no broker takes messages of {topic!r}: no master is there at the moment")
            raise Unreachable(f"no broker takes messages of {topic!r}: none may be written to")
        self.known[topic] = queues
        if len({queue.broker_name for queue in queues}) == 1:
            self.at_one_broker.add(topic)
        else:
            self.at_one_broker.discard(topic)
        if not is_there:
            asyncio.get_running_loop().call_later(NEW_TOPIC_SECONDS, self._changed, topic)
        return queues

    # --- for messages that keep an order -----------------------------------------------------------------------------

    def steady(self, topic: str) -> Queues | None:
        """The queues among which a message that keeps an order finds its own: with those of brokers that are away for
        a moment. None: `find_steady` has to look."""
        return self._steady[topic].queues if topic in self.known else None

    async def find_steady(self, topic: str) -> Queues:
        """Raises what `find` raises."""
        try:
            await self.find(topic)
        except Unreachable:
            if topic not in self._steady or not self._steady[topic].queues:
                raise
        return self._steady[topic].queues

    def _keep_steady(self, topic: str, queues: Queues) -> None:
        routes, loop = self._session.routes, asyncio.get_running_loop()
        there, masterless = queues, routes.masterless(topic)
        if masterless:
            there = tuple(sorted((*queues, *masterless), key=lambda one: one.broker_name))
        if self._steady.setdefault(topic, SteadyQueues()).update(there, routes.closed(topic), loop.time()):
            loop.call_later(AWAY_SECONDS, self._changed, topic)

    # --- when something failed ---------------------------------------------------------------------------------------

    def doubt(self, topic: str) -> None:
        """Refresh the route in the background after a failure. The cached one serves until then."""
        now = asyncio.get_running_loop().time()
        if topic not in self._refreshing and now >= self._asked_at.get(topic, 0.0) + FRESH_SECONDS:
            self._asked_at[topic] = now
            asking = self._refreshing[topic] = self._session.spawn(self._session.routes.look_again(topic))
            asking.add_done_callback(lambda _: self._refreshing.pop(topic, None))

    async def renew(self, topic: str, limit_s: float) -> None:
        """Before another try: wait a little for the newest route."""
        self.doubt(topic)
        if (asking := self._refreshing.get(topic)) is not None:
            await asyncio.wait([asking], timeout=min(limit_s, ROUTE_SECONDS))

    def _changed(self, topic: str) -> None:
        self.known.pop(topic, None)
