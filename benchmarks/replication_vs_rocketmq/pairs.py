"""A name server, a master and perhaps a slave, as processes; both systems with the same settings files.

What they wrote is read from their files, through the page cache, and not asked for over the network: whoever looks
takes nothing from those who are looked at.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from broker_vs_rocketmq import remoting
from broker_vs_rocketmq.loads import QUEUES, SEND_TOPIC, WARM_TOPIC
from broker_vs_rocketmq.measure import cpu_seconds
from broker_vs_rocketmq.servers import END_TIMEOUT_S, ServerFailed, System, inside

from interop.support import apache
from replication_vs_rocketmq.wanted import SYNC

#: The slave's ports are above the master's, and below those of the other system.
SLAVE_PORTS_ABOVE = 8
#: Until a slave has what its master has.
LEVEL_TIMEOUT_S = 60
LOOK_INTERVAL_S = 0.05
#: Both are at rest when they used less than this share of a processor for so long. A JVM never is.
IDLE_SHARE, REST_INTERVAL_S, LONGEST_REST_S = 0.1, 0.3, 6.0
RUNTIME_INFO = 28


@dataclass(slots=True)
class Pair(System):
    """One of the two systems; the slave comes and goes."""

    slave: subprocess.Popen[bytes] | None = None
    _lives: int = field(default=0, init=False)

    @property
    def broker_pid(self) -> int:
        """The master's."""
        return self._processes[1].pid

    @property
    def slave_ports(self) -> apache.Ports:
        return apache.Ports(self.ports.namesrv, self.ports.broker + SLAVE_PORTS_ABOVE)

    @property
    def master_store(self) -> Path:
        return self.directory / f"master-{self._lives}"

    @property
    def slave_store(self) -> Path:
        return self.directory / f"slave-{self._lives}"

    def _settings(self) -> dict[str, str]:
        return {**System._settings(self), "registerNameServerPeriod": "10000"}

    def lead(self, mode: str) -> None:
        """A new master over an empty store; with the slave that it waits for, if it does."""
        self.end()
        for store in (self.master_store, self.slave_store):
            shutil.rmtree(store, ignore_errors=True)
        self._lives += 1
        self.directory.mkdir(parents=True, exist_ok=True)
        self._launch(self.recipe.name_server, "nameserver", apache.namesrv_conf(self.ports, self.directory))
        self._answers(self.ports.namesrv, None)
        role = {"brokerRole": "SYNC_MASTER", "inSyncReplicas": "2"} if mode == SYNC else {"brokerRole": "ASYNC_MASTER"}
        settings = apache.broker_conf(self.ports, self.master_store)
        self._launch(self.recipe.broker, "master", {**settings, **self._settings(), **role})
        self._answers(self.ports.broker, None)
        if mode == SYNC:
            self.start_slave()
        self._answers(self.ports.broker, remoting.send_one("bench_probe", int(time.time() * 1000)))
        for topic in (SEND_TOPIC, WARM_TOPIC):
            inside(partial(remoting.ask, self.ports.broker, remoting.create_topic(topic, QUEUES)))

    def start_slave(self) -> None:
        """The first of a life is a cold one: its store is empty."""
        settings = apache.broker_conf(self.slave_ports, self.slave_store) | self._settings()
        settings |= {"brokerRole": "SLAVE", "brokerId": "1"}  # where its master is, the name server tells both
        self._launch(self.recipe.broker, "slave", settings)
        self.slave = self._processes[-1]

    def end_slave(self) -> None:
        if self.slave is not None:
            self.slave.kill()
            self.slave.wait(END_TIMEOUT_S)
            self._processes.remove(self.slave)
            self.slave = None

    def end(self) -> None:
        System.end(self)
        self.slave = None

    def cpu_seconds(self) -> tuple[float, float]:
        """Of the master and of the slave, so far."""
        return _used(self.broker_pid), _used(self.slave.pid) if self.slave is not None else 0.0

    def master_end(self) -> int:
        return log_end(self.ports.broker)

    def until_level(self) -> int:
        """Where both logs end, once they do at the same place: a slave may have to connect again after a pause."""
        ends = (-1, 0)

        def are_level() -> bool:
            nonlocal ends
            ends = log_end(self.ports.broker), log_end(self.slave_ports.broker)
            return ends[0] == ends[1]

        self.until(are_level, "slave and master are level")
        return ends[0]

    def until_at_rest(self) -> None:
        """What came before is done, or has had its time: queues and index of a slave are behind its log for a while."""
        used = sum(self.cpu_seconds())
        for _ in range(int(LONGEST_REST_S / REST_INTERVAL_S)):
            time.sleep(REST_INTERVAL_S)
            before, used = used, sum(self.cpu_seconds())
            if used - before < IDLE_SHARE * REST_INTERVAL_S:
                return

    def until(self, holds: Callable[[], bool], what: str, every_s: float = LOOK_INTERVAL_S) -> None:
        deadline = time.monotonic() + LEVEL_TIMEOUT_S
        while not _holds(holds):
            if time.monotonic() > deadline or any(process.poll() is not None for process in self._processes):
                raise ServerFailed(f"{self.name}: not within {LEVEL_TIMEOUT_S} s: {what}\n{self.said()}")
            time.sleep(every_s)


def _holds(holds: Callable[[], bool]) -> bool:
    try:
        return holds()
    except (OSError, remoting.Refused):
        return False


def _used(pid: int) -> float:
    return cpu_seconds(Path(f"/proc/{pid}/stat").read_text("utf-8"))


def log_end(port: int) -> int:
    """In a broker's own words."""
    table = json.loads(inside(partial(remoting.asked, port, remoting.frame(RUNTIME_INFO, {}))))["table"]
    return int(table["commitLogMaxOffset"])
