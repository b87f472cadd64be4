"""State of replication and disks that brokers report.

RocketMQ has no such figures: of its brokers nothing is known here.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

SLAVE = "SLAVE"
_OF_SLAVE = "pyromq.slave."
_LAG = re.compile(r"has (\d{1,19}), lacks (\d{1,19}) bytes for (\d{1,19}) ms")


@dataclass(frozen=True, slots=True)
class Slave:
    """One that copies a master, as the master sees it."""

    #: Its end of the connection.
    connection: str
    is_in_sync: bool = False
    #: Everything below is in its log.
    has: int = 0
    #: Bytes that it lacks, and since when.
    lag_bytes: int = 0
    lag_ms: int = 0
    #: Which broker that is, where it answers itself.
    broker_id: int | None = None
    address: str = ""


@dataclass(frozen=True, slots=True)
class Copying:
    """A broker's copies, or the broker as a copy."""

    #: ASYNC_MASTER, SYNC_MASTER or SLAVE.
    role: str
    #: Number of leadership changes in its log.
    epoch: int = 0
    #: Behind the last byte of its log.
    end: int = 0
    #: Of a master: who copies it now.
    slaves: tuple[Slave, ...] = ()
    #: Of a slave: where it copies from, whether it does so now, from which end of the connection, and why not.
    master: str = ""
    is_connected: bool = False
    connection: str = ""
    problem: str = ""
    #: It neither leads nor follows before an operator decides about a fork of its log: `problem` says which.
    is_held: bool = False
    #: Of a slave: why it does not have its master's topics, groups and progress; empty if it has.
    tables_problem: str = ""
    #: Of a slave: behind the last byte that its master was known to have.
    master_end: int = 0
    #: Bytes that the slowest copy lacks, and since when; of a slave, its own.
    lag_bytes: int = 0
    lag_ms: int = 0

    @property
    def is_slave(self) -> bool:
        return self.role == SLAVE

    @property
    def in_sync(self) -> tuple[Slave, ...]:
        return tuple(one for one in self.slaves if one.is_in_sync)

    @property
    def standing(self) -> tuple[int, int]:
        """Sort key: of two logs the larger one has more acknowledged messages."""
        return self.epoch, self.end


@dataclass(frozen=True, slots=True)
class DiskCare:
    """Sync times of the disk, and the bytes that a recovery would scan."""

    flush_last_ms: float = 0.0
    flush_mean_ms: float = 0.0
    flush_p99_ms: float = 0.0
    flush_max_ms: float = 0.0
    #: From the recover point to the end of the log.
    recover_bytes: int = 0


def read_copying(figures: Mapping[str, str]) -> Copying | None:
    """None: the broker says nothing of copies."""
    if "pyromq.role" not in figures:
        return None
    return Copying(
        role=figures["pyromq.role"],
        epoch=whole(figures, "pyromq.epoch"),
        end=whole(figures, "pyromq.logEnd"),
        slaves=tuple(_slaves(figures)),
        master=figures.get("pyromq.master", ""),
        is_connected=figures.get("pyromq.masterConnected") == "true",
        connection=figures.get("pyromq.copiesFrom", ""),
        problem=figures.get("pyromq.copyProblem", ""),
        is_held=figures.get("pyromq.isHeld") == "true",
        tables_problem=figures.get("pyromq.tablesProblem", ""),
        master_end=whole(figures, "pyromq.masterEnd"),
        lag_bytes=whole(figures, "pyromq.replicationLagBytes"),
        lag_ms=whole(figures, "pyromq.replicationLagMs"),
    )


def _slaves(figures: Mapping[str, str]) -> Iterable[Slave]:
    in_sync = figures.get("pyromq.inSync", "").split()
    for name, told in sorted(figures.items()):
        found = _LAG.search(told) if name.startswith(_OF_SLAVE) else None
        if found is not None:
            connection = name.removeprefix(_OF_SLAVE)
            has, lacks, ms = map(int, found.groups())
            yield Slave(connection, connection in in_sync, has, lacks, ms)


def read_disk_care(figures: Mapping[str, str]) -> DiskCare | None:
    if "pyromq.recoverBytes" not in figures:
        return None
    return DiskCare(
        flush_last_ms=first(figures, "pyromq.flushLastMs"),
        flush_mean_ms=first(figures, "pyromq.flushMeanMs"),
        flush_p99_ms=first(figures, "pyromq.flushP99Ms"),
        flush_max_ms=first(figures, "pyromq.flushMaxMs"),
        recover_bytes=whole(figures, "pyromq.recoverBytes"),
    )


def with_names(master: Copying, slaves: Mapping[str, tuple[int, str]]) -> Copying:
    """A master that knows its slaves by connection learns which brokers they are: their id and address."""
    told = (
        replace(one, broker_id=slaves[one.connection][0], address=slaves[one.connection][1])
        if one.connection in slaves
        else one
        for one in master.slaves
    )
    return replace(master, slaves=tuple(told))


def whole(figures: Mapping[str, str], name: str) -> int:
    """Return the number; 0 if it is missing or malformed."""
    written = figures.get(name, "")
    return int(written) if re.fullmatch(r"-?[0-9]{1,19}", written) else 0


def first(figures: Mapping[str, str], name: str) -> float:
    """The first of several numbers: that of the shortest span."""
    try:
        return float(figures.get(name, "").split()[0])
    except (IndexError, ValueError):
        return 0.0
