"""`pyromq broker promote`: promote a slave. Shows the possible loss first and asks for confirmation.

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

#: Time for the other brokers to follow the new master before the result is shown.
FOLLOW_SECONDS = 15.0

Broker = Annotated[
    str,
    typer.Argument(
        metavar="BROKER",
        help="Name of the master and its slaves, or the address of a slave.",
        show_default=False,
        autocompletion=brokers,
    ),
]


def promote(
    broker: Broker,
    broker_id: Annotated[
        int | None,
        typer.Option(
            "--id", metavar="N", min=0, help="The slave with this broker id. Default: the slave with the longest log."
        ),
    ] = None,
    address: Annotated[
        str | None,
        typer.Option(
            "--address", metavar="HOST:PORT", help="The slave at this address. Default: the slave with the longest log."
        ),
    ] = None,
    role: Annotated[
        BrokerRole | None,
        typer.Option(
            "--role",
            metavar="ROLE",
            parser=role_named,
            help="async-master or sync-master. Default: the role of the old master.",
        ),
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Promote even if acknowledged messages may be lost.")] = False,
    timeout_s: Annotated[
        float, typer.Option("--timeout", metavar="SECONDS", min=1, help="Time to wait for the new master.")
    ] = 60.0,
    yes: Yes = False,
    name_servers: NameServers = DEFAULT_NAME_SERVER,
) -> None:
    """Promote a slave to master, after its master failed or to hand over from a running master.

    A running master hands over without loss and becomes a slave. A failed master that starts again becomes a slave,
    too; log bytes that only it has are quarantined in a file, not deleted.

    Without its master, a slave first asks the other brokers of the name. It refuses the promotion if one has a longer
    log, or does not answer and may have acknowledged messages that the slave lacks, as a failed async master always
    may. `--force` promotes it anyway.

    If two brokers led one after the other without knowing of each other, their logs diverge, and the one that starts
    last waits. `--force` with the address of either keeps its log; the other log is quarantined.
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
        with contextlib.suppress(NotNow):  # the shown state names the missing brokers
            found = ask(name_servers, lambda admin: _followed(admin, plan))
    console = output.stdout()
    console.print(f"[green]✓[/] {escaped(slave)} leads [bold]{escaped(plan.name)}[/]")
    console.print(status_facts(found, SystemClock().now_ms()))


def forget_member(
    broker: Annotated[
        str,
        typer.Argument(
            metavar="BROKER",
            help="The broker whose list changes: its address, or its name for the master.",
            show_default=False,
            autocompletion=brokers,
        ),
    ],
    member: Annotated[
        str,
        typer.Argument(
            metavar="MEMBER",
            help="The address of the removed broker, or the member id of its store.",
            show_default=False,
        ),
    ],
    yes: Yes = False,
    name_servers: NameServers = DEFAULT_NAME_SERVER,
) -> None:
    """Remove a broker that is gone for good from the list of members of its name.

    A master that starts after a crash no longer waits for it, and a promotion no longer asks it: acknowledged messages
    that only it has are lost. Slaves copy the list of their master. A removed broker that connects again is a member
    again.
    """
    found = ask(name_servers, lambda admin: admin.brokers.status(broker))
    output.agree(f"have {found.address} forget {member}: messages that it alone has are lost.", yes=yes)
    why = "pyromq broker forget-member"
    left = ask(name_servers, lambda admin: admin.leading.forget_member(found.address, member, why))
    console = output.stdout()
    console.print(f"[green]✓[/] {escaped(found.address)} knows these members now: {escaped(left or 'none')}")
