"""Limits of the state that clients create on a broker: any client that reaches it may make groups and commit offsets.

Tables are in memory, are written whole, and are copied by slaves in one frame each. Above a limit a request is refused
with a sentence; existing entries stay.
"""

from __future__ import annotations

from collections.abc import Iterable

import orjson

from pyromq.errors import BadRequest, SystemBusy
from pyromq.model.group import GroupConfig
from pyromq.store.tables.offset_files import ConsumerOffsets

#: The opaque fields of one group: attributes, retry policy, held subscriptions, and unknown fields. RocketMQ
#: writes some hundred bytes of these.
MAX_EXTRA_BYTES = 16 << 10
#: The same for all groups together: a slave takes the table in one frame of 16 MiB.
MAX_EXTRA_BYTES_IN_ALL = 4 << 20
#: Pairs of a group and a topic that it may not read.
MAX_FORBIDDEN = 10_000
#: Pairs of a topic and a group with a request mode.
MAX_REQUEST_MODES = 10_000
#: Offsets of all groups in all queues: some 15 bytes each in consumerOffset.json.
MAX_OFFSETS = 500_000


def extra_bytes(group: GroupConfig) -> int:
    """Return the size of the parts of a group that are kept as they came."""
    kept = {**group.unknown, **group.attributes, **group.retry_policy}
    if len(kept) == 1 and not group.subscriptions:
        return 0  # the usual group: a retry policy of one word
    parts = (group.unknown, group.attributes, group.retry_policy, group.subscriptions)
    return len(orjson.dumps(parts, option=orjson.OPT_PASSTHROUGH_DATACLASS))


def check_groups(wanted: Iterable[GroupConfig], known: Iterable[GroupConfig]) -> None:
    """Raise BadRequest for a group that is too large, SystemBusy if all of them together would be."""
    sizes = {group.name: extra_bytes(group) for group in wanted}
    for name, size in sizes.items():
        if size > MAX_EXTRA_BYTES:
            raise BadRequest(
                f"the group {name} has {size} bytes of attributes and unknown fields; {MAX_EXTRA_BYTES} are the limit"
            )
    if any(sizes.values()):
        total = sum(sizes.values()) + sum(extra_bytes(group) for group in known if group.name not in sizes)
        _require_room(total <= MAX_EXTRA_BYTES_IN_ALL, "bytes of attributes and unknown fields", MAX_EXTRA_BYTES_IN_ALL)


def check_pairs(count: int, limit: int, what: str) -> None:
    """Raise SystemBusy if a table of pairs has no room for one more."""
    _require_room(count < limit, what, limit)


class OffsetCount:
    """The number of offsets. Counted one by one, and all of them again before one is refused: topics and groups
    that are removed take theirs with them."""

    def __init__(self, offsets: ConsumerOffsets, limit: int = MAX_OFFSETS) -> None:
        self._offsets = offsets
        self._limit = limit
        self._count: int | None = None

    def add(self) -> None:
        """Count a new offset. Raise SystemBusy if there is no room for it."""
        if self._count is None or self._count >= self._limit:
            self._count = self._offsets.count()
            _require_room(self._count < self._limit, "offsets", self._limit)
        self._count += 1


def _require_room(holds: bool, what: str, limit: int) -> None:
    if not holds:
        raise SystemBusy(f"this broker keeps {limit} {what}, which is its limit: remove groups or topics first")
