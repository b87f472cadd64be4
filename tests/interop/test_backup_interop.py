"""A restored backup is a store for Apache RocketMQ too: its broker starts on it and serves every message.

A backup of a store that Apache wrote is one like any other, whether of its directory or over the stream of its master,
and Apache takes the queues that a rebuild made. Every start of a broker takes seconds, so a test is a story.
"""

from __future__ import annotations

import asyncio
import shutil
from pathlib import Path

import pytest

from interop.support import ours
from interop.support.apache import ApacheCluster, message
from interop.support.ours import PLAIN, QUEUES
from interop.support.pairs import MASTER, written
from interop.support.python_client import tell
from interop.test_replication_pairs import master_is_known
from interop.test_store_interop import check_queries, check_served, cluster_over, messages_in
from pyromq import Admin, Message, Producer
from pyromq.backup.broker_state import RunningBroker
from pyromq.backup.checking import check
from pyromq.backup.live import LiveBackup
from pyromq.backup.making import back_up
from pyromq.backup.planning import Until
from pyromq.backup.restoring import restore
from pyromq.backup.target import LocalTarget
from pyromq.errors import SendError
from pyromq.records import layout
from pyromq.spark.jobs.rebuild import job as rebuild_job
from pyromq.spark.jobs.rebuild.job import RebuildPlan, rebuild
from pyromq.store.offline.readable_log import readable_log
from spark.support.here import FakeSpark, stay_here

pytestmark = pytest.mark.interop

COUNT = 2000


def test_apache_serves_a_store_that_was_restored_from_our_backup(tmp_path: Path) -> None:
    root, target = tmp_path / "store", LocalTarget(tmp_path / "backup")
    ours.write(root, range(COUNT // 2))
    back_up(root, target)
    ours.write(root, range(COUNT // 2, COUNT))
    report = back_up(root, target)
    assert check(target).ok

    restored = tmp_path / "restored"
    restore(target, restored)
    found = messages_in(restored)
    assert len(found) == report.manifest.records
    with cluster_over(restored) as cluster:
        with cluster.referee() as referee:
            served = [one for one in found if one.topic not in (ours.SCHEDULE, ours.DELAYED, ours.DELAYED_V2)]
            check_served(referee, served)
            check_queries(referee, served)
        cluster.kill()


def test_apache_serves_a_store_that_was_restored_up_to_a_moment(tmp_path: Path) -> None:
    """From the middle of the log: retention has removed its beginning, and its end is given up."""
    root, target = tmp_path / "store", LocalTarget(tmp_path / "backup")
    ours.write(root, range(COUNT))
    made = back_up(root, target).manifest
    moment = made.chunks[-2].first_ms + 1000
    restored = tmp_path / "restored"
    report = restore(target, restored, until=Until(time_ms=moment))
    found = messages_in(restored)
    assert 0 < len(found) == report.records < made.records
    assert max(one.store_timestamp_ms for one in found) <= moment
    with cluster_over(restored) as cluster:
        with cluster.referee() as referee:
            check_served(referee, [one for one in found if one.topic == PLAIN])
            sent = referee.send([message(PLAIN, queue, b"after the restore") for queue in range(QUEUES)])
            counted = [one for one in found if one.topic == PLAIN and layout.has_queue_offset(one.storage_flags)]
            assert sum(one["queueOffset"] for one in sent) == len(counted)
        cluster.kill()


def test_a_store_that_apache_wrote_is_backed_up_while_it_runs_and_served_by_us(tmp_path: Path) -> None:
    root, target = tmp_path / "store", LocalTarget(tmp_path / "backup")
    with cluster_over(root) as cluster, cluster.referee() as referee:
        referee.create_topic(PLAIN, QUEUES)
        referee.send([message(PLAIN, n % QUEUES, b"%d" % n, tags="a", keys=f"k{n}") for n in range(200)])
        referee.settle(PLAIN, 200)
        live = back_up(root, target)
        assert live.live
    end = readable_log(root).end
    assert live.manifest.end <= end
    report = back_up(root, target)
    assert report.manifest.end == end
    restored = tmp_path / "restored"
    restore(target, restored)
    assert [one.body for one in messages_in(restored) if one.topic == PLAIN] == [b"%d" % n for n in range(200)]


def test_apache_serves_queues_and_keys_that_a_rebuild_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Cleanly stopped, so that Apache trusts the files and rebuilds nothing."""
    stay_here(monkeypatch, rebuild_job)
    root = tmp_path / "store"
    ours.write(root, range(COUNT))
    found, before = messages_in(root), ours.queue_files(root)
    shutil.rmtree(root / "consumequeue")
    shutil.rmtree(root / "index")
    sizes = {"queue_file_entries": 100, "index_slots": ours.INDEX_SLOTS, "index_entries": ours.INDEX_ENTRIES}
    rebuild(FakeSpark(), RebuildPlan(str(root), **sizes))  # type: ignore[arg-type]
    assert ours.queue_files(root) == before
    assert not (root / "abort").exists()
    with cluster_over(root) as cluster:
        with cluster.referee() as referee:
            served = [one for one in found if one.topic not in (ours.SCHEDULE, ours.DELAYED, ours.DELAYED_V2)]
            check_served(referee, served)
            check_queries(referee, served)
        cluster.kill()


def test_apaches_master_is_backed_up_over_its_stream_and_never_takes_that_for_a_slave(tmp_path: Path) -> None:
    """A sync master without slaves acknowledges nothing, with or without a backup that has all of it."""
    target, bodies = LocalTarget(tmp_path / "backup"), [f"order-{number} " + "x" * 1000 for number in range(1003)]
    apache = ApacheCluster(tmp_path / "store", broker_conf={**MASTER, **ours.SAME_FILES})

    async def not_acknowledged(producer: Producer, some: list[str]) -> None:
        for body in some:
            with pytest.raises(SendError):
                await producer.send(Message(PLAIN, body.encode()))

    async def story() -> None:
        async with Admin(apache.namesrv_address) as admin:
            await master_is_known(admin)
            await admin.topics.create(PLAIN, queues=QUEUES)
            await admin.brokers.change(apache.broker_address, {"inSyncReplicas": "1", "minInSyncReplicas": "1"})
            async with Producer(apache.namesrv_address, group="producers") as producer:
                for body in bodies[:1000]:
                    await producer.send(Message(PLAIN, body.encode()))
            await admin.brokers.change(apache.broker_address, {"inSyncReplicas": "2"})
            broker = RunningBroker(admin.session.ask, apache.broker_address)
            first = await LiveBackup(broker, target, chunk_bytes=50_000).run()
            assert first.manifest.start == 0
            assert first.manifest.records >= 1000
            backup = LiveBackup(broker, target)
            following = asyncio.get_running_loop().create_task(backup.follow(1.0))
            while backup.report is None:  # noqa: ASYNC110  it has no event
                await asyncio.sleep(0.05)
            async with Producer(apache.namesrv_address, group="producers", attempts=1) as producer:
                await not_acknowledged(producer, bodies[1000:1003])
            assert not following.done(), following.exception()
            following.cancel()
            await asyncio.gather(following, return_exceptions=True)

    with apache:
        tell(story, patience_s=120.0)
    report = back_up(apache.store_root, target)
    assert check(target).ok
    restored = tmp_path / "restored"
    restore(target, restored)
    assert written(restored) == written(apache.store_root)
    found = [one for one in messages_in(restored) if one.topic == PLAIN]
    assert [one.body.decode() for one in found][:1000] == bodies[:1000]
    assert report.manifest.segment_bytes < report.manifest.end, "it crosses the end of a file"
    with cluster_over(restored) as cluster:
        with cluster.referee() as referee:
            check_served(referee, found)
        cluster.kill()
