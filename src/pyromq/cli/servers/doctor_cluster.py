"""The part of `pyromq doctor` that looks at a cluster: does everybody answer, how fast, and do the clocks agree?"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from pyromq.cli import output
from pyromq.cli.connecting import require
from pyromq.cli.reaching import connection
from pyromq.cli.servers.checks import Check
from pyromq.client.options import parse_name_servers
from pyromq.clock import SystemClock
from pyromq.errors import CallFailed, PyroMQError

if TYPE_CHECKING:
    from pyromq.admin.admin import Admin
    from pyromq.admin.brokers import BrokerStatus

#: A broker tells its clock to the second; delays and transactions go wrong with more than this.
CLOCK_SECONDS = 2.0
#: From here on a disk is nearly too full: brokers begin to delete, and then to refuse.
FULL = 0.75


def cluster_checks(name_servers: str) -> list[Check]:
    return asyncio.run(_checks(require(name_servers)))


async def _checks(name_servers: str) -> list[Check]:
    from pyromq.admin.admin import Admin

    async with Admin(name_servers, **connection()) as admin:
        found = [await _name_server(admin, address) for address in parse_name_servers(name_servers)]
        if not any(check.good for check in found):
            return found
        return found + [check for status in await admin.brokers.statuses() for check in await _broker(admin, status)]


async def _name_server(admin: Admin, address: str) -> Check:
    from pyromq.wire.requests.nameserver import GetClusterInfo

    name, began = "name server", SystemClock().monotonic()
    try:
        await admin.session.ask(address, GetClusterInfo())
    except CallFailed as problem:
        return Check(
            name,
            f"{address}: no answer",
            False,
            f"{problem}: is it running, and does a firewall let this machine through?",
        )
    except PyroMQError as problem:
        return Check(name, f"{address} refuses", False, str(problem))
    return Check(name, f"{address}, {output.duration(SystemClock().monotonic() - began)}", True)


async def _broker(admin: Admin, told: BrokerStatus) -> list[Check]:
    """Ask again over the open connection to measure the round trip only."""
    name = f"broker {told.name}"
    if told.problem is not None:
        advice = f"{told.problem}: is it running, and can this machine reach the address that it advertises?"
        return [Check(name, f"{told.address}: no answer", False, advice)]
    began = SystemClock().monotonic()
    status = await admin.brokers.status(told.address)
    took = SystemClock().monotonic() - began
    version = f"PyroMQ {status.pyromq_version}" if status.pyromq_version else f"RocketMQ {status.version}"
    return [
        Check(name, f"{version}, {output.duration(took)}", True),
        _clock(status, SystemClock().now_ms()),
        _disk(status),
    ]


def _clock(status: BrokerStatus, now_ms: int) -> Check:
    name = f"clock of {status.name}"
    if not status.clock_ms:
        return Check(name, "not known")
    # The broker's figure is cut to the second, so it may be up to one behind.
    away = (now_ms - status.clock_ms) / 1000 - 0.5
    if abs(away) <= CLOCK_SECONDS:
        return Check(name, "agrees with this machine's", True)
    side = "behind" if away > 0 else "ahead"
    return Check(name, f"{abs(away):.0f} s {side}", False, "set both by NTP: delays and transactions go by the clock")


def _disk(status: BrokerStatus) -> Check:
    good = status.disk_used < FULL
    advice = "" if good else "brokers delete early, and then refuse messages, on a disk that is nearly full"
    return Check(f"disk of {status.name}", f"{status.disk_used:.0%} in use", good, advice)
