"""A real broker on a store whose queues were damaged while it was down: consumers get everything, in order."""

from __future__ import annotations

from pathlib import Path

import pytest

import pyromq.testing
from pyromq.records import record
from pyromq.testing.brokers.asking import ask
from pyromq.wire.codes import ResponseCode
from pyromq.wire.requests.client import PullMessage
from testing.simple_client import send

MESSAGES = 150
#: Pulls before a reader counts as stuck.
ATTEMPTS = 20_000


def read_all(mq: pyromq.testing.BrokerProcess) -> list[bytes]:
    """As a consumer does it: an answer that is no messages and no new offset is asked for again."""
    found: list[bytes] = []
    offset = 0
    for _ in range(ATTEMPTS):
        if offset >= MESSAGES:
            break
        request = PullMessage(
            group="readers", topic="orders", queue_id=0, offset=offset, max_messages=32, flags=4, suspend_ms=0,
            subscription="*", expression_type="TAG",
        )  # fmt: skip
        answer = ask(mq.broker_address, request)
        assert answer.code in (ResponseCode.SUCCESS, ResponseCode.SERVICE_NOT_AVAILABLE), answer.reason
        if answer.code == ResponseCode.SUCCESS:
            body, at = memoryview(answer.body), 0
            while at < len(body):
                message = record.decode(body, at)
                found.append(bytes(message.body))
                at += message.size
            offset = int(answer.fields["nextBeginOffset"])
    return found


def damage(files: list[Path], kind: str) -> None:
    if kind == "first file removed":
        files[0].unlink()
    elif kind == "two files swapped":
        first, second = files[0].read_bytes(), files[1].read_bytes()
        files[0].write_bytes(second)
        files[1].write_bytes(first)
    else:
        data = bytearray(files[1].read_bytes())
        data[207] ^= 16
        files[1].write_bytes(data)


@pytest.mark.parametrize("kind", ["first file removed", "two files swapped", "one bit flipped"])
def test_a_consumer_gets_every_message(tmp_path: Path, kind: str) -> None:
    options = {"store.queue_file_entries": 40}
    with pyromq.testing.broker(process=True, topics=["orders"], data_dir=tmp_path, config=options) as mq:
        for number in range(MESSAGES):
            send(mq, "orders", b"%d" % number)
        mq.stop()
        queue = next(path for path in tmp_path.rglob("consumequeue/orders/0"))
        damage(sorted(queue.iterdir()), kind)
        mq.start()
        assert read_all(mq) == [b"%d" % number for number in range(MESSAGES)]
