"""Settings of a broker."""

from __future__ import annotations

from dataclasses import dataclass, field

from pyromq.config.checks import (
    GIB,
    MIB,
    require,
    require_address,
    require_at_least,
    require_host,
    require_loopback_or_leave,
    require_name,
    require_port,
)
from pyromq.config.limits import LimitsConfig
from pyromq.config.replication import ReplicationConfig
from pyromq.config.store import StoreConfig

MASTER_ROLES = ("ASYNC_MASTER", "SYNC_MASTER")

#: Bits of `permission`.
READ, WRITE = 4, 2


@dataclass(frozen=True, slots=True, kw_only=True)
class TransactionConfig:
    """When a half message is checked back with its producers, and when that ends."""

    #: Age from which a half message without an answer is checked.
    timeout_ms: int = 6_000
    #: Checks without an answer after which the message is put aside, as if it had been rolled back.
    check_max: int = 15
    #: Time between two rounds of checks.
    check_interval_ms: int = 30_000

    def __post_init__(self) -> None:
        require_at_least(1, "transaction.timeout_ms", self.timeout_ms)
        require_at_least(1, "transaction.check_max", self.check_max)
        require_at_least(1, "transaction.check_interval_ms", self.check_interval_ms)


@dataclass(frozen=True, slots=True, kw_only=True)
class OverloadConfig:
    """When sends are refused with SYSTEM_BUSY because the broker falls behind. 0 switches a sign off."""

    #: The loop is this late: every answer would be.
    loop_lag_ms: int = 200
    #: So many bytes are appended and not synced: the disk does not keep up.
    unsynced_bytes: int = 1 * GIB
    #: So many bytes are appended and not yet visible to consumers.
    undispatched_bytes: int = 256 * MIB
    #: So many sends wait for the disk (`store.flush.sync`).
    waiting_sends: int = 100_000

    def __post_init__(self) -> None:
        require_at_least(0, "overload.loop_lag_ms", self.loop_lag_ms)
        require_at_least(0, "overload.unsynced_bytes", self.unsynced_bytes)
        require_at_least(0, "overload.undispatched_bytes", self.undispatched_bytes)
        require_at_least(0, "overload.waiting_sends", self.waiting_sends)


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerConfig:
    """One broker."""

    #: The brokers of a cluster that hold copies of the same messages share a name.
    name: str = "broker-a"
    #: The cluster that the broker is part of.
    cluster: str = "DefaultCluster"
    #: 0 is the master of its name.
    broker_id: int = 0
    #: `ASYNC_MASTER` acknowledges what it has itself, `SYNC_MASTER` what a slave has too (see `replication.copies`).
    #: `SLAVE` is a copy of the master of its name.
    role: str = "ASYNC_MASTER"
    #: The address that is bound. Another than loopback needs `allow_public`.
    listen_host: str = "127.0.0.1"
    #: The port that is bound. 0: any free one.
    listen_port: int = 10911
    #: Listen at `listen_port` - 2 as well, where clients with their VIP channel switched on send. A port that cannot be
    #: had is done without.
    vip_channel: bool = True
    #: Where clients are told to connect. Not given: `listen_host`.
    advertise_host: str | None = None
    #: The port that clients are told, where a proxy or a port mapping stands before the broker. 0: where it listens.
    advertise_port: int = 0
    #: Listen where other machines can connect, although there is no authentication.
    allow_public: bool = False
    #: Name servers, as host:port. The broker registers with all of them and starts without them.
    name_servers: tuple[str, ...] = ()
    #: Time between two registrations.
    register_interval_ms: int = 30_000
    #: How long one registration may take.
    register_timeout_ms: int = 24_000
    #: How long a name server keeps the broker after the last registration it heard.
    name_server_timeout_ms: int = 120_000
    #: Create a topic when a message for it arrives.
    auto_create_topics: bool = False
    #: Queues of a topic that is created so, at most: a client may ask for fewer.
    default_topic_queues: int = 8
    #: Topics at most, those of retries and dead letters aside; more are refused, however they would be created.
    max_topics: int = 250_000
    #: Consumer groups at most.
    max_groups: int = 100_000
    #: Create a consumer group when a consumer of it connects.
    auto_create_groups: bool = False
    #: What the broker does at all: 6 read and write, 4 read, 2 write. Topics have permissions of their own.
    permission: int = 6
    #: Let consumers choose messages by SQL92 expressions over their properties.
    sql_filters: bool = True
    #: Hold a pull that finds nothing until a message arrives or the time that the client asked for is up.
    long_polling: bool = True
    #: How long such a pull is held when `long_polling` is off.
    short_poll_ms: int = 1_000
    #: Pulls that may be held at once; the next is answered at once, and the client asks again.
    max_held_pulls: int = 100_000
    #: Most messages of one answer to a pull, whatever the client asks for.
    max_pull_messages: int = 8192
    #: Most bytes of one answer to a pull; one message always fits.
    max_pull_bytes: int = 4 * MIB
    #: How long a writer that numbers its messages is remembered after its last one. What it sends again later than that
    #: is not known as a repeat.
    writers_remembered_hours: int = 168
    #: Refuse half messages.
    reject_transactions: bool = False
    #: Half messages and check-back.
    transaction: TransactionConfig = field(default_factory=TransactionConfig)
    #: The topic that traces of messages are sent to.
    trace_topic: str = "RMQ_SYS_TRACE_TOPIC"
    #: Create the trace topic at start.
    trace_topic_enabled: bool = False
    #: Tell clients that they may trace.
    trace_on: bool = True
    #: The region that clients write into traces.
    region: str = "DefaultRegion"
    #: Store the reply of a request–reply exchange before it is handed to the one who asked.
    store_replies: bool = True
    #: Tell the members of a group at once when one joins or leaves.
    notify_members: bool = True
    #: A producer or consumer that sent no heartbeat for this long is forgotten.
    client_expiry_ms: int = 120_000
    #: A queue lock that was not renewed for this long may be taken by another consumer.
    queue_lock_expiry_ms: int = 60_000
    #: How often consumer progress is written to disk.
    offsets_flush_interval_ms: int = 5_000
    #: How often the progress of delayed messages is written to disk. Topics and groups are saved at every change.
    config_flush_interval_ms: int = 10_000
    #: Copies on other machines.
    replication: ReplicationConfig = field(default_factory=ReplicationConfig)
    #: When sends are refused.
    overload: OverloadConfig = field(default_factory=OverloadConfig)
    #: Connections, sizes and times of the network.
    limits: LimitsConfig = field(default_factory=LimitsConfig)
    #: The store directory and how it is kept. Its `max_body_bytes` and `delay_levels` hold for the broker too.
    store: StoreConfig

    def __post_init__(self) -> None:
        self._check_identity()
        self._check_network()
        self._check_topics_and_pulls()
        self._check_times()

    @property
    def client_host(self) -> str:
        """The host that clients and name servers are told."""
        return self.advertise_host or self.listen_host

    @property
    def is_slave(self) -> bool:
        return self.role == "SLAVE"

    @property
    def copies(self) -> int:
        """Of an acknowledged message, this broker's own included."""
        return self.replication.copies_for(self.role)

    def _check_identity(self) -> None:
        require_name("name", self.name)
        require_name("cluster", self.cluster)
        require(self.role in (*MASTER_ROLES, "SLAVE"), "role", self.role, "it is ASYNC_MASTER, SYNC_MASTER or SLAVE")
        require(
            (self.broker_id > 0) == self.is_slave and self.broker_id >= 0,
            "broker_id",
            self.broker_id,
            "the master of a name has 0 and its slaves have numbers of their own from 1 on (role = SLAVE)",
        )
        require_name("trace_topic", self.trace_topic)
        require(bool(self.region.strip()), "region", self.region, "it must not be empty")

    def _check_network(self) -> None:
        require_host("listen_host", self.listen_host)
        require_port("listen_port", self.listen_port)
        require_loopback_or_leave(self.listen_host, self.allow_public)
        if self.advertise_host is not None:
            require_host("advertise_host", self.advertise_host)
        require_port("advertise_port", self.advertise_port)
        require(
            not self.listen_port or self.replication.listen_port != self.listen_port,
            "replication.listen_port",
            self.replication.listen_port,
            "it is the broker's own port (listen_port): slaves need another one, usually the one above",
        )
        for address in self.name_servers:
            require_address("name_servers", address)

    def _check_topics_and_pulls(self) -> None:
        require(1 <= self.default_topic_queues <= 1024, "default_topic_queues", self.default_topic_queues, "1 to 1024")
        require(
            self.permission in (0, READ, WRITE, READ | WRITE),
            "permission",
            self.permission,
            "6 reads and writes, 4 reads, 2 writes, 0 does neither",
        )
        require_at_least(1, "max_topics", self.max_topics)
        require_at_least(1, "max_groups", self.max_groups)
        require_at_least(0, "max_held_pulls", self.max_held_pulls)
        require_at_least(1, "max_pull_messages", self.max_pull_messages)
        require_at_least(1, "max_pull_bytes", self.max_pull_bytes)
        require_at_least(1, "writers_remembered_hours", self.writers_remembered_hours)

    def _check_times(self) -> None:
        for name in (
            "register_interval_ms",
            "register_timeout_ms",
            "short_poll_ms",
            "client_expiry_ms",
            "queue_lock_expiry_ms",
            "offsets_flush_interval_ms",
            "config_flush_interval_ms",
        ):
            require_at_least(1, name, getattr(self, name))
        require(
            self.name_server_timeout_ms > self.register_interval_ms,
            "name_server_timeout_ms",
            self.name_server_timeout_ms,
            f"it must be longer than register_interval_ms ({self.register_interval_ms}), "
            "or the broker is forgotten between two registrations",
        )
