"""The queues of a topic for messages that keep an order: the same ones while a broker is away for a moment.

Which queue a key belongs to depends on how many queues there are. A broker that starts again or hands over is missing
in the route for about a second; if its queues were missing here too, the keys of all queues would move to others and
back again, and with them the order of their messages. So a missing broker keeps its place for some time, and sends
to its queues wait for it. A broker whose queues an operator closed loses its place at once.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from pyromq.model.queue import MessageQueue

#: A broker that is away for longer is gone.
AWAY_SECONDS = 10.0

Queues = tuple[MessageQueue, ...]


class SteadyQueues:
    """Of one topic."""

    __slots__ = ("_away_since", "queues")

    def __init__(self) -> None:
        #: In the order of the route.
        self.queues: Queues = ()
        self._away_since: dict[str, float] = {}

    def update(self, there: Sequence[MessageQueue], closed: Collection[str], now: float) -> bool:
        """Return the route's queues and the closed brokers; and whether some of `queues` are missing."""
        names = {queue.broker_name for queue in there}
        missing = {queue.broker_name for queue in self.queues} - names - set(closed)
        since = {name: self._away_since.get(name, now) for name in missing}
        self._away_since = {name: at for name, at in since.items() if now < at + AWAY_SECONDS}
        kept = [queue for queue in self.queues if queue.broker_name in self._away_since]
        self.queues = tuple(sorted((*there, *kept), key=lambda queue: queue.broker_name)) if kept else tuple(there)
        return bool(kept)
