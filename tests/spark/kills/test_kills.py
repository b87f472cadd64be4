"""kill -9 in the middle of a batch, of every process: the output is the input, once.

One application copies a topic in several ways at the same time: to files, to a lake, and to topics in each mode of the
sink. Its driver, its JVM, its executors and workers, and the broker are killed while it does. In the end nothing is
missing in any of them, and nothing is there twice in those that promise it.

PYROMQ_SPARK_ROUNDS sets how often each of them is killed, PYROMQ_SPARK_SEED repeats a run.
"""

from __future__ import annotations

import os
import random
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from pyromq import testing
from pyromq.testing import BrokerProcess
from spark.kills.stage import BROKER_SETTINGS, FILES, IDEMPOTENT, LAKE, LANES, TRANSACTIONAL, Kind, Stage
from spark.support.cluster import SparkCluster, running_cluster

pytestmark = [pytest.mark.spark, pytest.mark.slow]

#: 0: only what tells most, once.
ROUNDS = int(os.environ.get("PYROMQ_SPARK_ROUNDS", "0"))
SEED = int(os.environ.get("PYROMQ_SPARK_SEED", "0")) or random.SystemRandom().randrange(1 << 30)
LOCAL = (Kind.WORKER, Kind.BROKER, Kind.DRIVER, Kind.JVM)


@pytest.fixture(scope="module")
def victim() -> Iterator[BrokerProcess]:
    """A broker that is killed: no other test uses it."""
    with testing.broker(process=True, config=BROKER_SETTINGS) as running:
        yield running


def kills(kinds: tuple[Kind, ...], few: tuple[Kind, ...]) -> list[Kind]:
    """Each kind in each round, in an order that the seed draws."""
    if not ROUNDS:
        return list(few)
    chance = random.Random(SEED)
    return [kind for _ in range(ROUNDS) for kind in chance.sample(kinds, len(kinds))]


def play(stage: Stage, wanted: list[Kind]) -> None:
    print(f"PYROMQ_SPARK_SEED={stage.seed}, {len(wanted)} kills")
    with stage:
        for kind in wanted:
            stage.kill(kind)
            print(stage.story[-1], flush=True)
        verdicts = stage.finish()
    print(*verdicts, f"the application was started {stage.starts} times", sep="\n")
    assert all(one.expected for one in verdicts)
    broken = [str(one) for one in verdicts if not one.is_kept]
    assert not broken, "\n".join([f"PYROMQ_SPARK_SEED={stage.seed}", *stage.story, *broken])


def test_with_a_local_master(victim: BrokerProcess, tmp_path: Path) -> None:
    lanes = LANES if ROUNDS else (FILES, TRANSACTIONAL, IDEMPOTENT)
    stage = Stage(tmp_path / "stage", victim, Path(sys.executable), name="local", lanes=lanes, seed=SEED)
    play(stage, kills(LOCAL, (Kind.WORKER, Kind.BROKER, Kind.DRIVER)))


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkCluster]:
    with running_cluster(tmp_path_factory.mktemp("spark"), compiled=bool(ROUNDS)) as running:
        yield running


def test_on_a_cluster_that_runs_the_wheel(victim: BrokerProcess, cluster: SparkCluster, tmp_path: Path) -> None:
    lanes = LANES if ROUNDS else (LAKE, IDEMPOTENT)
    stage = Stage(
        tmp_path / "stage", victim, cluster.python, name="cluster", lanes=lanes, seed=SEED, cluster=cluster
    )  # fmt: skip
    play(stage, kills((*LOCAL, Kind.EXECUTOR), (Kind.EXECUTOR, Kind.JVM)))
