"""The broker's consumer groups: which there are, and how new ones come to be."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from pyromq.config import BrokerConfig
from pyromq.errors import GroupNotFound, IllegalMessage
from pyromq.model import names
from pyromq.model.group import GroupConfig
from pyromq.store.tables.config_files import GroupTable


class Groups:
    """Look up, make, change and remove consumer groups."""

    def __init__(self, table: GroupTable, config: Callable[[], BrokerConfig], on_change: Callable[[], None]) -> None:
        self.table = table
        self._config = config
        self._on_change = on_change

    def add_system_groups(self) -> None:
        for name in names.SYSTEM_GROUPS:
            if name not in self.table:
                self.table.put(GroupConfig(name))
        self._on_change()

    def __iter__(self) -> Iterator[GroupConfig]:
        return iter(self.table)

    def get(self, name: str) -> GroupConfig | None:
        return self.table.get(name)

    def require(self, name: str) -> GroupConfig:
        """The group, made now if that is allowed. Raises GroupNotFound, IllegalMessage."""
        group = self.table.get(name)
        if group is not None:
            return group
        if not (self._config().auto_create_groups or names.is_system_group(name)):
            raise GroupNotFound(f"subscription group [{name}] does not exist on this broker: make it first")
        return self.make(GroupConfig(name))

    def make(self, group: GroupConfig) -> GroupConfig:
        """Add or replace a group. Raises IllegalMessage for a name or numbers that cannot be."""
        names.check_group(group.name)
        if not 0 <= group.retry_queues <= 1024:
            raise IllegalMessage(f"a retry topic has at most 1024 queues, {group.retry_queues} were asked for")
        most = self._config().max_groups
        if len(self.table) >= most and group.name not in self.table and not names.is_system_group(group.name):
            raise IllegalMessage(
                f"the group {group.name} cannot be created: this broker has {len(self.table)} groups, and max_groups "
                f"is {most}; remove some, or raise it"
            )
        if self.table.put(group):
            self._on_change()
        return group

    def remove(self, name: str) -> bool:
        removed = self.table.remove(name)
        if removed:
            self._on_change()
        return removed
