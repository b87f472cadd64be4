"""A broker's answer to a stored message."""

from __future__ import annotations

from enum import Enum
from typing import NamedTuple

from pyromq.model.queue import MessageQueue


class SendStatus(Enum):
    """The durability of a stored message."""

    #: Stored, and kept as the broker promises it.
    OK = "ok"
    #: In the log; not known to be on the disk, on a slave, or on any slave at all.
    FLUSH_DISK_TIMEOUT = "flush-disk-timeout"
    FLUSH_SLAVE_TIMEOUT = "flush-slave-timeout"
    SLAVE_NOT_AVAILABLE = "slave-not-available"


class SendReceipt(NamedTuple):
    """The position and ids of a stored message."""

    status: SendStatus
    #: The producer's id of the message: the same for every copy and delivery.
    message_id: str
    #: The id of its position: the broker's address and the position in its log.
    offset_message_id: str
    queue: MessageQueue
    queue_offset: int
    transaction_id: str | None = None
    #: With it a message that waits for its time can be called back.
    recall_handle: str | None = None
    #: For message traces: where the broker is, and whether it wants them.
    region: str | None = None
    trace_on: bool = True

    def __str__(self) -> str:
        queue = self.queue
        return f"{self.message_id} in {queue.topic}/{queue.broker_name}/{queue.queue_id} at {self.queue_offset}"
