"""Progress in a file of one's own, and the small wire bodies that consumers write."""

from __future__ import annotations

import asyncio
import json
from functools import partial
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyromq.client.group.progress import FileProgress
from pyromq.client.group.starting_point import ConsumeFrom, checked, name_of
from pyromq.errors import CorruptFile
from pyromq.model.queue import MessageQueue
from pyromq.wire.bodies.heartbeat import (
    ConsumerData,
    HeartbeatData,
    SubscriptionData,
    decode_heartbeat,
    encode_heartbeat,
)
from pyromq.wire.bodies.locks import MessageQueue as WireQueue
from pyromq.wire.bodies.locks import decode_lock_request, decode_locked, encode_lock_request, encode_locked
from pyromq.wire.bodies.offsets import decode_client_status, encode_client_status

A, B = MessageQueue("orders", "broker-a", 0), MessageQueue("orders", "broker-b", 11)


def test_what_was_written_is_there_for_the_next_one(tmp_path: Path) -> None:
    async def story() -> None:
        progress = FileProgress(tmp_path, "mailer")
        assert await progress.read(A) is None
        assert await progress.write({A: lambda: 5, B: lambda: 7}) == {A: 5, B: 7}
        assert await progress.write({A: lambda: 6}) == {A: 6}
        again = FileProgress(tmp_path, "mailer")
        assert [await again.read(queue) for queue in (A, B)] == [6, 7]
        assert await FileProgress(tmp_path, "others").read(A) is None

    asyncio.run(story())


def test_a_damaged_file_is_read_from_its_copy_and_never_taken_for_nothing(tmp_path: Path) -> None:
    async def story() -> None:
        progress = FileProgress(tmp_path, "mailer")
        for offset in (5, 6):
            await progress.write({A: partial(int, offset)})
        (tmp_path / "mailer.json").write_bytes(b"{")
        assert await FileProgress(tmp_path, "mailer").read(A) == 5
        (tmp_path / "mailer.json.bak").write_text(json.dumps({"offsets": {"orders": {"broker-a": {"x": 1}}}}))
        with pytest.raises(CorruptFile):
            await FileProgress(tmp_path, "mailer").read(A)

    asyncio.run(story())


def test_a_disk_that_does_not_take_it_is_tried_again_later(tmp_path: Path) -> None:
    async def story() -> None:
        in_the_way = tmp_path / "offsets"
        in_the_way.write_text("a file where the directory should be")
        progress = FileProgress(in_the_way, "mailer")
        assert await progress.write({A: lambda: 5}) == {}
        in_the_way.unlink()
        assert await progress.write({A: lambda: 5}) == {A: 5}

    asyncio.run(story())


def test_where_to_begin_has_a_name_on_the_wire() -> None:
    names = [name_of(checked(start)) for start in (ConsumeFrom.LAST, ConsumeFrom.FIRST, 5.0)]
    assert names == ["CONSUME_FROM_LAST_OFFSET", "CONSUME_FROM_FIRST_OFFSET", "CONSUME_FROM_TIMESTAMP"]


# --- wire ------------------------------------------------------------------------------------------------------------


def test_a_heartbeat_says_what_a_java_consumer_says() -> None:
    subscriptions = (SubscriptionData("orders", "a || b", "TAG", 5), SubscriptionData("users", "x > 5", "SQL92", 6))
    body = encode_heartbeat(HeartbeatData("me", ("p",), (ConsumerData("mailer", subscriptions=subscriptions),)))
    assert json.loads(body) == {
        "clientID": "me",
        "consumerDataSet": [
            {
                "consumeFromWhere": "CONSUME_FROM_LAST_OFFSET",
                "consumeType": "CONSUME_PASSIVELY",
                "groupName": "mailer",
                "messageModel": "CLUSTERING",
                "subscriptionDataSet": [
                    {
                        "classFilterMode": False, "codeSet": [97, 98], "expressionType": "TAG", "subString": "a || b",
                        "subVersion": 5, "tagsSet": ["a", "b"], "topic": "orders",
                    },
                    {
                        "classFilterMode": False, "codeSet": [], "expressionType": "SQL92", "subString": "x > 5",
                        "subVersion": 6, "tagsSet": [], "topic": "users",
                    },
                ],
                "unitMode": False,
            }
        ],
        "heartbeatFingerprint": 0,
        "producerDataSet": [{"groupName": "p"}],
        "withoutSub": False,
    }  # fmt: skip
    decoded = decode_heartbeat(body)
    assert (decoded.client_id, decoded.producer_groups, decoded.consumers[0].group) == ("me", ("p",), "mailer")


queues = st.builds(MessageQueue, st.text(max_size=5), st.text(max_size=5), st.integers(0, 2**31 - 1))


@given(wanted=st.sets(queues, max_size=5))
def test_locks_travel_both_ways(wanted: set[MessageQueue]) -> None:
    request = decode_lock_request(encode_lock_request("mailer", "me", wanted))
    assert (request.group, request.client_id) == ("mailer", "me")
    assert decode_locked(encode_locked(request.queues)) == wanted


def test_a_client_tells_its_status_as_brokers_read_it() -> None:
    status = decode_client_status(encode_client_status([(WireQueue(*A), 5)]))
    assert status.pairs == (({"brokerName": "broker-a", "queueId": 0, "topic": "orders"}, 5),)
