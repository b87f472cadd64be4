"""Usual sends: many of one read, stored and answered in one compiled loop (`_sends.SendLoop`).

A send that needs a decision is left to `requests.send`; so are all sends while the broker is busy, read-only or fenced,
because the request handler says why. The shape of an answer is taken from the ordinary encoder, once, so that there is
one definition of it.

Answers wait (`_sends.HeldAnswers`) until the acknowledged mark reaches their messages (see `ack_mark`). All that one
write, sync or report reached leave together.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Protocol

from pyromq.accel._append_batch import BatchWriter
from pyromq.accel._sends import FastTopic, HeldAnswers, SendLoop
from pyromq.broker.delivery.ack_mark import AckMark
from pyromq.broker.delivery.receipts import receipt_fields, stamp
from pyromq.broker.overload import Overload
from pyromq.broker.statistics.traffic import Statistics
from pyromq.config import BrokerConfig
from pyromq.config.broker import WRITE
from pyromq.errors import SLAVES_LATE, PyroMQError, StoreFenced
from pyromq.model import names
from pyromq.model.message import PackedHost
from pyromq.model.topic import TopicConfig
from pyromq.net.connection import Connection
from pyromq.records.layout import FLAG_MULTI_TAGS
from pyromq.store.message_store import MessageStore
from pyromq.wire.answer_pieces import answer_pieces
from pyromq.wire.codes import ResponseCode
from pyromq.wire.command import Command
from pyromq.wire.frames import decode_frames, encode_frame
from pyromq.wire.responses import SendReceipt, answer_to, refusal

#: The limit of lookups while topics change repeatedly.
LOOK_UP_SECONDS = 0.05
#: With more topics than this, a topic is looked up when a message was sent to it.
LOOKED_UP_AT_ONCE = 5000
#: Names of properties that keep a message from the loop; and how much of a header is searched for them.
_OWN_WAYS = (b"TRAN_MSG", b"PYROMQ_WRITER")
_LOOKED_AT = 4096
#: Stand for the values in the pattern of an answer.
_ID, _QUEUE, _OFFSET, _KEY = "@ID@", 1_111_111_111, 2_222_222_222_222, "@KEY@"


class KnownTopics(Protocol):
    """The topics that are on the disk."""

    def __iter__(self) -> Iterator[TopicConfig]: ...

    def __len__(self) -> int: ...

    def __contains__(self, name: str) -> bool: ...

    def get(self, name: str) -> TopicConfig | None: ...


class FastSends:
    """Takes the usual sends of a server."""

    def __init__(
        self,
        config: Callable[[], BrokerConfig],
        topics: KnownTopics,
        store: MessageStore,
        overload: Overload,
        store_host: PackedHost,
        statistics: Statistics,
        ack_mark: AckMark,
    ) -> None:
        self._ack_mark = ack_mark
        self._config = config
        self._all_topics = topics
        self._store = store
        self._overload = overload
        self._statistics = statistics
        self._held = HeldAnswers()
        self._writer = BatchWriter()
        self._batch = store.batch()
        #: By name; the loop looks here and nowhere else.
        self.topics: dict[bytes, FastTopic] = {}
        #: All topics that were looked at; None for those that need a decision.
        self._learns = False
        self._made: dict[str, tuple[TopicConfig, FastTopic | None]] = {}
        self._store_host = store_host
        self._loop = self._new_loop()
        statistics.before_sample(self.count_up)
        self._is_stale = True
        self._look_up_from = 0.0
        #: The server tells when turns begin and end, so the batch may stay open from one to the next.
        self._spans_turns = False
        ack_mark.hold(self)

    def _new_loop(self) -> SendLoop:
        config = self._config()
        return SendLoop(
            self._writer, self.topics, self._store_host, stamp(config), *answer_patterns(config),
            config.limits.max_frame_bytes, self._held,
        )  # fmt: skip

    def settings_changed(self) -> None:
        """Build the send loop again: the broker's part of messages and answers may have changed."""
        self._store.close_batch()
        self._loop = self._new_loop()

    def topics_changed(self) -> None:
        """Forget all topics. Until the next look-up, all sends take the ordinary handler."""
        self.count_up()
        self.topics.clear()
        self._is_stale = True

    def _look_up_topics(self) -> None:
        """Find the topics whose sends need no decision. The time is proportional to their number, so not after every
        change; unchanged topics keep their prepared state."""
        self._is_stale = False
        self._look_up_from = self._store.clock.monotonic() + LOOK_UP_SECONDS
        if len(self._all_topics) > LOOKED_UP_AT_ONCE:
            self._learns = True
            return
        self._learns = False
        before, self._made = self._made, {}
        for topic in self._all_topics:
            made = before.get(topic.name)
            if made is None or made[0] is not topic:
                made = topic, self._new(topic) if _is_plain(topic) else None
            self._made[topic.name] = made
            if made[1] is not None:
                self.topics[made[1].name] = made[1]

    def learn(self, name: str) -> None:
        """A message was sent to this topic in the ordinary way: among very many topics, only these are looked up."""
        if not self._learns or self._is_stale or name not in self._all_topics:
            return
        topic = self._all_topics.get(name)
        if topic is not None and _is_plain(topic) and name.encode() not in self.topics:
            self.topics[name.encode()] = self._new(topic)

    def _new(self, topic: TopicConfig) -> FastTopic:
        return FastTopic(topic.name.encode(), *_shape(topic))

    def take(self, data: memoryview, at: int, connection: Connection) -> int:
        """Store and answer the sends at the front; where the first other frame begins."""
        loop, writer = self._loop, self._writer
        if not loop.is_send(data, at):
            return at
        if not writer.is_open and (_has_its_own_way(data, at) or not self._open_batch()):
            return at
        at = loop.take(data, at, connection.packed_address)
        if loop.answers:
            self._held.hold(writer.base + writer.offset, connection, loop.answers, loop.answer_count)
        return at

    def begin_turn(self) -> SendLoop:
        """Return the compiled loop: it takes sends as soon as one has opened the batch."""
        self._spans_turns = True
        if self._ack_mark.leadership_is_stale:
            with contextlib.suppress(StoreFenced):  # `fail` answers the waiting sends
                self._store.close_batch()
        self._batch.begin_turn()
        return self._loop

    def end_turn(self) -> None:
        with contextlib.suppress(StoreFenced):  # `fail` answers the waiting sends
            self._store.end_turn()

    def _open_batch(self) -> bool:
        """Make the checks shared by all sends of a turn; False if the ordinary handler must refuse them."""
        if not self._config().permission & WRITE or self._overload.reason() is not None:
            return False
        if not (self._ack_mark.accepts and self._ack_mark.expects_replicas):
            return False
        if self._is_stale and self._store.clock.monotonic() >= self._look_up_from:
            self._look_up_topics()
        return self._batch.open(self._writer, spans_turns=self._spans_turns)

    def count_up(self) -> None:
        """Add the sends since the last call to the statistics."""
        for topic in self.topics.values():
            if topic.messages:
                self._statistics.sent(topic.name.decode(), topic.messages, topic.body_bytes)
                topic.messages = topic.body_bytes = 0

    # --- until the log has it ----------------------------------------------------------------------------------------

    @property
    def held_sends(self) -> int:
        """The number of sends that wait for the log."""
        return int(self._held.count)

    async def settled(self) -> None:
        """Return when no send waits any more."""
        with contextlib.suppress(PyroMQError, TimeoutError):  # `fail` answers the waiting sends
            self._store.close_batch()
            if self.held_sends:
                async with asyncio.timeout(self._ack_mark.timeout_s if self._ack_mark.waits_for_replicas else None):
                    await self._ack_mark.acknowledged.wait(self._held.last_position)

    @property
    def last_held(self) -> int:
        """The position that the last of them waits for."""
        return int(self._held.last_position)

    @property
    def release(self) -> Callable[[int], None]:
        """Send all answers whose position is reached."""
        release: Callable[[int], None] = self._held.release
        return release

    def answer_late(self, position: int, code: ResponseCode) -> None:
        """Send the answers up to a position with another code."""
        for connection, command in self._take_back(position):
            connection.put_bytes(encode_frame(replace(command, code=code, reason=SLAVES_LATE)))

    def fail(self, error: PyroMQError) -> None:
        """Answer every waiting send with the error: the disk did not confirm."""
        response = refusal(error)
        for connection, command in self._take_back(self._held.last_position):
            self._statistics.send_failed()
            connection.put_bytes(encode_frame(answer_to(command, response)))

    def _take_back(self, position: int) -> Iterator[tuple[Connection, Command]]:
        """Withdraw the answers that wait for positions up to this one."""
        for connection, answers in self._held.take_back(position):
            for command in decode_frames(answers):
                yield connection, command


def _has_its_own_way(data: memoryview, at: int) -> bool:
    """Return True for a half or numbered message. Their senders send many: the log need not be opened for each."""
    header_size = int.from_bytes(data[at + 4 : at + 8], "big")
    header = bytes(data[at + 8 : at + 8 + min(header_size, _LOOKED_AT)])
    return any(name in header for name in _OWN_WAYS)


def _is_plain(topic: TopicConfig) -> bool:
    return (
        topic.writable and not names.is_retry_topic(topic.name) and names.may_send(topic.name) and len(topic.name) > 1
    )


def _shape(topic: TopicConfig) -> tuple[int, int]:
    flags = FLAG_MULTI_TAGS if topic.filter_type == "MULTI_TAG" else 0
    return max(topic.write_queues, topic.read_queues), flags


def answer_patterns(config: BrokerConfig) -> tuple[list[bytes], list[bytes]]:
    """The pieces of an answer around its values: for a message without a unique key, and with one."""
    return _pattern(config, None), _pattern(config, _KEY)


def _pattern(config: BrokerConfig, key: str | None) -> list[bytes]:
    receipt = SendReceipt(
        message_id=_ID, queue_id=_QUEUE, queue_offset=_OFFSET, transaction_id=key, more=receipt_fields(config)
    )
    return answer_pieces(receipt, _ID, _QUEUE, _OFFSET, *([key] if key else []))
