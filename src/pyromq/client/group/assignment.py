"""Which queues are this member's: asked now and then, and whenever something may have changed.

The list of members comes from any broker that has the topic, the queues from the route, and the strategy decides. If
either is unknown, the queues stay as they are: a queue is better read twice than not at all.
"""

from __future__ import annotations

import logging
import random
from collections.abc import Sequence
from dataclasses import dataclass

from pyromq.client.consuming.settings import ConsumerSettings
from pyromq.client.group.strategies import java_order
from pyromq.client.session import Session
from pyromq.errors import BrokerError, NotJson, PyroMQError, TopicNotFound, Unreachable
from pyromq.model.lenient_json import loads
from pyromq.model.queue import MessageQueue
from pyromq.wire.requests.client import GetConsumerList

log = logging.getLogger("pyromq.client")


@dataclass(frozen=True, slots=True)
class Share:
    """This member's queues of a topic."""

    queues: frozenset[MessageQueue]
    #: True if other members may have had some of them until now.
    has_others: bool


class Assignment:
    """Finds out. It changes nothing."""

    def __init__(self, session: Session, settings: ConsumerSettings, rng: random.Random | None = None) -> None:
        self._session = session
        self._settings = settings
        self._rng = rng or random.Random()  # noqa: S311  it chooses a broker
        #: Topics that were not there when they were looked for last.
        self.missing: set[str] = set()
        #: Topics that were made while this consumer was waiting for them: it wants all of them.
        self.late: set[str] = set()
        #: Topics whose trouble is in the log already.
        self._troubled: set[str] = set()

    async def share_of(self, topic: str) -> Share | None:
        """None if it is unknown now: the member keeps its queues."""
        try:
            queues = sorted(await self._session.routes.readable(topic))
        except TopicNotFound:
            self._note_missing(topic)
            return None
        except PyroMQError as error:
            log.warning("the queues of %s are not known: %s", topic, error)
            return None
        if topic in self.missing:
            self.missing.discard(topic)
            self.late.add(topic)
        if self._settings.broadcast:
            return Share(frozenset(queues), has_others=False)
        return await self._shared(topic, queues)

    def _note_missing(self, topic: str) -> None:
        if topic not in self.missing:
            log.info("the topic %s is not there yet; %s gets its messages when it is", topic, self._settings.group)
            self.missing.add(topic)

    async def _shared(self, topic: str, queues: Sequence[MessageQueue]) -> Share | None:
        client_id = self._session.client_id
        try:
            try:
                members = await self._members(queues)
            except BrokerError:  # the broker's answer for a group without a heartbeat
                members = []
            if client_id not in members:  # the topic, or the broker, was not there when we told all others of us
                await self._session.heartbeat()
                members = await self._members(queues)
            mine = self._settings.strategy(client_id, members, queues) if queues else []
        except PyroMQError as error:
            level = logging.DEBUG if topic in self._troubled else logging.WARNING
            self._troubled.add(topic)
            log.log(level, "the queues of %s are not shared out anew: %s", topic, error)
            return None
        self._troubled.discard(topic)
        return Share(frozenset(mine), has_others=members != [client_id])

    async def _members(self, queues: Sequence[MessageQueue]) -> list[str]:
        """Of whichever broker answers first. Raises the last error when none does."""
        names = sorted({queue.broker_name for queue in queues})
        self._rng.shuffle(names)
        problem: PyroMQError = Unreachable("no broker of it is known")
        for name in names:
            addresses = self._session.routes.addresses(name)
            try:
                if addresses:
                    return await self._members_at(addresses[min(addresses)])
            except PyroMQError as error:
                problem = error
        raise problem

    async def _members_at(self, address: str) -> list[str]:
        answer = await self._session.ask(address, GetConsumerList(group=self._settings.group))
        try:
            form = loads(answer.body)
        except NotJson as error:
            raise Unreachable(f"{address} sent a list of members that cannot be read: {error}") from None
        found = form.get("consumerIdList") if isinstance(form, dict) else None
        return java_order(str(one) for one in found) if isinstance(found, list) else []
