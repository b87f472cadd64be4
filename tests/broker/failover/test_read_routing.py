"""The broker suggested for a reader's next pull."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from pyromq.broker.failover.read_routing import ReadAdvice
from pyromq.config import BrokerConfig, ReplicationConfig, StoreConfig
from pyromq.model.group import GroupConfig

GROUP = GroupConfig("shop", broker_id=0, broker_when_slow=3)
GIB = 1 << 30


@dataclass
class Machine:
    """One with 10 GiB of memory, and 100 GiB of log."""

    role: str = "ASYNC_MASTER"
    read_from_slaves: bool = True
    has_slaves: bool = True

    def advice(self, behind: int | None) -> int:
        more: dict[str, Any] = {"broker_id": 2} if self.role == "SLAVE" else {}
        config = BrokerConfig(
            store=StoreConfig(root=Path("unused")),
            role=self.role,
            replication=ReplicationConfig(read_from_slaves=self.read_from_slaves, memory_percent=40),
            **more,
        )
        asked = ReadAdvice(lambda: config, lambda: 100 * GIB, lambda: self.has_slaves, 10 * GIB)
        return asked.broker_for(GROUP, None if behind is None else 100 * GIB - behind)


@pytest.mark.parametrize(
    ("machine", "behind", "broker"),
    [
        (Machine(), 5 * GIB, 3),
        (Machine(), 4 * GIB, 0),
        (Machine(), None, 0),
        (Machine(has_slaves=False), 5 * GIB, 0),
        (Machine(read_from_slaves=False), 5 * GIB, 0),
        (Machine("SLAVE"), 5 * GIB, 2),
        (Machine("SLAVE"), 4 * GIB, 0),
        (Machine("SLAVE"), None, 0),
        (Machine("SLAVE", read_from_slaves=False), 5 * GIB, 0),
    ],
)
def test_whoever_is_far_behind_reads_from_a_slave(machine: Machine, behind: int | None, broker: int) -> None:
    assert machine.advice(behind) == broker
