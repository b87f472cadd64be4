"""Consumer groups: listed, made, changed, removed; on every broker of a cluster at once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from pyromq.admin.directory import BrokerAddress, Directory, of_each, of_reachable
from pyromq.admin.reading import form_of, named
from pyromq.admin.topics import Topics
from pyromq.errors import BadRequest, ConfigError, GroupNotFound, TopicNotFound
from pyromq.model import names
from pyromq.model.group import GroupConfig
from pyromq.model.json_form import from_json
from pyromq.wire.bodies.topics_and_groups import encode_group
from pyromq.wire.requests.admin import DeleteGroup, GetAllGroups, UpdateGroup


@dataclass(frozen=True, slots=True)
class GroupOnBroker:
    broker: str
    cluster: str
    config: GroupConfig


@dataclass(frozen=True, slots=True)
class Group:
    name: str
    is_system: bool
    brokers: tuple[GroupOnBroker, ...] = field(default=())

    @property
    def config(self) -> GroupConfig:
        """As the first broker has it; usually they agree."""
        return self.brokers[0].config


#: Settings of a group that people change, and what they may be.
CHANGEABLE = (
    "consume_enabled",
    "broadcast_enabled",
    "orderly",
    "retry_queues",
    "max_retries",
    "consume_from_min_enabled",
)


class Groups:
    def __init__(self, directory: Directory, topics: Topics) -> None:
        self._directory = directory
        self._topics = topics

    async def list(self) -> Sequence[Group]:
        """Every group of every broker, by name."""
        found: dict[str, list[GroupOnBroker]] = {}
        for broker, configs in await of_reachable(await self._directory.readable(), self._groups_of):
            for config in configs:
                found.setdefault(config.name, []).append(GroupOnBroker(broker.name, broker.cluster, config))
        return [Group(name, names.is_system_group(name), tuple(on)) for name, on in sorted(found.items())]

    async def _groups_of(self, broker: BrokerAddress) -> Sequence[GroupConfig]:
        form = form_of(await self._directory.ask(broker.address, GetAllGroups()))
        return [from_json(GroupConfig, one) for one in named(form, "subscriptionGroupTable").values()]

    async def get(self, group: str) -> Group:
        """Raises GroupNotFound."""
        for one in await self.list():
            if one.name == group:
                return one
        raise GroupNotFound(f"no broker has a group {group!r}: `pyromq group list` shows those there are")

    async def create(
        self, group: str, *, cluster: str | None = None, broker: str | None = None, **settings: Any
    ) -> Group:
        """Make a group on all masters, those of a cluster, or one. `settings` are fields of GroupConfig.

        Raises ConfigError when it is there already, IllegalName for a name that no group may have.
        """
        names.check_group(group)
        if any(one.name == group for one in await self.list()):
            raise ConfigError(f"the group {group!r} is there already: `pyromq group update` changes it", "group")
        config = replace(GroupConfig(group), **_known(settings))
        masters = await self._directory.masters(cluster, broker)
        await of_each(masters, lambda master: self._set(master, config))
        return Group(group, False, tuple(GroupOnBroker(one.name, one.cluster, config) for one in masters))

    async def update(self, group: str, **settings: Any) -> Group:
        """Change the given settings on every broker that has the group. Raises GroupNotFound."""
        found = await self.get(group)
        addresses = await self._directory.masters_called([on.broker for on in found.brokers])
        for on in found.brokers:
            # Attributes are sent as changes; those that are there stay.
            await self._set(addresses[on.broker], replace(on.config, **_known(settings), attributes={}))
        return await self.get(group)

    async def _set(self, broker: BrokerAddress, config: GroupConfig) -> None:
        await self._directory.ask(broker.address, UpdateGroup(body=encode_group(config)))

    async def delete(self, group: str, *, keep_offsets: bool = False, with_dead_letters: bool = False) -> Sequence[str]:
        """Delete a group, its offsets and its retry topic, and on request its dead letters. Returns their names.

        Raises GroupNotFound; BadRequest for a group that brokers need.
        """
        if names.is_system_group(group):
            raise BadRequest(f"the group {group!r} is the broker's own: it cannot be deleted")
        found = await self.get(group)
        request = DeleteGroup(group=group, clean_offsets=not keep_offsets)
        masters = await self._directory.masters_called([on.broker for on in found.brokers])
        await of_each(masters.values(), lambda master: self._directory.ask(master.address, request))
        removed = [f"group {group}"]
        topics = [names.retry_topic(group), *([names.dead_letter_topic(group)] if with_dead_letters else [])]
        for topic in topics:
            try:
                await self._topics.delete(topic)
            except TopicNotFound:
                continue
            removed.append(f"topic {topic}")
        return removed


def _known(settings: Mapping[str, Any]) -> dict[str, Any]:
    for name in settings:
        if name not in CHANGEABLE:
            raise ConfigError(f"a group has no setting {name!r}: it has {', '.join(CHANGEABLE)}", name)
    return {name: value for name, value in settings.items() if value is not None}
