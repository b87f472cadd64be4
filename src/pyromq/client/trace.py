"""RocketMQ's message trace: who sent a message where, who handled it, how long it took; kept as messages of a topic.

    type 0x01 field 0x01 field … 0x02, one such line for each step of each message

A message of the trace topic holds many lines, and has the ids and keys of the traced messages as its keys: that
is how RocketMQ's tools find them. Traces are sent in the background, in batches. They are dropped under load.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Iterable
from enum import IntEnum

from pyromq.client.hooks import Handling, Hook, Sending
from pyromq.client.message import Message
from pyromq.client.received import ReceivedMessage
from pyromq.client.sending.receipt import SendReceipt, SendStatus
from pyromq.clock import Clock
from pyromq.errors import PyroMQError
from pyromq.records import property_names as names

log = logging.getLogger("pyromq.client")

TRACE_TOPIC = "RMQ_SYS_TRACE_TOPIC"
DEFAULT_REGION = "DefaultRegion"

FIELD_END = "\x01"
LINE_END = "\x02"

#: The Java client's form of absent tags and keys.
NOTHING = "null"

#: Lines that wait; more are dropped.
MAX_WAITING = 2048
#: Lines of one message, as other clients have it, and their size at most.
MAX_LINES = 100
MAX_CHARACTERS = 128_000
#: The linger time of lines.
LINGER_SECONDS = 0.5
#: The close of a client waits this long for its traces.
FINISH_SECONDS = 3.0


class MessageKind(IntEnum):
    NORMAL = 0
    HALF = 1
    COMMITTED = 2
    DELAYED = 3
    ORDERED = 4


class HandledHow(IntEnum):
    SUCCESS = 0
    TIME_OUT = 1
    EXCEPTION = 2
    RETURNED_NULL = 3
    FAILED = 4


class Line:
    """One step of one message."""

    __slots__ = ("keys", "text")

    def __init__(self, keys: Iterable[str], *fields: object) -> None:
        self.keys = tuple(keys)
        self.text = FIELD_END.join(_written(one) for one in fields) + LINE_END


def _written(value: object) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, IntEnum):
        return str(int(value))
    # Separators of fields and lines cannot be in one; and readers lose an empty field at the end of a line.
    return str(value).replace(FIELD_END, " ").replace(LINE_END, " ") or NOTHING


def sent_line(sending: Sending, receipt: SendReceipt, at_ms: int, kind: MessageKind, store_host: str) -> Line:
    message = sending.message
    return Line(
        (receipt.message_id, *message.keys),
        "Pub", at_ms, receipt.region or DEFAULT_REGION, sending.group, message.topic, receipt.message_id,
        message.tags or "", " ".join(message.keys), store_host, len(message.body),
        int(sending.duration_s * 1000), kind, receipt.offset_message_id, receipt.status is SendStatus.OK,
    )  # fmt: skip


def before_line(message: ReceivedMessage, group: str, request_id: str, at_ms: int) -> Line:
    return Line(
        (message.message_id, *message.keys),
        "SubBefore", at_ms, message.get_property(names.REGION) or DEFAULT_REGION, group, request_id, message.message_id,
        message.reconsume_times, " ".join(message.keys),
    )  # fmt: skip


def after_line(
    message: ReceivedMessage, group: str, request_id: str, at_ms: int, cost_ms: int, how: HandledHow
) -> Line:
    return Line(
        (message.message_id, *message.keys),
        "SubAfter", request_id, message.message_id, cost_ms, how is HandledHow.SUCCESS, " ".join(message.keys), how,
        at_ms, group,
    )  # fmt: skip


def joined(lines: list[Line], topic: str = TRACE_TOPIC) -> Message:
    """A message of the trace topic."""
    keys = dict.fromkeys(key for line in lines for key in line.keys)
    text = "".join(line.text for line in lines)
    return Message(topic, text.encode("utf-8", "replace"), keys=tuple(keys))


class MessageTrace(Hook):
    """Traces what a client sends and handles. `send` sends a message of the trace topic."""

    def __init__(
        self,
        send: Callable[[Message], Awaitable[object]],
        clock: Clock,
        new_id: Callable[[int], str],
        address_of: Callable[[str], str | None],
        topic: str = TRACE_TOPIC,
    ) -> None:
        self._send = send
        self._clock = clock
        self._new_id = new_id
        self._address_of = address_of
        self._topic = topic
        self._waiting: deque[Line] = deque()
        self._wake = asyncio.Event()
        #: Lines that were not sent: there were too many, or the trace topic could not be reached.
        self.dropped = 0

    # --- traced events -----------------------------------------------------------------------------------------------

    def after_send(self, sending: Sending) -> None:
        receipt = sending.receipt
        if receipt is None or not receipt.trace_on or sending.message.topic == self._topic:
            return
        at_ms = self._clock.now_ms() - int(sending.duration_s * 1000)
        host = self._address_of(receipt.queue.broker_name) or ""
        self._put(sent_line(sending, receipt, at_ms, _kind_of(sending), host))

    def before_handle(self, handling: Handling) -> None:
        request_id = handling.notes[self] = self._new_id(self._clock.now_ms())
        for message in _traced(handling):
            self._put(before_line(message, handling.group, request_id, self._clock.now_ms()))

    def after_handle(self, handling: Handling) -> None:
        request_id = handling.notes.get(self)
        if request_id is None:
            return
        how = HandledHow.SUCCESS if handling.error is None else HandledHow.EXCEPTION
        cost_ms = int(handling.duration_s * 1000 / max(1, len(handling.messages)))
        for message in _traced(handling):
            self._put(after_line(message, handling.group, request_id, self._clock.now_ms(), cost_ms, how))

    def _put(self, line: Line) -> None:
        if len(self._waiting) >= MAX_WAITING:
            self.dropped += 1
            return
        self._waiting.append(line)
        self._wake.set()

    # --- how it is sent ----------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Send waiting lines, until cancelled."""
        while True:
            await self._wake.wait()
            if len(self._waiting) < MAX_LINES:
                await asyncio.sleep(LINGER_SECONDS)
            self._wake.clear()
            await self.flush()

    async def finish(self) -> None:
        """Send waiting lines within the time limit."""
        try:
            async with asyncio.timeout(FINISH_SECONDS):
                await self.flush()
        except TimeoutError:
            log.warning("%d lines of the message trace were not sent in time", len(self._waiting))

    async def flush(self) -> None:
        while self._waiting:
            lines = self._take()
            try:
                await self._send(joined(lines, self._topic))
            except PyroMQError as error:
                if not self.dropped:
                    log.warning("message traces cannot be sent, and are dropped: %s", error)
                self.dropped += len(lines)

    def _take(self) -> list[Line]:
        lines, size = [self._waiting.popleft()], 0
        while self._waiting and len(lines) < MAX_LINES and size < MAX_CHARACTERS:
            lines.append(self._waiting.popleft())
            size += len(lines[-1].text)
        return lines


def _traced(handling: Handling) -> Iterable[ReceivedMessage]:
    return (one for one in handling.messages if one.get_property(names.TRACE_SWITCH) != "false")


def _kind_of(sending: Sending) -> MessageKind:
    message = sending.message
    if sending.is_half:
        return MessageKind.HALF
    if message.delay_level or message.deliver_at is not None or message.deliver_after is not None:
        return MessageKind.DELAYED
    return MessageKind.NORMAL
