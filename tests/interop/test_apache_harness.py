"""The harness against Apache itself: what it sends, it can read back over a stop and a kill.

These say nothing about our own code, and `make test` leaves them out. They are here so that when an interop test fails,
the harness can be ruled out.
"""

from __future__ import annotations

import base64
from pathlib import Path

import pytest

from interop.support.apache import ApacheCluster, Dump, Line, Referee, message

pytestmark = [pytest.mark.interop, pytest.mark.slow]

TOPIC = "Harness"
QUEUES = 4
COUNT = 200
#: One plain, one outside ASCII, one outside the basic plane (two chars in Java, four bytes in UTF-8).
TAGS = ["plain", "größe", "🚀"]
SMALL_FILES = {
    "mappedFileSizeCommitLog": str(1 << 20),
    "mappedFileSizeConsumeQueue": str(1000 * 20),
    "maxHashSlotNum": "1000",
    "maxIndexNum": "4000",
}


def key_of(number: int) -> str:
    return f"order-{number}🔑"


def wanted(number: int) -> Line:
    return message(
        TOPIC,
        number % QUEUES,
        f"body {number} ☕".encode(),
        tags=TAGS[number % len(TAGS)],
        # Every tenth shares a second key, so that a query has several hits.
        keys=key_of(number) + (" tenth" if number % 10 == 0 else ""),
        properties={"number": str(number)},
    )


def number_of(stored: Line) -> int:
    return int(stored["properties"]["number"])


def check_contents(dump: Dump) -> None:
    assert dump.min_offsets == dict.fromkeys(range(QUEUES), 0)
    assert dump.max_offsets == dict.fromkeys(range(QUEUES), COUNT // QUEUES)
    assert sorted(map(number_of, dump.messages)) == list(range(COUNT))
    for stored in dump.messages:
        asked = wanted(number_of(stored))
        for field in ("topic", "queueId", "tags", "keys", "bodyBase64"):
            assert stored[field] == asked[field]


def check_queries(referee: Referee, dump: Dump, sent: list[Line]) -> None:
    tenths = [stored for stored in dump.messages if number_of(stored) % 10 == 0]
    hits = referee.by_key(TOPIC, "tenth")
    assert sorted(hit["position"] for hit in hits) == sorted(one["position"] for one in tenths)
    [hit] = referee.by_key(TOPIC, key_of(7))
    assert number_of(hit) == 7
    assert referee.by_key(TOPIC, "no such key") == []

    [unique] = referee.by_unique_key(TOPIC, sent[42]["msgId"])
    assert number_of(unique) == 42
    found = referee.by_id(TOPIC, sent[42]["offsetMsgId"])
    assert base64.b64decode(found["bodyBase64"]) == "body 42 ☕".encode()
    assert found["position"] == unique["position"]

    assert referee.by_time(TOPIC, 0, 0) == 0
    first = dump.messages[0]
    assert referee.by_time(TOPIC, 0, first["storeTimestamp"]) == first["queueOffset"] == 0


def check_batch(referee: Referee) -> None:
    """A batch, to a topic that sending makes."""
    bodies = [b"one", b"two", b"three"]
    sent = referee.send_batch(message("Made", 1, body, tags="t") for body in bodies)
    assert (sent["queueId"], sent["queueOffset"]) == (1, 0)
    referee.settle("Made", len(bodies))
    dump = referee.dump("Made")
    assert [base64.b64decode(one["bodyBase64"]) for one in dump.messages] == bodies
    assert [one["queueOffset"] for one in dump.messages] == [0, 1, 2]
    assert ",".join(one["offsetMsgId"] for one in dump.messages) == sent["offsetMsgId"]


def test_messages_outlive_a_stop_and_a_kill(tmp_path: Path) -> None:
    # One story and not several tests: each start and each clean stop costs seconds.
    store = tmp_path / "store"
    cluster = ApacheCluster(store, broker_conf=SMALL_FILES)

    with cluster:
        with cluster.referee() as referee:
            referee.create_topic(TOPIC, QUEUES)
            sent = referee.send(wanted(number) for number in range(COUNT))
            referee.settle(TOPIC, COUNT)
            before = referee.dump(TOPIC)
            check_contents(before)
            check_queries(referee, before, sent)
            check_batch(referee)
        assert (store / "abort").exists()
    for name in ("commitlog", "consumequeue", "index", "checkpoint", "config/topics.json"):
        assert (store / name).exists(), name
    assert not (store / "abort").exists()
    assert {file.stat().st_size for file in (store / "commitlog").iterdir()} == {1 << 20}

    with cluster:
        with cluster.referee() as referee:
            assert referee.dump(TOPIC) == before
        cluster.kill()
    assert (store / "abort").exists()

    with cluster:
        with cluster.referee() as referee:
            assert referee.dump(TOPIC) == before
            check_queries(referee, before, sent)
        cluster.kill()  # a clean stop was shown above
