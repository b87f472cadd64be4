"""Settings of a name server."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from pyromq.config.checks import fixed, require_at_least, require_host, require_loopback_or_leave, require_port
from pyromq.config.limits import LimitsConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class NameServerConfig:
    """One name server."""

    #: Address to bind. Any address but loopback needs `allow_public`.
    listen_host: str = "127.0.0.1"
    #: Port to bind. 0: any free port.
    listen_port: int = 9876
    #: Bind an address that other machines can reach, although there is no authentication.
    allow_public: bool = False
    #: Drop a broker this long after its last registration, unless it registered with a timeout of its own.
    broker_expiry_ms: int = 120_000
    #: Interval at which expired brokers are dropped.
    scan_interval_ms: int = fixed(5_000)
    #: File of the key–value settings, including the order settings of topics. Default: in memory only.
    kv_config_path: Path | None = None
    #: Send clients the order setting of a topic with its route. It names queues: update it with the topic.
    order_messages_enabled: bool = False
    #: Answer a registration with the order settings of all topics.
    return_order_topics: bool = fixed(True)
    #: Answer requests for the list of all topics.
    topic_lists_enabled: bool = True
    #: Drop topics that a broker no longer lists when it registers.
    delete_topics_with_registration: bool = False
    #: Network limits and timeouts.
    limits: LimitsConfig = field(default_factory=LimitsConfig)

    def __post_init__(self) -> None:
        require_host("listen_host", self.listen_host)
        require_port("listen_port", self.listen_port)
        require_loopback_or_leave(self.listen_host, self.allow_public)
        require_at_least(1, "broker_expiry_ms", self.broker_expiry_ms)
        require_at_least(1, "scan_interval_ms", self.scan_interval_ms)
