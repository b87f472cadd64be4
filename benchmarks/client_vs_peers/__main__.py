"""Start each server, put the same work on each client, one Python process at a time, and say how they compare.

Every round starts each server anew in an empty directory, warms it up, and takes every line with every client of it;
the order of the servers turns round from round to round. A peer that cannot be had is named with the reason.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import re
import signal
import sys
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

from common import work_directory
from rich.console import Console
from rich.table import Table

from client_vs_peers import report, servers
from client_vs_peers.contestants import (
    BY_KEY,
    EVERYTHING,
    PEERS,
    Contestant,
    Line,
    selected_contestants,
    selected_lines,
)
from client_vs_peers.getting import Cache, CannotBeHad, default_cache
from client_vs_peers.running import Sample, WorkerFailed, figures_of, worker
from client_vs_peers.servers import Server, ServerFailed
from client_vs_peers.workers.shape import Task

RESULTS = Path("build/bench")
#: A backlog is stated for runs of so many seconds.
BACKLOG_SECONDS = 5.0
MOST_WARM_S = 1.0
WIDTH = 150


def options(arguments: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser("client_vs_peers", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=3, help="each starts every server anew (3)")
    parser.add_argument("--seconds", type=float, default=5, help="of one line; backlogs are scaled with it (5)")
    parser.add_argument("--warm", type=float, default=3, help="seconds of sends before anything counts (3)")
    parser.add_argument("--only", help=f"lines, with commas between: {', '.join(EVERYTHING)} (all)")
    parser.add_argument("--peers", help=f"with commas between: {', '.join(PEERS)}, or none (all)")
    parser.add_argument(
        "--cache", type=Path, default=default_cache(), help="where what is fetched is kept (%(default)s)"
    )
    chosen = parser.parse_args(arguments)
    if chosen.rounds < 1 or chosen.seconds <= 0 or chosen.warm < 0:
        parser.error("--rounds and --seconds must be positive")
    try:
        selected_lines(chosen.only), selected_contestants(chosen.peers)
    except ValueError as reason:
        parser.error(str(reason))
    return chosen


class Measurement:
    """The rounds, and what they gave so far."""

    def __init__(self, chosen: argparse.Namespace) -> None:
        self._chosen = chosen
        self._cache = Cache(chosen.cache)
        self._pythons: dict[str, Path] = {}
        self._topics = count(1)
        self.lines = selected_lines(chosen.only)
        self.contestants = selected_contestants(chosen.peers)
        self.samples: list[Sample] = []
        #: Why a contestant does not take part.
        self.absent: dict[str, str] = {}

    def fetch(self) -> None:
        """Everything that has to be had, before anything is measured."""
        for one in self.contestants:
            try:
                servers.have(one.server, self._cache)
                self._pythons[one.key] = self._cache.python(one.packages) if one.packages else Path(sys.executable)
            except CannotBeHad as reason:
                self.absent[one.key] = str(reason)
                _say(f"{one.name} cannot be had: {reason}")
        self.contestants = [one for one in self.contestants if one.key not in self.absent]

    def round(self, number: int) -> None:
        kinds = list(dict.fromkeys(one.server for one in self.contestants))
        for kind in kinds if number % 2 else reversed(kinds):
            members = [one for one in self.contestants if one.server == kind]
            self._starts(members, number)
            if any(line.key != "start" for line in self.lines):
                self._life(kind, members, number)

    # --- One server's life -------------------------------------------------------------------------------------------

    def _starts(self, members: Sequence[Contestant], number: int) -> None:
        """A life of its own for each client of a server."""
        for line in self.lines:
            if line.key == "start":
                for one in members:
                    self._take(line, one, number, partial(self._server_start, one))

    def _life(self, kind: str, members: Sequence[Contestant], number: int) -> None:
        try:
            with self._server(kind) as server:
                server.launch()
                self._warm(server, members)
                for place, line in enumerate(line for line in self.lines if line.key != "start"):
                    for one in members if (number + place) % 2 else reversed(members):
                        self._take(line, one, number, partial(self._work, line, one, server))
        except (ServerFailed, WorkerFailed) as reason:
            _say(f"  {kind} failed: {reason}")
            self.samples += [
                Sample(line.key, one.key, number, failure=str(reason))
                for one in members
                for line in self.lines
                if line.key in one.lines and line.key != "start"
            ]

    @contextmanager
    def _server(self, kind: str) -> Iterator[Server]:
        with work_directory() as directory:
            server = servers.KINDS[kind](self._cache, directory.resolve() / kind)
            server.prepare()
            os.sync()  # what another one wrote is not this one's to wait for
            try:
                yield server
            finally:
                server.end()

    def _warm(self, server: Server, members: Sequence[Contestant]) -> None:
        """Until a message goes through, then sends: a just-in-time compiler needs some hundred thousand."""
        for one in members:
            self._run(one, server, "first")
            if self._chosen.warm:
                self._run(one, server, "window", seconds=self._chosen.warm, warm=0.0)

    # --- One line ----------------------------------------------------------------------------------------------------

    def _take(self, line: Line, one: Contestant, number: int, measure: Callable[[], dict[str, Any]]) -> None:
        if line.key not in one.lines:
            return
        try:
            taken = Sample(line.key, one.key, number, figures_of(line, measure()))
        except (WorkerFailed, ServerFailed) as reason:
            taken = Sample(line.key, one.key, number, failure=str(reason))
        self.samples.append(taken)
        figures = "  ".join(f"{name} {report.shown(value)}" for name, value in taken.figures.items())
        _say(f"  round {number}  {line.key:13} {one.name:24} {figures or taken.failure}")

    def _server_start(self, one: Contestant) -> dict[str, Any]:
        """The client is loaded and waits; then the server is started, and a message goes through."""
        with self._server(one.server) as server:
            task = self._task("first", server, self._new_topic())
            with worker(self._pythons[one.key], one, task) as client:
                client.await_ready()
                began = time.perf_counter()
                server.launch()
                server.make_room(task.topic, task.group)
                client.say_go()
                client.result()
                return {"seconds": time.perf_counter() - began}

    def _work(self, line: Line, one: Contestant, server: Server) -> dict[str, Any]:
        if line.key == "client-start":
            return self._run(one, server, "first")
        if line.key != "backlog":
            return self._run(one, server, line.works[-1])
        backlog = max(100, int(one.backlog * self._chosen.seconds / BACKLOG_SECONDS))
        topic = self._new_topic()
        filler = BY_KEY.get(one.filled_by, one)
        filler = filler if filler.key in self._pythons else one
        self._run(filler, server, "fill", topic=topic, count=backlog)
        return self._run(one, server, "backlog", topic=topic, count=backlog)

    def _run(self, one: Contestant, server: Server, work: str, **changes: Any) -> dict[str, Any]:
        task = self._task(work, server, changes.pop("topic", "") or self._new_topic())
        task = replace(task, options=one.options, **changes)
        server.make_room(task.topic, task.group)
        with worker(self._pythons[one.key], one, task) as client:
            if work != "first":
                return client.result()
            client.say_go()
            client.result()
            return {"seconds": time.perf_counter() - client.started}

    def _task(self, work: str, server: Server, topic: str) -> Task:
        seconds = self._chosen.seconds
        return Task(work, server.address, topic, f"group-{topic}", seconds, min(MOST_WARM_S, seconds / 5))

    def _new_topic(self) -> str:
        return f"bench-{next(self._topics)}"


def setting(chosen: argparse.Namespace, kinds: Collection[str]) -> dict[str, Any]:
    """What the figures depend on; `kinds` of servers took part."""
    model = re.search(r"^model name\s*: (.*)$", Path("/proc/cpuinfo").read_text("utf-8"), re.MULTILINE)
    return {
        **{name: str(value) if isinstance(value, Path) else value for name, value in vars(chosen).items()},
        "when": datetime.now(UTC).isoformat(timespec="seconds"),
        "cores": os.cpu_count(),
        "processor": model[1] if model else platform.machine(),
        "kernel_release": platform.release(),
        "python": platform.python_version(),
        "kernel": os.environ.get("PYROMQ_KERNEL", ""),
        "servers": servers.versions(Cache(chosen.cache), kinds),
    }


def publish(measured: Measurement, chosen: argparse.Namespace, results: Path = RESULTS) -> Path:
    parts = (measured.lines, measured.contestants, measured.samples)
    _show(f"One Python process each, 1 KiB, medians of {chosen.rounds} rounds", report.rows(*parts), report.COLUMNS)
    _show("Wanted", report.verdict_rows(measured.samples), report.WANTED_COLUMNS)
    _show("Settings", report.setting_rows(measured.contestants), report.SETTING_COLUMNS, text=True)
    for note in report.notes(*parts):
        _say(f"· {note}")
    for key, reason in measured.absent.items():
        _say(f"· {BY_KEY[key].name} did not take part: {reason}")
    results.mkdir(parents=True, exist_ok=True)
    file = results / f"client_vs_peers-{datetime.now(UTC):%Y%m%dT%H%M%SZ}.json"
    kinds = {one.server for one in measured.contestants}
    facts = report.as_json(setting(chosen, kinds), *parts, measured.absent)
    file.write_text(json.dumps(facts, indent=1, ensure_ascii=False) + "\n", "utf-8")
    return file


def _show(title: str, rows: list[report.Row], columns: report.Row, *, text: bool = False) -> None:
    if not rows:
        return
    table = Table(title=title, title_justify="left")
    for place, column in enumerate(columns):
        table.add_column(column, justify="left" if text or place < 2 else "right")
    for row in rows:
        table.add_row(*row)
    Console(width=WIDTH).print(table)


def _say(line: str) -> None:
    print(line, flush=True)


def main() -> int:
    chosen = options()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # so that servers are ended then, too
    measured = Measurement(chosen)
    try:
        measured.fetch()
        for number in range(1, chosen.rounds + 1):
            measured.round(number)
    except KeyboardInterrupt:
        _say("stopped; every server is ended and its data is removed")
        return 130
    _say(f"everything is in {publish(measured, chosen)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
