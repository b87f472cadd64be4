"""Settings of the copies that a broker has, or is."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from pyromq.config.admits import is_network
from pyromq.config.checks import KIB, MIB, require, require_address, require_at_least, require_host, require_port
from pyromq.config.members import ConfiguredMember, parse_members

VISIBILITY = ("acknowledged", "replicated", "immediate")


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicationConfig:
    """How the log gets to slaves, and what a send waits for."""

    #: Where slaves connect. 0: the port above `listen_port`, or any free one if that is 0 too.
    listen_port: int = 0
    #: The address that slaves are told. Not given: the one that clients are told.
    advertise_host: str | None = None
    #: Of a slave: the replication address of its master. Not given: what the name servers say.
    primary: str | None = None
    #: Copies that an acknowledged message has, the master's own included. 0: two under `SYNC_MASTER`, else one.
    #: RocketMQ 5 means one by default, so that its `SYNC_MASTER` waits for nobody.
    copies: int = 0
    #: All brokers of this name, the master included: nobody may ask for more copies than that. 0: not said.
    total: int = 0
    #: With fewer copies in sync than this, the master's own included, messages are refused.
    least_in_sync: int = 1
    #: Wait for all slaves that are in sync, also when they are more than `copies`.
    all_in_sync: bool = False
    #: While fewer slaves are in sync than `copies` asks for, wait for those that are, down to `least_in_sync`.
    adapts: bool = False
    #: How much of its log a sync master shows to consumers. `acknowledged`: nothing above the acknowledged position.
    #: `replicated`: the same, but everything after too few slaves have been in sync for `timeout_ms`. `immediate`:
    #: everything, as RocketMQ does. With the last two a group that read an unreplicated message passes over the message
    #: that gets its queue offset after a fail-over. Always `acknowledged` with `least_in_sync` above 1.
    visibility: str = "acknowledged"
    #: How long a send waits for slaves. Then the client hears that the message is stored here and may be nowhere else.
    timeout_ms: int = 3_000
    #: Each side says a word after so long without one.
    heartbeat_ms: int = 5_000
    #: The other side is gone when it has said nothing for so long.
    silence_ms: int = 20_000
    #: Bytes of the log in one frame, at most.
    batch_bytes: int = 1 * MIB
    #: A slave that is further behind is not in sync.
    max_gap_bytes: int = 256 * MIB
    #: An empty slave gets the whole log; else from the newest file on, as RocketMQ's do.
    whole_log: bool = True
    #: How often a slave copies all topics, groups and progress.
    metadata_interval_ms: int = 10_000
    #: How often a slave copies the progress that changed, from a master of PyroMQ's: what consumers did in this time
    #: before a fail-over is delivered again.
    progress_interval_ms: int = 1_000
    #: Addresses and networks (10.1.0.0/16) that may copy the log. Not given: everybody who reaches the port, which asks
    #: for no password and gives all messages.
    admits: tuple[str, ...] = ()
    #: The file with the secret that all brokers of this name share, and the tools that promote them: copy it to each
    #: machine, mode 600. Not given: PYROMQ_SECRET_FILE, else `~/.config/pyromq/secret`, which is created at first use.
    secret_file: Path | None = None
    #: The other brokers of this name, each as ID@HOST:PORT with its broker id and address. They are believed without
    #: the shared secret: needed for brokers of Apache RocketMQ, and for those that cannot share the secret.
    members: tuple[str, ...] = ()
    #: Send readers who are far behind to a slave.
    read_from_slaves: bool = False
    #: A reader is far behind when what it asks for is older than this share of the machine's memory, in percent.
    memory_percent: int = 40

    def __post_init__(self) -> None:
        require_port("replication.listen_port", self.listen_port)
        if self.advertise_host is not None:
            require_host("replication.advertise_host", self.advertise_host)
        if self.primary is not None:
            require_address("replication.primary", self.primary)
        for network in self.admits:
            require(
                is_network(network), "replication.admits", network, "it is an address or a network such as 10.1.0.0/16"
            )
        parse_members(self.members)
        require_at_least(0, "replication.copies", self.copies)
        require_at_least(1, "replication.least_in_sync", self.least_in_sync)
        require_at_least(0, "replication.total", self.total)
        for name in ("copies", "least_in_sync"):
            require(
                not self.total or getattr(self, name) <= self.total,
                f"replication.{name}",
                getattr(self, name),
                f"there are {self.total} brokers altogether (replication.total, totalReplicas)",
            )
        require(
            self.visibility in VISIBILITY, "replication.visibility", self.visibility,
            f"it is one of {', '.join(VISIBILITY)}",
        )  # fmt: skip
        intervals = ("timeout_ms", "heartbeat_ms", "silence_ms", "metadata_interval_ms", "progress_interval_ms")
        for name in (*intervals, "max_gap_bytes"):
            require_at_least(1, f"replication.{name}", getattr(self, name))
        require(
            self.silence_ms > self.heartbeat_ms,
            "replication.silence_ms",
            self.silence_ms,
            f"it must be longer than heartbeat_ms ({self.heartbeat_ms}), or nobody is ever heard in time",
        )
        most = 4 * MIB - KIB  # RocketMQ's slaves read a frame into a buffer of 4 MiB
        require(
            KIB <= self.batch_bytes <= most, "replication.batch_bytes", self.batch_bytes, f"it is {KIB} to {most} bytes"
        )
        require(0 <= self.memory_percent <= 100, "replication.memory_percent", self.memory_percent, "it is 0 to 100")

    @property
    def hides(self) -> bool:
        """Where a send waits for slaves: do readers, too?"""
        return self.least_in_sync > 1 or self.visibility != "immediate"

    @property
    def hides_when_alone(self) -> bool:
        """Also while no slave is there?"""
        return self.least_in_sync > 1 or self.visibility == "acknowledged"

    @property
    def configured_members(self) -> tuple[ConfiguredMember, ...]:
        """The other brokers of this name that the settings vouch for."""
        return parse_members(self.members)

    def copies_for(self, role: str) -> int:
        """What a send waits for in a role: 1 means for nobody."""
        if role != "SYNC_MASTER":
            return 1
        return max(self.copies or 2, self.least_in_sync)
