"""Messages as programs make them, and their encoded form."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyromq import Message
from pyromq.client.message import property_text, wire_properties
from pyromq.errors import IllegalMessage
from pyromq.records.properties import decode_properties
from pyromq.records.property_names import RESERVED

ID = "7F000001000012345678000000000001"


def test_a_message_is_a_topic_and_a_body() -> None:
    message = Message("users", b"hello")
    assert (message.topic, message.body, message.tags, message.keys) == ("users", b"hello", None, ())
    assert message.properties == {}


@pytest.mark.parametrize("body", ["grüße", "grüße".encode(), bytearray("grüße".encode()), memoryview("grüße".encode())])
def test_a_body_is_bytes_whatever_it_was_made_of(body: str | bytes) -> None:
    message = Message("users", body)
    assert type(message.body) is bytes
    assert message.text == "grüße"


def test_one_key_or_several() -> None:
    assert Message("t", keys="u-17").keys == ("u-17",)
    assert Message("t", keys=["a", "b"]).keys == ("a", "b")


def test_times_may_be_given_as_python_has_them() -> None:
    at = datetime(2030, 1, 1, tzinfo=UTC)
    assert Message("t", deliver_at=at).deliver_at == at.timestamp()
    assert Message("t", deliver_after=timedelta(minutes=2)).deliver_after == 120


def test_equal_messages_are_equal() -> None:
    assert Message("t", b"x", tags="a") == Message("t", b"x", tags="a")
    assert Message("t", b"x", tags="a") != Message("t", b"x", tags="b")
    assert Message("t", b"x") != "t"


def test_its_repr_shows_what_was_set_and_not_a_megabyte() -> None:
    shown = repr(Message("users", b"x" * 1_000_000, tags="registered", keys=["u-17"]))
    assert shown == f"Message('users', {b'x' * 37 + b'...'!r}, tags='registered', keys=('u-17',))"


def test_properties_have_the_names_of_rocketmq() -> None:
    message = Message(
        "t", tags="paid", keys=["a", "b"], sharding_key="o-1", delay_level=3, properties={"country": "IT"}
    )
    assert wire_properties(message, ID, {"PGROUP": "g"}) == {
        "country": "IT", "TAGS": "paid", "KEYS": "a b", "__SHARDINGKEY": "o-1", "DELAY": "3", "UNIQ_KEY": ID,
        "WAIT": "true", "PGROUP": "g",
    }  # fmt: skip


def test_times_are_written_in_milliseconds() -> None:
    assert wire_properties(Message("t", deliver_at=1.5), ID)["TIMER_DELIVER_MS"] == "1500"
    assert wire_properties(Message("t", deliver_after=0.25), ID)["TIMER_DELAY_MS"] == "250"


@pytest.mark.parametrize(
    ("message", "sentence"),
    [
        (Message("t", properties={"TAGS": "x"}), "'TAGS' is one of RocketMQ's own"),
        (Message("t", properties={"a": ""}), "'a' has an empty name or value"),
        (Message("t", properties={"a\x01": "x"}), "contains a separator"),
        (Message("t", properties={"a": "x\x02y"}), "contains a separator"),
        (Message("t", properties={"a": 5}), "'a' is not text: 5"),  # type: ignore[dict-item]
        (Message("t", keys=["two words"]), "'two words' cannot be a key"),
        (Message("t", keys=[""]), "'' cannot be a key"),
        (Message("t", delay_level=-1), "the delay level -1 is negative"),
        (Message("t", deliver_after=-1), "deliver_after is -1 s"),
        (Message("t", delay_level=1, deliver_at=5), "one of delay_level, deliver_at and deliver_after"),
    ],
)
def test_what_cannot_be_sent_is_said(message: Message, sentence: str) -> None:
    with pytest.raises(IllegalMessage, match=sentence):
        property_text(message, ID)


_TEXT = st.text(st.characters(exclude_characters="\x01\x02", exclude_categories=("Cs",)), min_size=1, max_size=20)
_WORD = st.text(st.characters(categories=("L", "N")), min_size=1, max_size=10)


@given(
    tags=st.none() | _WORD,
    keys=st.lists(_WORD, max_size=3),
    properties=st.dictionaries(_TEXT.filter(lambda name: name not in RESERVED), _TEXT, max_size=4),
    sharding_key=st.none() | _TEXT,
)
def test_what_was_written_reads_back(
    tags: str | None, keys: list[str], properties: dict[str, str], sharding_key: str | None
) -> None:
    message = Message("t", tags=tags, keys=keys, properties=properties, sharding_key=sharding_key)
    written = decode_properties(property_text(message, ID).encode())
    assert written == wire_properties(message, ID)
    assert {name: value for name, value in written.items() if name not in RESERVED} == properties
