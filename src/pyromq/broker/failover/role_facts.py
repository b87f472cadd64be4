"""The facts that a broker needs about its role before it serves: its role, the other members, and how to ask them."""

from __future__ import annotations

from dataclasses import dataclass

from pyromq.broker.failover.fencing import Fencing
from pyromq.broker.failover.members import Others
from pyromq.broker.failover.role import Leading
from pyromq.net.client import Client


@dataclass(slots=True)
class Role:
    """Handed to the parts that need it."""

    client: Client
    leading: Leading
    others: Others
    fencing: Fencing
    #: It was to lead, and found that another one does.
    has_stood_down: bool = False
