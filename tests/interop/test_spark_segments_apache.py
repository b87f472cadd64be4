"""`pyromq-segments` on stores that Apache RocketMQ has written: in use, at rest, and one of ours that it took over.

No Spark: what executors do is called here. Every start of a broker takes seconds, so a test is a story.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import pytest

from interop.support import ours
from interop.support.apache import Referee, message
from interop.support.ours import BATCHED, PLAIN, QUEUES
from interop.test_store_interop import cluster_over, messages_in
from late import before
from pyromq.spark.decode.columns import NAMES
from pyromq.spark.segments.data_source import plan
from pyromq.spark.segments.options import SegmentsOptions
from pyromq.spark.segments.read import PieceReader
from pyromq.store.offline.readable_log import readable_log

pytestmark = pytest.mark.interop

COUNT = 400
#: It notes how far its log is durable this often, where a minute is usual.
SOON = {"flushConsumeQueueThoroughInterval": "500"}
NOTED_WITHIN_S = 60


def rows(root: Path, **options: object) -> list[dict[str, object]]:
    chosen = SegmentsOptions(places=(str(root),), verify_crc=True, **options)  # type: ignore[arg-type]
    reader = PieceReader(chosen, NAMES)
    return [
        row for group in plan(chosen) for piece in group for batch in reader.read(piece) for row in batch.to_pylist()
    ]


def send_until(referee: Referee, happened: Callable[[], bool]) -> None:
    """Send until it happened: Apache trusts only records that are seconds older than its last durable one.

    The time is in a file, which sends no event when it changes.
    """
    deadline = time.monotonic() + NOTED_WITHIN_S
    while not happened():
        before(deadline, "Apache did not note what is durable")
        referee.send([message(BATCHED, 0, b"tick")])
        time.sleep(0.2)


def test_a_store_that_apache_writes_and_has_written(tmp_path: Path) -> None:
    root = tmp_path / "store"
    with cluster_over(root, SOON) as cluster, cluster.referee() as referee:
        for topic in (PLAIN, BATCHED):
            referee.create_topic(topic, QUEUES)
        bodies = [b"%d" % n * (n % 50 + 1) for n in range(COUNT)]
        referee.send([message(PLAIN, n % QUEUES, body, tags="a", keys=f"k{n}") for n, body in enumerate(bodies)])
        referee.send_batch([message(BATCHED, 0, b"together %d" % n) for n in range(20)])
        referee.settle(PLAIN, COUNT)
        send_until(referee, lambda: readable_log(root).end > 0)
        live = [row["body"] for row in rows(root, topics=frozenset({PLAIN}))]
        assert live == bodies[: len(live)], "only what is durable, and that in order"
    found = {one.position: one for one in messages_in(root) if one.topic in (PLAIN, BATCHED)}
    for split_bytes in (None, 4096):
        read = rows(root, topics=frozenset({PLAIN, BATCHED}), split_bytes=split_bytes)
        assert [row["commit_log_offset"] for row in read] == sorted(found)
        for row in read:
            one = found[row["commit_log_offset"]]  # type: ignore[index]
            assert (row["topic"], row["queue_id"], row["queue_offset"]) == (one.topic, one.queue_id, one.queue_offset)
            assert (row["body"], row["keys"], row["msg_id"]) == (one.body, " ".join(one.keys) or None, one.unique_key)
    assert [row["body"] for row in read if row["topic"] == PLAIN] == bodies


def test_a_store_of_ours_that_apache_took_over_is_read_beyond_our_own_note(tmp_path: Path) -> None:
    root = tmp_path / "store"
    ours.write(root, range(COUNT))
    before = readable_log(root).end
    with cluster_over(root, SOON) as cluster, cluster.referee() as referee:
        assert readable_log(root).live
        assert readable_log(root).end >= before
        referee.send([message(PLAIN, n % QUEUES, b"apache %d" % n) for n in range(100)])
        # Internal records of Apache's broker move the end as well.
        send_until(referee, lambda: any(row["body"] == b"apache 0" for row in rows(root, topics=frozenset({PLAIN}))))
        assert readable_log(root).end > before
    bodies = [row["body"] for row in rows(root, topics=frozenset({PLAIN}))]
    assert bodies[-100:] == [b"apache %d" % n for n in range(100)]
