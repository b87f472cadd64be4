"""`pyromq broker promote`: let a slave lead. It says first what may be missing, and asks.

`pyromq broker forget-member`: a broker of the name is gone for good.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated

import typer

from pyromq.cli import output
from pyromq.cli.admin.broker_views import status_facts
from pyromq.cli.completing import brokers
from pyromq.cli.connecting import NameServers, Yes, ask
from pyromq.cli.output import escaped
from pyromq.cli.reaching import DEFAULT_NAME_SERVER
from pyromq.cli.servers.serve import BrokerRole, role_named
from pyromq.clock import SystemClock
from pyromq.errors import NotNow

if TYPE_CHECKING:
    from pyromq.admin.admin import Admin
    from pyromq.admin.brokers import BrokerStatus
    from pyromq.admin.promotion import Promotion

#: How long the others may take to find the new master, before it is shown without them.
FOLLOW_SECONDS = 15.0

Broker = Annotated[
    str,
    typer.Argument(
        metavar="BROKER",
        help="The name that master and slaves share; or the address of the slave.",
        show_default=False,
        autocompletion=brokers,
    ),
]


def promote(
    broker: Broker,
    broker_id: Annotated[
        int | None, typer.Option("--id", metavar="N", min=0, help="The slave with this number; else the best one.")
    ] = None,
    address: Annotated[
        str | None, typer.Option("--address", metavar="HOST:PORT", help="The slave at this address; else the best one.")
    ] = None,
    role: Annotated[
        BrokerRole | None,
        typer.Option(
            "--role",
            metavar="ROLE",
            parser=role_named,
            help="async-master or sync-master; else what the master was.",
        ),
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Even though acknowledged messages may be lost.")] = False,
    timeout_s: Annotated[
        float, typer.Option("--timeout", metavar="SECONDS", min=1, help="How long to wait for the new master.")
    ] = 60.0,
    yes: Yes = False,
    name_servers: NameServers = DEFAULT_NAME_SERVER,
) -> None:
    """Let a slave lead: when its master is gone, or to take over from one that lives.

    A master that lives hands over: nothing is lost, and it goes on as a slave. One that is gone, and comes back,
    becomes a slave by itself; what nobody else had of its log is put aside in a file, not thrown away.

    Without its master a slave asks the other brokers of the name first. It refuses if one has more, or does not answer
    and may have acknowledged messages that the slave lacks: an async master that is gone always may. `--force` leads
    all the same.

    If two brokers led one after the other and neither knew of it, their logs part, and the one that starts last waits.
    `--force` with the address of either keeps its log; what the other one has is moved to quarantine.
    """
    if role is BrokerRole.SLAVE:
        raise typer.BadParameter("whoever leads is async-master or sync-master", param_hint="--role")
    plan = ask(name_servers, lambda admin: admin.leading.plan(broker, broker_id=broker_id, address=address))
    _explain(plan, force=force)
    output.agree(f"let {plan.slave} lead {plan.name}, in epoch {plan.epoch}.", yes=yes)
    _carry_out(plan, role, timeout_s, name_servers, force=force)


def _explain(plan: Promotion, *, force: bool) -> None:
    from pyromq.admin.promotion import what_may_be_missing

    for sentence in what_may_be_missing(plan):
        output.note(escaped(sentence))
    if plan.is_fork and not force:
        output.fail("nothing was done: say --force to give up what the other log has")
    if plan.better and not force:
        names = " or ".join(f"--id {one.status.broker_id}" for one in plan.better)
        output.fail(f"nothing was done: choose the better slave with {names}, or say --force")


async def _followed(admin: Admin, plan: Promotion) -> BrokerStatus:
    return await admin.leading.until_followed(plan.slave.address, plan.followers, FOLLOW_SECONDS)


@contextlib.contextmanager
def _telling_what_goes_on(slave: str) -> Iterator[None]:
    """Ctrl-C stops the waiting, not what the brokers were told."""
    try:
        yield
    except typer.Exit:
        output.note(escaped(f"{slave} was told to lead, and goes on with that: `pyromq cluster` shows how it ends"))
        raise


def _carry_out(plan: Promotion, role: BrokerRole | None, timeout_s: float, name_servers: str, *, force: bool) -> None:
    slave = plan.slave.address
    chosen, why = None if role is None else role.name, "pyromq broker promote"
    with output.working(f"{slave} takes over"):
        ask(name_servers, lambda admin: admin.leading.promote(plan, role=chosen, reason=why, force=force))
    with output.working(f"{slave} takes over"), _telling_what_goes_on(slave):
        found = ask(name_servers, lambda admin: admin.leading.until_leads(plan.name, slave, timeout_s))
        with contextlib.suppress(NotNow):  # what is shown then says who is missing
            found = ask(name_servers, lambda admin: _followed(admin, plan))
    console = output.stdout()
    console.print(f"[green]✓[/] {escaped(slave)} leads [bold]{escaped(plan.name)}[/]")
    console.print(status_facts(found, SystemClock().now_ms()))


def forget_member(
    broker: Annotated[
        str,
        typer.Argument(
            metavar="BROKER",
            help="The broker that is to forget it: its address, or the name, which is the master.",
            show_default=False,
            autocompletion=brokers,
        ),
    ],
    member: Annotated[
        str,
        typer.Argument(
            metavar="MEMBER",
            help="The address of the broker that is gone, or the member id of its store.",
            show_default=False,
        ),
    ],
    yes: Yes = False,
    name_servers: NameServers = DEFAULT_NAME_SERVER,
) -> None:
    """Have a broker forget another one of its name, which is gone for good.

    A forgotten broker is not waited for when the master starts after a crash, and not asked before a slave is promoted:
    acknowledged messages that it alone has are lost. The slaves of a master take its list over. A broker that comes
    back is a member again.
    """
    found = ask(name_servers, lambda admin: admin.brokers.status(broker))
    output.agree(f"have {found.address} forget {member}: messages that it alone has are lost.", yes=yes)
    why = "pyromq broker forget-member"
    left = ask(name_servers, lambda admin: admin.leading.forget_member(found.address, member, why))
    console = output.stdout()
    console.print(f"[green]✓[/] {escaped(found.address)} knows these members now: {escaped(left or 'none')}")
