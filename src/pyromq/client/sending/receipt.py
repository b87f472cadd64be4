"""What a broker says of a message that it took."""

from __future__ import annotations

from enum import Enum
from typing import NamedTuple

from pyromq.model.queue import MessageQueue


class SendStatus(Enum):
    """How far a message came."""

    #: Stored, and kept as the broker promises it.
    OK = "ok"
    #: In the log; not known to be on the disk, on a slave, or on any slave at all.
    FLUSH_DISK_TIMEOUT = "flush-disk-timeout"
    FLUSH_SLAVE_TIMEOUT = "flush-slave-timeout"
    SLAVE_NOT_AVAILABLE = "slave-not-available"


class SendReceipt(NamedTuple):
    """Where a message is."""

    status: SendStatus
    #: What the producer called it: the same however often it is stored or delivered.
    message_id: str
    #: Where it is: the broker's address and the position in its log.
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
