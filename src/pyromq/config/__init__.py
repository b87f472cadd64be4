"""Settings: frozen, explained, checked when they are made.

Each program has one dataclass made of small ones. A value that cannot work raises `ConfigError` with the
setting's name, the value and what would work.
"""

from pyromq.config.broker import BrokerConfig, OverloadConfig, TransactionConfig
from pyromq.config.checks import GIB, KIB, MIB
from pyromq.config.limits import LimitsConfig
from pyromq.config.nameserver import NameServerConfig
from pyromq.config.replication import ReplicationConfig
from pyromq.config.store import DELAY_LEVELS, FlushConfig, RetentionConfig, StoreConfig, parse_delay_levels

__all__ = [
    "DELAY_LEVELS",
    "GIB",
    "KIB",
    "MIB",
    "BrokerConfig",
    "FlushConfig",
    "LimitsConfig",
    "NameServerConfig",
    "OverloadConfig",
    "ReplicationConfig",
    "RetentionConfig",
    "StoreConfig",
    "TransactionConfig",
    "parse_delay_levels",
]
