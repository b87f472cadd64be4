"""Brokers of one name as they would show themselves, for decisions that need no network."""

from __future__ import annotations

from pyromq.admin.brokers import BrokerStatus
from pyromq.admin.copies import Copying, Slave
from pyromq.admin.promotion import Member
from pyromq.wire.bodies.epochs import BrokerEpochs, EpochEntry


def address_of(number: int) -> str:
    return f"10.0.0.{number + 1}:10911"


def master(end: int = 1000, *, slaves: tuple[int, ...] = (1,), epoch: int = 1, **more: str) -> BrokerStatus:
    """It has these slaves, all of them in sync."""
    copies = tuple(
        Slave(f"10.0.0.{one + 1}:5", is_in_sync=True, has=end, broker_id=one, address=address_of(one)) for one in slaves
    )
    role = more.pop("role", "ASYNC_MASTER")
    return BrokerStatus("c", "pair", 0, address_of(0), copying=Copying(role, epoch, end, copies), started_ms=1, **more)


def slave(number: int = 1, end: int = 1000, *, epoch: int = 1, connected: bool = True, **more: int) -> BrokerStatus:
    copying = Copying("SLAVE", epoch, end, master=address_of(0), is_connected=connected, **more)
    return BrokerStatus("c", "pair", number, address_of(number), copying=copying, started_ms=1)


def away(number: int) -> BrokerStatus:
    return BrokerStatus("c", "pair", number, address_of(number), problem="nobody listens there")


def member(status: BrokerStatus, *epochs: tuple[int, int]) -> Member:
    """With epochs of these numbers and starts; else one from the beginning on."""
    known = epochs or ((status.copying.epoch, 0),) if status.copying else ()
    return Member(status, BrokerEpochs(entries=tuple(EpochEntry(number, start) for number, start in known)))
