"""All consume queues of a store, by topic and number."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

from pyromq.errors import IllegalMessage
from pyromq.files.disk import Disk
from pyromq.model.ids import QueueId
from pyromq.records.checksum import crc32
from pyromq.records.layout import MAX_TOPIC
from pyromq.store.durability.checkpoint import REPAIRING
from pyromq.store.queues.consume_queue import ConsumeQueue
from pyromq.store.queues.queue_cursor import QueueCursor, queue_key


def is_safe_topic(topic: bytes) -> bool:
    """A topic becomes the name of a directory: no other directory may be meant by it."""
    return 0 < len(topic) <= MAX_TOPIC and b"/" not in topic and b"\0" not in topic and topic not in (b".", b"..")


class QueueTable:
    """Makes queues when they are first needed; files come with their first message."""

    def __init__(self, disk: Disk, directory: Path, file_entries: int, *, writable: bool = True) -> None:
        self._disk = disk
        self._directory = directory
        self._file_entries = file_entries
        self._writable = writable
        self._queues: dict[bytes, ConsumeQueue] = {}
        #: The same queues' writing ends, for the loops that fill them.
        self.cursors: dict[bytes, QueueCursor] = {}
        #: Directories that were moved away, which a crash may still bring back.
        self._moved: set[Path] = set()

    def load(self, log_start: int = 0) -> None:
        """Every queue that has a directory."""
        for topic in self._disk.names(self._directory):
            for number in self._disk.names(self._directory / topic):
                if number.isascii() and number.isdigit() and len(number) <= 10 and int(number) < 1 << 31:
                    queue = self.get_or_create(topic.encode("utf-8", "surrogateescape"), int(number))
                    queue.load(log_start)
                    self.cursors[queue_key(queue.topic, queue.id.number)] = queue.cursor

    def get(self, topic: bytes, number: int) -> ConsumeQueue | None:
        return self._queues.get(queue_key(topic, number)) if 0 <= number < 1 << 31 else None

    def get_or_create(self, topic: bytes, number: int) -> ConsumeQueue:
        key = queue_key(topic, number)
        queue = self._queues.get(key)
        if queue is None:
            if not is_safe_topic(topic):
                raise IllegalMessage(f"the topic {topic!r} cannot be the name of a directory")
            name = topic.decode("utf-8", "surrogateescape")
            queue = ConsumeQueue(
                self._disk,
                self._directory / name / str(number),
                QueueId(name, number),
                self._file_entries,
                writable=self._writable,
            )
            self._queues[key] = queue
            self.cursors[key] = queue.cursor
        return queue

    def forget(self, queue: ConsumeQueue) -> None:
        """Leave a queue out from now on."""
        key = queue_key(queue.topic, queue.id.number)
        self._queues.pop(key, None)
        self.cursors.pop(key, None)

    def of_topic(self, topic: bytes) -> list[ConsumeQueue]:
        return sorted((queue for queue in self if queue.topic == topic), key=lambda queue: queue.id.number)

    def topics(self) -> list[str]:
        return sorted({queue.id.topic for queue in self})

    def take_topic(self, topic: bytes, aside: Path) -> None:
        """Forget a topic's queues, and move their files elsewhere at once: a topic of the same name begins in a new
        directory, which the removal of the old files cannot touch. Raises OSError; then nothing has changed."""
        directory = self._directory / topic.decode("utf-8", "surrogateescape")
        with contextlib.suppress(FileNotFoundError):
            self._disk.move_tree(directory, aside)
            self._moved.add(directory)
        for queue in self.of_topic(topic):
            self.forget(queue)
            queue.let_go()

    def sync_removals(self) -> None:
        """Sync the removals, so that no crash restores a removed topic. May run on another thread. Raises OSError."""
        for directory in list(self._moved):
            self._disk.sync_name(directory)
            self._moved.discard(directory)

    def discard(self, queue: ConsumeQueue) -> None:
        """Throw a queue's entries away, to be built again from the log."""
        queue.discard()
        self.cursors[queue_key(queue.topic, queue.id.number)] = queue.cursor

    def digest(self) -> int:
        """A number that says how far each queue is, whatever their order."""
        return sum(
            crc32(key + cursor.next_dispatch.to_bytes(8, "big"), 0)
            for key, cursor in self.cursors.items()
            if cursor.next_dispatch
        )

    def start_digest(self, log_start: int | None = None) -> int:
        """Return a number that says where each queue begins, or will begin once the log does at `log_start`.

        `REPAIRING` while one of them is suspected. Queues that begin with 0 do not count, because new ones do."""
        total = 0
        for key, queue in self._queues.items():
            if queue.is_suspect:
                return REPAIRING
            first = queue.min_offset if log_start is None else queue.first_from(log_start)
            if first:
                total += crc32(key + first.to_bytes(8, "big"), 0)
        return total

    def __iter__(self) -> Iterator[ConsumeQueue]:
        return iter(list(self._queues.values()))

    def __len__(self) -> int:
        return len(self._queues)

    def close(self) -> None:
        self.cursors.clear()
        for queue in self:
            queue.close()
