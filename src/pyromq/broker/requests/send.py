"""Sending: one message, or a batch of one queue.

Checks come first and store nothing; then the message is appended, and the answer leaves when it is
acknowledged.
"""

from __future__ import annotations

import logging
import random
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from functools import partial

from pyromq.broker.delivery import properties
from pyromq.broker.delivery.append import Writer
from pyromq.broker.delivery.receipts import receipt_fields, stamped
from pyromq.broker.idempotence.sends import NumberedSends, Outcome, numbers_of
from pyromq.broker.idempotence.sequences import Numbered
from pyromq.broker.overload import Overload
from pyromq.broker.state.groups import Groups
from pyromq.broker.state.topics import Topics
from pyromq.broker.statistics.traffic import Statistics
from pyromq.config import BrokerConfig
from pyromq.config.broker import WRITE
from pyromq.errors import BadRequest, IllegalMessage, NoPermission
from pyromq.model import names
from pyromq.model.group import GroupConfig
from pyromq.model.ids import LogPosition
from pyromq.model.message import AppendedAt, Draft, PackedHost
from pyromq.model.topic import TopicConfig
from pyromq.net.peer import Peer
from pyromq.records.batch import split_batch
from pyromq.records.java_hash import java_text
from pyromq.records.layout import FLAG_INNER_BATCH, FLAG_MULTI_TAGS, FLAG_TRANSACTION_MASK
from pyromq.records.message_id import encode_message_id, encode_message_ids
from pyromq.wire.requests.client import SendBack, SendMessage
from pyromq.wire.responses import Response, SendReceipt

log = logging.getLogger("pyromq.broker")

#: From this version of the protocol on (3.4.9), clients send their own limit of retries along.
_SENDS_ITS_LIMIT = 121
#: Properties of a message for an exact time; one that waited for its time has TIMER_OUT_MS as well.
_TIMERS = (b"TIMER_DELAY_SEC", b"TIMER_DELAY_MS", b"TIMER_DELIVER_MS")
_TIMER_PAST = b"TIMER_OUT_MS"
#: The answer to a batch names all its messages, and has to fit in a header: 7,447 ids of a broker with an IPv4 address.
MAX_IDS_BYTES = 240 * 1024


@dataclass(slots=True)
class Sending:
    """A message that passed the checks, on its way into the log."""

    request: SendMessage
    topic: TopicConfig
    draft: Draft
    #: The client's own id of the message, where it has one.
    unique_key: str | None


#: Takes a message out of the ordinary way: None when it is not for it, else the answer.
Detour = Callable[[Sending], Awaitable[Response] | Response | None]


class SendProcessor:
    """Handles `SendMessage`."""

    def __init__(
        self,
        config: Callable[[], BrokerConfig],
        topics: Topics,
        groups: Groups,
        writer: Writer,
        overload: Overload,
        store_host: PackedHost,
        statistics: Statistics,
        *,
        transactions: Detour,
        delay: Callable[[Draft], Draft],
        rng: random.Random,
        in_order: Callable[[str], bool] = lambda group: False,
        numbered: NumberedSends,
    ) -> None:
        """`in_order`: does this group consume in order at present?"""
        self._config = config
        self._topics = topics
        self._groups = groups
        self._writer = writer
        self._overload = overload
        self._store_host = store_host
        self._statistics = statistics
        self._transactions = transactions
        self._delay = delay
        self._rng = rng
        self._in_order = in_order
        self._numbered = numbered
        self._max_batch = MAX_IDS_BYTES // len(encode_message_id(store_host, LogPosition(0)) + ",")

    def send(self, request: SendMessage, peer: Peer) -> Awaitable[Response] | Response:
        """Raises what the checks find."""
        self._overload.check()
        sending = self.prepare(request, peer)
        drafts = self._batch(sending) if request.batch else [sending.draft]
        numbers = numbers_of(sending.draft.topic, drafts)
        if numbers is not None:
            return self._send_numbered(sending, drafts, numbers)
        if request.batch:
            return self._append(sending, drafts)
        # A message that a consumer sends back is no half, even when an old client left the mark on it.
        detour = None if names.is_retry_topic(request.topic) else self._transactions(sending)
        if detour is not None:
            return detour
        return self._append(sending, [self._delay(sending.draft)])

    # --- checks ------------------------------------------------------------------------------------------------------

    def prepare(self, request: SendMessage, peer: Peer) -> Sending:
        """Check everything and make the draft; nothing is stored yet."""
        config = self._config()
        names.check_may_send(request.topic)
        group = None
        if names.is_retry_topic(request.topic):
            if request.batch:
                raise IllegalMessage("a batch cannot be sent back to a retry topic: send its messages one by one")
            group = self._groups.require(request.topic.removeprefix(names.RETRY_PREFIX))
        topic = self._topics.for_sending(request.topic, request.default_topic, request.default_topic_queues)
        if topic.order and not config.permission & WRITE:
            # Producers of other topics go on until they see the new route: that is how a broker is emptied.
            raise NoPermission(f"the broker {config.name} takes no messages at present (brokerPermission)")
        if not topic.writable:
            raise NoPermission(f"the topic {topic.name} may not be written to (its permission is {topic.permission})")
        draft = self._draft(request, topic, peer)
        if group is not None:
            topic, draft = self._again_or_dead(request, group, topic, draft)
        return Sending(request, topic, draft, unique_key_of(draft.properties))

    def _draft(self, request: SendMessage, topic: TopicConfig, peer: Peer) -> Draft:
        flags = request.storage_flags & ~FLAG_TRANSACTION_MASK
        if flags & FLAG_INNER_BATCH:
            raise IllegalMessage("batches that stay one message (batch consume queues) are not supported here")
        if topic.filter_type == "MULTI_TAG":
            flags |= FLAG_MULTI_TAGS
        return Draft(
            topic=topic.name.encode(),
            queue_id=self._queue_of(request, topic),
            body=request.body,
            properties=self._properties(request.properties),
            user_flag=request.user_flag,
            storage_flags=flags,
            born_timestamp_ms=request.born_timestamp_ms,
            born_host=peer.packed_address,
            store_host=self._store_host,
            reconsume_times=request.reconsume_times,
        )

    def _queue_of(self, request: SendMessage, topic: TopicConfig) -> int:
        queues = max(topic.write_queues, topic.read_queues)
        if request.queue_id >= queues:
            raise BadRequest(f"the topic {topic.name} has no queue {request.queue_id}: it has {queues}")
        if request.queue_id >= 0:
            return request.queue_id
        return self._rng.randrange(max(topic.write_queues, 1))

    def _properties(self, text: str) -> bytes:
        try:
            found = text.encode()
        except UnicodeEncodeError:
            raise IllegalMessage("the properties contain half of a surrogate pair, which is no text") from None
        if b"TIMER_D" in found:
            _check_no_exact_time(found)
        found = properties.remove(found, properties.POP_RECEIPT)  # it says where the message was, not where it goes
        return stamped(found, self._config())

    def _again_or_dead(
        self, request: SendMessage, group: GroupConfig, topic: TopicConfig, draft: Draft
    ) -> tuple[TopicConfig, Draft]:
        """A consumer sends a message back to its group; one that failed too often goes to the dead letters.

        Those who consume in order try again by themselves, and send back only what they give up.
        """
        if request.reconsume_times <= retry_limit(request, group) and not self._in_order(group.name):
            return topic, draft
        log.info("a message that %s could not consume goes to its dead letters", group.name)
        dead = self._topics.derived(names.dead_letter_topic(group.name), 1)
        changed = properties.remove(draft.properties, properties.DELAY)
        return dead, replace(draft, topic=dead.name.encode(), queue_id=0, properties=changed)

    # --- storing -----------------------------------------------------------------------------------------------------

    def _batch(self, sending: Sending) -> list[Draft]:
        """Each message has properties of its own; those of the request say nothing of them."""
        size, limit = len(sending.draft.body), self._config().store.max_body_bytes
        if size > limit:
            raise IllegalMessage(f"the batch has {size} bytes, the limit is {limit}: send it in parts")
        drafts = split_batch(sending.draft, self._max_batch + 1)
        if not drafts:
            raise IllegalMessage("the batch holds no message")
        if len(drafts) > self._max_batch:
            raise IllegalMessage(
                f"the batch has more than {self._max_batch} messages, and the answer could not name them all: send it "
                f"in parts"
            )
        return drafts

    def _append(self, sending: Sending, drafts: list[Draft]) -> Awaitable[Response] | Response:
        receipts = self._writer.append(drafts)
        self._statistics.sent(sending.topic.name, len(drafts), len(sending.request.body))
        answer = self.receipt(sending, receipts)
        return self._writer.answer_when_acknowledged(receipts[-1], answer)

    def _send_numbered(
        self, sending: Sending, drafts: list[Draft], numbers: list[Numbered]
    ) -> Awaitable[Response] | Response:
        """Messages that their writer may send again: see `sequence_sends`."""
        request = sending.request
        if request.queue_id < 0:
            raise IllegalMessage("a numbered message names its queue: sent again, it might come to another one")
        if not request.batch and properties.is_true(sending.draft.properties, properties.HALF):
            raise IllegalMessage("the half of a transaction cannot be numbered: that it is ended twice does no harm")
        if not request.batch:
            drafts = [self._delay(sending.draft)]
        return self._numbered.send(drafts, numbers, partial(self._receipt_of_numbered, sending), request.writer_token)

    def _receipt_of_numbered(self, sending: Sending, outcome: Outcome) -> SendReceipt:
        stored, size = len(outcome.receipts), len(sending.request.body)
        if stored:
            self._statistics.sent(sending.topic.name, stored, size * stored // len(outcome.positions))
        ids = outcome.message_ids(sending.draft.store_host)
        return _receipt(sending, ids, outcome.queue_offset, self._config())

    def receipt(self, sending: Sending, receipts: list[AppendedAt]) -> SendReceipt:
        return receipt_for(sending, receipts, self._config())


def receipt_for(sending: Sending, receipts: list[AppendedAt], config: BrokerConfig) -> SendReceipt:
    """The answer to a send, with the fields that clients rely on."""
    ids = encode_message_ids(sending.draft.store_host, [receipt.position for receipt in receipts])
    return _receipt(sending, ids, receipts[0].queue_offset, config)


def _receipt(sending: Sending, message_ids: str, queue_offset: int, config: BrokerConfig) -> SendReceipt:
    return SendReceipt(
        message_id=message_ids,
        queue_id=sending.draft.queue_id,
        queue_offset=queue_offset,
        transaction_id=sending.unique_key,
        more=receipt_fields(config),
    )


def _check_no_exact_time(found: bytes) -> None:
    """Raise IllegalMessage for a message with an exact delivery time, unless it has a delay level too, which wins.

    Clients take this code for certain: nothing is stored, and they try no other broker.
    """
    if (properties.get_int(found, properties.DELAY) or 0) > 0 or properties.get(found, _TIMER_PAST) is not None:
        return
    if any(properties.get(found, name) is not None for name in _TIMERS):
        raise IllegalMessage(
            "this broker does not deliver messages at a given time: use one of the delay levels instead (delay_level, "
            "in Java setDelayTimeLevel)"
        )


def unique_key_of(record_properties: bytes) -> str | None:
    """The client's own id of a message, where it has one."""
    key = properties.get(record_properties, properties.UNIQUE_KEY)
    return None if key is None else java_text(key)


def retry_limit(request: SendMessage | SendBack, group: GroupConfig) -> int:
    """Return the maximum of redeliveries to the group. A client may set it; the value of old clients is ignored."""
    own = request.max_reconsume_times
    if own is None or (request.command is not None and request.command.version < _SENDS_ITS_LIMIT):
        return group.max_retries
    return own
