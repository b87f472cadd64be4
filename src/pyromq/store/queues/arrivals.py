"""Watches on the growth of queues. The dispatcher reports arrivals as it writes entries: there is no polling.

A watch is good for one arrival. It costs nothing while nothing arrives, and an unwatched queue costs nothing.
"""

from __future__ import annotations

from collections.abc import Callable

from pyromq.store.queues.queue_cursor import queue_key
from pyromq.store.queues.queue_table import QueueTable

#: The queues that grew, each as topic and number.
OnArrival = Callable[[list[tuple[str, int]]], None]


class Arrivals:
    """Watches on queues, and their listeners."""

    def __init__(self, queues: QueueTable) -> None:
        self._queues = queues
        self._grown: list[object] = []
        #: Watched before their first message.
        self._not_there: dict[bytes, tuple[str, int]] = {}
        self._listeners: list[OnArrival] = []
        #: Called for every watch: its message may be in the log already.
        self.watched: Callable[[], None] = lambda: None

    def listen(self, on_arrival: OnArrival) -> None:
        """Call this for all watched queues that grew, of all watchers. It must return quickly, and not raise."""
        self._listeners.append(on_arrival)

    def watch(self, topic: str, queue_id: int) -> None:
        """Tell the listeners of the next message of this queue."""
        name = (topic, queue_id)
        key = queue_key(topic.encode(), queue_id)
        cursor = self._queues.cursors.get(key)
        if cursor is None:
            self._not_there[key] = name
        else:
            cursor.name = name
            cursor.awaited = self._grown
            self.watched()

    def queue_made(self, topic: bytes, queue_id: int) -> None:
        """A queue has its first message."""
        name = self._not_there.pop(queue_key(topic, queue_id), None) if self._not_there else None
        if name is not None:
            self.watch(*name)

    def tell(self) -> None:
        """Called when entries have been written."""
        if self._grown:
            grown = self._grown.copy()
            self._grown.clear()  # the same list: cursors hold it
            for on_arrival in self._listeners:
                on_arrival(grown)  # type: ignore[arg-type]
