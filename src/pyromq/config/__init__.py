"""Settings: frozen dataclasses that document and check their fields.

Each program has one dataclass with nested tables. An invalid value raises `ConfigError` with the setting's name, the
value and the rule.
"""

from pyromq.config.broker import BrokerConfig, IdempotenceConfig, OverloadConfig, TransactionConfig
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
    "IdempotenceConfig",
    "LimitsConfig",
    "NameServerConfig",
    "OverloadConfig",
    "ReplicationConfig",
    "RetentionConfig",
    "StoreConfig",
    "TransactionConfig",
    "parse_delay_levels",
]
