"""Backups, logs and lakes in an object store, through Amazon's interface.

python -m spark.test_object_store URI DIRECTORY      runs Spark there, prints its results as JSON on the last line
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from pyromq import testing
from pyromq.backup.checking import check
from pyromq.backup.making import back_up
from pyromq.errors import BackupError, ConfigError, CorruptBackup, StoreError
from pyromq.model.queue import MessageQueue
from pyromq.spark.jobs.backup.target import target_of
from pyromq.spark.lake.opening import open_lake
from pyromq.spark.segments.store_files import find_pieces
from spark.support.filling import fill, numbered
from spark.support.object_store import BUCKET, SECRET, ObjectStore, object_store
from store.small_store import fill as fill_store
from store.small_store import make_store, open_store

pytestmark = [pytest.mark.slow, pytest.mark.spark]

SPARK_S = 400
MESSAGES = 500
LAKES = ("parquet", "delta")


@pytest.fixture(scope="module")
def store() -> Iterator[ObjectStore]:
    with object_store() as running:
        yield running


# --- without Spark ---------------------------------------------------------------------------------------------------


def test_of_two_backups_at_once_no_more_than_one_is_made(store: ObjectStore, tmp_path: Path) -> None:
    make_store(tmp_path / "store")
    target = target_of(store.uri("at-once"))
    for number in range(1, 4):
        opened = open_store(tmp_path / "store")
        fill_store(opened, 20)
        opened.close()
        made = at_once(lambda: back_up(tmp_path / "store", target), 4)
        assert len(made) <= 1
        if not made:  # all gave way
            back_up(tmp_path / "store", target)
        assert target.names("manifests") == [f"{one:08d}.json" for one in range(1, number + 1)]
        assert check(target).ok


def at_once(work: Any, count: int) -> list[Any]:
    """Run the work concurrently; return the results of the calls that were not refused."""
    start, returned, errors = threading.Barrier(count), [], []

    def run() -> None:
        start.wait()
        try:
            returned.append(work())
        except BackupError:
            pass
        except BaseException as error:  # noqa: BLE001 - raised below, in the test's thread
            errors.append(error)

    threads = [threading.Thread(target=run) for _ in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []
    return returned


def test_what_is_wrong_is_told_without_the_keys(store: ObjectStore, tmp_path: Path) -> None:
    make_store(tmp_path / "store")
    target = target_of(store.uri("damaged"))
    back_up(tmp_path / "store", target)
    [chunk] = [f"log/0001/{name}" for name in target.names("log/0001")][:1]
    target.write(chunk, [b"something else"])
    (finding,) = check(target).findings
    assert f"s3://{BUCKET}/damaged/{chunk}" in str(finding)
    target.remove(chunk)
    said = [str(finding), repr(target), target.shown(chunk)]
    for wrong in (lambda: find_pieces(store.uri("nothing")), lambda: open_lake(store.uri("lake"))):
        with pytest.raises((StoreError, ConfigError, CorruptBackup)) as error:
            wrong()
        said.append(str(error.value))
    assert not [one for one in said if SECRET in one]


# --- with Spark ------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """With the data of a broker that was filled and stopped."""
    directory = tmp_path_factory.mktemp("home")
    with testing.broker(data_dir=directory / "data", topics={"orders": 2}) as mq:
        every = list(numbered("orders", 0, MESSAGES))
        for number in range(2):
            fill(mq.name_servers, MessageQueue("orders", "broker-a", number), every[number::2])
    return directory


@pytest.fixture(scope="module")
def found(store: ObjectStore, home: Path) -> dict[str, Any]:
    done = subprocess.run(
        [sys.executable, "-m", "spark.test_object_store", store.uri("broker-a"), str(home)],
        capture_output=True, text=True, timeout=SPARK_S, check=False, cwd=Path(__file__).resolve().parents[1],
        env={**os.environ, **store.environment, "SPARK_LOCAL_IP": "127.0.0.1"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-4000:]
    assert SECRET not in done.stdout + done.stderr
    cases: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return cases


def test_a_backup_is_made_checked_and_restored_and_a_broker_starts_on_it(found: dict[str, Any], home: Path) -> None:
    assert found["backup"] == {"records": MESSAGES, "ok": True, "restored": MESSAGES}
    with testing.broker(data_dir=home / "restored") as mq:
        assert sorted(bodies_in(mq.name_servers)) == [*range(MESSAGES)]
        fill(mq.name_servers, MessageQueue("orders", "broker-a", 0), numbered("orders", MESSAGES, MESSAGES + 1))
        assert len(bodies_in(mq.name_servers)) == MESSAGES + 1


def bodies_in(name_servers: str) -> list[int]:
    from spark.support.sink_scene import scene_of

    with scene_of(name_servers) as scene:
        return scene.bodies("orders")


def test_a_backup_is_read_as_a_table(found: dict[str, Any]) -> None:
    assert found["segments"] == [*range(MESSAGES)]
    assert "endpoint_override" not in found["plan"]


@pytest.mark.parametrize("format", LAKES)
def test_an_archive_goes_on_where_it_ended(found: dict[str, Any], format: str) -> None:
    assert found[format] == {"first": [MESSAGES, 1], "again": [0, 1], "rows": MESSAGES}


def application(uri: str, home: Path) -> dict[str, Any]:
    from pyromq.spark.jobs.backup.job import BackupPlan, backup
    from pyromq.spark.jobs.backup.restore import RestorePlan, restore
    from pyromq.spark.jobs.backup.restore import check as check_backup
    from pyromq.spark.session import spark_session

    conf = {"spark.driver.memory": "1g", "spark.driver.bindAddress": "127.0.0.1", "spark.driver.host": "127.0.0.1"}
    with spark_session(master="local[2]", name="object-store", conf=conf) as spark:
        saved = backup(spark, BackupPlan(str(home / "data" / "store"), uri))
        is_ok = check_backup(spark, uri).ok
        restored = restore(spark, RestorePlan(uri, str(home / "restored" / "store")))
        frame = spark.read.format("pyromq-segments").option("topics", "orders").load(uri)
        return {
            "backup": {"records": saved.records, "ok": is_ok, "restored": restored.records},
            "segments": sorted(int(row.body) for row in frame.select("body").collect()),
            "plan": frame._jdf.queryExecution().toString(),
            **{format: archived(spark, home, format) for format in LAKES},
        }


def archived(spark: Any, home: Path, format: str) -> dict[str, Any]:
    """Twice. The JVM has nothing to read such a place with here, so files are counted by the lake's own account."""
    from pyromq.spark.jobs.archive.job import ArchivePlan, archive

    path = f"s3://{BUCKET}/{format}"
    plan = ArchivePlan(
        path=path, format=format, segments=str(home / "data" / "store"), topics=("orders",), broker="broker-a"
    )
    first, again = archive(spark, plan), archive(spark, plan)
    return {
        "first": [first.rows, first.version],
        "again": [again.rows, again.version],
        "rows": sum(file.rows for file in open_lake(path, format).files()),
    }


if __name__ == "__main__":
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    sys.stdout.write(json.dumps(application(sys.argv[1], Path(sys.argv[2]))) + "\n")
