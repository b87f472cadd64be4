"""Settings of a broker."""

from __future__ import annotations

from dataclasses import dataclass, field

from pyromq.config.checks import (
    GIB,
    MIB,
    fixed,
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
    """Transaction checks: the broker asks producers for the outcome of half messages."""

    #: Check a half message when it is this old.
    timeout_ms: int = 6_000
    #: Give a half message up after this many checks without an answer: it moves to `TRANS_CHECK_MAX_TIME_TOPIC`, as
    #: if it had been rolled back.
    check_max: int = 15
    #: Time between two rounds of checks.
    check_interval_ms: int = 30_000

    def __post_init__(self) -> None:
        require_at_least(1, "transaction.timeout_ms", self.timeout_ms)
        require_at_least(1, "transaction.check_max", self.check_max)
        require_at_least(1, "transaction.check_interval_ms", self.check_interval_ms)


@dataclass(frozen=True, slots=True, kw_only=True)
class OverloadConfig:
    """Limits above which sends are refused with SYSTEM_BUSY. 0 disables a limit."""

    #: Refuse sends while the event loop is this late.
    loop_lag_ms: int = 200
    #: Refuse sends above this many unsynced bytes: the disk does not keep up.
    unsynced_bytes: int = 1 * GIB
    #: Refuse sends above this many appended bytes that are not yet dispatched to the queues.
    undispatched_bytes: int = fixed(256 * MIB)
    #: Refuse sends above this many sends that wait for a sync (`store.flush.sync`).
    waiting_sends: int = 100_000

    def __post_init__(self) -> None:
        require_at_least(0, "overload.loop_lag_ms", self.loop_lag_ms)
        require_at_least(0, "overload.unsynced_bytes", self.unsynced_bytes)
        require_at_least(0, "overload.undispatched_bytes", self.undispatched_bytes)
        require_at_least(0, "overload.waiting_sends", self.waiting_sends)


@dataclass(frozen=True, slots=True, kw_only=True)
class IdempotenceConfig:
    """Deduplication of repeated sends: producers with an id number their messages."""

    #: Forget a producer id this long after its last message. A repeat that comes later is stored again.
    retention_hours: int = 168

    def __post_init__(self) -> None:
        require_at_least(1, "idempotence.retention_hours", self.retention_hours)


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerConfig:
    """One broker."""

    #: Broker name. A master and its slaves share one.
    name: str = "broker-a"
    #: Cluster of the broker.
    cluster: str = "DefaultCluster"
    #: 0 for the master of a name, from 1 on for its slaves.
    broker_id: int = 0
    #: `ASYNC_MASTER` acknowledges messages that it has itself, `SYNC_MASTER` messages that slaves have too (see
    #: `replication.copies`), `SLAVE` replicates the master of its name.
    role: str = "ASYNC_MASTER"
    #: Address to bind. Any address but loopback needs `allow_public`.
    listen_host: str = "127.0.0.1"
    #: Port to bind. 0: any free port.
    listen_port: int = 10911
    #: Listen at `listen_port` - 2 as well, for clients with the VIP channel on. Start without it if that port is taken.
    vip_channel: bool = True
    #: Host that clients and name servers get. Default: `listen_host`.
    advertise_host: str | None = None
    #: Port that clients get, for a broker behind a proxy or a port mapping. 0: the bound port.
    advertise_port: int = 0
    #: Bind an address that other machines can reach, although there is no authentication.
    allow_public: bool = False
    #: Name servers, as host:port. The broker registers with all of them, and starts while they are down.
    name_servers: tuple[str, ...] = ()
    #: Time between two registrations.
    register_interval_ms: int = 30_000
    #: Timeout of one registration.
    register_timeout_ms: int = fixed(24_000)
    #: Name servers drop the broker this long after its last registration.
    name_server_timeout_ms: int = fixed(120_000)
    #: Create a topic when its first message arrives.
    auto_create_topics: bool = False
    #: Queues of an automatically created topic, at most: a client may ask for fewer.
    default_topic_queues: int = 8
    #: Most topics, without retry and dead-letter topics. Further topics are refused.
    max_topics: int = 250_000
    #: Most consumer groups.
    max_groups: int = 100_000
    #: Create a consumer group when its first consumer connects.
    auto_create_groups: bool = False
    #: Permission of the broker: 6 read and write, 4 read, 2 write. Topics have their own permission.
    permission: int = 6
    #: Let consumers filter messages with SQL92 expressions over properties.
    sql_filters: bool = True
    #: Hold a pull that finds no messages (long poll) until a message arrives or the client's timeout ends.
    long_polling: bool = True
    #: Hold time of such a pull if `long_polling` is off.
    short_poll_ms: int = fixed(1_000)
    #: Most long polls. Further pulls are answered at once, and the client pulls again.
    max_long_polls: int = fixed(100_000)
    #: Most messages of one pull answer, even if the client asks for more.
    max_pull_messages: int = 8192
    #: Most bytes of one pull answer. One message always fits.
    max_pull_bytes: int = 4 * MIB
    #: Deduplication of repeated sends.
    idempotence: IdempotenceConfig = field(default_factory=IdempotenceConfig)
    #: Refuse half messages.
    reject_transactions: bool = False
    #: Transaction checks.
    transaction: TransactionConfig = field(default_factory=TransactionConfig)
    #: Topic for message traces.
    trace_topic: str = "RMQ_SYS_TRACE_TOPIC"
    #: Create the trace topic at start.
    trace_topic_enabled: bool = False
    #: Let clients trace messages.
    trace_on: bool = True
    #: Region that clients write into traces.
    region: str = "DefaultRegion"
    #: Store the reply of a request–reply exchange before delivering it.
    store_replies: bool = True
    #: Notify the members of a group at once when one joins or leaves.
    notify_members: bool = True
    #: Forget a producer or consumer this long after its last heartbeat.
    client_expiry_ms: int = 120_000
    #: Release a queue lock this long after its last renewal.
    queue_lock_expiry_ms: int = 60_000
    #: Interval at which group offsets are written to disk.
    offsets_flush_interval_ms: int = 5_000
    #: Interval at which delay offsets are written to disk. Topics and groups are written at every change.
    config_flush_interval_ms: int = 10_000
    #: Replication between the master and the slaves of a name.
    replication: ReplicationConfig = field(default_factory=ReplicationConfig)
    #: Overload limits for sends.
    overload: OverloadConfig = field(default_factory=OverloadConfig)
    #: Network limits and timeouts.
    limits: LimitsConfig = field(default_factory=LimitsConfig)
    #: The store directory. Its `max_body_bytes` and `delay_levels` also apply to requests.
    store: StoreConfig

    def __post_init__(self) -> None:
        self._check_identity()
        self._check_network()
        self._check_topics_and_pulls()
        self._check_times()

    @property
    def client_host(self) -> str:
        """The host that clients and name servers get."""
        return self.advertise_host or self.listen_host

    @property
    def is_slave(self) -> bool:
        return self.role == "SLAVE"

    @property
    def copies(self) -> int:
        """Copies of an acknowledged message, including this broker's own."""
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
        require_at_least(0, "max_long_polls", self.max_long_polls)
        require_at_least(1, "max_pull_messages", self.max_pull_messages)
        require_at_least(1, "max_pull_bytes", self.max_pull_bytes)

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
            self.register_interval_ms < self.name_server_timeout_ms,
            "register_interval_ms",
            self.register_interval_ms,
            f"it must be below {self.name_server_timeout_ms}, the time after which name servers drop a broker, "
            "or the broker is forgotten between two registrations",
        )
