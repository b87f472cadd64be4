"""Settings of replication between the master and the slaves of a broker name.

Filter for the hosts that may replicate a broker's log (`replication.allowed_hosts`).
"""

from __future__ import annotations

import ipaddress
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from pyromq.config.checks import KIB, MIB, require, require_address, require_at_least, require_host, require_port
from pyromq.config.members import ConfiguredMember, parse_members


def is_network(text: str) -> bool:
    """Return whether the text is an address or a network such as 10.1.0.0/16."""
    try:
        ipaddress.ip_network(text)
    except ValueError:
        return False
    return True


def host_filter(networks: Sequence[str]) -> Callable[[str], bool]:
    """Return a test for membership in these networks; without networks it accepts every host."""
    known = [ipaddress.ip_network(one) for one in networks]

    def is_admitted(host: str) -> bool:
        try:
            address = ipaddress.ip_address(host.partition("%")[0])
        except ValueError:
            return not known
        address = getattr(address, "ipv4_mapped", None) or address
        return not known or any(address in network for network in known)

    return is_admitted


VISIBILITY = ("acknowledged", "replicated", "immediate")


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicationConfig:
    """Replication of the log from the master to its slaves, and the copies that a send waits for."""

    #: Port for slaves. 0: `listen_port` + 1, or any free port if `listen_port` is 0.
    listen_port: int = 0
    #: Host that slaves get. Default: the host that clients get.
    advertise_host: str | None = None
    #: On a slave: replication address of its master. Default: the address that name servers report.
    primary: str | None = None
    #: Copies of an acknowledged message, including the master's own. 0: two for `SYNC_MASTER`, else one. RocketMQ 5
    #: defaults to one, so that its `SYNC_MASTER` acknowledges messages that no slave has.
    copies: int = 0
    #: Number of brokers of this name, including the master: the upper bound of `copies` and `min_in_sync`. 0: unknown.
    total: int = 0
    #: Refuse sends while fewer replicas than this are in sync, including the master.
    min_in_sync: int = 1
    #: Wait for all in-sync slaves, even if they are more than `copies`.
    all_in_sync: bool = False
    #: While fewer than `copies` replicas are in sync, wait for those that are, but at least for `min_in_sync`.
    adapts: bool = False
    #: The part of its log that a sync master shows to consumers. `acknowledged`: nothing above the acknowledged mark.
    #: `replicated`: the same, but everything after too few slaves have been in sync for `timeout_ms`. `immediate`:
    #: everything, as RocketMQ does. With the last two a group that read an unreplicated message skips the message
    #: that gets its queue offset after a fail-over. Always `acknowledged` if `min_in_sync` is above 1.
    visibility: str = "acknowledged"
    #: Timeout of a send that waits for slaves. Its answer then says that the message is stored on the master only.
    timeout_ms: int = 3_000
    #: Send a heartbeat after this long without other traffic.
    heartbeat_ms: int = 5_000
    #: Close a replication connection after this long without a frame from the peer.
    peer_timeout_ms: int = 20_000
    #: Most log bytes of one frame.
    batch_bytes: int = 1 * MIB
    #: A slave that lags by more than this is not in sync.
    max_gap_bytes: int = 256 * MIB
    #: Send an empty slave the whole log. Off: from the newest segment on, as RocketMQ does.
    whole_log: bool = True
    #: Interval at which a slave copies all topics, groups and offsets.
    metadata_interval_ms: int = 10_000
    #: Interval at which a slave copies changed offsets from a PyroMQ master. A fail-over delivers again the messages
    #: that were consumed during the last interval.
    progress_interval_ms: int = 1_000
    #: Addresses and networks (10.1.0.0/16) that may replicate the log. Default: any host that reaches the port, which
    #: has no password and hands out all messages.
    allowed_hosts: tuple[str, ...] = ()
    #: File with the secret that the brokers of this name and the commands that promote them share. Copy it to each
    #: machine, mode 600. Default: PYROMQ_SECRET_FILE, else `~/.config/pyromq/secret`, created at first use.
    secret_file: Path | None = None
    #: The other brokers of this name, as ID@HOST:PORT with broker id and address. They are trusted without the shared
    #: secret: needed for Apache RocketMQ's brokers and for machines that cannot share the secret.
    members: tuple[str, ...] = ()
    #: Redirect consumers that lag far behind to a slave.
    read_from_slaves: bool = False
    #: A consumer lags far behind if its next message is further from the end of the log than this share of memory,
    #: in percent.
    memory_percent: int = 40

    def __post_init__(self) -> None:
        require_port("replication.listen_port", self.listen_port)
        if self.advertise_host is not None:
            require_host("replication.advertise_host", self.advertise_host)
        if self.primary is not None:
            require_address("replication.primary", self.primary)
        for network in self.allowed_hosts:
            require(
                is_network(network),
                "replication.allowed_hosts",
                network,
                "it is an address or a network such as 10.1.0.0/16",
            )
        parse_members(self.members)
        require_at_least(0, "replication.copies", self.copies)
        require_at_least(1, "replication.min_in_sync", self.min_in_sync)
        require_at_least(0, "replication.total", self.total)
        for name in ("copies", "min_in_sync"):
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
        intervals = ("timeout_ms", "heartbeat_ms", "peer_timeout_ms", "metadata_interval_ms", "progress_interval_ms")
        for name in (*intervals, "max_gap_bytes"):
            require_at_least(1, f"replication.{name}", getattr(self, name))
        require(
            self.peer_timeout_ms > self.heartbeat_ms,
            "replication.peer_timeout_ms",
            self.peer_timeout_ms,
            f"it must be longer than heartbeat_ms ({self.heartbeat_ms}), or every connection times out",
        )
        most = 4 * MIB - KIB  # RocketMQ's slaves read a frame into a buffer of 4 MiB
        require(
            KIB <= self.batch_bytes <= most, "replication.batch_bytes", self.batch_bytes, f"it is {KIB} to {most} bytes"
        )
        require(0 <= self.memory_percent <= 100, "replication.memory_percent", self.memory_percent, "it is 0 to 100")

    @property
    def hides(self) -> bool:
        """Return whether messages of a sync master stay invisible until slaves have them."""
        return self.min_in_sync > 1 or self.visibility != "immediate"

    @property
    def hides_when_alone(self) -> bool:
        """Return whether they stay invisible while no slave is connected, too."""
        return self.min_in_sync > 1 or self.visibility == "acknowledged"

    @property
    def configured_members(self) -> tuple[ConfiguredMember, ...]:
        """The other brokers of this name, as `members` lists them."""
        return parse_members(self.members)

    def copies_for(self, role: str) -> int:
        """Copies that a send waits for in a role; 1 if it waits for no slave."""
        if role != "SYNC_MASTER":
            return 1
        return max(self.copies or 2, self.min_in_sync)
