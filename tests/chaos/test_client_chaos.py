"""Every kind of client on a cluster where everything fails: the history checker finds that no promise was broken.

A short run is part of every test run. `PYROMQ_CHAOS_SECONDS` makes it longer, `PYROMQ_CHAOS_SEED` another one.
"""

from __future__ import annotations

import asyncio
import logging
import os
import random
from pathlib import Path

import pytest

from chaos.support.cluster import Cluster
from chaos.support.crowd import SHARED, STEPS, TOPICS, Groups, ProgressWatch, Senders, audit
from chaos.support.members import quicker
from chaos.support.tally import Tally
from chaos.support.weather import LEAST_FAULTS, Weather
from pyromq.client.consuming import queue_worker
from pyromq.client.group import member, queue_locks
from pyromq.testing import check

SECONDS = float(os.environ.get("PYROMQ_CHAOS_SECONDS", "15"))
SEED = int(os.environ.get("PYROMQ_CHAOS_SEED", "7"))
#: How long groups may take to catch up once everything is well.
CATCH_UP_SECONDS = 60.0


@pytest.fixture(autouse=True)
def quick_clients(monkeypatch: pytest.MonkeyPatch) -> None:
    for module, name in (
        (queue_locks, "RENEW_SECONDS"), (queue_locks, "EXPIRY_SECONDS"), (member, "LOOK_SECONDS"),
        (queue_worker, "PATIENCE_SECONDS"),
    ):  # fmt: skip
        monkeypatch.setattr(module, name, getattr(module, name))  # put back what `quicker` changes
    quicker()


async def caught_up(history: Tally) -> None:
    try:
        async with asyncio.timeout(CATCH_UP_SECONDS):
            while history.missing():  # noqa: ASYNC110  other processes write it too
                await asyncio.sleep(0.1)
    except TimeoutError:
        pass  # the checker says what is missing


async def made_good(watch: ProgressWatch) -> None:
    """Progress that was set back is told again."""
    async with asyncio.timeout(CATCH_UP_SECONDS):
        while watch.behind():  # noqa: ASYNC110  brokers tell nobody
            await asyncio.sleep(0.1)


async def run(home: Path, seed: int, seconds: float) -> Tally:
    history, rng = Tally(), random.Random(seed)
    async with Cluster(home, TOPICS, frozenset({STEPS})) as cluster:
        senders, groups = Senders(cluster.addresses, history), Groups(cluster.addresses, history, home)
        weather = Weather(cluster, groups, history, rng)
        watch = ProgressWatch(cluster, history)
        watching = asyncio.create_task(watch.run())
        try:
            await groups.start()
            senders.start()
            await weather.rage(seconds)
            await cluster.heal()
            await senders.stop_sending()
            await caught_up(history)
            await audit(cluster, history)
            await made_good(watch)
            print(f"seed {seed}: {dict(weather.counts)}")
            steps_back = cluster.steps_back(SHARED)
            print(f"{len(steps_back)} commits set a group back; the longest send took {senders.longest_s:.2f} s")
            print(*steps_back, sep="\n")
            await senders.close()
            await groups.close()
        finally:
            watching.cancel()
            await asyncio.gather(watching, return_exceptions=True)
            await groups.kill_processes()
    return history


def test_no_promise_is_broken_in_any_weather(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.CRITICAL, "pyromq.client")
    history = asyncio.run(run(tmp_path, SEED, SECONDS))
    history.save(tmp_path / "history.jsonl")  # pytest keeps it for whoever has to find out
    report = check(history.in_time())
    print(report)
    report.raise_if_bad()
    assert report.counts.acknowledged > 20 * SECONDS
    assert report.counts.faults >= LEAST_FAULTS
