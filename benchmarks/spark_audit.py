"""Audit, backup and rebuild of a store on Spark: messages a second, on one core and on all.

Goal: audit 200 k messages a second for each core. Limits: the same segments checked by one thread without Spark
(`pyromq store verify`), and a plain `read` of the log. `PYROMQ_BENCH_SCALE=0.1` is quick.
"""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable
from pathlib import Path

from common import SCALE, drafts, show, thousands, work_directory

from pyromq.config import StoreConfig
from pyromq.spark.jobs.audit.job import AuditPlan, audit
from pyromq.spark.jobs.backup.job import BackupPlan, backup
from pyromq.spark.jobs.backup.restore import RestorePlan, restore
from pyromq.spark.jobs.rebuild.job import RebuildPlan, rebuild
from pyromq.spark.session import spark_session
from pyromq.store.message_store import MessageStore
from pyromq.store.offline.verify import verify

MESSAGES = int(900_000 * SCALE)
SEGMENT_BYTES = 64 << 20


def make_store(root: Path) -> StoreConfig:
    config = StoreConfig(root=root, segment_bytes=SEGMENT_BYTES)
    with MessageStore(config) as store:
        messages = drafts(256)
        for _ in range(0, MESSAGES, len(messages)):
            store.append(messages)
            store.dispatch()
    return config


def seconds_of(work: Callable[[], object]) -> float:
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


def best(work: Callable[[], object], times: int = 3) -> float:
    """The first run starts Python workers."""
    return min(seconds_of(work) for _ in range(times))


def read_all(root: Path) -> None:
    for path in (root / "commitlog").iterdir():
        with path.open("rb") as file:
            while file.read(8 << 20):
                pass


def on_spark(root: Path, master: str, cores: int) -> list[tuple[str, ...]]:
    rows: list[tuple[str, ...]] = []

    def row(name: str, seconds: float) -> None:
        rate = MESSAGES / seconds
        rows.append((f"{name}, {master}", thousands(rate), thousands(rate / cores), f"{seconds:.2f} s"))

    with spark_session(master=master, name="bench") as spark:
        places = [root.with_name(f"{name}-{cores}") for name in ("backup", "restored")]
        row("audit", best(lambda: audit(spark, AuditPlan(str(root)))))
        row("audit without index", best(lambda: audit(spark, AuditPlan(str(root), index=False))))
        row("backup", seconds_of(lambda: backup(spark, BackupPlan(str(root), str(places[0])))))
        row("audit of the backup", best(lambda: audit(spark, AuditPlan(str(places[0])))))
        row("restore", seconds_of(lambda: restore(spark, RestorePlan(str(places[0]), str(places[1])))))
        row("rebuild", seconds_of(lambda: rebuild(spark, RebuildPlan(str(root)))))
        for place in places:
            shutil.rmtree(place)
    return rows


def main() -> None:
    cores = os.cpu_count() or 1
    with work_directory() as directory:
        root = directory / "store"
        config = make_store(root)
        alone = best(lambda: verify(root, config=config))
        reading = best(lambda: read_all(root))
        rows = [
            ("`store verify`, threads", thousands(MESSAGES / alone), "", f"{alone:.2f} s"),
            ("plain read of the log", thousands(MESSAGES / reading), "", f"{reading:.2f} s"),
            *on_spark(root, "local[1]", 1),
            *(on_spark(root, f"local[{cores}]", cores) if cores > 1 else []),
        ]
    show(f"{MESSAGES} messages of 1 KiB, {cores} cores", rows, ("", "messages", "a core", "time"))


if __name__ == "__main__":
    main()
