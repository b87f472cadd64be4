"""Bodies that unpack to far more than was sent: one at a time, let go after the handler, refused above the limit."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from client.support.consumer_scene import eventually
from client.support.fake_broker import TOPIC, FakeBroker
from pyromq import PushConsumer, ReceivedMessage
from pyromq.client import received
from pyromq.client.consuming import large_bodies
from pyromq.client.group.starting_point import ConsumeFrom
from pyromq.client.received import split_records
from pyromq.errors import UnreadableBody
from pyromq.model.message import LOCALHOST, Draft
from pyromq.model.queue import MessageQueue
from pyromq.records import record
from pyromq.records.compression import compress
from pyromq.wire.requests.client import SendBack

KEPT = 1000
QUEUE = MessageQueue(TOPIC, "broker-a", 0)


@pytest.fixture(autouse=True)
def _small_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(received, "KEPT_BYTES", KEPT)
    monkeypatch.setattr(large_bodies, "KEPT_BYTES", KEPT)


def packed(body: bytes, offset: int, *, form: str = "zlib", damage: bool = False) -> bytes:
    smaller, flags = compress(body, form)
    draft = Draft(
        topic=TOPIC.encode(), body=smaller[:-9] if damage else smaller, queue_id=0, born_timestamp_ms=1,
        born_host=LOCALHOST, store_host=LOCALHOST, properties=b"UNIQ_KEY\x01id-%d" % offset, storage_flags=flags,
    )  # fmt: skip
    return record.encode(draft, 1000 * offset, offset, 1_700_000_000_000, with_crc=False)


def one(data: bytes) -> ReceivedMessage:
    [message] = split_records(data, QUEUE)
    return message


def is_kept(message: ReceivedMessage) -> bool:
    try:
        object.__getattribute__(message, "body")
    except AttributeError:
        return False
    return True


# --- one message -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("form", ["zlib", "lz4", "zstd"])
def test_a_large_body_is_read_and_not_kept_and_a_small_one_is(form: str) -> None:
    large, small = one(packed(b"x" * (KEPT + 1), 0, form=form)), one(packed(b"x" * KEPT, 1, form=form))
    assert (len(large.body), len(small.body)) == (KEPT + 1, KEPT)
    assert (is_kept(large), is_kept(small)) == (False, True)
    assert len(large.body) == KEPT + 1, "it can be read again"
    assert large.text == "x" * (KEPT + 1)


def test_a_large_body_that_was_sent_as_it_is_is_kept() -> None:
    draft = Draft(
        topic=TOPIC.encode(), body=b"x" * (KEPT + 1), queue_id=0, born_timestamp_ms=1, born_host=LOCALHOST,
        store_host=LOCALHOST,
    )  # fmt: skip
    message = one(record.encode(draft, 0, 0, 1, with_crc=False))
    assert message.body
    assert is_kept(message)


# --- a consumer ------------------------------------------------------------------------------------------------------


class Handling:
    """Notes how many large bodies handlers hold at once."""

    def __init__(self) -> None:
        self.large = self.most = self.small = 0
        self.sizes: list[int] = []
        self.messages: list[ReceivedMessage] = []

    async def __call__(self, given: Any) -> None:
        messages = given if isinstance(given, list) else [given]
        bodies = [message.body for message in messages]
        self.large += sum(len(body) > KEPT for body in bodies)
        self.most = max(self.most, self.large)
        for _ in range(20):
            await asyncio.sleep(0)
        self.large -= sum(len(body) > KEPT for body in bodies)
        self.sizes += [len(body) for body in bodies]
        self.messages += messages


async def consumed(bodies: list[bytes], handling: Any, *, batch: int = 0, **settings: Any) -> FakeBroker:
    broker = FakeBroker()
    broker.messages = dict(enumerate(bodies))
    broker.end = len(bodies)
    async with broker.running():
        consumer = PushConsumer(
            broker.address, group="mailer", consume_from=ConsumeFrom.FIRST, concurrency=20, hold_s=0.1, **settings
        )
        consumer.subscribe(TOPIC, handling, batch=batch)
        async with consumer:
            await eventually(lambda: len(handling.sizes) + len(broker.all_of(SendBack)) >= len(bodies))
    return broker


@pytest.mark.parametrize("batch", [0, 8])
def test_large_bodies_are_handled_one_at_a_time_and_let_go(batch: int) -> None:
    handling = Handling()
    bodies = [packed(b"x" * (KEPT + 1 if offset % 2 else 10 * 50), offset) for offset in range(24)]
    asyncio.run(consumed(bodies, handling, batch=batch))
    assert sorted(set(handling.sizes)) == [500, KEPT + 1]
    assert len(handling.sizes) == 24
    assert handling.most == 1
    assert not [message for message in handling.messages if is_kept(message) and len(message.body) > KEPT]


def test_in_order_too() -> None:
    handling = Handling()
    asyncio.run(consumed([packed(b"x" * (KEPT + 1), offset) for offset in range(3)], handling, ordered=True))
    assert handling.sizes == [KEPT + 1] * 3


@pytest.mark.parametrize("too_large", [True, False])
def test_a_body_that_cannot_be_unpacked_is_sent_back_and_the_others_go_on(
    too_large: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pyromq.records.compression.MAX_BODY_BYTES", 4 * KEPT)
    monkeypatch.setattr("pyromq.records.compression.decompress.__defaults__", (4 * KEPT,))
    handling = Handling()
    bad = packed(b"x" * (5 * KEPT), 0) if too_large else packed(bytes(range(200)) * 9, 0, damage=True)
    with pytest.raises(UnreadableBody, match="the limit" if too_large else "cannot be decompressed"):
        one(bad).body  # noqa: B018
    broker = asyncio.run(consumed([bad, packed(b"x" * (2 * KEPT), 1)], handling))
    assert handling.sizes == [2 * KEPT]
    assert [asked.position for asked in broker.all_of(SendBack)] == [0]
