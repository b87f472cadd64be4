"""The meaning of an answer to a send: stored, perhaps stored, or certainly not; and whether a retry makes sense.

`SUCCESS` is an acknowledgement. Three codes say that the message is in the log, but not yet on the disk or on a
slave as configured: a crash may lose it. A refusal with a reason means that nothing
was stored; a system error, or a service that is not available, may have come before or after the message was stored,
unless its words say so. Some refusals that are certain are about the broker's moment: it is busy, stops, starts again,
or hands over to another. A retry at such a broker, or at the next one of its name, succeeds soon.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import count, repeat
from typing import NamedTuple

from pyromq.client.answers import error_of
from pyromq.client.sending.receipt import SendReceipt, SendStatus
from pyromq.errors import PyroMQError
from pyromq.model.queue import MessageQueue
from pyromq.records import property_names as names
from pyromq.wire.codes import ResponseCode
from pyromq.wire.command import Command

STATUS_OF_CODE: dict[int, SendStatus] = {
    ResponseCode.SUCCESS: SendStatus.OK,
    ResponseCode.FLUSH_DISK_TIMEOUT: SendStatus.FLUSH_DISK_TIMEOUT,
    ResponseCode.FLUSH_SLAVE_TIMEOUT: SendStatus.FLUSH_SLAVE_TIMEOUT,
    ResponseCode.SLAVE_NOT_AVAILABLE: SendStatus.SLAVE_NOT_AVAILABLE,
}

#: Another broker, or the same one a moment later, may take what this one refused.
RETRYABLE = frozenset({
    ResponseCode.TOPIC_NOT_EXIST, ResponseCode.SERVICE_NOT_AVAILABLE, ResponseCode.SYSTEM_ERROR,
    ResponseCode.SYSTEM_BUSY, ResponseCode.NO_PERMISSION, ResponseCode.NO_BUYER_ID, ResponseCode.NOT_IN_CURRENT_UNIT,
    ResponseCode.GO_AWAY,
})  # fmt: skip

#: Brokers' texts for a refused timer message: nothing is stored, for any code.
_NOT_STORED = ("timerWheelEnable is false", "timer message is under flow control")

#: The words of brokers that refuse everything for a moment, before they store it. Ours say the first of all such.
_FOR_A_MOMENT = ("the message was not stored", "this server is stopping", "this broker is a slave")
#: Codes of that kind, whatever the words are: too much to do; a server that stops.
_MOMENTARY = frozenset({ResponseCode.SYSTEM_BUSY, ResponseCode.GO_AWAY})

#: They may come after the message was stored.
UNCERTAIN = frozenset({
    ResponseCode.SYSTEM_ERROR,
    # A full disk stores nothing, but a broker whose disk failed sends this for messages that it had appended already.
    ResponseCode.SERVICE_NOT_AVAILABLE,
})  # fmt: skip


class Refusal(NamedTuple):
    """Why a try did not go well."""

    error: PyroMQError
    #: Nothing was stored by this try.
    is_certain: bool
    may_try_again: bool
    #: Certain, and a matter of time: it may be tried as often as there is time for.
    is_momentary: bool


def refusal_of(answer: Command, address: str) -> Refusal:
    """For answers with a code that is none of `STATUS_OF_CODE`."""
    reason, may_try_again = answer.reason or "", answer.code in RETRYABLE
    is_momentary = answer.code in _MOMENTARY or (may_try_again and any(said in reason for said in _FOR_A_MOMENT))
    is_certain = is_momentary or answer.code not in UNCERTAIN or any(said in reason for said in _NOT_STORED)
    return Refusal(error_of(answer, address), is_certain, may_try_again, is_momentary)


def receipt_of(answer: Command, queue: MessageQueue, message_id: str) -> SendReceipt:
    """For answers with a code of `STATUS_OF_CODE`."""
    field = answer.fields.get
    return SendReceipt(
        STATUS_OF_CODE[answer.code],
        message_id,
        field("msgId") or "",
        _queue_of(field("queueId"), queue),
        _number(field("queueOffset")),
        field("transactionId"),
        field("recallHandle"),
        field(names.REGION),
        field(names.TRACE_SWITCH) != "false",
    )


def receipts_of_batch(answer: Command, queue: MessageQueue, message_ids: Sequence[str]) -> list[SendReceipt]:
    """One for each message. They stand in the queue one behind the other; the answer has the first one's offset."""
    first = receipt_of(answer, queue, "")
    offset_ids = first.offset_message_id.split(",")
    if len(offset_ids) != len(message_ids):  # the batch stayed one message
        offset_ids = [first.offset_message_id] * len(message_ids)
    shared = map(repeat, (first.queue, None, None, first.region, first.trace_on))
    where, transaction, recall, region, trace_on = shared
    offsets = count(first.queue_offset)
    fields = zip(repeat(first.status), message_ids, offset_ids, where, offsets, transaction, recall, region, trace_on)
    return list(map(SendReceipt._make, fields))


def _queue_of(written: str | None, queue: MessageQueue) -> MessageQueue:
    """The queue that the broker put it in: another than was asked for, when it made the topic just now."""
    number = queue.queue_id if written is None else _number(written)
    return queue if number == queue.queue_id else queue._replace(queue_id=number)


def _number(written: str | None) -> int:
    try:
        return int(written or 0)
    except ValueError:
        return 0
