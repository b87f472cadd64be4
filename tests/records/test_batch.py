"""A batch: several messages in one body, each a record of its own."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyromq.errors import IllegalMessage
from pyromq.model.message import Draft
from pyromq.records.batch import encode_batch, split_batch
from records.drafts import INT32, properties

messages = st.tuples(INT32, st.binary(max_size=50), properties())
TWO = encode_batch([(1, b"first", b"a\x01b\x02"), (2, b"second", b"")])


def batch(data: bytes | memoryview) -> Draft:
    return Draft(topic=b"orders", queue_id=3, body=data, born_timestamp_ms=42, reconsume_times=1)


@given(st.lists(messages, max_size=5))
def test_what_was_packed_is_split_again(sent: list[tuple[int, bytes, bytes]]) -> None:
    found = split_batch(batch(encode_batch(sent)), 10)
    assert [(draft.user_flag, bytes(draft.body), draft.properties) for draft in found] == sent
    for draft in found:
        assert (draft.topic, draft.queue_id, draft.born_timestamp_ms, draft.reconsume_times) == (b"orders", 3, 42, 1)


def test_the_bytes_are_the_clients() -> None:
    assert encode_batch([(7, b"ab", b"k\x01v")]) == bytes.fromhex(
        "0000001b" "00000000" "00000000" "00000007" "00000002" "6162" "0003" "6b0176"
    )  # fmt: skip


@pytest.mark.parametrize(
    ("data", "sentence"),
    [
        (TWO[:-1], "message at byte 31 of the batch does not fit"),
        (TWO + b"\0", "cut off at byte 59"),
        (b"\0" * 22, "message at byte 0 of the batch does not fit"),  # size 0 must not turn for ever
        (b"\xff" * 40, "does not fit"),
        (b"\0\0\0\x19" + TWO[4:], "does not fit|do not add up"),
        (TWO[:16] + b"\xff\xff\xff\xff" + TWO[20:], "does not fit"),
        (TWO[:16] + b"\0\0\0\x04" + TWO[20:], "do not add up"),
    ],
)
def test_a_broken_batch_is_the_senders_fault(data: bytes, sentence: str) -> None:
    with pytest.raises(IllegalMessage, match=sentence):
        split_batch(batch(data), 10)


@given(st.binary(max_size=120))
def test_any_bytes_are_a_batch_or_illegal(data: bytes) -> None:
    try:
        found = split_batch(batch(data), 10)
    except IllegalMessage:
        return
    assert sum(22 + len(draft.body) + len(draft.properties) for draft in found) == len(data)


def test_five_thousand_damaged_batches() -> None:
    rng = random.Random(3)
    good = encode_batch([(n, rng.randbytes(n), b"k\x01v\x02") for n in range(5)])
    for _ in range(5000):
        damaged = bytearray(good)
        for _ in range(rng.randint(1, 4)):
            damaged[rng.randrange(len(damaged))] = rng.choice([0, 1, 127, 128, 255])
        test_any_bytes_are_a_batch_or_illegal.hypothesis.inner_test(bytes(damaged))  # type: ignore[attr-defined]
