"""The parts of a transaction: in the log in Apache RocketMQ's form, and on the wire.

A half message is an ordinary record of RMQ_SYS_TRANS_HALF_TOPIC, queue 0, with its real topic and queue among its
properties. An end is a record of RMQ_SYS_TRANS_OP_HALF_TOPIC, tag `d`, whose body are offsets of the half queue, each
with a comma behind it. A committed message is a record of the real topic with the commit bits set; it keeps all the
properties of the half, as RocketMQ's do: clients take a message with TRAN_MSG for one of a transaction.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from pyromq.broker.delivery import properties
from pyromq.broker.delivery.redraft import draft_of
from pyromq.broker.transactions.ledger import Half, Key
from pyromq.errors import IllegalMessage
from pyromq.model import names
from pyromq.model.message import AppendedAt, Draft, PackedHost
from pyromq.records import layout, record
from pyromq.records.message_id import encode_message_id
from pyromq.wire.requests.client import CheckTransaction

HALF_TOPIC = names.HALF_TOPIC.encode()
OP_TOPIC = names.HALF_DONE_TOPIC.encode()
ASIDE_TOPIC = names.CHECKED_TOO_OFTEN_TOPIC.encode()
#: All halves and all ends are in it.
QUEUE = 0

PRODUCER_GROUP = b"PGROUP"
TRANSACTION_ID = b"__transactionId__"
CHECKS = b"TRANSACTION_CHECK_TIMES"
PATIENCE_SECONDS = b"CHECK_IMMUNITY_TIME_IN_SECONDS"
#: In a copy of a half: the offset of the first. RocketMQ writes it too, and looks at it only in a half that may not be
#: asked for yet.
ORIGIN = b"TRAN_PREPARED_QUEUE_OFFSET"
TAGS = b"TAGS"
ENDED = b"d"

#: Kept free in a half: a copy has two properties more.
ROOM_FOR_COPIES = 128
#: Ends that one record takes, in bytes: RocketMQ's limit.
MAX_OP_BYTES = 4096


# --- halves ----------------------------------------------------------------------------------------------------------


def is_half(draft: Draft) -> bool:
    """Does a producer begin a transaction with it? A message that a consumer sends back has ended its own before."""
    return draft.reconsume_times == 0 and properties.is_true(draft.properties, properties.HALF)


def half_of(draft: Draft, producer_group: str) -> Draft:
    """The half of a message that was sent. Raises IllegalMessage."""
    # Those are of another transaction, in a message that a producer passes on.
    run = properties.remove(draft.properties, CHECKS, ORIGIN)
    run = properties.put_if_absent(run, PRODUCER_GROUP, producer_group.encode())
    unique_key = properties.get(run, properties.UNIQUE_KEY)
    if unique_key is not None:
        run = properties.put(run, TRANSACTION_ID, unique_key)
    run = properties.put(run, properties.REAL_TOPIC, draft.topic)
    run = properties.put(run, properties.REAL_QUEUE, b"%d" % draft.queue_id)
    limit = layout.MAX_PROPERTIES - layout.CRC_PROPERTY_SIZE - 1 - ROOM_FOR_COPIES
    if len(run) > limit:
        raise IllegalMessage(f"the properties have {len(run)} bytes, the limit for a half message is {limit}")
    return replace(
        draft,
        topic=HALF_TOPIC,
        queue_id=QUEUE,
        properties=run,
        storage_flags=draft.storage_flags & ~layout.FLAG_TRANSACTION_MASK,
    )


def half_at(view: memoryview) -> Half | None:
    """Return the fields of a half message that decisions need; None for a record that is not in the queue of halves.

    Raises IllegalMessage for one that cannot be understood.
    """
    spans = _spans_of(view)
    return _half(view, spans) if view[spans.topic : spans.topic_end] == HALF_TOPIC else None


def read_half(view: memoryview) -> Half:
    """The same of a record wherever it is. Raises IllegalMessage for one that is no half."""
    return _half(view, _spans_of(view))


def _spans_of(view: memoryview) -> record.Spans:
    spans = record.spans_of(view, 0, len(view))
    if isinstance(spans, str):
        raise IllegalMessage(f"not a record: {spans}")
    return spans


def _half(view: memoryview, spans: record.Spans) -> Half:
    _, _, _, _, _, offset, position, _, born_ms = layout.HEAD.unpack_from(view)
    (stored_ms,) = layout.STORED_AT.unpack_from(view, spans.store_timestamp_at)
    run = bytes(view[spans.properties : spans.properties_end])
    real_place(run)
    group = properties.get(run, PRODUCER_GROUP)
    if group is None:
        raise IllegalMessage("the half message does not name its producer group (PGROUP)")
    origin = properties.get_int(run, ORIGIN)
    patience_ms = _patience_ms(run)
    # RocketMQ counts also when it moves a half that may not be asked for yet; no question was sent then.
    was_asked = patience_ms is None or stored_ms - born_ms > patience_ms
    return Half(
        offset=offset,
        position=position,
        key=Key(offset if origin is None or origin < 0 else origin, born_ms, group.decode("utf-8", "replace")),
        stored_ms=stored_ms,
        checks=max(properties.get_int(run, CHECKS) or 0, 0) if was_asked else 0,
        patience_ms=patience_ms,
    )


def _patience_ms(run: bytes) -> int | None:
    seconds = properties.get_int(run, PATIENCE_SECONDS)
    return None if seconds is None or seconds < 0 else seconds * 1000


def names_origin(view: memoryview) -> bool:
    """Does the record say which half of the queue it is a copy of?"""
    return properties.get_int(draft_of(view).properties, ORIGIN) is not None


def topic_of(view: memoryview) -> bytes:
    spans = record.spans_of(view, 0, len(view))
    return b"" if isinstance(spans, str) else bytes(view[spans.topic : spans.topic_end])


def real_place(run: bytes) -> tuple[bytes, int]:
    """The topic and queue that a half message is for. Raises IllegalMessage."""
    topic = properties.get(run, properties.REAL_TOPIC)
    queue_id = properties.get_int(run, properties.REAL_QUEUE)
    if topic is None or queue_id is None or queue_id < 0:
        raise IllegalMessage("the half message does not name its real topic and queue (REAL_TOPIC, REAL_QID)")
    return topic, queue_id


# --- what becomes of them --------------------------------------------------------------------------------------------


def committed(view: memoryview, store_host: PackedHost) -> Draft:
    """The message that consumers see. Raises IllegalMessage."""
    draft = draft_of(view)
    topic, queue_id = real_place(draft.properties)
    _, _, _, _, _, _, position, _, _ = layout.HEAD.unpack_from(view)
    run = properties.remove(draft.properties, properties.REAL_TOPIC, properties.REAL_QUEUE, ORIGIN)  # for us alone
    return replace(
        draft,
        topic=topic,
        queue_id=queue_id,
        properties=run,
        storage_flags=draft.storage_flags & ~layout.FLAG_TRANSACTION_MASK | layout.FLAG_COMMITTED,
        store_host=store_host,
        prepared_position=position,
    )


def copied(view: memoryview, half: Half, checks: int, store_host: PackedHost) -> Draft:
    """The same half, for the end of the queue. Raises IllegalMessage."""
    draft = draft_of(view)
    run = properties.put(draft.properties, ORIGIN, b"%d" % half.key.origin)
    if checks or properties.get(run, CHECKS) is not None:
        run = properties.put(run, CHECKS, b"%d" % checks)
    return replace(draft, topic=HALF_TOPIC, queue_id=QUEUE, properties=run, store_host=store_host)


def put_aside(view: memoryview, half: Half, store_host: PackedHost) -> Draft:
    """Return the half for the topic of halves that are no longer checked. Raises IllegalMessage."""
    draft = draft_of(view)
    run = properties.put(draft.properties, ORIGIN, b"%d" % half.key.origin)
    return replace(draft, topic=ASIDE_TOPIC, queue_id=0, properties=run, store_host=store_host)


def question(copy: Draft, at: AppendedAt, now_ms: int, broker_name: str) -> CheckTransaction:
    """Return the question for a producer: the half as it was sent, and the position of its newest copy."""
    topic, queue_id = real_place(copy.properties)
    unique_key = properties.get(copy.properties, properties.UNIQUE_KEY)
    message_id = None if unique_key is None else unique_key.decode("utf-8", "replace")
    shown = replace(copy, topic=topic, queue_id=queue_id)
    return CheckTransaction(
        topic=names.HALF_TOPIC,
        half_offset=at.queue_offset,
        half_position=at.position,
        message_id=message_id,
        transaction_id=message_id,
        offset_message_id=encode_message_id(copy.store_host, at.position),
        broker_name=broker_name,
        body=record.encode(shown, at.position, at.queue_offset, now_ms, with_crc=False),
    )


# --- ends ------------------------------------------------------------------------------------------------------------


def op_drafts(offsets: list[int], now_ms: int, store_host: PackedHost) -> Iterator[tuple[Draft, list[int]]]:
    """Records that say that these halves have ended, and which of them each names."""
    body = b""
    named: list[int] = []
    for offset in offsets:
        entry = b"%d," % offset
        if len(body) + len(entry) > MAX_OP_BYTES:
            yield _op_draft(body, now_ms, store_host), named
            body, named = b"", []
        body += entry
        named.append(offset)
    if named:
        yield _op_draft(body, now_ms, store_host), named


def _op_draft(body: bytes, now_ms: int, store_host: PackedHost) -> Draft:
    return Draft(
        topic=OP_TOPIC,
        queue_id=QUEUE,
        body=body,
        properties=b"%b\x01%b\x02" % (TAGS, ENDED),
        born_timestamp_ms=now_ms,
        born_host=store_host,
        store_host=store_host,
    )


def ends_in(view: memoryview) -> tuple[int, list[int]]:
    """Return the offset of a record of ends, and the halves that it names; text that is no number names none."""
    offset = layout.queue_offset_of(view)
    draft = draft_of(view)
    if properties.get(draft.properties, TAGS) != ENDED:
        return offset, []
    entries = bytes(draft.body).split(b",")
    return offset, [int(entry) for entry in entries if entry.isdigit() and len(entry) < 20]
