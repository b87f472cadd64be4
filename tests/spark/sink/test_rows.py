"""Rows become messages a column at a time. The result is compared with the reference implementation's, row by row."""

from __future__ import annotations

import os
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pyromq.client.sending.unique_ids import UniqueIds
from pyromq.errors import IllegalMessage
from pyromq.model.message import Draft
from pyromq.model.queue import MessageQueue
from pyromq.records.batch import split_batch_readable
from pyromq.records.compression import decompress
from pyromq.records.java_hash import java_hash
from pyromq.records.properties import decode_properties
from pyromq.records.property_names import RESERVED
from pyromq.spark.sink.queues import BLOCK, Spread, by_queue, by_topic, is_free
from pyromq.spark.sink.rows import COMPRESS_FROM, MAX_MESSAGES, Packer, Rows, in_front, numbered, pieces

TYPES = {
    "body": pa.binary(),
    "topic": pa.string(),
    "tags": pa.string(),
    "keys": pa.string(),
    "properties": pa.map_(pa.string(), pa.string()),
    "queue_id": pa.int32(),
    "sharding_key": pa.string(),
    "delay_level": pa.int32(),
    "deliver_at": pa.timestamp("us", tz="UTC"),
    "dedup_key": pa.string(),
}


def frame(**columns: list[Any]) -> pa.RecordBatch:
    return pa.record_batch({name: pa.array(values, TYPES[name]) for name, values in columns.items()})


def packer(topic: str | None = "orders", compression: str | None = None) -> Packer:
    return Packer(topic, compression, UniqueIds("127.0.0.1", 7, os.urandom), lambda: 1_700_000_000_000)


def drafts(rows: Rows, max_bytes: int = 1 << 20) -> list[Draft]:
    """Return the messages that a broker makes of the requests."""
    found: list[Draft] = []
    for piece in pieces(rows.bodies, rows.properties, rows.flags, max_bytes):
        template = Draft(
            topic=b"orders", queue_id=0, body=bytes(piece.data), properties=b"", storage_flags=piece.flags,
            born_timestamp_ms=0, born_host=b"\0" * 8, store_host=b"\0" * 8,
        )  # fmt: skip
        some = split_batch_readable(template, MAX_MESSAGES)
        assert len(some) == piece.messages
        found += some
    return found


text = st.text(st.characters(exclude_characters="\x01\x02", exclude_categories=["Cs"]), max_size=12)
row = st.fixed_dictionaries({
    "body": st.binary(min_size=1, max_size=40),
    "tags": st.none() | text,
    "keys": st.none() | text,
    "sharding_key": st.none() | text,
    "dedup_key": st.none() | text,
    "properties": st.none() | st.dictionaries(text | st.sampled_from(["TAGS", "PYROMQ_X", "WAIT"]), st.none() | text),
})  # fmt: skip


@settings(deadline=None)
@given(rows=st.lists(row, min_size=1, max_size=20), max_bytes=st.integers(1, 2000))
def test_each_row_becomes_the_message_that_it_describes(rows: list[dict[str, Any]], max_bytes: int) -> None:
    columns = {name: [one[name] for one in rows] for name in rows[0]}
    columns["properties"] = [None if one is None else list(one.items()) for one in columns["properties"]]
    made = drafts(packer().pack(frame(**columns)), max_bytes)
    assert [bytes(draft.body) for draft in made] == columns["body"]
    for draft, one in zip(made, rows, strict=True):
        found = decode_properties(bytes(draft.properties))
        unique = found.pop("UNIQ_KEY")
        assert unique == one["dedup_key"] if one["dedup_key"] else len(unique) == 32
        expected = {
            name: value
            for name, value in (one["properties"] or {}).items()
            if name and value and name not in RESERVED and not name.startswith("PYROMQ_")
        }
        own = {"TAGS": one["tags"], "KEYS": one["keys"], "__SHARDINGKEY": one["sharding_key"], "WAIT": "true"}
        assert found == expected | {name: value for name, value in own.items() if value}


def test_ids_differ_however_many_there_are() -> None:
    pack = packer()
    ids = set()
    for _ in range(3):
        rows = pack.pack(frame(body=[b"x"] * 70_000))
        ids |= {decode_properties(one)["UNIQ_KEY"] for one in rows.properties.to_pylist()}
    assert len(ids) == 210_000


def test_a_slice_of_a_larger_frame_is_written_as_it_stands_there() -> None:
    whole = frame(body=[b"a", b"b", b"c"], tags=["x", None, "z"], properties=[[("k", "1")], None, [("k", "3")]])
    (_, last) = drafts(packer().pack(whole.slice(1)))
    assert bytes(last.body) == b"c"
    assert decode_properties(bytes(last.properties)).items() >= {"TAGS": "z", "k": "3"}.items()


def test_keys_may_be_a_list_of_words() -> None:
    rows = pa.record_batch({"body": pa.array([b"a", b"b", b"c"]), "keys": pa.array([["k1", "k2"], None, [None, "k3"]])})
    found = [decode_properties(bytes(draft.properties)).get("KEYS") for draft in drafts(packer().pack(rows))]
    assert found == ["k1 k2", None, "k3"]


def test_a_body_of_text_is_sent_as_utf8() -> None:
    rows = pa.record_batch({"body": pa.array(["grüße", "x"])})
    assert [bytes(draft.body) for draft in drafts(packer().pack(rows))] == ["grüße".encode(), b"x"]


def test_large_bodies_are_compressed_and_small_ones_are_not() -> None:
    bodies = [b"small", b"A" * COMPRESS_FROM, b"B" * COMPRESS_FROM, os.urandom(COMPRESS_FROM), b"small"]
    made = drafts(packer(compression="zstd").pack(frame(body=bodies)))
    assert [decompress(bytes(draft.body), draft.storage_flags) for draft in made] == bodies
    assert [bool(draft.storage_flags) for draft in made] == [False, True, True, False, False]


def test_requests_are_as_large_as_allowed_and_no_larger() -> None:
    rows = packer().pack(frame(body=[b"x" * 100] * 5000))
    made = list(pieces(rows.bodies, rows.properties, rows.flags, 100_000))
    assert sum(piece.messages for piece in made) == 5000
    assert all(90_000 < len(piece.data) <= 100_000 for piece in made[:-1])
    assert max(piece.messages for piece in pieces(rows.bodies, rows.properties, rows.flags, 1 << 30)) == MAX_MESSAGES


def test_a_message_larger_than_a_request_goes_alone() -> None:
    rows = packer().pack(frame(body=[b"x" * 3000, b"y", b"z" * 3000]))
    assert [piece.messages for piece in pieces(rows.bodies, rows.properties, rows.flags, 2000)] == [1, 1, 1]


def test_messages_that_are_held_back_go_alone() -> None:
    rows = packer().pack(
        frame(body=[b"a", b"b", b"c"], delay_level=[None, 3, 0], deliver_at=[1_500_000_000_000_001, None, None])
    )
    assert rows.is_alone.tolist() == [True, True, False]
    first, second, third = (decode_properties(one) for one in rows.properties.to_pylist())
    assert first["TIMER_DELIVER_MS"] == "1500000000001"  # not even a part of a millisecond early
    assert second["DELAY"] == "3"
    assert not {"DELAY", "TIMER_DELIVER_MS"} & third.keys()


def test_numbers_are_written_in_front() -> None:
    rows = packer().pack(frame(body=[b"a", b"b"]))
    marked = in_front(numbered(b"N\x011:", np.array([9, 10]), b"\x02"), rows.properties)
    assert [one.split(b"\x02")[0] for one in marked.to_pylist()] == [b"N\x011:9", b"N\x011:10"]


@pytest.mark.parametrize(
    ("columns", "said"),
    [
        ({"body": [b"a", None]}, "row 1 of this task has no body"),
        ({"body": [b"a", b""]}, "row 1 of this task has no body"),
        ({"body": [b"a", b"b"], "topic": ["t", None]}, "row 1 of this task names no topic"),
        (
            {"body": [b"a", b"b"], "tags": ["t", "\x01"]},
            "the column tags, in row 0 of this task or one of the 2 behind it",
        ),
        ({"body": [b"a"], "properties": [[("a", "b\x02")]]}, "the column properties"),
        ({"body": [b"a"], "properties": [[("a", "b" * 40_000)]]}, "has properties of more than 32767 bytes"),
        ({"body": [b"a"], "delay_level": [-1]}, "has a negative delay_level"),
        ({"body": [b"a"], "delay_level": [1], "deliver_at": [0]}, "has both delay_level and deliver_at"),
    ],
)
def test_a_row_that_cannot_be_a_message_is_named(columns: dict[str, list[Any]], said: str) -> None:
    with pytest.raises(IllegalMessage) as refused:
        packer(topic=None if "topic" in columns else "orders").pack(frame(**columns))
    assert said in str(refused.value)


def test_rows_are_counted_over_the_whole_task() -> None:
    pack = packer()
    pack.pack(frame(body=[b"x"] * 10))
    with pytest.raises(IllegalMessage, match="row 12 of this task has no body"):
        pack.pack(frame(body=[b"x", b"x", None]))


# --- queues ----------------------------------------------------------------------------------------------------------

QUEUES = tuple(MessageQueue("orders", broker, number) for broker in ("a", "b") for number in range(4))


def everything(rows: Rows) -> Any:
    return np.arange(len(rows))


@settings(deadline=None)
@given(sizes=st.lists(st.integers(1, 400), min_size=1, max_size=8), writer=text)
def test_the_queue_of_a_row_does_not_depend_on_how_rows_are_cut_into_frames(sizes: list[int], writer: str) -> None:
    spread, pack, whole = Spread(writer), packer(), packer().pack(frame(body=[b"x"] * sum(sizes)))
    cut = [pack.pack(frame(body=[b"x"] * size)) for size in sizes]
    assigned = np.concatenate([spread.assign(rows, everything(rows), QUEUES) for rows in cut])
    assert assigned.tolist() == spread.assign(whole, everything(whole), QUEUES).tolist()


def test_rows_go_round_in_blocks() -> None:
    rows = packer().pack(frame(body=[b"x"] * (BLOCK * len(QUEUES))))
    assigned = Spread("w").assign(rows, everything(rows), QUEUES)
    assert sorted(np.bincount(assigned).tolist()) == [BLOCK] * len(QUEUES)
    assert len(set(assigned[:BLOCK].tolist())) == 1


def test_a_sharding_key_has_one_queue_the_one_that_java_chooses() -> None:
    keys = ["k1", "k2", None, "k1", "Übung"]
    rows = packer().pack(frame(body=[b"x"] * 5, sharding_key=keys))
    assigned = Spread("w").assign(rows, everything(rows), QUEUES)
    for key, number in zip(keys, assigned, strict=True):
        if key is not None:
            assert number == abs(java_hash(key)) % len(QUEUES)
    assert is_free(rows, everything(rows)).tolist() == [False, False, True, False, False]


def test_a_row_that_names_its_queue_goes_to_one_of_that_number() -> None:
    rows = packer().pack(frame(body=[b"x"] * 3, queue_id=[2, None, 0], sharding_key=["k", "k", None]))
    first, _, last = Spread("w").assign(rows, everything(rows), QUEUES)
    assert (QUEUES[first].queue_id, QUEUES[last].queue_id) == (2, 0)


@pytest.mark.parametrize("queue_id", [4, -2])
def test_a_queue_that_is_not_there_is_refused(queue_id: int) -> None:
    rows = packer().pack(frame(body=[b"x"], queue_id=[queue_id]))
    with pytest.raises(IllegalMessage, match=r"has no queue 4: the highest is 3|numbered from 0 on"):
        Spread("w").assign(rows, everything(rows), QUEUES)


@settings(deadline=None)
@given(st.lists(st.integers(0, 5), min_size=1, max_size=50))
def test_the_rows_of_a_queue_stay_in_order(assigned: list[int]) -> None:
    found = dict(by_queue(np.array(assigned)))
    assert {number: places.tolist() for number, places in found.items()} == {
        number: [at for at, one in enumerate(assigned) if one == number] for number in set(assigned)
    }


def test_rows_may_name_their_topics() -> None:
    rows = packer(topic="rest").pack(frame(body=[b"x"] * 4, topic=["a", "b", None, "a"]))
    found = {topic: chosen.tolist() for topic, chosen in by_topic(rows, ~rows.is_alone)}
    assert found == {"a": [0, 3], "b": [1], "rest": [2]}
