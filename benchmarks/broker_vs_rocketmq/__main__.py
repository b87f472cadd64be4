"""Start both systems, put each load on one and then on the other, and say how they compare.

Every round starts both anew, warms them up with the same messages, and alternates: the first load goes to PyroMQ and
then to RocketMQ, the second the other way round. Nothing is pinned unless asked for. Results go to build/bench.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import re
import signal
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from common import show, work_directory

from broker_vs_rocketmq import report
from broker_vs_rocketmq.loads import LOADS, OURS, PULL_BATCH, SELECTIONS, THEIRS, Load, flushes, selected
from broker_vs_rocketmq.measure import Footprint, Generator, GeneratorFailed, Sample, build_generator, footprint, sample
from broker_vs_rocketmq.servers import ServerFailed, System, apache_recipe, both, pyromq_recipe
from interop.support import apache

RESULTS = Path("build/bench")
WARM_SEND = next(load for load in LOADS if load.kind == "send")
WARM_PULL = next(load for load in LOADS if load.kind == "pull")


def options(arguments: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser("broker_vs_rocketmq", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=3, help="each starts both systems anew (3)")
    parser.add_argument("--seconds", type=float, default=10, help="of one load; a fifth of it is not counted (10)")
    parser.add_argument("--warm", type=int, default=400_000, help="messages sent before anything counts (400000)")
    parser.add_argument("--only", choices=SELECTIONS, default="all", help="part of the loads; start: none")
    parser.add_argument("--kernel", choices=("compiled", "python"), default="compiled", help="which form of PyroMQ")
    parser.add_argument("--pin-brokers", type=int, metavar="CORE", help="keep the brokers on one core (not pinned)")
    parser.add_argument("--pin-generator", type=int, metavar="CORE", help="keep the generator on one (not pinned)")
    chosen = parser.parse_args(arguments)
    if chosen.rounds < 1 or chosen.seconds <= 0 or chosen.warm < 1:
        parser.error("--rounds, --seconds and --warm must be positive")
    return chosen


class Measurement:
    """The rounds, and what they gave so far."""

    def __init__(self, chosen: argparse.Namespace, generator: Generator) -> None:
        self._chosen = chosen
        self._generator = generator
        self.loads = selected(chosen.only)
        self.samples: list[Sample] = []
        self.footprints: list[Footprint] = []

    def round(self, number: int) -> None:
        for flush in flushes(self._chosen.only):
            with work_directory() as directory:
                place = directory.resolve()
                recipes = {OURS: pyromq_recipe(self._chosen.kernel), THEIRS: apache_recipe(place / "rocketmq-home")}
                _say(f"round {number}: starting both, {flush} flush")
                with both(place, recipes, flush, self._chosen.pin_brokers) as systems:
                    self._measure(systems, [load for load in self.loads if load.flush == flush], number)

    def _measure(self, systems: dict[str, System], loads: list[Load], number: int) -> None:
        if loads:
            for system in systems.values():
                self._warm(system, pulls=any(load.kind == "pull" for load in loads))
        for place, load in enumerate(loads):
            order = list(systems.values())
            for system in order if (number + place) % 2 else reversed(order):
                self._sample(system, load, number)
        self.footprints += [footprint(system, number) for system in systems.values()]

    def _warm(self, system: System, *, pulls: bool) -> None:
        """A just-in-time compiler needs some hundred thousand requests; ours gets the same, for an equal store."""
        _say(f"  warming {system.name}")
        system.resume()
        self._generator.run_until(WARM_SEND, system.ports.broker, self._chosen.warm)
        if pulls:
            self._generator.run_until(WARM_PULL, system.ports.broker, self._chosen.warm * PULL_BATCH // 4)
        system.pause()

    def _sample(self, system: System, load: Load, number: int) -> None:
        os.sync()  # what the other one wrote is not this one's to wait for
        system.resume()
        taken = sample(self._generator, system, load, self._chosen.seconds, number)
        system.pause()
        self.samples.append(taken)
        result = taken.result
        _say(
            f"  {load.name:24} {system.name:9} {result.rate:>9,.0f} msg/s {taken.cpu_us_per_message:6.1f} µs"
            f"  p50 {result.p50:.3f}  p99 {result.p99:.3f}  p99.9 {result.p999:.3f} ms  errors {result.errors}"
        )
        if result.refusal:
            _say(f"    {result.refusal}")


def setting(chosen: argparse.Namespace) -> dict[str, Any]:
    """What the figures depend on."""
    model = re.search(r"^model name\s*: (.*)$", Path("/proc/cpuinfo").read_text("utf-8"), re.MULTILINE)
    version = re.search(r"<rocketmq.version>(.*?)<", apache.POM.read_text("utf-8"))
    return {
        **vars(chosen),
        "when": datetime.now(UTC).isoformat(timespec="seconds"),
        "cores": os.cpu_count(),
        "processor": model[1] if model else platform.machine(),
        "kernel_release": platform.release(),
        "python": platform.python_version(),
        "rocketmq": version[1] if version else "?",
    }


def publish(measured: Measurement, chosen: argparse.Namespace) -> Path:
    found = report.checks(measured.loads, measured.samples, measured.footprints, chosen.kernel)
    name = f"PyroMQ ({chosen.kernel}) and RocketMQ, medians of {chosen.rounds} rounds"
    if measured.samples:
        show(name, report.load_rows(measured.loads, measured.samples), report.LOAD_COLUMNS)
    show("Start and memory of the broker", report.footprint_rows(measured.footprints), report.FOOTPRINT_COLUMNS)
    show("Wanted", report.check_rows(found), report.CHECK_COLUMNS)
    facts = report.as_json(setting(chosen), measured.loads, measured.samples, measured.footprints, found)
    file = RESULTS / f"broker_vs_rocketmq-{chosen.kernel}-{datetime.now(UTC):%Y%m%dT%H%M%SZ}.json"
    file.write_text(json.dumps(facts, indent=1, ensure_ascii=False) + "\n", "utf-8")
    return file


def _say(line: str) -> None:
    print(line, flush=True)


def main() -> int:
    chosen = options()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # so that servers are ended then, too
    try:
        generator = Generator(build_generator(RESULTS).resolve(), chosen.pin_generator)
        measured = Measurement(chosen, generator)
        for number in range(1, chosen.rounds + 1):
            measured.round(number)
    except KeyboardInterrupt:
        _say("stopped; both systems are ended and their data is removed")
        return 130
    except (apache.ToolchainMissing, apache.ApacheFailed, ServerFailed, GeneratorFailed) as reason:
        _say(str(reason))
        return 1
    _say(f"everything is in {publish(measured, chosen)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
