"""Check whether static roles can lose acknowledged messages at a promotion.

Without agreement between brokers, a master that was replaced and does not know it yet keeps acknowledging together
with the brokers that still follow it. So an acknowledged message survives every promotion only if the acknowledgement
waited for all brokers of the name.
"""

from __future__ import annotations

from pyromq.config.broker import BrokerConfig


def unsafe_acknowledgements(config: BrokerConfig, known_brokers: int = 1) -> str | None:
    """Return why a promotion may lose acknowledged messages of this sync master; `None` if it cannot, or if it is none.

    `known_brokers` is the number of known brokers of this name, including this one.
    """
    if config.role != "SYNC_MASTER":
        return None
    settings = config.replication
    brokers = max(2, settings.total, len(settings.members) + 1, known_brokers)
    waits_for = min(config.copies, settings.min_in_sync) if settings.adapts else config.copies
    if waits_for >= brokers:
        return None
    without = " without replication.adapts (enableAutoInSyncReplicas)" if settings.adapts else ""
    return (
        f"this sync master acknowledges what {waits_for} of {brokers} brokers have, so that a promotion can lose "
        "acknowledged messages: static roles are safe for two brokers, and for more if every acknowledgement waits for "
        f"all of them; set replication.copies (inSyncReplicas) = {brokers}{without}"
    )
