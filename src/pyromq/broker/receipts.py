"""What every answer to a send tells besides where the message is: clients write it into their traces."""

from __future__ import annotations

from pyromq.config import BrokerConfig


def receipt_fields(config: BrokerConfig) -> dict[str, str]:
    return {"MSG_REGION": config.region, "TRACE_ON": "true" if config.trace_on else "false"}
