"""From records to Arrow: what each column holds, and what happens to bytes that are no records.

Everything here runs on whichever form is chosen; `test_decode_kernel` holds the two forms equal.
"""

from __future__ import annotations

from datetime import UTC, datetime

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyromq.client.received import split_records
from pyromq.errors import BadRecord
from pyromq.model.message import Draft
from pyromq.model.queue import MessageQueue
from pyromq.records import layout, record
from pyromq.records.compression import compress
from pyromq.records.scan import Stop
from pyromq.spark.decode import decoder as decoding
from pyromq.spark.decode.columns import NAMES, arrow_schema
from pyromq.spark.decode.decoder import batches, decode, find_records, numbers, topic_codes, verify, walk
from records.drafts import BASE, STORED_AT_MS
from spark.support.records_in_blocks import a_log, any_drafts, ordinary


def rows(log: bytes, *names: str, broker: str | None = None) -> list[dict[str, object]]:
    starts = find_records(log, 0, len(log))
    found: list[dict[str, object]] = decode(log, starts, names or NAMES, broker=broker).to_pylist()
    return found


def one(draft: Draft, *names: str) -> dict[str, object]:
    [row] = rows(a_log([draft]), *names)
    return row


# --- the columns -----------------------------------------------------------------------------------------------------


def test_every_column_of_an_ordinary_message() -> None:
    draft = ordinary(5, body=b"hello")
    draft.user_flag, draft.reconsume_times = -3, 2
    log = a_log([draft])
    [row] = rows(log, broker="broker-a")
    assert row == {
        "topic": "orders",
        "broker": "broker-a",
        "queue_id": 1,
        "queue_offset": 0,
        "commit_log_offset": BASE,
        "msg_id": "ID000005",
        "tags": "tag2",
        "keys": "order-5",
        "properties": [("TAGS", "tag2"), ("KEYS", "order-5"), ("UNIQ_KEY", "ID000005")],
        "body": b"hello",
        "born_ts": datetime(2023, 11, 14, 22, 13, 20, 5000, UTC),
        "store_ts": datetime(2023, 11, 14, 22, 13, 20, 123000, UTC),
        "born_host": "10.0.0.7:8080",
        "sys_flag": 0,
        "flag": -3,
        "reconsume_times": 2,
        "body_crc": record.decode(memoryview(log)).body_crc,
        "store_size": len(log),
    }


@given(st.lists(any_drafts, max_size=4), st.booleans())
def test_what_a_consumer_sees_is_what_the_table_has(some: list[Draft], with_crc: bool) -> None:
    log = a_log(some, with_crc=with_crc)
    found = rows(log, "msg_id", "queue_offset", "commit_log_offset", "born_host", "reconsume_times", "properties")
    received = split_records(log, MessageQueue("orders", "broker-a", 0))
    assert len(found) == len(received)
    for row, message in zip(found, received, strict=True):
        assert (row["queue_offset"], row["commit_log_offset"]) == (message.queue_offset, message.position)
        assert (row["born_host"], row["reconsume_times"]) == (message.born_host, message.reconsume_times)
        properties = {name: value for name, value in message.all_properties.items() if name != "__CRC32#"}
        assert row["properties"] == list(properties.items())
        assert row["msg_id"] == (properties.get("UNIQ_KEY") or message.offset_message_id)


def test_only_what_is_asked_for_is_there_in_the_order_that_was_asked() -> None:
    log = a_log([ordinary(n) for n in range(10)])
    batch = decode(log, find_records(log, 0, len(log)), ("body", "queue_id"))
    assert batch.schema == arrow_schema(("body", "queue_id"))
    assert batch.num_rows == 10
    batch.validate(full=True)


def test_no_records_are_a_batch_without_rows() -> None:
    batch = decode(b"", find_records(b"", 0, 0), NAMES, broker="a")
    assert (batch.num_rows, batch.schema) == (0, arrow_schema(NAMES))


def test_some_of_the_records() -> None:
    log = a_log([ordinary(n) for n in range(10)])
    starts = find_records(log, 0, len(log))
    assert decode(log, starts[[7, 2]], ("queue_offset",)).to_pydict() == {"queue_offset": [7, 2]}
    assert decode(log, starts[::3], ("queue_offset",)).to_pydict() == {"queue_offset": [0, 3, 6, 9]}


def test_a_message_without_properties() -> None:
    row = one(Draft(b"t", 0, b"", store_host=b"\x0a\0\0\x08\0\0\x2a\x9f"), "tags", "keys", "properties", "msg_id")
    assert row == {"tags": None, "keys": None, "properties": [], "msg_id": f"0A00000800002A9F{BASE:016X}"}


def test_the_records_own_crc_is_no_property_of_the_message() -> None:
    [row] = rows(a_log([ordinary(1)], with_crc=True), "properties")
    assert "__CRC32#" not in dict(row["properties"])  # type: ignore[call-overload]


def test_ipv6_hosts() -> None:
    draft = Draft(b"t", 0, b"", born_host=bytes(15) + b"\x01\0\0\x1f\x90", store_host=bytes(range(16)) + bytes(4))
    row = one(draft, "born_host", "msg_id", "body", "store_ts")
    assert row["born_host"] == "[::1]:8080"
    assert row["msg_id"] == f"{bytes(range(16)).hex().upper()}00000000{BASE:016X}"
    assert row["store_ts"] == datetime(2023, 11, 14, 22, 13, 20, 123000, UTC)


@pytest.mark.parametrize("form", ["zlib", "lz4", "zstd"])
def test_compressed_bodies_are_unpacked(form: str) -> None:
    body, flags = compress(b"again " * 100, form)
    row = one(Draft(b"t", 0, body, storage_flags=flags), "body", "sys_flag")
    assert row == {"body": b"again " * 100, "sys_flag": flags}


@pytest.mark.parametrize("flags", [1, 1 | 1 << 8, 1 | 7 << 8])
def test_a_body_that_cannot_be_unpacked_is_given_as_it_is_stored(flags: int) -> None:
    """One bad message must not end a job; its flag tells who wants to know."""
    assert one(Draft(b"t", 0, b"no such thing", storage_flags=flags), "body", "sys_flag") == {
        "body": b"no such thing",
        "sys_flag": flags,
    }


def test_text_that_is_no_text_reads_with_replacement_characters() -> None:
    row = one(Draft(b"\xffopic", 0, b"", b"TAGS\x01a\xffb\x02KEYS\x01fine"), "topic", "tags", "keys")
    assert row == {"topic": "�opic", "tags": "a�b", "keys": "fine"}


def test_of_two_properties_with_one_name_the_later_counts() -> None:
    row = one(Draft(b"t", 0, b"", b"TAGS\x01a\x02x\x01y\x02TAGS\x01b\x02"), "tags", "properties")
    assert row == {"tags": "b", "properties": [("TAGS", "b"), ("x", "y")]}


@pytest.mark.parametrize("ms", [-(2**63), 2**63 - 1, 253_402_300_800_000, -62_135_596_800_001])
def test_a_time_that_no_calendar_has_is_none(ms: int) -> None:
    assert one(Draft(b"t", 0, b"", born_timestamp_ms=ms), "born_ts") == {"born_ts": None}


def test_the_first_and_the_last_time_of_the_calendar() -> None:
    log = a_log([Draft(b"t", 0, b"", born_timestamp_ms=ms) for ms in (-62_135_596_800_000, 253_402_300_799_999, 1)])
    assert [row["born_ts"] for row in rows(log, "born_ts")] == [
        datetime(1, 1, 1, tzinfo=UTC),
        datetime(9999, 12, 31, 23, 59, 59, 999000, UTC),
        datetime(1970, 1, 1, 0, 0, 0, 1000, UTC),
    ]


# --- finding records, and looking before decoding --------------------------------------------------------------------


def test_records_end_at_a_blank_at_zeroes_and_at_the_limit() -> None:
    log = a_log([ordinary(n) for n in range(3)])
    blank = layout.BLANK.pack(100, layout.MAGIC_BLANK) + bytes(92)
    starts = find_records(log, 0, len(log)).tolist()
    assert len(starts) == 3
    for behind, stop in ((blank, Stop.BLANK), (bytes(50), Stop.EMPTY), (bytes(3), Stop.EMPTY), (b"", Stop.LIMIT)):
        found = walk(log + behind, 0, len(log) + len(behind))
        assert (found.starts.tolist(), found.end, found.stop) == (starts, len(log), stop)
    assert find_records(log, starts[1], starts[2]).tolist() == [starts[1]]


def test_a_walk_can_be_taken_in_steps() -> None:
    log = a_log([ordinary(n) for n in range(7)])
    at, found = 0, []
    while True:
        step = walk(log, at, len(log), at_most=3)
        found.append(len(step.starts))
        at = step.end
        if step.stop is not None:
            break
    assert (found, step.stop, at) == ([3, 3, 1], Stop.LIMIT, len(log))


def test_what_is_no_record_is_an_error_that_says_where() -> None:
    log = a_log([ordinary(n) for n in range(3)])
    second = int(find_records(log, 0, len(log))[1])
    spoilt = log[: second + 4] + b"spoilt" + log[second + 10 :]
    with pytest.raises(BadRecord, match=f"at byte {second}: the magic number is") as raised:
        find_records(spoilt, 0, len(spoilt))
    assert raised.value.at == second
    with pytest.raises(BadRecord, match=r"the size .* is impossible here"):
        find_records(log[:-1], 0, len(log) - 1)
    with pytest.raises(BadRecord, match="cut off"):
        find_records(log, 0, second + 50)
    assert walk(spoilt, 0, len(spoilt)).stop is Stop.BAD


def test_a_record_that_says_it_is_elsewhere_is_none_in_a_log() -> None:
    log = a_log([ordinary(0), ordinary(1)])
    assert len(find_records(log, 0, len(log), base=BASE)) == 2
    with pytest.raises(BadRecord, match=f"it says that it belongs to position {BASE}"):
        find_records(log, 0, len(log), base=BASE + 1)


def test_a_start_where_no_record_is_is_an_error_not_a_crash() -> None:
    log = a_log([ordinary(0)])
    for start in (-1, 1, len(log) - 1, len(log), len(log) + 10, 2**62):
        with pytest.raises(BadRecord):
            decode(log, np.array([0, start]), NAMES)
    with pytest.raises(BadRecord):
        decode(b"", np.array([0]), NAMES)


def test_numbers_to_look_at_before_decoding() -> None:
    log = a_log([ordinary(n) for n in range(6)])
    starts = find_records(log, 0, len(log))
    assert numbers(log, starts, "queue_offset").tolist() == [0, 1, 2, 3, 4, 5]
    assert numbers(log, starts, "queue_id").tolist() == [0, 1, 2, 3, 0, 1]
    assert numbers(log, starts, "store_ms").tolist() == [STORED_AT_MS + n for n in range(6)]
    assert (numbers(log, starts, "commit_log_offset") - BASE).tolist() == starts.tolist()


def test_topics_to_look_at_before_decoding() -> None:
    topics = [b"a", b"b", b"a", *(b"t%d" % n for n in range(20)), b"b", b"t3"]
    log = a_log([ordinary(n, topic=topic) for n, topic in enumerate(topics)])
    codes, names = topic_codes(log, find_records(log, 0, len(log)))
    assert [names[code] for code in codes] == topics
    assert len(names) == len(set(topics))


# --- CRC -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("with_crc", [True, False])
def test_a_damaged_body_is_found_when_somebody_looks(with_crc: bool) -> None:
    log = a_log([ordinary(n) for n in range(3)], with_crc=with_crc)
    starts = find_records(log, 0, len(log))
    verify(log, starts)
    at = log.index(b"body of 1")
    spoilt = log[:at] + b"B" + log[at + 1 :]
    with pytest.raises(BadRecord, match=f"at byte {starts[1]}: the .* CRC does not match"):
        verify(spoilt, starts)
    assert decode(spoilt, starts, ("body",)).to_pydict()["body"][1] == b"Body of 1"


# --- batches ---------------------------------------------------------------------------------------------------------


def test_bodies_that_become_large_come_in_more_batches() -> None:
    body, flags = compress(bytes(10_000), "zlib")
    log = a_log([Draft(b"t", 0, body, storage_flags=flags) for _ in range(10)])
    starts = find_records(log, 0, len(log))
    sizes = [batch.num_rows for batch in batches(log, starts, ("body", "queue_offset"), max_bytes=25_000)]
    assert sum(sizes) == 10
    assert max(sizes) <= 2
    assert [b.num_rows for b in batches(log, starts[:1], ("body",), max_bytes=10)] == [1], "one alone always fits"
    assert [b.num_rows for b in batches(log, starts, ("queue_offset",), max_bytes=10)] == [10], "no bodies, no limit"


def test_many_rows_come_in_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decoding, "BATCH_ROWS", 4)
    log = a_log([ordinary(n) for n in range(10)])
    found = list(batches(log, find_records(log, 0, len(log)), ("queue_offset",)))
    assert [batch.num_rows for batch in found] == [4, 4, 2]
    assert [row["queue_offset"] for batch in found for row in batch.to_pylist()] == list(range(10))
