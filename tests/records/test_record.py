"""The record: what goes in comes out, and the bytes are RocketMQ's."""

from __future__ import annotations

import struct
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyromq.errors import IllegalMessage
from pyromq.model.message import LOCALHOST, Draft
from pyromq.records import layout, record
from pyromq.records.properties import decode_properties, without_crc
from records.drafts import BASE, INT64, STORED_AT_MS, drafts

V6 = bytes(range(16)) + b"\0\0\x2a\x9f"
ORDER = Draft(topic=b"orders", queue_id=0, body=b"body")


def encode(draft: Draft, *, with_crc: bool = True, position: int = BASE, queue_offset: int = 5) -> bytes:
    return record.encode(draft, position, queue_offset, STORED_AT_MS, with_crc)


# --- the golden record -----------------------------------------------------------------------------------------------

GOLDEN = bytes.fromhex(
    "00000095"                      # total size: 149
    "daa320a7"                      # magic, version 1
    "0d4a1185"                      # CRC-32 of the body
    "00000003"                      # queue 3
    "fffffff9"                      # user flag -7
    "000000000000002a"              # queue offset 42
    "0000000040000010"              # position 1 GiB + 16
    "00000008"                      # storage flags: a committed transaction
    "0000018bcfe56800"              # born 1700000000000
    "0a000001" "00001f90"           # born at 10.0.0.1:8080
    "0000018bcfe56bff"              # stored 1700000001023
    "c0a80102" "00002a9f"           # stored at 192.168.1.2:10911
    "00000002"                      # delivered twice before
    "0000000000001234"              # the prepared half is at 0x1234
    "0000000b"                      # body, 11 bytes:
    "68656c6c6f20776f726c64"        # hello world
    "06" "6f7264657273"             # topic, 6 bytes: orders
    "0029"                          # properties, 41 bytes:
    "54414753" "01" "54616741" "02"    # TAGS = TagA
    "4b455953" "01" "6b3120d0ba" "02"  # KEYS = k1 к; the sender left the last separator out
    "5f5f435243333223" "01"            # __CRC32# =
    "38313531323830313031" "02"        # 1010821518, least significant digit first
)  # fmt: skip

GOLDEN_DRAFT = Draft(
    topic=b"orders",
    queue_id=3,
    body=b"hello world",
    properties="TAGS\x01TagA\x02KEYS\x01k1 к".encode(),
    user_flag=-7,
    storage_flags=layout.FLAG_COMMITTED,
    born_timestamp_ms=1_700_000_000_000,
    born_host=bytes([10, 0, 0, 1]) + (8080).to_bytes(4, "big"),
    store_host=bytes([192, 168, 1, 2]) + (10911).to_bytes(4, "big"),
    reconsume_times=2,
    prepared_position=0x1234,
)


def test_the_golden_record_is_written() -> None:
    assert record.encode(GOLDEN_DRAFT, (1 << 30) + 16, 42, 1_700_000_001_023, True) == GOLDEN


def test_the_golden_record_is_read_field_by_field() -> None:
    message = record.decode(memoryview(GOLDEN))
    assert message.size == 149
    assert message.body_crc == 0x0D4A1185
    assert message.queue_id == 3
    assert message.user_flag == -7
    assert message.queue_offset == 42
    assert message.position == (1 << 30) + 16
    assert message.storage_flags == layout.FLAG_COMMITTED
    assert message.born_timestamp_ms == 1_700_000_000_000
    assert message.born_host == b"\x0a\x00\x00\x01\x00\x00\x1f\x90"
    assert message.store_timestamp_ms == 1_700_000_001_023
    assert message.store_host == b"\xc0\xa8\x01\x02\x00\x00\x2a\x9f"
    assert message.reconsume_times == 2
    assert message.prepared_position == 0x1234
    assert message.body == b"hello world"
    assert message.topic == "orders"
    assert message.properties == {"TAGS": "TagA", "KEYS": "k1 к", "__CRC32#": "8151280101"}
    assert message.tags == "TagA"
    assert message.keys == ["k1", "к"]
    assert message.unique_key is None


def test_the_golden_record_without_its_crc_ends_where_the_sender_ended() -> None:
    bare = record.encode(GOLDEN_DRAFT, (1 << 30) + 16, 42, 1_700_000_001_023, False)
    properties = GOLDEN_DRAFT.properties
    assert bare[4:-22] == GOLDEN[4:-43]
    assert bare[-22:] == len(properties).to_bytes(2, "big") + properties


def test_fields_are_where_the_layout_says() -> None:
    assert layout.SMALLEST_RECORD == 91
    assert layout.HEAD.size == 48
    assert struct.unpack_from(">q", GOLDEN, layout.QUEUE_OFFSET_AT) == (42,)
    assert struct.unpack_from(">q", GOLDEN, layout.POSITION_AT) == ((1 << 30) + 16,)
    assert layout.CRC_PROPERTY_SIZE == len(record.crc_property(0)) == 20
    assert layout.BLANK.pack(100, layout.MAGIC_BLANK) == bytes.fromhex("00000064cbd43194")


@pytest.mark.parametrize(
    ("flags", "in_queue"),
    [(0, True), (layout.FLAG_PREPARED, False), (layout.FLAG_COMMITTED, True), (layout.FLAG_ROLLED_BACK, False)],
)
def test_halves_of_a_transaction_are_in_no_queue(flags: int, in_queue: bool) -> None:
    assert layout.has_queue_offset(flags | layout.FLAG_COMPRESSED | layout.FLAG_STORE_HOST_V6) is in_queue


# --- round trips -----------------------------------------------------------------------------------------------------


@given(drafts(), st.booleans(), INT64, INT64)
def test_what_was_encoded_is_decoded(draft: Draft, with_crc: bool, position: int, queue_offset: int) -> None:
    record.check_draft(draft, 1 << 20)
    data = memoryview(record.encode(draft, position, queue_offset, STORED_AT_MS, with_crc))
    message = record.decode(data)
    kept = decode_properties(without_crc(draft.properties))
    assert {name: value for name, value in message.properties.items() if name != "__CRC32#"} == kept
    assert ("__CRC32#" in message.properties) is with_crc
    assert (message.position, message.queue_offset) == (position, queue_offset)
    assert message.size == len(data) == record.encoded_size(draft, with_crc)
    assert message.topic == draft.topic.decode()
    assert message.body == bytes(draft.body)
    assert message.storage_flags == record.storage_flags_of(draft)
    assert message.store_timestamp_ms == STORED_AT_MS
    for name in ("queue_id", "user_flag", "born_timestamp_ms", "born_host", "store_host", "reconsume_times",
                 "prepared_position"):  # fmt: skip
        assert getattr(message, name) == getattr(draft, name)


@given(drafts(), st.booleans())
def test_what_was_encoded_is_verified(draft: Draft, with_crc: bool) -> None:
    data = memoryview(encode(draft, with_crc=with_crc))
    spans = record.verify(data, 0, len(data), BASE)
    assert isinstance(spans, record.Spans), spans
    assert spans.total_size == spans.properties_end == len(data)


@given(drafts(), st.data())
def test_one_changed_byte_anywhere_is_noticed(draft: Draft, data: st.DataObject) -> None:
    """The whole-record CRC covers what the body's does not: queue, offsets, topic, properties."""
    whole = encode(draft)
    at = data.draw(st.integers(0, len(whole) - 1))
    damaged = bytearray(whole)
    damaged[at] ^= data.draw(st.integers(1, 255))
    assert isinstance(record.verify(memoryview(damaged), 0, len(damaged), BASE), str)


@given(drafts(), st.booleans(), st.data())
def test_a_record_that_is_cut_off_is_no_record(draft: Draft, with_crc: bool, data: st.DataObject) -> None:
    whole = encode(draft, with_crc=with_crc)
    limit = data.draw(st.integers(0, len(whole) - 1))
    assert isinstance(record.spans_of(memoryview(whole), 0, limit), str)


def test_a_record_of_another_place_is_refused_by_its_position() -> None:
    data = memoryview(encode(ORDER))
    assert record.verify(data, 0, len(data), BASE + 1) == f"it says that it belongs to position {BASE}"


def test_bytes_that_are_no_record_cannot_be_decoded() -> None:
    with pytest.raises(IllegalMessage, match="not a record: the magic number is 0x00000000"):
        record.decode(memoryview(bytes(200)))


def test_the_longer_topic_takes_the_second_version() -> None:
    short, long = (encode(replace(ORDER, topic=b"x" * size)) for size in (127, 128))
    assert struct.unpack_from(">I", short, 4) == (layout.MAGIC_V1,)
    assert struct.unpack_from(">I", long, 4) == (layout.MAGIC_V2,)
    assert len(long) == len(short) + 2


def test_hosts_say_their_length_in_the_flags_whatever_the_sender_said() -> None:
    wrong = replace(ORDER, born_host=V6, storage_flags=layout.FLAG_STORE_HOST_V6)
    message = record.decode(memoryview(encode(wrong)))
    assert message.storage_flags == layout.FLAG_BORN_HOST_V6
    assert (message.born_host, message.store_host) == (V6, LOCALHOST)


@pytest.mark.parametrize(
    ("sent", "stored"),
    [
        (b"", b""),
        (b"a\x01b", b"a\x01b\x02"),
        (b"a\x01b\x02", b"a\x01b\x02"),
        (b"__CRC32#\x010123456789\x02", b""),
        (b"a\x01b\x02__CRC32#\x010123456789\x02c\x01d", b"a\x01b\x02c\x01d\x02"),
        (b"__CRC32#", b""),
        (b"a\x01__CRC32#\x02", b"a\x01__CRC32#\x02"),
    ],
)
def test_a_crc_that_a_client_sends_back_is_taken_out(sent: bytes, stored: bytes) -> None:
    draft = replace(ORDER, properties=sent)
    assert record.record_properties(draft, with_crc=True) == stored
    data = memoryview(encode(draft))
    assert isinstance(record.verify(data, 0, len(data), BASE), record.Spans)
    assert bytes(data[:-20]).endswith((len(stored) + 20).to_bytes(2, "big") + stored)


@pytest.mark.parametrize(
    "tail",
    [
        b"x\x01__CRC32#\x010123456789\x02",  # a value that contains the whole property
        b"__CRC32!\x010123456789\x02",  # a name that is nearly it
        b"__CRC32#0\x0112345678\x02",
        b"x\x01y\x02__CRC32$\x019999999999\x02",
    ],
)
@pytest.mark.parametrize("with_crc", [True, False])
def test_properties_that_look_like_a_crc_do_not_spoil_the_record(tail: bytes, with_crc: bool) -> None:
    draft = replace(ORDER, properties=tail)
    data = memoryview(encode(draft, with_crc=with_crc))
    assert isinstance(record.verify(data, 0, len(data), BASE), record.Spans)
    read = record.decode(data).properties
    read.pop("__CRC32#", None)
    assert read == decode_properties(without_crc(tail))


# --- what a record cannot hold ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"topic": b""}, "a topic has 1 to 255 bytes, this one has 0"),
        ({"topic": b"x" * 256}, "a topic has 1 to 255 bytes, this one has 256"),
        ({"topic": b".."}, "cannot be the name of a directory"),
        ({"topic": b"."}, "cannot be the name of a directory"),
        ({"topic": b"../../etc"}, "cannot be the name of a directory"),
        ({"topic": b"a\0b"}, "cannot be the name of a directory"),
        ({"body": bytes(101)}, "the body has 101 bytes, the limit is 100"),
        ({"properties": bytes(32747)}, "the properties have 32747 bytes, the limit is 32746"),
        ({"born_host": b"\x7f\0\0\1"}, "8 .IPv4. or 20 .IPv6. bytes long, not 4"),
        ({"store_host": bytes(16)}, "8 .IPv4. or 20 .IPv6. bytes long, not 16"),
        ({"queue_id": -1}, "-1 is not a queue id"),
        ({"queue_id": 1 << 31}, "2147483648 is not a queue id"),
        ({"user_flag": 1 << 31}, "user_flag = 2147483648 does not fit in 32 bits"),
        ({"storage_flags": -(1 << 31) - 1}, "does not fit in 32 bits"),
        ({"reconsume_times": 1 << 40}, "does not fit in 32 bits"),
        ({"born_timestamp_ms": 1 << 63}, "does not fit in 64 bits"),
        ({"prepared_position": -(1 << 63) - 1}, "does not fit in 64 bits"),
    ],
)
def test_a_draft_that_cannot_be_stored_is_refused_with_a_sentence(change: dict[str, object], sentence: str) -> None:
    with pytest.raises(IllegalMessage, match=sentence):
        record.check_draft(replace(ORDER, **change), 100)  # type: ignore[arg-type]


def test_the_largest_properties_fit() -> None:
    draft = replace(ORDER, properties=b"a\x01" + b"x" * 32744)
    record.check_draft(draft, 100)
    data = memoryview(encode(draft))
    assert isinstance(record.verify(data, 0, len(data), BASE), record.Spans)
