"""Removes a topic's queues. Its messages stay in the log until retention removes their segments."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from pyromq.errors import DiskFull, IllegalMessage, NotNow
from pyromq.files.platform import what_to_do
from pyromq.files.uninterrupted import uninterrupted
from pyromq.model.ids import LogPosition, QueueOffset
from pyromq.model.message import AppendedAt
from pyromq.store.queues.queue_table import is_safe_topic
from pyromq.store.reader import to_bytes

if TYPE_CHECKING:
    from pyromq.store.message_store import MessageStore


class TopicRemoval:
    """Removes topics one after the other."""

    def __init__(self, store: MessageStore, check_unfenced: Callable[[], None]) -> None:
        self._store = store
        self._check_unfenced = check_unfenced
        #: Topics removed so far: the moved files of each have a directory of their own.
        self._removals = 0

    async def remove(self, topic: str, agreed: Callable[[], bool]) -> bool:
        """Remove a topic's queues; False if `agreed` says no. See `MessageStore.remove_topic`."""
        store, name = self._store, to_bytes(topic)
        if not is_safe_topic(name):
            raise IllegalMessage(f"the topic {topic!r} cannot be the name of a directory")
        async with store.points.lock:
            self._check_unfenced()
            if store.config.flush.sync:
                store.flush()  # only synced messages are dispatched
            store.dispatch()
            if store.marks.dispatched.value < store.marks.written.value:  # a later entry would be the new topic's
                raise NotNow(f"the topic {topic} is not removed: messages before it are not acknowledged; try again")
            if not agreed():
                return False
            self._removals += 1
            moved = store.paths.staging / f"removed-{self._removals}"
            try:
                self._take(name, moved)
                await self._forget_below(store.marks.appended.value)
            except OSError as error:
                raise DiskFull(f"a crash may still bring the topic {topic} back: {what_to_do(error)}") from error
            finally:
                loop = asyncio.get_running_loop()
                await uninterrupted(loop.run_in_executor(None, store.disk.remove_tree, moved))
        return True

    def _take(self, name: bytes, moved: Path) -> None:
        store = self._store
        watched = [queue.id for queue in store.queues.of_topic(name) if queue.cursor.awaited is not None]
        store.queues.take_topic(name, moved)
        for queue in watched:
            store.arrivals.watch(queue.topic, queue.number)  # long polls wait for the new topic's messages

    async def _forget_below(self, end: int) -> None:
        """Save a recover point, so that no start scans the log below a position. Raises OSError, StoreFenced."""
        store = self._store
        await store.wait_synced(AppendedAt(LogPosition(end), 0, QueueOffset(0)))
        await store.points.carry_out_beside(store.points.plan(), None)
