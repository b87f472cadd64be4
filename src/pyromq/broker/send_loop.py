"""Sends in their usual form, from the bytes that were received to the log and to the bytes of the answer, in one loop.

The readable form of `_kernel.SendLoop`, with the same promise: it takes only the messages that need no decision (the
topic is there, the queue is named, no delay, no transaction, no retry, nothing to be made), and stops before the first
other one, which `processors.send` handles. What it stores and answers is what that would have stored and answered, to
the byte.

Most of what a header says is the same in thousands of sends. It is read once, in the ordinary way, and found again by
the texts of its fields (`_Kind`); only what differs from message to message is looked at each time.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from functools import lru_cache
from operator import itemgetter
from typing import NamedTuple

import orjson

from pyromq.errors import BadRequest
from pyromq.records import layout
from pyromq.records.plain import Terms
from pyromq.records.properties import NAME_END, VALUE_END, split_properties
from pyromq.store.log.log_run import ReadableLogRun, RecordPattern
from pyromq.wire.command import FLAG_ONE_WAY
from pyromq.wire.fields import read_fields
from pyromq.wire.requests.client import SendMessage

Fields = dict[str, str]

_LENGTHS = struct.Struct(">II")  # of the rest of the frame; of the header, behind its form, which is 0 for JSON
_HEAD_BYTES = _LENGTHS.size

#: A longer header, or one with more fields, is not a usual one.
_MAX_HEADER = 64 << 10
_MAX_FIELDS = 64
_MAX_UNIQUE_KEY = 256
#: Longer numbers are nobody's time.
_MAX_DIGITS = 18
#: What was read once is forgotten when it is more than this: those who send decide how many kinds there are.
_MAX_KINDS = 4096
_MAX_KIND_TEXT = 1024

_ENVELOPE = itemgetter("code", "opaque", "flag", "version", "extFields")
_LOW, _HIGH = -(2**31), 2**31 - 1
_VALUE_END = VALUE_END[0]

#: A message with one of these properties needs a decision, or has a key twice; so does one whose name begins so.
_SPECIAL = frozenset(
    (
        *(b"DELAY", b"TRAN_MSG", b"POP_CK", b"CLUSTER", b"MSG_REGION", b"TRACE_ON", b"UNIQ_KEY", b"KEYS"),
        *(b"PYROMQ_WRITER", b"PYROMQ_SEQUENCE"),
        layout.CRC_PROPERTY_NAME,
    )
)
_TIMER = b"TIMER_"
_UNIQUE_KEY = b"UNIQ_KEY\x01"
_KEYS = b"KEYS\x01"

#: What is raised where something has another type, or is not there.
_NOT_USUAL = (ValueError, KeyError, TypeError, AttributeError)


class _Names(NamedTuple):
    """What the fields are called that differ from message to message."""

    born: str
    properties: str
    are_short: bool


#: By the request's code.
_NAMES = {310: _Names("g", "i", are_short=True), 10: _Names("bornTimestamp", "properties", are_short=False)}


class FastTopic:
    """A topic that may be written to without further questions, and what came for it."""

    __slots__ = ("body_bytes", "flags", "messages", "name", "queues")

    def __init__(self, name: bytes, queues: int, flags: int) -> None:
        self.name = name
        self.queues = queues
        self.flags = flags
        self.messages = 0
        self.body_bytes = 0


class _Kind(NamedTuple):
    """What sends have in common whose fields are the same, but for time and properties."""

    topic: FastTopic
    pattern: RecordPattern


class SendLoop:
    """Takes sends from the bytes that one connection sent."""

    def __init__(
        self,
        run: ReadableLogRun,
        topics: Mapping[bytes, FastTopic],
        store_host: bytes,
        stamp: bytes,
        plain_answer: Sequence[bytes],
        keyed_answer: Sequence[bytes],
        max_frame: int,
    ) -> None:
        """`plain_answer` are the pieces around message id, queue, offset and correlation id; `keyed_answer` the same
        for a message with a unique key, which comes behind the offset."""
        self._run = run
        self._topics = topics
        self._store_host = store_host
        self._stamp = stamp
        message_id = store_host.hex().upper().encode() + b"%016X"
        self._plain_answer = _template(plain_answer, (message_id, b"%d", b"%d", b"%d"))
        self._keyed_answer = _template(keyed_answer, (message_id, b"%d", b"%d", b"%b", b"%d"))
        self._max_frame = max_frame
        self._kinds: dict[object, _Kind] = {}
        #: To the sends that `take` took, and how many they are.
        self.answers = b""
        self.answer_count = 0

    def is_send(self, data: memoryview, at: int) -> bool:
        """Does a send begin here? A quick look that may be wrong."""
        start = bytes(data[at + _HEAD_BYTES : at + _HEAD_BYTES + 12])
        return start == b'{"code":310,' or start.startswith(b'{"code":10,')

    def take(self, data: memoryview, at: int, born_host: bytes) -> int:
        """Store what can be stored without a question; where the first other frame begins. Answers are in `answers`."""
        answers: list[bytes] = []
        self.answer_count = 0
        end = len(data) if len(born_host) == layout.HOST_V4 else at
        while end - at >= _HEAD_BYTES:
            size, header_size = _LENGTHS.unpack_from(data, at)
            body_at, next_at = at + _HEAD_BYTES + header_size, at + 4 + size
            if next_at > end or body_at > next_at or header_size > _MAX_HEADER or size > self._max_frame:
                break
            answer = self._take_one(data[at + _HEAD_BYTES : body_at], data[body_at:next_at], born_host)
            if answer is None:
                break
            answers.append(answer)
            at = next_at
        self.answers = b"".join(answers)
        return at

    def _take_one(self, header: memoryview, body: memoryview, born_host: bytes) -> bytes | None:
        """Store one message: the answer, empty where none is wanted; None when it is not for the fast path."""
        send = self._read(header)
        if send is None:
            return None
        kind, correlation_id, flags, born_ms, properties, terms = send
        topic, pattern = kind
        written = self._run.append(pattern, born_ms, born_host, body, properties, terms)
        if written is None:
            return None
        topic.messages += 1
        topic.body_bytes += len(body)
        if flags & FLAG_ONE_WAY:
            return b""
        self.answer_count += 1
        position, queue_offset = written
        unique_key = terms[1]
        if unique_key:
            answer = self._keyed_answer % (position, pattern.queue_id, queue_offset, unique_key, correlation_id)
        else:
            answer = self._plain_answer % (position, pattern.queue_id, queue_offset, correlation_id)
        return _LENGTHS.pack(4 + len(answer), len(answer)) + answer

    def _read(self, header: memoryview) -> tuple[_Kind, int, int, int, bytes, Terms] | None:
        """Kind, correlation id, flags, time, properties and their terms; None when the shape is not the usual one."""
        try:
            code, correlation_id, flags, version, fields = _ENVELOPE(orjson.loads(header))
            names = _NAMES[code]
            born_ms = _time(fields.pop(names.born))
            properties = fields.pop(names.properties).encode()
            kind_key = (code, *fields, *fields.values())
            kind = self._kinds.get(kind_key)
        except _NOT_USUAL:
            return None
        if not (
            type(code) is type(correlation_id) is type(flags) is type(version) is int
            and _LOW <= correlation_id <= _HIGH
            and _LOW <= version <= _HIGH
            and (flags == 0 or flags == FLAG_ONE_WAY)
        ):
            return None
        if kind is None or self._topics.get(kind.topic.name) is not kind.topic:
            kind = self._make_kind(kind_key, fields, names)
        terms = _terms(properties)
        if kind is None or terms is None:
            return None
        if properties and properties[-1] != _VALUE_END:
            properties += VALUE_END
        return kind, correlation_id, flags, born_ms, properties + self._stamp, terms

    def _make_kind(self, key: object, fields: Fields, names: _Names) -> _Kind | None:
        """Read the fields as those of every request are read; None when they ask for more than to be stored."""
        if len(fields) > _MAX_FIELDS or not all(type(value) is str and value.isascii() for value in fields.values()):
            return None
        try:
            send = SendMessage(**read_fields(SendMessage, fields, short=names.are_short))
        except BadRequest:
            return None
        topic = self._topics.get(send.topic.encode())
        if topic is None or not 0 <= send.queue_id < topic.queues or send.batch or send.reconsume_times < 0:
            return None
        if send.storage_flags < 0 or send.storage_flags & layout.FLAG_INNER_BATCH:
            return None
        flags = send.storage_flags & ~layout.FLAG_TRANSACTION_MASK | topic.flags
        pattern = RecordPattern(
            topic.name, send.queue_id, send.user_flag, flags, send.reconsume_times, self._store_host
        )
        kind = _Kind(topic, pattern)
        if sum(map(len, (*fields, *fields.values()))) <= _MAX_KIND_TEXT:
            if len(self._kinds) >= _MAX_KINDS:
                self._kinds.clear()
            self._kinds[key] = kind
        return kind


@lru_cache(maxsize=64)
def _time(text: str) -> int:
    """A time in ms; many messages have the same. Raises ValueError for what is no usual one."""
    if not text.isdigit() or not text.isascii() or len(text) > _MAX_DIGITS:
        raise ValueError
    return int(text)


def _terms(properties: bytes) -> Terms | None:
    """What queues and index keep of a message; None when it needs a decision, or a closer look."""
    unique_key, others = _cut_out(_UNIQUE_KEY, properties)
    keys, others = _cut_out(_KEYS, others)
    tag = _tag_among(others)
    if tag is None or (keys and (b"\0" in keys or not keys.isascii())):
        return None
    if unique_key and not (unique_key.isalnum() and len(unique_key) <= _MAX_UNIQUE_KEY):
        return None  # the answer's JSON may write it in another way
    return tag, unique_key, keys


def _cut_out(name: bytes, properties: bytes) -> tuple[bytes, bytes]:
    """The value of the first property of this name, and the other properties."""
    before, found, rest = properties.partition(name)
    if not found or (before and before[-1] != _VALUE_END):  # the end of a longer name
        return b"", properties
    value, _, behind = rest.partition(VALUE_END)
    return value, before + behind


@lru_cache(maxsize=512)
def _tag_among(properties: bytes) -> bytes | None:
    """The tag; None when one of these properties needs a decision. Most messages differ in their keys only."""
    names = {entry.partition(NAME_END)[0] for entry in properties.split(VALUE_END)}  # with a value or without
    if not _SPECIAL.isdisjoint(names) or _TIMER in properties or b"\0" in properties or not properties.isascii():
        return None
    return dict(split_properties(properties)).get(b"TAGS", b"")


def _template(pieces: Sequence[bytes], values: Sequence[bytes]) -> bytes:
    """The pieces, with what stands for the values between them."""
    first, *others = [piece.replace(b"%", b"%%") for piece in pieces]
    return first + b"".join(value + piece for value, piece in zip(values, others, strict=True))
