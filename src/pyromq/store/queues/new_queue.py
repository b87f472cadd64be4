"""Makes a queue for its first message."""

from __future__ import annotations

from pyromq.errors import DiskFull, TooManyFiles
from pyromq.files.disk import Disk
from pyromq.files.platform import what_to_do
from pyromq.model.message import Draft
from pyromq.store.queues.arrivals import Arrivals
from pyromq.store.queues.queue_table import QueueTable

#: Files that existing queues may still open when new queues are refused.
RESERVED_FILES = 128


def add_queue(disk: Disk, queues: QueueTable, arrivals: Arrivals, draft: Draft) -> None:
    """Make the queue of a draft and its first file, before the message is in the log. Raises DiskFull, TooManyFiles."""
    if disk.files_left() < RESERVED_FILES:
        name = draft.topic.decode(errors="replace")
        raise TooManyFiles(
            f"the queue {name}/{draft.queue_id} cannot be made: it needs open files, and this process may open "
            f"fewer than {RESERVED_FILES} more; raise its limit (ulimit -n) and restart, or use fewer queues. "
            "Queues that are there go on"
        )
    queue = queues.get_or_create(draft.topic, draft.queue_id)
    try:
        queue.make_room()
        arrivals.queue_made(draft.topic, draft.queue_id)
    except OSError as error:
        queues.forget(queue)
        raise DiskFull(f"the queue {queue.id} cannot be made: {what_to_do(error)}") from error
