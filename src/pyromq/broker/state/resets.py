"""Offsets that were reset while consumers were connected, until those consumers have received them. Pure.

A consumer that is at work keeps its own account: it would go on where it was, and commit that. So after a reset its
commits do not count until its next pull, which is answered with the offset to go on from. A consumer that comes later
starts from the group's offset, which is set already, and hears nothing of all this.
"""

from __future__ import annotations


class Resets:
    """Resets that consumers have not received yet, by group, topic and queue."""

    def __init__(self) -> None:
        self.pending: dict[tuple[str, str, int], int] = {}

    def __len__(self) -> int:
        return len(self.pending)

    def note(self, group: str, topic: str, queue_id: int, offset: int) -> None:
        self.pending[group, topic, queue_id] = offset

    def is_pending(self, group: str, topic: str, queue_id: int) -> bool:
        """Does a commit of this group not count now?"""
        return bool(self.pending) and (group, topic, queue_id) in self.pending

    def take(self, group: str, topic: str, queue_id: int, pulled: int) -> int | None:
        """Return the offset to which a pull is redirected; None if there is no reset. It is returned once."""
        if not self.pending:
            return None
        offset = self.pending.pop((group, topic, queue_id), None)
        return None if offset == pulled else offset

    def forget_group(self, group: str) -> None:
        for key in [key for key in self.pending if key[0] == group]:
            del self.pending[key]

    def forget_topic(self, topic: str) -> None:
        for key in [key for key in self.pending if key[1] == topic]:
            del self.pending[key]
