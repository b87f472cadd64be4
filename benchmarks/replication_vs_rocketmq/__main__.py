"""Run pairs of both systems, put each load on one master after the other, and say what copies cost.

In a round a cold slave copies the log of a master, and how far it is behind is watched. Then three masters of a system,
one alone, one with a slave and one that waits for its slave, take each load in turn; and those of the other system.
Whoever does nothing is stopped (SIGSTOP). Nothing is pinned. What a mode costs is told from two masters that took the
load one right after the other: a machine is rarely as fast as it was a minute ago. More turns in a round write more
files, and memory for them costs more where a virtual machine has to ask its host for it. Results go to build/bench.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import mmap
import os
import signal
import sys
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path

from broker_vs_rocketmq.__main__ import RESULTS
from broker_vs_rocketmq.__main__ import setting as machine
from broker_vs_rocketmq.loads import OURS, THEIRS
from broker_vs_rocketmq.measure import Generator, GeneratorFailed, build_generator
from broker_vs_rocketmq.servers import Recipe, ServerFailed, apache_recipe, distant_ports, pyromq_recipe
from common import show, work_directory

from interop.support import apache
from replication_vs_rocketmq import report
from replication_vs_rocketmq.measure import CatchUp, Lag, Sample, catch_up, lag, sample
from replication_vs_rocketmq.pairs import Pair
from replication_vs_rocketmq.wanted import ALONE, ASYNC, FILL, LOADS, MODES

STEPS = ("loads", "lag", "catch-up")


def options(arguments: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser("replication_vs_rocketmq", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=5, help="each starts both systems anew (5)")
    parser.add_argument("--turns", type=int, default=1, help="how often each master takes each load in a round (1)")
    parser.add_argument("--seconds", type=float, default=2, help="of one load; a fifth of it is not counted (2)")
    parser.add_argument("--fill", type=int, default=800_000, help="messages of 1 KiB that a cold slave finds (800000)")
    parser.add_argument("--rate", type=float, default=50_000, help="messages a second while the lag is taken (50000)")
    parser.add_argument("--pace", type=float, default=0, help="messages a second of the loads, at most (0: no limit)")
    parser.add_argument("--steps", default=",".join(STEPS), help=f"which of {', '.join(STEPS)} (all)")
    parser.add_argument("--systems", choices=("both", "ours", "apache"), default="both", help="whose pair (both)")
    parser.add_argument("--kernel", choices=("compiled", "python"), default="compiled", help="which form of PyroMQ")
    chosen = parser.parse_args(arguments)
    chosen.steps = chosen.steps.split(",")
    if min(chosen.rounds, chosen.turns, chosen.fill) < 1 or min(chosen.seconds, chosen.rate) <= 0:
        parser.error("--rounds, --turns, --seconds, --fill and --rate must be positive")
    if unknown := sorted(set(chosen.steps) - set(STEPS)):
        parser.error(f"no such step: {', '.join(unknown)}; there are {', '.join(STEPS)}")
    return chosen


#: Messages before what is measured.
WARM_UP = 100_000
#: A lag is watched for so many times as long as a load.
LAG_SECONDS = 3
#: What master and slave write in a load of two seconds at most.
READY_BYTES = 2 << 30
#: Writing here needs root.
DROP_CACHES = Path("/proc/sys/vm/drop_caches")


class Measurement:
    """The rounds, and what they gave so far."""

    def __init__(self, chosen: argparse.Namespace, generator: Generator) -> None:
        self._chosen = chosen
        self._generator = generator
        self.samples: list[Sample] = []
        self.lags: list[Lag] = []
        self.catch_ups: list[CatchUp] = []

    def round(self, number: int) -> None:
        systems = [OURS, THEIRS] if number % 2 else [THEIRS, OURS]
        for system in systems:
            if self._chosen.systems in ("both", "ours" if system == OURS else "apache"):
                with work_directory() as directory:
                    self._measure(system, directory.resolve(), number)

    def _measure(self, system: str, place: Path, number: int) -> None:
        recipe = pyromq_recipe(self._chosen.kernel) if system == OURS else apache_recipe(place / "rocketmq-home")
        steps = self._chosen.steps
        if "lag" in steps or "catch-up" in steps:
            _say(f"round {number}: {system}, a slave that begins with nothing")
            with self._masters(system, recipe, place / "cold", (ALONE,), self._chosen.fill) as masters:
                self._slave_comes(masters[ALONE], number)
        if "loads" in steps:
            _say(f"round {number}: {system}, masters alone, with a slave, and waiting for it, in turn")
            with self._masters(system, recipe, place / "loads", MODES, WARM_UP) as masters:
                self._loads(masters, number)

    @contextlib.contextmanager
    def _masters(
        self, system: str, recipe: Recipe, place: Path, modes: Sequence[str], messages: int
    ) -> Iterator[dict[str, Pair]]:
        """One for each mode, warmed up and stopped."""
        masters: dict[str, Pair] = {}
        with contextlib.ExitStack() as stack:
            for mode, ports in zip(modes, distant_ports(len(modes)), strict=True):
                pair = masters[mode] = Pair(system, recipe, place / mode, ports, "async")
                stack.callback(pair.end)
                pair.lead(mode)
                if mode == ASYNC:
                    pair.start_slave()
                self._generator.run_until(FILL, ports.broker, messages)
                pair.pause()
            yield masters

    def _slave_comes(self, pair: Pair, number: int) -> None:
        pair.resume()
        self._catch_up(pair, number)
        if "lag" in self._chosen.steps:
            self._lag(pair, number)

    def _loads(self, masters: dict[str, Pair], number: int) -> None:
        for turn in range(self._chosen.turns):
            # Forth and back: what is compared took the load one right after the other.
            modes = MODES if (number + turn) % 2 else MODES[::-1]
            for load in LOADS:
                for mode in modes:
                    pair = masters[mode]
                    pair.resume()
                    if pair.slave is not None:
                        pair.until_level()
                    pair.until_at_rest()
                    ready_memory()
                    numbered = (number - 1) * self._chosen.turns + turn + 1
                    seconds, pace = self._chosen.seconds, self._chosen.pace
                    self._keep(sample(self._generator, pair, load, mode, seconds, numbered, pace))
                    pair.pause()

    def _keep(self, taken: Sample) -> None:
        self.samples.append(taken)
        _say(
            f"  {taken.load:22} {taken.system:9} {taken.mode:6} {taken.rate:>9,.0f} msg/s  p99 {taken.p99_ms:6.2f} ms"
            f"  master {taken.master_us:6.2f} µs  slave {taken.slave_us:6.2f} µs  errors {taken.errors} {taken.refusal}"
        )

    def _catch_up(self, pair: Pair, number: int) -> None:
        taken = catch_up(pair, number)
        self.catch_ups.append(taken)
        _say(
            f"  catch-up {pair.name:9} {taken.megabytes:,.0f} MB  {taken.rate:,.0f} MB/s  queues "
            f"{taken.queues_seconds:.2f} s later  ms/MB: master {taken.master_ms:.2f}  slave {taken.slave_ms:.2f}"
        )

    def _lag(self, pair: Pair, number: int) -> None:
        taken = lag(self._generator, pair, self._chosen.rate, LAG_SECONDS * self._chosen.seconds, number)
        self.lags.append(taken)
        _say(
            f"  lag {pair.name:9} at {taken.rate:,.0f} msg/s: p50 {taken.p50_ms:.1f}  p99 {taken.p99_ms:.1f}  "
            f"most {taken.max_ms:.1f} ms  errors {taken.errors} {taken.refusal}"
        )


def ready_memory() -> None:
    """Have the system let go of the files' pages in memory, where we may, and use as much as the next load will: new
    pages are then made of what it has had just before. A virtual machine gives free memory back to its host, and what
    it has to ask for again costs many times as much when it is first written."""
    os.sync()
    with contextlib.suppress(OSError):
        DROP_CACHES.write_text("1")
    kind = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | getattr(mmap, "MAP_POPULATE", 0)
    mmap.mmap(-1, READY_BYTES, flags=kind).close()


def publish(measured: Measurement, chosen: argparse.Namespace) -> Path:
    cores = os.cpu_count() or 1
    found = report.checks(measured.samples, measured.lags, measured.catch_ups, cores)
    show(
        f"Masters, medians of {chosen.rounds * chosen.turns} turns",
        report.load_rows(measured.samples),
        report.LOAD_COLUMNS,
    )
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
