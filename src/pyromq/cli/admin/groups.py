"""`pyromq group`: list consumer groups, look at one, make, change and delete them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from pyromq.cli import output
from pyromq.cli.connecting import AsJson, BrokerName, ClusterName, GroupName, NameServers, Yes, ask, group_of_commands
from pyromq.cli.output import escaped, number, plural
from pyromq.cli.reaching import DEFAULT_NAME_SERVER
from pyromq.errors import ConsumerOffline, NotFound

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyromq.admin.admin import Admin
    from pyromq.admin.consumers import GroupLag, Members
    from pyromq.admin.dead_letters import DeadLetters
    from pyromq.admin.groups import Group

app = group_of_commands("Consumer groups: list, describe, create, update, delete.")

MaxRetries = Annotated[
    int | None,
    typer.Option("--max-retries", min=0, help="Redeliveries before a message becomes a dead letter."),
]
RetryQueues = Annotated[int | None, typer.Option("--retry-queues", min=0, max=1024, help="Queues of its retry topic.")]
Enabled = Annotated[
    bool | None, typer.Option("--enable/--disable", help="Allow the group to consume.", show_default=False)
]
Orderly = Annotated[bool | None, typer.Option("--ordered/--concurrent", help="Consume in order.", show_default=False)]
Broadcast = Annotated[
    bool | None,
    typer.Option(
        "--broadcast/--no-broadcast", help="Allow broadcast: each member gets every message.", show_default=False
    ),
]


@app.command("list")
def list_groups(
    every: Annotated[bool, typer.Option("--all", "-a", help="Also the brokers' own.")] = False,
    as_json: AsJson = False,
    name_servers: NameServers = DEFAULT_NAME_SERVER,
) -> None:
    """List the consumer groups of the cluster."""
    found = [one for one in ask(name_servers, lambda admin: admin.groups.list()) if every or not one.is_system]
    if as_json:
        output.print_json([_group_json(one) for one in found])
    elif found:
        output.stdout().print(_groups_table(found))
    else:
        output.note("no groups yet: `pyromq group create NAME` makes one, and so does the first consumer of it")


def _groups_table(found: Sequence[Group]) -> Any:
    table = output.listing("group", "may consume", "order", "max retries", "brokers", numbers=("max retries",))
    for one in found:
        config = one.config
        table.add_row(
            f"[dim]{escaped(one.name)}[/]" if one.is_system else escaped(one.name),
            "yes" if config.consume_enabled else "[yellow]no[/]",
            "yes" if config.orderly else "no",
            number(config.max_retries),
            escaped(", ".join(on.broker for on in one.brokers)),
        )
    return table


@app.command()
def describe(group: GroupName, as_json: AsJson = False, name_servers: NameServers = DEFAULT_NAME_SERVER) -> None:
    """Show one group: its settings, who is in it, how far it is behind, and its dead letters."""

    async def work(admin: Admin) -> tuple[Group, GroupLag, Members | None, DeadLetters | None]:
        found = await admin.groups.get(group)
        try:
            members = await admin.consumers.members(group)
        except ConsumerOffline:
            members = None
        try:
            dead = await admin.dead_letters.of(group)
        except NotFound:
            dead = None
        return found, await admin.consumers.lag(group), members, dead

    found, lag, members, dead = ask(name_servers, work)
    if as_json:
        output.print_json({
            **_group_json(found),
            "members": [one.client_id for one in members.clients] if members else [],
            "subscriptions": list(members.subscriptions) if members else [],
            "lag": lag.lag,
            "dead_letters": dead.messages if dead else 0,
        })  # fmt: skip
        return
    output.stdout().print(_group_facts(found, lag, members, dead))


def _group_facts(found: Group, lag: GroupLag, members: Members | None, dead: DeadLetters | None) -> Any:
    config, facts = found.config, output.facts()
    facts.add_row("group", f"[bold]{escaped(found.name)}[/]")
    facts.add_row("on", escaped(", ".join(on.broker for on in found.brokers)))
    facts.add_row("may consume", "yes" if config.consume_enabled else "[yellow]no[/]")
    facts.add_row("order", "in order" if config.orderly else "concurrently")
    facts.add_row("broadcast", "allowed" if config.broadcast_enabled else "not allowed")
    facts.add_row("retries", f"{number(config.max_retries)} after the first delivery")
    online = plural(len(members.clients), "member") if members else "[dim]nobody is connected[/]"
    facts.add_row("members", online)
    for one in members.subscriptions if members else ():
        facts.add_row("subscribes to", escaped(f"{one.topic} ({one.kind} {one.expression})"))
    facts.add_row("behind by", f"[{'yellow' if lag.lag else 'green'}]{plural(lag.lag, 'message')}[/]")
    facts.add_row("dead letters", f"[red]{plural(dead.messages, 'message')}[/]" if dead and dead.messages else "none")
    return facts


@app.command()
def create(
    group: Annotated[str, typer.Argument(metavar="GROUP", help="Its name.", show_default=False)],
    max_retries: MaxRetries = None,
    retry_queues: RetryQueues = None,
    enabled: Enabled = None,
    orderly: Orderly = None,
    broadcast: Broadcast = None,
    cluster: ClusterName = None,
    broker: BrokerName = None,
    as_json: AsJson = False,
    name_servers: NameServers = DEFAULT_NAME_SERVER,
) -> None:
    """Create a consumer group on every broker of the cluster."""
    settings = _settings(max_retries, retry_queues, enabled, orderly, broadcast)
    made = ask(name_servers, lambda admin: admin.groups.create(group, cluster=cluster, broker=broker, **settings))
    _show_set(made, "made", as_json)


@app.command()
def update(
    group: GroupName,
    max_retries: MaxRetries = None,
    retry_queues: RetryQueues = None,
    enabled: Enabled = None,
    orderly: Orderly = None,
    broadcast: Broadcast = None,
    as_json: AsJson = False,
    name_servers: NameServers = DEFAULT_NAME_SERVER,
) -> None:
    """Change the given settings of a consumer group."""
    settings = _settings(max_retries, retry_queues, enabled, orderly, broadcast)
    if not settings:
        raise typer.BadParameter("say what is to change: --max-retries, --ordered …", param_hint="the options")
    changed = ask(name_servers, lambda admin: admin.groups.update(group, **settings))
    _show_set(changed, "changed", as_json)


def _settings(
    max_retries: int | None,
    retry_queues: int | None,
    enabled: bool | None,
    orderly: bool | None,
    broadcast: bool | None,
) -> dict[str, Any]:
    given = {
        "max_retries": max_retries, "retry_queues": retry_queues, "consume_enabled": enabled, "orderly": orderly,
        "broadcast_enabled": broadcast,
    }  # fmt: skip
    return {name: value for name, value in given.items() if value is not None}


def _show_set(group: Group, what: str, as_json: bool) -> None:
    if as_json:
        output.print_json(_group_json(group))
        return
    where = ", ".join(on.broker for on in group.brokers)
    output.stdout().print(f"[green]✓[/] {what} [bold]{escaped(group.name)}[/] on {escaped(where)}")


@app.command()
def delete(
    group: GroupName,
    keep_offsets: Annotated[bool, typer.Option("--keep-offsets", help="Keep its offsets.")] = False,
    dead_letters: Annotated[bool, typer.Option("--dead-letters", help="Delete its dead letters, too.")] = False,
    yes: Yes = False,
    name_servers: NameServers = DEFAULT_NAME_SERVER,
) -> None:
    """Delete a consumer group with its offsets and its retry topic."""
    found = ask(name_servers, lambda admin: admin.groups.get(group))
    what = ["what it was to try again"] + ["how far it is"] * (not keep_offsets) + ["its dead letters"] * dead_letters
    where = ", ".join(on.broker for on in found.brokers)
    output.agree(f"delete the group {group} on {where}, with {' and '.join(what)}.", yes=yes)
    removed = ask(
        name_servers,
        lambda admin: admin.groups.delete(group, keep_offsets=keep_offsets, with_dead_letters=dead_letters),
    )
    for one in removed:
        output.stdout().print(f"[green]✓[/] deleted {escaped(one)}")


def _group_json(group: Group) -> dict[str, Any]:
    config = group.config
    return {
        "group": group.name,
        "system": group.is_system,
        "brokers": [on.broker for on in group.brokers],
        "consume_enabled": config.consume_enabled,
        "ordered": config.orderly,
        "broadcast_enabled": config.broadcast_enabled,
        "max_retries": config.max_retries,
        "retry_queues": config.retry_queues,
    }
