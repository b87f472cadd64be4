"""A stored message on its way into the log once more: delivered after its delay, sent back, committed."""

from __future__ import annotations

from pyromq.errors import IllegalMessage
from pyromq.model.message import Draft
from pyromq.records import layout, record
from pyromq.records.properties import without_crc


def draft_of(view: memoryview) -> Draft:
    """The record with everything but what the log decides. The body is a view: it is copied when it is appended.

    Raises IllegalMessage when the bytes are no record.
    """
    spans = record.spans_of(view, 0, len(view))
    if isinstance(spans, str):
        raise IllegalMessage(f"not a record: {spans}")
    _, _, _, queue_id, user_flag, _, _, flags, born_ms = layout.HEAD.unpack_from(view)
    reconsume_times, prepared_position, _ = layout.TAIL.unpack_from(view, spans.tail_at)
    return Draft(
        topic=bytes(view[spans.topic : spans.topic_end]),
        queue_id=queue_id,
        body=view[spans.body : spans.body_end],
        properties=without_crc(bytes(view[spans.properties : spans.properties_end])),
        user_flag=user_flag,
        storage_flags=flags,
        born_timestamp_ms=born_ms,
        born_host=bytes(view[layout.HEAD.size : spans.store_timestamp_at]),
        store_host=bytes(view[spans.store_timestamp_at + layout.STORED_AT.size : spans.tail_at]),
        reconsume_times=reconsume_times,
        prepared_position=prepared_position,
    )
