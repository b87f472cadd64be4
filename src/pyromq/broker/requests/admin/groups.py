"""Consumer groups over the network: made, changed, removed, listed, and kept from topics."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import replace

from pyromq.broker.bounds import MAX_FORBIDDEN, check_groups, check_pairs
from pyromq.broker.requests.admin.pages import page_of
from pyromq.broker.state.attributes import changed_attributes
from pyromq.broker.state.groups import Groups
from pyromq.broker.state.locks import QueueLocks
from pyromq.broker.state.offsets import Progress
from pyromq.broker.state.resets import Resets
from pyromq.broker.statistics.traffic import Statistics
from pyromq.errors import BadRequest, GroupNotFound, IllegalMessage
from pyromq.model import names
from pyromq.model.group import GroupConfig
from pyromq.net.peer import Peer
from pyromq.net.service import Handler
from pyromq.net.slices import job, sliced_body
from pyromq.wire.bodies.topics_and_groups import (
    decode_group,
    encode_forbidden,
    encode_group,
    group_table_pieces,
    groups_in,
)
from pyromq.wire.requests import admin as ask
from pyromq.wire.requests.client import Request
from pyromq.wire.responses import Response

log = logging.getLogger("pyromq.broker")

#: RocketMQ's bit for a topic that a group may not read.
FORBIDDEN_TO_READ = 1 << 2
MAX_RETRY_QUEUES = 1024
#: Characters of a group in the log.
MAX_SHOWN = 1000


class GroupAdmin:
    """Handles the requests of admin tools about consumer groups."""

    def __init__(
        self,
        groups: Groups,
        progress: Progress,
        resets: Resets,
        locks: QueueLocks,
        statistics: Statistics,
        on_change: Callable[[], None],
    ) -> None:
        self._groups = groups
        self._progress = progress
        self._resets = resets
        self._locks = locks
        self._statistics = statistics
        self._on_change = on_change

    def handlers(self) -> Mapping[type[Request], Handler]:
        return {
            ask.UpdateGroup: self.update,
            ask.UpdateGroupList: self.update_list,
            ask.GetAllGroups: self.get_all,
            ask.GetGroup: self.get,
            ask.DeleteGroup: self.delete,
            ask.UpdateForbidden: self.update_forbidden,
        }

    def update(self, request: ask.UpdateGroup, peer: Peer) -> Response:
        group = self._checked(decode_group(request.body))
        check_groups([group], self._groups)
        self._make(group, peer)
        return Response()

    async def update_list(self, request: ask.UpdateGroupList, peer: Peer) -> Response:
        """All of them or none."""
        async with job() as work:
            wanted = []
            for one in groups_in(request.body):
                wanted.append(self._checked(one))
                await work.pause()
            check_groups(wanted, self._groups)
            for group in wanted:
                self._make(group, peer)
                await work.pause()
        return Response()

    def _checked(self, wanted: GroupConfig) -> GroupConfig:
        """The group as it will be. Raises BadRequest."""
        try:
            names.check_group(wanted.name)
        except IllegalMessage as problem:
            raise BadRequest(str(problem)) from None
        if not 0 <= wanted.retry_queues <= MAX_RETRY_QUEUES:
            raise BadRequest(f"a retry topic has 0 to {MAX_RETRY_QUEUES} queues, {wanted.retry_queues} were asked for")
        known = self._groups.get(wanted.name)
        current = {} if known is None else known.attributes
        return replace(wanted, attributes=changed_attributes(current, wanted.attributes))

    def _make(self, group: GroupConfig, peer: Peer) -> None:
        if self._groups.get(group.name) != group:
            log.info("%s set the group %s: %s", peer.address, group.name, str(group)[:MAX_SHOWN])
        self._groups.make(group)

    def delete(self, request: ask.DeleteGroup, peer: Peer) -> Response:
        """The group; how far it is only when that is asked for."""
        if names.is_system_group(request.group):
            raise BadRequest(f"the group {request.group} is the broker's own, and stays")
        known = self._groups.remove(request.group)
        kept = "its offsets too" if request.clean_offsets else "its offsets stay"
        log.warning(
            "%s removed the group %r (%s, %s)", peer.address, request.group[:300], "known" if known else "unknown", kept
        )
        self._locks.forget_group(request.group)
        self._statistics.forget_group(request.group)
        if request.clean_offsets:
            self._progress.offsets.forget_group(request.group)
            self._resets.forget_group(request.group)
        return Response()

    async def get_all(self, request: ask.GetAllGroups, peer: Peer) -> Response:
        table = self._groups.table
        total, version = len(table), table.version
        some = page_of(table, request, version)
        shown = {group.name for group in some}
        forbidden = {group: topics for group, topics in table.forbidden.items() if group in shown}
        body = await sliced_body(group_table_pieces(version, some, forbidden), "the list of all groups")
        return ask.AllGroupsAnswer(total=total, body=body)

    def get(self, request: ask.GetGroup, peer: Peer) -> Response:
        return Response(body=encode_group(self._known(request.group)))

    def _known(self, name: str) -> GroupConfig:
        group = self._groups.get(name)
        if group is None:
            raise GroupNotFound(f"no group in this broker: {name} is not known here")
        return group

    def update_forbidden(self, request: ask.UpdateForbidden, peer: Peer) -> Response:
        if request.readable is not None:
            self._known(request.group)
            bits = self._forbidden(request.group, request.topic)
            if not bits:
                self._check_forbidden(request)
            log.warning(
                "%s %s the group %s to read %r",
                peer.address, "allowed" if request.readable else "forbade", request.group, request.topic[:300],
            )  # fmt: skip
            bits = bits & ~FORBIDDEN_TO_READ if request.readable else bits | FORBIDDEN_TO_READ
            self._groups.table.forbid(request.group, request.topic, bits)
            self._on_change()
        readable = not self._forbidden(request.group, request.topic) & FORBIDDEN_TO_READ
        return Response(body=encode_forbidden(request.group, request.topic, readable=readable))

    def _check_forbidden(self, request: ask.UpdateForbidden) -> None:
        """Raise BadRequest or SystemBusy for one more topic that a group may not read."""
        try:
            names.check_topic(request.topic)
        except IllegalMessage as problem:
            raise BadRequest(str(problem)) from None
        count = sum(len(topics) for topics in self._groups.table.forbidden.values() if isinstance(topics, dict))
        check_pairs(count, MAX_FORBIDDEN, "topics that groups may not read")

    def _forbidden(self, group: str, topic: str) -> int:
        bits = (self._groups.table.forbidden.get(group) or {}).get(topic)
        return bits if isinstance(bits, int) and bits > 0 else 0
