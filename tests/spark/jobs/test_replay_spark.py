"""The whole way with a real broker: topics into the lake, and from the lake into topics."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import pytest

from pyromq.errors import ConfigError, LakeError
from pyromq.spark.jobs.archive.job import ArchivePlan, archive
from pyromq.spark.jobs.replay.job import ReplayPlan, replay
from pyromq.spark.lake.opening import read_lake
from pyromq.testing import BrokerProcess
from spark.support.filling import fill_evenly

pytestmark = pytest.mark.spark

QUEUES, EACH = 3, 40
_names = itertools.count()


@pytest.fixture(scope="module")
def lake(spark: Any, mq: BrokerProcess, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An archive of one topic with three queues, and of one that is empty."""
    path = tmp_path_factory.mktemp("lake")
    mq.create_topic("replay-source", QUEUES)
    mq.create_topic("replay-empty", 1)
    fill_evenly(mq.name_servers, "replay-source", QUEUES, EACH)
    topics = ("replay-source", "replay-empty")
    report = archive(spark, ArchivePlan(namesrv=mq.name_servers, topics=topics, path=str(path)))
    assert report.rows == QUEUES * EACH
    return path


def a_target(mq: BrokerProcess, queues: int = QUEUES) -> str:
    name = f"replay-target-{next(_names)}"
    mq.create_topic(name, queues)
    return name


def a_plan(mq: BrokerProcess, lake: Path, **more: Any) -> ReplayPlan:
    return ReplayPlan(**{"path": str(lake), "namesrv": mq.name_servers, **more})


def arrived(spark: Any, mq: BrokerProcess, topic: str) -> list[Any]:
    rows = spark.read.format("pyromq").option("namesrv", mq.name_servers).option("subscribe", topic).load()
    return rows.orderBy("queue_id", "queue_offset").collect()


def numbers(rows: list[Any]) -> list[int]:
    return [int(bytes(row.body)) for row in rows]


def test_all_of_it_comes_back_byte_by_byte_and_in_order(spark: Any, mq: BrokerProcess, lake: Path) -> None:
    topic = a_target(mq)
    report = replay(spark, a_plan(mq, lake, topic=topic))
    assert report.sent == {topic: QUEUES * EACH}
    rows = arrived(spark, mq, topic)
    for queue in range(QUEUES):
        here = [row for row in rows if row.queue_id == queue]
        assert numbers(here) == list(range(queue, QUEUES * EACH, QUEUES)), "the order of the queue"
    one = next(row for row in rows if row.keys == "7")
    first = read_lake(spark, str(lake)).where("keys = '7'").collect()[0]
    assert one.tags == first.tags == "b"
    assert one.properties["number"] == "7"
    assert one.properties["REPLAYED_FROM"] == f"replay-source@{first.broker}@1:2"
    assert one.properties["REPLAYED_ID"] == first.properties["UNIQ_KEY"] != one.properties["UNIQ_KEY"]


def test_a_filter_chooses_and_fewer_queues_keep_the_order(spark: Any, mq: BrokerProcess, lake: Path) -> None:
    topic = a_target(mq, queues=2)
    report = replay(spark, a_plan(mq, lake, topic=topic, where="tags = 'a' AND properties['number'] < '5'"))
    rows = arrived(spark, mq, topic)
    wanted = [number for number in range(QUEUES * EACH) if number % 3 == 0 and str(number) < "5"]
    assert sorted(numbers(rows)) == wanted
    assert report.messages == len(wanted)
    offsets = [int(row.properties["REPLAYED_FROM"].rpartition(":")[2]) for row in rows]
    assert offsets == sorted(offsets)


def test_a_range_of_time_chooses(spark: Any, mq: BrokerProcess, lake: Path) -> None:
    stored = sorted(row.store_ts for row in read_lake(spark, str(lake)).collect())
    middle = stored[len(stored) // 2]
    late = sum(moment >= middle for moment in stored)
    first, second = a_target(mq), a_target(mq)
    text = str(int(middle.timestamp() * 1000))
    assert replay(spark, a_plan(mq, lake, topic=first, since=text)).messages == late
    assert replay(spark, a_plan(mq, lake, topic=second, until=text)).messages == len(stored) - late
    assert sorted(numbers(arrived(spark, mq, first) + arrived(spark, mq, second))) == list(range(QUEUES * EACH))


def test_a_rate_is_not_exceeded(spark: Any, mq: BrokerProcess, lake: Path) -> None:
    topic = a_target(mq)
    replay(spark, a_plan(mq, lake, topic=topic, rate=30.0))
    times = sorted(row.store_ts.timestamp() for row in arrived(spark, mq, topic))
    assert len(times) == QUEUES * EACH
    # Two tasks with 15 a second each; one of them has two queues, 80 messages, so 5.3 s. Nothing is held back and sent
    # in one go, and neither is a lower rate.
    assert times[-1] - times[0] >= 3.5
    assert times[60] - times[0] >= 0.7


def test_topics_keep_their_names_behind_a_prefix(spark: Any, mq: BrokerProcess, lake: Path) -> None:
    mq.create_topic("again-replay-source", QUEUES)
    report = replay(spark, a_plan(mq, lake, prefix="again-", order="none"))
    assert report.sent == {"again-replay-source": QUEUES * EACH}
    assert sorted(numbers(arrived(spark, mq, "again-replay-source"))) == list(range(QUEUES * EACH))


def test_nothing_chosen_is_nothing_sent(spark: Any, mq: BrokerProcess, lake: Path) -> None:
    assert replay(spark, a_plan(mq, lake, topic=a_target(mq), topics=("elsewhere",))).messages == 0


def test_what_cannot_be_understood_is_told(spark: Any, mq: BrokerProcess, lake: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be understood"):
        replay(spark, a_plan(mq, lake, topic="t", where="tags ="))
    with pytest.raises(ConfigError, match="cannot be understood"):
        replay(spark, a_plan(mq, lake, topic="t", where="colour = 'red'"))
    with pytest.raises(LakeError, match="nothing was committed"):
        replay(spark, a_plan(mq, tmp_path, topic="t"))


def test_a_lake_without_bodies_cannot_be_replayed(spark: Any, mq: BrokerProcess, tmp_path: Path) -> None:
    plan = ArchivePlan(namesrv=mq.name_servers, topics=("replay-source",), path=str(tmp_path), columns=("tags",))
    archive(spark, plan)
    with pytest.raises(ConfigError, match="no bodies"):
        replay(spark, a_plan(mq, tmp_path, topic="t"))


def test_idempotent_replay_twice_stores_once(spark: Any, mq: BrokerProcess, lake: Path) -> None:
    topic = a_target(mq)
    plan = a_plan(mq, lake, topic=topic, mode="idempotent", sink_options={"writerId": "replay-test"})
    for _ in range(2):
        replay(spark, plan)
    assert sorted(numbers(arrived(spark, mq, topic))) == list(range(QUEUES * EACH))


# --- archives of what a broker has -----------------------------------------------------------------------------------


def test_an_archive_of_a_topic_grows_with_it(spark: Any, mq: BrokerProcess, tmp_path: Path) -> None:
    mq.create_topic("archive-grows", 2)
    fill_evenly(mq.name_servers, "archive-grows", 2, 30)
    plan = ArchivePlan(
        namesrv=mq.name_servers, pattern="archive-gr.*", path=str(tmp_path), max_offsets_per_commit=25, compact=False
    )
    assert archive(spark, plan).commits == 3
    fill_evenly(mq.name_servers, "archive-grows", 2, 10)
    report = archive(spark, plan)
    assert (report.commits, report.rows) == (1, 20)
    rows = read_lake(spark, str(tmp_path)).collect()
    assert sorted((row.queue_id, row.queue_offset) for row in rows) == [(q, at) for q in (0, 1) for at in range(40)]


def test_a_filter_of_the_broker_leaves_holes_and_is_no_error(spark: Any, mq: BrokerProcess, tmp_path: Path) -> None:
    plan = ArchivePlan(namesrv=mq.name_servers, topics=("replay-source",), tags="a", path=str(tmp_path))
    mq_report = archive(spark, plan)
    assert mq_report.rows == EACH
    assert archive(spark, plan).rows == 0, "what was left out is not asked for again"


def test_files_of_a_store_are_archived_as_well(spark: Any, mq: BrokerProcess, lake: Path, tmp_path: Path) -> None:
    store = mq.data_dir
    place = store if (store / "commitlog").exists() else next(store.rglob("commitlog")).parent
    broker = read_lake(spark, str(lake)).first().broker
    plan = ArchivePlan(segments=str(place), topics=("replay-source",), broker=broker, path=str(tmp_path))
    report = archive(spark, plan)
    assert report.rows == QUEUES * EACH
    assert archive(spark, plan).rows == 0
    columns = ["queue_id", "queue_offset", "body", "tags", "keys", "msg_id"]
    both = [read_lake(spark, str(path)).select(columns) for path in (lake, tmp_path)]
    assert both[0].exceptAll(both[1]).count() == both[1].exceptAll(both[0]).count() == 0


def test_a_condition_that_fails_at_a_row_is_told_before_anything_is_sent(
    spark: Any, mq: BrokerProcess, lake: Path
) -> None:
    topic = a_target(mq)
    with pytest.raises(ConfigError, match=r"cannot be understood: .*DIVIDE_BY_ZERO"):
        replay(spark, a_plan(mq, lake, topic=topic, where="queue_offset / (queue_id - queue_id) = 1"))
    assert arrived(spark, mq, topic) == []


def test_into_the_topic_that_it_came_from_with_a_warning(
    spark: Any, mq: BrokerProcess, lake: Path, caplog: pytest.LogCaptureFixture
) -> None:
    assert replay(spark, a_plan(mq, lake, where="keys = '7'")).sent == {"replay-source": 1}
    assert "what was archived from replay-source goes into it again" in caplog.text
