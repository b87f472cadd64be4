"""A master and its slaves on machines that fail in every way: no promise is broken, and everything heals.

Each machine is a network namespace with a disk of its own, so that cables are pulled, lines are slow and disks are full
for everything that runs there. A run begins with a new pair and goes through some faults under load; its seed says
which and when, as far as real processes allow. A few rounds are part of every test run.

    PYROMQ_CHAOS_SEED=7                          the first seed
    PYROMQ_CHAOS_ROUNDS=100                      rounds of the last test (`make chaos-pair`)
    PYROMQ_CHAOS_FAULTS="kill all;a bad line"   these faults, whatever the seed
"""

from __future__ import annotations

import asyncio
import logging
import os
import random
import shutil
import tempfile
import time
from collections import Counter
from pathlib import Path

import pytest

from chaos.support.machines import Network, why_not
from chaos.support.members import quicker
from chaos.support.pair_cluster import Mode, Pair
from chaos.support.pair_faults import FAULTS, Weather, faults_of
from chaos.support.pair_load import Load
from pyromq.client.consuming import queue_worker
from pyromq.client.group import member, queue_locks
from pyromq.testing import Report

SEED = int(os.environ.get("PYROMQ_CHAOS_SEED", "7"))
ROUNDS = int(os.environ.get("PYROMQ_CHAOS_ROUNDS", "4"))
ONLY = [name for name in os.environ.get("PYROMQ_CHAOS_FAULTS", "").split(";") if name]
ROUNDS_OF_A_RUN = 10
PAIR = Mode("SYNC_MASTER", sync_flush=True, min_in_sync=2)
ASYNC_PAIR = Mode("ASYNC_MASTER", sync_flush=False)
MODES = [
    Mode("SYNC_MASTER", sync_flush=True, brokers=3, copies=3),
    Mode("SYNC_MASTER", sync_flush=False, refuse_at=0.95),
    Mode("SYNC_MASTER", sync_flush=False, brokers=3),
    ASYNC_PAIR,
    PAIR,
    Mode("ASYNC_MASTER", sync_flush=True, brokers=3),
]


@pytest.fixture(autouse=True)
def machines() -> None:
    if reason := why_not():
        pytest.skip(reason)


@pytest.fixture(autouse=True)
def quick_clients(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    for module, name in (
        (queue_locks, "RENEW_SECONDS"), (queue_locks, "EXPIRY_SECONDS"), (member, "LOOK_SECONDS"),
        (queue_worker, "PATIENCE_SECONDS"),
    ):  # fmt: skip
        monkeypatch.setattr(module, name, getattr(module, name))  # put back what `quicker` changes
    quicker()
    caplog.set_level(logging.CRITICAL, "pyromq.client")


async def through(pair: Pair, seed: int, kinds: list[str], home: Path) -> tuple[Report, Weather]:
    """All that happens to one pair, and what the checker says."""
    async with pair.running(), Load(pair).running() as load:
        weather = Weather(pair, load, random.Random(seed))
        try:
            await load.until_sending_works()
            await pair.level()
            for kind in kinds:
                await weather.round(kind)
            await load.stop_sending()
            await load.caught_up()
            await pair.level()
            confirmed = int((await pair.master.figures())["commitLogMaxOffset"])
            assert pair.compare() >= confirmed
            for node in pair.nodes:
                await load.audit(node, node.name)
            report = load.judge(may_lose=not pair.mode.is_sync)
            report.raise_if_bad()
            weather.schedule += load.cost()
        except BaseException as error:
            load.history.save(home / "history.jsonl")
            error.add_note("\n".join([f"seed {seed}, {pair.mode}; logs are in {home}", *weather.schedule]))
            raise
    return report, weather


def run(seed: int, mode: Mode, kinds: list[str]) -> tuple[Report, Weather]:
    """On machines that are there for this only. What they leave is kept when something was wrong."""
    home = Path(tempfile.mkdtemp(prefix=f"pyromq-chaos-seed-{seed}-"))
    with Network(home) as network:
        pair = Pair(home, network, mode)
        try:
            with pair.base.inside():
                found = asyncio.run(through(pair, seed, kinds, home))
        except BaseException:
            for node in pair.nodes:  # the disks are gone with the machines
                if node.store.is_dir():
                    shutil.copytree(node.store, home / f"store-{node.name}")
            raise
    shutil.rmtree(home)
    return found


def test_a_sync_pair_loses_nothing_when_either_store_is_destroyed() -> None:
    kinds = ONLY or [
        "the slave's store is destroyed",
        "the master is cut off, the slave promoted",
        "the master's store is destroyed, the slave promoted",
        "the slave's disk is full",
    ]
    report, weather = run(SEED, PAIR, kinds)
    print(report, *weather.schedule, sep="\n")


def test_an_async_pair_loses_what_its_lag_showed_and_no_more() -> None:
    kinds = ONLY or [
        "the master is killed, the slave promoted",
        "the master's store is destroyed while its slave lags",
    ]
    report, weather = run(SEED, ASYNC_PAIR, kinds)
    print(report, *weather.schedule, sep="\n")


def test_three_brokers_that_all_have_a_message_lose_nothing_when_one_of_them_is_gone() -> None:
    kinds = ONLY or [
        "the master's store is destroyed, the slave promoted",
        "the master is cut off, the slave promoted",
        "kill all",
    ]
    report, weather = run(SEED, MODES[0], kinds)
    print(report, *weather.schedule, sep="\n")


def test_many_rounds() -> None:
    counts: Counter[str] = Counter()
    acknowledged, seed, began = 0, SEED, time.monotonic()
    while counts.total() < ROUNDS:
        mode = MODES[seed % len(MODES)]
        rounds = min(ROUNDS_OF_A_RUN, ROUNDS - counts.total())
        kinds = ONLY or faults_of(seed, rounds, mode)
        report, weather = run(seed, mode, kinds)
        counts += weather.counts
        acknowledged += report.counts.acknowledged
        print(f"seed {seed}, {mode}, {time.monotonic() - began:.0f} s: {report}", flush=True)
        print(*(line for line in weather.schedule if "lost" in line), sep="\n", flush=True)
        seed += 1
    assert set(counts) <= set(FAULTS)
    print(f"{counts.total()} rounds, {acknowledged} acknowledged: {dict(counts)}")
