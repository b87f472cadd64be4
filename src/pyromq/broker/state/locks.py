"""Which consumer may consume a queue in order: a lock for each group and queue, held by one client, for a while. Pure.

The holder of a lock renews it before it runs out; one that ran out may be taken by another. Nothing else ends a lock,
not even the end of the connection: a client that reconnects at once continues with its queues.
"""

from __future__ import annotations

from dataclasses import dataclass

from pyromq.model.ids import QueueId


@dataclass(slots=True)
class _Lock:
    client_id: str
    renewed_ms: int


class QueueLocks:
    """All locks of the broker. Times are of any clock that only grows."""

    def __init__(self) -> None:
        self._locks: dict[str, dict[QueueId, _Lock]] = {}

    def lock(self, group: str, queue: QueueId, client_id: str, now_ms: int, expiry_ms: int) -> bool:
        """Take or renew; False when another client has it."""
        locks = self._locks.setdefault(group, {})
        held = locks.get(queue)
        if held is not None and held.client_id != client_id and now_ms - held.renewed_ms <= expiry_ms:
            return False
        locks[queue] = _Lock(client_id, now_ms)
        return True

    def holder(self, group: str, queue: QueueId) -> str | None:
        """The client that locked a queue last, whether its lock ran out or not; None if no client did."""
        held = self._locks.get(group, {}).get(queue)
        return None if held is None else held.client_id

    def is_held(self, group: str, now_ms: int, expiry_ms: int) -> bool:
        """Does anybody of the group hold a lock that did not run out? Then it consumes in order."""
        return any(now_ms - held.renewed_ms <= expiry_ms for held in self._locks.get(group, {}).values())

    def unlock(self, group: str, queue: QueueId, client_id: str) -> None:
        """Release a lock; another client's lock stays."""
        locks = self._locks.get(group, {})
        held = locks.get(queue)
        if held is not None and held.client_id == client_id:
            del locks[queue]
            if not locks:
                del self._locks[group]

    def forget_group(self, group: str) -> None:
        self._locks.pop(group, None)

    def forget_expired(self, now_ms: int, expiry_ms: int) -> None:
        """Drop what ran out: nothing else would, when its group is gone for good."""
        for group, locks in list(self._locks.items()):
            for queue in [queue for queue, held in locks.items() if now_ms - held.renewed_ms > expiry_ms]:
                del locks[queue]
            if not locks:
                del self._locks[group]

    def __len__(self) -> int:
        return sum(map(len, self._locks.values()))
