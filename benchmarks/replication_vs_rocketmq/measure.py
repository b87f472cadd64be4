"""One figure of one system: throughput and processor time, how far a slave is behind, how fast a cold one is."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass

from broker_vs_rocketmq.loads import WARM_TOPIC, Load
from broker_vs_rocketmq.measure import SETTLE_S, Generator, Result

from replication_vs_rocketmq.log_eye import LogEye, queue_has
from replication_vs_rocketmq.pairs import Pair
from replication_vs_rocketmq.wanted import PACED

#: How often somebody looks whether a record has come: what is measured is that much too long at most.
LOOK_S = 0.001
#: Of a paced load, what is not counted.
UNCOUNTED = 0.25
MB = 1_000_000


@dataclass(frozen=True, slots=True)
class Sample:
    """One load on one master, once."""

    load: str
    system: str
    mode: str
    #: Counted through all rounds: samples with the same number were taken one after the other.
    round: int
    rate: float
    p99_ms: float
    errors: int
    master_us: float
    slave_us: float
    refusal: str = ""

    @property
    def both_us(self) -> float:
        return self.master_us + self.slave_us


@dataclass(frozen=True, slots=True)
class Lag:
    system: str
    round: int
    rate: float
    p50_ms: float
    p99_ms: float
    max_ms: float
    count: int
    errors: int = 0
    refusal: str = ""


@dataclass(frozen=True, slots=True)
class CatchUp:
    system: str
    round: int
    megabytes: float
    #: From the first byte in the slave's log to the last.
    seconds: float
    #: From the last byte in the log to the last entry in the queues.
    queues_seconds: float
    #: Processor time for a MB, all work behind the log (queues, index) included; the slave's start is not.
    master_ms: float
    slave_ms: float

    @property
    def rate(self) -> float:
        return self.megabytes / self.seconds


def sample(generator: Generator, pair: Pair, load: Load, mode: str, seconds: float, number: int, pace: float) -> Sample:
    """`pair` must be the one that is not paused. `pace`: no more messages than that in a second; 0: all that can be."""
    before = pair.cpu_seconds()
    result = generator.run(load, pair.ports.broker, seconds, pace)
    time.sleep(SETTLE_S)
    used = [now - then for now, then in zip(pair.cpu_seconds(), before, strict=True)]
    master_us, slave_us = (one * 1e6 / max(result.total, 1) for one in used)
    return Sample(
        load.name, pair.name, mode, number, result.rate, result.p99, result.errors, master_us, slave_us, result.refusal
    )


# --- How far a slave is behind ---------------------------------------------------------------------------------------


def percentile(sorted_values: Sequence[float], share: float) -> float:
    return sorted_values[min(int(len(sorted_values) * share), len(sorted_values) - 1)]


def lag(generator: Generator, pair: Pair, rate: float, seconds: float, number: int) -> Lag:
    """From the store time that the master gave a record until it was seen in the slave's file."""
    eye = LogEye(pair.slave_store / "commitlog", pair.until_level())
    results: list[Result] = []
    load = threading.Thread(target=lambda: results.append(generator.run(PACED, pair.ports.broker, seconds, rate)))
    load.start()
    behind = _watch(eye, load, time.monotonic() + seconds * UNCOUNTED)
    load.join()
    eye.close()
    behind.sort()
    p50, p99 = (percentile(behind, share) for share in (0.5, 0.99))
    result = results[0]
    return Lag(pair.name, number, result.rate, p50, p99, behind[-1], len(behind), result.errors, result.refusal)


def _watch(eye: LogEye, load: threading.Thread, counted_from: float) -> list[float]:
    """How long each record took, in ms, from when on they count."""
    behind: list[float] = []
    while load.is_alive():
        found = eye.stored_at()
        now_ms = time.time() * 1000
        if time.monotonic() >= counted_from:
            # Store times are whole milliseconds, cut off: half of one is added on average, and taken off here.
            behind += [max(now_ms - stored_ms - 0.5, 0.0) for stored_ms in found]
        time.sleep(LOOK_S)
    return behind or [float("inf")]


# --- How fast a cold slave is ----------------------------------------------------------------------------------------


def catch_up(pair: Pair, number: int) -> CatchUp:
    """Starts the slave of a master that has a log, and waits until it has all of it."""
    master = LogEye(pair.master_store / "commitlog")
    while master.stored_at():
        pass
    end = master.position
    pair.start_slave()
    directory = pair.slave_store / "commitlog"
    copy = LogEye(directory)
    pair.until(lambda: any(directory.glob("[0-9]*")), "the slave has a log file", LOOK_S)
    pair.until(lambda: _has_begun(copy), "the slave has the first record", LOOK_S)
    start, started, before = copy.position, time.monotonic(), pair.cpu_seconds()
    pair.until(lambda: copy.has(end), "the slave has the last record", LOOK_S)
    seconds = time.monotonic() - started
    _until_queues(pair, master)
    queues_seconds = time.monotonic() - started - seconds
    pair.until_level()
    time.sleep(SETTLE_S)  # the index comes last
    used = [now - then for now, then in zip(pair.cpu_seconds(), before, strict=True)]
    copy.close()
    master.close()
    megabytes = (end - start) / MB
    master_ms, slave_ms = (one * 1e3 / megabytes for one in used)
    return CatchUp(pair.name, number, megabytes, seconds, queues_seconds, master_ms, slave_ms)


def _has_begun(copy: LogEye) -> bool:
    """Where its first file begins: Apache's begins with the newest file of its master, ours with the oldest."""
    first = min((int(path.name) for path in copy.directory.glob("[0-9]*")), default=0)
    copy.position = first
    begun = bool(copy.stored_at(most=1))
    copy.position = first
    return begun


def _until_queues(pair: Pair, master: LogEye) -> None:
    for queue, offset in master.queue_offsets.items():
        what = f"the slave has offset {offset} of queue {queue}"
        pair.until(lambda at=(queue, offset): queue_has(pair.slave_store, WARM_TOPIC, *at), what, LOOK_S)
