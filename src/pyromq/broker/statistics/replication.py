"""The replication figures of a master or a slave, for people, tools and metrics."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from pyromq.broker.delivery.ack_mark import AckMark
from pyromq.broker.failover.replication import Replicating
from pyromq.clock import Clock
from pyromq.config import BrokerConfig
from pyromq.metrics import Telemetry
from pyromq.replication.followers import Follower, Followers
from pyromq.replication.replica import Replica
from pyromq.store.message_store import MessageStore
from pyromq.wire.bodies.replication import SlaveStatus, encode_master, encode_slave


class Lag(NamedTuple):
    """The lag of a replica: the bytes that it lacks, and the time since it lacked none."""

    size: int
    ms: int


class CopyFigures:
    """Computed on request."""

    def __init__(
        self,
        config: Callable[[], BrokerConfig],
        store: MessageStore,
        copies: Replicating,
        ack_mark: AckMark,
        clock: Clock,
        tables_problem: Callable[[], str | None],
    ) -> None:
        """`tables_problem`: why a slave does not have its master's topics, groups and progress."""
        self._tables_problem = tables_problem
        self._config = config
        self._store = store
        self._copies = copies
        self._ack_mark = ack_mark
        self._clock = clock

    def show_in(self, telemetry: Telemetry) -> None:
        telemetry.gauge("pyromq_replication_is_master", lambda: int(self._copies.replica is None))
        telemetry.gauge("pyromq_replication_epoch", lambda: self.epoch)
        telemetry.gauge("pyromq_replication_slaves", lambda: len(self._followers))
        telemetry.gauge("pyromq_replication_slaves_in_sync", lambda: len(self._ack_mark.in_sync()))
        telemetry.gauge("pyromq_replication_lag_bytes", lambda: self.lag().size)
        telemetry.gauge("pyromq_replication_lag_seconds", lambda: self.lag().ms / 1000)
        telemetry.gauge("pyromq_replication_replicated_bytes", self.replicated_to)

    @property
    def _followers(self) -> Followers:
        primary = self._copies.primary
        return primary.followers if primary is not None else Followers()

    @property
    def _end(self) -> int:
        return self._store.positions().written

    @property
    def epoch(self) -> int:
        """The largest number that is known here; 0: none."""
        return self._copies.number

    def replicated_to(self) -> int:
        """Everything below is in a second log, as a follower with an identity says."""
        if self._copies.replica is not None:
            return self._end
        said = [one.reported for one in self._followers.by_name.values() if one.identity is not None]
        return min(max(said, default=0), self._end)

    def lag(self) -> Lag:
        """Of the slave that is furthest behind; of a slave, its own."""
        replica = self._copies.replica
        if replica is not None:
            return self._own_lag(replica)
        lags = [self._lag_of(one) for one in self._followers.by_name.values()]
        return Lag(max((lag.size for lag in lags), default=0), max((lag.ms for lag in lags), default=0))

    def _lag_of(self, follower: Follower) -> Lag:
        size = follower.lag(self._end)
        return Lag(size, int(self._clock.monotonic() * 1000) - follower.level_ms if size else 0)

    def _own_lag(self, replica: Replica) -> Lag:
        """Return the bytes that the master announced and this slave lacks. Without a connection only the time grows."""
        size = max(replica.state.primary_end - self._end, 0)
        if (size == 0 and replica.state.connected) or replica.level_ms is None:
            return Lag(size, 0)
        return Lag(size, max(int(self._clock.monotonic() * 1000) - replica.level_ms, 0))

    # --- in the forms that are asked for -----------------------------------------------------------------------------

    def figures(self) -> dict[str, object]:
        """For the runtime info. RocketMQ has no such fields."""
        lag = self.lag()
        return {
            "pyromq.role": self._config().role,
            "pyromq.brokerId": self._config().broker_id,
            "pyromq.epoch": self.epoch,
            "pyromq.logEnd": self._end,
            "pyromq.replicationLagBytes": lag.size,
            "pyromq.replicationLagMs": lag.ms,
            "pyromq.replicatedTo": self.replicated_to(),
            **(self._of_master() if self._copies.replica is None else self._of_slave(self._copies.replica)),
        }

    def _of_master(self) -> dict[str, object]:
        in_sync = self._ack_mark.in_sync()
        told: dict[str, object] = {
            "pyromq.haAddress": self._copies.address,
            "pyromq.copies": self._config().copies,
            "pyromq.slaves": len(self._followers),
            "pyromq.slavesInSync": len(in_sync),
            "pyromq.inSync": " ".join(sorted(in_sync)),
        }
        for name, follower in self._followers.by_name.items():
            lag = self._lag_of(follower)
            counts = "" if follower.identity is not None else ", does not count for acknowledgements"
            told[f"pyromq.slave.{name}"] = f"has {follower.reported}, lacks {lag.size} bytes for {lag.ms} ms{counts}"
        return told

    def _of_slave(self, replica: Replica) -> dict[str, object]:
        state = replica.state
        return {
            "pyromq.master": state.primary or "",
            "pyromq.masterConnected": str(state.connected).lower(),
            "pyromq.masterEnd": state.primary_end,
            "pyromq.copiesFrom": replica.own_address,
            "pyromq.copyProblem": self._copies.problem,
            "pyromq.isHeld": str(self._copies.is_held).lower(),
            "pyromq.tablesProblem": self._tables_problem() or "",
        }

    def encoded(self) -> bytes:
        """For `mqadmin haStatus`."""
        replica = self._copies.replica
        if replica is not None:
            return encode_slave(self._end, replica.state.primary, connected=replica.state.connected)
        in_sync = self._ack_mark.in_sync()
        return encode_master(
            self._end,
            [SlaveStatus(one.name, one.reported, one.sent, one.name in in_sync)
             for one in self._followers.by_name.values()],
        )  # fmt: skip
