"""Messages that a handler could not take go back to the broker: it delivers them again later, or keeps them as dead
letters.

The broker that has the message is asked first: it has all it needs. When it cannot be asked, the message is sent to the
group's retry topic like any other, at any broker. When that fails too, it stays here, and is tried again after a while:
a message is finished only when a broker has taken it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from pyromq.client.consuming.settings import ConsumerSettings
from pyromq.client.consuming.verdicts import DeadLetter, RetryLater
from pyromq.client.group.places import Places
from pyromq.client.received import ReceivedMessage
from pyromq.client.session import Session
from pyromq.errors import PyroMQError, Unreachable
from pyromq.model.names import retry_topic
from pyromq.records import property_names as names
from pyromq.records.properties import encode_properties
from pyromq.wire.requests.client import SendBack, SendMessage

log = logging.getLogger("pyromq.client")

TO_DEAD_LETTERS = -1
#: The delay level of the first retry, as brokers choose it; the next attempt takes the next level.
FIRST_RETRY_LEVEL = 3
SEND_BACK_SECONDS = 5.0
#: The producers' group that brokers see for messages that consumers send.
_PRODUCER_GROUP = "CLIENT_INNER_PRODUCER"


def told(message: ReceivedMessage) -> str:
    """A message for the log, whatever is in it: brokers send what others gave them."""
    try:
        text = f"{message.message_id} of {message.topic} (attempt {message.delivery_attempt})"
    except PyroMQError:
        queue = message.queue
        return f"what is at {message.queue_offset} in {queue.topic}/{queue.queue_id} of {queue.broker_name}"
    return text if text.isprintable() else ascii(text)


class SendingBack:
    """Of one consumer."""

    def __init__(self, session: Session, settings: ConsumerSettings) -> None:
        self._session = session
        self._settings = settings
        self._places = Places(session)
        self._turn = 0

    async def send_back(self, message: ReceivedMessage, error: BaseException) -> bool:
        """Return whether a broker has stored it."""
        level = self.delay_level(message, error)
        try:
            await self._ask_its_broker(message, level)
        except PyroMQError as problem:
            log.info("%s is sent to the retry topic instead of back: %s", message.message_id, problem)
            return await self._send_anew(message, level)
        return True

    def delay_level(self, message: ReceivedMessage, error: BaseException) -> int:
        if isinstance(error, DeadLetter) or message.delivery_attempt >= self._settings.last_attempt:
            return TO_DEAD_LETTERS
        if isinstance(error, RetryLater):
            return error.delay_level
        wanted = self._settings.retry_delay
        return self._chosen(wanted, message) if callable(wanted) else wanted

    def _chosen(self, choose: Callable[[ReceivedMessage], int], message: ReceivedMessage) -> int:
        try:
            return int(choose(message))
        except Exception:  # the program's own function
            log.exception("retry_delay failed for %s, which comes again as usual", told(message))
            return 0

    async def _ask_its_broker(self, message: ReceivedMessage, level: int) -> None:
        request = SendBack(
            position=message.position,
            group=self._settings.group,
            delay_level=level,
            origin_message_id=message.message_id,
            origin_topic=message.topic,
            max_reconsume_times=self._settings.last_attempt - 1,
        )
        address = self._session.routes.address(message.queue.broker_name)
        if address is None:
            raise Unreachable(f"{message.queue.broker_name} has no master now")
        await self._session.ask(address, request, SEND_BACK_SECONDS)

    async def _send_anew(self, message: ReceivedMessage, level: int) -> bool:
        try:
            queues = await self._session.routes.writable(retry_topic(self._settings.group))
            if not queues:
                raise Unreachable(f"no broker takes messages for the retry topic of {self._settings.group}")
            self._turn += 1
            queue = queues[self._turn % len(queues)]
            request = self._as_new(message, level, queue.queue_id)
            await self._session.ask(self._places.address_of(queue), request, SEND_BACK_SECONDS)
        except PyroMQError as problem:
            log.warning("%s could not be sent back, and is tried again here: %s", message.message_id, problem)
            return False
        return True

    def _as_new(self, message: ReceivedMessage, level: int, queue_id: int) -> SendMessage:
        limit = self._settings.last_attempt - 1
        # One attempt more than there may be: then the broker keeps it as a dead letter.
        attempts = limit + 1 if level == TO_DEAD_LETTERS else message.reconsume_times + 1
        properties = dict(message.all_properties)
        properties.pop(names.TRANSACTION_PREPARED, None)
        properties.setdefault(names.ORIGIN_MESSAGE_ID, message.message_id)
        properties[names.RETRY_TOPIC] = message.topic
        properties[names.DELAY_LEVEL] = str(level if level > 0 else FIRST_RETRY_LEVEL + message.reconsume_times)
        return SendMessage(
            producer_group=_PRODUCER_GROUP,
            topic=retry_topic(self._settings.group),
            queue_id=queue_id,
            born_timestamp_ms=int(message.born_at * 1000),
            user_flag=message.user_flag,
            properties=encode_properties(properties).decode(),
            reconsume_times=attempts,
            max_reconsume_times=limit,
            body=message.body,
        )
