"""Run both pairs, put each load on one and then on the other, and say what copies cost.

A round goes through the lives of a master: its log is copied by a cold slave, then it leads with that slave, alone, and
with it again; and anew as one that waits for its slave. Each step is taken by one system and then by the other, who is
first changes; the one that does nothing is stopped (SIGSTOP). Nothing is pinned. Results go to build/bench.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import signal
import sys
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from broker_vs_rocketmq.__main__ import RESULTS
from broker_vs_rocketmq.__main__ import setting as machine
from broker_vs_rocketmq.loads import OURS, THEIRS
from broker_vs_rocketmq.measure import Generator, GeneratorFailed, build_generator
from broker_vs_rocketmq.servers import ServerFailed, apache_recipe, distant_ports, pyromq_recipe
from common import show, work_directory

from interop import apache
from replication_vs_rocketmq import report
from replication_vs_rocketmq.measure import CatchUp, Lag, Sample, catch_up, lag, sample
from replication_vs_rocketmq.pairs import Pair
from replication_vs_rocketmq.wanted import ALONE, ASYNC, FILL, LOADS, SYNC

STEPS = ("loads", "lag", "catch-up", "sync")


def options(arguments: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser("replication_vs_rocketmq", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=2, help="each starts both systems anew (2)")
    parser.add_argument("--seconds", type=float, default=3, help="of one load; a fifth of it is not counted (3)")
    parser.add_argument("--fill", type=int, default=800_000, help="messages of 1 KiB that a cold slave finds (800000)")
    parser.add_argument("--rate", type=float, default=50_000, help="messages a second while the lag is taken (50000)")
    parser.add_argument("--steps", default=",".join(STEPS), help=f"which of {', '.join(STEPS)} (all)")
    parser.add_argument("--systems", choices=("both", "ours", "apache"), default="both", help="whose pair (both)")
    parser.add_argument("--kernel", choices=("compiled", "python"), default="compiled", help="which form of PyroMQ")
    chosen = parser.parse_args(arguments)
    chosen.steps = chosen.steps.split(",")
    if chosen.rounds < 1 or chosen.seconds <= 0 or chosen.fill < 1 or chosen.rate <= 0:
        parser.error("--rounds, --seconds, --fill and --rate must be positive")
    if unknown := sorted(set(chosen.steps) - set(STEPS)):
        parser.error(f"no such step: {', '.join(unknown)}; there are {', '.join(STEPS)}")
    return chosen


#: Messages before what is measured.
WARM_UP = 100_000
#: Writing here needs root.
DROP_CACHES = Path("/proc/sys/vm/drop_caches")


class Measurement:
    """The rounds, and what they gave so far."""

    def __init__(self, chosen: argparse.Namespace, generator: Generator) -> None:
        self._chosen = chosen
        self._generator = generator
        self._turns = 0
        self.samples: list[Sample] = []
        self.lags: list[Lag] = []
        self.catch_ups: list[CatchUp] = []

    def round(self, number: int) -> None:
        with work_directory() as directory, self._pairs(directory.resolve()) as pairs:
            if {"loads", "lag", "catch-up"} & set(self._chosen.steps):
                _say(f"round {number}: a master, with a slave, alone, and with it again")
                self._lead(pairs, ALONE, self._chosen.fill)
                self._start_cold(pairs, number)
                self._lags(pairs, number)
                self._loads(pairs, ASYNC, number)
                self._each(pairs, Pair.end_slave)
                self._loads(pairs, ALONE, number)
                # With little in its log, as the first time: what is in memory of a long one has its price, too.
                self._lead(pairs, ALONE, WARM_UP)
                self._each(pairs, Pair.start_slave)
                self._loads(pairs, ASYNC, number)
            if "sync" in self._chosen.steps:
                _say(f"round {number}: a master that waits for its slave")
                self._lead(pairs, SYNC, WARM_UP)
                self._loads(pairs, SYNC, number)

    @contextlib.contextmanager
    def _pairs(self, place: Path) -> Iterator[list[Pair]]:
        pairs: list[Pair] = []
        with contextlib.ExitStack() as stack:
            for name, ports in zip((OURS, THEIRS), distant_ports(), strict=True):
                if self._chosen.systems in ("both", "ours" if name == OURS else "apache"):
                    ours = name == OURS
                    recipe = pyromq_recipe(self._chosen.kernel) if ours else apache_recipe(place / "rocketmq-home")
                    pairs.append(Pair(name, recipe, place / name, ports, "async"))
                    stack.callback(pairs[-1].end)
            yield pairs

    def _each(self, pairs: list[Pair], step: Callable[[Pair], object]) -> None:
        """For one system after the other, the rest at rest."""
        self._turns += 1
        for pair in pairs if self._turns % 2 else reversed(pairs):
            os.sync()  # what the other one wrote is not this one's to wait for
            pair.resume()
            step(pair)
            pair.pause()

    def _lead(self, pairs: list[Pair], mode: str, messages: int) -> None:
        def lead(pair: Pair) -> None:
            pair.lead(mode)
            self._generator.run_until(FILL, pair.ports.broker, messages)

        self._each(pairs, lead)

    def _loads(self, pairs: list[Pair], mode: str, number: int) -> None:
        for load in LOADS if mode == SYNC or "loads" in self._chosen.steps else ():

            def measure(pair: Pair, load: Any = load) -> None:
                if pair.slave is not None:
                    pair.until_level()
                pair.until_at_rest()
                forget_pages()
                self._keep(sample(self._generator, pair, load, mode, self._chosen.seconds, number))

            self._each(pairs, measure)

    def _keep(self, taken: Sample) -> None:
        self.samples.append(taken)
        _say(
            f"  {taken.load:22} {taken.system:9} {taken.mode:6} {taken.rate:>9,.0f} msg/s  p99 {taken.p99_ms:6.2f} ms"
            f"  master {taken.master_us:6.2f} µs  slave {taken.slave_us:6.2f} µs  errors {taken.errors} {taken.refusal}"
        )

    def _start_cold(self, pairs: list[Pair], number: int) -> None:
        def start(pair: Pair) -> None:
            taken = catch_up(pair, number)
            self.catch_ups.append(taken)
            _say(
                f"  catch-up {pair.name:9} {taken.megabytes:,.0f} MB  {taken.rate:,.0f} MB/s  queues "
                f"{taken.queues_seconds:.2f} s later  ms/MB: master {taken.master_ms:.2f}  slave {taken.slave_ms:.2f}"
            )

        self._each(pairs, start)

    def _lags(self, pairs: list[Pair], number: int) -> None:
        def behind(pair: Pair) -> None:
            taken = lag(self._generator, pair, self._chosen.rate, 2 * self._chosen.seconds, number)
            self.lags.append(taken)
            _say(
                f"  lag {pair.name:9} at {taken.rate:,.0f} msg/s: p50 {taken.p50_ms:.1f}  p99 {taken.p99_ms:.1f}  "
                f"most {taken.max_ms:.1f} ms  errors {taken.errors} {taken.refusal}"
            )

        if "lag" in self._chosen.steps:
            self._each(pairs, behind)


def forget_pages() -> None:
    """Have the system let go of the files' pages in memory, where we may: new ones are then made of what it has had
    before. On virtual machines, memory that was never used costs several times as much when it is first written."""
    os.sync()
    with contextlib.suppress(OSError):
        DROP_CACHES.write_text("1")


def publish(measured: Measurement, chosen: argparse.Namespace) -> Path:
    cores = os.cpu_count() or 1
    found = report.checks(measured.samples, measured.lags, measured.catch_ups, cores)
    show(f"Masters, medians of {chosen.rounds} rounds", report.load_rows(measured.samples), report.LOAD_COLUMNS)
    show("What copies cost", report.cost_rows(measured.samples), report.COST_COLUMNS)
    show("Slaves", report.other_rows(measured.lags, measured.catch_ups), report.OTHER_COLUMNS)
    show(f"Wanted ({cores} cores)", report.verdict_rows(found), report.CHECK_COLUMNS)
    setting = {**machine(chosen), "load_average": os.getloadavg()}
    facts = report.as_json(setting, measured.samples, measured.lags, measured.catch_ups, found)
    file = RESULTS / f"replication_vs_rocketmq-{chosen.kernel}-{datetime.now(UTC):%Y%m%dT%H%M%SZ}.json"
    file.write_text(json.dumps(facts, indent=1, ensure_ascii=False) + "\n", "utf-8")
    return file


def _say(line: str) -> None:
    print(line, flush=True)


def main() -> int:
    chosen = options()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # so that servers are ended then, too
    try:
        measured = Measurement(chosen, Generator(build_generator(RESULTS).resolve()))
        for number in range(1, chosen.rounds + 1):
            measured.round(number)
    except KeyboardInterrupt:
        _say("stopped; all servers are ended and their data is removed")
        return 130
    except (apache.ToolchainMissing, apache.ApacheFailed, ServerFailed, GeneratorFailed) as reason:
        _say(str(reason))
        return 1
    _say(f"everything is in {publish(measured, chosen)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
