"""The time at which batches are sent, and their content: decided without a network."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyromq.client.message import Message
from pyromq.client.sending.batching import BatchOptions, Gathering
from pyromq.client.sending.frames import SendFrames
from pyromq.client.sending.parcel import MAX_BATCH, BatchEntry, Packing, Parcel, entry_size, join, split_by_size
from pyromq.errors import ConfigError
from pyromq.model.message import Draft
from pyromq.records.batch import split_batch
from pyromq.wire.codes import RequestCode
from pyromq.wire.command import FLAG_ONE_WAY
from pyromq.wire.frames import decode_frame, frame_end
from pyromq.wire.requests.client import SendMessage, decode_request

ENTRIES = st.lists(
    st.tuples(st.integers(0, 9), st.binary(min_size=1, max_size=300), st.binary(max_size=60)), max_size=50
)


def gathering(**options: int) -> Gathering[int]:
    return Gathering(BatchOptions(**options))  # type: ignore[arg-type]


def put(into: Gathering[int], body: bytes, waiter: int = 0) -> bool:
    entry: BatchEntry = (0, body, b"")
    return into.add(entry, entry_size(entry), f"id-{waiter}", waiter)


def test_a_batch_is_full_by_count() -> None:
    some = gathering(max_messages=3)
    assert [put(some, b"x", number) for number in range(3)] == [False, False, True]
    taken = some.take()
    assert (taken.waiters, taken.message_ids) == ([0, 1, 2], ["id-0", "id-1", "id-2"])
    assert len(some) == 0


def test_a_batch_is_full_by_bytes_and_what_does_not_fit_waits_for_the_next() -> None:
    some = gathering(max_bytes=100)
    assert not put(some, b"x" * 40)
    assert some.fits(38)
    assert not some.fits(39)
    assert put(some, b"x" * 20)


def test_a_message_larger_than_a_batch_goes_into_one_of_its_own() -> None:
    assert gathering(max_bytes=10).fits(1000)


def test_no_more_batches_than_allowed_are_under_way() -> None:
    some = gathering(in_flight=2)
    assert not some.may_leave(), "there is nothing"
    for _ in range(2):
        put(some, b"x")
        assert some.may_leave()
        some.take()
    put(some, b"x")
    assert not some.may_leave()
    some.in_flight -= 1
    assert some.may_leave()


@pytest.mark.parametrize("name", ["max_messages", "max_bytes", "in_flight", "max_waiting_bytes"])
def test_options_that_cannot_be_used_are_named(name: str) -> None:
    with pytest.raises(ConfigError, match=name):
        BatchOptions(**{name: 0})
    with pytest.raises(ConfigError, match="linger_s"):
        BatchOptions(linger_s=-1)


# --- parts -----------------------------------------------------------------------------------------------------------


@given(ENTRIES, st.integers(1, 2000))
def test_parts_are_within_the_limit_and_hold_everything_in_order(entries: list[BatchEntry], limit: int) -> None:
    parts = [entries[part] for part in split_by_size(entries, limit)]
    assert [entry for part in parts for entry in part] == entries
    for part in parts:
        assert part
        assert len(part) == 1 or sum(map(entry_size, part)) <= limit


def test_a_part_has_no_more_messages_than_an_answer_can_name() -> None:
    parts = list(split_by_size([(0, b"x", b"")] * (MAX_BATCH + 1), 1 << 30))
    assert parts == [slice(0, MAX_BATCH), slice(MAX_BATCH, MAX_BATCH + 1)]


@given(ENTRIES)
def test_a_batch_is_read_back_as_it_was_and_has_the_size_that_was_counted(entries: list[BatchEntry]) -> None:
    parcel = join("t", entries, [], 0)
    assert len(parcel.body) == sum(map(entry_size, entries))
    found = [(one.user_flag, one.body, one.properties) for one in split_batch(Draft(b"t", 0, parcel.body), 10_000)]
    assert found == entries


# --- frames ----------------------------------------------------------------------------------------------------------


@given(
    topic=st.text("abc%d\"\\é_", min_size=1),
    group=st.text("abc%b\"\\é_", min_size=1),
    properties=st.text(st.characters(exclude_categories=["Cs"])),
    numbers=st.tuples(st.integers(0, 0xFFF), st.integers(0, 2**62), st.integers(-(2**31), 2**31 - 1)),
    correlation_id=st.integers(0, 2**31 - 1),
    queue_id=st.integers(0, 99),
    body=st.binary(max_size=50),
    batch=st.booleans(),
    one_way=st.booleans(),
)  # fmt: skip
def test_a_frame_from_the_pattern_says_what_the_ordinary_request_says(
    topic: str, group: str, properties: str, numbers: tuple[int, int, int], correlation_id: int, queue_id: int,
    body: bytes, batch: bool, one_way: bool,
) -> None:  # fmt: skip
    flags, born_ms, user_flag = numbers
    parcel = Parcel(topic, body, properties, (), born_ms, flags, user_flag, batch=batch)
    frames = SendFrames(group, 4)
    for _ in range(2):  # with a new pattern, and with one that is there
        frame = memoryview(frames.frame(parcel, queue_id, correlation_id, one_way=one_way))
        assert frame_end(frame, 0) == len(frame)
        command = decode_frame(frame, 0, len(frame))
        assert command.correlation_id == correlation_id
        assert command.flags == (FLAG_ONE_WAY if one_way else 0)
        assert command.code == (RequestCode.SEND_BATCH_MESSAGE if batch else RequestCode.SEND_MESSAGE_V2)
        request = decode_request(command)
        assert isinstance(request, SendMessage)
        request.command = None
        assert request == frames.request(parcel, queue_id)


def test_what_a_producer_packs_has_its_id_and_is_compressed_from_the_limit_on() -> None:
    packing = Packing(1 << 20, 100, "zlib")
    small = packing.pack(Message("t", b"x" * 99), "ID", 5)
    assert (small.body, small.storage_flags, small.properties) == (b"x" * 99, 0, "UNIQ_KEY\x01ID\x02WAIT\x01true\x02")
    large = packing.pack(Message("t", b"x" * 100), "ID", 5)
    assert (len(large.body) < 50, large.storage_flags) == (True, 0x301)
    assert not packing.pack(Message("t", bytes(range(256))[:120]), "ID", 5).storage_flags, "it got no smaller"
