"""The quick reading of plain records finds what the definition finds, and nothing where that finds nothing."""

from __future__ import annotations

import random

from hypothesis import given
from hypothesis import strategies as st

from pyromq.model.message import Draft
from pyromq.records import layout, record
from pyromq.records.plain import PLAIN_HEAD, PlainRecord, Terms, plain_records, terms_of
from pyromq.records.properties import split_properties
from records.drafts import BASE, drafts, log_of, ordinary_log, properties


def terms_by_definition(data: bytes) -> Terms:
    found = dict(split_properties(data))
    return found.get(b"TAGS", b""), found.get(b"UNIQ_KEY", b""), found.get(b"KEYS", b"")


def by_definition(buffer: memoryview, at: int, limit: int) -> tuple[PlainRecord, bool] | None:
    """What is at an offset, and whether it is plain; None: no record."""
    spans = record.spans_of(buffer, at, limit)
    if isinstance(spans, str):
        return None
    _, magic, _, _, _, queue_offset, position, flags, _ = layout.HEAD.unpack_from(buffer, at)
    (stored_ms,) = layout.STORED_AT.unpack_from(buffer, spans.store_timestamp_at)
    topic = bytes(buffer[spans.topic : spans.topic_end])
    terms = terms_by_definition(bytes(buffer[spans.properties : spans.properties_end]))
    found = (position, spans.total_size, topic + buffer[at + 12 : at + 16], queue_offset, stored_ms, topic, terms)
    not_plain = layout.FLAG_BORN_HOST_V6 | layout.FLAG_STORE_HOST_V6 | layout.FLAG_TRANSACTION_MASK
    return found, magic == layout.MAGIC_V1 and not flags & not_plain


def check(buffer: memoryview, start: int, limit: int) -> None:
    at = start
    for found in plain_records(buffer, start, limit):
        assert by_definition(buffer, at, limit) == (found, True)
        at += found[1]
    behind = by_definition(buffer, at, limit)
    assert behind is None or not behind[1], "it stopped too early"


def test_everything_before_the_body_is_in_the_head() -> None:
    data = record.encode(Draft(b"orders", 0, b"body"), 0, 0, 0, True)
    assert data[PLAIN_HEAD.size :].startswith(b"body")


@given(st.lists(drafts(), max_size=6), st.booleans(), st.integers(0, 300))
def test_it_reads_up_to_the_first_that_is_not_plain(some: list[Draft], with_crc: bool, cut: int) -> None:
    log = log_of(some, with_crc=with_crc)
    check(memoryview(log), 0, max(0, len(log) - cut))


@given(properties())
def test_terms_are_those_of_the_properties(data: bytes) -> None:
    assert terms_of(data) == terms_by_definition(data)


def test_of_two_the_later_counts_and_one_without_a_value_does_not_exist() -> None:
    assert terms_of(b"KEYS\x01a\x02KEYS\x01b\x02KEYS\x01\x02\x01x\x02MYTAGS\x01c\x02TAGS") == (b"", b"", b"b")


@given(st.integers(0, 2**32), st.data())
def test_whatever_the_bytes_are_it_finds_what_the_definition_finds(seed: int, data: st.DataObject) -> None:
    log = bytearray(ordinary_log(random.Random(seed), 3, base=BASE))
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(0, len(log) - 1))
        log[at] = data.draw(st.integers(0, 255))
    check(memoryview(log), 0, len(log))
