"""The broker's fields of every message: in the answer to its sender, and in the message for its consumers.

Clients write region and trace switch into their traces, and a consumer finds the way of its reply by the cluster.
"""

from __future__ import annotations

from functools import lru_cache

from pyromq.broker.delivery import properties
from pyromq.config import BrokerConfig


def receipt_fields(config: BrokerConfig) -> dict[str, str]:
    return {"MSG_REGION": config.region, "TRACE_ON": _true_or_false(config.trace_on)}


def stamp(config: BrokerConfig) -> bytes:
    """The properties that every single message gets, in record form."""
    return _stamp(config.cluster, config.region, config.trace_on)


@lru_cache(16)
def _stamp(cluster: str, region: str, trace_on: bool) -> bytes:
    pairs = ((properties.CLUSTER, cluster), (properties.REGION, region), (properties.TRACE, _true_or_false(trace_on)))
    return b"".join(b"%b\x01%b\x02" % (name, value.encode()) for name, value in pairs)


def stamped(found: bytes, config: BrokerConfig) -> bytes:
    """A message's properties with the broker's own, in place of any that it came with."""
    for name in (properties.CLUSTER, properties.REGION, properties.TRACE):
        found = properties.remove(found, name)
    return properties.joined(found, stamp(config))


def _true_or_false(value: bool) -> str:
    return "true" if value else "false"
