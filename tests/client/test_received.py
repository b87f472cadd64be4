"""Messages as they come from a broker: decoded field by field, on first access."""

from __future__ import annotations

import copy
import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyromq.client.received import ReceivedMessage, split_records
from pyromq.errors import IllegalMessage, UnreadableBody
from pyromq.model.message import Draft
from pyromq.model.queue import MessageQueue
from pyromq.net.address import pack_address
from pyromq.records.layout import FLAG_COMPRESSED
from pyromq.records.properties import encode_properties
from pyromq.records.record import encode

QUEUE = MessageQueue("orders", "broker-a", 3)
PROPERTIES = {
    "country": "IT", "TAGS": "paid", "KEYS": "o-17 c-4", "UNIQ_KEY": "ABCDEF", "WAIT": "true", "__SHARDINGKEY": "c-4",
}  # fmt: skip


def record(
    body: bytes = b"hello",
    topic: str = "orders",
    properties: dict[str, str] | None = None,
    flags: int = 0,
    reconsume_times: int = 0,
    offset: int = 7,
) -> bytes:
    draft = Draft(
        topic.encode(), 3, body, encode_properties(PROPERTIES if properties is None else properties), 9, flags,
        1_700_000_000_500, pack_address("10.0.0.7", 4711), pack_address("127.0.0.1", 10911), reconsume_times,
    )  # fmt: skip
    return encode(draft, 4096, offset, 1_700_000_001_000, with_crc=True)


def received(**fields: object) -> ReceivedMessage:
    (message,) = split_records(record(**fields), QUEUE)  # type: ignore[arg-type]
    return message


def test_everything_that_the_record_has() -> None:
    message = received()
    assert (message.topic, message.body, message.tags, message.keys) == ("orders", b"hello", "paid", ("o-17", "c-4"))
    assert message.properties == {"country": "IT"}
    assert message.all_properties["TAGS"] == "paid"
    assert (message.queue, message.queue_offset, message.position) == (QUEUE, 7, 4096)
    assert (message.message_id, message.sharding_key, message.user_flag) == ("ABCDEF", "c-4", 9)
    assert message.offset_message_id == "7F00000100002A9F" + f"{4096:016X}"
    assert (message.born_at, message.stored_at) == (1_700_000_000.5, 1_700_000_001.0)
    assert message.born_host == "10.0.0.7:4711"
    assert message.delivery_attempt == 1


def test_a_message_without_a_unique_key_is_called_by_its_place() -> None:
    message = received(properties={})
    assert message.message_id == message.offset_message_id
    assert message.keys == ()
    assert message.tags is None


@pytest.mark.parametrize("born", ["10.0.0.7", "2001:db8::7"])
@pytest.mark.parametrize("store", ["127.0.0.1", "::1"])
@pytest.mark.parametrize("body", [b"", b"x", b"y" * 100_000])
def test_a_body_is_found_wherever_it_begins(born: str, store: str, body: bytes) -> None:
    draft = Draft(
        b"orders", 3, body, b"", born_host=pack_address(born, 1), store_host=pack_address(store, 2)
    )  # fmt: skip
    before = record()
    (_, message) = split_records(before + encode(draft, 0, 1, 0, with_crc=False), QUEUE)
    assert message.body == body
    assert message.born_host == f"{f'[{born}]' if ':' in born else born}:1"


def test_a_retried_message_has_its_own_topic_again() -> None:
    message = received(topic="%RETRY%mailer", properties={"RETRY_TOPIC": "orders"}, reconsume_times=2)
    assert message.topic == "orders"
    assert message.delivery_attempt == 3
    assert message.queue == QUEUE


def test_messages_of_one_answer_come_in_order() -> None:
    data = b"".join(record(body=b"%d" % number, offset=number) for number in range(5))
    messages = split_records(data, QUEUE)
    assert [message.queue_offset for message in messages] == [0, 1, 2, 3, 4]
    assert [message.body for message in messages] == [b"0", b"1", b"2", b"3", b"4"]
    assert sum(message.size for message in messages) == len(data)


def test_a_property_whose_name_ends_like_another_is_not_taken_for_it() -> None:
    message = received(properties={"MYTAGS": "no", "TAGSX": "no", "TAGS": "yes"})
    assert message.tags == "yes"


def test_a_name_that_is_not_there_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="'ReceivedMessage' object has no attribute 'colour'"):
        received().colour  # noqa: B018


def test_it_can_be_copied_and_pickled() -> None:
    message = received()
    assert copy.copy(message).body == b"hello"
    assert pickle.loads(pickle.dumps(message)) == message


def test_a_compressed_body_that_is_none_is_said() -> None:
    message = received(flags=FLAG_COMPRESSED)
    with pytest.raises(UnreadableBody):
        message.body  # noqa: B018
    assert message.tags == "paid"


@given(cut=st.integers(0, 400), junk=st.binary(max_size=40))
def test_an_answer_that_is_no_row_of_messages_is_refused_or_read_in_bounds(cut: int, junk: bytes) -> None:
    data = (record() + record())[:cut] + junk
    try:
        for message in split_records(data, QUEUE):
            _ = message.body, message.all_properties, message.born_host
    except (IllegalMessage, UnreadableBody):
        pass
