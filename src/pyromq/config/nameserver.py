"""Settings of a name server."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from pyromq.config.checks import require_at_least, require_host, require_loopback_or_leave, require_port
from pyromq.config.limits import LimitsConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class NameServerConfig:
    """One name server."""

    #: The address that is bound. Another than loopback needs `allow_public`.
    listen_host: str = "127.0.0.1"
    #: The port that is bound. 0: any free one.
    listen_port: int = 9876
    #: Listen where other machines can connect, although there is no authentication.
    allow_public: bool = False
    #: A broker that asked for no time of its own is forgotten when it was not heard for this long.
    broker_expiry_ms: int = 120_000
    #: How often silent brokers are looked for.
    scan_interval_ms: int = 5_000
    #: Where key–value settings and the order of ordered topics are kept. Not given: in memory only.
    kv_config_path: Path | None = None
    #: Give clients the order setting of a topic with its route. It names queues, so it must be kept up with the topic.
    order_messages_enabled: bool = False
    #: Answer a registration with the order settings of all topics.
    return_order_topics: bool = True
    #: Answer requests for the list of all topics.
    topic_lists_enabled: bool = True
    #: Forget topics that a broker no longer names when it registers.
    delete_topics_with_registration: bool = False
    #: Connections, sizes and times of the network.
    limits: LimitsConfig = field(default_factory=LimitsConfig)

    def __post_init__(self) -> None:
        require_host("listen_host", self.listen_host)
        require_port("listen_port", self.listen_port)
        require_loopback_or_leave(self.listen_host, self.allow_public)
        require_at_least(1, "broker_expiry_ms", self.broker_expiry_ms)
        require_at_least(1, "scan_interval_ms", self.scan_interval_ms)
