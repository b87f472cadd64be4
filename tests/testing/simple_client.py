"""Sends and reads with one blocking request each: what a test of the test broker needs, and no client of ours."""

from __future__ import annotations

from pyromq.records import record
from pyromq.testing.brokers.asking import ask
from pyromq.testing.brokers.local_broker import LocalBroker
from pyromq.wire.codes import ResponseCode
from pyromq.wire.requests.client import PullMessage, SendMessage


def send(mq: LocalBroker, topic: str, body: bytes, queue: int = 0) -> int:
    """The message's offset in its queue."""
    request = SendMessage(producer_group="testers", topic=topic, queue_id=queue, body=body)
    answer = ask(mq.broker_address, request)
    assert answer.code == ResponseCode.SUCCESS, answer.reason
    return int(answer.fields["queueOffset"])


def read(mq: LocalBroker, topic: str, queue: int = 0) -> list[bytes]:
    """All bodies of a queue."""
    request = PullMessage(
        group="readers", topic=topic, queue_id=queue, offset=0, max_messages=1000, flags=4, suspend_ms=0,
        subscription="*", expression_type="TAG",
    )  # fmt: skip
    body = memoryview(ask(mq.broker_address, request).body)
    found, at = [], 0
    while at < len(body):
        found.append(bytes(record.decode(body, at).body))
        at += int.from_bytes(body[at : at + 4], "big")
    return found
