"""Suggests the broker of this name for a reader's next pull.

The newest messages are resident in memory; a reader of older ones makes the disk work, which a
slave can do as well. So a reader that is far behind is sent to a slave (`replication.read_from_slaves`) if one is in
sync, and returns to the master when it has caught up. A slave sends all other readers to the master: if that is gone,
clients stay where they are.
"""

from __future__ import annotations

from collections.abc import Callable

from pyromq.config import BrokerConfig
from pyromq.model.group import GroupConfig

MASTER = 0


class ReadAdvice:
    """A question of positions in the log, asked for every answer to a pull."""

    def __init__(
        self,
        config: Callable[[], BrokerConfig],
        log_end: Callable[[], int],
        has_slaves: Callable[[], bool],
        memory_bytes: int,
    ) -> None:
        self._config = config
        self._log_end = log_end
        self._has_slaves = has_slaves
        self._memory_bytes = memory_bytes

    def is_far(self, position: int) -> bool:
        """Is the position older than the resident part of the log, and may a slave serve it?"""
        replication = self._config().replication
        if not replication.read_from_slaves:
            return False
        return self._log_end() - position > self._memory_bytes * replication.memory_percent // 100

    def broker_for(self, group: GroupConfig, position: int | None) -> int:
        """The id of the broker to ask next, by where the last message of this answer is; None: it has none."""
        config = self._config()
        is_far = position is not None and self.is_far(position)
        if config.is_slave:
            return config.broker_id if is_far else MASTER
        if is_far and self._has_slaves():
            return group.broker_when_slow
        return group.broker_id if config.replication.read_from_slaves else MASTER
