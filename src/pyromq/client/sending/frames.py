"""Requests that send, as frames. All that differs from one send to the next is filled into a pattern made once.

The ordinary encoder writes the pattern, so that there is one definition of its shape.
"""

from __future__ import annotations

import struct

import orjson

from pyromq.client.sending.parcel import Parcel
from pyromq.model.names import DEFAULT_TOPIC
from pyromq.wire.codes import RequestCode
from pyromq.wire.header import encode_header
from pyromq.wire.requests.client import SendMessage, encode_request

_LENGTHS = struct.Struct(">II")

#: Stand for the values in a pattern.
_FLAGS, _BORN, _USER_FLAG, _ID = 1_111_111_111, 2_222_222_222_222, 1_444_444_444, 1_333_333_333
_PROPERTIES = "\x01@\x02"
#: Patterns that are kept; a producer of more topics and queues makes some of them again.
MAX_PATTERNS = 4096


class SendFrames:
    """The frames of one producer. `default_topic` is what brokers make a topic after that is not there."""

    __slots__ = ("_default_topic", "_group", "_patterns", "_topic_queues")

    def __init__(self, group: str, topic_queues: int, default_topic: str = DEFAULT_TOPIC) -> None:
        self._group = group
        self._default_topic = default_topic
        self._topic_queues = topic_queues
        self._patterns: dict[tuple[str, int, bool, bool, str | None], bytes] = {}

    def frame(
        self,
        parcel: Parcel,
        queue_id: int,
        correlation_id: int,
        *,
        one_way: bool = False,
        writer_token: str | None = None,
    ) -> bytes:
        key = (parcel.topic, queue_id, parcel.batch, one_way, writer_token)
        pattern = self._patterns.get(key) or self._make(parcel, queue_id, one_way=one_way, writer_token=writer_token)
        properties = orjson.dumps(parcel.properties)
        header = pattern % (parcel.storage_flags, parcel.born_ms, parcel.user_flag, properties, correlation_id)
        size = len(header)
        return b"".join((_LENGTHS.pack(4 + size + len(parcel.body), size), header, parcel.body))

    def request(
        self,
        parcel: Parcel,
        queue_id: int,
        kind: type[SendMessage] = SendMessage,
        *,
        writer_token: str | None = None,
    ) -> SendMessage:
        """The same as a request, for those who must look into it."""
        return kind(
            producer_group=self._group,
            topic=parcel.topic,
            default_topic=self._default_topic,
            default_topic_queues=self._topic_queues,
            queue_id=queue_id,
            storage_flags=parcel.storage_flags,
            born_timestamp_ms=parcel.born_ms,
            user_flag=parcel.user_flag,
            properties=parcel.properties,
            batch=parcel.batch,
            body=parcel.body,
            writer_token=writer_token,
        )

    def _make(self, parcel: Parcel, queue_id: int, *, one_way: bool, writer_token: str | None) -> bytes:
        sample = Parcel(parcel.topic, b"", _PROPERTIES, (), _BORN, _FLAGS, _USER_FLAG, batch=parcel.batch)
        command = encode_request(self.request(sample, queue_id, writer_token=writer_token), _ID, one_way=one_way)
        if parcel.batch:
            command.code = RequestCode.SEND_BATCH_MESSAGE
        rest, pattern = encode_header(command).replace(b"%", b"%%"), b""
        values = ((b'"f":"%d"' % _FLAGS, b'"f":"%d"'), (b'"g":"%d"' % _BORN, b'"g":"%d"'),
                  (b'"h":"%d"' % _USER_FLAG, b'"h":"%d"'), (orjson.dumps(_PROPERTIES), b"%b"),
                  (b'"opaque":%d' % _ID, b'"opaque":%d'))  # fmt: skip
        for written, place in values:
            piece, found, rest = rest.partition(written)
            assert found, "the header of a send has another order of fields"
            pattern += piece + place
        if len(self._patterns) >= MAX_PATTERNS:
            self._patterns.clear()
        made = self._patterns[parcel.topic, queue_id, parcel.batch, one_way, writer_token] = pattern + rest
        return made
