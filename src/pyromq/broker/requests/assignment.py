"""Consumers that let the broker share out queues ask here for theirs; operators say here how groups get messages.

Only pulling is offered: a group that a RocketMQ broker let pop is instructed to pull.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import replace

import orjson

from pyromq.broker.bounds import MAX_REQUEST_MODES, check_pairs
from pyromq.broker.cluster_queues import ClusterQueues, Queues
from pyromq.broker.state.assignment import STRATEGIES, share_of
from pyromq.broker.state.clients import Consumers
from pyromq.broker.state.groups import Groups
from pyromq.broker.state.request_modes import RequestModeTable
from pyromq.broker.state.topics import Topics
from pyromq.errors import BadRequest, NoPermission, NotSupported
from pyromq.model import names
from pyromq.net.peer import Peer
from pyromq.net.service import Handler
from pyromq.wire.bodies.assignment import (
    BROADCASTING,
    POP,
    PULL,
    AssignmentRequest,
    decode_assignment_request,
    decode_request_mode,
    encode_assignments,
    request_modes_to_json,
)
from pyromq.wire.requests import admin as ask
from pyromq.wire.requests.client import Request
from pyromq.wire.responses import Response

log = logging.getLogger("pyromq.broker")

#: Groups that were warned of; more are not kept apart.
MAX_WARNED = 1000


class AssignmentProcessor:
    """Handles the questions of consumers that do not share out queues themselves."""

    def __init__(
        self,
        topics: Topics,
        groups: Groups,
        consumers: Consumers,
        queues: ClusterQueues,
        modes: RequestModeTable,
        on_change: Callable[[], None],
    ) -> None:
        self._topics = topics
        self._groups = groups
        self._consumers = consumers
        self._queues = queues
        self._modes = modes
        self._on_change = on_change
        self._warned: set[str] = set()

    def handlers(self) -> Mapping[type[Request], Handler]:
        return {
            ask.QueryAssignment: self.query,
            ask.SetRequestMode: self.set_mode,
            ask.GetRequestModes: self.modes,
        }

    async def query(self, request: ask.QueryAssignment, peer: Peer) -> Response:
        wanted = decode_assignment_request(request.body)
        queues = await self._queues.of(wanted.topic)
        given = queues or None if wanted.message_model == BROADCASTING else self._share(wanted, queues)
        return Response(body=encode_assignments(given))

    def _share(self, wanted: AssignmentRequest, queues: Queues) -> Queues | None:
        """Return None, so that the client keeps its queues, if there are no queues, no members or no such strategy."""
        group, strategy = self._consumers.get(wanted.group), STRATEGIES.get(wanted.strategy)
        if strategy is None:
            self._warn_of_strategy(wanted)
            return None
        if not queues or group is None or not group.members:
            return None
        return share_of(wanted.client_id, group.client_ids(), queues, strategy)

    def _warn_of_strategy(self, wanted: AssignmentRequest) -> None:
        if wanted.group in self._warned or len(self._warned) >= MAX_WARNED:
            return
        self._warned.add(wanted.group)
        log.warning(
            "%r of the group %r gets no queues: it wants them shared out by %r, and brokers know %s. Choose one of "
            "them, or let the clients share out queues themselves",
            wanted.client_id[:100], wanted.group[:100], wanted.strategy[:100], " and ".join(STRATEGIES),
        )  # fmt: skip

    def set_mode(self, request: ask.SetRequestMode, peer: Peer) -> Response:
        """Raises NoPermission, TopicNotFound, GroupNotFound, NotSupported, BadRequest."""
        mode = decode_request_mode(request.body)
        if names.is_retry_topic(mode.topic):
            raise NoPermission("retry topic is not allowed to set mode: retries are always pulled")
        self._topics.require(mode.topic)
        self._groups.require(mode.group)
        if mode.mode == POP:
            raise NotSupported("this broker does not let consumers pop messages: set the mode PULL, as it is without")
        if mode.mode != PULL:
            raise BadRequest(f"a group pulls a topic or pops it (PULL, POP), {mode.mode[:100]!r} is neither")
        if self._modes.get(mode.topic, mode.group) is None:
            check_pairs(len(self._modes), MAX_REQUEST_MODES, "request modes of groups")
        self._modes.put(replace(mode, unknown={}))
        self._on_change()
        log.info("%s set that %s pulls %s", peer.address, mode.group, mode.topic)
        return Response()

    def modes(self, request: ask.GetRequestModes, peer: Peer) -> Response:
        return Response(body=orjson.dumps(request_modes_to_json(self._modes.all())))
